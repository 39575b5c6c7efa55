"""A cache that is updated in place: a buffer with room for tokens to come.

In the file, the cache that a GroupQueryAttention takes and the one that it gives have one size,
``cache_capacity``, and how much of it is in use follows from other inputs. Whoever runs the file
gives the same memory as both. Here that is :func:`in_place_runner`, for which a call takes and gives
caches of the lengths of the plan, as every program does: what it gives are views of a buffer, and
where the next call takes these views, nothing is copied. Any other cache is copied once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.errors import ExportError, OnlookerError
from ....core.plan import Plan
from ....core.sizes.expression import Expression
from ....core.support.locks import lock_of
from ....disk.text import damaged
from ....trace.graph import Graph
from ...names import Names
from ...results import Runner, as_the_model_gives
from .sizes import SizeNodes

__all__ = ["CAPACITY", "KEY", "InPlace", "in_place_runner", "kept_in_place", "make_in_place"]

#: the size of the buffers in a model
CAPACITY = "cache_capacity"
#: the entry of the metadata of a model that pairs the caches it takes with those it gives
KEY = "onlooker.caches_in_place"
_AXIS = 2
#: room for further tokens in a new buffer: a part of what is in it, and no less than this
_LEAST_ROOM = 64


def make_in_place(model: Any, graph: Graph) -> None:
    """Makes the caches of the GroupQueryAttentions of a model buffers, in place.

    :raises ExportError: ``onnx-cache-not-in-place`` with the reason
    """
    import onnx_ir

    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    pairs = [(node.inputs[at], node.outputs[at - 2]) for node in nodes for at in (3, 4)]
    if not pairs:
        raise _refused(graph, "none of its attentions is a GroupQueryAttention")
    sizes = SizeNodes(model, [past for past, _ in pairs])
    lengths = {sizes.text(present, _AXIS) for _, present in pairs}
    for past, present in pairs:
        readers = {usage.node.op_type for usage in present.uses()}
        if not present.is_graph_output() or readers - {"Shape"}:
            raise _refused(graph, f"{present.name} is read inside of the model too")
        told = sizes.read_elsewhere(past) and sizes.read_elsewhere(present)
        others = [usage.node.op_type for usage in past.uses() if usage.node not in nodes]
        if not told or others:
            raise _refused(graph, f"no other input tells how long {past.name} is")
    if len(lengths) != 1:
        raise _refused(graph, f"its caches have several lengths, {', '.join(sorted(lengths))}")
    for value in (value for pair in pairs for value in pair):
        batch, heads, _, size = value.shape
        value.shape = onnx_ir.Shape([batch, heads, CAPACITY, size])
    names = {str(past.name): str(present.name) for past, present in pairs}
    model.metadata_props[KEY] = json.dumps({"length": lengths.pop(), "caches": names})


def _refused(graph: Graph, reason: str) -> ExportError:
    return ExportError(
        f"The cache of {graph.name} cannot be updated in place: {reason}.",
        slug="onnx-cache-not-in-place",
        hint="Leave in_place_cache=True out: the cache is then appended to by a copy.",
    )


@dataclass(frozen=True, slots=True)
class InPlace:
    """The caches of a model that are buffers: outputs by inputs; ``length`` is that of what is in
    use after a call.
    """

    caches: Mapping[str, str]
    length: Expression


def kept_in_place(model: Any, names: Names, where: str) -> InPlace | None:
    """The buffers that a model which was read declares; None where it has none.

    :raises SavedFileError: ``file-damaged``
    """
    text = model.metadata_props.get(KEY)
    if text is None:
        return None
    try:
        said = json.loads(text)
        caches = {str(past): str(present) for past, present in said["caches"].items()}
        length = Expression.parse(said["length"])
    except (OnlookerError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(where, f"what it says of its caches is not understood ({error})") from error
    if not set(caches) <= set(names.inputs) or not set(caches.values()) <= set(names.outputs):
        raise damaged(where, "its caches are not those of its plan")
    return InPlace(caches, length)


class _Buffer:
    """The memory of one cache: the first ``length`` tokens are in use. Only who has claimed it may
    write behind them.
    """

    def __init__(self, past: torch.Tensor, length: int, dtype: torch.dtype) -> None:
        batch, heads, n_past, size = past.shape
        capacity = length + max(_LEAST_ROOM, length // 4)
        self.whole = torch.empty(batch, heads, capacity, size, dtype=dtype)
        self.whole[:, :, :n_past] = past
        self.length = n_past

    def holds(self, past: torch.Tensor, length: int) -> bool:
        """True where ``past`` is all that is in use, and there is room for ``length`` tokens."""
        used = self.used
        return (
            past.data_ptr() == used.data_ptr()
            and past.shape == used.shape
            and past.stride() == used.stride()
            and length <= self.whole.shape[_AXIS]
        )

    @property
    def used(self) -> torch.Tensor:
        """A view of the part that is in use."""
        return self.whole[:, :, : self.length]


class _Buffers:
    """The latest buffer of each cache. A buffer that a call writes to belongs to it alone."""

    def __init__(self) -> None:
        self._latest: dict[str, _Buffer] = {}
        self._lock = lock_of(self)

    def claimed(self, name: str, past: torch.Tensor, length: int) -> _Buffer:
        """The buffer that has ``past``, which nobody else gets until it is given back; a new one
        with a copy of it elsewhere.
        """
        with self._lock:
            buffer = self._latest.get(name)
            if buffer is not None and past.numel() and buffer.holds(past, length):
                return self._latest.pop(name)
        return _Buffer(past, length, past.dtype)

    def give_back(self, name: str, buffer: _Buffer, length: int) -> torch.Tensor:
        """The part of a buffer that is in use after a call that wrote to it."""
        buffer.length = length
        with self._lock:
            self._latest[name] = buffer
        return buffer.used


def in_place_runner(
    session: Any, labels: Sequence[str], names: Names, plan: Plan, kept: InPlace, outputs: Any
) -> Runner:
    """A function of the inputs, in the order of ``labels``, that gives the outputs of the plan.

    Results are never written to again: a buffer whose content was handed out is only written to
    behind it, by the one call that appends to all of it. ``outputs`` are those of the graph.
    """
    types = {value.name for value in session.get_inputs()}
    used = [(at, label) for at, label in enumerate(labels) if label in types]
    plain = [(at, label) for at, label in used if label not in kept.caches]
    caches = [(at, label) for at, label in used if label in kept.caches]
    others = [name for name in names.outputs if name not in kept.caches.values()]
    buffers, length_of = _Buffers(), _length_reader(plan, kept.length)

    def start(inputs: Sequence[Any]) -> list[torch.Tensor]:
        length = length_of(inputs)
        binding = session.io_binding()
        for at, label in plain:
            value = inputs[at]
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
            binding.bind_cpu_input(label, tensor.numpy(force=True))
        for name in others:
            binding.bind_output(name, "cpu")
        claimed = {}
        for at, label in caches:
            buffer = claimed[label] = buffers.claimed(label, inputs[at].detach().cpu(), length)
            array = buffer.whole.numpy()
            where = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
            binding.bind_input(label, *where)
            binding.bind_output(kept.caches[label], *where)
        session.run_with_iobinding(binding)
        found = binding.get_outputs()[: len(others)]  # in the order in which they were bound
        results = {
            name: torch.from_numpy(value.numpy()) for name, value in zip(others, found, strict=True)
        }
        for label, buffer in claimed.items():
            results[kept.caches[label]] = buffers.give_back(label, buffer, length)
        return [results[name] for name in names.outputs]

    return as_the_model_gives(start, outputs.are_ints, outputs.are_floats)


def _length_reader(plan: Plan, length: Expression) -> Callable[[Sequence[Any]], int]:
    """A function of the inputs that gives the length of the caches after a call: the size of an
    input that has it, else computed from those that have its symbols.

    :raises SavedFileError: ``file-damaged`` where no input tells it
    """
    places = {
        str(size): (at, axis)
        for at, leaf in reversed([*enumerate(plan.inputs)])
        for axis, size in enumerate(leaf.shape)
    }
    if str(length) in places:
        at, axis = places[str(length)]
        return lambda inputs: int(inputs[at].shape[axis])
    lacking = [symbol for symbol in length.symbols if symbol not in places]
    if lacking:
        raise damaged("a model", f"no input of its plan has the size {lacking[0][:80]!r}")

    def read(inputs: Sequence[Any]) -> int:
        found = {symbol: places[symbol] for symbol in length.symbols}
        return length.evaluate({s: inputs[at].shape[axis] for s, (at, axis) in found.items()})

    return read
