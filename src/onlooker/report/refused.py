"""Lists the calls that a program refuses, each with the line that changes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract.other_side import FateKind
from ..contract.served import ServedSizes, served_sizes
from ..contract.size_sets import SizeSet
from ..core.call import Signature
from ..core.contents import GraphContents
from ..core.drawing.alike import first_few, folded, shortened
from ..core.marks import refused_of
from ..core.plan import LeafPlan, Plan, Symbol, symbol_names
from ..core.sizes.formula import read_formula, variables_of
from ..core.spec import ConstantSpec
from .data import ConditionRow, GraphReport, Refusal

__all__ = ["ServedTogether", "refusals_of", "served_together"]

#: cases that are told of sizes that no few words describe
_MOST_CASES = 2
#: as many characters of such a case, and as many names of arguments
_LONGEST_CASE, _MOST_NAMES = 60, 4
_WATCH = "watch such a call, and export again"


@dataclass(frozen=True, slots=True)
class ServedTogether:
    """The sizes that graphs with the same inputs serve together; ``graphs`` are their numbers."""

    graphs: tuple[int, ...]
    served: ServedSizes


def served_together(graphs: Sequence[GraphContents]) -> tuple[ServedTogether, ...]:
    """The sizes that graphs with the same inputs serve together, for each kind of inputs. A graph may have a number
    where another one has a symbol: ``float32[1, n]`` beside ``float32[batch, n]``.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    parts = [(graph.plan.symbols, graph.contract.regions) for graph in graphs]
    by_symbols = sorted(range(len(graphs)), key=lambda number: -len(graphs[number].plan.symbols))
    for number in by_symbols:
        symbols, regions = parts[number]
        form, fixed = _general_form(graphs[number].plan, groups)
        parts[number] = ((*symbols, *fixed), regions)
        groups.setdefault(form, []).append(number)
    together = sorted(tuple(sorted(numbers)) for numbers in groups.values())
    return tuple(
        ServedTogether(numbers, served_sizes([parts[number] for number in numbers]))
        for numbers in together
    )


def _general_form(
    plan: Plan, known: Iterable[tuple[Any, ...]]
) -> tuple[tuple[Any, ...], list[Symbol]]:
    """The form of the inputs of a plan, or the more general one among those that are known, with the symbols that are
    numbers in the plan.
    """
    form = tuple(map(_leaf_form, plan.leaves))
    for general in known:
        fixed = _numbers_for_symbols(general, form)
        if fixed is not None and fixed.keys().isdisjoint(symbol_names(plan)):
            return general, [Symbol(name, (size,), size, size) for name, size in fixed.items()]
    return form, []


def _numbers_for_symbols(general: tuple[Any, ...], form: tuple[Any, ...]) -> dict[str, int] | None:
    """The numbers that inputs have where more general ones have symbols; None where they differ otherwise."""
    if [one[:-1] for one in general] != [one[:-1] for one in form]:
        return None
    found: dict[str, int] = {}
    for wide, narrow in zip(general, form, strict=True):
        if len(wide[-1]) != len(narrow[-1]):
            return None
        for symbol, size in zip(wide[-1], narrow[-1], strict=True):
            if symbol == size:
                continue
            if not (symbol.isidentifier() and size.isdecimal()):
                return None
            if found.setdefault(symbol, int(size)) != int(size):
                return None
    return found


def refusals_of(
    graphs: Sequence[GraphContents],
    groups: Sequence[ServedTogether],
    reports: Sequence[GraphReport],
    signature: Signature,
) -> tuple[Refusal, ...]:
    """Returns what the graphs of a program refuse: sizes first, then arguments that no call had,
    then other values of constants, then tensors without the marks that the model reads. ``reports``
    are those of the graphs, in their order.
    """
    plans = [graph.plan for graph in graphs]
    sizes: list[Refusal] = []
    for group in groups:
        rows = [row for number in group.graphs for row in reports[number].conditions]
        names = ", ".join(reports[number].name for number in group.graphs)
        where = "" if len(groups) == 1 else f"{names}: "
        of_graphs = [reports[number].served.sets for number in group.graphs]
        fixed = set.intersection(*(_of_numbers(sets) for sets in of_graphs))
        plan = max((plans[number] for number in group.graphs), key=lambda one: len(one.symbols))
        sizes += _refused_sizes(group.served, rows, plan, where, fixed)
    return (*sizes, *_arguments(plans, signature), *_constants(plans), *_marks(graphs))


def _marks(graphs: Sequence[GraphContents]) -> Iterator[Refusal]:
    """A refusal for each kind of property, beside sizes and values, that the model reads of tensors."""
    for mark, line in {key: line for graph in graphs for key, line in graph.marks.items()}.items():
        yield Refusal(refused_of(mark), line)


