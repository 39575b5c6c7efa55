"""From calls to a plan, in pure Python: forms, tables, relations, names and sizes."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlooker.core.call import Call
from onlooker.core.errors import ExportError, UsageError
from onlooker.core.path import Attr, Index, Key, Name, Path, label_of
from onlooker.core.plan import Evidence, Fill, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis, ConstantSpec, OpaqueSpec, Spec, TensorSpec
from onlooker.core.structure import Structure, Tree
from onlooker.infer.build import build_plan
from onlooker.infer.mine import Mined, mine
from onlooker.infer.name import names_of
from onlooker.infer.relations import FAMILIES, Column, Grid, RelationFamily, group_equal, step_of
from onlooker.infer.relations.difference import FixedDifference
from onlooker.infer.relations.multiple import Multiple
from onlooker.infer.relations.offset import Offset
from onlooker.infer.relations.total import Total
from onlooker.infer.samples import Row, Table, axes_of, table_of
from onlooker.infer.sizes import Scale, choose_sizes, expressed_sizes, observed_sizes, static_sizes, trial_sizes
from onlooker.infer.unify import find_conflict, forms_of, growing_dim, union_of
from plans import expression_of, plan_with

# calls made by hand


def path_of(code: str) -> Path:
    """``cache.layers.0.keys`` as a path."""
    first, *steps = code.split(".")
    return Path((Name(first), *(Index(int(step)) if step.isdigit() else Attr(step) for step in steps)))


def floats(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "torch.float32")


def ids(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "torch.int64")


def cache_of(*shapes: TensorSpec) -> tuple[Structure, tuple[Spec, ...]]:
    """A cache of layers with keys and values of these shapes."""
    layer = Structure("Layer", (Attr("keys"), Attr("values")), (Structure(), Structure()))
    layers = Structure("list", tuple(map(Index, range(len(shapes)))), (layer,) * len(shapes))
    return Structure("Cache", (Attr("layers"),), (layers,)), tuple(spec for shape in shapes for spec in (shape, shape))


def call_of(index: int, /, **arguments: Spec | tuple[Structure, tuple[Spec, ...]]) -> Call:
    opened = [a if isinstance(a, tuple) else (Structure(), (a,)) for a in arguments.values()]
    structure = Structure("arguments", tuple(map(Name, arguments)), tuple(structure for structure, _ in opened))
    leaves = tuple(leaf for _, group in opened for leaf in group)
    return Call(index, Tree(structure, leaves), Tree(Structure(), (floats(1),)))


def prefill(index: int, batch: int, tokens: int) -> Call:
    return call_of(index, input_ids=ids(batch, tokens), attention_mask=ids(batch, tokens))


def decode(index: int, batch: int, past: int, tokens: int = 1) -> Call:
    cache = cache_of(floats(batch, 2, past, 8), floats(batch, 2, past, 8))
    return call_of(index, input_ids=ids(batch, tokens), attention_mask=ids(batch, past + tokens), past_key_values=cache)


# forms and their union


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (floats(2, 3), floats(4, 5), True),
        (floats(2, 3), floats(2), False),
        (floats(2, 3), ids(2, 3), False),
        (floats(2), TensorSpec((2,), "torch.float32", "cuda:0"), False),
        (floats(2), ConstantSpec(None), False),
        (ConstantSpec(1), ConstantSpec(7), True),
        (ConstantSpec(1), ConstantSpec(True), False),
        (ConstantSpec(True), ConstantSpec(False), False),
        (ConstantSpec("a"), ConstantSpec("b"), False),
        (ConstantSpec(0.5), ConstantSpec(0.5), True),
        (cache_of(floats(1, 2, 3, 4)), cache_of(floats(1, 2, 9, 4)), True),
        (cache_of(floats(1, 2, 3, 4)), cache_of(*[floats(1, 2, 3, 4)] * 2), False),
        (OpaqueSpec("A"), OpaqueSpec("A"), True),
        (OpaqueSpec("A"), OpaqueSpec("B"), False),
    ],
)
def test_calls_of_one_form_differ_in_sizes_only(left: Spec, right: Spec, same: bool) -> None:
    calls = (call_of(0, x=left), call_of(1, x=right))
    forms = forms_of(calls)
    assert (len(forms) == 1) is same
    assert [call.index for form in forms for call in form.calls] == [0, 1]


def test_forms_stand_in_the_order_of_their_first_calls() -> None:
    forms = forms_of([prefill(0, 2, 7), decode(1, 2, 7), prefill(2, 1, 3), decode(3, 2, 8)])
    assert [[call.index for call in form.calls] for form in forms] == [[0, 2], [1, 3]]


def test_a_union_has_the_richest_structure_of_each_argument() -> None:
    empty = call_of(2, input_ids=ids(2, 4), past_key_values=cache_of())
    forms = forms_of([prefill(0, 2, 7), empty, decode(1, 2, 7)])
    union = union_of(forms)
    assert [path.code() for path in union.leaves] == [
        "input_ids",
        "attention_mask",
        "past_key_values.layers[0].keys",
        "past_key_values.layers[0].values",
        "past_key_values.layers[1].keys",
        "past_key_values.layers[1].values",
    ]
    assert [len(union.missing(form)) for form in forms] == [4, 5, 0]


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_none_is_missing_where_others_have_something(first: int, second: int) -> None:
    calls = [call_of(0, x=floats(2), y=ConstantSpec(None)), call_of(1, x=floats(2), y=floats(3))]
    forms = forms_of([calls[first], calls[second]])
    union = union_of(forms)
    assert union.leaves[path_of("y")] == floats(3)
    missing = {form.example.index: [path.code() for path in union.missing(form)] for form in forms}
    assert missing == {0: ["y"], 1: []}


def test_none_everywhere_is_missing_nowhere() -> None:
    forms = forms_of([call_of(0, x=floats(2), y=ConstantSpec(None))])
    assert union_of(forms).missing(forms[0]) == ()


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (floats(2, 3), floats(4, 3), None),
        (floats(2, 3), ConstantSpec(None), None),
        (ConstantSpec(2), ConstantSpec(3), None),
        (floats(2, 3), floats(4), "x is float32[4] in call 1 and float32[2, 3] in others"),
        (floats(2), ids(2), "x is int64[2] in call 1 and float32[2] in others"),
        (ConstantSpec(True), ConstantSpec(False), "x is False in call 1 and True in others"),
        (ConstantSpec("a"), ConstantSpec(1), "x is 1 in call 1 and 'a' in others"),
        (OpaqueSpec("A"), OpaqueSpec("B"), "x is <B> in call 1 and <A> in others"),
        (OpaqueSpec("A"), OpaqueSpec("A"), None),
        (cache_of(floats(1, 2)), cache_of(floats(1, 2), floats(1, 2)), None),
    ],
)
def test_a_conflict_says_which_leaf_and_which_call(left: Spec, right: Spec, text: str | None) -> None:
    assert find_conflict(union_of(forms_of([call_of(0, x=left), call_of(1, x=right)]))) == text


@pytest.mark.parametrize(("value", "text"), [(7, None), (None, None), (True, "n is True in call 1 and 3 in others")])
def test_sizes_may_differ_between_forms(value: int | None, text: str | None) -> None:
    calls = [call_of(0, x=floats(2), y=floats(2), n=ConstantSpec(3)), call_of(1, x=floats(2), n=ConstantSpec(value))]
    assert len(forms_of(calls)) == 2
    assert find_conflict(union_of(forms_of(calls))) == text


@pytest.mark.parametrize(
    ("shapes", "code", "dim"),
    [
        ([(1, 2, 5, 8)], "c.layers.0.keys", 2),
        ([(1, 2, 5, 8), (2, 2, 6, 8)], "c.layers.0.keys", 2),
        ([(1, 5, 2, 8), (1, 6, 2, 8)], "c.layers.0.keys", 1),
        ([(1, 2, 8, 5), (1, 2, 8, 6)], "c.layers.0.values", 3),
        ([(1, 8)], "c.layers.0.keys", None),
        ([(1, 2, 5, 8)], "c.layers.0.conv_states", None),
        ([(1, 2, 5, 8), (1, 2, 6, 8)], "c.layers.0.conv_states", 2),
        ([(1, 2), (2, 2)], "c.layers.0.keys", None),
    ],
)
def test_a_container_grows_where_it_changes_or_where_tokens_stand(
    shapes: list[tuple[int, ...]], code: str, dim: int | None
) -> None:
    name = code.rpartition(".")[2]
    layer = Structure("Layer", (Attr(name),), (Structure(),))
    cache = Structure("Cache", (Attr("layers"),), (Structure("list", (Index(0),), (layer,)),))
    calls = [call_of(i, c=(cache, (floats(*shape),))) for i, shape in enumerate(shapes)]
    assert growing_dim(union_of(forms_of(calls)), path_of(code), floats(*shapes[0])) == dim


# tables


def test_a_table_has_a_row_per_call_and_a_column_per_axis() -> None:
    table = table_of([call_of(0, x=ids(2, 7), n=ConstantSpec(7)), call_of(1, x=ids(3, 9), flag=ConstantSpec(True))])
    assert [str(axis) for axis in table.axes] == ["x.shape[0]", "x.shape[1]", "n"]
    assert [row.label for row in table.rows] == ["call 0", "call 1"]
    assert [table.column(axis) for axis in table.axes] == [(2, 3), (7, 9), (7, None)]


def test_a_missing_leaf_counts_as_its_fill() -> None:
    fills = {path_of("past"): Fill("empty", dim=1), path_of("n"): Fill("constant", value=4), path_of("m"): Fill("ones")}
    others = call_of(1, x=ids(3), past=ids(3, 5), n=ConstantSpec(9))
    row, _ = table_of([call_of(0, x=ids(2)), others], fills).rows
    assert {str(axis): size for axis, size in row.sizes.items()} == {"x.shape[0]": 2, "past.shape[1]": 0, "n": 4}


def test_a_fill_says_nothing_where_the_leaf_is() -> None:
    fills = {path_of("x"): Fill("empty", dim=0), path_of("n"): Fill("constant", value=4)}
    (row,) = table_of([call_of(0, x=ids(2), n=ConstantSpec(9))], fills).rows
    assert {str(axis): size for axis, size in row.sizes.items()} == {"x.shape[0]": 2, "n": 9}


@pytest.mark.parametrize(
    ("spec", "dims"),
    [(ids(2, 7), [0, 1]), (ids(), []), (ConstantSpec(3), [None]), (ConstantSpec(True), []), (OpaqueSpec("A"), [])],
)
def test_the_axes_of_a_leaf(spec: Spec, dims: list[int | None]) -> None:
    assert [axis.dim for axis in axes_of(path_of("x"), spec)] == dims


def test_one_more_row() -> None:
    table = table_of([call_of(0, x=ids(2))])
    longer = table.extended((), [Row("probe", {table.axes[0]: 5})])
    assert (longer.column(table.axes[0]), len(table.rows)) == ((2, 5), 1)


# relations

Values = Sequence[int | None]


def axis_of(text: str) -> Axis:
    """``x1`` is dimension 1 of x; ``n`` alone is an int."""
    dim = text[-1]
    return Axis(path_of(text[:-1]), int(dim)) if dim.isdigit() else Axis(path_of(text), None)


def table_from(**columns: Values) -> Table:
    """A table by columns: ``x1=(2, 3)``."""
    axes = tuple(map(axis_of, columns))
    rows = zip(*columns.values(), strict=True)
    return Table.of(
        axes,
        tuple(
            Row(f"call {i}", {a: v for a, v in zip(axes, row, strict=True) if v is not None})
            for i, row in enumerate(rows)
        ),
    )


def column_of(name: str, values: Values, *axes: str) -> Column:
    return Column(name, tuple(map(axis_of, axes or [f"{name}1"])), tuple(values))


NONE = None
EQUAL = [
    ("changing together", {"x0": (2, 3), "y0": (2, 3)}, [{"x0", "y0"}]),
    ("whatever the dimension", {"x1": (7, 9), "y2": (7, 9)}, [{"x1", "y2"}]),
    ("a length and an int", {"x1": (7, 9), "n": (7, 9)}, [{"x1", "n"}]),
    ("different once", {"x0": (2, 3, 4), "y0": (2, 3, 5)}, [{"x0"}, {"y0"}]),
    ("never in one call", {"x0": (2, 3, NONE, NONE), "y0": (NONE, NONE, 2, 3)}, [{"x0"}, {"y0"}]),
    ("by coincidence, once", {"x0": (2, 3, NONE), "y0": (2, NONE, 5)}, [{"x0"}, {"y0"}]),
    ("by coincidence, one value", {"x1": (2, 2, 7, NONE), "y1": (2, 2, NONE, 5)}, [{"x1"}, {"y1"}]),
    ("through a third", {"x1": (2, 3, NONE), "y1": (NONE, NONE, 4), "z1": (2, 3, 4)}, [{"x1", "y1", "z1"}]),
    ("never changing", {"x0": (2, 2), "y0": (2, 2)}, []),
    ("seen with one size", {"x0": (2, 3), "y0": (2, NONE)}, [{"x0", "y0"}]),
    ("seen with one size elsewhere", {"x1": (2, 3), "y0": (2, NONE)}, [{"x1"}]),
    ("an int seen once", {"x0": (2, 3), "n": (2, NONE)}, [{"x0"}]),
]


@pytest.mark.parametrize(("columns", "groups"), [row[1:] for row in EQUAL], ids=[row[0] for row in EQUAL])
def test_axes_are_equal_where_they_change_together(columns: dict[str, Values], groups: list[set[str]]) -> None:
    found = group_equal(table_from(**columns))
    assert [set(column.axes) for column in found] == [set(map(axis_of, group)) for group in groups]


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")), ids="".join)
def test_axes_that_never_meet_are_equal_through_a_third(order: tuple[str, ...]) -> None:
    columns = {"x": (2, 3, NONE, NONE), "y": (NONE, NONE, 4, 5), "z": (2, 3, 4, 5)}
    found = group_equal(table_from(**{f"{name}1": columns[name] for name in order}))
    assert [{axis.path.root for axis in column.axes} for column in found] == [{"x", "y", "z"}]


TOTAL = [
    ("a mask", {"mask1": (8, 9), "past1": (5, 8), "new1": (3, 1)}, ["new + past"]),
    ("an empty past", {"mask1": (7, 8), "past1": (0, 7), "new1": (7, 1)}, ["new + past"]),
    ("one row", {"mask1": (8, 8), "past1": (5, 5), "new1": (3, 3)}, []),
    ("one term that never changes", {"mask1": (8, 9), "past1": (7, 8), "new1": (1, 1)}, []),
    ("wrong once", {"mask1": (8, 9, 9), "past1": (5, 8, 9), "new1": (3, 1, 1)}, []),
    ("never together", {"mask1": (8, 9, NONE), "past1": (5, NONE, 8), "new1": (NONE, 1, 1)}, []),
    ("a batch is no sum", {"mask0": (8, 9), "past1": (5, 8), "new1": (3, 1)}, []),
    ("a batch is no term", {"mask1": (8, 9), "past0": (5, 8), "new1": (3, 1)}, []),
]
OFFSET = [
    ("shifted labels", {"x1": (10, 7), "y1": (9, 6)}, ["y + 1"]),
    ("below", {"x1": (9, 6), "y1": (10, 7)}, []),
    ("equal", {"x1": (9, 6), "y1": (9, 6)}, []),
    ("one row", {"x1": (10, NONE), "y1": (9, 6)}, []),
    ("one distinct row", {"x1": (10, 10, NONE), "y1": (9, 9, 6)}, []),
    ("never together", {"x1": (10, NONE, 7), "y1": (NONE, 9, NONE)}, []),
    ("wrong once", {"x1": (10, 7, 8), "y1": (9, 6, 6)}, []),
    ("two sides of one image", {"x2": (10, 7), "x3": (9, 6)}, []),
    ("a batch", {"x0": (10, 7), "y1": (9, 6)}, []),
    ("from a batch", {"x1": (10, 7), "y0": (9, 6)}, []),
    ("an int", {"n": (10, 7), "y1": (9, 6)}, ["y + 1"]),
]
MULTIPLE = [
    ("patches", {"x1": (8, 12), "y1": (2, 3)}, ["4*y"]),
    ("of a batch", {"x0": (8, 12), "y0": (2, 3)}, ["4*y"]),
    ("one row", {"x1": (8, 8), "y1": (2, 2)}, []),
    ("nothing of nothing", {"x1": (0, 8, 12), "y1": (0, 2, 3)}, ["4*y"]),
    ("nothing, once more", {"x1": (0, 8), "y1": (0, 2)}, []),
    ("something of nothing", {"x1": (4, 8, 12), "y1": (0, 2, 3)}, []),
    ("a fraction", {"x1": (2, 3), "y1": (8, 12)}, []),
    ("not whole", {"x1": (8, 13), "y1": (2, 3)}, []),
    ("two factors", {"x1": (8, 9), "y1": (2, 3)}, []),
    ("never together", {"x1": (8, NONE), "y1": (NONE, 2)}, []),
]
DIFFERENCE = [
    ("filling up", {"x1": (4086, 4088, 4090), "y1": (10, 8, 6)}, ["4096 - y"]),
    ("two rows", {"x1": (4086, 4088), "y1": (10, 8)}, []),
    ("two distinct rows", {"x1": (4086, 4088, 4088), "y1": (10, 8, 8)}, []),
    ("wrong once", {"x1": (4086, 4088, 4090, 5), "y1": (10, 8, 6, 5)}, []),
    ("a batch", {"x0": (4086, 4088, 4090), "y1": (10, 8, 6)}, []),
    ("from a batch", {"x1": (4086, 4088, 4090), "y0": (10, 8, 6)}, []),
]
PROPOSALS = [
    pytest.param(family, columns, expected, id=f"{family.name}: {label}")
    for family, rows in ((Total(), TOTAL), (Offset(), OFFSET), (Multiple(), MULTIPLE), (FixedDifference(), DIFFERENCE))
    for label, columns, expected in rows
]


@pytest.mark.parametrize(("family", "columns", "expected"), PROPOSALS)
def test_a_family_proposes_what_all_rows_say(
    family: RelationFamily, columns: dict[str, Values], expected: list[str]
) -> None:
    target, *others = [column_of(text.rstrip("0123"), values, text) for text, values in columns.items()]
    assert [str(expression) for expression in family.propose(target, Grid([target, *others]))] == expected


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((32, 48, 64), 16),
        ((32, 48), 16),
        ((32,), 1),
        ((32, 32), 1),
        ((6, 8), 1),
        ((6, 8, 10), 2),
        ((6, 8, 11), 1),
        ((0, 32, 48), 16),
        ((None, 32, 48), 16),
        ((), 1),
        ((0, 0), 1),
    ],
)
def test_a_step_divides_all_sizes(values: Values, step: int) -> None:
    assert step_of(Column("h", (), tuple(values))) == step


@pytest.mark.parametrize(
    ("text", "expected"), [("x0", True), ("x1", False), ("n", False)], ids=["first", "second", "int"]
)
def test_only_first_dimensions_may_be_a_batch(text: str, expected: bool) -> None:
    assert column_of("a", (1, 2), text).is_first is expected


def test_the_families_have_names_of_their_own_and_simple_ones_come_first() -> None:
    names = [family.name for family in FAMILIES]
    assert names == ["sum", "offset", "multiple", "difference", "product", "minimum", "division", "sum and 1"]


# mining

SIZES = st.integers(0, 60)
CELL = st.one_of(st.none(), SIZES)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any table: up to five arguments with a length, some cells absent, some columns copies of others."""
    n_rows = draw(st.integers(1, 6))
    rows = st.lists(CELL, min_size=n_rows, max_size=n_rows)
    columns: dict[str, Values] = {}
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)):
        dim = draw(st.sampled_from("01"))
        known = list(columns.values())
        columns[name + dim] = draw(st.sampled_from(known)) if known and draw(st.booleans()) else draw(rows)
    return table_from(**columns)


