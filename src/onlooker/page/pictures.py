"""Makes the data of each picture of a page, as numbers and texts; no picture knows another one's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from ..core.drawing.alike import folded
from ..core.plan import Relation, Symbol, symbol_names
from ..core.sizes.expression import Expression
from ..core.sizes.formula import bounds_in
from ..core.verdict import Check
from ..emit.buckets import Bucket, buckets_of, moving_places, share_of_padding
from ..emit.traffic import Row, Served
from .columns import SizeColumn, sizes_at
from .subject import KnownGraph, Subject

__all__ = ["guards_of", "joints_of", "proof_of", "relations_of", "spans_of", "waste_of"]

#: symbols of which every pair is a picture
_MOST_SYMBOLS = 4
#: relations that are drawn
_MOST_RELATIONS = 12
#: points of one relation; of more, every so many-th
_MOST_POINTS = 1500
#: the numbers of buckets that are compared
_BUCKETS = (1, 2, 4, 8)
#: sizes that buckets are made of, where one symbol changes, and where several do
_MOST_SIZES, _MOST_SIZES_TOGETHER = 256, 32


def joints_of(subject: Subject, columns: Sequence[SizeColumn]) -> list[dict[str, Any]]:
    """Pairs of symbols: where the columns stand, the range of each graph, and the sizes that were
    tried.
    """
    symbols = [place for place, column in enumerate(columns) if column.is_symbol]
    symbols.sort(key=lambda place: -len(columns[place].seen))
    checks = subject.tally.checks if subject.tally is not None else ()
    found = []
    for pair in combinations(sorted(symbols[:_MOST_SYMBOLS]), 2):
        names = columns[pair[0]].text, columns[pair[1]].text
        boxes = []
        for place, graph in enumerate(subject.graphs):
            limits = _limits(graph)
            if graph.report is not None and all(name in limits for name in names):
                x, y = (limits[name] for name in names)
                boxes.append({"graph": place, "x": x, "y": y})
        found.append({"x": pair[0], "y": pair[1], "boxes": boxes, "tried": _tried(checks, names)})
    return found


def _limits(graph: KnownGraph) -> dict[str, list[int | None]]:
    """The least and the greatest size of each symbol, None where nothing limits it: those of the
    plan, and of conditions that every region of the contract has and that compare one symbol with a
    number. Other conditions are guards alone.
    """
    found: dict[str, list[int | None]] = {
        symbol.name: [symbol.low, symbol.high] for symbol in graph.plan.symbols
    }
    for constraint in graph.contract.constraints:
        name, low, high = bounds_in(constraint.formula) or ("", None, None)
        if name in found and high is not None:
            most = found[name][1]
            found[name][1] = high if most is None else min(high, most)
        if name in found and low is not None:
            found[name][0] = max(low, found[name][0] or 0)
    return found


def _tried(checks: Iterable[Check], names: Sequence[str]) -> list[list[Any]]:
    """Sizes of trials: those of the symbols, how many trials passed there, and how many did not."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for check in checks:
        sizes = dict(check.sizes)
        if all(name in sizes for name in names):
            count = counts.setdefault(tuple(sizes[name] for name in names), [0, 0])
            count[0 if check.passed else 1] += 1
    return [[*sizes, *count] for sizes, count in sorted(counts.items())]


def relations_of(subject: Subject) -> list[dict[str, Any]]:
    """Relations that are more than an equality: the value of the right side and the size of the
    left one, in every call.
    """
    found = []
    for place, graph in enumerate(subject.graphs):
        groups: dict[str, list[Relation]] = {}
        for relation in graph.plan.relations:
            if relation.family != "equal" and not relation.right.is_constant:
                groups.setdefault(f"{relation.family} {relation.right}", []).append(relation)
        own = [index for index, graph_of in enumerate(subject.graph_of) if graph_of == place]
        for relations in groups.values():
            found.append(_scatter(subject, place, relations, own))
    return found[:_MOST_RELATIONS]


def _scatter(
    subject: Subject, place: int, relations: Sequence[Relation], own: Sequence[int]
) -> dict[str, Any]:
    first = relations[0]
    lefts = sizes_at([one.left for one in relations], [subject.calls[index] for index in own])
    symbols = first.right.symbols
    points: Counter[tuple[int, int]] = Counter()
    values: dict[tuple[int, ...], int] = {}
    for index, left in zip(own, lefts, strict=True):
        sizes = subject.sizes[index]
        if left is None or not all(name in sizes for name in symbols):
            continue
        key = tuple(sizes[name] for name in symbols)
        if key not in values:
            values[key] = first.right.evaluate(sizes)
        x = key[0] if len(symbols) == 1 else values[key]
        points[x, left] += subject.calls[index].count
    step = len(points) // _MOST_POINTS + 1
    shown = [[*point, count] for point, count in sorted(points.items())]
    return {
        "graph": place,
        "texts": folded(map(str, relations)),
        "evidence": str(first.evidence),
        "x": symbols[0] if len(symbols) == 1 else str(first.right),
        "y": folded(str(one.left) for one in relations)[0],
        "points": shown[::step],
        "left_out": len(shown) - len(shown[::step]),
        "line": _line(first, [point[0] for point in shown]),
    }


