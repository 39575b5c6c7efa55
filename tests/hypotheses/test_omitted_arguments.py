"""Arguments that every call passed may be left out where the model says so."""

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.hypotheses import omitted_arguments
from onlooker.zoo import tiny_model
from unreached import Unreached


class Masked(nn.Module):
    """A mask, kinds and positions, each of which may be left out; positions have no neutral value."""

    def forward(
        self,
        x,
        mask: torch.Tensor | None = None,
        kinds: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        *,
        named: bool | None = None,
        doubled: bool = False,
        **extra,
    ):
        length = x.shape[1]
        scores = x @ x.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, :] == 0, -1e9)
        out = scores.softmax(-1) @ x
        out = out + (torch.zeros(x.shape[:2]) if kinds is None else kinds)[..., None]
        out = out + (torch.arange(length)[None] if positions is None else positions)[..., None]
        out = 2 * out if doubled else out
        return {"out": out} if named or named is None else (out,)


def masked_calls(*sizes, **flags):
    torch.manual_seed(0)
    model, observer = Masked(), InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in sizes:
            mask = torch.ones(batch, length, dtype=torch.int64)
            mask[0, :2] = 0
            kinds = torch.arange(batch * length).reshape(batch, length) % 2
            positions = torch.arange(length).expand(batch, length) + 3
            model(torch.randn(batch, length, 4), mask, kinds, positions, **flags)
    return model, observer


def test_a_mask_that_every_call_passed_may_be_left_out():
    model, observer = masked_calls((2, 5), (3, 7))
    (plan,) = observer.plans()
    fills = {leaf.path.code(): leaf.fill and leaf.fill.kind for leaf in plan.inputs}
    assert fills == {"x": None, "mask": "ones", "kinds": "zeros", "positions": None}
    program = observer.export()
    x, positions = torch.randn(4, 9, 4), torch.ones(4, 9, dtype=torch.int64)
    kinds = torch.ones(4, 9, dtype=torch.int64)
    for given in ({}, {"kinds": kinds}, {"mask": positions.tril()}):
        torch.testing.assert_close(program(x, positions=positions, **given), model(x, positions=positions, **given))
    with pytest.raises(RejectedCallError, match="positions was in every observed call"):
        program(x)


def test_nothing_is_left_out_without_probes():
    _, observer = masked_calls((2, 5), (3, 7))
    (plan,) = observer.plans(probe=False)
    assert [leaf.path.code() for leaf in plan.inputs if leaf.fill is not None] == []


def test_a_mask_whose_length_nothing_else_tells_may_not_be_left_out():
    class Free(nn.Module):
        def forward(self, x, mask: torch.Tensor | None = None):
            return x.cumsum(1) + (0 if mask is None else (mask - 1).sum())

    model, observer = Free(), InputObserver()
    with observer(model), torch.no_grad():
        for length in (3, 5, 6):
            model(torch.randn(2, length + 4), torch.arange(float(length * length)).reshape(length, length))
        model(torch.randn(2, 5), torch.arange(4.0).reshape(2, 2))
    (plan,) = observer.plans()
    assert plan.leaf("mask").fill is None


def test_flags_that_say_what_the_model_does_anyway_may_be_left_out():
    model, observer = masked_calls((2, 5), (3, 7), named=True, doubled=True, unread=3)
    (plan,) = observer.plans()
    assert [leaf.path.code() for leaf in plan.leaves if leaf.optional] == ["named", "unread"]
    program = observer.export()
    x, positions = torch.randn(4, 9, 4), torch.ones(4, 9, dtype=torch.int64)
    got = program(x, positions=positions, doubled=True)
    torch.testing.assert_close(got, model(x, positions=positions, doubled=True))
    with pytest.raises(RejectedCallError, match="doubled is always True"):
        program(x, positions=positions)


@pytest.mark.slow
def test_flags_are_left_out_at_the_sizes_of_two_calls_since_a_trace_settles_them():
    runs = Unreached()

    class Noting(Masked):
        def forward(self, x, mask: torch.Tensor | None = None, **flags):
            runs.append((tuple(x.shape), frozenset(flags)))
            return super().forward(x, mask, **flags)

    flags = dict.fromkeys(("one", "two", "three", "four"), 1)
    observer, model = InputObserver(), Noting()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4), torch.ones(batch, length), **flags)
    runs.clear()
    (plan,) = observer.plans()
    assert [leaf.path.code() for leaf in plan.leaves if leaf.optional] == [*flags]
    assert len({shape for shape, given in runs if len(given) < 4}) == 2


def test_two_flags_that_say_the_same_together_only_are_not_left_out():
    class Both(nn.Module):
        def forward(self, x, one: bool = False, two: bool = False):
            return x + 1 if one != two else x.cumsum(1)

    model, observer = Both(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3), one=True, two=True)
    (plan,) = observer.plans()
    assert not any(leaf.optional for leaf in plan.leaves)


