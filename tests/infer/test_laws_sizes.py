"""Laws of sizes: expressions are Python, what is planned holds on every call, and arguments are as planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fuzz_values import examples
from onlooker import InputObserver
from onlooker.core.errors import ExportError
from onlooker.core.path import Name, Path
from onlooker.core.plan import Plan
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis, ConstantSpec
from onlooker.infer.mine import mine
from onlooker.infer.samples import Row, Table
from onlooker.infer.sizes import choose_sizes, is_general, trial_sizes
from onlooker.materialise.arguments import Calls, close_arguments, leaf_values
from onlooker.pytrees.open import open_arguments, spec_of

NAMES = ("batch", "past", "sequence")


def larger(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of expressions, as Python."""
    numbers = st.integers(0, 2**70).map(str) | st.integers(0, 20).map(str)
    return st.one_of(
        st.tuples(texts, st.sampled_from(["+", "-", "*"]), texts).map(lambda t: f"(({t[0]}) {t[1]} ({t[2]}))"),
        st.tuples(texts, st.integers(1, 40)).map(lambda t: f"(({t[0]})//{t[1]})"),
        st.lists(texts | numbers, min_size=2, max_size=3).map(lambda ts: f"min({', '.join(ts)})"),
        texts.map(lambda text: f"-({text})"),
        texts.map(lambda text: f"({text})**2"),
    )


TEXTS = st.recursive(st.sampled_from(NAMES) | st.integers(0, 30).map(str), larger, max_leaves=6)


@given(TEXTS, st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**12)))
@example("(((batch) + (((batch) * (batch)))))**2", (0, 0, 0))
@example("batch*batch*batch*batch*batch", (3, 0, 0))
@example("((batch + past)**2)**2", (3, 1, 0))
@examples(100)
def test_an_expression_is_what_python_makes_of_its_text(text: str, values: tuple[int, int, int]) -> None:
    assume(text.count("**") < 3)
    sizes = dict(zip(NAMES, values, strict=True))
    expression = Expression.parse(text)
    again = Expression.parse(str(expression))
    assert again == expression
    assert hash(again) == hash(expression)
    assert str(again) == str(expression)
    expected = eval(text, {"min": min}, sizes)
    assert expression.evaluate(sizes) == expected == eval(str(expression), {"min": min}, sizes)
    assert expression.settled(sizes).evaluate(sizes) == expected


def table(**columns: tuple[int | None, ...]) -> Table:
    axes = [Axis(Path((Name(name),)), 0) for name in columns]
    rows = [
        Row(f"call {i}", {axis: size for axis, size in zip(axes, sizes, strict=True) if size is not None})
        for i, sizes in enumerate(zip(*columns.values(), strict=True))
    ]
    return Table.of(axes, rows)


# found by `make fuzz`: an axis that did not change joined a class, and what it alone had was forgotten
FORGOTTEN = [
    table(c=(None, None, 1, 1), d=(None, 0, None, 1)),
    table(c=(2, 2, None, None), d=(None, 2, 1, None), e=(None, 2, 2, None), f=(None, 2, None, 3)),
    table(a=(1, None, 2), b=(1, 1, None), c=(None, 2, 2)),
]


@pytest.mark.parametrize("rows", FORGOTTEN, ids=range(len(FORGOTTEN)))
def test_a_class_has_the_sizes_of_all_its_axes(rows: Table) -> None:
    for column in mine(rows).columns:
        for axis in column.axes:
            held = zip(rows.column(axis), column.values, strict=True)
            assert all(own is None or own == joined for own, joined in held), axis


@pytest.mark.parametrize("text", ["(-(batch//2))*(batch + past)", "past*(2*((batch + past)*(batch//2)))", "-(-past)*3"])
def test_a_product_is_read_as_it_was_written(text: str) -> None:
    """Found by `make fuzz`: a factor was multiplied out, so that a plan that was read differed from the one written."""
    expression = Expression.parse(text)
    assert Expression.parse(str(expression)) == expression


#: how the length of an input may follow from those of two others
FOLLOWING = ("{0}", "{0} + 3", "4*{0}", "{0} + {1}", "40 - {0}", "{0}*{1}", "min({0}, 9)", "({0} - 1)//2 + 1", "7")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


class Takes(torch.nn.Module):
    """Takes anything and looks at nothing."""

    def forward(self, a: Any, b: Any = None, x: Any = None, n: Any = 0, **rest: Any) -> torch.Tensor:
        return torch.zeros(1)


