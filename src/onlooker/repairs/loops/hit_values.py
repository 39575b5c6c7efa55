"""What a loop over chosen rows goes over: ``mask.nonzero()``, or ``chosen.unique()``.

    scores, chosen = gates.topk(2)          # gates: [tokens, 8], so values of chosen are 0 to 7
    for expert in chosen.unique().tolist():

has a step for each of the numbers 0 to 7 that stands in ``chosen``, in their order: the rows of the mask
``[(chosen == 0).any(), ..., (chosen == 7).any()]``. How many numbers there may be is read in the graph:
only places of a known number of columns are counted so, and what moves them without a change. So is
the length of ``chosen.view(-1).bincount(minlength=8)``, which torch takes for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..live_part import is_written, node_of

__all__ = ["BINS", "LISTS", "MOVES", "UNIQUE", "Hits", "counted"]

BINS = frozenset({torch.bincount, torch.Tensor.bincount})

UNIQUE = frozenset({torch.unique, torch.Tensor.unique})
_SORTED = {"sorted": True, "return_inverse": False, "return_counts": False, "dim": None}
LISTS = frozenset({torch.Tensor.tolist})
_WITH_SIZE = frozenset({torch.Tensor.view, torch.Tensor.reshape, torch.reshape})
_WITH_DIM = frozenset({torch.Tensor.squeeze, torch.squeeze})
_WHOLE = frozenset(
    {
        torch.Tensor.flatten,
        torch.flatten,
        torch.Tensor.cpu,
        torch.Tensor.detach,
        torch.Tensor.contiguous,
    }
)
#: the functions whose result has all rows, as they are
MOVES = _WITH_SIZE | _WITH_DIM | _WHOLE
#: more rows are visited by no trace
_MOST_ROWS = 512
#: operators that give places in a dimension, and which of their results has them
_PLACES = {"topk": 1, "sort": 1, "max": 1, "argmax": None, "argsort": None}
#: operators whose result has values of their argument, and no others
_SAME = frozenset(
    {
        *("view", "reshape", "flatten", "slice", "select", "detach", "clone", "contiguous"),
        *("transpose", "permute", "squeeze", "unsqueeze", "alias", "_to_copy", "to", "t", "expand"),
    }
)
_PARTS = frozenset({"unbind", "split", "chunk", "split_with_sizes"})


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows of a ``mask`` that are not 0, or the values of ``chosen``, as one dimension of
    ``values``.
    """

    values: torch.Tensor
    source: torch.Tensor
    is_of_values: bool
    writes: Any

    @classmethod
    def found(
        cls, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, before: Hits | None
    ) -> Hits | None:
        """What the result of a function is, where a loop may go over it; ``before`` is what its first
        argument was.
        """
        if not isinstance(result, torch.Tensor):
            return None
        if func in MOVES:
            is_whole = (
                before is not None and before.is_whole() and _moves(func, args, kwargs, result)
            )
            if before is None or not is_whole:
                return None
            return cls(
                result, before.source, before.is_of_values, _writes_to(result, before.source)
            )
        is_of_values = func in UNIQUE
        plain = _SORTED if is_of_values else {}
        if len(args) != 1 or kwargs != plain or not (is_of_values or _is_mask(args[0])):
            return None
        return cls(result, args[0], is_of_values, _writes_to(result, args[0]))

    def is_whole(self) -> bool:
        """True while neither the rows nor what they were found in was written to."""
        return bool(self.writes == _writes_to(self.values, self.source))

    def count(self, known: int | None) -> int | None:
        """Counts the rows that may be; None where that is not known. In runs without a graph it is
        ``known``.
        """
        if not self.is_of_values:
            return int(self.source.shape[0])
        node = node_of(self.source)
        found = known if node is None else _values_below(node)
        return None if found is None or found > _MOST_ROWS else found

    def steps(self, count: int, is_list: bool) -> Iterator[tuple[torch.Tensor, Any]]:
        """For each row whether it is in the loop, and what the loop gives: a number, or a tensor of
        it.
        """
        if self.is_of_values:
            lives = [(self.source == number).any() for number in range(count)]
        else:
            lives = [self.source[number] != 0 for number in range(count)]
        for number, is_live in enumerate(lives):
            found: Any = number if self.values.ndim == 1 else [number]
            yield is_live, found if is_list else torch.tensor(found, device=self.source.device)


def counted(
    chosen: torch.Tensor, weights: Any = None, minlength: Any = 0, **others: Any
) -> torch.Tensor | None:
    """``chosen.bincount(minlength=8)`` as a tensor of 8 numbers, where no value is greater; None for any
    other one, of which the values say how long it is.
    """
    node = node_of(chosen)
    below = None if node is None or weights is not None or others else _values_below(node)
    if below is None or not isinstance(minlength, int) or below > minlength:
        return None
    zeros = torch.zeros(minlength, dtype=torch.int64, device=chosen.device)
    return zeros.scatter_add(0, chosen, torch.ones_like(chosen))


def _moves(func: Callable[..., Any], args: Any, kwargs: Any, result: torch.Tensor) -> bool:
    """True where the result has the rows of the first argument, each of them one number."""
    if kwargs or result.ndim > args[0].ndim:
        return False
    if func in _WITH_SIZE:
        return tuple(args[1:]) in ((-1,), ((-1,),), ([-1],))
    return args[1:] in ((-1,), (1,)) and args[0].ndim == 2 if func in _WITH_DIM else len(args) == 1


def _is_mask(value: Any) -> bool:
    """True for a tensor with one dimension, whose size is a number."""
    if not isinstance(value, torch.Tensor) or value.ndim != 1:
        return False
    return isinstance(value.shape[0], int) and value.shape[0] <= _MOST_ROWS


def _values_below(node: Node) -> int | None:
    """The number that all values of a tensor of places are below; None for any other tensor."""
    chain, result = [node], None
    while node.op == "call_function" and isinstance(node.args[0], Node):
        schema = getattr(node.target, "_schema", None)
        name = "" if schema is None else schema.name.rpartition(":")[2]
        node = node.args[0]
        if name in _PLACES:
            is_places = result == _PLACES[name] and not is_written(chain)
            return _size_of_dim(chain[-1], node) if is_places else None
        if schema is None and result is None:  # one of some results
            result = chain[-1].args[1]
        elif name in _PARTS or (name in _SAME and chain[-1].meta["val"].dtype == torch.int64):
            result = None
        else:
            return None
        chain.append(node)
    return None


def _size_of_dim(places: Node, of: Node) -> int | None:
    """The size of the dimension that an operator gives places in; None where it is no number."""
    arguments = getattr(places.target, "_schema").arguments  # noqa: B009  # of an operator
    number = [one.name for one in arguments].index("dim")
    given = places.args[number : number + 1]
    dim: Any = given[0] if given else places.kwargs.get("dim", arguments[number].default_value)
    value = of.meta["val"]
    size = value.numel() if dim is None else value.shape[dim]
    return size if isinstance(size, int) else None


def _writes_to(*tensors: torch.Tensor) -> Any:
    """Counts the writes to tensors so far; None where torch does not count them."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # of inference mode
        return None
