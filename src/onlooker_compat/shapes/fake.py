"""Inputs without values: fake tensors whose dimensions are numbers or symbols of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onlooker.core.path import Path
from onlooker.pytrees.open import close_tree, map_tensors, open_tree
from onlooker.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from onlooker.torch_internals.sizes import ShapeEnv

from .dims import dim_name, is_dynamic
from .fit import fit_shapes
from .layout import ShapeTree, lay_out
from .resize import evaluated

__all__ = ["FakeTensorContext", "make_fake", "make_fake_with_dynamic_dimensions"]

_FIRST_SIZE = 13


class FakeTensorContext:
    """The mode in which fake tensors are made, and the symbol of each name that was seen in it.

    :param fake_mode: the mode to use, a new one with symbols by default
    """

    def __init__(self, fake_mode: FakeTensorMode | None = None) -> None:
        self.fake_mode: FakeTensorMode = fake_mode or FakeTensorMode(shape_env=ShapeEnv())
        self._symbols: dict[str, Any] = {}
        self._last_size = _FIRST_SIZE - 1

    def from_tensor(self, x: torch.Tensor, static_shapes: bool = False) -> torch.Tensor:
        """A fake tensor of the shape, the dtype and the device of ``x``.

        :param x: a tensor
        :param static_shapes: keeps numbers; else each size of 2 or more is a symbol, equal sizes
            the same one
        """
        if isinstance(x, FakeTensor) and x.fake_mode is self.fake_mode:
            return x
        return self.fake_mode.from_tensor(x.detach(), static_shapes=static_shapes)

    def make_fake(self, x: Any) -> Any:
        """``x`` with each tensor replaced, see :func:`make_fake`."""
        return map_tensors(self.from_tensor, x)

    def make_fake_with_dynamic_dimensions(self, x: Any, dynamic_shapes: Any) -> Any:
        """``x`` with each tensor replaced, see :func:`make_fake_with_dynamic_dimensions`."""
        dims: dict[Path, dict[int, Any]] = {}

        def note(leaf: ShapeTree, shape: Any) -> Any:
            if isinstance(leaf.value, torch.Tensor):
                each = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
                dims[leaf.path] = {
                    i: _key(dim, leaf.value.shape[i]) for i, dim in each if is_dynamic(dim)
                }
            return shape

        fit_shapes(lay_out(x), dynamic_shapes, note)
        self._add_symbols({key for found in dims.values() for key in found.values()})
        tree = open_tree(x)
        leaves = [self._faked(leaf, dims.get(path, {})) for path, leaf in tree.items()]
        return close_tree(tree.structure, leaves)

    def _faked(self, leaf: Any, dims: Mapping[int, str]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = [self._symbols[dims[i]] if i in dims else size for i, size in enumerate(leaf.shape)]
        with self.fake_mode:
            return torch.empty(shape, dtype=leaf.dtype, device=leaf.device)

    def _add_symbols(self, keys: set[str]) -> None:
        """A symbol for each name, sums of names last: they are sums of symbols."""
        for key in sorted(keys - set(self._symbols), key=lambda key: (not key.isidentifier(), key)):
            total = evaluated(key, self._symbols)
            self._symbols[key] = self._new_symbol() if total is None else total

    def _new_symbol(self) -> Any:
        """A symbol of its own: torch gives equal sizes one symbol, so that each one is made from
        another prime.
        """
        self._last_size = next(
            n for n in range(self._last_size + 1, 2 * self._last_size + 2) if _is_prime(n)
        )
        return self.fake_mode.from_tensor(torch.empty(self._last_size, device="meta")).shape[0]


def _key(dim: Any, size: int) -> str:
    return dim_name(dim) or f"a dimension of size {size}"


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def make_fake(
    x: Any, context: FakeTensorContext | None = None
) -> tuple[Any, FakeTensorContext | None]:
    """Inputs of the same form with fake tensors, so that a model can be tried without computing.

    Each size of 2 or more is a symbol, equal sizes the same one. Caches and other classes are made
    anew; what is no tensor is kept.

    :param x: a tensor, or any nesting that holds some
    :param context: the context of other fake inputs that meet these, a new one by default
    :return: the fake inputs and the context

    >>> fake, _ = make_fake({"x": torch.zeros(3, 1)})
    >>> type(fake["x"]).__name__, fake["x"].shape[1]
    ('FakeTensor', 1)
    """
    if x is None:
        return None, context
    context = FakeTensorContext() if context is None else context
    return context.make_fake(x), context


def make_fake_with_dynamic_dimensions(
    x: Any, dynamic_shapes: Any, context: FakeTensorContext | None = None
) -> tuple[Any, FakeTensorContext | None]:
    """Inputs of the same form with fake tensors, in which named dimensions are symbols and others
    numbers.

    Dimensions of one name have one symbol, those of other names another one, whatever their sizes
    are; a name that is a sum of others (``"past+seq"``) is the sum of their symbols. Dimensions
    with a hint share a symbol when their sizes are equal.

    :param x: a tensor, or any nesting that holds some
    :param dynamic_shapes: its shapes, in any form that :class:`CoupleInputsDynamicShapes` takes;
        None changes nothing
    :param context: the context of other fake inputs that meet these, a new one by default
    :return: the fake inputs and the context
    :raises UsageError: ``shapes-do-not-fit``, with the path

    >>> x, y = torch.zeros(1, 4), torch.zeros(1, 5)
    >>> (x, y), _ = make_fake_with_dynamic_dimensions((x, y), ({0: "batch"}, {0: "batch", 1: "length"}))
    >>> bool(x.shape[0] == y.shape[0]), x.shape[1]
    (True, 4)
    """
    if x is None:
        return None, context
    context = FakeTensorContext() if context is None else context
    return context.make_fake_with_dynamic_dimensions(x, dynamic_shapes), context