@pytest.mark.parametrize("architecture", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_program_of_padded_prompts_generates_for_unpadded_ones(architecture):
    model = tiny_model(architecture).model
    ids = torch.tensor([[0, 0, 5, 6, 7, 9], [3, 4, 5, 8, 9, 2]])
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model.generate(ids, attention_mask=(ids > 0).long(), max_new_tokens=3, do_sample=False)
    program = observer.export()
    assert len(program.graphs) == 1
    for prompt, options in ((torch.tensor([[3, 4, 5, 8, 9]]), {}), (ids, {"attention_mask": (ids > 0).long()})):
        expected = model.generate(prompt, max_new_tokens=4, do_sample=False, **options)
        with program.installed(model) as served:
            got = model.generate(prompt, max_new_tokens=4, do_sample=False, **options)
        assert torch.equal(got, expected)
        assert sum(served.calls.values()) == 4
    positions = torch.arange(6)[None]
    with pytest.raises(RejectedCallError, match="use_cache is always True, the call has its default, None"):
        program(input_ids=ids[1:], position_ids=positions, logits_to_keep=1)


class Remembers(nn.Module):
    """What came before is returned where the caller keeps it; without a cache nothing is, or that all the same."""

    def __init__(self, always: bool):
        super().__init__()
        self.always = always

    def forward(self, x, cache: list | None = None):
        past = cache[0] if cache else x[:, :0]
        both = torch.cat([past, x], 1)
        out = {"out": both.cumsum(1)[:, past.shape[1] :]}
        return {**out, "cache": [both]} if self.always or cache is not None else out


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.slow
def test_an_empty_cache_stands_for_none_where_the_model_says_so(always):
    model, observer = Remembers(always), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            cache = model(torch.randn(batch, length, 4), cache=[])["cache"]
            model(torch.randn(batch, 1, 4), cache=cache)
    (plan,) = observer.plans()
    assert plan.needed == (() if always else ("cache",))
    program, x = observer.export(), torch.randn(4, 6, 4)
    torch.testing.assert_close(program(x, cache=[])["cache"], model(x, cache=[])["cache"])
    for absent in ({}, {"cache": None}):
        if always:
            torch.testing.assert_close(program(x, **absent), model(x, **absent))
        else:
            with pytest.raises(RejectedCallError, match="cache was in every observed call"):
                program(x, **absent)
    assert program.verify().verified


class Packs(nn.Module):
    """Without a mask and a cache, places that begin anew are the texts of one row."""

    def forward(
        self, x, mask: torch.Tensor | None = None, places: torch.Tensor | None = None, cache: list | None = None
    ):
        hides = torch.ones(x.shape[1], x.shape[1]).tril()[None]
        if mask is None and cache is None and places is not None:
            text = (places.diff(dim=1) != 1).cumsum(1)
            text = torch.cat([torch.zeros_like(text[:, :1]), text], 1)
            hides = hides * (text[:, :, None] == text[:, None, :])
        past = cache[0] if cache else x[:, :0]
        seen = (
            past.sum(1, keepdim=True) if mask is None else (past * mask[:, : past.shape[1], None]).sum(1, keepdim=True)
        )
        own = x if mask is None else x * mask[:, past.shape[1] :, None]
        return {"out": hides @ own + seen, "cache": [torch.cat([past, x], 1)]}


def test_what_may_be_left_out_alone_and_not_together_is_not_left_out():
    model, observer = Packs(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            mask = torch.ones(batch, length + 1)
            mask[0, :2] = 0
            places = (mask.long().cumsum(1) - 1).clamp(min=0)
            cache = model(torch.randn(batch, length, 4), mask[:, :-1], places[:, :-1], [])["cache"]
            model(torch.randn(batch, 1, 4), mask, places[:, -1:], cache)
    program = observer.export()
    x, places = torch.randn(2, 6, 4), torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 2]])
    for given in ({}, {"mask": torch.ones(2, 6)}):
        with pytest.raises(RejectedCallError, match="cache was in every observed call"):
            program(x, places=places, **given)
        expected = model(x, places=places, cache=[], **given)["out"]
        torch.testing.assert_close(program(x, places=places, cache=[], **given)["out"], expected)
    assert program.verify().verified


class RemembersASum(nn.Module):
    """What it keeps is a past that grows, and a sum of a fixed size: a state of a recurrent layer."""

    def forward(self, x, mask: torch.Tensor | None = None, cache: list | None = None):
        past, total = (x[:, :0], torch.zeros_like(x[:, 0])) if cache is None else cache
        kept = torch.cat([past, x], 1)
        kept = kept if mask is None else kept * mask[:, :, None]
        return {"out": x + total[:, None] + kept.mean(1, keepdim=True), "cache": [kept, total + kept.sum(1)]}


@pytest.mark.slow
def test_a_state_of_fixed_size_is_empty_where_the_past_is():
    """A mask was not left out: without a cache the sum is zero, and in the call beside it was a watched one."""
    torch.manual_seed(0)
    model, observer = RemembersASum(), InputObserver()
    with observer(model):
        mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
        cache = model(torch.randn(2, 5, 4), mask[:, :5])["cache"]
        for length in (6, 7):
            cache = model(torch.randn(2, 1, 4), mask[:, :length], cache)["cache"]
    program, x = observer.export(), torch.randn(3, 6, 4)
    torch.testing.assert_close(program(x)["cache"], model(x)["cache"])
    cache = model(x)["cache"]
    torch.testing.assert_close(program(x[:, :1], None, cache), model(x[:, :1], None, cache))
    assert program.verify().verified


class Needing(nn.Module):
    """Its image has a default, and is needed all the same."""

    def forward(self, pixels: torch.Tensor | None = None):
        if pixels is None:
            raise ValueError("pixels are needed")
        return pixels.tanh()


def test_an_argument_that_the_last_call_needs_is_tried_at_no_other_sizes(monkeypatch):
    def no_bases(*arguments):
        raise AssertionError("calls of other sizes are made")

    monkeypatch.setattr(omitted_arguments, "_bases", no_bases)
    model, observer = Needing(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(1, 3, 64, 96))
        model(torch.randn(2, 3, 96, 64))
    (plan,) = observer.plans()
    assert [leaf.fill for leaf in plan.inputs] == [None]
    records = [record for record in plan.probes if record.argument == "pixels"]
    assert [record.finding.kind.name for record in records] == ["REFUTED"]