def _line(relation: Relation, xs: Sequence[int]) -> list[list[int]]:
    """Points of what the relation says, over the range of the calls; none for a divisibility."""
    if not xs or relation.family == "divisible":
        return []
    low, high = min(xs), max(xs)
    places = sorted({low + (high - low) * part // 40 for part in range(41)})
    if len(relation.right.symbols) > 1:
        return [[x, x] for x in places]
    (name,) = relation.right.symbols
    return [[x, relation.right.evaluate({name: x})] for x in places]


def spans_of(subject: Subject) -> list[dict[str, Any]]:
    """Per graph and axis what was observed, what was asked for, and what was obtained."""
    found = []
    for place, graph in enumerate(subject.graphs):
        ranges = {symbol.name: symbol for symbol in graph.plan.symbols}
        groups: dict[tuple[str, str], list[str]] = {}
        for leaf in graph.plan.inputs:
            for axis, expression in leaf.axes:
                obtained = graph.exported.get(str(axis), "")
                groups.setdefault((str(expression), obtained), []).append(str(axis))
        for (asked, obtained), axes in groups.items():
            found.append(
                {
                    "graph": place,
                    "axes": folded(axes),
                    "asked": asked,
                    "obtained": obtained,
                    **_span(asked, ranges),
                }
            )
    return found


def _span(asked: str, ranges: Mapping[str, Symbol]) -> dict[str, Any]:
    """The sizes of a symbol that were observed and are allowed; of another axis its number, or
    nothing.
    """
    symbol = ranges.get(asked)
    if symbol is not None:
        high = symbol.high
        return {
            "seen": list(symbol.observed),
            "low": symbol.low,
            "high": high,
            "open": high is None,
        }
    expression = Expression.parse(asked)
    if not expression.is_constant:
        return {"seen": [], "low": None, "high": None, "open": False}
    size = expression.evaluate({})
    return {"seen": [size], "low": size, "high": size, "open": False}


def proof_of(subject: Subject, columns: Sequence[SizeColumn]) -> dict[str, Any]:
    """The sizes of all trials. ``without`` are trials that name no sizes: those of watched calls,
    with the number that passed.
    """
    checks = subject.tally.checks if subject.tally is not None else ()
    names = [column.text for column in columns if column.is_symbol]
    spread = {
        name: len({dict(c.sizes)[name] for c in checks if name in dict(c.sizes)}) for name in names
    }
    axes = sorted((name for name in names if spread[name]), key=lambda name: -spread[name])[:2]
    sized = [check for check in checks if axes and all(name in dict(check.sizes) for name in axes)]
    others = [check for check in checks if check not in sized]
    return {
        "axes": axes,
        "cells": _tried(sized, axes),
        "without": [sum(c.passed for c in others), sum(not c.passed for c in others)],
        "refused": list(subject.tally.refused) if subject.tally is not None else [],
    }


def guards_of(subject: Subject) -> list[dict[str, Any]]:
    """The conditions of each graph with the line of the model, and how many calls lie on either side:
    of those that any graph takes.
    """
    found = []
    for place, graph in enumerate(subject.graphs):
        if graph.report is None:
            continue
        constraints = {
            (one.formula, one.line): one
            for region in graph.contract.regions
            for one in region.constraints
        }
        names = set(symbol_names(graph.plan))
        for row in graph.report.conditions:
            sides = [0, 0]
            constraint = constraints[row.formula, row.line]
            for call, sizes in zip(subject.calls, subject.sizes, strict=True):
                if names <= sizes.keys():
                    sides[0 if constraint.holds(sizes) else 1] += call.count
            found.append(
                {
                    "graph": place,
                    "condition": row.formula,
                    "otherwise": row.otherwise,
                    "origin": row.origin,
                    "line": row.line,
                    "fates": [str(fate) for fate in row.fates],
                    "sides": sides,
                }
            )
    return found


def waste_of(subject: Subject) -> list[dict[str, Any]]:
    """Per graph the share of work that is padding, for some numbers of buckets."""
    found = []
    for place, graph in enumerate(subject.graphs):
        served, is_rounded = _rounded(graph.served)
        if len(served.rows) < 2:
            continue
        steps: dict[int, dict[str, Any]] = {}
        for count in _BUCKETS:
            buckets = buckets_of(served, count)
            share = share_of_padding(buckets)
            tops = [_top(served, bucket) for bucket in buckets]
            steps.setdefault(len(buckets), {"count": len(buckets), "share": share, "tops": tops})
        found.append({"graph": place, "rounded": is_rounded, "steps": list(steps.values())})
    return found


def _top(served: Served, bucket: Bucket) -> list[Any]:
    """The sizes of a bucket in words, and the number of its calls."""
    sizes = served.sizes(bucket.sizes).items()
    return [", ".join(f"{name}={size}" for name, size in sizes), bucket.calls]


def _rounded(served: Served) -> tuple[Served, bool]:
    """The traffic with few enough sizes that buckets are found at once: neighbours are taken
    together, each group as the greatest of its sizes; a group of which the graph takes no such size
    stays apart.
    """
    from dataclasses import replace

    rows = sorted(served.rows)
    moving = moving_places(served)
    most = _MOST_SIZES if len(moving) <= 1 else _MOST_SIZES_TOGETHER
    if len(rows) <= most:
        return served, False
    size = -(-len(rows) // most)
    merged: list[Row] = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        top = tuple(max(row[place] for row, _ in group) for place in range(len(served.names)))
        merged += [(top, sum(count for _, count in group))] if served.takes(top) else group
    traffic = replace(served.traffic, rows=tuple(merged))
    return replace(served, traffic=traffic), True
