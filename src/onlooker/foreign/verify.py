"""Proves an export that others made against the model: every watched call, and calls never seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..core.call import Arguments
from ..core.errors import ObservationError, RejectedCallError, UnsupportedError, UsageError
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.recording import Recording
from ..core.sizes.expression import Sizes
from ..core.support.kinds import check_kind
from ..core.verdict import Check, Focus, Tally
from ..hypotheses.overrides import Dims, RangesOption
from ..hypotheses.ranges import from_one_on
from ..infer.sizes import size_label
from ..input_observer import InputObserver
from ..lab.budget import BUDGET, BudgetOption
from ..materialise.arguments import Calls, leaf_values
from ..materialise.counting import sizes_of
from ..observing.bind import as_args_kwargs
from ..observing.state import kept_state
from ..patches.quiet import quietly
from ..program import Program
from ..pytrees.joins import join_specs, joined
from ..serve.dispatch import Dispatcher
from ..serve.runnable import ProgramAndModel
from ..torch_internals.graph_modules import input_names
from ..trace.graph import Graph
from ..verify.check import checked_calls, sizes_of_specs
from ..verify.effort import Effort
from ..verify.request import SizesOption, check_request
from ..verify.trials import Trial, chosen_trials
from ..verify.verify import run_trials
from .axes import MOST_NUMBER, PLACES, Cell, held_sizes
from .causes import declared_axes, input_findings, relation_findings, size_findings, trial_findings
from .exported import Exported, Port
from .findings import ExportFinding, Kind
from .open import open_exported
from .probing import CallProbe
from .report import UNREADABLE, ComparedAxis, ExportReport
from .rows import RowTrials, is_index, sizes_for
from .serve import Fitted, fit, stand_in
from .torch_contents import contents_of_program

__all__ = ["verify_export"]

logger = logging.getLogger(__name__)
#: of a recording, how many sizes are tried, the most frequent ones
_MOST_RECORDED = 24


@quietly
def verify_export(
    watched: InputObserver | Program,
    exported: Any,
    *,
    recording: Recording | None = None,
    method_name: str | None = None,
    only: Sequence[str] = (),
    component: str | None = None,
    machine_code: bool = False,
    static: Dims | None = None,
    dynamic: Dims | None = None,
    ranges: RangesOption | None = None,
    sizes: SizesOption = (),
    atol: float = 1e-5,
    seed: int = 0,
    trials: int | None = None,
    seconds: float | None = None,
    budget: BudgetOption = BUDGET,
) -> ExportReport:
    """Compares an export of any maker with the model that was watched.

    ``watched`` is the observer, or a program that it has exported, with its model: then the
    options of the export are not taken. ``exported`` is the path of an ``.onnx``, a ``.pt2``, the
    ``.xml`` of OpenVINO, a ``.pte``, a package of AOTInductor (with ``machine_code=True``), a
    folder that ``ExportedModel`` of transformers wrote, or what ``torch.export``, ``torch.onnx``
    and OpenVINO give. ``component`` is that of such a folder, or the method of a ``.pte``.

    Inputs are found by their names, else by their order, and outputs too. What the model takes is
    inferred and probed as for an export of onlooker; ``static``, ``dynamic``, ``ranges`` and
    ``budget`` are those of :meth:`InputObserver.export`. Where the watched calls need several
    graphs, ``only`` names those that the file stands for. The sizes of the calls of a ``recording``
    are tried too. ``sizes``, ``atol``, ``seed``, ``trials`` and ``seconds`` are those of
    :meth:`Program.verify`.

    :raises UsageError: ``model-not-loaded``, ``no-such-component``, ``machine-code``,
        ``no-such-graph``, ``different-entry-points``, and those of export and verification
    :raises ArgumentKindError: ``not-a-model``
    :raises ObservationError: ``no-calls``
    :raises MissingPackageError: ``missing-package``
    :raises ExportError: where the model itself cannot be traced

    >>> import torch, onlooker
    >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    >>> with observer(model):
    ...     _ = model(torch.ones(2, 4)), model(torch.ones(3, 4))
    >>> baked = torch.export.export(model, (torch.ones(2, 4),))
    >>> report = onlooker.verify_export(observer, baked)
    >>> print(report.failures[0])
    input.shape[0]: always 2 in the file, the model takes any batch, 1 and more (specialized size)
    """
    file = open_exported(exported, component=component, machine_code=machine_code)
    options = {"static": static, "dynamic": dynamic, "ranges": ranges, "budget": budget}
    program = _program(watched, {"method_name": method_name, **options})
    basis = _chosen(program._program.beside_model(), only)
    given = check_request(basis.contents.plans, atol, sizes, seed, trials, seconds)
    missed: list[str] = []
    if recording is not None:
        given += _recorded_sizes(basis, recording, missed)
    judge = _Judge(file, basis, atol)
    with kept_state(basis.subject.model, {}):
        judge.run(given, seed=seed, trials=trials, seconds=seconds)
    report = judge.report(missed)
    repair = _repair(program, basis, file) if report.is_repaired_by_axes else ""
    return replace(report, repair=repair)


def _program(watched: InputObserver | Program, options: dict[str, Any]) -> Program:
    """The program of torch that says what the model takes.

    :raises ArgumentKindError: ``wrong-kind``
    :raises UsageError: ``unknown-option`` for options of the export of a program that there is
    """
    wanted = "an InputObserver that has watched the model, or a program that it has exported"
    check_kind(watched, (InputObserver, Program), "What was watched", wanted)
    if isinstance(watched, InputObserver):
        return watched.export(**options)
    given = [name for name, value in options.items() if value not in (None, BUDGET)]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be given beside a program.",
            slug="unknown-option",
            hint="Give the observer instead of the program.",
        )
    return watched


def _repair(program: Program, basis: ProgramAndModel, file: Exported) -> str:
    """The export that would be right, as code to be pasted; empty where it cannot be written down."""
    to = "onnx" if file.kind == "onnx" else "torch"
    try:
        own = program._program.with_graphs(basis.contents.graphs)
        return Program(own).code(to=to, variable="model")
    except UnsupportedError as error:
        logger.info("no repair is written: %s", error)
        return ""


def _from_one_on(graph: Graph) -> Graph:
    """The graph without sizes of 0 that an experiment alone found: a file is not asked for these."""
    return replace(graph, plan=from_one_on(graph.plan))


def _chosen(basis: ProgramAndModel, only: Sequence[str]) -> ProgramAndModel:
    """The graphs that are named, or all, and the calls that they serve.

    :raises UsageError: ``no-such-graph``
    """
    graphs = tuple(map(_from_one_on, basis.contents.graphs))
    names = [graph.name for graph in graphs]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise UsageError(
            f"The watched calls have no graph {', '.join(unknown)}.",
            slug="no-such-graph",
            hint=f"They have {', '.join(names)}.",
        )
    if not only:
        return replace(basis, contents=replace(basis.contents, graphs=graphs))
    graphs = tuple(graph for graph in graphs if graph.name in only)
    calls = {number for graph in graphs for number in graph.plan.calls}
    pairs = [
        (sample, kept)
        for sample, kept in zip(basis.samples, basis.kept, strict=True)
        if sample.call.index in calls
    ]
    if not pairs:
        raise ObservationError(
            f"No call of {', '.join(only)} has values.",
            slug="no-calls",
            hint="Watch a call of this graph, or raise store_n_calls.",
        )
    samples, kept = zip(*pairs, strict=True)
    contents = replace(basis.contents, graphs=graphs)
    return replace(basis, contents=contents, samples=samples, kept=kept)


def _recorded_sizes(
    basis: ProgramAndModel, recording: Recording, missed: list[str]
) -> list[dict[str, int]]:
    """The sizes of the calls of a recording, the most frequent first; ``missed`` gets the calls
    that are of no graph.

    :raises UsageError: ``different-entry-points``
    """
    plans = {graph.name: graph.plan for graph in basis.contents.graphs}
    counts: dict[tuple[tuple[str, int], ...], int] = {}
    rows = checked_calls(basis.contents, recording)
    for row, call in zip(rows, recording.calls, strict=True):
        if not row.holds:
            violation = row.violations[0] if row.violations else "no graph takes it"
            missed.append(f"call {row.index} of the recording is outside: {violation}")
            continue
        tree = joined(call.inputs, basis.contents.joins, join_specs)
        sizes = tuple(sizes_of_specs(plans[row.graph], tree, recording.signature).items())
        counts[sizes] = counts.get(sizes, 0) + call.count
    common = sorted(counts, key=lambda sizes: -counts[sizes])
    return [dict(sizes) for sizes in common[:_MOST_RECORDED] if sizes]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The plan and the sizes of a watched call, and whether the export serves it."""

    plan: Plan
    sizes: Sizes
    holds: bool


