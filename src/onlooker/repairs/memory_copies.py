"""Copies in the place of ``contiguous()``, and the graphs that may have them.

``x[:, :height].contiguous()`` asks whether the cut took anything away: torch gives ``x`` itself where
it did not. A trace keeps the answer as a condition on sizes, and a model that pads to windows and
cuts again is a graph for each combination of answers. A copy gives the same numbers for all sizes.

It is another tensor, though: what is written to one of the two is not in the other. A graph that
writes to memory that one of them may share is traced again without copies, unless a ``scan`` alone
reads the copy, which it does at once. So it is with a pad of 0 where the model has no pad
(:mod:`onlooker.repairs.neutral_branches`).
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ..proofs.operators import shared_by, written_by
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
    """True where an operator of the program may write to a contiguous copy, or to what was copied;
    with ``pads`` a pad is a copy, too, and what ``contiguous()`` gives.
    """
    for module in modules_of(program):
        nodes = module.graph.nodes
        clones = [
            node
            for node in nodes
            if (_is_contiguous_copy(node) or (pads and node.target in _MAYBE_COPIES))
            and not all(user.target is scan_op for user in node.users)
        ]
        shared = {*clones, *(_origin(node.args[0]) for node in clones)}
        written = (target for node in nodes for target in written_by(node))
        if clones and any(_origin(target) in shared for target in written):
            return True
    return False


def _is_contiguous_copy(node: Node) -> bool:
    return node.target is _CLONE and node.kwargs.get("memory_format") is torch.contiguous_format


def _origin(value: object) -> object:
    """The node whose memory a tensor may be in."""
    while isinstance(value, Node) and value.op == "call_function" and (shared := shared_by(value)):
        value = shared[0]
    return value


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
