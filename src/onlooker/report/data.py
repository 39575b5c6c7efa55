"""The report of one graph as data: rows of text and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..contract.other_side import Fate, OtherSides
from ..contract.served import ServedSizes, served_sizes
from ..core.call import Signature
from ..core.contents import GraphContents, Outputs
from ..core.contract import Constraint, Contract, Dropped, Origin
from ..core.drawing.alike import first_few, listed_sizes
from ..core.plan import LeafPlan, Plan, symbol_names
from ..core.sizes.formula import negated, read_formula, variables_of
from ..core.spec import Axis
from ..core.verdict import Tally

__all__ = [
    "CHECK_KINDS",
    "AxisRow",
    "ConditionRow",
    "GraphReport",
    "InputRow",
    "OutputRow",
    "Refusal",
    "ReportData",
    "graph_report",
]

#: how the kinds of checks are called where their scores are told
CHECK_KINDS = (("observed", "watched"), ("unseen", "unseen"))
#: so many of the outputs that are farthest from the model are told
_MOST_OUTPUTS = 3


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis: what was observed, what was asked for, and what the program itself has.

    ``changes`` is True where a symbol was asked for, ``narrowed`` where the program has a number
    for it.
    """

    axis: str
    observed: str
    asked: str
    obtained: str
    evidence: str = ""
    changes: bool = True
    narrowed: bool = False


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition of a graph: its two sides, the line that asked, and what a call on the other
    side gets.
    """

    formula: str
    otherwise: str
    origin: str
    line: str
    fates: tuple[Fate, ...]

    def __str__(self) -> str:
        gets = "; ".join(map(str, self.fates)) or "no call, since the plan has no such sizes"
        return f"where {self.otherwise}: {gets}"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input: its path, the argument that it is a part of, its dtype and shape in symbols, and a
    remark: that a call may leave it out.
    """

    path: str
    root: str
    kind: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output: its name, and its dtype and shape in symbols."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One graph of a program; ``dropped`` has conditions that are not needed, each with its
    evidence. ``served`` are the sizes that its contract allows, in few words, ``served_calls`` the
    number of watched calls that it serves, ``watched`` their sizes by symbol, and ``file`` the name
    of its file, where it was saved. ``passed`` are the arguments that a call has to pass, as in ``mode='sum'``.
    """

    name: str
    target: str
    calls: tuple[int, ...]
    axes: tuple[AxisRow, ...]
    symbols: tuple[tuple[str, str, str], ...]
    relations: tuple[tuple[str, str], ...]
    fills: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    conditions: tuple[ConditionRow, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    inputs: tuple[InputRow, ...] = ()
    outputs: tuple[OutputRow, ...] = ()
    served: ServedSizes = field(default_factory=ServedSizes)
    served_calls: int = 0
    watched: tuple[tuple[str, tuple[int, ...]], ...] = ()
    file: str = ""
    passed: tuple[str, ...] = ()

    @property
    def made(self) -> str:
        """The target and its options: ``onnx, opset=21``."""
        return ", ".join([self.target, *(f"{name}={value}" for name, value in self.options)])


@dataclass(frozen=True, slots=True)
class Refusal:
    """Calls that a program refuses: ``what`` they are, ``why``, and what ``changes`` it.

    >>> print(Refusal("sizes other than n 1 to 24", "model.py:12", "observer.export(ranges={'n': (1, None)})"))
    sizes other than n 1 to 24 (model.py:12): observer.export(ranges={'n': (1, None)})
    """

    what: str
    why: str = ""
    change: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.what}{why}: {self.change}" if self.change else f"{self.what}{why}"

    def within(self, most: int) -> str:
        """Returns the text in as many characters: what changes it is told whole.

        >>> print(Refusal("sizes other than n 1 to 24", "model.py:12", "watch one").within(40))
        sizes other than n 1 to 2 ...: watch one
        """
        excess = len(str(self)) - most
        if excess <= 0:
            return str(self)
        told = str(replace(self, change=""))
        cut = f"{told[: max(len(told) - excess - 4, 0)]} ..."
        return f"{cut}: {self.change}" if self.change else cut


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that is reported of a program.

    ``unlawful`` are sizes that the model itself refuses, ``missed`` calls that were not recorded,
    ``blind`` what neither calls nor probes could tell, with the run that would. ``stages`` are
    seconds: of the calls that were observed, and of what was done with them; ``probes`` is how
    often the model was run between the recording and the program. ``surroundings`` is what stood
    around the calls, each with the number of calls. ``served`` are the sizes that graphs with
    the same inputs serve together, ``refusals`` what the program refuses, with the line that
    changes it, and ``unknown`` the blind spots that no refusal names; ``calls`` is the
    number of watched calls.
    """

    model: str
    method: str
    graphs: tuple[GraphReport, ...]
    tally: Tally
    unlawful: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    stages: tuple[tuple[str, float], ...] = ()
    probes: int = 0
    surroundings: tuple[tuple[str, int], ...] = ()
    served: tuple[ServedSizes, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    unknown: tuple[str, ...] = ()
    calls: int = 0

    @property
    def scores(self) -> tuple[str, ...]:
        """A line with the scores of watched and of unseen calls, where they were measured; and one for
        each of the outputs that are farthest from those of the model, of a program of another precision.
        """
        measured = [(words, self.tally.scores(kind)) for kind, words in CHECK_KINDS]
        told = [
            f"{scores.agreeing} of {scores.count} {words} tokens agree, scores differ by up to"
            f" {scores.difference:.3g}"
            for words, scores in measured
            if scores.count
        ]
        farthest = sorted(self.tally.distances, key=lambda one: -one.program.mean_error)
        outputs = first_few(list(map(str, farthest)), _MOST_OUTPUTS)
        return (*(["; ".join(told)] if told else []), *outputs)


def graph_report(
    graph: GraphContents,
    *,
    signature: Signature | None = None,
    state: str = "",
    others: OtherSides | None = None,
    traffic: Sequence[tuple[Mapping[str, int], int]] = (),
    notes: Sequence[str] = (),
) -> GraphReport:
    """The report of one graph.

    ``signature`` is that of the method, ``state`` the argument that the program fills with its state.
    ``others`` knows which graph takes what this one does not; by default there is no other graph.
    ``traffic`` are the watched calls that it serves: sizes by symbol, and the number of calls.
    ``notes`` are further ones, beside those of the graph.
    """
    plan, contract = graph.plan, graph.contract
    shown = _without_ranges(plan, contract)
    fills = [leaf for leaf in plan.leaves if plan.may_be_absent(leaf)]
    constants = [leaf for leaf in plan.leaves if leaf.constant is not None]
    relations = [relation for relation in plan.relations if relation.family != "equal"]
    others = others or OtherSides([(plan, contract)])
    return GraphReport(
        plan.name,
        graph.target,
        plan.calls,
        tuple(row for leaf in plan.inputs for row in _axis_rows(graph, leaf)),
        tuple((s.name, listed_sizes(s.observed), s.range) for s in plan.symbols),
        tuple((str(relation), str(relation.evidence)) for relation in relations),
        tuple((leaf.path.code(), str(leaf.fill)) for leaf in fills),
        tuple((leaf.path.code(), str(leaf.constant)) for leaf in constants),
        tuple(graph.sizes.items()),
        (*graph.notes, *notes),
        graph.seconds,
        tuple(_needs(shown)),
        contract.dropped,
        tuple(_conditions(plan, shown, graph.sizes, others)),
        tuple(graph.options.items()),
        tuple(map(_input_row, plan.inputs)),
        tuple(_output_rows(graph.outputs)),
        served_sizes([(plan.symbols, contract.regions)]),
        sum(count for _, count in traffic),
        tuple((s.name, _sizes_of(s.name, traffic)) for s in plan.symbols if traffic),
        graph.file,
        tuple(_passed(graph, signature or Signature(), state)),
    )


def _passed(graph: GraphContents, signature: Signature, state: str) -> Iterator[str]:
    """Yields the arguments that a call of the graph has to pass: its inputs, and constants that are no defaults."""
    left_out = {name for way in graph.contract.ways for name in way.left_out}
    found: dict[str, str] = {}
    for leaf in graph.plan.leaves:
        root, is_input = leaf.path.root, leaf.constant is None and leaf.opaque is None
        is_default = leaf.optional or signature.default_of(leaf.path) == leaf.constant
        if root == state or root in left_out or (is_input and leaf.fill is not None):
            continue
        if is_input:
            found.setdefault(root, f"{root}=...")
        elif leaf.constant is not None and len(leaf.path.entries) == 1 and not is_default:
            found.setdefault(root, f"{root}={leaf.constant}")
    yield from found.values()


def _output_rows(outputs: Outputs) -> Iterator[OutputRow]:
    """The outputs of a graph, with what is known of their dtypes and shapes."""
    is_known = len(outputs.kinds) == len(outputs.names)
    kinds = outputs.kinds if is_known else (("", ()),) * len(outputs.names)
    for name, (dtype, shape) in zip(outputs.names, kinds, strict=True):
        is_number = dtype in ("int", "float", "")
        yield OutputRow(name, dtype if is_number else f"{dtype}[{', '.join(shape)}]")


def _without_ranges(plan: Plan, contract: Contract) -> Contract:
    """The contract without bounds of the model that the range of a symbol says already."""
    limited = {symbol.name for symbol in plan.symbols if symbol.limit}

    def is_range(constraint: Constraint) -> bool:
        of = variables_of(read_formula(constraint.formula, symbol_names(plan)))
        return constraint.origin is Origin.BOUND and len(of) == 1 and limited.issuperset(of)

    regions = (
        replace(region, constraints=tuple(c for c in region.constraints if not is_range(c)))
        for region in contract.regions
    )
    return replace(contract, regions=tuple(regions))


def _sizes_of(name: str, traffic: Sequence[tuple[Mapping[str, int], int]]) -> tuple[int, ...]:
    seen = {sizes[name] for sizes, _ in traffic if name in sizes}
    return tuple(sorted(seen))


def _input_row(leaf: LeafPlan) -> InputRow:
    remark = "" if leaf.fill is None else f"may be left out: {leaf.fill}"
    if leaf.is_tensor:
        sizes = enumerate(leaf.shape)
        shape = ", ".join(f"{e} or 1" if dim in leaf.broadcast else str(e) for dim, e in sizes)
        kind = f"{leaf.dtype.removeprefix('torch.')}[{shape}]"
    elif leaf.is_float:
        kind = "float" if leaf.between is None else f"float {leaf.between}"
    else:
        kind = f"int {leaf.value}"
    return InputRow(leaf.path.code(), leaf.path.root, kind, remark)


def _conditions(
    plan: Plan, contract: Contract, sizes: Mapping[str, int], others: OtherSides
) -> list[ConditionRow]:
    """Every condition once, in the order of the regions, with what becomes of calls that satisfy
    all but this one.
    """
    found: dict[tuple[str, str], ConditionRow] = {}
    for region in contract.regions:
        for constraint in region.constraints:
            key = constraint.formula, constraint.line
            before = found[key].fates if key in found else ()
            known = [(fate.kind, fate.graph) for fate in before]
            beyond = others.beyond(plan, region, constraint, sizes)
            fates = (*before, *(fate for fate in beyond if (fate.kind, fate.graph) not in known))
            found[key] = ConditionRow(
                constraint.formula,
                negated(constraint.formula),
                constraint.origin.value,
                constraint.line,
                fates,
            )
    return list(found.values())


def _needs(contract: Contract) -> list[str]:
    """Returns the conditions on the sizes of a call beside the plan: constraints, or several
    regions of which one must hold.
    """
    if len(contract.regions) == 1:
        return [str(constraint) for constraint in contract.regions[0].constraints]
    regions = [" and ".join(map(str, region.constraints)) for region in contract.regions]
    return [f"one of {len(regions)}: {text}" for text in regions]


def _axis_rows(graph: GraphContents, leaf: LeafPlan) -> list[AxisRow]:
    if leaf.is_float:
        seen = ", ".join(map(str, leaf.floats[:3])) + (" ..." if len(leaf.floats) > 3 else "")
        taken = "any float" if leaf.between is None else str(leaf.between)
        return [AxisRow(leaf.path.code(), seen, "any float", taken)]
    plan = graph.plan
    fixed = {axis for axis, _, _ in graph.fixed_axes}
    rows = []
    for axis, expression in leaf.axes:
        asked = str(expression)
        rows.append(
            AxisRow(
                str(axis),
                _observed(plan, asked) if expression.symbols else asked,
                asked,
                _exported(graph, axis),
                _evidence(plan, str(axis)),
                changes=not expression.is_constant,
                narrowed=axis in fixed,
            )
        )
    return rows


def _exported(graph: GraphContents, axis: Axis) -> str:
    """The size that the program has at an axis, in words."""
    if axis not in graph.exported_sizes:
        return "?"
    size = graph.exported_sizes[axis]
    return "unused" if size is None else str(size)


def _evidence(plan: Plan, axis: str) -> str:
    return next((str(r.evidence) for r in plan.relations if str(r.left) == axis), "")


def _observed(plan: Plan, text: str) -> str:
    return next(
        (listed_sizes(s.observed) for s in plan.symbols if s.name == text),
        "follows from its symbols",
    )
