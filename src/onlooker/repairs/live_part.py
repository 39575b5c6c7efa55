"""A part of a trace that counts only where a value says so: what it writes elsewhere is undone.

The part is traced whatever the value is. A write to memory from before writes what stands there already
unless the part counts, and nothing else of the part may be seen after it:

    out[rows] += found          out[rows] = where(is_live, out[rows] + found, out[rows])
    out.index_add_(0, r, y)     out.index_add_(0, r, y.masked_fill(~is_live, 0))
    out.relu_()                 out.copy_(where(is_live, out.relu_(), out as it was))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..model_source.frames import is_own_code
from ..observing.reach import Snapshot, holds_state
from ..proofs.operators import draws, shared_by, written_by
from ..torch_internals.sizes import expression_of
from ..torch_internals.tracing import get_proxy_mode

__all__ = [
    "WRITES",
    "LivePart",
    "held_by",
    "is_traced",
    "is_write",
    "is_written",
    "names_of_cells",
    "node_of",
    "nodes_of_trace",
    "unseen_state",
]

_ADDS = frozenset({torch.index_add, torch.Tensor.index_add, torch.Tensor.index_add_})
_SETS = frozenset({torch.Tensor.__setitem__})
#: the functions that write to rows of a tensor
WRITES = _ADDS | _SETS
#: the name that a comprehension has for what it goes over
_ITERATOR = ".0"
#: what cannot change
_VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    range,
    slice,
    BuiltinFunctionType,
    torch.Size,
)
#: containers are looked into so deep
_DEEPEST = 4
_AUGMENTED = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
)


class LivePart:
    """The nodes of a part of a trace; it counts where the tensor ``is_live`` of one bool is True, and the
    part ``around`` it counts.
    """

    def __init__(self, is_live: torch.Tensor, around: LivePart | None = None) -> None:
        self.is_live: torch.Tensor = is_live if around is None else is_live & around.is_live
        self._around = around
        self._last = _last_node()
        self.nodes: Sequence[Node] = ()
        self._writes: set[Node] = set()
        self._written: list[Any] = []

    def written(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a function in the part; what it writes to rows of a tensor counts only where
        the part does.
        """
        if func in _ADDS and len(args) == 4:
            target, dim, index, source = args
            source = source.masked_fill(~self.is_live, 0)
            return self._writing(lambda: func(target, dim, index, source, **kwargs))
        if func in _SETS:
            target, index, value = args
            value = torch.as_tensor(value, dtype=target.dtype, device=target.device)
            value = torch.where(self.is_live, value, target[index])
            return self._writing(lambda: func(target, index, value))
        return func(*args, **kwargs)

    def overwritten(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a function that writes to its first argument, which counts only where the part
        does.
        """
        target, own = args[0], set(_nodes_after(self._last))
        node = node_of(target)
        if is_traced() and (node is None or not _is_in_memory_of_others(node, own)):
            return func(*args, **kwargs)
        before = target.clone()

        def write() -> Any:
            result = func(*args, **kwargs)
            target.copy_(torch.where(self.is_live, target, before))
            return result

        return self._writing(write)

    def _writing(self, write: Callable[[], Any]) -> Any:
        last = _last_node()
        result = write()
        part: LivePart | None = self
        while part is not None:
            part._writes.update(_nodes_after(last))
            part._written.append(result)
            part = part._around
        return result

    def has_written(self, value: Any) -> bool:
        """True for the result of a function that writes only where the part counts."""
        return any(value is one for one in self._written)

    def made(self, value: torch.Tensor) -> bool:
        """True for a tensor that the part, which is over, has made in memory of its own."""
        node = node_of(value)
        return node is not None and not _is_in_memory_of_others(node, set(self.nodes))

    def empty(self, values: Mapping[Any, Any]) -> dict[Any, int]:
        """The lengths of those slices of the part that are 0 for some values of symbols."""
        found: dict[Any, int] = {}
        for node in self.nodes:
            if node.target is torch.ops.aten.slice.Tensor and len(node.args) == 4:
                dim, begin, end = node.args[1], *map(_number_of, node.args[2:])
                length = expression_of(node.meta["val"].shape[dim])
                if None not in (begin, end) and sympy.sympify(end - begin).subs(values) == 0:
                    found[length] = 0
        return found

    def joins(self) -> set[Node]:
        """The nodes that join tensors of the part with others of the same dtype by their rows."""
        own = set(self.nodes)
        return {
            user
            for node in own
            for user in node.users
            if user.target is torch.ops.aten.cat.default
            and user.args[1:] in ((), (0,))
            and user not in own
            and {one.meta["val"].dtype for one in user.all_input_nodes} == {user.meta["val"].dtype}
        }

    def close(self) -> None:
        """The part is over; what the next test computes with numbers alone is none of it."""
        nodes = _nodes_after(self._last)
        while nodes and _is_of_numbers(nodes[-1]):
            nodes.pop()
        self.nodes = nodes

    def seen_outside(
        self, returned: Iterable[Node | None], readers: Collection[Node] = frozenset()
    ) -> str:
        """Returns what else than its writes is seen after the part, but for ``readers``; nothing where
        there is no such thing.
        """
        own, returned = set(self.nodes), set(returned)
        allowed = own.union(readers)
        for node in self.nodes:
            if draws(node):
                return f"the body draws random numbers, in {node.target}"
            if node in self._writes:
                continue
            if node in returned or not allowed.issuperset(node.users):
                return f"the result of {node.target} is used after the body"
            if any(_is_in_memory_of_others(one, own) for one in written_by(node)):
                return f"the body writes to a tensor that it did not make, in {node.target}"
        return ""


def held_by(held: Snapshot, frame: FrameType) -> Snapshot:
    """A snapshot of the model, with what the local names of a frame hold beside modules and the values of
    tensors, and with the names that its functions have from elsewhere.
    """
    own = set(frame.f_code.co_cellvars + frame.f_code.co_freevars)
    values: list[Any] = []
    for name, value in frame.f_locals.items():
        if name == _ITERATOR:
            continue  # of a comprehension: its steps are those of the trace
        if isinstance(value, FunctionType) and value.__closure__:
            cells = zip(value.__code__.co_freevars, value.__closure__, strict=True)
            values += [cell for known, cell in cells if known not in own]
        elif isinstance(value, torch.Tensor) or _may_change(value):
            values.append(value)
    held.holders += Snapshot.of(values, copies=False).again().holders[1:]
    return held


def names_of_cells(frame: FrameType) -> frozenset[str]:
    """The local names of a frame that functions in it, or around it, may set."""
    return frozenset(frame.f_code.co_cellvars + frame.f_code.co_freevars)


def unseen_state(frame: FrameType) -> str:
    """The local name of a frame that holds what may change unseen, as an iterator that does not tell where it
    stands; empty where there is none.
    """
    names = (name for name in frame.f_locals if name != _ITERATOR)
    return next((name for name in names if _is_unseen(frame.f_locals[name])), "")


def _is_unseen(value: Any, depth: int = 0) -> bool:
    """True for an object whose state no snapshot holds, and for a container with one."""
    if depth > _DEEPEST or not _may_change(value):
        return False
    if isinstance(value, dict):
        return any(_is_unseen(one, depth + 1) for one in dict.values(value))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return any(_is_unseen(one, depth + 1) for one in [*value])
    is_stateful = hasattr(type(value), "__next__") or hasattr(type(value), "__setitem__")
    return is_stateful and not holds_state(value)


def _may_change(value: Any) -> bool:
    """True for all but tensors, modules, what is code, and what stands for its value alone."""
    kind = type(value)
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, ModuleType, FunctionType, *_VALUES)):
        return False
    if isinstance(value, GeneratorType):
        return not is_own_code(value.gi_code.co_filename)  # that of a loop gives its steps
    if isinstance(value, (list, dict, set, tuple)):
        return True
    return kind.__module__.partition(".")[0] not in ("torch", __name__.partition(".")[0])


def is_write(func: Callable[..., Any]) -> bool:
    """True for a function of torch that writes to its first argument, by its name."""
    name = getattr(func, "__name__", "")
    return name in _AUGMENTED or (name.endswith("_") and not name.endswith("__"))


def is_traced() -> bool:
    """True inside of a trace that makes a graph."""
    return get_proxy_mode() is not None


def is_written(nodes: Collection[Node], but_by: Collection[Node] = ()) -> bool:
    """True where the graph that is traced writes to memory that some nodes may have, by another node
    than ``but_by``.
    """
    others = nodes_of_trace().difference(but_by) if nodes else ()
    return any(_is_in_memory_of(one, nodes) for node in others for one in written_by(node))


def nodes_of_trace() -> set[Node]:
    """The nodes so far of the graph that is traced."""
    last = _last_node()
    return set() if last is None else set(last.graph.nodes)


def _is_in_memory_of(node: Node, nodes: Collection[Node]) -> bool:
    return node in nodes or any(_is_in_memory_of(one, nodes) for one in shared_by(node))


def node_of(leaf: Any) -> Node | None:
    """The node of a tensor in the graph that is traced."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(leaf, torch.Tensor) or leaf not in mode.tracer.tensor_tracker:
        return None
    found: Node = mode.tracer.tensor_tracker[leaf].proxy.node
    return found


def _is_in_memory_of_others(node: Node, own: set[Node]) -> bool:
    """True for a result that may be in the memory of a tensor that a part did not make."""
    return node not in own or any(_is_in_memory_of_others(one, own) for one in shared_by(node))


def _number_of(argument: Any) -> Any:
    """The expression of a number in a graph."""
    return expression_of(argument.meta.get("val") if isinstance(argument, Node) else argument)


def _is_of_numbers(node: Node) -> bool:
    """True for a node that computes with numbers of Python."""
    is_number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat))
    return is_number and not hasattr(node.target, "_schema")


def _last_node() -> Node | None:
    """The last node so far of the graph that is traced; None in a run without a trace."""
    mode = get_proxy_mode()
    return None if mode is None else next(reversed(mode.tracer.graph.nodes))


def _nodes_after(node: Node | None) -> list[Node]:
    """The nodes of a graph after one of them."""
    found: list[Node] = []
    while node is not None and node.next.op != "root":
        node = node.next
        found.append(node)
    return found
