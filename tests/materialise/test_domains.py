"""Every value that is made is valid: toy models say of each real call that is made of them whether it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor

from onlooker import InputObserver
from onlooker.core.call import Call
from onlooker.core.path import Name, Path
from onlooker.core.spec import Axis
from onlooker.core.structure import Structure, Tree
from onlooker.materialise.domain import Domain, clamped_to_domain
from onlooker.materialise.domains import Domains, domains_of
from onlooker.materialise.facts import Fact
from onlooker.observing.store import Sample
from onlooker.pytrees.open import open_arguments, spec_of

Law = Callable[..., bool]
Make = Callable[[int], dict[str, torch.Tensor]]


def drawn(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=drawn(sum(shape)))


def ints(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=drawn(sum(shape)))


@dataclass(frozen=True)
class Case:
    """Arguments by a number, and what is valid; so many ``calls`` are watched."""

    make: Make
    law: Law
    calls: int = 2


def rising(x: torch.Tensor) -> bool:
    return bool((x.diff(dim=-1) >= 0).all())


def offsets(n: int) -> dict[str, torch.Tensor]:
    return {"items": ints(0, 20, 3 * n + 1), "given": torch.arange(n) * 3}


def packed(n: int) -> dict[str, torch.Tensor]:
    """Rows of several texts laid flat, and the boundaries between them."""
    given = torch.tensor([0, *sorted(range(2, n), key=lambda i: -i)[: n - 4][::-1], 2 * n])
    return {"items": rand(2 * n, 3), "given": given}


def spans(items: torch.Tensor, given: torch.Tensor) -> bool:
    """From 0 to the end; one boundary alone cannot."""
    return len(given) < 2 or (rising(given) and given[[0, -1]].tolist() == [0, len(items)])


def begins(items: torch.Tensor, given: torch.Tensor) -> bool:
    return rising(given) and int(given[0]) == 0 and int(given[-1]) <= len(items)


def lengths(n: int) -> dict[str, torch.Tensor]:
    given = torch.arange(1, n)
    return {"items": rand(int(given.sum()), 3), "given": given.flip(0)}


def padded(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(4, n, 3), "given": torch.tensor([n, n - 1, n // 2, 1])}


def edges(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": ints(0, n, 2, 2 * n + 1)}


def groups(n: int) -> dict[str, torch.Tensor]:
    """The group that each of some sorted rows belongs to."""
    return {"items": rand(n, 3), "given": ints(0, n, 2 * n + 1).sort().values}


def one_hot(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": torch.nn.functional.one_hot(ints(0, 5, n), 5)}


def one_hot_maps(n: int) -> dict[str, torch.Tensor]:
    given = torch.nn.functional.one_hot(ints(0, 4, 2, n, n), 4).permute(0, 3, 1, 2).float()
    return {"items": rand(2, n), "given": given}


def probabilities(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": rand(n, 5).softmax(-1)}


def between(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": rand(n, 5).sigmoid()}


def times(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(2, n), "given": rand(2, n).abs().add(0.01).cumsum(-1) + 100}


def schedule(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": torch.linspace(14, 0.5, n)}


def stamps(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": torch.arange(n) * 40 + 1_700_000_000 + ints(0, 9, n)}


def positions(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(3, n), "given": torch.arange(n).expand(3, n).clone()}


def permutation(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": torch.randperm(n, generator=drawn(n))}


def marked(n: int) -> dict[str, torch.Tensor]:
    """Classes, and -100 where there is none."""
    given = ints(0, 30, 3, n)
    given[:, 0] = -100
    return {"items": rand(3, n), "given": given}


def codes(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(3, n), "given": torch.tensor([7, 90, 33])[ints(0, 3, 3, n)]}


def distances(n: int) -> dict[str, torch.Tensor]:
    return {"items": rand(n, 3), "given": rand(n, 5).abs() * 9}


def is_one_hot(x: torch.Tensor, dim: int) -> bool:
    return bool((x.sum(dim) == 1).all()) and bool(((x == 0) | (x == 1)).all())


def bound(items: torch.Tensor, given: torch.Tensor) -> bool:
    return bool((given >= 0).all()) and bool((given < items.shape[0]).all())


CASES = {
    "offsets": Case(offsets, begins),
    "offsets of one call": Case(offsets, begins, 1),
    "boundaries": Case(packed, spans),
    "boundaries of one call": Case(packed, spans, 1),
    "lengths": Case(lengths, lambda items, given: int(given.sum()) == len(items) and rising(given.flip(0))),
    "lengths of one call": Case(lengths, lambda items, given: int(given.sum()) == len(items), 1),
    "padded lengths": Case(padded, lambda items, given: int(given.max()) == items.shape[1] and int(given.min()) > 0),
    "index": Case(edges, bound),
    "index of one call": Case(edges, bound, 1),
    "sorted index": Case(groups, lambda items, given: bound(items, given) and rising(given)),
    "one-hot": Case(one_hot, lambda items, given: is_one_hot(given, 1), 1),
    "one-hot maps": Case(one_hot_maps, lambda items, given: is_one_hot(given, 1), 1),
    "probabilities": Case(
        probabilities, lambda items, given: bool((given >= 0).all() and ((given.sum(-1) - 1).abs() < 0.02).all()), 1
    ),
    "between 0 and 1": Case(between, lambda items, given: bool(((given >= 0) & (given <= 1)).all()), 1),
    "times": Case(times, lambda items, given: bool((given.diff(dim=-1) > 0).all() and (given >= 0).all()), 1),
    "schedule": Case(schedule, lambda items, given: bool((given.diff(dim=-1) < 0).all() and (given >= 0).all()), 1),
    "stamps": Case(stamps, lambda items, given: bool((given.diff(dim=-1) > 0).all())),
    "positions": Case(positions, lambda items, given: bool((given == torch.arange(given.shape[1])).all())),
    "permutation": Case(permutation, lambda items, given: given.sort().values.tolist() == list(range(len(given))), 1),
    "marks beside ids": Case(
        marked, lambda items, given: bool(((given == -100) | ((given >= 0) & (given < 30))).all()), 1
    ),
    "codes": Case(codes, lambda items, given: bool(torch.isin(given, torch.tensor([7, 90, 33])).all()), 1),
    "distances": Case(distances, lambda items, given: bool((given >= 0).all()), 1),
}


class Checked(torch.nn.Module):
    """Reads both arguments, and notes each real call that is not valid."""

    def __init__(self, law: Law) -> None:
        super().__init__()
        self.judge = Judge(law)

    def forward(self, items: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        self.judge(items, given)
        return items.sin().sum(0) + given.to(torch.float64).cos().mean()


class Judge:
    """Outside of the model, so that what experiments put back is not this: see :mod:`unreached`."""

    __module__ = "logging"

    def __init__(self, law: Law) -> None:
        self.law, self.calls, self.unlawful = law, 0, list[dict[str, Any]]()

    def __call__(self, *given: torch.Tensor) -> None:
        if torch.compiler.is_compiling() or any(isinstance(x, FakeTensor) or x.is_meta for x in given):
            return
        self.calls += 1
        if any(x.numel() == 0 for x in given) or self.law(*given):
            return
        self.unlawful.append({"shapes": [tuple(x.shape) for x in given], "given": given[-1].tolist()})

    def __deepcopy__(self, memo: object) -> Judge:
        return self


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", CASES)
def test_no_invalid_call_is_ever_made(name: str) -> None:
    case = CASES[name]
    model, observer = Checked(case.law), InputObserver()
    with observer(model):
        for n in (6, 9, 13)[: case.calls]:
            model(**case.make(n))
    assert not model.judge.unlawful, "the case itself"
    program = observer.export()
    tally = program.verify()
    assert model.judge.calls > case.calls + 10
    assert not model.judge.unlawful
    assert tally.verified, tally


class Bags(torch.nn.Module):
    """A real EmbeddingBag: what it reads with offsets that fall, or lie past the end, is foreign memory."""

    def __init__(self, *, include_last_offset: bool) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=include_last_offset)
        self.judge = Judge(self.is_valid)

    def forward(self, items: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        self.judge(items, offsets)
        made: torch.Tensor = self.bag(items, offsets)
        return made

    def is_valid(self, items: torch.Tensor, offsets: torch.Tensor) -> bool:
        known = bool(((items >= 0) & (items < 20)).all())
        last = int(offsets[-1])
        ends = last == len(items) if self.bag.include_last_offset else last <= len(items)
        return known and rising(offsets) and int(offsets[0]) == 0 and (ends or len(offsets) == 1)


@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("bags", [[[3, 1, 4]], [[2, 5, 1], [4, 0, 3, 6]]], ids=["one call", "two calls"])
def test_offsets_of_an_embedding_bag_stay_offsets(bags: list[list[int]], include_last_offset: bool) -> None:
    model, observer = Bags(include_last_offset=include_last_offset), InputObserver()
    with observer(model):
        for sizes in bags:
            starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
            offsets = torch.tensor(starts if include_last_offset else starts[:-1])
            model(ints(0, 20, sum(sizes)), offsets)
    program = observer.export()
    tally = program.verify()
    assert not model.judge.unlawful
    assert tally.verified, tally
    assert model.judge.calls > 10


# the domains themselves


GIVEN = Path((Name("given"),))


def domains(*calls: dict[str, Any]) -> Domains:
    """The domains that calls show."""
    nothing: Tree[Any] = Tree(Structure(), (None,))
    samples = []
    for index, values in enumerate(calls):
        inputs = open_arguments(values)
        specs = Tree(inputs.structure, tuple(map(spec_of, inputs.leaves)))
        samples.append(Sample(Call(index, specs, Tree(Structure(), (spec_of(None),)), ()), inputs, nothing))
    return domains_of(samples)


def leaves(call: dict[str, Any]) -> dict[Path, Any]:
    return dict(open_arguments(call).items())


@pytest.mark.parametrize("name", CASES)
def test_watched_values_are_lawful_as_they_are(name: str) -> None:
    case = CASES[name]
    calls = [case.make(n) for n in (6, 9, 13)[: case.calls]]
    known = domains(*calls)
    for call in calls:
        values, before = leaves(call), copy.deepcopy(call)
        valid = known.clamped(values)
        assert all(valid[path] is value for path, value in values.items())
        assert known.are_valid(values)
        assert all(torch.equal(call[key], before[key]) for key in call)


@given(st.sampled_from(list(CASES)), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_any_values_become_lawful_once_and_for_all(name: str, rows: int, length: int, seed: int) -> None:
    case = CASES[name]
    example = case.make(6)
    known = domains(*[case.make(n) for n in (6, 9, 13)[: case.calls]])
    shape = [rows, length, *example["given"].shape[2:]][: example["given"].ndim]
    given_ = torch.randint(-9, 400, shape, generator=drawn(seed)).to(example["given"].dtype)
    items = torch.zeros([length if size == example["given"].shape[-1] else rows for size in example["items"].shape])
    once = known.clamped({**leaves(example), GIVEN: given_, Path((Name("items"),)): items})
    assert once[GIVEN].shape == given_.shape
    assert once[GIVEN].dtype == given_.dtype
    assert known.are_valid(once)


def plain(*shape: int) -> torch.Tensor:
    return rand(*shape)


@pytest.mark.parametrize(
    "value",
    [
        plain(3, 4),
        torch.zeros(2, 3),
        torch.ones(2, 3),
        torch.full((2, 3), 3.5),
        torch.tensor([1.0, 3.0]),
        torch.tensor(2.5),
        torch.tensor([[float("nan"), 1.0, 2.0]]),
        torch.zeros(0, 3),
        torch.tensor([[0.5 - 0.25j, 1j], [-0.5, 2.0]]),
    ],
    ids=str,
)
def test_floats_that_say_nothing_are_free(value: torch.Tensor) -> None:
    domain = domains({"given": value}).of(GIVEN)
    assert domain.is_plain
    wild = torch.full_like(value, -1e3)
    assert clamped_to_domain(wild, domain, {}) is wild


@pytest.mark.parametrize(
    ("value", "is_mask"),
    [
        (torch.tensor([[0, 1, 1]]), True),
        (torch.tensor([[1, 1, 0], [1, 0, 0]]), True),
        (torch.tensor([[True, True]]), True),
        (torch.tensor([[0.0, -1e9]]), True),
        (torch.tensor([[0.0, -torch.inf]]), True),
        (torch.tensor([[1.0, 1.0, 0.0]]), True),
        (torch.tensor([[0, 1, 0]]), False),
        (torch.tensor([[1, 1, 1]]), False),
        (torch.tensor([[0, 0, 0]]), False),
        (torch.tensor([[5, 7, 7]]), False),
        (torch.tensor([[0.0, 0.0]]), False),
    ],
    ids=str,
)
def test_a_mask_is_known_by_its_values(value: torch.Tensor, is_mask: bool) -> None:
    assert domains({"given": value}).of(GIVEN).is_mask is is_mask


@pytest.mark.parametrize("value", [torch.ones(2, 3, dtype=torch.int64), torch.zeros(1, 1, 2, 2), torch.ones(2, 3)])
def test_values_that_are_all_alike_are_those_of_a_mask_by_name_alone(value: torch.Tensor) -> None:
    path = Path((Name("attention_mask"),))
    assert domains({"attention_mask": value}).of(path).is_mask


def test_a_greatest_id_that_equals_a_size_in_one_call_does_not_grow_with_it() -> None:
    known = domains({"given": torch.tensor([[7, 2, 5]]), "items": torch.zeros(7)})
    grown = leaves({"given": torch.tensor([[7, 2, 5]]), "items": torch.zeros(99)})
    assert known.are_valid(grown)
    shrunk = known.clamped(leaves({"given": torch.tensor([[7, 2, 5]]), "items": torch.zeros(4)}))
    assert int(shrunk[GIVEN].max()) <= 4


def test_an_int_argument_bounds_an_index() -> None:
    known = domains({"given": torch.tensor([3, 0, 4, 1]), "count": 5}, {"given": torch.tensor([1, 7, 0]), "count": 8})
    assert domain_limit(known, 5) == 4
    made = known.clamped({GIVEN: torch.tensor([7, 1, 3]), Path((Name("count"),)): 3})[GIVEN]
    assert int(made.max()) < 3


def domain_limit(known: Domains, count: int) -> int | None:
    return known.of(GIVEN).limit({Axis(Path((Name("count"),)), None): count})


def test_positions_of_one_length_do_not_pass_what_was_seen() -> None:
    table = {"given": torch.arange(5).expand(2, 5).clone()}
    known = domains(table)
    assert known.clamped({GIVEN: torch.tensor([[0, 1, 2, 3, 4, 5, 6]])})[GIVEN].tolist() == [[0, 1, 2, 3, 4, 4, 4]]
    known = domains(table, {"given": torch.arange(7).expand(2, 7).clone()})
    assert known.clamped({GIVEN: torch.zeros(1, 9, dtype=torch.int64)})[GIVEN].tolist() == [list(range(9))]


def test_positions_from_0_count_where_their_sums_are_sizes_by_chance() -> None:
    calls = [{"given": torch.arange(length), "x": torch.zeros(rows, 4)} for rows, length in ((3, 3), (6, 4))]
    assert domains(*calls).of(GIVEN).is_consecutive


def test_ids_of_single_steps_are_no_positions() -> None:
    """``generate()`` gives one id at a time: consecutive all of them, for want of a neighbour."""
    known = domains(*[{"given": torch.tensor([[token]]), "items": torch.zeros(4)} for token in (7, 90, 3)])
    proposed = {GIVEN: torch.tensor([[90, 90, 90]])}
    assert known.clamped(proposed)[GIVEN] is proposed[GIVEN]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_short_floats_have_domains_too(dtype: torch.dtype) -> None:
    value = rand(3, 7).softmax(-1).to(dtype)
    domain = domains({"given": value}).of(GIVEN)
    assert domain.simplex == -1
    made = clamped_to_domain(torch.tensor([[1e3, -1e3, 0, torch.nan]], dtype=dtype), domain, {})
    assert made.dtype == dtype
    assert abs(float(made.float().sum()) - 1) < 0.02


class Masked(torch.nn.Module):
    """Reads ids, where a mask says so."""

    def forward(self, ids: torch.Tensor, shown: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        kept = ids if shown is None else ids * shown
        return kept.cumsum(1) * scale


@pytest.mark.parametrize("shown", [None, torch.ones(2, 6, dtype=torch.int64), torch.tensor([[0, 1, 1, 1, 1, 1]] * 2)])
def test_a_mask_is_tried_with_padding_whatever_it_is_called(shown: torch.Tensor | None) -> None:
    """By its values, or since ones are neutral: a mask of ones alone that must be given says nothing."""
    model, observer = Masked(), InputObserver()
    with observer(model):
        model(torch.randint(3, 90, (2, 6), generator=drawn(0)), shown)
        model(
            torch.randint(3, 90, (3, 9), generator=drawn(1)),
            None if shown is None else shown[:1].expand(3, 6).repeat(1, 2)[:, :9].sort().values,
        )
    tally = observer.export().verify()
    assert tally.verified
    assert any("padded" in check.label for check in tally.checks) == (shown is not None)


def test_a_script_draws_no_offsets_that_fall() -> None:
    assert domains(offsets(6), offsets(9)).limits()[GIVEN] == (0, 0)
    assert domains(edges(6)).limits()[GIVEN][1] > 0


def test_a_script_for_an_embedding_bag_makes_lawful_arguments() -> None:
    model, observer = Bags(include_last_offset=False), InputObserver()
    with observer(model):
        for sizes in ([2, 5, 1], [4, 0, 3, 6]):
            model(ints(0, 20, sum(sizes)), torch.tensor([0, *sizes[:-1]]).cumsum(0))
    source = observer.export(probe=False).code()
    assert '"offsets": torch.randint(0, 1, ' in source


@pytest.mark.parametrize("falling", [False, True], ids=["rising", "falling"])
@pytest.mark.parametrize("numbers", [[1e3, 1e3], [1e3, -1e3, 0.0], [0.0, 0.0, 0.0], [-60.0] * 4, [1e8] * 5])
def test_extremes_are_strictly_sorted_where_the_watched_floats_are(numbers: list[float], falling: bool) -> None:
    order = {Fact.FALLING if falling else Fact.RISING, Fact.STRICT, Fact.NOT_NEGATIVE}
    found = clamped_to_domain(torch.tensor(numbers), Domain(facts=frozenset(order)), {})
    steps = -found.diff() if falling else found.diff()
    assert bool((steps > 0).all()), found
    assert bool((found >= 0).all())


@pytest.mark.parametrize(
    ("rows", "ones_hide"),
    [
        ([[False, False, True], [False, False, False]], True),
        ([[True, True, False], [True, True, True]], False),
        ([[False, True, True], [False, False, True]], False),
    ],
)
def test_a_mask_of_padding_is_known_by_a_row_that_hides_nothing(rows: list[list[bool]], ones_hide: bool) -> None:
    known = domains({"given": torch.tensor(rows)})
    assert known.of(GIVEN).ones_hide is ones_hide
    hidden = known.clamped({GIVEN: torch.ones(2, 4, dtype=torch.bool)})[GIVEN]
    assert bool(hidden.all(1).any()) is not ones_hide