def class_of(mined: Mined, text: str) -> Expression:
    found = expression_of(mined, axis_of(text))
    assert found is not None, f"{text} never changed"
    return found


def sizes_in_row(mined: Mined, row: int) -> dict[str, int]:
    return {c.name: v for c in mined.columns if (v := c.values[row]) is not None}


@given(tables())
def test_what_is_mined_holds_on_every_row_that_has_its_sides(table: Table) -> None:
    mined = mine(table)
    for column in mined.columns:
        for axis in column.axes:
            for own, joined in zip(table.column(axis), column.values, strict=True):
                assert own is None or own == joined
    for derived in mined.derived.values():
        held = []
        for i, row in enumerate(table.rows):
            sizes = sizes_in_row(mined, i)
            if derived.column.name in sizes and set(derived.expression.symbols) <= set(sizes):
                held.append(row.label)
                assert derived.expression.evaluate(sizes) == sizes[derived.column.name]
        assert list(derived.evidence.rows) == held
        assert derived.evidence.distinct >= 2


@given(tables())
def test_every_expression_is_one_of_free_classes(table: Table) -> None:
    mined = mine(table)
    free = {column.name for column in mined.free}
    assert all(set(derived.expression.symbols) <= free for derived in mined.derived.values())
    assert len({axis for column in mined.columns for axis in column.axes}) == sum(len(c.axes) for c in mined.columns)


