"""From one call with a cache: the mask is the sum of old and new tokens, and counts follow what they count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from onlooker import InputObserver, Plan, make_dynamic_cache

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
LLAMA = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 128}
TOTAL = "past_sequence + sequence"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def step(tokens: int, past: int, batch: int = 2, heads: int = 2, **more: Any) -> dict[str, Any]:
    """A call of a language model with a cache; the first row is padded."""
    mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    mask[0, :2] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, past:]
    layers = [(random(batch, heads, past, 8), random(batch, heads, past, 8)) for _ in range(2)]
    return {
        "input_ids": torch.arange(batch * tokens).reshape(batch, tokens) + 5,
        "attention_mask": mask,
        "position_ids": positions,
        "past_key_values": make_dynamic_cache(layers, **more),
    }


def sliding(tokens: int, past: int, batch: int = 2) -> dict[str, Any]:
    kwargs = {"cls_layers": "DynamicSlidingWindowLayer", "cls_kwargs": {"sliding_window": 64}}
    return step(tokens, past, batch, **kwargs)


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=64))


LANGUAGE: dict[str, tuple[Callable[[], Any], Callable[..., dict[str, Any]]]] = {
    "llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), step),
    "gpt2": (gpt2, lambda *args: step(*args, heads=4)),
    "mistral": (
        lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=64)),
        sliding,
    ),
}


def watched(model: torch.nn.Module, call: dict[str, Any]) -> InputObserver:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        model(**call)
    return observer


def shapes(plan: Plan) -> dict[str, str]:
    return {
        leaf.path.code(): ", ".join(map(str, leaf.shape)) if leaf.is_tensor else str(leaf.value) for leaf in plan.inputs
    }


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.one_in(3)
@pytest.mark.slow
def test_a_step_with_a_cache_gives_a_program_for_every_step(name: str) -> None:
    torch.manual_seed(0)
    make, call = LANGUAGE[name]
    model = make()
    program = watched(model, call(3, 7)).export()
    plan = program.plans[0]
    assert shapes(plan)["attention_mask"] == f"batch, {TOTAL}"
    assert shapes(plan)["past_key_values.layers[0].keys"].split(", ")[2] == "past_sequence"
    assert program.verify().verified, program.report
    for sizes in ((1, 7, 2), (5, 1, 1), (2, 30, 3)):
        with torch.no_grad():
            torch.testing.assert_close(program(**call(*sizes)).logits, model(**call(*sizes)).logits)


def test_one_step_of_one_token_leaves_the_tokens_and_frees_the_past() -> None:
    torch.manual_seed(0)
    make, call = LANGUAGE["llama"]
    (plan,) = watched(make(), call(1, 7)).plans()
    assert shapes(plan)["input_ids"] == "batch, 1"
    assert shapes(plan)["attention_mask"] == "batch, past_sequence + 1"


def test_the_count_of_a_sliding_cache_is_what_it_holds() -> None:
    torch.manual_seed(0)
    make, call = LANGUAGE["mistral"]
    (plan,) = watched(make(), call(3, 7)).plans()
    assert shapes(plan)["past_key_values.layers[1].cumulative_length"] == "past_sequence"


# models that are strict, or lenient, about what they are given


class Strict(torch.nn.Module):
    """The mask has to have as many columns as there are rows in both."""

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([past, x], dim=1) * mask[..., None]
        return whole.cumsum(dim=1)[:, past.shape[1] :]


class Lenient(Strict):
    """The mask may be longer, and shorter."""

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n = past.shape[1] + x.shape[1]
        return super().forward(x, past, torch.nn.functional.pad(mask, (0, n))[:, :n])


class Table(torch.nn.Module):
    """Reads as much of the table as there are rows in both."""

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n = past.shape[1] + x.shape[1]
        return torch.cat([past, x], dim=1) + mask[:, :n, None]


def rows(tokens: int, past: int, table: int, *, ints: bool) -> dict[str, Any]:
    mask = torch.arange(2 * table).reshape(2, table) % 2 if ints else random(2, table)
    return {"x": random(2, tokens, 4), "past": random(2, past, 4), "mask": mask}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ints", [False, True])
@pytest.mark.parametrize("model", [Strict(), Lenient(), Table()], ids=lambda model: type(model).__name__)
def test_what_is_as_long_as_both_follows_both(model: torch.nn.Module, ints: bool) -> None:
    program = watched(model, rows(3, 8, 11, ints=ints)).export()
    plan = program.plans[0]
    if isinstance(model, Lenient) and not ints:  # nothing that goes alone is refused, and any length may be meant
        assert not plan.leaf("mask").shape[1].is_constant
    else:
        assert sorted(plan.leaf("mask").shape[1].symbols) == sorted(str(plan.leaf(x).shape[1]) for x in ("x", "past"))
    assert program.verify().verified
    for sizes in ((1, 2, 3), (6, 1, 7)):
        call = rows(*sizes, ints=ints)
        torch.testing.assert_close(program(**call), model(**call))


@pytest.mark.parametrize("model", [Lenient(), Table()], ids=lambda model: type(model).__name__)
def test_a_mask_that_is_longer_than_both_stays(model: torch.nn.Module) -> None:
    (plan,) = watched(model, rows(3, 8, 40, ints=True)).plans()
    assert str(plan.leaf("mask").shape[1]) == "40"


@dataclasses.dataclass
class State:
    rows: torch.Tensor
    count: int


class Counts(torch.nn.Module):
    """Adds positions that begin at the count."""

    def forward(self, x: torch.Tensor, state: State, shift: int = 0) -> torch.Tensor:
        positions = state.count + shift + torch.arange(x.shape[1])
        return x * positions[:, None] + state.rows.sum(dim=1, keepdim=True)


def counted(tokens: int, past: int) -> dict[str, Any]:
    return {"x": random(2, tokens, 4), "state": State(random(2, past, 4), past)}


def test_a_count_follows_the_rows_beside_it() -> None:
    model = Counts()
    program = watched(model, counted(3, 8)).export()
    plan = program.plans[0]
    assert plan.leaf("state.count").value == plan.leaf("state.rows").shape[1]
    assert program.verify().verified
    torch.testing.assert_close(program(**counted(2, 5)), model(**counted(2, 5)))


@pytest.mark.parametrize("shift", [3, 8])
def test_an_int_that_stands_elsewhere_is_the_size_by_chance(shift: int) -> None:
    (plan,) = watched(Counts(), {**counted(3, 8), "shift": shift}).plans()
    assert plan.leaf("shift").value is None
    assert plan.leaf("shift").constant is not None


def test_a_number_beside_rows_that_it_does_not_count_stays() -> None:
    (plan,) = watched(Counts(), {"x": random(2, 3, 4), "state": State(random(2, 8, 4), 5)}).plans()
    assert plan.leaf("state.count").constant is not None


class WithPrompt(torch.nn.Module):
    """Attends to a prompt, which all steps have, and to the tokens after it."""

    def forward(self, x: torch.Tensor, past: dict[str, Any], mask: torch.Tensor | None = None) -> Any:
        layer = past["layers"][0]
        keys = torch.cat([layer["keys"], x], 1)
        prompt = layer["prompt"].narrow(1, 0, layer["length"])
        scores = x @ torch.cat([prompt, keys], 1).mT
        return scores if mask is None else scores * mask.unsqueeze(1)


def after_prompt(prompt: int, past: int, *, masked: bool, batch: int = 2) -> dict[str, Any]:
    layer = {"keys": random(batch, past, 8), "prompt": random(batch, prompt, 8), "length": prompt}
    mask = {"mask": random(batch, prompt + past + 1)} if masked else {}
    return {"x": random(batch, 1, 8), "past": {"layers": [layer]}, **mask}


@pytest.mark.parametrize("masked", [False, True], ids=["alone", "with a mask"])
@pytest.mark.slow
def test_a_prompt_that_all_steps_have_and_that_a_number_counts_may_have_another_length(masked: bool) -> None:
    observer, model = InputObserver(), WithPrompt().eval()
    with observer(model), torch.no_grad():
        for past in (1, 2, 3):
            model(**after_prompt(6, past, masked=masked))
    program = observer.export()
    assert program.verify().verified
    for prompt, past, batch in ((9, 4, 3), (3, 2, 1)):
        call = after_prompt(prompt, past, masked=masked, batch=batch)
        torch.testing.assert_close(program(**call), model(**call))
