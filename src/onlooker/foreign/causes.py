"""From trials that failed to what is wrong: an axis, an input, a condition of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.contract import Constraint, Contract, Origin
from ..core.plan import symbol_names
from ..core.sizes.expression import Expression, Sizes
from ..core.sizes.formula import holds
from ..core.spec import Axis
from ..core.verdict import Check, Focus, Outcome, Tally
from ..materialise.domains import domains_of
from ..serve.runnable import ProgramAndModel
from .axes import Cell, Held
from .exported import Declared
from .findings import ExportFinding, Kind
from .serve import Fitted

__all__ = [
    "declared_axes",
    "input_findings",
    "relation_findings",
    "size_findings",
    "trial_findings",
]


def size_findings(
    fitted: Fitted, cells: Sequence[Cell], contracts: Sequence[Contract]
) -> Iterator[ExportFinding]:
    """The axes for which the file takes fewer sizes than the model, or answers otherwise."""
    fixed = dict(_fixed_axes(fitted))
    yield from (finding for findings in fixed.values() for finding in findings)
    for symbol in fitted.graph.plan.symbols:
        axes = fitted.graph.plan.axes_of(symbol.name)
        if not axes or any(axis in fixed for axis in axes):
            continue
        failed = [cell for cell in cells if cell.symbol == symbol.name and cell.is_failure]
        for held in (Held.WRONG, Held.REFUSED):
            own = [cell for cell in failed if cell.held is held]
            if own:
                yield _of_cells(axes[0], symbol.name, own, contracts)


def _fixed_axes(fitted: Fitted) -> Iterator[tuple[Axis, list[ExportFinding]]]:
    """By axis, where the file says a number or a narrower range than the model has."""
    symbols = {symbol.name: symbol for symbol in fitted.graph.plan.symbols}
    for axis, expression, declared in declared_axes(fitted):
        asked = str(expression)
        if expression.is_constant:
            if not declared.allows(expression.evaluate({})):
                text = f"{declared} in the file, it is always {asked}"
                yield axis, [ExportFinding(Kind.SPECIALIZED, str(axis), text)]
            continue
        if declared.is_constant:
            symbol = symbols.get(asked)
            wanted = f"any {asked}, {symbol.range}" if symbol else asked
            text = f"always {declared} in the file, the model takes {wanted}"
            yield axis, [ExportFinding(Kind.SPECIALIZED, str(axis), text)]
        elif asked in symbols:
            seen = symbols[asked].observed
            outside = [size for size in seen if not declared.allows(size)]
            if outside:
                sizes = ", ".join(map(str, outside))
                text = f"{declared} in the file, watched calls had {sizes}"
                yield axis, [ExportFinding(Kind.NARROW, str(axis), text)]


def declared_axes(fitted: Fitted) -> Iterator[tuple[Axis, Expression, Declared]]:
    """Each axis with what the model takes and what the file says, where it says something."""
    leaves = {leaf.path: leaf for leaf in fitted.graph.plan.inputs}
    for name, path in fitted.inputs.items():
        shape = fitted.exported.input(name).shape
        leaf = leaves.get(path)
        if leaf is None or shape is None or len(shape) != len(leaf.shape):
            continue
        for (axis, expression), declared in zip(leaf.axes, shape, strict=True):
            yield axis, expression, declared


def _of_cells(
    axis: Axis, symbol: str, cells: Sequence[Cell], contracts: Sequence[Contract]
) -> ExportFinding:
    sizes = ", ".join(
        dict.fromkeys(str(dict(c.check.sizes)[symbol]) for c in cells if c.check is not None)
    )
    check = next(cell.check for cell in cells if cell.check is not None)
    line = _line_between(contracts, dict(cells[0].base), dict(check.sizes))
    because = f"; the model decides by {line}" if line else ""
    if cells[0].held is Held.WRONG:
        text = f"wrong at {symbol} = {sizes}: {check.note}{because}"
        return ExportFinding(Kind.WRONG, str(axis), text)
    text = f"the file refuses {symbol} = {sizes}, which the model takes{because}"
    return ExportFinding(Kind.REFUSED, str(axis), text)


def _line_between(contracts: Sequence[Contract], right: Sizes, wrong: Sizes) -> str:
    """The condition of the model, with its line, that is true for one of two sizes alone."""
    found = [
        constraint
        for contract in contracts
        for constraint in _conditions(contract)
        if holds(constraint.formula, right) != holds(constraint.formula, wrong)
    ]
    lines = [constraint for constraint in found if constraint.line]
    best = [constraint for constraint in lines if constraint.origin is Origin.MODEL]
    chosen = next(iter(best or lines), None)
    return f"{chosen.formula} ({chosen.line})" if chosen else ""


def _conditions(contract: Contract) -> Iterator[Constraint]:
    for region in contract.regions:
        yield from region.constraints
    for dropped in contract.dropped:
        yield Constraint(dropped.formula, Origin.MODEL, dropped.line)


def input_findings(fitted: Fitted) -> Iterator[ExportFinding]:
    """Arguments that the file does not read, and inputs of another dtype."""
    for leaf in fitted.unread:
        text = "no input of the file: its value there is that of the export, or it is not read"
        yield ExportFinding(Kind.INPUT, str(leaf.path), text, is_failure=False)
    read = {path: name for name, path in fitted.inputs.items()}
    for leaf in fitted.graph.plan.inputs:
        if not leaf.is_tensor or leaf.path not in read:
            continue
        port = fitted.exported.input(read[leaf.path])
        if port.dtype and port.dtype != leaf.dtype:
            text = f"{port.dtype} in the file, calls give {leaf.dtype}"
            yield ExportFinding(Kind.INPUT, str(leaf.path), text)
        if port.shape is not None and len(port.shape) != len(leaf.shape):
            text = f"{len(port.shape)} dimensions in the file, calls have {len(leaf.shape)}"
            yield ExportFinding(Kind.INPUT, str(leaf.path), text)
    extra = len(fitted.exported.outputs) - len(fitted.results)
    if extra > 0:
        names = ", ".join(
            port.name
            for place, port in enumerate(fitted.exported.outputs)
            if place not in fitted.order
        )
        text = f"the file gives {extra} more than the model: {names}"
        yield ExportFinding(Kind.OUTPUT, "outputs", text, is_failure=False)


def relation_findings(fitted: Fitted, *, failed: bool) -> Iterator[ExportFinding]:
    """Sizes that the model ties and the file does not, and the other way round.

    A file may leave a relation open and still be right for every call that the model takes: it then answers
    calls that the model refuses. One that ties sizes which are two for the model is wrong where
    trials ``failed``.
    """
    named = [(axis, asked, d) for axis, asked, d in declared_axes(fitted) if d.name]
    by_name: dict[str, tuple[Axis, Expression]] = {}
    by_asked: dict[Expression, tuple[Axis, str]] = {}
    for axis, asked, declared in named:
        if declared.is_constant or asked.is_constant:
            continue
        other, other_asked = by_name.setdefault(declared.name, (axis, asked))
        if other_asked != asked:
            text = (
                f"one size with {other} in the file, {declared.name};"
                f" the model takes {asked} and {other_asked}"
            )
            yield ExportFinding(Kind.TIED, str(axis), text, is_failure=failed)
            continue
        first, name = by_asked.setdefault(asked, (axis, declared.name))
        is_composite = not asked.is_symbol and declared.name.isidentifier()
        if name != declared.name or is_composite:
            wanted = str(asked) if is_composite else f"{asked}, as {first}"
            text = f"a size of its own in the file, {declared.name}; the model needs {wanted}"
            yield ExportFinding(Kind.UNRELATED, str(axis), text, is_failure=False)


def trial_findings(
    tally: Tally, known: Sequence[ExportFinding], basis: ProgramAndModel, fitted: Sequence[Fitted]
) -> Iterator[ExportFinding]:
    """The findings of failed trials, beyond those that are known."""
    failed = [check for check in tally.checks if not check.passed]
    if any(finding.is_failure for finding in known):
        return
    of_focus: dict[Focus | None, Check] = {}
    for check in failed:
        of_focus.setdefault(check.focus, check)
    if Focus.OBSERVED in of_focus:  # the others follow
        of_focus = {Focus.OBSERVED: of_focus[Focus.OBSERVED]}
    for focus, check in of_focus.items():
        if focus is Focus.REPEATED:
            text = f"the same call gives another result after others: {check.note}"
            yield ExportFinding(Kind.UNSTABLE, "outputs", text)
            continue
        kind = Kind.REFUSED if check.outcome is Outcome.REJECTED else Kind.VALUES
        if focus in (Focus.SIZES, Focus.BOUNDS, Focus.GIVEN) and kind is Kind.VALUES:
            kind = Kind.WRONG
        where = _narrow_axis(check, fitted) if kind is Kind.REFUSED else ""
        label = "" if where == "" and focus is Focus.OBSERVED else f"{check.label}: "
        yield ExportFinding(kind, where or _where(check, basis), f"{label}{check.cause}")


def _narrow_axis(check: Check, fitted: Sequence[Fitted]) -> str:
    """The axis whose size in a refused call is not one that the file declares; of several the one
    that follows from others, whose range nobody thinks of.
    """
    sizes = dict(check.sizes)
    found: list[tuple[bool, str]] = []
    for one in fitted:
        if not set(sizes) >= set(symbol_names(one.graph.plan)):
            continue
        for axis, expression, declared in declared_axes(one):
            if not declared.allows(expression.evaluate(sizes)):
                found.append((expression.is_symbol, str(axis)))
    return min(found, default=(False, ""))[1]


def _where(check: Check, basis: ProgramAndModel) -> str:
    """Names what a trial changed: masks, floats, or else sizes."""
    if check.focus is Focus.PADDING:
        domains = domains_of(basis.kept)
        masks = [
            str(leaf.path)
            for graph in basis.contents.graphs
            for leaf in graph.plan.inputs
            if leaf.is_tensor and domains.of(leaf.path).is_mask
        ]
        return ", ".join(dict.fromkeys(masks)) or "masks"
    if check.focus is Focus.FLOATS:
        floats = [
            str(leaf.path)
            for graph in basis.contents.graphs
            for leaf in graph.plan.inputs
            if leaf.is_float
        ]
        return ", ".join(dict.fromkeys(floats))
    if check.focus is Focus.LEFT_OUT:
        return check.label.rpartition("without ")[2]
    return check.label if check.focus is Focus.OBSERVED else "sizes"
