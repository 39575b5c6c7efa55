"""The report of one graph as data: rows of text and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..contract.other_side import Fate, OtherSides
from ..contract.served import ServedSizes, served_sizes
from ..core.contract import Constraint, Contract, Dropped, Origin
from ..core.formula import negated, read_formula, variables_of
from ..core.plan import LeafPlan, Plan
from ..core.spec import Axis

__all__ = ["AxisRow", "ConditionRow", "GraphReport", "InputRow", "OutputRow", "graph_report"]


@dataclass(frozen=True, slots=True)
class AxisRow:
    """One axis: what was observed, what was asked for, and what the program itself holds."""

    axis: str
    observed: str
    asked: str
    obtained: str
    evidence: str = ""

    @property
    def narrowed(self) -> bool:
        """True where a symbol was asked for and a number was obtained."""
        return not self.asked.lstrip("-").isdigit() and self.obtained.lstrip("-").isdigit()


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
    of its file, where it was saved.
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


def graph_report(
    plan: Plan,
    *,
    target: str,
    obtained: Mapping[str, str],
    contract: Contract,
    sizes: Mapping[str, int],
    notes: Sequence[str],
    seconds: float,
    others: OtherSides | None = None,
    options: Mapping[str, str] | None = None,
    outputs: Sequence[OutputRow] = (),
    traffic: Sequence[tuple[Mapping[str, int], int]] = (),
    file: str = "",
) -> GraphReport:
    """The report of one graph, from its plan and from what was read in the exported program.

    ``others`` knows which graph takes what this one does not; by default there is no other graph.
    ``traffic`` are the watched calls that it serves: sizes by symbol, and the number of calls.
    """
    symbols = tuple((s.name, _listed(s.observed), s.range) for s in plan.symbols)
    told = _without_ranges(plan, contract)
    return GraphReport(
        plan.name,
        target,
        plan.calls,
        tuple(row for leaf in plan.inputs for row in _axis_rows(plan, leaf, obtained)),
        symbols,
        tuple((str(r), str(r.evidence)) for r in plan.relations if r.family != "equal"),
        tuple(
            (leaf.path.code(), str(leaf.fill))
            for leaf in plan.leaves
            if leaf.fill is not None and not leaf.bound
        ),
        tuple(
            (leaf.path.code(), str(leaf.constant))
            for leaf in plan.leaves
            if leaf.constant is not None
        ),
        tuple(sizes.items()),
        tuple(notes),
        seconds,
        tuple(_needs(told)),
        contract.dropped,
        tuple(_conditions(plan, told, sizes, others or OtherSides([(plan, contract)]))),
        tuple((options or {}).items()),
        tuple(map(_input_row, plan.inputs)),
        tuple(outputs),
        served_sizes([(plan.symbols, contract.regions)]),
        sum(count for _, count in traffic),
        tuple((s.name, _sizes_of(s.name, traffic)) for s in plan.symbols if traffic),
        file,
    )


def _without_ranges(plan: Plan, contract: Contract) -> Contract:
    """The contract without bounds of the model that the range of a symbol says already."""
    limited = {symbol.name for symbol in plan.symbols if symbol.limit}
    names = [symbol.name for symbol in plan.symbols]

    def is_range(constraint: Constraint) -> bool:
        of = variables_of(read_formula(constraint.formula, names))
        return constraint.origin is Origin.BOUND and len(of) == 1 and limited.issuperset(of)

    regions = (
        replace(region, constraints=tuple(c for c in region.constraints if not is_range(c)))
        for region in contract.regions
    )
    return replace(contract, regions=tuple(regions))


def _sizes_of(name: str, traffic: Sequence[tuple[Mapping[str, int], int]]) -> tuple[int, ...]:
    return tuple(sorted({sizes[name] for sizes, _ in traffic if name in sizes}))


def _input_row(leaf: LeafPlan) -> InputRow:
    remark = "" if leaf.fill is None else f"may be left out: {leaf.fill}"
    if leaf.is_tensor:
        shape = ", ".join(map(str, leaf.shape))
        kind = f"{leaf.dtype.removeprefix('torch.')}[{shape}]"
    elif leaf.is_float:
        kind = "float"
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
    """What the sizes of a call must satisfy beside the plan: constraints, or several regions of
    which one must hold.
    """
    if len(contract.regions) == 1:
        return [str(constraint) for constraint in contract.regions[0].constraints]
    regions = [" and ".join(map(str, region.constraints)) for region in contract.regions]
    return [f"one of {len(regions)}: {text}" for text in regions]


def _axis_rows(plan: Plan, leaf: LeafPlan, obtained: Mapping[str, str]) -> list[AxisRow]:
    if leaf.is_float:
        seen = ", ".join(map(str, leaf.floats[:3])) + (" ..." if len(leaf.floats) > 3 else "")
        return [AxisRow(leaf.path.code(), seen, "any float", "any float")]
    expressions = list(enumerate(leaf.shape)) if leaf.is_tensor else [(None, leaf.value)]
    rows = []
    for dim, expression in expressions:
        if expression is None:
            continue
        axis = str(Axis(leaf.path, dim))
        observed = _observed(plan, str(expression)) if expression.symbols else str(expression)
        rows.append(
            AxisRow(axis, observed, str(expression), obtained.get(axis, "?"), _evidence(plan, axis))
        )
    return rows


def _evidence(plan: Plan, axis: str) -> str:
    return next((str(r.evidence) for r in plan.relations if str(r.left) == axis), "")


def _observed(plan: Plan, text: str) -> str:
    return next(
        (_listed(s.observed) for s in plan.symbols if s.name == text),
        "follows from its symbols",
    )


def _listed(values: Sequence[int]) -> str:
    if len(values) <= 5:
        return ", ".join(map(str, values))
    return f"{values[0]}, {values[1]} ... {values[-1]} ({len(values)} sizes)"
