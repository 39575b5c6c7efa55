"""Counts how often torch.compile compiles a method for the calls that were watched, and how often
with marks.

The parts of this file, in their order:

    reasons      why torch.compile compiled again: torch gives the failed guard as text alone. The forms
                 are those of torch 2.10 to 2.15; a text of another form is kept as it is.
    replays      recorded calls, run again on a twin of the model that is compiled by a backend that only
                 counts. No code is generated: the graphs that torch.compile makes run as they are, and
                 torch's own memory of sizes is put back.
    findings     the counts with and without marks, and the best marks
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Arguments, Call
from ..core.drawing.alike import counted
from ..core.errors import ObservationError
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.surroundings import Gradients
from ..infer.marks import AxisMark, marks_of
from ..lab.runner import ModelRunner, opened
from ..materialise.arguments import Calls
from ..materialise.counting import sizes_of, values_of_specs
from ..observing.bind import as_args_kwargs
from ..observing.state import kept_state
from ..observing.store import Sample
from ..observing.surroundings import inside_autocast, inside_gradients
from ..pytrees.comparisons.agree import agreement_of_trees
from ..pytrees.open import copy_tensors
from ..torch_internals.dynamo import compilations, private_cache
from .marks import Marking, marked_call

__all__ = [
    "AS_IT_IS",
    "DYNAMIC",
    "Recompiles",
    "Replay",
    "Replayer",
    "find_recompiles",
    "reason_of",
]

logger = logging.getLogger(__name__)


# -- reasons
#: the first compilation of a function
FIRST = "first call"
#: a guard begins with the number of the cache entry that it belongs to: ``0/1: ``
_ENTRY = re.compile(r"^\d+/\d+: ")
#: the form of a guard, with the argument and the dimension that it is about, and its kind
_FORMS = (
    (re.compile(r"tensor '(?P<place>.+?)' size mismatch at index (?P<dim>\d+)"), "size"),
    (re.compile(r"tensor '(?P<place>.+?)' stride mismatch at index (?P<dim>\d+)"), "memory layout"),
    (re.compile(r"^2 <= (?P<place>.+?)\.size\(\)\[(?P<dim>\d+)\]"), "size of 0 or 1"),
    (re.compile(r"tensor '(?P<place>.+?)' rank mismatch"), "number of dimensions"),
    (re.compile(r"tensor '(?P<place>.+?)' dtype mismatch"), "dtype"),
    (re.compile(r"tensor '(?P<place>.+?)' requires_grad mismatch"), "requires_grad"),
    (re.compile(r"tensor '(?P<place>.+?)' (?:device|dispatch key)"), "kind of tensor"),
    (re.compile(r"GLOBAL_STATE changed: (?P<place>[\w ,]+?)\s*$"), "setting of torch"),
    (re.compile(r"(?P<place>\S+?)\.s(?:ize|tride)\(\)\[(?P<dim>\d+)\]"), "condition on sizes"),
    (re.compile(r"expected type of '(?P<place>.+?)' to be"), "kind of argument"),
    (re.compile(r"^(?P<place>\S+) is (?:not )?None"), "argument left out"),
    (re.compile(r"^(?:not )?len\((?P<place>\S+?)\) "), "length of a container"),
    (
        re.compile(r"^(?:not )?___(?:dict_|key_)?contains\(.*?,? ?(?P<place>\S+)\)"),
        "keys of a dict",
    ),
    (re.compile(r"^(?P<place>[\w.\[\]']+) (?:==|!=|is) "), "value of Python"),
)
_LINE = re.compile(r"  # (?P<file>[^\s#]+:\d+) in \w+")
#: how torch names arguments: ``L['x']``, and ``kwargs['x']`` where a decorator passes them on
_SOURCE = re.compile(r"(?:\bL|\bkwargs)\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of one compilation: its ``kind``, the argument as Python, the dimension of it, and
    the line of the model. ``text`` is what torch says.
    """

    kind: str
    place: str = ""
    dim: int | None = None
    line: str = ""
    text: str = ""

    def __str__(self) -> str:
        axis = f".shape[{self.dim}]" if self.dim is not None else ""
        about = f" of {self.place}{axis}" if self.place else ""
        return f"{self.kind}{about}{f' ({self.line})' if self.line else ''}"


