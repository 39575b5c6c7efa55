"""A repair as a value, how a trace is asked for, and what an attempt to trace tells.

torch.export traces most models as they are. For the others something of torch has to behave otherwise
while the trace lasts, and some of these changes cost something: a size that stays a number, a check at
run time. So a trace begins with the repairs that cost nothing, and after each attempt every repair is
asked, in their order, whether it wants the next one to be made with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from ..core.plan import Plan
from ..model_source.lines import place_of_error
from ..proofs.decisions import Decision
from ..torch_internals.fake_tensors import DataDependentOutputException
from ..torch_internals.sizes import GuardOnDataDependentSymNode
from .trace_mode import Reader

__all__ = ["Attempt", "Repair", "Retry", "Setup", "TraceRequest", "depends_on_values"]

R = TypeVar("R", bound=Reader)


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """Something of torch that behaves otherwise for the time of a trace.

    ``why``, ``link`` (upstream), ``versions`` of torch with which it was seen to be needed, and
    ``until``, the test or the script that tells when it may go, are for the reader: ``docs/repairs.md``
    is made of them.

    A repair that is ``always`` on is part of every trace until it is given up. Any other one comes after a
    ``refusal`` with these words of torch, or where ``retry``, which looks at an attempt, gives the request
    for the next one: with the repair, or, of one that is on, without it. ``failed`` of all repairs is asked
    before: it gives the request after an attempt that ended because of the repair itself.

    ``block`` is a context manager around ``torch.export.export``. A repair without one acts inside of the
    model's call: as a reader of :class:`~onlooker.repairs.trace_mode.TraceMode`, or by what the request
    says. ``note`` is what a graph says of the repair when its trace began with it.
    """

    name: str
    why: str
    until: str
    link: str = ""
    versions: str = "2.13"
    always: bool = False
    refusal: str = ""
    retry: Callable[[Attempt], Retry | None] | None = None
    failed: Callable[[Attempt], Retry | None] | None = None
    block: Callable[[Setup], contextlib.AbstractContextManager[Any]] | None = None
    note: str = ""

    def after(self, attempt: Attempt) -> Retry | None:
        """The next attempt, where this one asks for another because of the repair."""
        if self.refusal and self.refusal in attempt.message:
            return attempt.wants(self)
        return None if self.retry is None else self.retry(attempt)

    def is_part_of(self, request: TraceRequest) -> bool:
        """True where a trace that is asked for so has the repair."""
        return self in request.on or (self.always and self not in request.off)


#: how often ``ends`` has the line of a loop whose first step is traced by itself, whose first and last step are, and
#: whose last one is
OF_FIRST, OF_BOTH, OF_LAST = 1, 2, 3


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The request for a trace.

    ``on`` are the repairs that attempts wanted, ``off`` those that were given up. ``unrolled`` are the
    lines of loops that are traced step by step, for ``reasons`` in sentences, ``unrolled_here`` those that
    are so at the sizes of this trace, ``ends`` those of loops whose first step is, twice where the last
    one is too, three times where the last one alone is, at the sizes of this trace, ``valued`` those of
    loops whose index is a size that is a value. ``refused_rows`` are the rows of loops at some lines
    of which the model itself makes an error, ``decided`` those of branches on sizes that Python decides,
    and ``asking`` the names of further modules of Python that make ints of sizes.
    ``value_error`` is the error of torch about a branch on a value, after which values decide.
    ``sizes`` are those of the examples to take, the likeliest first.
    ``lifted`` counts the traces that found something new that they change in Python. After a trace
    ``sizes_are_values`` is True where it read a size from a tensor.
    """

    on: frozenset[Repair] = frozenset()
    off: frozenset[Repair] = frozenset()
    unrolled: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    unrolled_here: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    refused_rows: tuple[tuple[str, int], ...] = ()
    decided: tuple[str, ...] = ()
    value_error: Exception | None = None
    asking: frozenset[str] = frozenset()
    sizes: tuple[tuple[tuple[str, int], ...], ...] = ()
    lifted: int = 0
    sizes_are_values: bool = False

    def with_repair(self, *repairs: Repair) -> TraceRequest:
        """Returns the request with some repairs more."""
        return replace(self, on=self.on.union(repairs), off=self.off.difference(repairs))

    def dropping(self, repair: Repair) -> TraceRequest:
        """Returns the request without a repair, which may be wanted again."""
        return replace(self, on=self.on - {repair})

    @property
    def not_rolled(self) -> tuple[str, ...]:
        """The lines of all loops that are traced step by step."""
        return (*self.unrolled, *self.unrolled_here)

    def at_other_sizes(self) -> TraceRequest:
        """Returns the request without what was found at the sizes of one trace alone."""
        ends = tuple(line for line in self.ends if self.ends.count(line) != OF_LAST)
        return replace(self, unrolled_here=(), ends=ends, sizes=())

    def unrolling(
        self, lines: Iterable[str], reason: str = "", *, here: bool = False
    ) -> TraceRequest:
        """Returns the request with the loops at some lines of the model traced step by step; ``here`` at the
        sizes of this trace alone.
        """
        if here:
            return replace(self, unrolled_here=(*self.unrolled_here, *lines))
        reasons = (*self.reasons, reason) if reason else self.reasons
        return replace(self, unrolled=(*self.unrolled, *lines), reasons=reasons)

    def deciding(self, line: str) -> TraceRequest:
        """Returns the request with the branch at a line of the model decided as Python decides it."""
        return replace(self, decided=(*self.decided, line))

    def without_repair(self, *repairs: Repair) -> TraceRequest:
        """Returns the request with some repairs given up."""
        return replace(self, on=self.on.difference(repairs), off=self.off.union(repairs))


