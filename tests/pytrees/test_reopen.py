"""A structure that is known is read along its pattern: that gives what opening anew gives."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from onlooker.pytrees.open import close_tree, open_tree
from onlooker.pytrees.reopen import StructureReader, closer_of


class Held:
    """A plain object with a tensor and anything else."""

    def __init__(self, tensor: torch.Tensor, other: Any) -> None:
        self.tensor, self.other = tensor, other


class OwnCache(DynamicCache):
    """Keeps tensors beside its layers."""

    def __init__(self, *tensors: Any) -> None:
        super().__init__()
        self.states = list(tensors)


def cache(layers: int) -> DynamicCache:
    made = DynamicCache()
    for layer in range(layers):
        made.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
    return made


def sliding_cache(layers: int = 1) -> DynamicCache:
    """Its layers have counters, and tensors that are hidden."""
    config = LlamaConfig(num_hidden_layers=layers)
    config.sliding_window = 4
    made = DynamicCache(config=config)
    for layer in range(layers):
        made.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
    return made


def static_cache(length: int = 6, batch: int = 2) -> StaticCache:
    made = StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=length)
    made.update(torch.zeros(batch, 2, 1, 4), torch.zeros(batch, 2, 1, 4), 0)
    return made


def changed(made: Any, **attributes: Any) -> Any:
    """The cache, whose last layer has other attributes."""
    for name, value in attributes.items():
        setattr(made.layers[-1], name, value)
    return made


def moved(first: Any, second: Any) -> OrderedDict[str, Any]:
    """A dict whose keys have another order than when they were set."""
    made = OrderedDict(b=second, a=first)
    made.move_to_end("b")
    return made


ONE = torch.zeros(1)
ATOMS = st.sampled_from(
    [ONE, torch.zeros(2, 3), torch.nn.Parameter(ONE), None, True, 1, 1.5, "a", torch.float32, Held(ONE, int)]
)
SPECIAL = st.one_of(
    st.builds(cache, st.integers(0, 3)),
    st.builds(sliding_cache, st.integers(1, 2)),
    st.builds(static_cache, st.integers(2, 3), st.integers(1, 2)),
    st.builds(changed, st.builds(sliding_cache), record_past=st.booleans()),
    st.builds(OwnCache, ATOMS),
    st.builds(lambda x: BaseModelOutput(last_hidden_state=x), ATOMS),
    st.builds(lambda x, y: OrderedDict(a=x, b=y), ATOMS, ATOMS),
    st.builds(moved, ATOMS, ATOMS),
    st.builds(Held, st.just(ONE), st.sampled_from([int, str])),
)
VALUES = st.recursive(
    st.one_of(ATOMS, SPECIAL),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=3),
        st.builds(lambda child: Held(torch.ones(1), child), inner),
    ),
    max_leaves=6,
)


def caches() -> Iterator[Any]:
    for layers in (0, 1, 3):
        yield cache(layers)
        yield sliding_cache(max(layers, 1))
    yield changed(cache(2), is_initialized=False)
    yield changed(cache(2), note="new")
    yield changed(cache(2), keys=None)
    yield changed(sliding_cache(2), keys=None)
    yield changed(sliding_cache(2), _sliding_window_tensor=3)
    yield changed(sliding_cache(2), cumulative_length="three")
    yield OwnCache(ONE)
    yield OwnCache(None)
    yield OwnCache(None, ONE)
    yield [cache(1), cache(1)]
    yield [ONE, cache(1)]


def assert_read_as_opened(sequence: list[Any]) -> None:
    reader = StructureReader()
    for value in sequence:
        expected = open_tree(value)

        def anew(value: Any = value) -> Any:
            tree = open_tree(value)
            return tree, (tree.structure,)

        number, leaves = reader.open(None, (value,), anew)
        assert reader.structures[number] == expected.structure
        assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in expected.leaves]


@settings(max_examples=200)
@given(st.lists(VALUES, min_size=2, max_size=6))
def test_a_reader_gives_what_opening_anew_gives(sequence: list[Any]) -> None:
    assert_read_as_opened(sequence + [copy.copy(value) for value in sequence])


def test_a_reader_opens_caches_as_opening_anew_does() -> None:
    assert_read_as_opened([value for _ in range(2) for value in caches()])
    assert_read_as_opened([value for _ in range(2) for value in reversed(list(caches()))])


def test_the_values_of_an_ordered_dict_are_read_by_their_keys() -> None:
    assert_read_as_opened([OrderedDict(a=1, b=2), moved(1, 2), moved(1, 2)])


def test_what_is_known_is_not_opened_again() -> None:
    def nothing() -> Any:
        raise AssertionError("opened again")

    for make in (cache, sliding_cache):
        reader, first = StructureReader(), make(2)
        tree = open_tree(first)
        number, _ = reader.open(None, (first,), lambda tree=tree: (tree, (tree.structure,)))
        assert reader.open(None, (make(2),), nothing)[0] == number


def test_a_flag_that_changed_in_place_is_noticed() -> None:
    value = cache(2)
    before = open_tree(value).structure
    changed(value, is_initialized=False)
    assert open_tree(value).structure != before
    assert_read_as_opened([cache(2), value])


@settings(max_examples=100)
@given(VALUES)
def test_the_compiled_closer_builds_what_closing_builds(value: Any) -> None:
    tree = open_tree(value)
    built = open_tree(closer_of(tree.structure)(list(tree.leaves)))
    assert built.structure == open_tree(close_tree(tree.structure, tree.leaves)).structure
    assert all(left is right for left, right in zip(built.leaves, tree.leaves, strict=True))
