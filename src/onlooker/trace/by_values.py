"""Branches on values: the side that the example takes is traced, and the program checks that a call
takes it too.

``if mask.any():`` cannot be a guard on sizes, and torch refuses to trace it. Asked to, it computes
the real values beside the symbolic ones, decides by them, and writes each decision into the program
as an assertion on the value. A call that decides otherwise is refused, and gets a graph of its own
where one was seen. torch decides comparisons with numbers computed from a float
(``int(x.sum().item()) > 2``) as well, and writes no assertion: such a program would be wrong in
silence.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/config.py,
``fake_tensor_propagate_real_tensors``, as ``torch.export.draft_export`` sets it; there
``prims.sum`` of int32 is an int32 without values and an int64 with them, which ends the trace of a
``cumsum(dtype=torch.int32)``, since torch finds its shape by a sum (2.13).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterator

import torch

from ..torch_internals.fake_tensors import DataDependentOutputException
from ..torch_internals.sizes import GuardOnDataDependentSymNode
from ..torch_internals.tracing import decomposition_table, functorch_config

__all__ = ["UncheckedBranchError", "check_decided", "decided_by_values", "depends_on_values"]

_RUNNING = (torch.ops.aten.cumsum.default, torch.ops.aten.cumprod.default)
_LOGGER = "torch.fx.experimental.symbolic_shapes"
_MESSAGE = "propagate_real_tensors"
#: the symbols of sizes, and of ints that are read from tensors, about which torch writes assertions
_CHECKED = re.compile(r"[su]\d+")


class UncheckedBranchError(Exception):
    """A program has one side of a branch on a value, and does not check it; never seen by a
    user.
    """


def depends_on_values(error: BaseException | None) -> bool:
    """True for an error of a trace that met a value where it needed a number."""
    while error is not None:
        if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def decided_by_values() -> Iterator[set[str]]:
    """Inside the block a trace decides by real values; what torch logs of each decision is read,
    and not shown. Yields the names of the symbols that were decided about, as they come.

    :raises UncheckedBranchError: when the trace has ended, and a decision is not asserted in the
        program
    """
    unchecked: list[str] = []
    decided_about: set[str] = set()

    def shows(record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_MESSAGE):
            return True
        decided = record.args[0] if isinstance(record.args, tuple) and record.args else None
        symbols = getattr(decided, "free_symbols", None)
        if symbols is None or not all(_CHECKED.fullmatch(str(symbol)) for symbol in symbols):
            unchecked.append(str(decided))
        else:
            decided_about.update(map(str, symbols))
        return False

    logger = logging.getLogger(_LOGGER)
    logger.addFilter(shows)
    try:
        with (
            functorch_config.patch(fake_tensor_propagate_real_tensors=True),
            _shapes_of_running_sums(),
        ):
            yield decided_about
    finally:
        logger.removeFilter(shows)
    if unchecked:
        raise UncheckedBranchError(f"the branch on {unchecked[0]} is not checked at run time")


def check_decided(program: torch.export.ExportedProgram, decided: Collection[str]) -> None:
    """Passes when the program reads each number again that the trace decided about.

    torch 2.10 decides ``if x.sum() > 0:``, and writes no assertion: it takes the number that it
    decided about for a constant. The number is then read, and nothing uses it.

    :raises UncheckedBranchError: for a number that is read from a tensor and never used
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            read = {str(symbol) for symbol in node.meta.get("unbacked_bindings") or ()}
            if not node.users and not read.isdisjoint(decided):
                raise UncheckedBranchError(
                    f"the branch on {node.name} is not checked at run time by torch"
                    f" {torch.__version__}"
                )


@contextlib.contextmanager
def _shapes_of_running_sums() -> Iterator[None]:
    """Inside the block the shape of a running sum or product is that of what it runs over."""
    table = decomposition_table
    before = {func: table[func] for func in _RUNNING if func in table}
    for func in before:
        table[func] = _running
    try:
        yield
    finally:
        for func, known in before.items():
            table[func] = known


def _running(values: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    is_int = not (values.dtype.is_floating_point or values.dtype.is_complex)
    return values.new_empty(values.shape, dtype=dtype or (torch.int64 if is_int else values.dtype))
