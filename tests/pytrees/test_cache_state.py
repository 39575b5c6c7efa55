"""A class of caches of a model's own keeps tensors beside its layers: they are inputs and outputs, never constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import cache_utils

from onlooker import InputObserver
from onlooker.pytrees.adopt import adopt
from onlooker.pytrees.open import close_tree, open_arguments, open_tree


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class StateCache(cache_utils.DynamicCache):
    """Layers as usual, and what a recurrent layer keeps, in some container."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.seen = {0: True}


STATES = {
    "list": ([rand(2, 3), []], ["x.state[0]"]),
    "tuple": ((rand(2, 3), rand(2, 4)), ["x.state[0]", "x.state[1]"]),
    "dict": ({"a": rand(2, 3), "b": None}, ["x.state['a']", "x.state['b']"]),
    "dict of lists": ({"a": [rand(2, 3)]}, ["x.state['a'][0]"]),
    "tensor": (rand(2, 3), ["x.state"]),
}


@pytest.mark.parametrize(("state", "codes"), STATES.values(), ids=STATES)
def test_the_tensors_of_a_cache_are_leaves(state: Any, codes: list[str]) -> None:
    tree = open_arguments({"x": StateCache(state)})
    assert [path.code() for path in tree.structure.paths()] == codes
    again = close_tree(tree.structure, tree.leaves)["x"]
    assert (type(again), again.seen, open_tree(again).structure) == (StateCache, {0: True}, tree.structure.children[0])


@pytest.mark.parametrize("state", [state for state, _ in STATES.values()], ids=STATES)
def test_a_caller_gets_the_tensors_of_a_program(state: Any) -> None:
    given = StateCache([])
    assert adopt(given, StateCache(state)) is given
    assert given.state is state


class Recurrent(torch.nn.Module):
    """A running sum over tokens, which stands in the cache, made by the first call."""

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        before = cache.state[0] if cache.state else x.new_zeros(x.shape[0], x.shape[2])
        out = before[:, None] + x.cumsum(1)
        cache.state = [out[:, -1]]
        return out, cache


def test_the_state_of_a_cache_goes_through_a_program() -> None:
    model, observer, cache = Recurrent(), InputObserver(), StateCache([])
    with observer(model):
        for tokens in (5, 1, 1):
            model(rand(2, tokens, 3), cache)
    program = observer.export()
    for batch in (1, 4):
        given, kept = StateCache([]), StateCache([])
        for tokens in (7, 1):
            x = rand(batch, tokens, 3)
            expected, got = model(x, given)[0], program(x, kept)
            kept = got[1]
            torch.testing.assert_close(got[0], expected)
            torch.testing.assert_close(kept.state[0], given.state[0])


class CountingLayer(cache_utils.DynamicLayer):
    """Counts its tokens, in all and by name; the room it has never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first_length = 0
        self.entry_count = {"all": 0}
        self.room = 64

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.first_length = key_states.shape[-2]
        self.entry_count["all"] += key_states.shape[-2]
        return super().update(key_states, value_states, *args, **kwargs)


class Counting(torch.nn.Module):
    """Reads what its layer counts."""

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        layer = cache.layers[0]
        keys, _ = cache.update(x, x, 0)
        return keys.sum(2) * (layer.entry_count["all"] + 3 * layer.first_length), cache


def test_what_a_layer_counts_goes_through_a_program() -> None:
    def counting_cache() -> Any:
        cache = cache_utils.DynamicCache()
        cache.layers = [CountingLayer()]
        return cache

    model, observer = Counting(), InputObserver()
    with observer(model):
        for tokens in (5, 4):
            cache = counting_cache()
            for step in (tokens, 1, 1, 2):
                model(rand(2, 1, step, 3), cache)
    program = observer.export()
    given, kept = counting_cache(), counting_cache()
    for tokens in (7, 1, 3):
        x = rand(3, 1, tokens, 3)
        expected, got = model(x, given)[0], program(x, kept)
        kept = got[1]
        torch.testing.assert_close(got[0], expected)
        assert kept.layers[0].entry_count == given.layers[0].entry_count
        assert kept.layers[0].first_length == given.layers[0].first_length


class FlaggedLayer(CountingLayer):
    """Sets flags and items of a list beside its counters; ``room`` and ``rates`` are as they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = {"all": 4}
        self.is_full = {"all": False}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.is_full["all"] = self.entry_count["all"] * self.rates["all"] > self.room
        return super().update(key_states, value_states, *args, **kwargs)


def test_the_counters_of_a_layer_are_the_ints_that_its_methods_set() -> None:
    layer = FlaggedLayer()
    layer.update(rand(1, 1, 2, 3), rand(1, 1, 2, 3))
    paths = [leaf.code() for leaf in open_tree(layer).structure.paths()]
    assert sorted(paths) == [".entry_count['all']", ".first_length", ".keys", ".values"]
    linear = cache_utils.LinearAttentionLayer()
    linear.update_conv_state(rand(1, 4, 4))
    paths = [leaf.code() for leaf in open_tree(linear).structure.paths()]
    assert paths == [".conv_states[0]"]
