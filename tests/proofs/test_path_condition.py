"""Conditions of a trace: which are tried, which are kept, and where they fail."""

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from onlooker import InputObserver
from onlooker.core.contract import Origin
from onlooker.proofs.path_condition import Atom, in_least_terms, key_of, written

N, B = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "nb")
QUARTER = FloorDiv(N, 4)


@pytest.mark.parametrize(
    ("condition", "excluded"),
    [
        (sympy.Ne(QUARTER, 1), ["n // 4 == 1"]),
        (QUARTER > 0, ["n // 4 == 0"]),
        (QUARTER >= 2, ["n // 4 == 1", "n // 4 == 0"]),
        (sympy.Lt(1, QUARTER), ["n // 4 == 1", "n // 4 == 0"]),
        (sympy.Ne(N, B), ["b == n"]),
        (sympy.Ne(N, 40), ["n == 40"]),
        (sympy.Or(N > 3, B > 4), ["not (b > 4 or n > 3)"]),
    ],
    ids=str,
)
def test_a_condition_says_what_it_excludes(condition, excluded):
    atom = Atom(key_of(condition), condition, Origin.OPERATOR, "")
    found = [written(exception).replace("n == b", "b == n") for exception in atom.exceptions()]
    assert found == excluded


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (sympy.Lt(4096, 4096 * QUARTER), "1 < n // 4"),
        (sympy.Ne(32 * B * N, 0), "b*n != 0"),
        (sympy.Eq(6 * N + 4, 2 * B), "2 + 3*n == b"),
        (sympy.Lt(4096, 4097 * QUARTER), "4096 < 4097*(n // 4)"),
        (-N > -64, "n < 64"),
        (sympy.Ge(-N, -B), "n <= b"),
        (sympy.Ne(N, B), None),
        (sympy.Or(N > 3, B > 4), None),
    ],
    ids=str,
)
def test_a_condition_on_multiples_is_one_on_sizes(condition, expected):
    found = in_least_terms(condition)
    if expected is None:
        assert found == condition
    else:
        assert written(found) == expected


class Windows(torch.nn.Module):
    """Rows in windows of 3: how many a window has is the same for all sizes, where there is a row at all."""

    def forward(self, x):
        rows = x.shape[1] // 8
        if rows < 1:
            return x
        whole = rows + (-rows) % 3
        return x * 2 if 18 * (whole // 3) // whole == 6 else x


def test_a_condition_that_the_others_make_true_is_no_constraint():
    model, observer = Windows(), InputObserver()
    with observer(model):
        for length in (16, 40, 70):
            model(torch.rand(2, length))
    program = observer.export()
    formulas = [str(one) for graph in program.graphs for region in graph.contract.regions for one in region.constraints]
    assert any("// 8 >= 1" in formula for formula in formulas)
    assert not [formula for formula in formulas if formula.startswith("True")]
    assert program.verify().verified
