"""The zoo: real models, tiny, and no trace of them in the random state."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from onlooker.core.errors import MissingPackageError, UsageError
from onlooker.zoo import MODELS, TinyModel, tiny_model

#: name -> the shapes of input ids (or pixels) and mask, call by call
SHAPES = {
    "llama": [((2, 10), (2, 10)), ((2, 1), (2, 11)), ((2, 1), (2, 12)), ((2, 1), (2, 13))],
    "gpt2": [((2, 10), (2, 10)), ((2, 1), (2, 11)), ((2, 1), (2, 12)), ((2, 1), (2, 13))],
    "bert": [((2, 7), (2, 7)), ((3, 10), (3, 10))],
    "vit": [((2, 3, 32, 32), None), ((3, 3, 32, 32), None)],
}


def calls_of(tiny: TinyModel) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    hook = tiny.model.register_forward_pre_hook(lambda _, __, kwargs: calls.append(kwargs), with_kwargs=True)
    tiny.watch()
    hook.remove()
    return calls


def shape(value: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


@pytest.mark.parametrize("name", MODELS)
def test_the_use_that_is_watched(name: str) -> None:
    tiny = tiny_model(name)
    seen = [(call.get("input_ids", call.get("pixel_values")), call.get("attention_mask")) for call in calls_of(tiny)]
    assert [(shape(data), shape(mask)) for data, mask in seen] == SHAPES[name]
    assert tiny.name == name
    assert not tiny.model.training


@pytest.mark.parametrize("name", MODELS)
def test_the_random_state_does_not_move(name: str) -> None:
    before = torch.get_rng_state()
    tiny_model(name).watch()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_do_not_depend_on_the_random_state(name: str) -> None:
    torch.manual_seed(1)
    one = tiny_model(name).model.state_dict()
    torch.manual_seed(2)
    other = tiny_model(name).model.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_mask_matters() -> None:
    """A model that is deaf to its mask would let a wrong program pass."""
    model = tiny_model("llama").model
    ids = torch.arange(3, 13).reshape(2, 5)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        seen, hidden = model(ids).logits[0, -1], model(ids, attention_mask=mask).logits[0, -1]
    assert (seen - hidden).abs().max() > 0.1


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no tiny model named 'lama'\. Choose among: llama, gpt2, bert, vit\."):
        tiny_model("lama")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'onlooker\[transformers\]'.*\[missing-package\]"):
        tiny_model("llama")
