"""Attributes that a caller gives a cache: free where the model never asks for them, and bound where it does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import onlooker


class Asks(torch.nn.Module):
    """A layer with a cache of transformers, which triples its keys where it finds an attribute."""

    def __init__(self, finds: Callable[[Any, torch.Tensor], bool]) -> None:
        super().__init__()
        self.linear, self.finds = torch.nn.Linear(4, 4), finds

    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        keys, values = cache.update(self.linear(x), x, 0)
        return keys * (3 if self.finds(cache, x) else 2) + values


def of_cache(cache: Any, x: torch.Tensor) -> bool:
    return getattr(cache, "is_new", False)


def of_layer(cache: Any, x: torch.Tensor) -> bool:
    return hasattr(cache.layers[0], "is_new")


def of_cache_on_a_side(cache: Any, x: torch.Tensor) -> bool:
    return x.shape[2] == 1 and hasattr(cache, "is_new")


def in_vars(cache: Any, x: torch.Tensor) -> bool:
    return "is_new" in vars(cache) or "is_new" in vars(cache.layers[0])


def by_an_error(cache: Any, x: torch.Tensor) -> bool:
    try:
        return bool(cache.is_new)
    except AttributeError:
        return False


def past_getattr(cache: Any, x: torch.Tensor) -> bool:
    try:
        return bool(object.__getattribute__(cache, "is_new"))
    except AttributeError:
        return inspect.getattr_static(cache.layers[0], "is_new", False)


def in_a_copy(cache: Any, x: torch.Tensor) -> bool:
    return "is_new" in cache.__reduce_ex__(4)[2]


def of_class(cache: Any, x: torch.Tensor) -> bool:
    return bool(cache.is_old)


def nothing(cache: Any, x: torch.Tensor) -> bool:
    return False


class OldCache(transformers.DynamicCache):
    """A cache whose class has an attribute."""

    is_old = False


FINDING = [of_cache, of_layer, of_cache_on_a_side, in_vars, by_an_error, past_getattr, in_a_copy, of_class, nothing]


def watched(finds: Any, kind: Any) -> tuple[Any, Asks]:
    torch.manual_seed(0)
    model, observer = Asks(finds).eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3):
            cache = kind()
            for n in (3 + batch, 2, 2):
                model(torch.randn(batch, 1, n, 4), cache)
    return observer.export(), model


def cache_with(kind: Any, name: str, *, on_layer: bool) -> Any:
    cache = kind()
    cache.update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    setattr(cache.layers[0] if on_layer else cache, name, True)
    return cache


@pytest.mark.parametrize("finds", FINDING)
def test_that_an_attribute_is_served_rightly_or_refused(finds: Any) -> None:
    kind = OldCache if finds is of_class else transformers.DynamicCache
    name = "is_old" if finds is of_class else "is_new"
    program, model = watched(finds, kind)
    for n in (3, 1):
        for on_layer in (False, True):
            x = torch.randn(2, 1, n, 4)
            with torch.no_grad():
                expected = model(x, cache_with(kind, name, on_layer=on_layer))
                try:
                    got = program(x, cache_with(kind, name, on_layer=on_layer))
                except onlooker.RejectedCallError:
                    assert finds is not nothing
                else:
                    torch.testing.assert_close(got, expected)


def test_that_an_empty_cache_with_an_attribute_is_refused() -> None:
    model, observer = Asks(of_cache).eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for n in (3, 4):
            cache = transformers.DynamicCache()
            for length in (n, 2):
                model(torch.randn(2, 1, length, 4), cache)
    program, cache = observer.export(), transformers.DynamicCache()
    cache.is_new = True
    with pytest.raises(onlooker.RejectedCallError, match="is_new"):
        program(torch.randn(2, 1, 3, 4), cache)


def test_that_an_attribute_that_is_asked_for_stands_in_the_report() -> None:
    program, _ = watched(of_cache, transformers.DynamicCache)
    assert "calls with a cache that has the attribute is_new" in program.report.text()


def test_that_a_chat_with_a_cache_of_its_own_runs_on_a_program_of_generate_alone() -> None:
    """``generate()`` marks a cache that its caller passes by an attribute."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ids)).eval()
    observer = onlooker.InputObserver()
    with observer(model):
        model.generate(torch.arange(2, 9)[None], max_new_tokens=5)
        model.generate(torch.randint(2, 50, (2, 5)), max_new_tokens=3)
    program = observer.export()

    def chat() -> tuple[torch.Tensor, Any]:
        cache, text = transformers.DynamicCache(config=model.config), torch.arange(3, 9)[None]
        for turn in range(2):
            text = model.generate(text, past_key_values=cache, max_new_tokens=4)
            text = torch.cat([text, torch.arange(20 + turn, 24 + turn)[None]], 1)
        return text, cache

    expected, cache = chat()
    with program.installed(model):
        got, of_program = chat()
    assert torch.equal(got, expected)
    assert of_program.get_seq_length() == cache.get_seq_length()
    assert vars(of_program).keys() == vars(cache).keys()