def _of_numbers(sets: Sequence[SizeSet]) -> set[str]:
    """The terms of which a graph takes numbers alone."""
    return {found.term for found in sets if found.is_of_numbers}


def _leaf_form(leaf: LeafPlan) -> tuple[object, ...]:
    kind = leaf.dtype, leaf.is_float, leaf.constant, leaf.opaque
    return (leaf.path, *kind, tuple(map(str, leaf.sizes)))


def _refused_sizes(
    served: ServedSizes,
    rows: Sequence[ConditionRow],
    plan: Plan,
    where: str,
    fixed: Collection[str],
) -> Iterator[Refusal]:
    """A refusal for each term that a reader takes in; the other conditions are counted."""
    for symbol in plan.symbols:
        if symbol.limit:
            yield Refusal(f"{where}{symbol.name} beyond {symbol.high}", symbol.limit)
    sets = {found.term: found for found in served.sets}
    readable = [term for term in served.limited if term in sets and sets[term].is_readable]
    for term in readable:
        own = [row for row in rows if _is_about(row, term, plan)]
        refusing = [row for row in own if _has_fate(row, FateKind.NOT_TRACED)]
        by_model = [row for row in own if _has_fate(row, FateKind.REFUSED_BY_MODEL)]
        is_by_model = bool(by_model) and not refusing
        line = next((row.line for row in (*refusing, *by_model, *own) if row.line), "")
        why = "; ".join(
            filter(None, ("the model itself refuses them" if is_by_model else "", line))
        )
        change = "" if is_by_model else _change(sets[term], plan, fixed)
        yield Refusal(f"{where}sizes other than {sets[term].words}", why, change)
    others = len(served.limited) - len(readable)
    if others:
        count = "a condition" if others == 1 else f"one of {others} conditions"
        yield Refusal(f"{where}sizes that break {count} on computed sizes", "", _WATCH)
    if not served.exact and served.cases:
        cases = [shortened(case, _LONGEST_CASE) for case in served.cases[:_MOST_CASES]]
        shown = " or ".join(f"({case})" for case in cases)
        count = f"{len(served.cases)} conditions, the first two: "
        first = f"{count if len(served.cases) > _MOST_CASES else ''}{shown}"
        yield Refusal(f"{where}sizes that satisfy none of {first}", "", _WATCH)


def _change(sizes: SizeSet, plan: Plan, fixed: Collection[str]) -> str:
    """The line that asks for all sizes of a term: the range of a symbol, unless its graphs take
    numbers alone.
    """
    symbol = next((symbol for symbol in plan.symbols if symbol.name == sizes.term), None)
    if symbol is None or sizes.term in fixed:
        return _WATCH
    return f"observer.export(ranges={{{symbol.name!r}: ({symbol.low}, {symbol.high})}})"


def _is_about(row: ConditionRow, term: str, plan: Plan) -> bool:
    names = symbol_names(plan)
    tested = variables_of(read_formula(row.formula, names))
    return set(tested) == ({term} if term in names else {n for n in names if n in tested})


def _has_fate(row: ConditionRow, kind: FateKind) -> bool:
    return any(fate.kind is kind for fate in row.fates)


def _arguments(plans: Sequence[Plan], signature: Signature) -> Iterator[Refusal]:
    leaves = [leaf for plan in plans for leaf in plan.leaves]
    passed = {leaf.path.root for leaf in leaves}
    with_values = {leaf.path.root for leaf in leaves if not _is_none(leaf)}
    names = [each.name for each in signature.parameters if not each.kind.startswith("VAR")]
    never = [name for name in names if name not in passed]
    only_none = [name for name in names if name in passed - with_values]
    if never:
        yield Refusal(f"calls with {_named(never)}, which no call had", "", _WATCH)
    if only_none:
        yield Refusal(f"{_named(only_none)} other than None", "", _WATCH)


def _named(names: Sequence[str]) -> str:
    return ", ".join(first_few(names, _MOST_NAMES))


def _is_none(leaf: LeafPlan) -> bool:
    return leaf.constant is not None and leaf.constant.value is None


def _constants(plans: Sequence[Plan]) -> Iterator[Refusal]:
    """Constants: no graph takes a value that no call had, but for a flag of which both are known."""
    seen: dict[str, set[object]] = {}
    for plan in plans:
        for leaf in plan.leaves:
            if leaf.constant is not None and not _is_none(leaf):
                seen.setdefault(leaf.path.code(), set()).add(leaf.constant)
    both = {ConstantSpec(True), ConstantSpec(False)}
    names = folded(path for path, values in seen.items() if not values >= both)
    if names:
        yield Refusal(f"other values of {_named(names)}", "", _WATCH)
