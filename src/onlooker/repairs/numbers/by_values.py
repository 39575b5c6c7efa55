"""Branches on values: the side that the example takes is traced, and the program checks that a call
takes it too.

``if mask.any():`` cannot be a guard on sizes, and torch refuses to trace it. Asked to, it computes
the real values beside the symbolic ones, decides by them, and writes each decision into the program
as an assertion on the value. A call that decides otherwise is refused, and gets a graph of its own
where one was seen. torch decides comparisons with a float (``x.mean().item() > 0.5``), and with what
is computed from it, as well, and writes no assertion: such a program would be wrong in silence. Here
they are asserted, as a tensor of one bool. A float that has to be a plain number is not.

Three things of torch stand in the way of the values (2.13). The values of a parameter are never
copied, so that whatever its memory held before decides. And what an operator is decomposed into is
computed with values as well, beside the operator itself: there ``prims.sum`` of int32 and
``prims.signbit`` have another dtype with values than without, which ends the trace. Last, torch
compares a tensor with its values, and to compare where a part of a split begins, which is a sum of
lengths, makes these lengths constants. All are mended while a trace decides by values.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/config.py,
``fake_tensor_propagate_real_tensors``, as ``torch.export.draft_export`` sets it; ``_safe_copy`` in
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/meta_utils.py (see
``upstream/torch_values_of_parameters.py``).

An operator of a library whose result has as many rows as its values say, as the boxes that overlap
no other, has 2 of them at least where its shapes are told by ``create_unbacked_symint``: such a
program refuses the call of which one box is left. In a trace it has any number
(``upstream/torch_two_rows_at_least.py``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from ...patches.swap import swapped
from ...proofs.decisions import line_that_decides, taken_by
from ...torch_internals.fake_tensors import (
    FakeImplCtx,
    FakeTensor,
    FakeTensorMode,
    fake_utils,
    meta_utils,
    mode_of,
)
from ...torch_internals.graph_modules import nodes_of
from ...torch_internals.operators import OpOverload
from ...torch_internals.sizes import SymNode
from ...torch_internals.tracing import (
    decomp,
    functorch_config,
    get_current_dispatch_mode,
    get_proxy_mode,
)
from ..repair import Attempt, Repair, Retry
from .size_ints import SIZE_INTS, specializes_int, wants_int_first

__all__ = [
    "ANY_LENGTH",
    "BY_VALUES",
    "UncheckedBranchError",
    "check_decided",
    "decided_by_values",
    "forget_values",
    "has_two_rows_at_least",
    "results_of_any_length",
]

_LOGGER = "torch.fx.experimental.symbolic_shapes"
_MESSAGE = "propagate_real_tensors"
#: how torch begins to tell that the decision ended with an error, be it ours
_FAILURE = "failed during evaluate_expr"
#: the symbols of sizes, and of ints that are read from tensors, about which torch writes assertions
_CHECKED = re.compile(r"[su]\d+")

#: how the symbols of floats that are read from tensors begin
_FLOATS = "zuf"
#: the least length that torch takes for granted of a result where an operator says nothing
_LEAST = 2
_OF_TORCH = ("aten", "prims")


class UncheckedBranchError(Exception):
    """A program has one side of a branch on a value, and does not check it; never seen by a
    user.
    """


@dataclass(slots=True)
class DecidedValues:
    """The decisions by values of a trace: the names of the symbols, the lines of the model, and the questions about
    floats with their answers.
    """

    symbols: set[str] = field(default_factory=set)
    lines: dict[str, None] = field(default_factory=dict)
    floats: list[tuple[Any, bool]] = field(default_factory=list)


@contextlib.contextmanager
def decided_by_values() -> Iterator[DecidedValues]:
    """Inside the block a trace decides by real values; what torch logs of each decision is read,
    and not shown. Yields what was decided, as it comes.

    :raises UncheckedBranchError: when a decision is not asserted in the program; also at the end,
        where the model caught the error
    """
    unchecked: list[UncheckedBranchError] = []
    made = DecidedValues()

    logger = logging.getLogger(_LOGGER)
    shown = logger.warning

    def answer(node: SymNode, _: Any) -> bool | None:
        found = _asserted_answer(node)
        if found is not None:
            made.symbols.update(map(str, node.expr.free_symbols))
            made.lines[line_that_decides()] = None
            made.floats.append((node.expr, found))
        return found

    def warning(message: object, *args: Any, **kwargs: Any) -> None:
        text = str(message)
        if not text.startswith(_MESSAGE):
            if not (unchecked and text.startswith(_FAILURE)):
                shown(message, *args, **kwargs)
            return
        decided = args[0] if args else None
        symbols = getattr(decided, "free_symbols", None)
        if symbols is None or not all(_CHECKED.fullmatch(str(symbol)) for symbol in symbols):
            unchecked.append(
                UncheckedBranchError(f"the branch on {decided} is not checked at run time")
            )
            raise unchecked[0]  # here and now, since a trace is long
        made.symbols.update(map(str, symbols))
        if line := line_that_decides():
            made.lines[line] = None

    # the method itself: a filter of the logger hears nothing where the user's levels drop the record
    with (
        swapped(logger, "warning", warning),
        taken_by(answer),
        functorch_config.patch(fake_tensor_propagate_real_tensors=True),
        _values_of_parameters(),
        _decomposed_without_values(),
        _are_not_all_compared(),
        results_of_any_length(),
    ):
        yield made
    if unchecked:
        raise unchecked[0]


def _asserted_answer(node: SymNode) -> bool | None:
    """The answer to a question about floats of the example, which the program asserts; None for any other
    question.
    """
    environment: Any = node.shape_env
    is_of_floats = any(str(symbol).startswith(_FLOATS) for symbol in node.expr.free_symbols)
    if not is_of_floats or not node.is_bool() or get_proxy_mode() is None:
        return None
    known = node.expr
    for values in (
        "real_tensor_prop_unbacked_vals",
        "backed_var_to_val",
    ):  # not known to torch 2.10
        known = known.xreplace(getattr(environment, values, {}))
    if known not in (sympy.true, sympy.false):
        return None
    holds: Any = torch.SymBool(node)  # type: ignore[no-untyped-call]
    is_so = torch.scalar_tensor(holds) == (1.0 if known else 0.0)
    torch.ops.aten._assert_async.msg(is_so, f"{node.expr} is {bool(known)} in the example")
    return bool(known)


def forget_values(program: torch.export.ExportedProgram) -> None:
    """Lets converters trace a program without the values of its example: to compare each tensor with them
    fixes the sizes that tell where it begins in its memory.
    """
    mode = mode_of(nodes_of(program))
    if mode is not None:
        mode.propagate_real_tensors = False


def check_decided(program: torch.export.ExportedProgram, decided: Collection[str]) -> None:
    """Passes when the program reads each number again that the trace decided about.

    torch 2.10 decides ``if x.sum() > 0:``, and writes no assertion: it takes the number that it
    decided about for a constant. The number is then read, and nothing uses it.

    :raises UncheckedBranchError: for a number that is read from a tensor and never used
    """
    for node in nodes_of(program):
        read = {str(symbol) for symbol in node.meta.get("unbacked_bindings") or ()}
        if not node.users and not read.isdisjoint(decided):
            raise UncheckedBranchError(
                f"the branch on {node.name} is not checked at run time by torch {torch.__version__}"
            )


@contextlib.contextmanager
def _values_of_parameters() -> Iterator[None]:
    """Inside the block parameters have their values in a trace as other tensors have theirs."""
    copied = meta_utils._safe_copy

    def copy(target: torch.Tensor, source: torch.Tensor | None) -> None:
        is_parameter = type(source) is torch.nn.Parameter
        copied(target, source.detach() if is_parameter and source is not None else source)

    with swapped(meta_utils, "_safe_copy", copy):
        yield


@contextlib.contextmanager
def _decomposed_without_values() -> Iterator[None]:
    """Inside the block a decomposition gives shapes alone: the values are those that the operator
    itself gives.
    """
    with swapped(decomp, "decomposition_table", _Decompositions(decomp.decomposition_table)):
        yield


class _Decompositions(dict[Any, Callable[..., Any]]):
    def __getitem__(self, operator: Any) -> Callable[..., Any]:
        decomposition = super().__getitem__(operator)
        # torch reads its name and its module
        return functools.update_wrapper(
            functools.partial(_without_values, decomposition), decomposition
        )


def _without_values(decomposition: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    mode = get_current_dispatch_mode()
    if not isinstance(mode, FakeTensorMode):
        return decomposition(*args, **kwargs)
    with swapped(mode, "propagate_real_tensors", False):
        return decomposition(*args, **kwargs)


@contextlib.contextmanager
def _are_not_all_compared() -> Iterator[None]:
    """Inside the block torch does not compare a tensor that begins at a symbolic place in its memory
    with its values, nor one that an operator gives when it is trained alone, as those of LSTM layers do.
    """
    compared = fake_utils._check_fake_real_tensors

    def compare(real: torch.Tensor | None, fake: FakeTensor, *args: Any, **kwargs: Any) -> None:
        if real is not None and not isinstance(fake.storage_offset(), torch.SymInt):
            compared(real, fake, *args, **kwargs)

    with swapped(fake_utils, "_check_fake_real_tensors", compare):
        yield


def has_two_rows_at_least(program: torch.export.ExportedProgram) -> bool:
    """True where a length that is a value is 2 or more in a program, and an operator of a library gives it:
    that may have said so though it is right for 0 and 1 too.
    """
    ranges = program.range_constraints
    given = (
        symbol
        for node in nodes_of(program)
        if isinstance(node.target, OpOverload) and node.target.namespace not in _OF_TORCH
        for symbol in node.meta.get("unbacked_bindings") or ()
    )
    return any(symbol in ranges and ranges[symbol].lower == _LEAST for symbol in given)


@contextlib.contextmanager
def results_of_any_length() -> Iterator[None]:
    """Inside the block a result of an operator, of which the values say how long it is, may have 0
    rows or 1; torch says 2 at least where the operator says nothing.
    """

    def length(context: FakeImplCtx, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        return context.new_dynamic_size(min=min, max=max)

    with swapped(FakeImplCtx, "create_unbacked_symint", length):
        yield


def _meets_value(attempt: Attempt) -> Retry | None:
    request = attempt.request
    if BY_VALUES in request.on or not attempt.depends_on_values or wants_int_first(attempt):
        return None
    request = replace(request.with_repair(BY_VALUES), value_error=attempt.error)
    if SIZE_INTS not in request.off and specializes_int(attempt.decisions):
        request = request.with_repair(SIZE_INTS)
    where = f", asked at {attempt.place}" if attempt.place else ""
    return Retry(request, f"{BY_VALUES.note}{where}: {attempt.first_line}", BY_VALUES)


def _has_long_results(attempt: Attempt) -> Retry | None:
    if attempt.program is None or BY_VALUES in attempt.request.on:
        return None
    return attempt.wants(ANY_LENGTH) if has_two_rows_at_least(attempt.program) else None


BY_VALUES = Repair(
    "decided by values",
    "``if mask.any():`` and ``if x.mean().item() > 0.5:`` are no guards on sizes, and end the trace. The real"
    " values of the example decide, and the program checks at run time that those of a call decide alike.",
    until="upstream/torch_values_of_parameters.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_functorch/config.py",
    retry=_meets_value,
    block=lambda _: decided_by_values(),
    note="the graph has the side of a branch that the example takes",
)
ANY_LENGTH = Repair(
    "results of any length",
    "An operator of a library whose result has as many rows as its values say has 2 of them at least in a"
    " program. Where a program would refuse a call for that, one row and none are allowed.",
    until="upstream/torch_two_rows_at_least.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_library/fake_impl.py",
    retry=_has_long_results,
    block=lambda _: results_of_any_length(),
)
