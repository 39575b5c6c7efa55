"""The axes from which the size of each symbol can be read, by the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..core.contract import Contract
from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan, symbol_names
from ..core.sizes.expression import Expression
from ..core.sizes.formula import read_formula, renamed
from ..core.spec import Axis

__all__ = ["Spelling", "formulas_of", "places_of", "spelled_axis"]

#: how an axis is written: ``x.shape[1]`` for a user, ``x_0.shape[1]`` for the inputs of a graph
Spelling = Callable[[Axis], str]


def places_of(plan: Plan, spelling: Spelling = str) -> dict[str, str]:
    """Per symbol of a plan the text that gives its size.

    A symbol that stands alone on an axis is read there. Another one follows from an axis in which
    it is the only unknown: of ``past + sequence`` and ``sequence``, ``past`` is
    ``(mask.shape[1] - (ids.shape[1]))``.

    :raises ExportError: ``symbol-not-shown`` for a symbol that no axis tells
    """
    found: dict[str, str] = {}
    rest: list[tuple[str, Expression]] = []
    for leaf in plan.inputs:
        for axis, expression in leaf.axes:
            if expression.is_symbol:
                found.setdefault(str(expression), spelling(axis))
            elif expression.symbols:
                rest.append((spelling(axis), expression))
    while missing := [name for name in symbol_names(plan) if name not in found]:
        solved = _solved(rest, found)
        if solved is None:
            raise ExportError(
                f"No input of {plan.name} tells the size of {', '.join(missing)}.",
                slug="symbol-not-shown",
                hint="Watch calls in which an axis has that size alone.",
            )
        found |= solved
    return found


def _solved(
    rest: Sequence[tuple[str, Expression]], found: Mapping[str, str]
) -> dict[str, str] | None:
    """One more symbol, from an expression in which it is the only unknown and counts once or
    several times.
    """
    for text, expression in rest:
        unknown = [name for name in expression.symbols if name not in found]
        if len(unknown) != 1:
            continue
        name = unknown[0]
        at_zero = expression.replaced({name: Expression.constant(0)})
        step = expression.replaced({name: Expression.constant(1)}) - at_zero
        if (
            step.is_constant
            and step.evaluate({}) > 0
            and _is_linear(expression, name, at_zero, step)
        ):
            others = at_zero.renamed({symbol: f"({found[symbol]})" for symbol in at_zero.symbols})
            value = f"({text} - ({others}))"
            factor = step.evaluate({})
            return {name: value if factor == 1 else f"({value} // {factor})"}
    return None


def _is_linear(expression: Expression, name: str, at_zero: Expression, step: Expression) -> bool:
    rebuilt = at_zero + Expression.symbol(name) * step
    return str(expression.replaced({})) == str(rebuilt.replaced({}))


def spelled_axis(names: Mapping[Path, str]) -> Spelling:
    """Axes as a graph calls its inputs."""

    def spell(axis: Axis) -> str:
        return names[axis.path] if axis.dim is None else f"{names[axis.path]}.shape[{axis.dim}]"

    return spell


def formulas_of(plan: Plan, contract: Contract, spelling: Spelling) -> tuple[str, ...]:
    """Plan and contract as formulas over the sizes of inputs: relations, ranges, steps, then the
    constraints.

    A call satisfies all of them exactly when its graph takes it.
    """
    places = places_of(plan, spelling)
    found: list[str] = []
    for leaf in plan.inputs:
        for axis, expression in leaf.axes:
            wanted = _over_inputs(str(expression), places)
            if spelling(axis) != wanted:
                found.append(f"{spelling(axis)} == {wanted}")
    for symbol in plan.symbols:
        found += symbol.conditions(places[symbol.name])
    regions = [
        [_over_inputs(c.formula, places) for c in region.constraints] for region in contract.regions
    ]
    if len(regions) == 1:
        found += regions[0]
    elif all(regions):
        found.append(
            " or ".join(f"({' and '.join(f'({text})' for text in region)})" for region in regions)
        )
    return tuple(dict.fromkeys(found))


def _over_inputs(text: str, places: Mapping[str, str]) -> str:
    return renamed(read_formula(text, list(places)), places.__getitem__)
