"""The conditions of a program: those of torch, as text that is safe to read from a file."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, UsageError
from onlooker.export.conditions import checker, guarded, read_condition
from onlooker.export.torch_conditions import _Sizes, conditions_of


class Guarded(torch.nn.Module):
    """Sizes that add up, a size with two sides, a size that has to be even, and an int."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, total: torch.Tensor, n: int) -> torch.Tensor:
        joined = torch.cat([a, b], dim=1) * total
        halves = joined.reshape(joined.shape[0], -1, 2, 3) if a.shape[1] > 4 else joined.unsqueeze(2)
        return halves.sum() * n


@pytest.fixture(scope="module")
def program() -> Program:
    model, observer = Guarded(), InputObserver()
    with observer(model):
        for rows, a, b, n in ((2, 2, 4, 3), (3, 3, 7, 5), (2, 6, 4, 4), (4, 8, 2, 6)):
            model(torch.ones(rows, a, 3), torch.ones(rows, b, 3), torch.ones(rows, a + b, 3), n)
    return observer.export()


SIZES = st.integers(1, 11)


@settings(max_examples=200)
@given(rows=SIZES, other=SIZES, a=SIZES, b=SIZES, off=st.sampled_from([0, 0, 0, 1, -1]), n=st.integers(1, 9))
def test_conditions_refuse_what_torch_refuses_and_nothing_else(
    program: Program, rows: int, other: int, a: int, b: int, off: int, n: int
) -> None:
    rows_of_b = rows if other > 3 else other
    values = {
        "a": torch.ones(rows, a, 3),
        "b": torch.ones(rows_of_b, b, 3),
        "total": torch.ones(rows, max(1, a + b + off), 3),
        "n": n,
    }
    for graph in program.graphs:
        inputs = [values[leaf.path.code()] for leaf in graph.plan.inputs]
        try:
            graph.run(inputs)
            taken = True
        except (AssertionError, RuntimeError):
            taken = False
        conditions = conditions_of(graph)
        held = checker(conditions, list(graph.names.values()))(inputs) < 0
        assert held == taken, conditions


def test_a_refusal_says_the_condition_by_path_and_the_sizes_that_came() -> None:
    run = guarded(lambda inputs: inputs, ["x_1.shape[1] == 2*n + 1"], {"x_1": "cache.keys[0]", "n": "n"})
    assert run([torch.ones(1, 5), 2])[1] == 2
    with pytest.raises(
        RuntimeError, match=r"it needs cache.keys\[0\].shape\[1\] == 2 \* n \+ 1, and cache.keys\[0\].s"
    ):
        run([torch.ones(1, 6), 2])


@pytest.mark.parametrize("condition", ["x.shape[3] == 1", "x.shape[0] % x.shape[1] == 0", "x == 1", "n.shape[0] == 1"])
def test_a_condition_without_an_answer_refuses_the_call(condition: str) -> None:
    """Found by ``make fuzz`` in a damaged file: a condition on a dimension that the input does not have."""
    run = guarded(lambda inputs: inputs, [condition, "min(n, 3) == 3"], {"x": "x", "n": "n"})
    with pytest.raises(RuntimeError, match=r"have no answer|it needs"):
        run([torch.ones(2, 0), 7])


def test_an_input_may_be_called_as_a_function_is() -> None:
    check = checker(["min(min.shape[0], 3) == 3", "math.shape[0] % 2 == 0"], ["min", "math"])
    assert check([torch.ones(4), torch.ones(2)]) == -1
    assert check([torch.ones(2), torch.ones(2)]) == 0
    assert check([torch.ones(4), torch.ones(3)]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "open('/etc/passwd')",
        "__import__('os').system('true')",
        "x.__class__",
        "x.shape[0].__class__",
        "x.shape[y]",
        "x.data[0]",
        "y.shape[0] == 1",
        "(lambda: 1)()",
        "[n for n in (1,)]",
        "9 ** 9 ** 9",
        "1 << 99",
        "min(1, key=print)",
        "math.factorial(9)",
        "x.shape[0] if True else print",
        "f'{x}'",
        "'a' * 9",
        "n := 3",
        "(" * 300 + "n" + ")" * 300,
        "-" * 300 + "n",
        "not " * 100_000 + "n",
        "n ==",
        "",
        "\x00",
    ],
)
def test_what_is_no_comparison_of_sizes_is_refused_before_it_is_evaluated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        checker([text], ["x", "n"])
    assert caught.value.slug == "bad-condition"


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        read_condition(text, ["x", "n"])


def test_a_guard_of_torch_that_cannot_be_checked_is_an_error_and_one_on_strides_is_dropped(program: Program) -> None:
    sizes: Any = _Sizes(program.graphs[0])
    assert sizes.of_tracer("L['a'].stride()[0] == 3") == []
    assert sizes.of_tracer("L['a'].size()[1] % 2 == 0") == ["a.shape[1] % 2 == 0"]
    with pytest.raises(ExportError, match=r"torch guards the program by .* cannot be checked without torch"):
        sizes.of_tracer("torch._oracle(L['a'])")
