"""What a call does to the arguments of its caller: found by one experiment with the model, on copies.

A program returns new objects; a model may change the ones that came in: a cache, a table, a tensor
that is written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..core.path import Path
from ..core.structure import Structure, Tree
from ..pytrees.adopt import Place, placed
from ..pytrees.agree import leaf_difference
from ..pytrees.deepcopy import torch_deepcopy
from ..pytrees.layers import is_cache
from ..pytrees.open import is_model_output, open_tree

__all__ = ["Effect", "effects_of", "objects_in"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a method does to one argument.

    ``changed`` is True when it is another after the call, ``written`` are the tensors in it that
    stay the same object with other values, ``place`` says where the result has the argument itself.
    """

    changed: bool
    written: frozenset[Path]
    place: Place | None


def objects_in(values: Mapping[str, Any]) -> dict[str, Tree[Any]]:
    """The arguments that a method can change and that hold tensors, opened: objects, lists and
    dicts, no caches.
    """
    found = {}
    for name, value in values.items():
        if isinstance(value, (torch.Tensor, tuple)) or is_cache(value) or is_model_output(value):
            continue
        tree = open_tree(value)
        if not tree.structure.is_leaf and any(
            isinstance(leaf, torch.Tensor) for leaf in tree.leaves
        ):
            found[name] = tree
    return found


def effects_of(
    names: Iterable[str], values: Mapping[str, Any], run: Callable[..., Any]
) -> dict[str, Effect]:
    """The effect of ``run(values)`` on the arguments called ``names``; all happens to copies."""
    copies: dict[str, Any] = torch_deepcopy(dict(values))
    before = {name: _state(copies[name]) for name in names}
    result = run(copies)
    found = {}
    for name in names:
        structure, leaves = _state(copies[name])
        same = structure == before[name][0] and leaves.keys() == before[name][1].keys()
        old = before[name][1]
        kept = {
            path: leaf for path, (leaf, _) in leaves.items() if path in old and old[path][0] is leaf
        }
        written = frozenset(path for path in kept if _is_written(old[path][1], leaves[path][1]))
        changed = (
            not same
            or bool(written)
            or any(_differs(old[path][0], leaves[path][0]) for path in leaves)
        )
        found[name] = Effect(changed, written, placed(result, copies[name]))
    return found


def _state(value: Any) -> tuple[Structure, dict[Path, tuple[Any, Any]]]:
    """The leaves by path, each tensor with the count of its writes; torch counts none of an
    inference tensor, which stands with its values instead.
    """
    tree = open_tree(value)
    return tree.structure, {path: (leaf, _writes(leaf)) for path, leaf in tree.items()}


def _writes(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return 0
    return leaf.clone() if leaf.is_inference() else leaf._version


def _is_written(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return leaf_difference(before, after) > 0
    return type(before) is not type(after) or bool(before != after)


def _differs(before: Any, after: Any) -> bool:
    if before is after:
        return False
    if type(before) is not type(after):  # 1 is no True
        return True
    return isinstance(before, torch.Tensor) or bool(before != after)
