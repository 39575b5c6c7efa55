"""What a proof about sizes says is true at every size that is tried."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from onlooker.proofs.size_proofs import SizeProofs

N, B = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "nb")
S = N + PythonMod(4 - PythonMod(N, 4), 4)

_numbers = st.integers(-6, 6).map(sympy.Integer)
_divisors = st.sampled_from([2, 3, 4, 7]).map(sympy.Integer)


def _grown(children):
    return st.one_of(
        st.tuples(children, children).map(lambda pair: pair[0] + pair[1]),
        st.tuples(children, children).map(lambda pair: pair[0] * pair[1]),
        st.tuples(children, _divisors).map(lambda pair: FloorDiv(*pair)),
        st.tuples(children, _divisors).map(lambda pair: PythonMod(*pair)),
    )


_expressions = st.recursive(st.one_of(st.sampled_from([N, B]), _numbers), _grown, max_leaves=6)
_relations = st.sampled_from([sympy.Eq, sympy.Ne, sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt])


def _python(value, n, b):
    """The value of an expression by Python's own arithmetic."""
    if value.is_Integer:
        return int(value)
    if value.is_Symbol:
        return n if value == N else b
    args = [_python(arg, n, b) for arg in value.args]
    if isinstance(value, FloorDiv):
        return args[0] // args[1]
    if isinstance(value, (PythonMod, Mod)):
        return args[0] % args[1]
    if value.is_Pow:
        return args[0] ** args[1]
    total = 0 if value.is_Add else 1
    for arg in args:
        total = total + arg if value.is_Add else total * arg
    return total


def _sizes(low, step):
    return [(n, b) for n in range(low + -low % step, low + 60, step) for b in (*range(low, low + 4), 17, 96)]


@settings(max_examples=300, deadline=None)
@given(_expressions, _expressions, _relations, st.sampled_from([0, 1, 2]), st.sampled_from([1, 2, 4]))
def test_a_proven_condition_holds_everywhere(first, second, relation, low, step):
    facts = [sympy.Eq(PythonMod(N, step), 0)] if step > 1 else []
    condition = relation(first, second)
    if not SizeProofs({"n": low, "b": low}, facts).always(condition):
        return
    compare = {"==": int.__eq__, "!=": int.__ne__, ">=": int.__ge__, ">": int.__gt__, "<=": int.__le__, "<": int.__lt__}
    for n, b in _sizes(low, step):
        assert compare[relation(N, B).rel_op](_python(first, n, b), _python(second, n, b)), (condition, n, b)


@settings(max_examples=300, deadline=None)
@given(_expressions, st.sampled_from([0, 2]), st.sampled_from([1, 4]))
def test_what_stands_for_an_expression_is_equal_to_it(value, low, step):
    facts = [sympy.Eq(PythonMod(N, step), 0)] if step > 1 else []
    proofs = SizeProofs({"n": low, "b": low}, facts)
    proofs.same(4 * FloorDiv(N, 4))
    found = proofs.same(sympy.sympify(value))
    for n, b in _sizes(low, step):
        assert _python(found, n, b) == _python(sympy.sympify(value), n, b)


@pytest.mark.parametrize(
    ("condition", "lows", "facts"),
    [
        (sympy.Eq(FloorDiv(S, FloorDiv(S, 4)), 4), 1, []),
        (sympy.Eq(PythonMod(B * S, 4 * B), 0), 1, []),
        (sympy.Eq(S, N), 0, [sympy.Eq(PythonMod(N, 4), 0)]),
        (sympy.Ne(S, N), 0, [sympy.Ne(PythonMod(N, 4), 0)]),
        (sympy.Ge(S, N), 0, []),
        (sympy.Eq(FloorDiv(FloorDiv(N, 4), 7), FloorDiv(N, 28)), 0, []),
        (sympy.Eq(sympy.Max(1, FloorDiv(S, 4)), FloorDiv(S, 4)), 1, []),
        (B * N > 3, 2, []),
        (sympy.Le(N, sympy.Max(2048, N)), 0, []),
        (sympy.Le(sympy.Min(6, N) + B, N + B), 0, []),
        (sympy.Ge(sympy.Max(1, N - 4) + 4, N), 0, []),
        (sympy.Eq(FloorDiv(3 * N - 1, N), 2), 1, []),
        (sympy.Eq(PythonMod(3 * N - 1, N), N - 1), 1, []),
        (sympy.Eq(FloorDiv(2 * N + FloorDiv(N, 3), N), 2), 1, []),
    ],
    ids=str,
)
def test_conditions_of_padded_sizes_are_proven(condition, lows, facts):
    assert SizeProofs({"n": lows, "b": lows}, facts).always(condition)


@pytest.mark.parametrize(
    "condition",
    [
        *(sympy.Eq(S, N), sympy.Ne(FloorDiv(S, 4), 1), B * N > 4, sympy.Ne(N, 40_000), sympy.Le(N, 10**9)),
        *(
            sympy.Eq(FloorDiv(3 * N - 3, N), 2),
            sympy.Eq(FloorDiv(3 * N - 1, N - 1), 3),
            sympy.Le(N, sympy.Max(2048, B)),
        ),
        *(sympy.Le(N, sympy.Min(2048, N)), sympy.Lt(N, sympy.Max(9, N))),
    ],
    ids=str,
)
def test_conditions_that_fail_somewhere_are_not_proven(condition):
    assert not SizeProofs({"n": 2, "b": 2}).always(condition)


@pytest.mark.parametrize("number", [6 * (2**63 - 1), 2**63, 2**62])
def test_numbers_beyond_64_bits_prove_nothing_wrong(number):
    """A size that is known from values alone has the largest int as its bound, also times another number."""
    proofs = SizeProofs({"n": 16}, [])
    proofs.always(sympy.Le(N, number))
    assert not proofs.always(sympy.Ge(-number * N, 0))
    assert not proofs.never(sympy.Le(N, number))
    assert not proofs.always(sympy.Ge(PythonMod(-number * N, 4) - number * N, 0))


def test_numbers_that_tensors_hold_are_not_compared_with_each_other(monkeypatch):
    """A mixture of experts has one for the rows of each expert; pairs of them would be many."""
    compared = []
    equal = SizeProofs.equal
    monkeypatch.setattr(SizeProofs, "equal", lambda *given: compared.append(given) or equal(*given))
    proofs = SizeProofs({"n": 2})
    numbers = [sympy.Symbol(f"u{i}", integer=True, nonnegative=True) for i in range(300)]
    assert [proofs.same(number) for number in numbers] == numbers
    assert [proofs.same(number * N) for number in numbers] == [number * N for number in numbers]
    assert proofs.same((numbers[7] + 1) * N - N) == numbers[7] * N
    assert len(compared) < 4 * len(numbers)
