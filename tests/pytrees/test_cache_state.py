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
