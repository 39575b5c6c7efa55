"""Blocks that a model repeats: an experiment about its inputs needs two of them, not twenty-four.

A large model is a list of equal blocks, and most of an experiment is their work. What a block does
with a mask, or with a size, each equal block does. So experiments about inputs run the model with
the first two of each such list; traces, trials of graphs and verification run all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..torch_internals.trees import tree_leaves
from .work import parameters_of

__all__ = ["EqualBlocks", "equal_blocks_of"]

#: of equal blocks in a row so many are run
_KEPT = 2
#: blocks are left out where they hold at least this part of a model with at least so many parameters
_LEAST_PART = 0.5
_LEAST_PARAMETERS = 1 << 24
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})


@dataclass(frozen=True, slots=True)
class EqualBlocks:
    """The equal blocks in the lists of a model: ``left_out`` are pairs of a list and the names in it
    that an experiment does without.
    """

    kept: tuple[torch.nn.Module, ...] = ()
    left_out: tuple[tuple[torch.nn.Module, tuple[str, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.left_out)

    def remove(self) -> None:
        """Takes the blocks out of their lists: for a run after which the model is put back.

        >>> model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(9)))
        >>> EqualBlocks((), ((model, ("7", "8")),)).remove()
        >>> len(model)
        7
        """
        for blocks, names in self.left_out:
            for name in names:
                del blocks._modules[name]

    @contextlib.contextmanager
    def watched(self) -> Iterator[set[torch.nn.Module]]:
        """Gives the kept blocks that have not run inside the block, or that gave another shape than
        they were given.
        """
        unfit = set(self.kept)

        def note(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            if _first_shape(inputs) == _first_shape(outputs):
                unfit.discard(module)
            else:
                unfit.update(self.kept)

        handles = [block.register_forward_hook(note) for block in self.kept]
        try:
            yield unfit
        finally:
            for handle in handles:
                handle.remove()


def equal_blocks_of(model: Any) -> EqualBlocks:
    """The blocks that experiments with a model may leave out; none for a model that is small, or that
    has few of them.

    Equal blocks are modules of the same classes, whose parameters have the same shapes and whose
    other attributes are equal, but for numbers that count the blocks.
    """
    total = parameters_of(model)
    if not isinstance(model, torch.nn.Module) or total < _LEAST_PARAMETERS:
        return EqualBlocks()
    kept: list[torch.nn.Module] = []
    left_out: list[tuple[torch.nn.Module, tuple[str, ...]]] = []
    n_removed = 0
    for blocks in _outermost(model):
        children = [(name, child) for name, child in blocks._modules.items() if child is not None]
        for first, last in _runs([child for _, child in children]):
            kept += (child for _, child in children[first : first + _KEPT])
            removed = children[first + _KEPT : last]
            left_out.append((blocks, tuple(name for name, _ in removed)))
            n_removed += sum(parameters_of(child) for _, child in removed)
    return (
        EqualBlocks(tuple(kept), tuple(left_out))
        if n_removed >= _LEAST_PART * total
        else EqualBlocks()
    )


def _outermost(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The lists of modules that stand in no other list with equal blocks."""
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and any(
        _runs(list(module.children()))
    ):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _runs(children: Sequence[torch.nn.Module]) -> list[tuple[int, int]]:
    """The places where more blocks in a row are equal than are kept: the first, and the one after
    the last.
    """
    found, first = [], 0
    for place in range(1, len(children) + 1):
        if place < len(children) and _are_equal(children[first], children[place], place - first):
            continue
        if place - first > _KEPT:
            found.append((first, place))
        first = place
    return found


def _are_equal(left: torch.nn.Module, right: torch.nn.Module, apart: int) -> bool:
    """True for equal blocks, the second of them so many places after the first."""
    if left is right or type(left) is not type(right):
        return False
    one, other = dict(left.named_modules()), dict(right.named_modules())
    return one.keys() == other.keys() and all(
        _are_alike(module, other[path], apart) for path, module in one.items()
    )


def _are_alike(left: torch.nn.Module, right: torch.nn.Module, apart: int) -> bool:
    """True for modules of the same class, tensors and attributes, whatever their submodules are."""
    one, other = vars(left), vars(right)
    if type(left) is not type(right) or one.keys() != other.keys():
        return False
    tensors = (_tensors(left), _tensors(right))
    return tensors[0] == tensors[1] and all(
        name in _TABLES or _is_equal(value, other[name], apart) for name, value in one.items()
    )


def _tensors(module: torch.nn.Module) -> dict[str, Any]:
    """Returns a description of the parameters and buffers of a module itself, by name."""
    own = {**module._parameters, **module._buffers}
    return {
        name: tensor if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
        for name, tensor in own.items()
    }


def _is_equal(left: Any, right: Any, apart: int) -> bool:
    """True for equal attributes, and for numbers that count the blocks."""
    if left is right:
        return True
    if type(left) is not type(right) or isinstance(left, torch.Tensor):
        return False
    if type(left) is int and right - left == apart:
        return True
    try:
        return bool(left == right)
    except Exception:  # a class of the user's with a comparison of its own
        return False


def _first_shape(value: Any) -> tuple[int, ...] | None:
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return next((tuple(tensor.shape) for tensor in tensors), None)
