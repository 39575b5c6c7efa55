"""How long inference takes when the model is not asked, and how that grows with calls, leaves and
axes.

    python benchmarks/inference.py [--quick] [--json FILE]

The calls are those of a decoder: every one has a longer cache, so that none is equal to another.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from functools import partial

from frame import Figure, main, seconds_of, with_profile

from onlooker.core.call import Call
from onlooker.core.path import Attr, Index, Name, Path
from onlooker.core.plan import Plan
from onlooker.core.spec import Axis, TensorSpec
from onlooker.core.structure import Structure, Tree
from onlooker.infer.build import build_plan
from onlooker.infer.mine import mine
from onlooker.infer.samples import Row, Table, table_of_forms
from onlooker.infer.unify import forms_of, union_of

CALLS, LEAVES, MOST_SECONDS = 10_000, 200, 2.0
AXES, ROWS = 500, 10
#: twice as much of something that is linear takes twice as long, and noise is allowed for
MOST_GROWTH = 2.5


def decoder_calls(calls: int, leaves: int) -> list[Call]:
    """The calls of a decoder with a cache, as an observer gives them: the structure is one
    object.
    """
    layers = (leaves - 2) // 2
    layer = Structure("Layer", (Attr("keys"), Attr("values")), (Structure(), Structure()))
    listed = Structure("list", tuple(map(Index, range(layers))), (layer,) * layers)
    cache = Structure("Cache", (Attr("layers"),), (listed,))
    names = (Name("input_ids"), Name("attention_mask"), Name("past_key_values"))
    structure = Structure("arguments", names, (Structure(), Structure(), cache))
    outputs = Tree(Structure(), (TensorSpec((1,), "torch.float32"),))
    return [
        Call(i, Tree(structure, _specs(2 + (i % 7 == 3), 10 + i, layers)), outputs)
        for i in range(calls)
    ]


def _specs(batch: int, past: int, layers: int) -> tuple[TensorSpec, ...]:
    tokens = TensorSpec((batch, 1), "torch.int64"), TensorSpec((batch, past + 1), "torch.int64")
    return *tokens, *(TensorSpec((batch, 2, past, 8), "torch.float32") for _ in range(2 * layers))


def plan_of(calls: list[Call]) -> Plan:
    """Calls -> Plan: forms, union, table, relations."""
    forms = forms_of(calls)
    return build_plan(union_of(forms), table_of_forms(forms), {})


def unrelated_table(axes: int, rows: int) -> Table:
    """Every axis changes by itself: the worst case, nothing can be laid aside."""
    draw = random.Random(0)
    columns = tuple(Axis(Path((Name(f"x{i}"),)), 1) for i in range(axes))
    return Table.of(
        columns,
        [Row(f"call {i}", {a: draw.randint(2, 5000) for a in columns}) for i in range(rows)],
    )


def related_table(axes: int, rows: int, classes: int = 5) -> Table:
    """Many axes in a few classes, as the caches of deep models have."""
    draw = random.Random(0)
    columns = tuple(Axis(Path((Name(f"x{i}"),)), 1) for i in range(axes))
    sizes = [[draw.randint(2, 5000) for _ in range(classes)] for _ in range(rows)]
    found = [
        Row(f"call {i}", {a: own[n % classes] for n, a in enumerate(columns)})
        for i, own in enumerate(sizes)
    ]
    return Table.of(columns, found)


def plan_figures(quick: bool) -> Iterator[Figure]:
    """Seconds for all calls, and how much more twice the calls or twice the leaves take."""
    calls, rounds = (CALLS // 10, 1) if quick else (CALLS, 3)
    whole = decoder_calls(calls, LEAVES)
    half, narrow = whole[::2], decoder_calls(calls, LEAVES // 2)
    seconds, by_calls, by_leaves = [], [], []
    plan_of(half)
    for _ in range(rounds):
        one = seconds_of(partial(plan_of, whole))
        seconds.append(one)
        by_calls.append(one / seconds_of(partial(plan_of, half)))
        by_leaves.append(one / seconds_of(partial(plan_of, narrow)))
    most = MOST_SECONDS * calls / CALLS
    found = Figure(
        f"inference of {calls:,} calls of {LEAVES} leaves", statistics.median(seconds), "s", most
    )
    yield with_profile(found, partial(plan_of, whole))
    yield Figure(
        "the same, growth for twice the calls", statistics.median(by_calls), "x", MOST_GROWTH
    )
    yield Figure(
        "the same, growth for twice the leaves", statistics.median(by_leaves), "x", MOST_GROWTH
    )


def relation_figures(quick: bool) -> Iterator[Figure]:
    """Seconds for all families of relations over axes that have none, and the growth for twice
    the axes.
    """
    axes = AXES // 5 if quick else AXES
    whole, half = unrelated_table(axes, ROWS), unrelated_table(axes // 2, ROWS)
    mine(half)
    pairs = [
        (seconds_of(partial(mine, whole)), seconds_of(partial(mine, half)))
        for _ in range(1 if quick else 3)
    ]
    seconds = statistics.median(one for one, _ in pairs)
    yield Figure(
        f"relations of {axes} axes in as many classes, {ROWS} rows",
        seconds,
        "s",
        note="the worst case",
    )
    growth = statistics.median(one / other for one, other in pairs)
    note = (
        "a question per pair of classes, answered by an index: 4 is quadratic, 8 would be all"
        " triples"
    )
    yield Figure("the same, growth for twice the classes", growth, "x", note=note)
    yield from _class_figures(axes)


def _class_figures(axes: int) -> Iterator[Figure]:
    """Axes in a few classes, as models have them: equal axes are laid together first."""
    few, half = related_table(axes, 60), related_table(axes // 2, 60)
    seconds, less = (
        statistics.median(seconds_of(partial(mine, table)) for _ in range(15))
        for table in (few, half)
    )
    yield Figure(f"relations of {axes} axes in 5 classes, 60 rows", 1000 * seconds, "ms")
    yield Figure(
        "the same, growth for twice the axes",
        seconds / less,
        "x",
        MOST_GROWTH,
        note="quadratic is 4",
    )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    yield from plan_figures(quick)
    yield from relation_figures(quick)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
