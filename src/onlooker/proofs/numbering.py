"""Numbers of values by what computes them, as compilers number values to find equal ones.

Every value gets a number by its operator and the numbers of the arguments. Two values with the same number
are equal whatever the inputs hold. Two programs that are numbered together are compared so::

    x                     input 0                -> 0        x                     -> 0
    y = x * 2             (mul, 0, 2)            -> 1        p = pad(x, [0, 0])    -> 0, since nothing is padded
    z = y + x             (add, 1, 0)            -> 2        y = p * 2             -> 1
    z.relu_()             (relu_, 2)             -> 3        z = y + p             -> 2

Up to the last line they compute the same. A value that is written to has another number from there on, and
so has every value in the same memory: ``z`` on the left is 3 after ``relu_``.

An operator that changes nothing gives its argument, and that is what :func:`computed` gives for it: a pad of
0, a slice of everything, a concatenation with nothing, an expand to the same shape.

:mod:`onlooker.proofs.same_graph` numbers exported graphs, with sizes as expressions, and
:mod:`onlooker.proofs.same_run` the operators of runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..pytrees.comparisons.digest import digest_of
from ..pytrees.nodes import SYMBOLIC
from ..torch_internals.operators import OpOverload
from .operators import CASTS, COPIES, DROPOUTS, asserts, attribute_of, facts_of

__all__ = ["Numbered", "Numbering", "computed", "content_of", "digest", "frozen", "normal"]

Shape = tuple[Any, ...]
_aten = torch.ops.aten
_END = 2**62


class Numbered:
    """A numbered value with its shape and its dtype."""

    __slots__ = ("dtype", "number", "shape")

    def __init__(self, number: int, shape: Shape = (), dtype: Any = None) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype


class Numbering:
    """Numbers by keys, which say what computes a value."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        """The number of a key; a new one for a new key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def known(self, key: Any) -> int | None:
        """The number of a key; None for a new key."""
        return self._numbers.get(key)


