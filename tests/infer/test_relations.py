"""Relations beyond sums: expressions, families of products, windows and strides, doubts, and the cost of mining."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlooker.core.call import Call
from onlooker.core.errors import UsageError
from onlooker.core.path import Attr, Index, Name, Path
from onlooker.core.plan import Fill, LeafPlan, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis, TensorSpec
from onlooker.core.structure import Structure, Tree
from onlooker.infer.build import build_plan
from onlooker.infer.doubtful import alternatives, doubtful_relations, readings_without
from onlooker.infer.mine import Exclusions, Mined, mine
from onlooker.infer.relations import FAMILIES, GUESSES, Column, Grid, RelationFamily
from onlooker.infer.relations.difference import FixedDifference
from onlooker.infer.relations.division import Division
from onlooker.infer.relations.minimum import Minimum
from onlooker.infer.relations.product import Product
from onlooker.infer.samples import Row, Table, table_of
from onlooker.infer.sizes import choose_sizes, is_general, is_possible, trial_sizes
from onlooker.infer.unify import forms_of, union_of
from onlooker.materialise.counting import sizes_of
from plans import expression_of

Values = Sequence[int | None]

# expressions

NAMES = st.sampled_from(["a", "b", "past", "n_1"])
EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(NAMES.map(Expression.symbol), st.integers(0, 40).map(Expression.constant)),
    lambda inner: st.one_of(
        st.builds(lambda x, y: x + y, inner, inner),
        st.builds(lambda x, y: x - y, inner, inner),
        st.builds(lambda x, y: x * y, inner, inner),
        st.builds(Expression.least, inner, inner),
        st.builds(lambda x, d: x // d, inner, st.integers(1, 9)),
    ),
    max_leaves=5,
)


@given(EXPRESSIONS, st.data())
def test_an_expression_is_python_and_is_read_as_it_was_written(expression: Expression, data: st.DataObject) -> None:
    text = str(expression)
    try:
        read = Expression.parse(text)
    except UsageError:
        assert "**" in text  # a high power is no size in earnest
        return
    sizes = {name: data.draw(st.integers(0, 300), label=name) for name in expression.symbols}
    assert str(read) == text
    assert read.evaluate(sizes) == expression.evaluate(sizes) == eval(text, {"min": min}, sizes)
    assert type(expression.evaluate(sizes)) is int


@given(EXPRESSIONS, st.data())
def test_a_settled_expression_has_no_least_and_the_same_size(expression: Expression, data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(0, 300), label=name) for name in expression.symbols}
    settled = expression.settled(sizes)
    assert "min(" not in str(settled)
    assert settled.evaluate(sizes) == expression.evaluate(sizes)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("batch * sequence", "batch*sequence"),
        ("min(15, past)", "min(past, 15)"),
        ("(samples - 3) // 2 + 1", "(samples - 3)//2 + 1"),
        ("2*(a//2)", "2*(a//2)"),
        ("-(a//2)", "-(a//2)"),
        ("-a//2", "(-a)//2"),
        ("a//2//3", "(a//2)//3"),
        ("(a + b)**2", "(a + b)**2"),
        ("a*a", "a**2"),
        ("a//1", "a"),
        ("17//4", "4"),
        ("min(a, b) - min(b, a)", "0"),
    ],
)
def test_an_expression_has_one_text(text: str, written: str) -> None:
    assert str(Expression.parse(text)) == written


HOSTILE = {
    "deep parentheses": "(" * 3000 + "a" + ")" * 3000,
    "deep signs": "-" * 3000 + "a",
    "very deep signs": "-" * 100_000 + "a",
    "a long sum": "a" + "+a" * 1500,
    "a long number": "9" * 5000,
    "a large power": "9**99999",
    "a tower of powers": "2**4**4**4",
    "powers of powers": "((a**4 + 1)**4 + 1)**4",
    "division by nothing": "a//0",
    "division by less": "a//-2",
    "division by a size": "a//b",
    "a negative power": "a**-1",
    "a power that is a size": "2**a",
    "the least of one": "min(a)",
    "the least of none": "min()",
    "a keyword": "min(a, b, key=c)",
    "a star": "min(*a, b)",
    "another function": "max(a, b)",
    "a method": "a.min(b, c)",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_size_in_earnest_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size.*\[bad-expression\]") as caught:
        Expression.parse(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "name", "size", "sizes", "expected"),
    [
        ("past + sequence", "past", 8, {"sequence": 3}, 5),
        ("past + sequence", "past", 2, {"sequence": 3}, None),
        ("batch*sequence", "sequence", 21, {"batch": 3}, 7),
        ("batch*sequence", "sequence", 20, {"batch": 3}, None),
        ("4*n + 1", "n", 9, {}, 2),
        ("40 - n", "n", 9, {}, 31),
        ("n//2", "n", 4, {}, None),
        ("min(n, 7)", "n", 7, {}, None),
    ],
)
def test_an_expression_is_solved_where_one_size_does(
    text: str, name: str, size: int, sizes: Mapping[str, int], expected: int | None
) -> None:
    assert Expression.parse(text).solved(name, size, sizes) == expected


# families


def axis_of(text: str) -> Axis:
    return Axis(Path((Name(text[:-1]),)), int(text[-1]))


def column_of(text: str, values: Values) -> Column:
    return Column(text[:-1], (axis_of(text),), tuple(values))


def table_from(**columns: Values) -> Table:
    return Table(
        {axis_of(name): tuple(values) for name, values in columns.items()},
        tuple(f"call {i}" for i in range(len(next(iter(columns.values()))))),
    )


NONE = None
PRODUCT = [
    ("tokens", {"x0": (14, 27), "a0": (2, 3), "b1": (7, 9)}, ["a*b"]),
    ("with a factor", {"x0": (28, 54, 60), "a0": (2, 3, 5), "b1": (7, 9, 6)}, ["2*a*b"]),
    ("a factor needs three rows", {"x0": (28, 54), "a0": (2, 3), "b1": (7, 9)}, []),
    ("one row", {"x0": (14, 14), "a0": (2, 2), "b1": (7, 7)}, []),
    ("one factor that never changes", {"x0": (14, 18), "a0": (2, 2), "b1": (7, 9)}, []),
    ("a factor of 1 says nothing", {"x0": (7, 9, 4), "a0": (1, 1, 2), "b1": (7, 9, 2)}, []),
    ("rows of 1 are kept", {"x0": (7, 18, 10), "a0": (1, 2, 5), "b1": (7, 9, 2)}, ["a*b"]),
    ("wrong once", {"x0": (14, 27, 9), "a0": (2, 3, 2), "b1": (7, 9, 4)}, []),
    ("never together", {"x0": (14, 27, NONE), "a0": (2, NONE, 3), "b1": (NONE, 9, 7)}, []),
    ("some rows lack one", {"x0": (14, 27, NONE), "a0": (2, 3, 5), "b1": (7, 9, 6)}, ["a*b"]),
    ("nothing of something", {"x0": (0, 14, 27), "a0": (0, 2, 3), "b1": (4, 7, 9)}, []),
]
MINIMUM = [
    ("a window", {"x2": (3, 9, 15, 15), "a2": (3, 9, 20, 31)}, ["min(a, 15)"]),
    ("one size above", {"x2": (3, 9, 15, 15), "a2": (3, 9, 20, 20)}, []),
    ("one size below", {"x2": (3, 3, 15, 15), "a2": (3, 3, 20, 31)}, []),
    ("never above", {"x2": (3, 9, 15), "a2": (3, 9, 15)}, []),
    ("wrong below", {"x2": (3, 8, 15, 15), "a2": (3, 9, 20, 31)}, []),
    ("wrong above", {"x2": (3, 9, 15, 14), "a2": (3, 9, 20, 31)}, []),
    ("a batch", {"x0": (3, 9, 15, 15), "a2": (3, 9, 20, 31)}, []),
]
LENGTHS = (11, 17, 20, 25, 30, 12)
WINDOWS = tuple((n - 3) // 2 + 1 for n in LENGTHS)
DIVISION = [
    ("windows", {"x1": WINDOWS, "a1": LENGTHS}, ["(a - 3)//2 + 1"]),
    ("halves", {"x1": tuple(n // 2 for n in LENGTHS), "a1": LENGTHS}, ["a//2"]),
    ("rounded up", {"x1": tuple((n + 1) // 2 for n in LENGTHS), "a1": LENGTHS}, ["(a - 1)//2 + 1"]),
    ("four rows", {"x1": WINDOWS[:4], "a1": LENGTHS[:4]}, []),
    ("five equal rows of four", {"x1": (*WINDOWS[:4], WINDOWS[0]), "a1": (*LENGTHS[:4], LENGTHS[0])}, []),
    ("many kernels", {"x1": (5, 8, 11, 14, 17, 20), "a1": (50, 80, 110, 140, 170, 200)}, []),
    ("wrong once", {"x1": (*WINDOWS[:5], WINDOWS[5] + 1), "a1": LENGTHS}, []),
    ("a batch", {"x0": WINDOWS, "a1": LENGTHS}, []),
]
PROPOSALS = [
    pytest.param(family, columns, expected, id=f"{family.name}: {label}")
    for family, rows in ((Product(), PRODUCT), (Minimum(), MINIMUM), (Division(), DIVISION))
    for label, columns, expected in rows
]


@pytest.mark.parametrize(("family", "columns", "expected"), PROPOSALS)
def test_a_family_proposes_what_enough_rows_say(
    family: RelationFamily, columns: Mapping[str, Values], expected: list[str]
) -> None:
    target, *others = [column_of(text, values) for text, values in columns.items()]
    assert [str(expression) for expression in family.propose(target, Grid([target, *others]))] == expected


@pytest.mark.parametrize(
    ("family", "columns"),
    [
        (FixedDifference(rows=2), {"x1": (33, 30), "a1": (7, 10)}),
        (Minimum(each=1), {"x2": (3, 15), "a2": (3, 20)}),
        (Division(certain=False), {"x1": (2, 4, 7), "a1": (5, 9, 16)}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_guess_needs_less_than_a_belief(family: RelationFamily, columns: Mapping[str, Values]) -> None:
    target, other = [column_of(text, values) for text, values in columns.items()]
    grid = Grid([target, other])
    (certain,) = [f for f in FAMILIES if f.name == family.name]
    assert list(certain.propose(target, grid)) == []
    proposals = list(family.propose(target, grid))
    assert proposals
    for proposal in proposals:
        sizes = zip(other.values, target.values, strict=True)
        assert all(proposal.evaluate({"a": a or 0}) == x for a, x in sizes)
    assert family.name in [guess.name for guess in GUESSES]


CELL = st.one_of(st.none(), st.integers(0, 12))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n_rows = draw(st.integers(2, 8))
    rows = st.lists(CELL, min_size=n_rows, max_size=n_rows)
    return table_from(**{f"{name}{draw(st.integers(0, 2))}": draw(rows) for name in "abcde"[: draw(st.integers(1, 5))]})


@given(tables(), st.booleans())
def test_what_is_mined_holds_in_every_row(table: Table, guessing: bool) -> None:
    mined = mine(table, Exclusions(guessing=guessing))
    for derived in mined.derived.values():
        for i in range(len(table.labels)):
            sizes = {c.name: v for c in mined.columns if (v := c.values[i]) is not None}
            names = {*derived.proposed.symbols, derived.column.name}
            if names <= set(sizes):
                assert derived.proposed.evaluate(sizes) == sizes[derived.column.name]


@pytest.mark.parametrize(
    ("columns", "families"),
    [
        ({"x1": (4, 6, 10), "a1": (2, 3, 5), "b1": (2, 3, 5)}, {"multiple"}),
        ({"x1": (4, 9, 25), "a1": (2, 3, 5), "b1": (7, 4, 6)}, set()),
        ({"x1": (14, 24, 20), "a1": (7, 8, 4), "b1": (2, 3, 5)}, {"product"}),
        ({"x1": (8, 12, 9), "a1": (6, 6, 3), "b1": (2, 6, 6)}, {"sum"}),
    ],
)
def test_simple_families_are_preferred(columns: Mapping[str, Values], families: set[str]) -> None:
    assert {derived.family for derived in mine(table_from(**columns)).derived.values()} == families


# what may hold by chance


def texts(mined: Mined) -> list[str]:
    return [doubt.text for doubt in doubtful_relations(mined)]


def test_expressions_are_doubted_before_equal_axes_of_several_arguments() -> None:
    table = table_from(a1=(5, 7, 9), b1=(5, 7, 9), c1=(8, 10, 12))
    assert texts(mine(table)) == ["c.shape[1] == a.shape[1] + 3", "b.shape[1] == a.shape[1]"]


def test_a_state_is_not_taken_apart() -> None:
    cache = [Axis(Path((Name("past"), Index(i), Attr(part))), 2) for i in range(2) for part in ("keys", "values")]
    window = Axis(Path((Name("past"), Index(2), Attr("keys"))), 2)
    ids = axis_of("ids1")
    rows = [(3, 3, 8), (9, 9, 4), (20, 15, 7), (31, 15, 5)]
    columns = {axis: tuple(row[0] for row in rows) for axis in cache}
    table = Table(
        {**columns, window: tuple(row[1] for row in rows), ids: tuple(row[2] for row in rows)},
        tuple(f"call {i}" for i in range(4)),
    )
    mined = mine(table)
    assert {derived.family for derived in mined.derived.values()} == {"minimum"}
    assert texts(mined) == []


def test_a_reading_without_a_relation_has_one_symbol_more() -> None:
    table = table_from(a1=(5, 7, 9), b1=(5, 7, 9), c1=(8, 10, 12))
    mined = mine(table)
    for doubt in doubtful_relations(mined):
        for exclusions in readings_without(table, doubt):
            assert len(mine(table, exclusions).free) >= len(mined.free) + 1


def test_what_follows_from_a_class_may_follow_from_either_part() -> None:
    table = table_from(a1=(5, 7, 9), b1=(5, 7, 9), c1=(8, 10, 12))
    doubt = next(doubt for doubt in doubtful_relations(mine(table)) if doubt.kept)
    spelled = {
        str(expression_of(mine(table, exclusions), axis_of("c1"))) for exclusions in readings_without(table, doubt)
    }
    assert {"s0 + 3", "s1 + 3"} <= spelled


def test_a_denied_relation_makes_room_for_the_next_best() -> None:
    table = table_from(x1=(12, 14, 20), a1=(5, 6, 9), b1=(7, 8, 11), c1=(9, 11, 17))
    first, *others = [
        expression_of(mine(table, exclusions), axis_of("x1")) for exclusions in (Exclusions(), *alternatives(table))
    ]
    assert str(first) in ("s1 + s2", "2*s1 + 2")
    assert any(str(other) != str(first) for other in others)


# sizes


def plan_with(symbols: Sequence[Symbol], *expressions: str, fills: Mapping[str, Fill] | None = None) -> Plan:
    shapes = {s.name: (Expression.symbol(s.name),) for s in symbols} | {
        f"x{i}": (Expression.parse(text),) for i, text in enumerate(expressions)
    }
    leaves = tuple(
        LeafPlan(Path((Name(name),)), "torch.float32", "cpu", shape, fill=(fills or {}).get(name))
        for name, shape in shapes.items()
    )
    return Plan("main", Structure(), leaves, tuple(symbols))


@pytest.mark.parametrize("expression", ["a*b", "min(a, 15)", "(a - 3)//2 + 1", "a//2", "2*a*b", "40 - a"])
def test_chosen_sizes_obey_and_are_general(expression: str) -> None:
    plan = plan_with((Symbol("a", (5, 9)), Symbol("b", (4, 6))), expression)
    sizes = choose_sizes(plan)
    assert is_general(plan, sizes)
    assert Expression.parse(expression).evaluate(sizes) > 1


def test_a_window_may_be_what_it_follows_while_it_is_not_full() -> None:
    plan = plan_with((Symbol("past", (3, 20)),), "min(past, 15)")
    assert is_general(plan, {"past": 7})
    assert is_general(plan, {"past": 20})
    assert not is_general(
        plan_with((Symbol("past", (3, 20)), Symbol("n", (7,))), "min(past, 15)"), {"past": 20, "n": 15}
    )


@pytest.mark.parametrize("expression", ["(a - 9)//2 + 1", "12 - a"])
def test_trials_make_no_size_negative(expression: str) -> None:
    plan = plan_with((Symbol("a", (10, 11), 1), Symbol("b", (4, 6))), expression)
    trials = trial_sizes(plan, ())
    assert trials
    assert all(is_possible(plan, sizes) for sizes in trials)
    assert not is_possible(plan, {"a": 1 if "//" in expression else 13, "b": 4})


class Shaped:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.mark.parametrize(
    ("given_sizes", "expected"),
    [
        ({"a": 3, "b": 4}, {"a": 3, "b": 4}),
        ({"b": 4, "x0": 12}, {"a": 3, "b": 4}),
        ({"b": 4, "x1": 9}, {"a": 5, "b": 4}),
        ({"x0": 12}, {"a": 1, "b": 1}),
        ({"b": 4, "x0": 13}, {"a": 1, "b": 4}),
        ({"x2": 7, "x1": 9}, {"a": 7, "b": 2}),
    ],
)
def test_sizes_are_read_where_a_symbol_stands_alone_and_solved_else(
    given_sizes: Mapping[str, int], expected: Mapping[str, int]
) -> None:
    plan = plan_with((Symbol("a"), Symbol("b")), "a*b", "a + b", "2*a - 7")
    values = {Path((Name(name),)): Shaped(size) for name, size in given_sizes.items()}
    assert sizes_of(plan, values) == expected


def test_an_empty_fill_is_not_solved() -> None:
    plan = plan_with((Symbol("past", low=0), Symbol("n")), "past + n", fills={"past": Fill("empty", dim=0)})
    values = {Path((Name("n"),)): Shaped(3), Path((Name("x0"),)): Shaped(9)}
    assert sizes_of(plan, values) == {"past": 0, "n": 3}


# cost


def events(function: Callable[[], object]) -> int:
    """The number of Python and C calls inside a function: it does not depend on the machine."""
    count = 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(tick)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def spread_table(n_axes: int, n_rows: int) -> Table:
    """Axes of which no two have anything to do with each other."""
    return Table(
        {
            axis_of(f"x{k}_1"): tuple((k * 7919 + i * 104729) * (i + 3) ** 3 % 4999 + 2 for i in range(n_rows))
            for k in range(n_axes)
        },
        tuple(f"call {i}" for i in range(n_rows)),
    )


def test_mining_grows_with_the_square_of_the_classes_at_most() -> None:
    small, large = events(lambda: mine(spread_table(20, 8))), events(lambda: mine(spread_table(80, 8)))
    assert large < 20 * small  # 16 times as many pairs; 64 times as many triples


def decoding(n_calls: int, n_layers: int) -> list[Call]:
    layer = Structure("Layer", (Attr("keys"), Attr("values")), (Structure(), Structure()))
    layers = Structure("list", tuple(map(Index, range(n_layers))), (layer,) * n_layers)
    structure = Structure("arguments", (Name("ids"), Name("mask"), Name("past")), (Structure(), Structure(), layers))
    calls = []
    for i in range(n_calls):
        past = [TensorSpec((2 + i % 2, 2, 10 + i, 8), "torch.float32") for _ in range(2 * n_layers)]
        ids, mask = TensorSpec((2 + i % 2, 1), "torch.int64"), TensorSpec((2 + i % 2, 11 + i), "torch.int64")
        calls.append(Call(i, Tree(structure, (ids, mask, *past)), Tree(Structure(), ())))
    return calls


def plan_from(calls: Sequence[Call]) -> Plan:
    forms = forms_of(calls)
    return build_plan(union_of(forms), table_of(calls), {})


def test_a_plan_grows_with_calls_and_leaves_and_no_faster() -> None:
    few, many = decoding(50, 4), decoding(200, 4)
    assert events(lambda: plan_from(many)) < 4.5 * events(lambda: plan_from(few))
    wide = decoding(50, 16)
    assert events(lambda: plan_from(wide)) < 4.5 * events(lambda: plan_from(few))


def test_rows_and_columns_tell_the_same() -> None:
    table = table_of(decoding(5, 1))
    assert Table.of(table.axes, table.rows) == table
    longer = table.extended((), [Row("probe", {table.axes[0]: 9})])
    assert longer.rows[-1] == Row("probe", {table.axes[0]: 9})