class _Judge:
    """An export beside the graphs of the model."""

    def __init__(self, file: Exported, basis: ProgramAndModel, atol: float) -> None:
        self._file, self._basis, self._atol = file, basis, atol
        self._tally = Tally()
        self._cells: dict[str, list[Cell]] = {}
        self._findings: list[ExportFinding] = []
        self._fitted: list[Fitted] = []
        self._remarks: list[str] = []
        for graph in basis.contents.graphs:
            try:
                self._fitted.append(fit(file, graph))
            except UsageError as error:
                self._findings.append(ExportFinding(Kind.INPUT, graph.name, error.message))
        self._dispatcher = self._new_dispatcher()

    def _new_dispatcher(self) -> Dispatcher | None:
        graphs = [stand_in(fitted) for fitted in self._fitted]
        basis = self._basis
        return (
            Dispatcher(graphs, basis.contents.recording.signature, basis.contents.joins)
            if graphs
            else None
        )

    def _serve(self, arguments: Arguments) -> Any:
        if self._dispatcher is None:
            raise RejectedCallError(
                "The inputs of the file are not those of the call.",
                slug="call-refused",
                hint="The report names the inputs that do not match.",
            )
        args, kwargs = as_args_kwargs(self._basis.contents.recording.signature, arguments)
        return self._dispatcher(args, kwargs)

    def run(
        self,
        given: Sequence[Sizes],
        *,
        seed: int,
        trials: int | None,
        seconds: float | None,
    ) -> None:
        """Makes the trials: the watched calls first, then each symbol alone, then all others."""
        basis = self._basis
        graphs = [_judged(graph, self._file) for graph in basis.contents.graphs]
        seen = self._watched_calls()
        contents = self._file.contents
        numbers = contents.numbers if contents is not None else ()
        effort = Effort(basis.subject.model, bounded=trials is None, seconds=seconds)
        effort.begin()
        for graph in _one_a_kind(graphs):
            base = next((s.sizes for s in seen if s.holds and s.plan == graph.plan), None)
            cells = held_sizes(Calls(graph.plan, basis.kept), base, self._attempt, numbers)
            self._cells[graph.name] = [*cells]
            if base is not None:
                self._try_rows(graph.plan, base, effort)
        self._remark_on_contents()
        effort.begin()
        chosen = chosen_trials(graphs, basis.samples, basis.kept, given, seed=seed, most=trials)
        tally, _ = run_trials(
            self._serve,
            basis.subject,
            map(_promised, chosen),
            atol=self._atol,
            effort=effort,
        )
        self._tally += tally

    def _kinds(self) -> list[Fitted]:
        """The first graph of each kind of calls, with the export beside it."""
        first = {graph.name for graph in _one_a_kind(self._basis.contents.graphs)}
        return [fitted for fitted in self._fitted if fitted.graph.name in first]

    def _attempt(self, trial: Trial) -> tuple[Tally, tuple[str, ...]]:
        tally, unlawful = self._judged(trial)
        self._tally += tally
        return tally, unlawful

    def _try_rows(self, plan: Plan, base: Sizes, effort: Effort) -> None:
        """Tries all ids of the tables that inputs of the file, or of the model, index."""
        calls = Calls(plan, self._basis.kept)
        fitted = next(one for one in self._kinds() if one.graph.plan == plan)
        for leaf in plan.inputs:
            rows = _rows_of(fitted).get(leaf.path, 0)
            if rows == 0 or not is_index(leaf, calls):
                continue
            grown = sizes_for(plan, leaf, rows, base, partial(_is_declared, fitted))
            tried: list[RowTrials] = []
            for sizes in (grown, base):
                if not tried or (tried[-1].wrong and sizes != grown):
                    one = RowTrials(calls, leaf, rows, sizes, self._judged, effort.is_over)
                    one.run()
                    tried.append(one)
            first, last = tried[0], tried[-1]
            # a file that refuses the larger call alone is judged by its sizes
            is_larger = last is not first and last.wrong is None
            chosen = first if is_larger and not first.is_refused else last
            self._tally += chosen.tally
            self._note_rows(leaf, rows, chosen, last.wrong)

    def _note_rows(
        self, leaf: LeafPlan, rows: int, tried: RowTrials, wrong: tuple[int, Check] | None
    ) -> None:
        """Notes the findings of the ids of one input; ``wrong`` is an id that is wrong in a watched call."""
        if wrong is not None:
            number, check = wrong
            text = f"wrong with the id {number}, of {rows} rows: {check.cause}"
            self._findings.append(ExportFinding(Kind.VALUES, str(leaf.path), text))
        elif tried.wrong is not None:
            text = f"wrong in a larger call, {size_label(tried.sizes)}: {tried.wrong[1].cause}"
            self._findings.append(ExportFinding(Kind.WRONG, str(leaf.path), text))
        if tried.left:
            self._remarks.append(
                f"{tried.left} of the {rows} ids of {leaf.path} were not tried: the calls would be"
                " too many"
            )

    def _remark_on_contents(self) -> None:
        """Says what of the file is not known."""
        contents = self._file.contents
        if contents is None:
            self._remarks.append(
                f"{UNREADABLE}: sizes near numbers that it compares with were not looked for"
            )
            return
        large = [number for number in contents.numbers if number > MOST_NUMBER]
        if large:
            found = ", ".join(map(str, large))
            self._remarks.append(f"sizes around {found}, which the file compares, were not tried")

    def _judged(self, trial: Trial) -> tuple[Tally, tuple[str, ...]]:
        """One trial, which is not counted."""
        return run_trials(self._serve, self._basis.subject, [trial], atol=self._atol, again=False)

    def _watched_calls(self) -> list[_Seen]:
        """Each watched call with its sizes; what is wrong with the outputs of the first that the
        export does not serve.
        """
        found = []
        for fitted in self._kinds():
            plan = fitted.graph.plan
            for sample, kept in zip(self._basis.samples, self._basis.kept, strict=True):
                if sample.call.index not in plan.calls:
                    continue
                trial = Trial("observed", "call", sample.arguments(), seen=None)
                tally, _ = run_trials(
                    self._serve, self._basis.subject, [trial], atol=self._atol, again=False
                )
                sizes = sizes_of(plan, leaf_values(kept))
                found.append(_Seen(plan, sizes, tally.failed == 0))
                if tally.failed and not self._findings:
                    values = leaf_values(kept)
                    probe = CallProbe(fitted, values, self._basis.subject, self._atol)
                    self._findings += probe.findings()
        return found

    def report(self, missed: Sequence[str]) -> ExportReport:
        """All of it, as a value."""
        contracts = [graph.contract for graph in self._basis.contents.graphs]
        found = list(self._findings)
        rows: list[ComparedAxis] = []
        for fitted in self._kinds():
            cells = self._cells.get(fitted.graph.name, [])
            rows += _rows(fitted, cells)
            found += size_findings(fitted, cells, contracts)
            found += input_findings(fitted)
            found += relation_findings(fitted, failed=self._tally.failed > 0)
        found = [*found, *trial_findings(self._tally, found, self._basis, self._fitted)]
        return ExportReport(
            self._basis.contents.method,
            self._file.kind,
            tuple(rows),
            tuple(dict.fromkeys(found)),
            self._tally,
            (*missed, *self._remarks),
            is_readable=self._file.contents is not None,
        )