class Retry(NamedTuple):
    """The request for the next attempt, and a note of it for the graph; ``repair`` is the one that
    has to be a part of the trace for the note to hold.
    """

    request: TraceRequest
    note: str = ""
    repair: Repair | None = None


class Setup(NamedTuple):
    """The facts that a repair may use before a trace."""

    model: Any
    plan: Plan
    request: TraceRequest


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to trace: how it was asked for, and what came of it, an ``error`` or a ``program``.

    ``readers`` are those of the last run of the model in it. ``is_side`` is True for sizes that another
    trace of the same model left out.
    """

    request: TraceRequest
    decisions: Sequence[Decision] = ()
    readers: Sequence[Reader] = ()
    error: Exception | None = None
    program: torch.export.ExportedProgram | None = None
    is_side: bool = False

    def reader(self, kind: type[R]) -> R | None:
        """The reader of a class; None where the model was not run."""
        return next((one for one in self.readers if isinstance(one, kind)), None)

    def wants(self, repair: Repair, note: str = "") -> Retry | None:
        """The next attempt with a repair more; None where it is part of this one, or was given up."""
        if repair in self.request.on or repair in self.request.off:
            return None
        return Retry(self.request.with_repair(repair), note, repair)

    @property
    def message(self) -> str:
        """The message of the error; empty without one."""
        return "" if self.error is None else str(self.error)

    @property
    def first_line(self) -> str:
        """The class of the error and the first line of its message."""
        lines = self.message.strip().splitlines()
        return f"{type(self.error).__name__}: {lines[0] if lines else ''}"[:200]

    @property
    def place(self) -> str:
        """The line of the model that the error came from; empty where there is none."""
        return "" if self.error is None else place_of_error(self.error)

    @property
    def depends_on_values(self) -> bool:
        """True for an error about a value where a number is needed."""
        return depends_on_values(self.error)


def depends_on_values(error: BaseException | None) -> bool:
    """True for an error of a trace that met a value where it needed a number."""
    while error is not None:
        if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
            return True
        error = error.__cause__ or error.__context__
    return False