@given(tables())
def test_axes_that_never_change_have_no_class_of_their_own(table: Table) -> None:
    mined = mine(table)
    for axis in table.axes:
        changes = len({size for size in table.column(axis) if size is not None}) > 1
        assert not changes or expression_of(mined, axis) is not None
    assert all(len({v for v in column.values if v is not None}) > 1 for column in mined.columns)


LENGTHS = st.lists(st.integers(2, 5000), min_size=4, max_size=6, unique=True)
PLANTS = {
    "equal": lambda a, b: a,
    "sum": lambda a, b: a + b,
    "multiple": lambda a, b: 7 * a,
    "offset": lambda a, b: a + 3,
    "difference": lambda a, b: 9000 - a,
}


@given(st.sampled_from(sorted(PLANTS)), LENGTHS, LENGTHS, st.permutations(["a1", "b1", "c1"]), st.data())
def test_a_planted_relation_is_found(
    kind: str, first: list[int], second: list[int], order: list[str], data: st.DataObject
) -> None:
    rows = list(zip(first, second, strict=False))
    absent = data.draw(st.sets(st.sampled_from(range(len(rows))), max_size=len(rows) - 3), label="rows without a")
    columns: dict[str, Values] = {
        "a1": [None if i in absent else a for i, (a, _) in enumerate(rows)],
        "b1": [b for _, b in rows],
        "c1": [PLANTS[kind](a, b) for a, b in rows],
    }
    mined = mine(table_from(**{name: columns[name] for name in order}))
    used = ["a1", "b1", "c1"] if kind == "sum" else ["a1", "c1"]
    symbols = {symbol for name in used for symbol in class_of(mined, name).symbols}
    assert len(symbols) < len(used)
    for i, (a, b) in enumerate(rows):
        if i not in absent:
            assert class_of(mined, "c1").evaluate(sizes_in_row(mined, i)) == PLANTS[kind](a, b)