def reason_of(text: str | None) -> Reason:
    """The reason in the text of a failed guard; without a text, the first compilation.

    >>> str(reason_of("0/0: tensor 'x' size mismatch at index 1. expected 5, actual 9"))
    'size of x.shape[1]'
    >>> reason_of(None).kind
    'first call'
    """
    if not text:
        return Reason(FIRST)
    guard = _SOURCE.sub(r"\1", _ENTRY.sub("", text.strip()).splitlines()[0])
    found_line = _LINE.search(guard)
    line = found_line["file"] if found_line else ""
    code = guard.split("  #")[0].strip()
    for form, kind in _FORMS:
        match = form.search(code)
        if match is not None:
            found = match.groupdict()
            dim = found.get("dim")
            return Reason(
                kind,
                found["place"].strip(),
                None if dim is None else int(dim),
                line,
                code,
            )
    return Reason("another guard", line=line, text=code)


# -- replays


@dataclass(frozen=True, slots=True)
class Replay:
    """The arguments of one recorded call: those that were kept, or grown to its sizes."""

    call: Call
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Compilation:
    """One function that torch.compile compiled while a call ran, and why."""

    call: int
    function: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Count:
    """The compilations of some calls: the number of ``graphs``, each compilation with its reason,
    and the first error or wrong result, empty where there is none.
    """

    graphs: int
    compilations: tuple[Compilation, ...] = ()
    failure: str = ""

    @property
    def again(self) -> tuple[Compilation, ...]:
        """The compilations of functions that were compiled before."""
        return tuple(one for one in self.compilations if one.reason.kind != FIRST)


def replays_of(
    recording: Recording, samples: Sequence[Sample], plans: Sequence[Plan], most: int
) -> list[Replay]:
    """The recorded calls in their order, each kind of sizes once; of more than ``most`` calls those
    that are spread evenly over the recording.
    """
    kept = {sample.call.index: sample for sample in samples}
    calls = list(recording.calls)
    if len(calls) > most:
        step = (len(calls) - 1) / max(most - 1, 1)
        calls = [calls[round(number * step)] for number in range(most)]
    found = []
    for call in calls:
        sample = kept.get(call.index)
        if sample is not None:
            found.append(Replay(call, sample.arguments()))
            continue
        plan = next((plan for plan in plans if call.index in plan.calls), None)
        if plan is not None:
            sizes = sizes_of(plan, values_of_specs(call.inputs))
            passed = {name for name, _ in call.passed}
            arguments = Calls(plan, samples).arguments(sizes)
            given = {name: value for name, value in arguments.items() if name in passed}
            found.append(Replay(call, given))
    return found