@st.composite
def recorded(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some calls with random lengths, planted relations and nested arguments; some may lack an argument."""
    texts = draw(st.lists(st.sampled_from(FOLLOWING), min_size=1, max_size=2))
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=4, max_size=4))
    counts, optional = draw(st.booleans()), draw(st.booleans())
    calls = []
    for number in range(draw(st.integers(1, 4))):
        rows, p, s = draw(st.integers(1, 5)), draw(st.integers(0, 12)), draw(st.integers(1, 12))
        lengths = [max(0, eval(text.format("p", "s"), {"min": min}, {"p": p, "s": s})) for text in texts]
        call: dict[str, Any] = {
            "a": filled((rows, p), dtypes[0]),
            "b": {"inner": [filled((rows, 2, s), dtypes[1]), "text", None]},
            "x": tuple(filled((rows, length), dtype) for length, dtype in zip(lengths, dtypes[2:], strict=False)),
        }
        if counts:
            call["n"] = p + s
        if optional and number % 2:
            del call["b"]
        calls.append(call)
    return calls


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype)


def watched(calls: list[dict[str, Any]]) -> InputObserver:
    model, observer = Takes(), InputObserver()
    with observer(model, store_n_calls=len(calls)):
        for call in calls:
            model(**call)
    return observer


def sizes_of_calls(observer: InputObserver, plan: Plan) -> list[dict[str, int]]:
    """The size of each axis that a call has, by the text of the axis."""
    found = []
    for call in observer.recording().calls:
        specs = dict(zip(call.inputs.structure.paths(), call.inputs.leaves, strict=True))
        rows = {}
        for path, spec in specs.items():
            if isinstance(spec, ConstantSpec):
                rows |= {str(Axis(path, None)): spec.value} if spec.is_int else {}
            else:
                rows |= {str(Axis(path, dim)): size for dim, size in enumerate(spec.shape)}
        if call.index in plan.calls:
            found.append(rows)
    return found


def plans_of(observer: InputObserver) -> tuple[Plan, ...]:
    return observer.plans(probe=False)


@given(recorded())
@examples(40)
def test_the_plan_holds_on_every_call_that_has_what_it_names(calls: list[dict[str, Any]]) -> None:
    observer = watched(calls)
    plans = plans_of(observer)
    assert sorted(index for plan in plans for index in plan.calls) == sorted(
        call.index for call in observer.recording().calls
    )
    for plan in plans:
        axes = {str(axis): expression for leaf in plan.inputs for axis, expression in leaf.axes}
        homes = {str(expression): axis for axis, expression in reversed(axes.items()) if expression.is_symbol}
        for rows in sizes_of_calls(observer, plan):
            sizes = {name: rows[axis] for name, axis in homes.items() if axis in rows}
            for axis, expression in axes.items():
                if axis in rows and set(expression.symbols) <= set(sizes):
                    assert expression.evaluate(sizes) == rows[axis], (axis, str(expression), rows)
            for symbol in plan.symbols:
                size = sizes.get(symbol.name)
                assert size is None or (symbol.allows(size) and size % symbol.step == 0), symbol


def check_arguments(plan: Plan, observer: InputObserver, sizes: dict[str, int]) -> None:
    """Arguments of these sizes have the structure, the shapes, the dtypes and the devices of the plan."""
    samples = observer._watcher.store().samples
    values = Calls(plan, samples).values(sizes)
    assert list(values) == [leaf.path for leaf in plan.leaves]
    for leaf in plan.leaves:
        spec: Any = spec_of(values[leaf.path])
        if leaf.is_tensor:
            assert spec.shape == tuple(e.evaluate(sizes) for e in leaf.shape), leaf.path.code()
            assert (spec.dtype, spec.device) == (leaf.dtype, leaf.device)
        else:
            assert spec == (leaf.constant if leaf.value is None else ConstantSpec(leaf.value.evaluate(sizes)))
    arguments = close_arguments(plan, values)
    assert open_arguments(arguments).structure == plan.structure
    kept = {id(value) for sample in samples for value in leaf_values(sample).values()}
    assert not any(id(value) in kept for value in values.values() if isinstance(value, torch.Tensor))


@given(recorded())
@examples(40)
def test_chosen_sizes_and_arguments_are_as_planned(calls: list[dict[str, Any]]) -> None:
    observer = watched(calls)
    for plan in plans_of(observer):
        chosen = []
        try:
            chosen.append(choose_sizes(plan))
            assert is_general(plan, chosen[0])
        except ExportError as error:
            assert error.slug == "no-sizes"  # noqa: PT017  # any other is an error of the test
        trials = trial_sizes(plan, chosen)
        assert all(sizes not in chosen for sizes in trials)
        for sizes in (*chosen, *trials[:3]):
            assert set(sizes) == {symbol.name for symbol in plan.symbols}
            for symbol in plan.symbols:
                assert symbol.allows(sizes[symbol.name])
                assert sizes[symbol.name] % symbol.step == 0
            check_arguments(plan, observer, sizes)
