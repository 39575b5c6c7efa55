"""Copies in the place of ``contiguous()``, and the graphs that may have them.

``x[:, :height].contiguous()`` asks whether the cut took anything away: torch gives ``x`` itself where
it did not. A trace keeps the answer as a condition on sizes, and a model that pads to windows and
cuts again is a graph for each combination of answers. A copy gives the same numbers for all sizes.

It is another tensor, though: what is written to one of the two is not in the other. A graph that
writes to the memory of one of them after the copy, and reads that of the other one after the write,
is traced again without copies, unless a ``scan`` alone reads the copy, which it does at once. So it
is with a pad of 0 where the model has no pad (:mod:`onlooker.repairs.neutral_branches`).
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..proofs.operators import origin_of, written_by
from ..torch_internals.graph_modules import modules_of
from ..torch_internals.tracing import scan_op
from .neutral_branches import NEUTRAL_BRANCHES, NeutralBranches
from .repair import Attempt, Repair, Retry

__all__ = ["MEMORY_COPIES", "may_write_to_copies"]

_CLONE = torch.ops.aten.clone.default
#: what may copy in the graph where the model keeps its tensor
_MAYBE_COPIES = (
    torch.ops.aten.pad.default,
    torch.ops.aten.constant_pad_nd.default,
    torch.ops.aten.contiguous.default,
)


def may_write_to_copies(program: torch.export.ExportedProgram, *, pads: bool = False) -> bool:
    """True where an operator of the program may write to a contiguous copy, or to what was copied, and
    the other of the two is read later; with ``pads`` a pad is a copy, too, and what ``contiguous()`` gives.
    """
    return any(_writes_to_copies(module.graph, pads) for module in modules_of(program))


def _writes_to_copies(graph: Graph, pads: bool) -> bool:
    """True where memory is written to that the model may have under another name, which is read after
    that.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    memories: dict[Node, Node] = {}  # per memory of the graph that of the model
    names: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        is_copy = _is_contiguous_copy(node) or (pads and _may_be_the_tensor(node))
        if is_copy and not all(user.target is scan_op for user in node.users):
            copied = origin_of(node.args[0])
            memories[node] = memories.setdefault(copied, copied)
            names.setdefault(memories[node], [copied]).append(node)
    read = {origin_of(one): places[node] for node in graph.nodes for one in node.all_input_nodes}
    return any(
        other is not memory and (_is_outside(other) or places[other] < place < read.get(other, -1))
        for writer, place in places.items()
        for memory in map(origin_of, written_by(writer))
        for other in names.get(memories.get(memory, memory), ())
    )


def _is_outside(memory: Node) -> bool:
    """True for memory of arguments and of the model, which is read after the graph."""
    return memory.op != "call_function"


def _may_be_the_tensor(node: Node) -> bool:
    """True for a copy that is the tensor itself at some sizes, which a pad by plain numbers is not."""
    if node.target not in _MAYBE_COPIES:
        return False
    amounts = node.args[1] if len(node.args) > 1 else ()
    if not isinstance(amounts, (list, tuple)):
        return True
    return not any(amounts) or any(isinstance(amount, Node) for amount in amounts)


def _is_contiguous_copy(node: Node) -> bool:
    return node.target is _CLONE and node.kwargs.get("memory_format") is torch.contiguous_format


def _must_share_memory(attempt: Attempt) -> Retry | None:
    if attempt.program is None or MEMORY_COPIES in attempt.request.off:
        return None
    branches = attempt.reader(NeutralBranches)
    pads = branches is not None and bool(branches.taken)
    if not may_write_to_copies(attempt.program, pads=pads):
        return None
    return Retry(attempt.request.without_repair(MEMORY_COPIES, NEUTRAL_BRANCHES))


MEMORY_COPIES = Repair(
    "copies for contiguous()",
    "``x[:, :n].contiguous()`` asks whether the cut took anything away, and each answer is a condition of"
    " the trace. A copy is the same for all sizes; a graph that writes to memory that it may share is"
    " traced without copies.",
    until="tests/repairs/test_memory_copies.py::test_windows_of_attention_are_cut_for_all_sizes",
    always=True,
    retry=_must_share_memory,
)
