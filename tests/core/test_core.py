"""The words of the house: values that compare, print, merge and never change."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onlooker.core import errors
from onlooker.core.call import Call, Parameter, Passing, Signature
from onlooker.core.errors import OnlookerError, UsageError
from onlooker.core.path import Attr, Index, Key, Name, Path
from onlooker.core.plan import Evidence, Fill, LeafPlan, Note, Plan, Relation, Symbol
from onlooker.core.recording import Recording
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis, ConstantSpec, OpaqueSpec, TensorSpec
from onlooker.core.structure import LEAF, Structure, Tree
from onlooker.core.verdict import Check, Outcome, Tally

NAMES = st.sampled_from(["batch", "sequence", "past_sequence", "E", "I", "pi", "lambda_", "n"])

# Path


def arguments() -> dict[str, Any]:
    """Something to walk through: a layer, a list and two dicts."""
    layer = SimpleNamespace(keys=5, states={0: "a", "b c": "b"})
    return {"cache": SimpleNamespace(layers=[layer]), "x": [1, (2, 3)], "options": {"a.b": {1: None}}}


PATHS = [
    (Path((Name("cache"), Attr("layers"), Index(0), Attr("keys"))), "cache.layers[0].keys", 5),
    (Path((Name("cache"), Attr("layers"), Index(0), Attr("states"), Key("b c"))), "cache.layers[0].states['b c']", "b"),
    (Path((Name("x"), Index(1), Index(0))), "x[1][0]", 2),
    (Path((Name("options"), Key("a.b"), Key(1))), "options['a.b'][1]", None),
]


@pytest.mark.parametrize(("path", "code", "value"), PATHS)
def test_a_path_prints_the_python_that_it_follows(path: Path, code: str, value: Any) -> None:
    assert path.code() == str(path) == code
    assert path.follow(arguments()) == value
    assert eval(code, {}, arguments()) == value
    assert path.root == code.partition("[")[0].partition(".")[0]


@pytest.mark.parametrize("path", [path for path, _, _ in PATHS if path.root != "x"])
def test_what_is_put_at_a_path_is_found_there(path: Path) -> None:
    obj = arguments()
    path.put(obj, "new")
    assert path.follow(obj) == "new"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (Path((Name("y"),)), "y cannot be followed: the arguments has no y."),
        (Path((Name("cache"), Attr("tokens"))), "cache.tokens cannot be followed: cache has no .tokens."),
        (Path((Name("x"), Index(7))), "x[7] cannot be followed: x has no [7]."),
        (Path((Name("x"), Index(0), Index(0))), "x[0][0] cannot be followed: x[0] has no [0]."),
        (Path((Name("options"), Key("a"))), "options['a'] cannot be followed: options has no ['a']."),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_stops(path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        path.follow(arguments())
    advice = "Choose a path of the plan: `onlooker show` and `plan.leaves` list them."
    assert str(caught.value) == f"{text} {advice} [path-not-found]"


@pytest.mark.parametrize(
    "path",
    [
        Path(),
        Path((Name("y"), Attr("z"))),
        pytest.param(Path((Name("x"), Index(9))), id="past-the-end"),
        pytest.param(Path((Name("x"), Index(1), Index(0))), id="in-a-tuple"),
        pytest.param(Path((Name("x"), Attr("z"))), id="no-such-attribute"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[path-not-found\]$"):
        path.put(arguments(), 0)


def test_an_empty_path_is_where_it_starts() -> None:
    assert Path().follow(3) == 3
    assert (Path().code(), Path().root, list(Path())) == ("", "", [])
    assert list(Path() / Name("x") / Index(1)) == [Name("x"), Index(1)]


# errors

KINDS = {
    errors.UsageError: ValueError,
    errors.ArgumentKindError: TypeError,
    errors.ObservationError: RuntimeError,
    errors.UnsupportedError: NotImplementedError,
    errors.ExportError: RuntimeError,
    errors.EntriesError: RuntimeError,
    errors.RejectedCallError: ValueError,
    errors.SavedFileError: ValueError,
    errors.MissingPackageError: ImportError,
}


def test_the_tree_of_errors_is_complete() -> None:
    classes = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, OnlookerError)}
    assert classes == {OnlookerError, *KINDS}
    assert {cls.__name__ for cls in classes} | {"OnlookerWarning", "warn"} == set(errors.__all__)


def test_a_warning_ends_with_its_slug_as_an_error_does() -> None:
    warning = errors.OnlookerWarning("One call was watched.", slug="one-call", hint="Watch another one.")
    assert isinstance(warning, UserWarning)
    assert str(warning) == "One call was watched. Watch another one. [one-call]"
    assert (warning.message, warning.slug, warning.hint) == ("One call was watched.", "one-call", "Watch another one.")


@pytest.mark.parametrize(("cls", "builtin"), KINDS.items())
def test_an_error_is_what_python_calls_it(cls: type[OnlookerError], builtin: type[Exception]) -> None:
    error = cls("No call was seen.", slug="no-calls")
    assert isinstance(error, builtin)
    assert isinstance(error, OnlookerError)
    assert issubclass(errors.ArgumentKindError, errors.UsageError)


@pytest.mark.parametrize(
    ("hint", "text"),
    [("", "It broke. [broken]"), ("Mend it.", "It broke. Mend it. [broken]")],
)
def test_an_error_says_what_and_what_to_do(hint: str, text: str) -> None:
    error = errors.ExportError("It broke.", slug="broken", hint=hint)
    assert str(error) == text
    assert (error.message, error.slug, error.hint) == ("It broke.", "broken", hint)


# specs

CONSTANTS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, -0.0, math.nan, "1", ""])
)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, 1.0), (1, True), (1.0, True), (0, False), (0, None), ("1", 1), ("None", None), (0.0, -0.0)],
)
def test_constants_of_two_types_are_two_constants(left: Any, right: Any) -> None:
    assert ConstantSpec(left) != ConstantSpec(right)
    assert len({ConstantSpec(left), ConstantSpec(right)}) == 2


@given(CONSTANTS, CONSTANTS)
def test_equal_constants_are_of_one_type_and_print_alike(left: Any, right: Any) -> None:
    same = type(left) is type(right) and repr(left) == repr(right)
    assert (ConstantSpec(left) == ConstantSpec(right)) is same
    assert ConstantSpec(left) == ConstantSpec(left)
    assert hash(ConstantSpec(left)) == hash(ConstantSpec(left))
    assert str(ConstantSpec(left)) == repr(left)


@pytest.mark.parametrize(("value", "expected"), [(3, True), (0, True), (True, False), (3.0, False), (None, False)])
def test_only_an_int_counts_as_a_size(value: Any, expected: bool) -> None:
    assert ConstantSpec(value).is_int is expected


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec((2, 7), "torch.int64"), "int64[2, 7]"),
        (TensorSpec((), "torch.bfloat16", "cuda:0"), "bfloat16[]"),
        (ConstantSpec("a"), "'a'"),
        (OpaqueSpec("lib.Thing"), "<lib.Thing>"),
        (Axis(Path((Name("x"),)), 1), "x.shape[1]"),
        (Axis(Path((Name("n"),)), None), "n"),
        (Fill("empty", dim=2), "empty along 2"),
        (Fill("constant", value=4), "4"),
        (Fill("ones"), "ones"),
        (Evidence(("call 0", "call 1"), 2), "call 0, call 1 (2 distinct)"),
        (Evidence(tuple(f"call {i}" for i in range(9)), 4), "call 0, call 1, call 2, 5 more, call 8 (4 distinct)"),
    ],
)
def test_a_value_prints_in_one_line(spec: Any, text: str) -> None:
    assert str(spec) == text


def test_a_call_knows_its_constants_and_tensors() -> None:
    names = tuple(map(Name, ("x", "n", "flag", "mode")))
    specs = (TensorSpec((2,), "torch.int64"), ConstantSpec(3), ConstantSpec(True), ConstantSpec("a"))
    call = call_of(0, Tree(Structure("arguments", names, (Structure(),) * 4), specs))
    assert call.n_tensors == 1
    assert [(path.code(), spec.value) for path, spec in call.constants] == [("flag", True), ("mode", "a")]


def test_a_structure_gives_the_paths_of_its_leaves_in_order() -> None:
    pair = Structure("tuple", (Index(0), Index(1)), (Structure(), Structure()))
    structure = Structure("arguments", (Name("x"), Name("y")), (pair, Structure("dict", (Key("a"),), (Structure(),))))
    assert [path.code() for path in structure.paths()] == ["x[0]", "x[1]", "y['a']"]
    assert [path.code() for path, _ in Tree(structure, (1, 2, 3)).items()] == ["x[0]", "x[1]", "y['a']"]
    assert (structure.n_leaves, Structure(LEAF).n_leaves) == (3, 1)


def test_what_a_structure_needs_to_be_built_takes_no_part_in_comparisons() -> None:
    assert Structure("list", extra=list) == Structure("list", extra=tuple)
    assert Structure("list", context="a") != Structure("list", context="b")


# expressions

CODE = [
    "__import__('os').system('echo')",
    "a.b",
    "a[0]",
    "f(a)",
    "a if b else c",
    "lambda: a",
    "a / 2",
    "a // b",
    "a ** b",
    "a % 2",
    "+a",
    "~a",
    "a < b",
    "1.5",
    "True",
    "None",
    "'a'",
    "a,",
    "",
    " ",
    "a b",
    "a = 1",
    "a; b",
    "(",
    "a\x00",
]


@pytest.mark.parametrize("text", CODE)
def test_text_that_is_no_size_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Expression.parse(text)
    assert str(caught.value) == f"{text!r} is not a size. Write for example '2*n + 1'. [bad-expression]"


TERMS = st.lists(st.tuples(st.integers(-4, 9), NAMES), max_size=4)


def expression_of(terms: list[tuple[int, str]], constant: int) -> Expression:
    total = Expression.constant(constant)
    for factor, name in terms:
        total = total + Expression.symbol(name) * factor
    return total


@given(TERMS, st.integers(-9, 5000), st.data())
def test_an_expression_is_read_as_it_was_written(
    terms: list[tuple[int, str]], constant: int, data: st.DataObject
) -> None:
    expression = expression_of(terms, constant)
    assert Expression.parse(str(expression)) == expression
    sizes = {name: data.draw(st.integers(0, 5000), label=name) for name in expression.symbols}
    expected = constant + sum(factor * sizes.get(name, 0) for factor, name in terms)
    assert expression.evaluate(sizes) == expected == eval(str(expression), {}, sizes)
    assert type(expression.evaluate(sizes)) is int
    assert set(expression.symbols) <= {name for _, name in terms}
    assert expression.is_constant is (not expression.symbols)


@given(TERMS, st.integers(-9, 9), st.permutations(["a", "b", "batch", "n", "past_sequence", "I", "x", "y"]))
def test_renamed_symbols_keep_their_factors(terms: list[tuple[int, str]], constant: int, new: list[str]) -> None:
    old = ["batch", "sequence", "past_sequence", "E", "I", "pi", "lambda_", "n"]
    names = dict(zip(old, new, strict=True))
    expected = expression_of([(factor, names[name]) for factor, name in terms], constant)
    assert expression_of(terms, constant).renamed(names) == expected


@given(TERMS, st.integers(-9, 9), st.integers(1, 9))
def test_a_symbol_is_replaced_by_an_expression(terms: list[tuple[int, str]], constant: int, offset: int) -> None:
    inner = Expression.symbol("sequence") + Expression.constant(offset)
    replaced = expression_of(terms, constant).replaced({"batch": inner})
    sizes = {name: 10 * i + 3 for i, name in enumerate(["sequence", "past_sequence", "E", "I", "pi", "lambda_", "n"])}
    expected = expression_of(terms, constant).evaluate({**sizes, "batch": sizes["sequence"] + offset})
    assert replaced.evaluate(sizes) == expected


def test_an_expression_without_all_sizes_names_the_missing_ones() -> None:
    with pytest.raises(UsageError) as caught:
        Expression.parse("a + b + 2*c").evaluate({"b": 1})
    assert str(caught.value) == "a + b + 2*c needs a size for a, c. Give one per symbol. [size-missing]"


@pytest.mark.parametrize(
    ("text", "symbol", "constant"),
    [("n", True, False), ("7", False, True), ("2*n", False, False), ("n - n", False, True)],
)
def test_what_an_expression_is(text: str, symbol: bool, constant: bool) -> None:
    expression = Expression.parse(text)
    assert (expression.is_symbol, expression.is_constant) == (symbol, constant)


# recordings

SIGNATURE = Signature((Parameter("x"), Parameter("args", "VAR_POSITIONAL"), Parameter("n", required=False)))


def call_of(index: int, inputs: Tree[Any], seconds: float = 0.0) -> Call:
    return Call(index, inputs, Tree(Structure(), (TensorSpec((1,), "torch.float32"),)), (), seconds)


def tensor_call(index: int, size: int, seconds: float) -> Call:
    structure = Structure("arguments", (Name("x"),), (Structure(),))
    return call_of(index, Tree(structure, (TensorSpec((size, 4), "torch.float32"),)), seconds)


CALLS = st.builds(tensor_call, st.integers(0, 3), st.integers(1, 3), st.sampled_from([0.0, 0.5]))
RECORDINGS = st.builds(
    Recording,
    st.just("lib.Model"),
    st.just("forward"),
    st.just(SIGNATURE),
    st.lists(CALLS, max_size=5, unique=True).map(lambda calls: tuple(sorted(calls, key=repr))),
    st.lists(st.sampled_from(["before a call: B", "after a call: A", "after a call: C"]), max_size=3).map(tuple),
)


@given(RECORDINGS, RECORDINGS, RECORDINGS)
def test_merging_is_associative(a: Recording, b: Recording, c: Recording) -> None:
    assert (a | b) | c == a | (b | c)


@given(RECORDINGS, RECORDINGS)
def test_merging_is_commutative(a: Recording, b: Recording) -> None:
    assert a | b == b | a


@given(RECORDINGS, RECORDINGS)
def test_merging_again_changes_nothing(a: Recording, b: Recording) -> None:
    merged = a | b
    assert merged | merged == merged
    assert merged | a == merged


@given(RECORDINGS, RECORDINGS)
def test_a_merge_loses_no_call_and_invents_none(a: Recording, b: Recording) -> None:
    merged = a | b
    assert set(merged.calls) == set(a.calls) | set(b.calls)
    assert len(merged) == len(merged.calls) == len(set(merged.calls))
    assert set(merged.missed) == set(a.missed) | set(b.missed)
    assert [call.index for call in merged.calls] == sorted(call.index for call in merged.calls)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Recording("lib.Other", "forward", SIGNATURE), "lib.Other.forward"),
        (Recording("lib.Model", "encode", SIGNATURE), "lib.Model.encode"),
        (Recording("lib.Model", "forward", Signature()), "lib.Model.forward"),
    ],
)
def test_recordings_of_two_entry_points_do_not_merge(other: Recording, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        Recording("lib.Model", "forward", SIGNATURE) | other
    assert str(caught.value) == (
        f"A recording of lib.Model.forward cannot be merged with one of {name}. "
        "Merge recordings of the same method of the same model. [different-entry-points]"
    )


def test_one_more_call() -> None:
    empty = Recording("lib.Model", "forward", SIGNATURE)
    call = tensor_call(0, 2, 0.0)
    assert empty.with_call(call).calls == (call,)
    assert len(empty) == 0


def test_a_signature_finds_its_parameters() -> None:
    assert SIGNATURE.names == ("x", "args", "n")
    assert SIGNATURE.get("n") == Parameter("n", required=False)
    assert SIGNATURE.get("y") is None
    assert (SIGNATURE.of_kind("VAR_POSITIONAL"), SIGNATURE.of_kind("VAR_KEYWORD")) == ("args", None)


# tallies

CHECKS = st.builds(
    Check,
    st.sampled_from(["observed", "unseen"]),
    st.just("a trial"),
    st.sampled_from(Outcome),
    st.just(()),
    st.sampled_from([0.0, 1e-6, 0.5, math.inf]),
)
TALLIES = st.lists(CHECKS, max_size=5).map(lambda checks: Tally(tuple(checks)))


@given(TALLIES, TALLIES)
def test_tallies_add_up(a: Tally, b: Tally) -> None:
    total = a + b
    assert total.total == a.total + b.total == total.passed + total.failed
    assert total.passed == a.passed + b.passed
    assert total.difference == max(a.difference, b.difference)
    assert a + Tally() == a == Tally() + a


@given(TALLIES)
def test_verified_means_all_of_them_and_unseen_ones_among_them(tally: Tally) -> None:
    expected = all(c.outcome is Outcome.EXACT for c in tally.checks) and any(c.kind == "unseen" for c in tally.checks)
    assert tally.verified is expected


@given(
    TALLIES, st.sampled_from([o for o in Outcome if o is not Outcome.EXACT]), st.sampled_from(["observed", "unseen"])
)
def test_one_failure_is_never_made_good(tally: Tally, outcome: Outcome, kind: str) -> None:
    assert not (tally + Tally((Check(kind, "x", outcome),))).verified
    assert not (Tally((Check(kind, "x", outcome),)) + tally).verified


def checks(observed: int, unseen: int, failed: int = 0) -> Tally:
    kinds = ["observed"] * observed + ["unseen"] * unseen
    good = tuple(Check(kind, f"{i}", Outcome.EXACT) for i, kind in enumerate(kinds))
    return Tally(good + (Check("unseen", "bad", Outcome.DIFFERENT, difference=1.0),) * failed)


@pytest.mark.parametrize(
    ("tally", "verified"),
    [
        (checks(0, 0), False),
        (checks(4, 0), False),
        (checks(0, 3, failed=1), False),
        (checks(4, 999, failed=1), False),
        (checks(0, 1), True),
        (checks(3, 4), True),
    ],
)
def test_three_of_four_is_not_verified(tally: Tally, verified: bool) -> None:
    assert tally.verified is verified


# plans


def small_plan() -> Plan:
    n = Expression.symbol("n")
    structure = Structure("arguments", (Name("x"), Name("count"), Name("mode")), (Structure(),) * 3)
    leaves = (
        LeafPlan(Path((Name("x"),)), "torch.float32", "cpu", (n, Expression.constant(4))),
        LeafPlan(Path((Name("count"),)), value=n + Expression.constant(1)),
        LeafPlan(Path((Name("mode"),)), constant=ConstantSpec("a")),
    )
    return Plan("main", structure, leaves, (Symbol("n", (2, 3)),))


def test_a_plan_finds_its_parts() -> None:
    plan = small_plan()
    assert [leaf.path.code() for leaf in plan.inputs] == ["x", "count"]
    assert [leaf.is_tensor for leaf in plan.leaves] == [True, False, False]
    assert plan.symbol("n").observed == (2, 3)
    assert str(plan.expression(Axis(Path((Name("x"),)), 0))) == "n"
    assert str(plan.expression(Axis(Path((Name("count"),)), None))) == "n + 1"


def test_a_note_is_told_of_its_own_axes_alone() -> None:
    about_rows = Note("x.shape[1] is pinned static", (Axis(Path((Name("x"),)), 0),))
    plan = dataclasses.replace(small_plan(), notes=(about_rows, "x.shape[0] stands in a text"))
    assert "X.shape[1] is pinned static." in plan.explain("x", 0).splitlines()
    assert "pinned" not in plan.explain("x", 1)
    assert "stands in a text" not in plan.explain("x", 0)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda plan: plan.leaf("y"), "The plan has no y. It has x, count. [path-not-found]"),
        (lambda plan: plan.symbol("m"), "The plan has no symbol 'm'. It has n. [no-such-symbol]"),
    ],
)
def test_a_plan_says_what_it_has(ask: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(small_plan())
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("family", "right", "text"),
    [("sum", "past + sequence", "m.shape[1] == past + sequence"), ("divisible", "16", "m.shape[1] % 16 == 0")],
)
def test_a_relation_prints_as_python(family: str, right: str, text: str) -> None:
    assert str(Relation(Axis(Path((Name("m"),)), 1), Expression.parse(right), family)) == text


VALUES = [
    Path((Name("x"),)),
    Name("x"),
    TensorSpec((2,), "torch.int64"),
    ConstantSpec(1),
    Structure(),
    Tree(Structure(), (1,)),
    tensor_call(0, 2, 0.0),
    Recording(),
    SIGNATURE,
    Expression.parse("n + 1"),
    Symbol("n"),
    Evidence(),
    Fill("ones"),
    small_plan(),
    Check("unseen", "x", Outcome.EXACT),
    Tally(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_cannot_be_changed_and_can_be_a_key(value: Any) -> None:
    field = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
    assert {value: 1}[dataclasses.replace(value)] == 1


def test_ways_of_passing_are_the_words_of_python() -> None:
    assert [str(way) for way in Passing] == ["positional", "keyword", "*", "**"]