def _one_a_kind(graphs: Sequence[Graph]) -> list[Graph]:
    """The first graph of each kind of calls: the others of it stand on the other sides of
    conditions, and one file stands for all of them.
    """
    found: dict[Any, Graph] = {}
    for graph in graphs:
        found.setdefault((graph.plan.structure, graph.plan.calls), graph)
    return list(found.values())


def _judged(graph: Graph, file: Exported) -> Graph:
    """The graph with the target whose trials the file can be asked for."""
    return graph if file.kind == "torch.export" else replace(graph, target=file.kind)


def _promised(trial: Trial) -> Trial:
    """A trial of sizes that the model takes: whatever the contracts of onlooker's graphs say, the
    export has to give what the model gives.
    """
    if trial.plan is None or trial.focus is Focus.OBSERVED:
        return trial
    sizes = dict(trial.sizes)
    is_asked = all(
        symbol.takes(sizes[symbol.name]) for symbol in trial.plan.symbols if symbol.name in sizes
    )
    return replace(trial, is_promised=is_asked)


def _rows_of(fitted: Fitted) -> dict[Path, int]:
    """The rows of the longest table that the values of each argument index, in the file or in the
    model.
    """
    found: dict[Path, int] = {}
    contents = fitted.exported.contents
    if contents is not None:
        found = {
            path: contents.rows[name]
            for name, path in fitted.inputs.items()
            if name in contents.rows
        }
    program = fitted.graph.artifact
    if isinstance(program, torch.export.ExportedProgram):
        own = contents_of_program(program).rows
        names = input_names(program)
        for name, leaf in zip(names, fitted.graph.plan.inputs, strict=False):
            found[leaf.path] = max(own.get(name, 0), found.get(leaf.path, 0))
    return found


