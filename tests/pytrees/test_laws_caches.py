"""Laws of caches: taken apart and built again they are the same, in every class; registrations leave no trace."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.fx._pytree as fx_pytree
import torch.utils._pytree as torch_pytree
from hypothesis import given
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from fuzz_values import CACHES, LAYERS, caches, examples, held
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.open import close_tree, open_tree
from onlooker.pytrees.registry import (
    register_class_flattening,
    register_flattening_functions,
    unregister_class_flattening,
)
from onlooker_compat.trees.compare import max_diff


def check_same(cache: Any, again: Any) -> None:
    """The same classes, tensors (themselves, so what was shared is shared), flags and order of attributes."""
    before, after = dict(held(cache)), dict(held(again))
    assert set(after) == set(before)
    for where, value in before.items():
        if where.endswith("_sliding_window_tensor"):  # a constant, held once
            assert torch.equal(after[where], value), where
        elif where.endswith("layer_class_to_replicate"):  # makes no difference where all layers are of that class
            assert after[where] == value or after[where][1] is DynamicLayer, where
        elif isinstance(value, torch.Tensor):
            assert after[where] is value, where
        else:
            assert after[where] == value, where


def test_the_laws_see_every_class_that_transformers_has() -> None:
    names = {cls.__name__ for cls in LAYERS}
    assert {"DynamicLayer", "StaticSlidingWindowLayer", "Fp8QuantizedLayer", "LinearAttentionLayer"} <= names
    assert {"DynamicIndexedLayer", "LinearAttentionAndStaticFullAttentionLayer", "DummyLayer"} <= names
    assert {"Cache", "DynamicCache", "StaticCache", "DFlashCache"} <= {cls.__name__ for cls in CACHES}


@given(caches())
@examples(60)
def test_a_cache_is_built_again_as_it_was(cache: Any) -> None:
    with register_flattening_functions():
        leaves, structure = torch_pytree.tree_flatten(cache)
        again = torch_pytree.tree_unflatten(leaves, structure)
        with_keys, keyed = torch_pytree.tree_flatten_with_path(cache)
        assert [a is b for (_, a), b in zip(with_keys, leaves, strict=True)] == [True] * len(leaves)
        assert keyed == structure == torch_pytree.tree_structure(again)
        assert len({torch_pytree.keystr(key) for key, _ in with_keys}) == len(leaves)
    check_same(cache, again)


@given(caches())
@examples(60)
def test_a_cache_is_closed_as_it_was_opened(cache: Any) -> None:
    tree = open_tree(cache)
    again = close_tree(tree.structure, tree.leaves)
    check_same(cache, again)
    assert open_tree(again).structure == tree.structure
    assert [path.follow(cache) is leaf for path, leaf in tree.items()] == [True] * len(tree.leaves)


@given(caches())
@examples(30)
def test_a_structure_of_a_cache_survives_json(cache: Any) -> None:
    with register_flattening_functions():
        leaves, structure = torch_pytree.tree_flatten(cache)
        read = torch_pytree.treespec_loads(torch_pytree.treespec_dumps(structure))
        assert read == structure
        check_same(cache, torch_pytree.tree_unflatten(leaves, read))


@given(caches())
@examples(30)
def test_a_cache_is_described_and_differs_from_no_copy(cache: Any) -> None:
    text = string_type(cache, with_shape=True, with_min_max=True)
    assert text == string_type(cache, with_shape=True, with_min_max=True)
    found = max_diff(cache, copy.deepcopy(cache))
    assert (found["abs"], found["dnan"]) == (0, 0)


def tables() -> tuple[dict[Any, Any], ...]:
    """All that torch keeps of registrations."""
    return (
        dict(torch_pytree.SUPPORTED_NODES),
        dict(torch_pytree.SUPPORTED_SERIALIZED_TYPES),
        dict(torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE),
        dict.fromkeys(torch_pytree.CONSTANT_NODES),
        dict(fx_pytree.SUPPORTED_NODES),
        dict(fx_pytree.SUPPORTED_NODES_EXACT_MATCH),
        dict(enumerate(torch_pytree._cxx_pytree_pending_imports)),
    )


class First:
    pass


class Second:
    pass


STEPS = st.lists(st.sampled_from(["enter", "leave", "first", "second", "not first", "not second"]), max_size=12)


@given(STEPS, st.booleans())
@examples(40)
def test_any_order_of_registrations_leaves_the_tables_of_torch_as_they_were(steps: list[str], raises: bool) -> None:
    before = tables()
    blocks: list[Any] = []
    classes = {"first": First, "second": Second}
    for step in steps:
        if step == "enter":
            blocks.append(register_flattening_functions())
            blocks[-1].__enter__()
        elif step == "leave" and blocks:
            blocks.pop(0 if raises else -1).__exit__(None, None, None)
        elif step in classes:
            known = classes[step] in torch_pytree.SUPPORTED_NODES
            found = register_class_flattening(classes[step], list_of, made, list_with_keys)
            assert found is not known
        elif step.startswith("not ") and classes[step[4:]] in torch_pytree.SUPPORTED_NODES:
            unregister_class_flattening(classes[step[4:]])
    for cls in classes.values():
        if cls in torch_pytree.SUPPORTED_NODES:
            unregister_class_flattening(cls)
    while blocks:
        if raises:
            assert not blocks.pop().__exit__(KeyError, KeyError("body"), None)
        else:
            blocks.pop().__exit__(None, None, None)
    assert tables() == before


def list_of(value: Any) -> tuple[list[Any], Any]:
    return list(vars(value).values()), list(vars(value))


def list_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    return [(torch_pytree.GetAttrKey(name), child) for name, child in vars(value).items()], list(vars(value))


def made(children: Any, context: Any) -> Any:
    return First()
