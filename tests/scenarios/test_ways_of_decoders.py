"""Calls of a decoder with a cache that leave out a mask, positions or the cache: its Python may do something else
there, at sizes that no call had.

The graphs stand for such calls only where runs of the model on each side of what it decides find them equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from onlooker import InputObserver, Program, RejectedCallError
from red_team import Attack, Named, attack

#: (rows, tokens, tokens in the cache) of the watched calls
WATCHED = ((2, 5, 0), (3, 7, 0), (2, 1, 5), (3, 1, 7), (2, 1, 6), (3, 2, 8))
#: those of the calls that should fool the program
LATER = ((2, 1, 70), (2, 3, 70), (2, 70, 0), (2, 40, 0), (8, 5, 0), (8, 1, 5), (2, 1, 33), (3, 40, 10), (1, 1, 1))

Condition = Callable[[int, int, int], bool]


class Decoder(nn.Module):
    """A decoder of one layer, which does something else where an argument is absent and a condition on sizes holds."""

    def __init__(self, absent: str, condition: Condition, what: str = "doubled") -> None:
        super().__init__()
        self.absent, self.condition, self.what = absent, condition, what
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(50, 8), nn.Embedding(512, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids: Any, mask: torch.Tensor | None = None, past: Any = None, positions: Any = None) -> Any:
        rows, tokens = ids.shape
        before = 0 if past is None else past[0].shape[1]
        is_absent = {"mask": mask, "past": past, "positions": positions}[self.absent] is None
        is_other = is_absent and self.condition(rows, tokens, before)
        if positions is None:
            positions = torch.arange(before, before + tokens)[None].expand(rows, tokens)
        x = self.embed(ids) + self.place(positions)
        key, value = self.key(x), self.value(x)
        if past is not None:
            key, value = torch.cat([past[0], key], 1), torch.cat([past[1], value], 1)
        i, j = torch.arange(before, before + tokens)[:, None], torch.arange(before + tokens)[None]
        seen = (j <= i)[None]
        if mask is not None and not (is_other and self.what == "unmasked"):
            seen = seen & mask[:, None, :].bool()
        if is_other and self.what == "window":
            seen = seen & (i - j < 48)[None]
        scores = (self.query(x) @ key.transpose(1, 2)).masked_fill(~seen, -1e9)
        found = scores.softmax(-1) @ value
        if is_other and self.what == "doubled":
            found = found * 2
        if is_other and self.what == "clamped":
            found = found.clamp(max=30.0)
        return found, (key, value)


def past_of(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(rows, tokens, 8, generator=generator), torch.randn(rows, tokens, 8, generator=generator)


def call(rows: int, tokens: int, before: int, *given: str, holes: bool = False) -> tuple[Named]:
    """A call with the arguments that are named."""
    generator = torch.Generator().manual_seed(tokens)
    arguments: dict[str, Any] = {"ids": torch.randint(0, 50, (rows, tokens), generator=generator)}
    if "mask" in given:
        arguments["mask"] = torch.ones(rows, tokens + before, dtype=torch.int64)
        arguments["mask"][0, : (tokens + before) // 3 if holes else 0] = 0
    if "past" in given and before:
        arguments["past"] = past_of(rows, before)
    if "positions" in given:
        arguments["positions"] = torch.arange(before, before + tokens)[None].expand(rows, tokens).contiguous()
    return (Named(arguments),)


def fooling() -> Iterator[tuple[Named]]:
    for sizes in (*LATER, *WATCHED[::3]):
        for given in itertools.product(("mask", ""), ("positions", "")):
            yield call(*sizes, "past", *given)
        yield call(*sizes, "past", "mask", holes=True)
        yield call(*sizes, "past", "mask", "positions", holes=True)
    far = past_of(2, 20)
    yield (Named(call(2, 3, 20)[0] | {"past": (far[0] * 60, far[1] * 60)}),)


def always(rows: int, tokens: int, before: int) -> bool:
    return True


CASES: dict[str, tuple[str, Condition, str, Sequence[str]]] = {
    "mask, long past": ("mask", lambda b, n, p: p > 64, "doubled", ("mask", "positions")),
    "mask, 40 tokens": ("mask", lambda b, n, p: n == 40, "doubled", ("mask",)),
    "mask, window": ("mask", always, "window", ("mask",)),
    "mask, clamped": ("mask", always, "clamped", ("mask",)),
    "past, long prompt": ("past", lambda b, n, p: n > 64, "doubled", ("mask", "positions")),
    "past, many rows": ("past", lambda b, n, p: b > 6, "doubled", ("mask",)),
    "past, padding": ("past", always, "unmasked", ("mask",)),
    "positions, 33 before": ("positions", lambda b, n, p: p == 33, "doubled", ("mask", "positions")),
    "mask, never passed": ("mask", lambda b, n, p: p > 64, "doubled", ()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(12)
def test_no_graph_stands_for_calls_that_are_something_else_beyond_the_watched_sizes(name: str) -> None:
    absent, condition, what, given = CASES[name]
    case = Attack(
        name,
        lambda: Decoder(absent, condition, what),
        lambda: [call(*sizes, "past", *given) for sizes in WATCHED],
        lambda: list(fooling()),
    )
    outcome = attack(case)
    assert outcome.verified == {"torch": True}
    assert not outcome.lies


def exported(model: nn.Module, calls: Sequence[tuple[Named]]) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for (arguments,) in calls:
            model(**arguments)
    return observer.export()


def test_ways_of_calls_that_are_the_same_stay_one_graph() -> None:
    model = Decoder("mask", lambda b, n, p: False).eval()
    program = exported(model, [call(*sizes, "past", "mask", "positions") for sizes in WATCHED])
    (graph,) = program.graphs
    assert graph.plan.never_absent == ()
    (plain,) = call(2, 3, 70, "past", "positions")
    assert torch.allclose(program(**plain)[0], model(**plain)[0], atol=1e-5)


class Listing(Decoder):
    """Has its places from a list of Python."""

    def forward(self, ids: Any, mask: torch.Tensor | None = None, past: Any = None, positions: Any = None) -> Any:
        before = 0 if past is None else past[0].shape[1]
        places = torch.tensor(list(range(before + ids.shape[1])))[before:]
        return super().forward(ids, mask, past, places[None].expand(*ids.shape))


def test_a_list_of_a_range_decides_nothing_in_the_ways_of_a_call() -> None:
    model = Listing("mask", lambda b, n, p: False).eval()
    program = exported(model, [call(*sizes, "past", "mask") for sizes in WATCHED])
    (graph,) = program.graphs
    assert graph.plan.never_absent == ()
    (plain,) = call(2, 3, 70, "past")
    assert torch.allclose(program(**plain)[0], model(**plain)[0], atol=1e-5)


class Sparse(Decoder):
    """Has a mixture of two experts beside its layer."""

    def forward(self, ids: Any, mask: torch.Tensor | None = None, past: Any = None, positions: Any = None) -> Any:
        found, kept = super().forward(ids, mask, past, positions)
        rows = found.reshape(-1, 8)
        chosen = nn.functional.one_hot((rows[:, 0] > 0).long(), 2).T
        out = torch.zeros_like(rows)
        for expert in (chosen.sum(-1) > 0).nonzero():
            (token,) = torch.where(chosen[expert[0]])
            out.index_add_(0, token, self.value(rows[token]) * self.place.weight[expert[0]])
        return found + out.view_as(found), kept


@pytest.mark.slow
def test_experts_that_a_value_chooses_decide_nothing_in_the_ways_of_a_call() -> None:
    model = Sparse("mask", lambda b, n, p: False).eval()
    program = exported(model, [call(*sizes, "past", "mask") for sizes in WATCHED])
    (graph,) = program.graphs
    assert graph.plan.never_absent == ()
    for sizes in ((2, 3, 70), (1, 1, 4), (5, 1, 2)):
        (plain,) = call(*sizes, "past")
        assert torch.allclose(program(**plain)[0], model(**plain)[0], atol=1e-5)


def test_a_way_that_differs_is_refused_with_the_argument_and_served_where_calls_went_it() -> None:
    model = Decoder("past", lambda b, n, p: n > 64).eval()
    program = exported(model, [call(*sizes, "past", "mask") for sizes in WATCHED])
    assert program.verify().verified
    assert any(graph.plan.never_absent for graph in program.graphs)
    (short,) = call(2, 9, 0, "mask")
    assert torch.allclose(program(**short)[0], model(**short)[0], atol=1e-5)
    (long,) = call(2, 70, 0, "mask")
    checked = program.check([long])
    assert not checked.holds


class AsksForAnEmptyList(nn.Module):
    """Does something else for one token with an empty list than without a list."""

    def forward(self, x: torch.Tensor, past: list[torch.Tensor] | None = None) -> Any:
        tokens = x.shape[1]
        is_other = tokens == 1 and past is not None and len(past) == 0
        whole = torch.cat([past[0], x], 1) if past else x
        found = whole.cumsum(1)[:, -tokens:]
        return found * 2 if is_other else found, [whole]


def test_an_empty_list_is_another_way_than_none_where_the_model_tells_them_apart_at_one_size() -> None:
    model, observer = AsksForAnEmptyList().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows, tokens, before in WATCHED:
            model(torch.randn(rows, tokens, 4), [torch.randn(rows, before, 4)] if before else [])
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(2, 1, 4)
    with pytest.raises(RejectedCallError):
        program(x, [])
    long = torch.randn(2, 9, 4)
    assert torch.equal(program(long, [])[0], model(long, [])[0])


class TestStockDecoder:
    """A model of transformers is one graph, with and without mask and cache."""

    SIZES: ClassVar[dict[str, int]] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}

    @pytest.mark.slow
    def test_every_way_is_one_graph(self) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=50, num_hidden_layers=1, num_key_value_heads=1, **self.SIZES)
        model, observer = LlamaForCausalLM(config).eval(), InputObserver()
        ids = torch.randint(1, 50, (2, 7))
        with torch.no_grad(), observer(model):
            model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        program = observer.export()
        assert [graph.plan.never_absent for graph in program.graphs] == [()]
        mask = torch.ones(2, 7, dtype=torch.int64)
        mask[0, :2] = 0
        given: dict[str, Any] = {"input_ids": ids, "position_ids": torch.arange(7)[None].expand(2, 7)}
        given |= {"use_cache": True, "logits_to_keep": 1, "return_dict": True}
        for more in ({}, {"attention_mask": mask}):
            with torch.no_grad():
                expected = model(**given, **more).logits
            for cache in ({}, {"past_key_values": DynamicCache(config=config)}):
                assert torch.allclose(program(**given, **more, **cache).logits, expected, atol=1e-5)