CHAINS = [
    ("offsets", {"a1": (5, 8, 21), "b1": (6, 9, 22), "c1": (8, 11, 24)}),
    ("multiples", {"a1": (5, 8, 21), "b1": (10, 16, 42), "c1": (40, 64, 168)}),
    ("an offset of a multiple", {"a1": (5, 8, 21), "b1": (20, 32, 84), "c1": (21, 33, 85)}),
    ("a multiple of an offset", {"a1": (5, 8, 21), "b1": (7, 10, 23), "c1": (28, 40, 92)}),
]


@pytest.mark.parametrize("order", list(itertools.permutations(["a1", "b1", "c1"])), ids="".join)
@pytest.mark.parametrize("columns", [row[1] for row in CHAINS], ids=[row[0] for row in CHAINS])
def test_a_chain_of_relations_leaves_one_symbol_whatever_the_order(
    columns: dict[str, Values], order: tuple[str, ...]
) -> None:
    mined = mine(table_from(**{name: columns[name] for name in order}))
    assert len(mined.free) == 1
    for i in range(3):
        sizes = sizes_in_row(mined, i)
        assert {name: class_of(mined, name).evaluate(sizes) for name in columns} == {
            name: values[i] for name, values in columns.items()
        }


def test_a_sum_of_a_sum_leaves_its_terms() -> None:
    table = table_from(all1=(19, 30, 41), mask1=(15, 20, 28), past1=(11, 7, 5), new1=(4, 13, 23), image1=(4, 10, 13))
    mined = mine(table)
    assert len(mined.free) == 3
    sizes = sizes_in_row(mined, 1)
    assert [class_of(mined, name).evaluate(sizes) for name in ("all1", "mask1")] == [30, 20]


