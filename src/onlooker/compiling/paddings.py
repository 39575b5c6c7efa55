"""A few sizes to which the calls of a compiled model are padded, where that gives the same results.

How it is found, for each graph of a program:

1. which symbols may be padded. The program runs calls as they are and padded, and the results are cut
   back. They must agree, and they must be the same bits whatever the padding holds: a mean over a padded
   axis, or a convolution that reads past the end, is found by one of the two.
2. the fewest sizes that waste no more work than is allowed (:mod:`onlooker.emit.buckets`). Calls whose
   other symbols differ are never padded to one size.
3. the same trials at each of these sizes, with calls of the traffic and with sizes that no call had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Values
from ..core.drawing.alike import counted
from ..core.errors import UnsupportedError, UsageError
from ..core.sizes.expression import Sizes
from ..core.structure import Tree
from ..core.support.kinds import is_number
from ..emit.buckets import Bucket, buckets_of
from ..emit.traffic import Row, Served
from ..lab.runner import opened
from ..materialise.arguments import Calls, close_arguments
from ..materialise.counting import sizes_of
from ..observing.bind import as_args_kwargs
from ..pytrees.comparisons.agree import agreement_of_trees
from ..pytrees.open import close_tree, copy_tensors, open_arguments
from ..pytrees.unread import open_result
from ..serve.route import Mismatch
from ..serve.runnable import RunnableProgram
from ..serve.undoing import Undoing
from ..trace.graph import Graph
from .marked import ArgumentsOf, replaced_method
from .padder import Padder, hiding_values, masks_of

__all__ = ["PaddedGraph", "Paddings", "find_paddings"]

#: so many calls are padded to find out whether a symbol may be padded
_MOST_TRIALS = 4


@dataclass(frozen=True, slots=True)
class PaddedGraph:
    """The sizes to which calls of one graph are padded. ``padded`` are the symbols that padding makes
    larger, ``fixed`` those that stay, each with the reason; ``trials`` is the number of calls for which
    padding was tried at these sizes.
    """

    name: str
    names: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    padded: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...]
    trials: int

    def bucket(self, row: tuple[int, ...]) -> Bucket | None:
        """The cheapest bucket for a call of these sizes; None where no bucket is large enough, or a symbol
        that stays would have to grow.
        """
        for bucket in self.buckets:
            sizes = zip(self.names, row, bucket.sizes, strict=True)
            if all(have == top or (have < top and n in self.padded) for n, have, top in sizes):
                return bucket
        return None

    def data(self) -> dict[str, Any]:
        """The sizes for JSON."""
        return {
            "graph": self.name,
            "buckets": [dict(zip(self.names, one.sizes, strict=True)) for one in self.buckets],
            "padded": list(self.padded),
            "fixed": dict(self.fixed),
            "trials": self.trials,
        }


class Paddings:
    """The sizes to which calls are padded, for each graph of a program.

    ``graphs`` are the sizes, ``wasted`` is the share of the work of all calls that is padding.

    >>> import torch, onlooker
    >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    >>> with observer(model), torch.no_grad():
    ...     _ = [model(torch.ones(size, 4)) for size in (2, 3, 4, 7, 8)]
    >>> paddings = observer.export().paddings(waste=0.2)
    >>> print(paddings)
    main: 2 sizes for 5 calls, 14.3 % of the work is padding
      batch=4: 3 calls
      batch=8: 2 calls
      padding of batch was tried for 3 calls
    >>> with paddings.installed(torch.compile(model, backend="eager", dynamic=False)) as compiled:
    ...     compiled(torch.ones(6, 4)).shape
    torch.Size([6, 2])
    """

    def __init__(
        self, program: RunnableProgram, graphs: Sequence[PaddedGraph], padders: Sequence[Padder]
    ) -> None:
        self.graphs = tuple(graphs)
        self._signature = program.contents.recording.signature
        self._method = program.contents.recording.method
        self._dispatcher = program.dispatcher
        self._ways = {
            graph.name: (graph, padder) for graph, padder in zip(graphs, padders, strict=True)
        }

    @property
    def wasted(self) -> float:
        """The share of the work of all calls that is padding, from 0 to 1."""
        return _share([bucket for graph in self.graphs for bucket in graph.buckets])

    def text(self) -> str:
        """The sizes of each graph, and what was tried."""
        return "".join(f"{line}\n" for graph in self.graphs for line in _lines(graph))

    def __str__(self) -> str:
        return self.text().rstrip("\n")

    def data(self) -> dict[str, Any]:
        """The sizes for JSON."""
        return {"wasted": self.wasted, "graphs": [graph.data() for graph in self.graphs]}

    @contextlib.contextmanager
    def installed(self, model: Any) -> Iterator[Any]:
        """Inside the block the calls of a compiled model are padded, and its results are cut back.

        ``model`` is as for :func:`onlooker.marked`; compile it with ``dynamic=False``, so that each size has
        a graph that knows it. A call for which no size is large enough runs as it is. On exit the model is
        as it was.

        :raises UsageError: ``not-compiled``
        """
        with replaced_method(model, self._method, self._padding):
            yield model

    def _padding(
        self, compiled: Callable[..., Any], arguments_of: ArgumentsOf
    ) -> Callable[..., Any]:
        """The method that pads, made of the compiled one."""

        def run(*args: Any, **kwargs: Any) -> Any:
            found = self._call(arguments_of(args, kwargs))
            if found is None:
                return compiled(*args, **kwargs)
            padder, values, sizes, top = found
            arguments = close_arguments(padder.graph.plan, padder.padded(values, top))
            more, named = as_args_kwargs(self._signature, arguments)
            tree = padder.cut(open_result(compiled(*more, **named)), sizes, top)
            if tree is None:
                return compiled(*args, **kwargs)
            return close_tree(tree.structure, tree.leaves)

        return run

    def _call(self, arguments: dict[str, Any]) -> tuple[Padder, Values, Sizes, Sizes] | None:
        """How a call is padded: its values by the paths of the graph, its sizes and the larger ones;
        None where it is not.
        """
        taken = self._dispatcher.taken(arguments)
        if taken is None or taken[0].name not in self._ways:
            return None
        graph, inputs = taken
        sized, padder = self._ways[graph.name]
        given = dict(open_arguments(arguments).items())
        constants = {
            leaf.path: given.get(leaf.path, leaf.constant and leaf.constant.value)
            for leaf in graph.plan.leaves
        }
        paths = (leaf.path for leaf in graph.plan.inputs)
        values = {**constants, **dict(zip(paths, inputs, strict=True))}
        sizes = sizes_of(graph.plan, values)
        bucket = sized.bucket(tuple(sizes[name] for name in sized.names))
        if bucket is None:
            return None
        return padder, values, sizes, dict(zip(sized.names, bucket.sizes, strict=True))


def find_paddings(program: RunnableProgram, graphs: Sequence[Served], waste: float) -> Paddings:
    """The fewest sizes that waste at most the share ``waste`` of the work, for each graph with calls.

    :raises UsageError: ``bad-waste``
    :raises ObservationError: ``no-values``
    :raises UnsupportedError: ``padding-not-exact`` where no symbol of any graph may be padded
    """
    if not (is_number(waste) and 0 <= waste < 1):
        raise UsageError(
            f"waste is {waste!r}.",
            slug="bad-waste",
            hint="Give the share of the work that may be padding, from 0 to less than 1.",
        )
    found, padders = [], []
    for served in graphs:
        if not served.rows:
            continue
        graph = next(each for each in program.contents.graphs if each.plan is served.plan)
        trials = _Trials(program, graph, served)
        padded, padder = trials.chosen()
        sized = _sized(served, padded, waste)
        tried, reason = trials.at(padder, sized)
        if reason:  # symbols that are exact alone are not so together
            trials.reasons |= dict.fromkeys(padded, reason)
            sized, tried = _sized(served, (), waste), 0
        fixed = tuple(
            (name, trials.reasons[name]) for name in _moving(served) if name not in sized.padded
        )
        found.append(replace(sized, fixed=fixed, trials=tried))
        padders.append(padder)
    if not any(graph.padded for graph in found):
        reasons = [f"{name}: {why}" for graph in found for name, why in graph.fixed]
        raise UnsupportedError(
            "No calls can be padded with the same results: "
            + ("; ".join(dict.fromkeys(reasons)) or "no size changes")
            + ".",
            slug="padding-not-exact",
            hint="Give the model a mask or lengths that hide the padding, and watch calls with them.",
        )
    return Paddings(program, found, padders)


class _Trials:
    """Calls of one graph, as they are and padded. ``reasons`` says for each symbol that may not be padded
    why.
    """

    def __init__(self, program: RunnableProgram, graph: Graph, served: Served) -> None:
        self._dispatcher, self._graph, self._served = program.dispatcher, graph, served
        self._calls = Calls(graph.plan, program.kept)
        self.reasons: dict[str, str] = {}
        self._unable = _unable(program, graph)

    def chosen(self) -> tuple[tuple[str, ...], Padder]:
        """The symbols that may be padded, and the way of padding for which most may."""
        best: tuple[tuple[str, ...], Padder] | None = None
        for masks in hiding_values(masks_of(self._calls)):
            padder = Padder(self._graph, masks)
            reasons = {name: self._alone(padder, name) for name in _moving(self._served)}
            padded = tuple(name for name, reason in reasons.items() if not reason)
            if best is None or len(padded) > len(best[0]):
                best, self.reasons = (padded, padder), reasons
        assert best is not None
        return best

    def _alone(self, padder: Padder, name: str) -> str:
        """Why one symbol may not be padded; empty where it may."""
        place = self._served.names.index(name)
        most = max(row[place] for row, _ in self._served.rows)
        grown = [(row, (*row[:place], most, *row[place + 1 :])) for row, _ in self._served.rows]
        pairs = [(row, top) for row, top in grown if row != top and self._served.takes(top)]
        if not pairs:
            return "no call can be padded to the sizes of another"
        reasons = (self._reason(padder, row, top) for row, top in pairs[:_MOST_TRIALS])
        return next(filter(None, reasons), "")

    def at(self, padder: Padder, sized: PaddedGraph) -> tuple[int, str]:
        """The number of calls that were tried with the sizes of buckets, and why the last one may not be
        padded.
        """
        count = 0
        for bucket in sized.buckets:
            for row in _rows_for(self._served, sized, bucket):
                count += 1
                reason = self._reason(padder, row, bucket.sizes)
                if reason:
                    return count, reason
        return count, ""

    def _reason(self, padder: Padder, row: tuple[int, ...], top: tuple[int, ...]) -> str:
        """Why a call of some sizes may not be padded to others; empty where it may."""
        if self._unable:
            return self._unable
        sizes, larger = self._served.sizes(row), self._served.sizes(top)
        values = self._calls.values(sizes)
        try:
            expected = self._run(values)
            results = [
                padder.cut(self._run(padder.padded(values, larger, halved=halved)), sizes, larger)
                for halved in (False, True)
            ]
        except Mismatch as mismatch:
            return f"the program refuses a padded call: {mismatch}"
        last, other = results
        if last is None or other is None:
            return "padded calls give results of another form"
        agrees = agreement_of_trees(expected, last)
        if not agrees.holds:
            return f"padded calls give other results: {agrees.note}"
        if not all(map(_is_same, last.leaves, other.leaves)):
            return "results depend on what stands in the padding"
        return ""

    def _run(self, values: Values) -> Tree[Any]:
        """The result of the graph.

        :raises Mismatch: where the graph does not take the call
        """
        arguments = copy_tensors(close_arguments(self._graph.plan, values))
        return opened(self._dispatcher.run(self._graph, open_arguments(arguments)))


def _unable(program: RunnableProgram, graph: Graph) -> str:
    """Why no call of a graph can be padded, whatever its sizes; empty where some may be."""
    contents, outputs = program.contents, graph.outputs
    if contents.changed or program.state is not None or Undoing.of(graph) is not None:
        return "calls change their arguments or the model"
    if contents.joins:
        return "lists of tensors count as one"
    if len(outputs.kinds) != outputs.dynamic.count(True) or any("?" in s for _, s in outputs.kinds):
        return "the sizes of the results are not known"
    return ""


def _is_same(left: Any, right: Any) -> bool:
    """True for the same bits; NaN is the same as NaN."""
    if not isinstance(left, torch.Tensor):
        return bool(left == right)
    return torch.equal(left, right) or torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)


def _moving(served: Served) -> list[str]:
    """The symbols of which calls have several sizes."""
    rows = [row for row, _ in served.rows]
    return [
        name
        for name, sizes in zip(served.names, zip(*rows, strict=True), strict=True)
        if len({*sizes}) > 1
    ]


def _sized(served: Served, padded: Collection[str], waste: float) -> PaddedGraph:
    """The fewest sizes for the calls of a graph that waste no more than a share of the work.

    Calls with other sizes of the symbols that stay are kept apart. Each such group begins with one
    bucket; then the group in which another bucket saves most is given one, until little enough is
    wasted.
    """
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row, calls in served.rows:
        stays = tuple(
            size for name, size in zip(served.names, row, strict=True) if name not in padded
        )
        groups.setdefault(stays, []).append((row, calls))
    parts = [
        replace(served, traffic=replace(served.traffic, rows=tuple(rows)))
        for rows in groups.values()
    ]
    chosen = [buckets_of(part, 1) for part in parts]
    while _share([bucket for own in chosen for bucket in own]) > waste:
        finer = [buckets_of(part, len(own) + 1) for part, own in zip(parts, chosen, strict=True)]
        saved = [_wasted(own) - _wasted(more) for own, more in zip(chosen, finer, strict=True)]
        best = max(range(len(parts)), key=saved.__getitem__)
        if saved[best] <= 0:
            break
        chosen[best] = finer[best]
    buckets = sorted(
        (bucket for own in chosen for bucket in own),
        key=lambda bucket: (served.work(bucket.sizes), bucket.sizes),
    )
    names = tuple(name for name in served.names if name in padded)
    return PaddedGraph(served.plan.name, served.names, tuple(buckets), names, (), 0)


def _rows_for(served: Served, sized: PaddedGraph, bucket: Bucket) -> list[tuple[int, ...]]:
    """The sizes that are tried for a bucket: the least and the greatest of the calls that are padded to it,
    and sizes that no call had, in which each padded symbol is one less, or half as large.
    """
    own = sorted(row for row, _ in served.rows if sized.bucket(row) is bucket)
    grows = [name in sized.padded for name in sized.names]
    sizes = list(zip(bucket.sizes, grows, strict=True))
    one_less = tuple(size - 1 if padded else size for size, padded in sizes)
    half = tuple(size // 2 if padded else size for size, padded in sizes)
    found: list[tuple[int, ...]] = []
    for row in (own[0], own[-1], one_less, half):
        is_padded = row != bucket.sizes and served.takes(row) and sized.bucket(row) is bucket
        if is_padded and row not in found:
            found.append(row)
    return found


def _wasted(buckets: Sequence[Bucket]) -> int:
    return sum(bucket.wasted for bucket in buckets)


def _share(buckets: Sequence[Bucket]) -> float:
    """The share of all work that is padding."""
    wasted = _wasted(buckets)
    return wasted / max(1, wasted + sum(bucket.work for bucket in buckets))


def _lines(graph: PaddedGraph) -> Iterator[str]:
    """The lines of one graph."""
    count = len(graph.buckets)
    calls = sum(bucket.calls for bucket in graph.buckets)
    sizes = counted(count, "size")
    share = 100 * _share(graph.buckets)
    yield f"{graph.name}: {sizes} for {calls} calls, {share:.1f} % of the work is padding"
    for bucket in graph.buckets:
        row = ", ".join(f"{n}={s}" for n, s in zip(graph.names, bucket.sizes, strict=True))
        yield f"  {row}: {bucket.calls} calls"
    if graph.padded:
        yield f"  padding of {', '.join(graph.padded)} was tried for {graph.trials} calls"
    for name, why in graph.fixed:
        yield f"  {name} is not padded: {why}"
