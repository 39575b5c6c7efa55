"""Other sizes for named dimensions: equal names stay equal, and sums of names stay sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.core.path import Attr, Path
from onlooker.core.sizes.expression import Expression
from onlooker.materialise.tensors import resized

from .dims import dim_name, is_dynamic
from .layout import ContainerKind, ShapeTree

__all__ = ["NewSizes", "evaluated", "linear_terms", "settle_sizes"]


def linear_terms(name: str) -> tuple[dict[str, int], int] | None:
    """The names in a sum of names, each with its factor, and the constant; None for any other name.

    >>> linear_terms("past+2*seq - 1"), linear_terms("batch"), linear_terms("a*b")
    (({'past': 1, 'seq': 2}, -1), None, None)
    """
    if name.isidentifier():
        return None
    try:
        expression = Expression.parse(name)
    except UsageError:
        return None
    zeros = dict.fromkeys(expression.symbols, 0)
    constant = expression.evaluate(zeros)
    factors = {
        symbol: expression.evaluate(zeros | {symbol: 1}) - constant for symbol in expression.symbols
    }
    point = {symbol: 2 + position for position, symbol in enumerate(factors)}
    total = constant + sum(factor * point[symbol] for symbol, factor in factors.items())
    return (factors, constant) if factors and expression.evaluate(point) == total else None


def evaluated(name: str, sizes: Mapping[str, Any]) -> Any:
    """The value of a name that is a sum of others; None for any other name, and where a size is
    missing.

    A part may be the beginning of a name, as in ``"cache+seq"`` beside ``cache_length`` and
    ``seq_length``.

    >>> evaluated("past+seq", {"past": 5, "seq": 3}), evaluated("batch", {}), evaluated("n+1", {})
    (8, None, None)
    >>> evaluated("cache+seq", {"cache_length": 5, "seq_length": 3})
    8
    """
    terms = linear_terms(name)
    if terms is None:
        return None
    factors, total = terms
    for part, factor in factors.items():
        found = (
            [part] if part in sizes else [known for known in sizes if known.startswith(f"{part}_")]
        )
        if len(found) != 1:
            return None
        total = total + factor * sizes[found[0]]
    return total


class NewSizes:
    """A new size for each dimension that may change; a dimension with a hint goes by its present
    size.
    """

    def __init__(
        self,
        shaped: Iterable[tuple[ShapeTree, Any]],
        desired: Mapping[str, int],
        only_desired: bool = False,
    ) -> None:
        self._shaped = {leaf.path: (leaf, shape) for leaf, shape in shaped}
        self._old: dict[str, int] = {}
        self._derived: dict[str, Any] = {}
        for leaf, shape in self._shaped.values():
            for _, dim, size in _dims(leaf, shape):
                self._old.setdefault(_key(dim, size), size)
                if hasattr(dim, "root"):
                    self._derived[_key(dim, size)] = dim
        _check_known(desired, self._old)
        step = 0 if only_desired else 1
        self._new = {key: desired.get(key, size + step) for key, size in self._old.items()}
        for key in self._old:
            if key not in desired:
                self._new[key] = self._related(key, step)

    def resized(self, path: Path, value: Any) -> Any:
        """The leaf at ``path`` with its new sizes; what has no shape is kept."""
        if path not in self._shaped:
            return value
        place, shape = self._shaped[path]
        if isinstance(value, torch.Tensor):
            return resized(value, self._shape_of(path))
        if place.is_counter:
            return self._counted(path, value)
        return next((self._new[_key(dim, size)] for _, dim, size in _dims(place, shape)), value)

    def _shape_of(self, path: Path) -> list[int]:
        place, shape = self._shaped[path]
        new = {i: self._new[_key(dim, size)] for i, dim, size in _dims(place, shape)}
        return [new.get(i, size) for i, size in enumerate(place.value.shape)]

    def _related(self, key: str, step: int) -> int:
        """The size of a sum of names, or of a ``Dim`` made from another, where the inputs obey
        it.
        """
        dim = self._derived.get(key)
        if dim is not None:
            root = dim.root.__name__
            return int(
                dim.fn(self._new[root])
                if root in self._new
                else self._old[key] + step * (dim.fn(1) - dim.fn(0))
            )
        total = evaluated(key, self._new) if evaluated(key, self._old) == self._old[key] else None
        return self._new[key] if total is None else int(total)

    def _counted(self, path: Path, value: Any) -> Any:
        """The counter of a sliding layer goes with its keys, as long as they are all that it
        counted.
        """
        keys = Path((*path.entries[:-1], Attr("keys")))
        if keys not in self._shaped or self._shaped[keys][0].value.shape[-2] != value:
            return value
        return self._shape_of(keys)[-2]


def settle_sizes(place: ShapeTree) -> None:
    """Reads the sizes that static layers keep beside their tensors again, in caches that were
    just made.
    """
    for layer in getattr(place.value, "layers", ()) if place.form is ContainerKind.CACHE else ():
        keys = getattr(layer, "keys", None)
        if isinstance(keys, torch.Tensor) and "batch_size" in vars(layer):
            layer.batch_size, layer.num_heads = keys.shape[:2]
    for child in place.children:
        settle_sizes(child)


def _check_known(desired: Mapping[str, int], known: Mapping[str, int]) -> None:
    unknown = [name for name in desired if name not in known]
    if unknown:
        raise UsageError(
            f"No dimension is called {', '.join(unknown)}.",
            slug="no-such-dimension",
            hint=f"The shapes have {', '.join(known) or 'no names'}.",
        )


def _key(dim: Any, size: int) -> str:
    """Returns the key that dimensions that change together share: a name, or the size when there is
    none.
    """
    return dim_name(dim) or f"a dimension of size {size}"


def _dims(place: ShapeTree, shape: Any) -> Iterator[tuple[int, Any, int]]:
    """``(position, what stands for it, size)`` of each dimension that may change; an int has
    one.
    """
    if not isinstance(place.value, torch.Tensor):
        if is_dynamic(shape) and type(place.value) is int and not place.is_counter:
            yield 0, shape, place.value
        return
    for i, dim in shape.items() if isinstance(shape, dict) else enumerate(shape or ()):
        if is_dynamic(dim):
            yield i, dim, place.value.shape[i]