# plans from calls


def plan_of(calls: Sequence[Call]) -> Plan:
    union = union_of(forms_of(calls))
    missing = {path for form in union.forms for path in union.missing(form)}
    fills = {path: Fill("empty", dim=2) for path in missing}
    return build_plan(union, table_of(calls, fills), fills)


def test_prefill_and_decode_become_one_plan() -> None:
    plan = plan_of([prefill(0, 2, 10), decode(1, 2, 10), decode(2, 2, 11), prefill(3, 3, 6), decode(4, 3, 6)])
    shapes = {leaf.path.code(): ", ".join(map(str, leaf.shape)) for leaf in plan.inputs}
    kept = "batch, 2, past_sequence, 8"
    assert shapes == {
        "input_ids": "batch, sequence",
        "attention_mask": "batch, past_sequence + sequence",
        "past_key_values.layers[0].keys": kept,
        "past_key_values.layers[0].values": kept,
        "past_key_values.layers[1].keys": kept,
        "past_key_values.layers[1].values": kept,
    }
    assert {symbol.name: (symbol.observed, symbol.low) for symbol in plan.symbols} == {
        "batch": ((2, 3), 1),
        "sequence": ((1, 6, 10), 1),
        "past_sequence": ((0, 6, 10, 11), 0),
    }
    assert plan.calls == (0, 1, 2, 3, 4)
    found = {str(relation): relation.evidence for relation in plan.relations if relation.family == "sum"}
    assert found == {
        "attention_mask.shape[1] == past_sequence + sequence": Evidence(tuple(f"call {i}" for i in range(5)), 5)
    }
    assert {leaf.path.root: leaf.calls for leaf in plan.leaves} == {
        "input_ids": 5,
        "attention_mask": 5,
        "past_key_values": 3,
    }