def computed(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that an operator gives back unchanged; else the key of what it computes.

    ``args`` hold numbered tensors, and sizes as expressions.
    """
    simpler = None if facts_of(target).written else _simplified(target, args, kwargs)
    if isinstance(simpler, Numbered):
        return simpler
    args, kwargs = simpler or (args, kwargs)
    return (str(target), frozen(args), frozen(kwargs))


def frozen(value: Any) -> Any:
    """An argument as a value that can be hashed; equal arguments are equal."""
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", frozen((value.start, value.stop, value.step)))
    value = normal(value)
    return value if isinstance(value, (int, str, tuple)) or value is None else str(value)


def normal(value: Any) -> Any:
    """A value in a form in which equal ones are equal: a number, or the expression that stands for
    all equal sizes.
    """
    if isinstance(value, Numbered):
        return ("tensor", value.number)
    if isinstance(value, SYMBOLIC):
        value = value.node.expr
    if isinstance(value, sympy.Basic):
        return int(value) if value.is_Integer else ("size", value)
    if isinstance(value, (bool, float)):
        return (type(value).__name__, repr(value))
    return value


# -- the content of what is no result


def content_of(value: Any) -> str:
    """A text that two attributes of graphs share only if they hold the same: of a graph what it
    computes, of a tensor its values.

    Names of nodes and of modules tell nothing.
    """
    if isinstance(value, torch.fx.GraphModule):
        return hashlib.sha256(repr(_content_of_graph(value)).encode()).hexdigest()
    return digest(value) if isinstance(value, torch.Tensor) else f"{type(value).__name__} {value!r}"


def digest(value: Any) -> str:
    """The content of a tensor, with its dtype, shape and strides; any other object is only equal to
    itself.
    """
    try:
        return digest_of(value).hex()
    except (TypeError, RuntimeError, NotImplementedError):
        return f"object {id(value)}"


def _content_of_graph(module: torch.fx.GraphModule) -> list[Any]:
    """One row per node: the operator and its arguments, in which a node is its row."""
    rows: dict[torch.fx.Node, Any] = {}
    content: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            row: Any = ("input",)
        elif node.op == "get_attr":
            row = ("attribute", content_of(attribute_of(module, node.target)))
        else:
            args: Any = torch.fx.node.map_arg(node.args, rows.__getitem__)
            if isinstance(node.target, OpOverload) and asserts(node):
                # the message names symbols of one trace
                args = tuple(value for value in args if not isinstance(value, str))
            kwargs = torch.fx.node.map_arg(dict(node.kwargs), rows.__getitem__)
            row = (str(node.target), frozen(args), frozen(kwargs))
        rows[node] = Numbered(len(content))
        content.append(row)
    return content


# -- operators that change nothing


def _simplified(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that an operator gives back unchanged; simpler arguments; or None."""
    if not args:
        return None
    first = args[0]
    if target is _aten.cat.default:
        return _joined(args)
    if not isinstance(first, Numbered):
        return None
    if target in COPIES:
        return first
    if target in CASTS and _keeps_type(target, first, args, kwargs):
        return first
    rule = _RULES.get(target)
    if rule is not None and rule(first, args, kwargs):
        return first
    return _plain_slice(args) if target is _aten.slice.Tensor and not kwargs else None


def _joined(args: Sequence[Any]) -> Any:
    """A concatenation without the tensors that have no elements."""
    tensors = list(args[0])
    if not all(isinstance(item, Numbered) for item in tensors):
        return None
    full = [item for item in tensors if not any(normal(size) == 0 for size in item.shape)]
    if len({item.dtype for item in tensors}) > 1 or len(full) == len(tensors) or not full:
        return None
    return full[0] if len(full) == 1 else ((full, *args[1:]), {})


def _keeps_type(
    target: Any, first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    given = (*args[1:], *kwargs.values())
    if target is _aten.type_as.default:
        return isinstance(args[1], Numbered) and args[1].dtype == first.dtype
    moves = any(isinstance(item, torch.device) for item in given)
    return not moves and all(item == first.dtype for item in given if isinstance(item, torch.dtype))


def _same_shape(first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """A view or an expand to the shape that is there."""
    sizes = args[1] if len(args) > 1 else ()
    if not isinstance(sizes, (list, tuple)) or len(sizes) != len(first.shape):
        return False
    # one size of -1 is what the others leave: view(x, [batch, -1]) for x of shape (batch, 3)
    n_unknown = 0
    for size, here in zip(sizes, first.shape, strict=True):
        if normal(size) == -1:
            n_unknown += 1
        elif normal(size) != normal(here):
            return False
    return n_unknown < 2


def _takes_all(first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """A slice of everything."""
    (_, dim, start, end, step), _ = _plain_slice(args)
    if kwargs or not first.shape or normal(step) != 1 or normal(start) != 0:
        return False
    return bool(normal(end) == normal(first.shape[dim]))


def _plain_slice(args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a slice with all defaults written out; numbers lie inside the tensor, as
    torch counts them.
    """
    # slice(x, 0, -3) of 8 rows is slice(x, 0, 5, 8, 1)
    defaults = (0, None, None, 1)
    dim, start, end, step = (*args[1:], *defaults[len(args) - 1 :])[:4]
    start = 0 if start is None else start
    end = _END if end is None else end
    size = args[0].shape[dim] if args[0].shape else None
    if size is not None and isinstance(end, int) and end >= _END:
        end = size
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        start = start + size if start < 0 else start
        start = min(max(start, 0), size)
        end = end + size if end < 0 else end
        end = min(max(end, start), size)
    return (args[0], dim, start, end, step), {}


def _moves_nothing(first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """A pad of 0, or a roll by 0."""
    amounts = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    return all(normal(amount) == 0 for amount in amounts)


def _repeats_once(first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    counts = args[1]
    return len(counts) == len(first.shape) and all(normal(count) == 1 for count in counts)


def _drops_nothing(first: Numbered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return len(args) == 3 and args[2] is False


_RULES: dict[Any, Callable[[Numbered, Sequence[Any], Mapping[str, Any]], bool]] = {
    **dict.fromkeys((_aten.view.default, _aten.reshape.default), _same_shape),
    **dict.fromkeys((_aten._unsafe_view.default, _aten.expand.default), _same_shape),
    **dict.fromkeys((_aten.pad.default, _aten.constant_pad_nd.default), _moves_nothing),
    **dict.fromkeys(DROPOUTS, _drops_nothing),
    _aten.slice.Tensor: _takes_all,
    _aten.roll.default: _moves_nothing,
    _aten.repeat.default: _repeats_once,
}
