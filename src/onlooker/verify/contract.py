"""What the graphs of a program promise to take, decided on the specs of a call: nothing is run.

The rules are those by which a call finds its graph (:mod:`onlooker.export.dispatch`), and those by which an
exported program checks its inputs: equal axes are equal, sums are sums, sizes stay in their ranges and steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.call import Signature
from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import LeafPlan, Symbol
from ..core.spec import Axis, ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import Tree
from ..core.traffic import Breach, BreachKind, CheckedCall
from ..export.graph import Graph

__all__ = ["breaches_of", "checked"]


def checked(graphs: Sequence[Graph], signature: Signature, inputs: Tree[Spec], index: int, count: int) -> CheckedCall:
    """The first graph that takes a call with these inputs, else the breaches of the nearest one."""
    nearest: CheckedCall | None = None
    for graph in graphs:
        found = tuple(breaches_of(graph, inputs, signature))
        if not found:
            return CheckedCall(index, graph.name, (), count)
        if nearest is None or len(found) < len(nearest.breaches):
            nearest = CheckedCall(index, graph.name, found, count)
    return nearest or CheckedCall(index, "", (Breach(BreachKind.SIGNATURE, "the program", "a graph", "none"),), count)


def breaches_of(graph: Graph, inputs: Tree[Spec], signature: Signature) -> Iterator[Breach]:
    """Why a graph does not take a call; nothing when it does."""
    given = dict(inputs.items())
    sizes = _Sizes(graph)
    missing: list[LeafPlan] = []
    for leaf in graph.plan.leaves:
        spec = given.pop(leaf.path, None)
        if leaf.is_constant:
            yield from _constant(graph, leaf, spec, signature)
        elif spec is None or (isinstance(spec, ConstantSpec) and spec.value is None):
            missing.append(leaf)
        else:
            yield from _input(leaf, spec, sizes)
    yield from _rest(given, signature)
    for leaf in missing:
        if leaf.fill is None:
            yield Breach(BreachKind.ABSENT, str(leaf.path), "given, as in every observed call", "nothing")
        elif leaf.fill.kind == "empty" and leaf.fill.dim is not None:
            sizes.add(Axis(leaf.path, leaf.fill.dim), leaf.shape[leaf.fill.dim], 0)
        elif leaf.value is not None:
            sizes.add(Axis(leaf.path, None), leaf.value, leaf.fill.value)
    yield from sizes.breaches()


def _input(leaf: LeafPlan, spec: Spec, sizes: _Sizes) -> Iterator[Breach]:
    if not leaf.is_tensor:
        if not isinstance(spec, ConstantSpec) or not isinstance(spec.value, int) or not spec.is_int:
            yield Breach(BreachKind.TYPE, str(leaf.path), "an int", str(spec))
        elif leaf.value is not None:
            sizes.add(Axis(leaf.path, None), leaf.value, spec.value)
        return
    if not isinstance(spec, TensorSpec) or spec.dtype != leaf.dtype or len(spec.shape) != len(leaf.shape):
        kind = f"{leaf.dtype.removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"
        yield Breach(BreachKind.TYPE, str(leaf.path), kind, str(spec))
        return
    for dim, (expression, size) in enumerate(zip(leaf.shape, spec.shape, strict=True)):
        sizes.add(Axis(leaf.path, dim), expression, size)


def _constant(graph: Graph, leaf: LeafPlan, spec: Spec | None, signature: Signature) -> Iterator[Breach]:
    baked = leaf.constant or leaf.opaque
    if baked is None:
        return
    if spec is not None:
        if spec != baked:
            came = spec.beside(baked) if isinstance(spec, OpaqueSpec) else str(spec)
            yield Breach(BreachKind.CONSTANT, str(leaf.path), str(baked), came)
        return
    parameter = signature.get(leaf.path.root)
    default = parameter.default if parameter is not None else None
    if leaf.calls == len(graph.plan.calls) and default != baked and baked != ConstantSpec(None):
        yield Breach(BreachKind.CONSTANT, str(leaf.path), str(baked), "nothing")


def _rest(given: Mapping[Path, Spec], signature: Signature) -> Iterator[Breach]:
    """What a graph has no place for must be nothing, or what the signature says anyway."""
    for path, spec in given.items():
        parameter = signature.get(path.root)
        is_none = isinstance(spec, ConstantSpec) and spec.value is None
        is_empty = isinstance(spec, TensorSpec) and 0 in spec.shape
        if is_none or is_empty or (parameter is not None and parameter.default == spec):
            continue
        yield Breach(BreachKind.UNKNOWN, str(path), "left out", str(spec))


class _Sizes:
    """The sizes of one call, axis by axis, and the symbols that they settle."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._axes: list[tuple[Axis, Expression, int]] = []
        self._known: dict[str, tuple[int, Axis]] = {}

    def add(self, axis: Axis, expression: Expression, size: int) -> None:
        """Notes the size of one axis."""
        self._axes.append((axis, expression, size))
        if expression.is_symbol:
            self._known.setdefault(str(expression), (size, axis))

    def breaches(self) -> Iterator[Breach]:
        """What does not fit: constants, then symbols, then what follows from them."""
        self._solve()
        for axis, expression, size in self._axes:
            yield from self._of_axis(axis, expression, size)
        for symbol in self._graph.plan.symbols:
            if symbol.name in self._known:
                yield from self._of_symbol(symbol, *self._known[symbol.name])

    def _solve(self) -> None:
        """Settles symbols that stand alone nowhere, from an expression in which they are the only unknown."""
        for axis, expression, size in self._axes:
            unknown = [name for name in expression.symbols if name not in self._known]
            if len(unknown) != 1:
                continue
            sizes = {name: known for name, (known, _) in self._known.items()}
            at_zero, at_one = (expression.evaluate({**sizes, unknown[0]: n}) for n in (0, 1))
            rise = at_one - at_zero
            if rise and (size - at_zero) % rise == 0:
                self._known[unknown[0]] = ((size - at_zero) // rise, axis)

    def _of_axis(self, axis: Axis, expression: Expression, size: int) -> Iterator[Breach]:
        obtained = self._graph.obtained.get(str(axis), "")
        fixed = int(obtained) if obtained.isdigit() else None
        if expression.is_constant and axis.dim is not None:
            fixed = expression.evaluate({})
        if fixed is not None:
            if size != fixed:
                yield Breach(BreachKind.SIZE, str(axis), str(fixed), str(size))
            return
        sizes = {name: known for name, (known, _) in self._known.items()}
        if expression.is_constant or not set(expression.symbols) <= set(sizes):
            return
        wanted = expression.evaluate(sizes)
        if wanted != size:
            where = ", ".join(f"{name} = {sizes[name]} in {self._known[name][1]}" for name in expression.symbols)
            yield Breach(BreachKind.RELATION, str(axis), str(expression), f"{size} with {where}")
        elif not expression.is_symbol:
            yield from _out_of(self._graph.ranges.get(str(expression)), str(axis), str(expression), size)

    def _of_symbol(self, symbol: Symbol, size: int, axis: Axis) -> Iterator[Breach]:
        limits = self._graph.ranges.get(symbol.name, (symbol.low, symbol.high))
        yield from _out_of(limits, str(axis), symbol.name, size)
        if size % symbol.step:
            yield Breach(BreachKind.STEP, str(axis), f"{symbol.name} in steps of {symbol.step}", str(size))


def _out_of(limits: tuple[int, int | None] | None, axis: str, name: str, size: int) -> Iterator[Breach]:
    low, high = limits if limits is not None else (0, None)
    if size < low or (high is not None and size > high):
        until = "" if high is None else f" to {high}"
        yield Breach(BreachKind.RANGE, axis, f"{name} from {low}{until}", str(size))