class Replayer:
    """Counts what calls of one method compile."""

    def __init__(self, runner: ModelRunner, replays: Sequence[Replay]) -> None:
        self._runner, self._replays = runner, replays
        with self._kept():
            self._expected = [self._outcome(self._method, replay) for replay in replays]

    @property
    def _method(self) -> Any:
        return getattr(self._runner.model, self._runner.method)

    def count(
        self,
        *,
        dynamic: bool | None = None,
        marks: Sequence[AxisMark] = (),
        kind: Marking = Marking.UNBACKED,
    ) -> Count:
        """Compiles the method and runs all calls; the count ends with the first call that fails."""
        graphs = 0

        def backend(module: torch.fx.GraphModule, _: Any) -> Any:
            nonlocal graphs
            graphs += 1
            return module.forward

        found: list[Compilation] = []
        failure = ""
        with private_cache(), self._kept():
            compiled = torch.compile(self._method, backend=backend, dynamic=dynamic)
            for replay, expected in zip(self._replays, self._expected, strict=True):
                failure, records = self._run(compiled, replay, expected, marks, kind)
                number = replay.call.index
                for record in records:
                    reason = reason_of(record.recompile_reason)
                    found.append(Compilation(number, str(record.co_name), reason))
                if failure:
                    break
        return Count(graphs, tuple(found), failure)

    def _run(
        self, compiled: Any, replay: Replay, expected: Any, marks: Sequence[AxisMark], kind: Marking
    ) -> tuple[str, list[Any]]:
        """Runs the compiled method on a call: returns the error that it raises, empty where it
        raises none, and torch's records of what was compiled.
        """
        with compilations() as records:
            got = self._outcome(compiled, replay, marks, kind)
        if isinstance(expected, Exception):
            return "", records
        if isinstance(got, Exception):
            logger.debug("call %d fails: %s", replay.call.index, got)
            first = (str(got).strip().splitlines() or [""])[0]
            return f"call {replay.call.index} raises {type(got).__name__}: {first}", records
        agrees = agreement_of_trees(expected, got)
        if not agrees.holds:
            return f"call {replay.call.index} gives another result: {agrees.note}", records
        return "", records

    def _outcome(
        self,
        method: Any,
        replay: Replay,
        marks: Sequence[AxisMark] = (),
        kind: Marking = Marking.UNBACKED,
    ) -> Any:
        """The result of a call, or what it raises."""
        arguments = copy_tensors(replay.arguments)
        args, kwargs = as_args_kwargs(self._runner.signature, arguments)
        try:
            with (
                inside_gradients(_gradients_of(replay.call)),
                inside_autocast(self._runner.autocast, keeps_casts=False),
                torch.random.fork_rng(devices=()),
                marked_call(arguments, marks, kind),
            ):
                torch.manual_seed(0)
                return opened(method(*args, **kwargs))
        except Exception as error:
            return error

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Inside the block the calls may change the twin, which is as before on exit."""
        with kept_state(self._runner.model, self._runner.former, self._runner.keeper):
            yield


def _gradients_of(call: Call) -> Gradients:
    """Returns how a call recorded gradients; the default of torch where that was not noted."""
    return call.surroundings.gradients if call.surroundings else Gradients.RECORDED


#: the ways to compile that are counted beside the marks
AS_IT_IS, DYNAMIC = "torch.compile(model)", "torch.compile(model, dynamic=True)"
#: reasons that the short text lists of each way
_MOST_REASONS = 6


# -- findings


@dataclass(frozen=True, slots=True)
class Recompiles:
    """The counts of one watched method.

    ``counts`` has each way to compile with what it compiled for the ``calls`` that were run again.
    ``marks`` are the axes to mark, and ``kind`` how: None where no marks compile less.

    >>> import torch, onlooker
    >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    >>> with observer(model), torch.no_grad():
    ...     _ = [model(torch.ones(size, 4)) for size in (2, 3, 1)]
    >>> found = observer.recompiles()
    >>> found.before.graphs, found.after.graphs
    (3, 1)
    """

    entry: str
    calls: int
    counts: tuple[tuple[str, Count], ...]
    marks: tuple[AxisMark, ...] = ()
    kind: Marking | None = None

    @property
    def before(self) -> Count:
        """The count of the model as it is."""
        return dict(self.counts)[AS_IT_IS]

    @property
    def after(self) -> Count:
        """The count with the marks, or that of the model as it is where no marks help."""
        return self.before if self.kind is None else dict(self.counts)[self.kind.value]

    def text(self) -> str:
        """The table: each way to compile, the number of graphs, and why functions were compiled
        again, the most frequent reason first.
        """
        lines = [f"{self.entry}: {self.calls} calls were run again"]
        width = max(len(way) for way, _ in self.counts)
        best = _best_way(self)
        for way, count in self.counts:
            chosen = " (recommended)" if way == best != AS_IT_IS else ""
            graphs = counted(count.graphs, "graph")
            lines.append(f"  {way.ljust(width)}  {graphs}{chosen}")
            lines += [f"    {line}" for line in _reasons(count)]
        if self.kind is None:
            lines.append("  no marks compile less")
        return "\n".join(lines) + "\n"

    __str__ = text

    def data(self) -> dict[str, object]:
        """The counts for JSON."""
        ways = {
            way: {
                "graphs": count.graphs,
                "failure": count.failure,
                "compiled_again": [
                    {
                        "call": one.call,
                        "function": one.function,
                        "kind": one.reason.kind,
                        "argument": one.reason.place,
                        "dim": one.reason.dim,
                        "line": one.reason.line,
                        "guard": one.reason.text,
                    }
                    for one in count.again
                ],
            }
            for way, count in self.counts
        }
        marks = [
            {"argument": mark.path.code(), "dim": mark.dim, "shape_id": mark.shape_id}
            for mark in self.marks
        ]
        kind = None if self.kind is None else self.kind.value
        return {
            "entry": self.entry,
            "calls": self.calls,
            "ways": ways,
            "kind": kind,
            "marks": marks,
        }


def _reasons(count: Count) -> list[str]:
    """Each reason with its number of compilations, and the failure."""
    numbers = Counter(str(one.reason) for one in count.again)
    lines = [f"{number} x {reason}" for reason, number in numbers.most_common(_MOST_REASONS)]
    if len(numbers) > _MOST_REASONS:
        lines.append(f"{len(numbers) - _MOST_REASONS} further reasons")
    return lines + ([f"failed: {count.failure}"] if count.failure else [])


def find_recompiles(
    recording: Recording,
    samples: Sequence[Sample],
    plans: Sequence[Plan],
    runner: ModelRunner,
    most_calls: int,
) -> Recompiles:
    """Counts what the recorded calls compile: as the model is, with ``dynamic=True``, and with each
    kind of marks.

    :raises ObservationError: ``no-values`` where no call can be run again
    """
    replays = replays_of(recording, samples, plans, most_calls)
    if not replays:
        raise ObservationError(
            f"No call of {recording.model}.{recording.method} was kept with its values.",
            slug="no-values",
            hint="Raise store_n_calls, or max_bytes, so that calls are kept.",
        )
    replayer = Replayer(runner, replays)
    marks = marks_of(plans)
    before = replayer.count()
    counts = [(AS_IT_IS, before), (DYNAMIC, replayer.count(dynamic=True))]
    marked = [(kind, replayer.count(marks=marks, kind=kind)) for kind in Marking if marks]
    counts += [(kind.value, count) for kind, count in marked]
    return Recompiles(
        f"{recording.model}.{recording.method}",
        len(replays),
        tuple(counts),
        marks,
        _best_kind(before, marked),
    )


def _best_way(found: Recompiles) -> str:
    """The way of the marks, or of the model as it is; ``dynamic=True`` where that compiles less still."""
    counts = dict(found.counts)
    best, dynamic = AS_IT_IS if found.kind is None else found.kind.value, counts[DYNAMIC]
    is_whole = dynamic.graphs and not dynamic.failure
    return DYNAMIC if is_whole and dynamic.graphs < counts[best].graphs else best


def _best_kind(before: Count, marked: Sequence[tuple[Marking, Count]]) -> Marking | None:
    """The kind of marks that compiles least, where all calls ran compiled and gave equal results; None
    where none compiles less than the model as it is.

    Without a graph nothing is compiled: torch gave up, and ran the calls as they are.
    """
    whole = [(count.graphs, kind) for kind, count in marked if count.graphs and not count.failure]
    least = min(whole, key=lambda row: row[0], default=None)
    if least is None or least[0] >= before.graphs:
        return None
    return least[1]