def test_a_plan_bakes_constants_and_grows_counters() -> None:
    calls = [
        call_of(i, x=floats(2, n), length=ConstantSpec(n), flag=ConstantSpec(True), width=ConstantSpec(64))
        for i, n in enumerate((5, 9))
    ]
    plan = plan_of(calls)
    assert {leaf.path.code(): str(leaf.value or leaf.constant or leaf.shape[1]) for leaf in plan.leaves} == {
        "x": "x_dim_1",
        "length": "x_dim_1",
        "flag": "True",
        "width": "64",
    }
    assert [leaf.path.code() for leaf in plan.inputs] == ["x", "length"]


def test_a_step_is_a_relation_with_evidence() -> None:
    plan = plan_of([call_of(i, pixel_values=floats(1, 3, 224, n)) for i, n in enumerate((32, 48, 80))])
    assert [str(relation) for relation in plan.relations] == ["pixel_values.shape[3] % 16 == 0"]
    assert plan.symbols == (Symbol("width", (32, 48, 80), 1, None, 16, plan.relations[0].evidence),)


# names

ROLES = [
    ({"input_ids0": (2, 3), "input_ids1": (7, 9)}, {"batch", "sequence"}),
    ({"input_ids0": (2, 3), "attention_mask0": (2, 3), "attention_mask1": (7, 9)}, {"batch", "sequence"}),
    ({"inputs_embeds1": (7, 9)}, {"sequence"}),
    ({"pixel_values0": (2, 3), "pixel_values2": (32, 48), "pixel_values3": (32, 64)}, {"batch", "height", "width"}),
    ({"input_features2": (30, 70)}, {"frames"}),
    ({"input_ids1": (7, 9), "decoder_input_ids1": (3, 4)}, {"sequence", "decoder_sequence"}),
    ({"x1": (7, 9), "y1": (3, 8)}, {"x_dim_1", "y_dim_1"}),
    ({"input_ids1": (7, 9), "token_ids1": (3, 8)}, {"sequence", "sequence_2"}),
    ({"x0": (2, 3), "y0": (7, 11)}, {"batch", "y_dim_0"}),
    ({"length": (2, 3)}, {"length"}),
]


@pytest.mark.parametrize(("columns", "names"), ROLES)
def test_axes_are_named_by_their_role(columns: dict[str, Values], names: set[str]) -> None:
    assert set(names_of(mine(table_from(**columns))).values()) == names


def test_axes_in_a_mapping_are_named_by_its_keys() -> None:
    features = [Axis(Path((Name("input"), Attr("data"), Key("input_ids"))), dim) for dim in (0, 1)]
    sizes = ((2, 8), (3, 11), (5, 12))
    rows = tuple(Row(f"call {i}", dict(zip(features, own, strict=True))) for i, own in enumerate(sizes))
    assert set(names_of(mine(Table.of(features, rows))).values()) == {"batch", "sequence"}


def test_a_mask_that_is_a_sum_is_the_total() -> None:
    mined = mine(table_of([decode(0, 2, 5, 3), decode(1, 3, 8, 1), decode(2, 4, 9, 2)]))
    names = names_of(mined)
    assert set(names.values()) == {"batch", "sequence", "past_sequence", "total_sequence"}
    (derived,) = mined.derived.values()
    assert names[derived.column.name] == "total_sequence"
    assert str(derived.expression.renamed(names)) == "past_sequence + sequence"


ARGUMENTS = st.sampled_from(
    ["input_ids", "token_ids", "attention_mask", "mask", "inputs_embeds", "pixel_values", "x", "batch", "sequence"]
)
STEPS = st.one_of(
    st.sampled_from(["keys", "values", "layers", "cumulative_length"]).map(Attr),
    st.integers(0, 3).map(Index),
    st.one_of(st.integers(0, 3), st.sampled_from(["a", "a.b", "my-key", "two words", "", "lambda", "x'y"])).map(Key),
)
PATHS = st.builds(lambda root, steps: Path((Name(root), *steps)), ARGUMENTS, st.lists(STEPS, max_size=3))


