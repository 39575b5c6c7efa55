"""Equal blocks as one module, whose weights are an argument.

A model of 57 equal blocks runs one function 57 times, each time with other weights. Here that function
is a module, as any other that is watched and exported: its ``forward`` takes what a block takes, and by
name the weights of the block that is called.

Blocks are equal where they are of the same classes, their weights have the same shapes, and all else
that they hold is the same, but for ints that count the blocks, as ``layer_idx`` does. These ints are
replaced by a stand-in that raises when it is read: so no graph depends on the place of a block. Only the
layers of a cache may be asked for it (:mod:`onlooker.observing.wrapping.own_layer`).
"""

from __future__ import annotations

import copy
import inspect
import itertools
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...core.errors import UsageError
from ...pytrees.comparisons.same_object import difference_of
from ...pytrees.unread import Unread
from ..reach import Snapshot
from .lifted_weights import LiftedWeights, Weights, WithWeights, copying
from .own_layer import BlockNumberError, on_own_layer, own_layer_of, with_own_layer

__all__ = ["BlockNumberError", "SharedBlock", "shared_blocks", "weights_of"]

#: the place of an int among the attributes of a block: the path of a module and the name
Place = tuple[str, str]


class OfOneBlock(Unread):
    """Stands for an int that counts the blocks, and passes for one with ``isinstance``."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @property
    def __class__(self) -> type:
        return int

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise self.failure()

    def __hash__(self) -> int:  # type: ignore[override]
        raise self.failure()

    def failure(self) -> RuntimeError:
        """The error of a reading."""
        return BlockNumberError(f"{self.name} is read, which is another number in each block")


def _read(stand_in: OfOneBlock, *_: Any) -> Any:
    raise stand_in.failure()


#: what is asked of ints, and not of lists
for _name in vars(int).keys() - vars(Unread).keys() - vars(object).keys() - {"__getnewargs__"}:
    setattr(OfOneBlock, _name, _read)


class SharedBlock(LiftedWeights):
    """Equal blocks as one module: ``forward`` takes the arguments of a block and its weights.

    ``blocks`` are the blocks by name, as long as they live. ``inner`` is a copy of the first one without
    weights: whatever is computed from a weight is computed from the argument. ``numbers`` are the places
    of their layers in a cache; a cache is taken as it is where they are not known.

    >>> linear = torch.nn.Linear(2, 3)
    >>> shared = SharedBlock({"0": linear})
    >>> x = torch.ones(1, 2)
    >>> torch.equal(shared(x, weights=weights_of(linear)), linear(x))
    True
    >>> list(shared.parameters())
    []
    """

    def __init__(
        self,
        blocks: Mapping[str, torch.nn.Module],
        counts: Collection[Place] = (),
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        first = next(iter(blocks.values()))
        inner = _without_values(first)
        for path, name in counts:
            vars(inner.get_submodule(path))[name] = OfOneBlock(name)
        names = {name: name for name, _ in _tensors(inner)}
        taken = None
        if numbers:
            is_own = _is_stand_in if counts else partial(_is_number, numbers[next(iter(blocks))])
            taken = partial(on_own_layer, is_own)
        super().__init__(inner, inspect.signature(first.forward), names, _ties(inner), taken)
        #: the ints that count the blocks, by the path of their module and their name
        self.counts: tuple[Place, ...] = tuple(counts)
        #: the place of the layer of each block in a cache, by the name of the block
        self.numbers: Mapping[str, int] = numbers or {}
        self.blocks: Mapping[str, torch.nn.Module] = weakref.WeakValueDictionary(blocks)

    def watched(self) -> list[WithWeights]:
        """Each block. The calls of all blocks in one run of their model have the same sizes: values are
        wanted of the first block in the first run, of the second one in the second run, and so on.
        """
        return [
            self._with_own(
                name, partial(weights_of, block), partial(_is_turn, itertools.count(), turn)
            )
            for turn, (name, block) in enumerate(self.blocks.items())
        ]

    def sets(self) -> dict[str, Weights]:
        """The weights of each block, in its memory."""
        return {name: weights_of(block) for name, block in self.blocks.items()}

    def served(self, sets: Mapping[str, Weights]) -> list[WithWeights]:
        """Each block that has weights in ``sets``, with these.

        :raises UsageError: ``no-such-block``
        """
        missing = [name for name in sets if name not in self.blocks]
        if missing:
            raise UsageError(
                f"The program has weights for block {missing[0]}, and there is no such block among the"
                " equal ones.",
                slug="no-such-block",
                hint="Give all blocks, as they were watched: program.installed(model.layers).",
            )
        return [self._with_own(name, partial(dict, own)) for name, own in sets.items()]

    def itself(self, name: str) -> tuple[torch.nn.Module, SharedBlock]:
        """One block on the arguments of the function, and as such a module, with its own number."""
        block = self.blocks[name]
        if not self.numbers:
            return block, SharedBlock({name: block})
        number = self.numbers[name]
        return _OnOwnLayer(block, number), SharedBlock({name: block}, numbers={name: number})

    def _with_own(self, name: str, *options: Any) -> WithWeights:
        """A block, whose own layer of a cache is what the function takes of it."""
        found = WithWeights(self.blocks[name], *options)
        if name not in self.numbers:
            return found
        number = self.numbers[name]
        given = partial(with_own_layer, partial(_is_number, number))
        return replace(found, seen=partial(own_layer_of, number), given=given)


class _OnOwnLayer(torch.nn.Module):
    """A block that takes caches of one layer."""

    def __init__(self, block: torch.nn.Module, number: int) -> None:
        super().__init__()
        self.training = block.training
        self.block = block
        self._is_own = partial(_is_number, number)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return on_own_layer(self._is_own, self.block, args, kwargs)


def _is_stand_in(number: Any) -> bool:
    return isinstance(number, OfOneBlock)


def _is_number(own: int, number: Any) -> bool:
    return type(number) is int and number == own


def _is_turn(numbers: Iterator[int], turn: int) -> bool:
    return next(numbers) == turn


def weights_of(block: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a block by name, in its memory and without gradients."""
    return {name: tensor.detach() for name, tensor in _tensors(block)}


