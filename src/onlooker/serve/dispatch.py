"""Finds the graph that serves a call, fills what the call does not have, and refuses what none can
serve.

The first call of a structure is opened and compared with every plan. What was found is kept: the
way to the leaves (:class:`~onlooker.pytrees.reopen.StructureReader`) and, per graph, from the leaves to its
inputs (:class:`~onlooker.serve.route.Route`). Further calls of that structure cost a small amount
per leaf.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch

from ..contract.checker import Checker
from ..core.call import Join, Signature
from ..core.contract import Contract, Region
from ..core.drawing.alike import first_few
from ..core.errors import OnlookerError, RejectedCallError
from ..core.path import Index, Path
from ..core.structure import Structure, Tree
from ..core.traffic import Violation, ViolationKind
from ..lab.memory import is_out_of_memory
from ..observing.bind import bind, python_signature
from ..pytrees.joins import join_tensors, joined, split_as
from ..pytrees.open import close_tree, opened_call
from ..pytrees.reopen import StructureReader, closer_of
from ..torch_internals.tensor_marks import memory_of
from ..trace.graph import Graph
from .broadcast import Expansion
from .marks import MarksOfCalls, order_violation
from .route import Mismatch, Route
from .undoing import Undoing

__all__ = ["Dispatcher", "Finish", "Mismatch"]

#: makes of a result what the caller gets, and may refuse
Finish = Callable[[dict[str, Any], Any], Any]
_Routes: TypeAlias = tuple[Route | Mismatch, ...]
_MOST_STRUCTURES = 1024


@dataclass(frozen=True, slots=True)
class _KnownCalls:
    """Calls that came before: how their leaves are read, and where each graph finds its inputs in them,
    by their structure. Of calls without a list that is joined, also by its number.
    """

    reader: StructureReader = field(default_factory=StructureReader)
    routes: dict[Structure, _Routes] = field(default_factory=dict)
    unjoined: dict[int, _Routes] = field(default_factory=dict)


class Dispatcher:
    """Serves calls of one method by the first graph that takes them."""

    def __init__(
        self, graphs: Sequence[Graph], signature: Signature, joins: Sequence[Join] = ()
    ) -> None:
        self.graphs: tuple[Graph, ...] = tuple(graphs)
        self.joins: tuple[Join, ...] = tuple(joins)
        self.signature = signature
        self._python = python_signature(signature)
        self._checkers = {graph.name: Checker(graph.plan, graph.contract) for graph in self.graphs}
        self._expansions = {graph.name: Expansion(graph.plan) for graph in self.graphs}
        self._ways = {graph.name: _checkers_of_ways(graph) for graph in self.graphs}
        #: what the tensors of a call must be beside their sizes, read from a graph at its first call
        self._marks: dict[str, MarksOfCalls | None] = {}
        self._closers = {graph.name: closer_of(graph.outputs.structure) for graph in self.graphs}
        self._unread = {graph.name: _unread_results(graph, self.joins) for graph in self.graphs}
        #: what a refusal has to undo, read from a graph at its first call; None for nothing
        self._undoing: dict[str, Undoing | None] = {}
        self._orders: dict[
            tuple[int, tuple[str, ...]], tuple[tuple[str, int | str], ...] | None
        ] = {}
        self._known = _KnownCalls()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call, in the classes of the model; as :meth:`serve`."""
        return self.serve(args, kwargs)[2]

    def serve(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], finish: Finish | None = None
    ) -> tuple[Graph, dict[str, Any], Any]:
        """The graph that took the call, the arguments by name, and the result in the classes of the
        model, as ``finish`` leaves it. A call that is refused, also by ``finish``, leaves the
        caller's tensors and the random state as they were.

        :raises RejectedCallError: ``call-does-not-bind``, ``call-refused`` with the reason of each
            graph
        :raises UnsupportedError: ``no-kernels`` for a graph that the runtime here cannot run
        """
        return self.serve_values(self.bound(args, kwargs), finish)

    def serve_values(
        self, values: dict[str, Any], finish: Finish | None = None
    ) -> tuple[Graph, dict[str, Any], Any]:
        """As :meth:`serve`, for arguments by name.

        :raises RejectedCallError: ``call-refused``
        :raises UnsupportedError: ``no-kernels``
        """
        leaves, routes, opened = self._opened(values)
        failed: dict[str, tuple[Violation, ...]] = {}
        for graph, route in zip(self.graphs, routes, strict=True):
            inputs = self._inputs(graph, route, leaves)
            if inputs is None:
                continue
            if graph.name not in self._undoing:
                self._undoing[graph.name] = Undoing.of(graph)
            undoing = self._undoing[graph.name]
            try:
                given = graph, inputs, undoing
                if undoing is None:
                    return graph, values, self._answer(*given, values, opened, finish)
                with undoing.on_refusal(inputs):
                    return graph, values, self._answer(*given, values, opened, finish)
            except Mismatch as mismatch:
                failed[graph.name] = mismatch.violations
        reasons = []
        hint = "Watch such a call and export again, or change the call."
        for graph, route in zip(self.graphs, routes, strict=True):
            reason = Mismatch(*failed.get(graph.name) or self._violations(graph, route, leaves))
            reasons.append(f"{graph.name}: {reason}" if len(self.graphs) > 1 else str(reason))
            if all(violation.kind is ViolationKind.BOUND for violation in reason.violations):
                hint = "The model itself refuses such sizes: change the call."
        if any(isinstance(leaf, np.ndarray) for leaf in leaves):
            hint = "The graphs take tensors: pass torch.from_numpy(array)."
        at_run = [one for found in failed.values() for one in found]
        refusal = RejectedCallError(
            f"No graph of this program takes the call. {'; '.join(reasons)}.",
            slug="call-refused",
            hint=hint,
        )
        refusal.reason = "; ".join(one.got for one in at_run if one.kind is ViolationKind.PROGRAM)
        raise refusal

    def taker(self, values: dict[str, Any]) -> Graph | None:
        """The graph that would serve the arguments; None where no graph takes them."""
        taken = self.taken(values)
        return None if taken is None else taken[0]

    def taken(self, values: dict[str, Any]) -> tuple[Graph, list[Any]] | None:
        """The graph that would serve the arguments, and its inputs, in the order of its plan; None
        where no graph takes them.
        """
        leaves, routes, _ = self._opened(values)
        for graph, route in zip(self.graphs, routes, strict=True):
            inputs = self._inputs(graph, route, leaves)
            if inputs is not None:
                return graph, inputs
        return None

    def run(self, graph: Graph, tree: Tree[Any]) -> Any:
        """The result of one graph; :class:`Mismatch` when it does not take the call."""
        route = _route(graph, tree.structure, self.signature)
        inputs = self._inputs(graph, route, tree.leaves)
        if inputs is None:
            raise Mismatch(*self._violations(graph, route, tree.leaves))
        undoing = Undoing.of(graph)
        with contextlib.nullcontext() if undoing is None else undoing.on_refusal(inputs):
            return self._close(graph, _results(graph, inputs, undoing))

    def _answer(
        self,
        graph: Graph,
        inputs: list[Any],
        undoing: Undoing | None,
        values: dict[str, Any],
        opened: Tree[Any] | None,
        finish: Finish | None,
    ) -> Any:
        """Returns the result that a graph gives to the caller."""
        results = self._handed_back(graph, _results(graph, inputs, undoing), values)
        result = self._close(graph, results, opened)
        return result if finish is None else finish(values, result)

    def violations(self, graph: Graph, tree: Tree[Any]) -> tuple[Violation, ...]:
        """Returns the reasons for which a graph does not take a call, whose tensors may be without
        values; nothing when it does.
        """
        route = _route(graph, tree.structure, self.signature)
        inputs = self._inputs(graph, route, tree.leaves)
        return self._violations(graph, route, tree.leaves) if inputs is None else ()

    def _inputs(
        self, graph: Graph, route: Route | Mismatch, leaves: Sequence[Any]
    ) -> list[Any] | None:
        """The inputs of a graph, which are in its contract; None for a call that the graph does
        not take.
        """
        if isinstance(route, Mismatch):
            return None
        try:
            inputs = route.inputs(leaves)
        except Mismatch:
            return None
        taken: list[Any] | None = inputs
        if not self._checker(graph, route, leaves)(inputs):
            taken = self._expanded(graph, route, leaves, inputs)
        if taken is None:
            return None
        name = graph.name
        marks = self._marks[name] if name in self._marks else self._marks_of(graph)
        return None if marks is not None and any(marks.violations(inputs)) else taken

    def _expanded(
        self, graph: Graph, route: Route, leaves: Sequence[Any], inputs: list[Any]
    ) -> list[Any] | None:
        """The inputs of a call that leaves out nothing, with those expanded that are of size 1 where the
        graph broadcasts; None where it does not take these either.
        """
        expansion = self._expansions[graph.name]
        if not expansion or not route.is_whole(leaves):
            return None
        expanded = expansion.of(inputs)
        if expanded is None or not self._checkers[graph.name](expanded):
            return None
        return expanded

    def _checker(self, graph: Graph, route: Route, leaves: Sequence[Any]) -> Checker:
        """Returns what checks the sizes of a call: those of the graph, or those of the way in which the
        call leaves out options, or tensors.
        """
        ways = self._ways[graph.name]
        absent = route.way_of(leaves) if ways else None
        return ways[absent] if absent else self._checkers[graph.name]

    def _marks_of(self, graph: Graph) -> MarksOfCalls | None:
        """Returns the marks that a graph needs the tensors of a call to have; None for nothing."""
        if graph.name not in self._marks:
            self._marks[graph.name] = MarksOfCalls(graph) or None
        return self._marks[graph.name]

    def _violations(
        self, graph: Graph, route: Route | Mismatch, leaves: Sequence[Any]
    ) -> tuple[Violation, ...]:
        """Returns the reasons for which :meth:`_inputs` has none; reasons are texts, and made for
        calls alone that no graph takes.
        """
        if isinstance(route, Mismatch):
            return route.violations
        try:
            inputs = route.inputs(leaves)
            found = tuple(self._checker(graph, route, leaves).violations(inputs))
            marks = self._marks_of(graph)
            return found or (tuple(marks.violations(inputs)) if marks is not None else ())
        except Mismatch as mismatch:
            return mismatch.violations

    def _handed_back(
        self, graph: Graph, leaves: list[Any], values: Mapping[str, Any]
    ) -> Sequence[Any]:
        """The leaves of a result, with the objects of this call where the model gives them back
        unread.
        """
        for position, path in self._unread[graph.name]:
            leaves[position] = path.follow(values)
        return leaves

    def _close(self, graph: Graph, leaves: Sequence[Any], opened: Tree[Any] | None = None) -> Any:
        """The result in the classes of the model; its lists as those of an ``opened`` call that
        was joined.
        """
        if opened is None:
            return self._closers[graph.name](leaves)
        made = Tree(graph.outputs.structure, tuple(leaves))
        result = split_as(opened, made, self.joins)
        return close_tree(result.structure, result.leaves)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in the order of the signature; the order is looked up once per way
        of calling.

        :raises RejectedCallError: ``call-does-not-bind``
        """
        key = (len(args), tuple(kwargs))
        order = self._orders.get(key)
        if order is not None:
            return {name: args[at] if type(at) is int else kwargs[at] for name, at in order}  # type: ignore[index]
        try:
            values, _ = bind(self._python, args, kwargs)
            if key not in self._orders and len(self._orders) < _MOST_STRUCTURES:
                self._orders[key] = self._order(*key)
        except TypeError as error:
            raise RejectedCallError(
                f"The call does not fit the signature of the model: {error}.",
                slug="call-does-not-bind",
            ) from error
        return values

    def _order(
        self, count: int, names: tuple[str, ...]
    ) -> tuple[tuple[str, int | str], ...] | None:
        """Returns the place of each argument of such a call; None when some are gathered in a
        tuple.
        """
        places, _ = bind(self._python, tuple(range(count)), {name: name for name in names})
        if any(type(place) is tuple for place in places.values()):
            return None
        return tuple(places.items())

    def _opened(self, values: dict[str, Any]) -> tuple[Sequence[Any], _Routes, Tree[Any] | None]:
        """The leaves of the arguments, and per graph the way from them to its inputs, or why
        there is none; then the arguments as they were, where lists were joined.
        """
        names, given = tuple(values), tuple(values.values())
        if len(self._known.routes) >= _MOST_STRUCTURES:
            self._known = _KnownCalls()
        known = self._known
        number, leaves = known.reader.open(names, given, lambda: opened_call(names, given))
        routes = known.unjoined.get(number)
        if routes is not None:
            return leaves, routes, None
        opened = Tree(known.reader.structures[number], tuple(leaves))
        tree = joined(opened, self.joins, join_tensors)
        if copied := self._copied_and_written(opened):
            return tree.leaves, (copied,) * len(self.graphs), opened
        routes = known.routes.get(tree.structure)
        if routes is None:
            routes = tuple(_route(graph, tree.structure, self.signature) for graph in self.graphs)
            known.routes[tree.structure] = routes
        if tree.structure == opened.structure and all(map(is_, tree.leaves, opened.leaves)):
            if not self._may_be_joined(opened):
                known.unjoined[number] = routes
            return tree.leaves, routes, None
        return tree.leaves, routes, opened

    def _may_be_joined(self, opened: Tree[Any]) -> bool:
        """True for a list of this structure that other items would make one tensor."""
        second = {(*join.path.entries, Index(1)) for join in self.joins if join.dim is not None}
        return any(path.entries in second for path, _ in opened.items())

    def _copied_and_written(self, opened: Tree[Any]) -> Mismatch | None:
        """The reason to refuse a call with a tensor in a list that is joined and beside it, where a graph
        writes to its inputs: the list has a copy, to which nothing is written.
        """
        lists = {join.path.entries for join in self.joins}
        if not lists:
            return None
        known = filter(None, map(self._marks_of, self.graphs))
        if not any(marks.written for marks in known):
            return None
        tensors = [item for item in opened.items() if isinstance(item[1], torch.Tensor)]
        inside = [path.entries[:-1] in lists for path, _ in tensors]
        beside = {
            memory_of(leaf): path
            for (path, leaf), is_in in zip(tensors, inside, strict=True)
            if not is_in
        }
        for (path, leaf), is_inside in zip(tensors, inside, strict=True):
            if is_inside and memory_of(leaf) in beside:
                expected = (
                    "a list of tensors that are no argument beside it, since the call writes to one"
                )
                found = f"{path}, which is {beside[memory_of(leaf)]}"
                return Mismatch(Violation(ViolationKind.CONDITION, "this graph", expected, found))
        return None


def _checkers_of_ways(graph: Graph) -> dict[frozenset[str], Checker]:
    """For which sizes a call may leave out arguments, by their names: options, tensors, or both."""
    regions = {frozenset(way.left_out): way.regions for way in graph.contract.ways}
    inputs = {leaf.path.root for leaf in graph.plan.inputs}
    for options, tensors in permutations(list(regions), 2):
        if options.isdisjoint(inputs) and tensors <= inputs:
            pairs = product(regions[options], regions[tensors])
            both = (one.constraints + other.constraints for one, other in pairs)
            regions[options | tensors] = tuple(map(Region, both))
    return {names: Checker(graph.plan, Contract(own)) for names, own in regions.items()}


def _unread_results(graph: Graph, joins: Sequence[Join]) -> list[tuple[int, Path]]:
    """Returns the leaves of the result that are objects of the call that the model does not read,
    and their places in the call.
    """
    given: dict[Path, Path] = {}
    for join in joins:
        if join.dim is None:
            given |= dict.fromkeys(join.results, join.path)
    if not given:
        return []
    paths = graph.outputs.structure.paths()
    return [(position, given[path]) for position, path in enumerate(paths) if path in given]


def _contiguous(graph: Graph, inputs: Sequence[Any]) -> list[Any] | None:
    """Copies of the inputs in the layout of an export, where one has another; None where that
    cannot help.

    A trace drops what has no effect in its own layout: ``x.contiguous().view(...)`` is a ``view``
    in the graph, which refuses what the model takes. A graph that writes to its inputs gets no
    copies.
    """
    tensors = [
        value
        for value in inputs
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
    ]
    writes = getattr(
        getattr(graph.artifact, "graph_signature", None), "user_inputs_to_mutate", None
    )
    if writes or graph.outputs.written or all(value.is_contiguous() for value in tensors):
        return None
    return [value.contiguous() if isinstance(value, torch.Tensor) else value for value in inputs]


def _route(graph: Graph, structure: Structure, signature: Signature) -> Route | Mismatch:
    reason = order_violation(graph.marks, graph.plan, structure, signature)
    if reason is not None:
        return Mismatch(reason)
    try:
        ways = [frozenset(way.left_out) for way in graph.contract.ways]
        return Route(graph.plan, structure, signature, ways, graph.marks)
    except Mismatch as mismatch:
        return mismatch


def _results(graph: Graph, inputs: list[Any], undoing: Undoing | None) -> list[Any]:
    """All leaves of the result. Where the graph fails with inputs in another layout than an export has,
    it runs once more, from where the first run began.
    """
    laid = None if undoing is None else _contiguous(graph, inputs)
    around: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if undoing is not None and laid is not None:
        around = undoing.on_refusal(inputs)
    try:
        with around:
            return graph(inputs)
    except OnlookerError:  # the graph cannot be run here, whatever the call
        raise
    except Exception as error:  # a graph may index or divide before it refuses
        if is_out_of_memory(error):
            raise
        laid = laid or _contiguous(graph, inputs)
        if laid is None:
            raise _refusal(graph, error) from error
    try:
        return graph(laid)
    except Exception as error:  # a graph may index or divide before it refuses
        if is_out_of_memory(error):
            raise
        raise _refusal(graph, error) from error


#: what runtimes say where an assertion about values does not hold: torch, ONNX Runtime by the name of
#: a node, and our runner of OpenVINO
_ASSERTIONS = (
    "Runtime assertion failed",
    "assertion_of_the_model",
    "an assertion of the model does not hold",
)
#: so many lines of the model are named
_MOST_LINES = 3


def _refusal(graph: Graph, error: Exception) -> Mismatch:
    """Returns the error of a graph that refused a call when it was run."""
    if any(words in str(error) for words in _ASSERTIONS):
        lines = first_few(graph.decided, _MOST_LINES, "{} more lines")
        return Mismatch(Violation(ViolationKind.VALUES, "the call", "; at ".join(lines), ""))
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return Mismatch(
        Violation(
            ViolationKind.PROGRAM,
            "the program",
            "",
            lines[0][:300] if lines else type(error).__name__,
        )
    )