@given(st.lists(st.builds(Axis, PATHS, st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=6, unique=True))
def test_names_are_symbols_that_can_be_written_and_read(axes: list[Axis]) -> None:
    rows = tuple(Row(f"call {i}", {axis: 97 * k * k + i * (k + 13) for k, axis in enumerate(axes)}) for i in range(3))
    mined = mine(Table.of(axes, rows))
    names = names_of(mined)
    assert set(names) == {column.name for column in mined.columns}
    assert len(set(names.values())) == len(names)
    assert [name for name in names.values() if not name.isidentifier() or keyword.iskeyword(name)] == []


@pytest.mark.parametrize(
    ("path", "label"),
    [
        (path_of("input_ids"), "input_ids"),
        (path_of("past_key_values.layers.0.keys"), "past_key_values.0.key"),
        (
            path_of("past_key_values.self_attention_cache.layers.1.values"),
            "past_key_values.self_attention_cache.1.value",
        ),
        (path_of("x.keys"), "x.keys"),
        (Path((Name("x"), Index(0), Key("a.b"))), "x.0.a_b"),
        (Path((Name("x"), Key("layers"), Key("keys"))), "x.layers.keys"),
    ],
)
def test_a_label_has_no_brackets(path: Path, label: str) -> None:
    assert label_of(path) == label


# sizes


@st.composite
def symbols_of(draw: st.DrawFn, name: str) -> Symbol:
    step = draw(st.sampled_from([1, 1, 1, 2, 4, 16]))
    observed = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=4)))
    seen = tuple(step * k for k in observed)
    low = draw(st.sampled_from([0, 1, seen[0]]))
    high = draw(st.one_of(st.none(), st.integers(0, 900).map(lambda size: max(seen[-1], size))))
    return Symbol(name, seen, min(low, seen[0]), high, step)


PLAN_NAMES = ("batch", "sequence", "past")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    symbols = [draw(symbols_of(name)) for name in PLAN_NAMES[: draw(st.integers(1, 3))]]
    terms = [Expression.symbol(symbol.name) for symbol in symbols]
    more = []
    if len(terms) > 1 and draw(st.booleans()):
        more.append(terms[0] + terms[-1])
    if draw(st.booleans()):
        more.append(terms[0] * draw(st.integers(2, 4)))
    if draw(st.booleans()):
        more.append(terms[-1] + Expression.constant(draw(st.integers(1, 3))))
    return plan_with(symbols, *more, static=draw(st.sets(st.integers(0, 12), max_size=6)))


def is_general(plan: Plan, sizes: dict[str, int]) -> bool:
    """What choose_sizes promises."""
    values = expressed_sizes(plan, sizes)
    in_range = all(
        sizes[s.name] >= s.low and (s.high is None or sizes[s.name] <= s.high) and sizes[s.name] % s.step == 0
        for s in plan.symbols
    )
    return in_range and min(values) > 1 and len(set(values)) == len(values) and not set(values) & static_sizes(plan)


def sizes_or_none(plan: Plan, *, scale: Scale = Scale.USUAL, offset: int = 0) -> dict[str, int] | None:
    try:
        return choose_sizes(plan, scale=scale, offset=offset)
    except ExportError:
        return None


@given(plans(), st.sampled_from(Scale), st.integers(0, 3))
def test_chosen_sizes_are_general(plan: Plan, scale: Scale, offset: int) -> None:
    sizes = sizes_or_none(plan, scale=scale, offset=offset)
    assert sizes is None or is_general(plan, sizes)


def test_chosen_sizes_are_small_primes_where_nothing_speaks_against_them() -> None:
    total = Expression.parse("past + sequence")
    plan = plan_with([Symbol("batch", (2,)), Symbol("sequence", (1, 7)), Symbol("past", (0, 7), 0)], total)
    assert choose_sizes(plan) == {"batch": 3, "sequence": 5, "past": 7}
    assert choose_sizes(plan_with(plan.symbols, total, static=(3, 12))) == {"batch": 5, "sequence": 7, "past": 11}


def test_large_sizes_stay_near_to_what_was_seen() -> None:
    sizes = choose_sizes(plan_with([Symbol("height", (224, 256), step=16)]))
    assert sizes == {"height": 288}  # a multiple of 32, as what was seen, and an odd one: 256 divides by more
    large = choose_sizes(plan_with([Symbol("height", (1024,)), Symbol("width", (1024,))]))
    assert large == {"height": 1152, "width": 1408}  # not of 512: that would be four times as much
    assert choose_sizes(plan_with([Symbol("n", (5, 9))]), scale=Scale.NEAR) == {"n": 9}


def test_another_offset_is_another_choice() -> None:
    plan = plan_with([Symbol("n", (5, 9))])
    assert [choose_sizes(plan, offset=offset)["n"] for offset in range(4)] == [3, 5, 7, 11]