def shared_blocks(blocks: Sequence[torch.nn.Module]) -> list[SharedBlock]:
    """Returns the blocks in groups of equal ones, each as one module, in the order of their first
    blocks. The names of the blocks are their places in ``blocks``.

    >>> blocks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3), torch.nn.Linear(2, 2)]
    >>> [list(shared.blocks) for shared in shared_blocks(blocks)]
    [['0', '2'], ['1']]
    """
    groups: list[_Group] = []
    places: dict[int, int] = {}
    for place, block in enumerate(blocks):
        places.setdefault(id(block), place)
    for number, place in enumerate(places.values()):
        if not any(group.takes(number, place, blocks[place]) for group in groups):
            groups.append(_Group(number, place, blocks[place]))
    return [SharedBlock(group.blocks, group.counts, group.numbers()) for group in groups]


class _Group:
    """Equal blocks, as far as they were compared."""

    def __init__(self, number: int, place: int, block: torch.nn.Module) -> None:
        self.blocks: dict[str, torch.nn.Module] = {str(place): block}
        self.counts: set[Place] = set()
        self._number, self._place = number, place
        self._first = _without_values(block)
        self._ints = dict(_ints(self._first))
        self._every = {str(place): self._ints}
        self._table = _table(block)

    def numbers(self) -> dict[str, int]:
        """The number of each block, where all that count them agree."""
        found = {name: {ints[at] for at in self.counts} for name, ints in self._every.items()}
        if any(len(own) != 1 for own in found.values()):
            return {}
        return {name: own for name, (own,) in found.items()}

    def takes(self, number: int, place: int, block: torch.nn.Module) -> bool:
        """Takes a block that is equal to the first one; False for another one. ``number`` counts the
        blocks, of which one may stand at several places.
        """
        if _table(block) != self._table:
            return False
        other = _without_values(block, self._first)
        ints = dict(_ints(other))
        counted = (number - self._number, place - self._place)
        counts = {at for at, own in self._ints.items() if ints.get(at, own) - own in counted}
        for path, name in counts:
            vars(other.get_submodule(path))[name] = self._ints[path, name]
        if difference_of(self._first, other):
            return False
        self.blocks[str(place)] = block
        self._every[str(place)] = ints
        self.counts |= counts
        return True


def _tensors(block: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters and buffers of a block, each once, by name."""
    return [*block.named_parameters(), *block.named_buffers()]


def _table(block: torch.nn.Module) -> tuple[type, dict[str, Any]]:
    """The class of a block, and a description of each of its weights."""
    return type(block), {
        name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in _tensors(block)
    }


def _ints(block: torch.nn.Module) -> Iterable[tuple[Place, int]]:
    """The ints among the attributes of the modules of a block."""
    for path, module in block.named_modules():
        for name, value in vars(module).items():
            if type(value) is int:
                yield (path, name), value


def _ties(block: torch.nn.Module) -> dict[str, str]:
    """The further names of weights that have several, each with the first one."""
    first = {id(tensor): name for name, tensor in _tensors(block)}
    named = (
        *block.named_parameters(remove_duplicate=False),
        *block.named_buffers(remove_duplicate=False),
    )
    return {name: first[id(tensor)] for name, tensor in named if first[id(tensor)] != name}


def _without_values(block: torch.nn.Module, like: torch.nn.Module | None = None) -> Any:
    """A copy of a block whose weights have no values; they are those of ``like``, another such copy."""
    known = {} if like is None else dict(_tensors(like))
    with copying(block):
        memo: dict[int, Any] = dict(Snapshot.of(block, copies=False).tensors)
        for name, tensor in _tensors(block):
            memo[id(tensor)] = known[name] if name in known else _on_meta(tensor)
        return copy.deepcopy(block, memo)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach().to("meta")
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(found, tensor.requires_grad) if is_parameter else found