def _is_declared(fitted: Fitted, sizes: Sizes) -> bool:
    """True for sizes that the file takes by its own words, and that the graph is proven for."""
    declared = declared_axes(fitted)
    is_taken = all(own.allows(expression.evaluate(sizes)) for _, expression, own in declared)
    return is_taken and fitted.graph.contract.holds(sizes)


def _rows(fitted: Fitted, cells: Sequence[Cell]) -> Iterator[ComparedAxis]:
    """A row for each axis that changes, or that the file says something else of."""
    names: dict[Path, str] = {path: name for name, path in fitted.inputs.items()}
    held = {
        symbol.name: tuple(
            str(cell)
            for place in PLACES
            for cell in cells
            if (cell.symbol, cell.place) == (symbol.name, place)
        )
        for symbol in fitted.graph.plan.symbols
    }
    for leaf in fitted.graph.plan.inputs:
        port = fitted.exported.input(names[leaf.path]) if leaf.path in names else None
        for axis, expression in leaf.axes:
            obtained = _obtained(port, axis.dim)
            if not (expression.is_constant and obtained in (str(expression), "not said")):
                own = held.get(str(expression), ())
                yield ComparedAxis(fitted.graph.name, str(axis), str(expression), obtained, own)


def _obtained(port: Port | None, dim: int | None) -> str:
    """The size that the file declares for one axis, in words."""
    if port is None:
        return "no input"
    if port.shape is None or dim is None or dim >= len(port.shape):
        return "not said"
    return str(port.shape[dim])