@pytest.mark.parametrize(
    ("symbol", "static", "text"),
    [
        (
            Symbol("n", (1,), 0, 1),
            (),
            "No sizes are general for n in 0..1: all are 0, 1, static, or equal to another one.",
        ),
        (
            Symbol("n", (2, 3), 2, 4),
            (2, 3, 4),
            "No sizes are general for n in 2..4: all are 0, 1, static, or equal to another one.",
        ),
    ],
)
def test_without_general_sizes_an_error_says_why(symbol: Symbol, static: tuple[int, ...], text: str) -> None:
    with pytest.raises(ExportError) as caught:
        choose_sizes(plan_with([symbol], static=static))
    assert str(caught.value) == f"{text} Widen the range of a symbol, or make it static. [no-sizes]"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3), st.sets(st.integers(2, 6)))
def test_general_sizes_are_found_where_there_are_any(ranges: list[tuple[int, int]], static: set[int]) -> None:
    symbols = [
        Symbol(name, (low + width,), low, low + width) for name, (low, width) in zip(PLAN_NAMES, ranges, strict=False)
    ]
    plan = plan_with(symbols, static=static)
    spans = [range(symbol.low, (symbol.high or 0) + 1) for symbol in symbols]
    exist = any(is_general(plan, dict(zip(PLAN_NAMES, values, strict=False))) for values in itertools.product(*spans))
    assert (sizes_or_none(plan) is not None) is exist


@given(plans(), st.data())
def test_trial_sizes_repeat_nothing_and_stay_in_range(plan: Plan, data: st.DataObject) -> None:
    proposed = trial_sizes(plan, ())
    used = [sizes for sizes in proposed if data.draw(st.booleans(), label="used")]
    trials = trial_sizes(plan, used)
    assert trials == [sizes for sizes in proposed if sizes not in used]
    assert len({tuple(sizes.items()) for sizes in trials}) == len(trials)
    for sizes in trials:
        for symbol in plan.symbols:
            size = sizes[symbol.name]
            assert size >= symbol.low
            assert symbol.high is None or size <= symbol.high
            assert size % symbol.step == 0


def test_trials_go_to_the_ends_of_every_symbol() -> None:
    plan = plan_with([Symbol("batch", (2,)), Symbol("sequence", (1, 10)), Symbol("past", (0, 13), 0)])
    sizes = trial_sizes(plan, ())
    assert {"batch": 1, "sequence": 1, "past": 0} in sizes
    assert {"batch": 1, "sequence": 1, "past": 1} in sizes
    for name, greatest in (("batch", 2), ("sequence", 10), ("past", 13)):
        assert any(s[name] > 2 * greatest for s in sizes)
    for name in ("batch", "sequence"):
        assert any(s[name] == 1 and all(s[other] > 1 for other in s if other != name) for s in sizes)
    assert any(s["past"] == 0 and s["batch"] > 1 and s["sequence"] > 1 for s in sizes)


def test_sizes_are_tried_beside_a_middle_and_a_least_size_that_are_given() -> None:
    plan = plan_with([Symbol("batch", (2,)), Symbol("side", (64, 96))])
    sizes = trial_sizes(plan, (), middle={"batch": 2, "side": 34}, least={"batch": 1, "side": 17})
    assert sizes[:3] == [{"batch": 2, "side": 34}, {"batch": 1, "side": 17}, {"batch": 1, "side": 34}]
    assert {"batch": 17, "side": 17} in sizes
    assert {"batch": 1, "side": 193} in sizes
    assert min(s["side"] for s in sizes) == 17


def test_observed_sizes_are_the_greatest_ones() -> None:
    assert observed_sizes(plan_with([Symbol("a", (0, 3, 9)), Symbol("b")])) == {"a": 9, "b": 2}


def test_static_sizes_are_those_of_inputs_that_never_change() -> None:
    plan = plan_with([Symbol("n", (2, 3))], Expression.parse("n + 1"), static=(4, 8))
    assert static_sizes(plan) == {4, 8}
    assert sorted(expressed_sizes(plan, {"n": 5})) == [5, 6]


# the evidence of one axis


def test_an_axis_is_explained_with_all_that_speaks_for_it() -> None:
    plan = plan_of([prefill(0, 2, 10), decode(1, 2, 10), decode(2, 2, 11), prefill(3, 3, 6), decode(4, 3, 6)])
    text = plan.explain("attention_mask", 1)
    assert text.splitlines() == [
        "attention_mask.shape[1] is past_sequence + sequence.",
        "past_sequence was 0, 6, 10, 11 in call 0, call 1, call 2, call 3, call 4 (4 distinct); it may be 0 and more.",
        "sequence was 1, 6, 10 in call 0, call 1, call 2, call 3, call 4 (3 distinct); it may be 1 and more.",
        "attention_mask.shape[1] == past_sequence + sequence (sum): "
        "call 0, call 1, call 2, call 3, call 4 (5 distinct).",
        "5 of 5 calls had attention_mask.",
    ]
    assert "It never changed" in plan.explain("past_key_values.layers[0].keys", 1)
    assert "empty along 2" in plan.explain("past_key_values.layers[0].keys", 2)


@pytest.mark.parametrize(("path", "dim"), [("attention_mask", 2), ("attention_mask", None), ("nothing", 0)])
def test_what_is_no_axis_cannot_be_explained(path: str, dim: int | None) -> None:
    with pytest.raises(UsageError, match="path-not-found"):
        plan_of([prefill(0, 2, 10), decode(1, 2, 10)]).explain(path, dim)
