"""Does the model only concatenate a list? Then any number of tensors goes through one graph, as
one tensor.

Of ``model([a, b])`` with 3 and 5 rows, the model is run again on ``[torch.cat([a, b])]``, a list of one tensor of
8 rows. If it gives the same, and nothing in its Python asked for the number of items, a graph takes the 8 rows as
one tensor, and a program joins the list of each call. A model that returns one tensor for each item, of 3 and
5 rows, is compared after its results are joined too, and its results are split again by the rows of the call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ..core.call import Join
from ..core.errors import UsageError
from ..core.path import Path
from ..core.structure import Result, Tree
from ..lab.lab import Lab, SpentError
from ..lab.rerun import difference
from ..materialise.domains import domains_of
from ..materialise.tensors import resized
from ..observing.store import Sample
from ..pytrees.joins import join_tensors, joined, joined_results, lists_of_tensors, split
from ..pytrees.open import close_tree, copy_tensors
from .family import FormFamily

__all__ = ["ConcatenatedLists"]

logger = logging.getLogger(__name__)
_DIMS = (0, 1)


class ConcatenatedLists(FormFamily):
    """The lists of tensors that the model reads as their concatenation, proven on observed calls.

    The model must give for the concatenated list what it gave for the list; a list of one tensor is
    cut in two for the same comparison, and one of one row has two rows before. A model that returns
    the list may return as many tensors.
    """

    question = "which lists does the model only concatenate?"
    all_tested = "every list was tested for being concatenated"

    def joins(self) -> Iterator[Join]:
        """The lists that are one tensor for graphs."""
        lists: dict[Path, list[tuple[Sample, tuple[torch.Tensor, ...]]]] = {}
        for sample in self._samples:
            for path, values in lists_of_tensors(sample.inputs):
                lists.setdefault(path, []).append((sample, values))
        for path, seen in lists.items():
            parameter = self._lab.signature.get(path.root)
            if parameter is not None and parameter.kind == "VAR_POSITIONAL":
                continue  # the tuple that the method gets is made by Python: nobody sees it counted
            if any(_asks_for_items(path, sample, self._lab) for sample, _ in seen):
                continue
            sample, values = max(seen, key=lambda item: len(item[1]))
            join = self._concatenation_of(path, sample, values)
            if join is not None:
                yield join

    def _concatenation_of(
        self, path: Path, sample: Sample, values: tuple[torch.Tensor, ...]
    ) -> Join | None:
        """The dimension along which the model concatenates a list, if there is one."""
        for dim in _DIMS:
            join, own = Join(path, dim), sample
            if len(values) == 1 and values[0].shape[dim : dim + 1] == (1,):
                twice = self._of_two_rows(path, dim, sample)
                if twice is None:
                    continue
                own = twice
            other = _other_list(path, dim, own.inputs)
            if other is None:
                continue
            found = self._giving_the_same(join, dim, other, own)
            if self._lab.record_claim(str(join), found is not None, argument=path.root):
                return found
        return None

    def _of_two_rows(self, place: Path, dim: int, sample: Sample) -> Sample | None:
        """The call with two rows in the one tensor of its list, and valid values beside it; None
        where the model refuses it.
        """
        values = dict(sample.inputs.items())
        (path,) = [path for path in values if path.entries[:-1] == place.entries]
        shape = list(values[path].shape)
        shape[dim] = 2
        domains = domains_of(self._samples)
        made = domains.clamped({**values, path: resized(values[path], shape)})
        inputs = Tree(sample.inputs.structure, tuple(made.values()))
        outputs = self._result(inputs, f"{place} with two rows")
        return None if outputs is None else replace(sample, inputs=inputs, outputs=outputs)

    def _giving_the_same(
        self, join: Join, dim: int, inputs: Tree[Any], sample: Sample
    ) -> Join | None:
        """The join with the lists in the result that are joined as well; None where the model gives
        something else for these inputs.
        """
        got = self._result(inputs, str(join))
        if got is None:
            return None
        before = _lists_like(sample.outputs, sample.inputs, join.path, dim)
        after = _lists_like(got, inputs, join.path, dim)
        found = replace(join, results=tuple(path for path in before if path in after))
        expected, came = (joined_results(tree, (found,)) for tree in (sample.outputs, got))
        return None if difference(expected, came) else found

    def _result(self, inputs: Tree[Any], why: str) -> Result | None:
        """Returns the result of the model; None where it refuses the call, or where the call cannot
        be made.
        """
        try:
            arguments = close_tree(inputs.structure, inputs.leaves)
        except Exception as error:
            logger.debug(
                "another number of tensors cannot be given: %s: %s", type(error).__name__, error
            )
            return None
        return self._lab.try_run(arguments, why=why, memo=True)


class _NotingList:
    """A list or tuple that counts who asks how many items it has, or for another one than the first."""

    n_readings = 0

    def __len__(self) -> int:
        _NotingList.n_readings += 1
        return int(super().__len__())  # type: ignore[misc]

    def __getitem__(self, index: Any) -> Any:
        _NotingList.n_readings += not (type(index) is int and index == 0)
        return super().__getitem__(index)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        _NotingList.n_readings += 1
        return bool(super().__eq__(other))

    __hash__ = None  # type: ignore[assignment]


_NOTING: dict[type, Any] = {
    kind: type(kind.__name__, (_NotingList, kind), {}) for kind in (list, tuple)
}


def _asks_for_items(path: Path, sample: Sample, lab: Lab) -> bool:
    """True where the Python of the model asks a call how many tensors are in its list: a trace has one
    there, and would take another path.
    """
    arguments = copy_tensors(sample.arguments())
    try:
        found = path.follow(arguments)
        path.put(arguments, _NOTING[type(found)](found))
    except (UsageError, KeyError) as error:  # of an object that takes no other list
        logger.debug("%s cannot be counted: %s", path, error)
        return True
    before = _NotingList.n_readings
    try:
        lab.run_within(arguments, contextlib.nullcontext(), why=f"whether {path} is counted")
    except SpentError:
        raise
    except Exception as error:
        logger.debug("%s: %s", type(error).__name__, error)
    return _NotingList.n_readings != before


def _other_list(place: Path, dim: int, inputs: Tree[Any]) -> Tree[Any] | None:
    """Returns the call with another number of tensors in the list; None where they cannot be
    concatenated.
    """
    values = dict(lists_of_tensors(inputs))[place]
    if any(value.ndim <= dim for value in values):
        return None
    if len(values) == 1:
        size = values[0].shape[dim]
        return split(inputs, place, dim, [size // 2, size - size // 2]) if size > 1 else None
    other_sizes = {
        tuple(size for own, size in enumerate(value.shape) if own != dim) for value in values
    }
    return joined(inputs, (Join(place, dim),), join_tensors) if len(other_sizes) == 1 else None


def _lists_like(outputs: Result, inputs: Tree[Any], place: Path, dim: int) -> list[Path]:
    """The lists in a result whose tensors have the sizes of those that are joined."""
    wanted = [value.shape[dim] for value in dict(lists_of_tensors(inputs))[place]]
    return [
        path
        for path, values in lists_of_tensors(outputs)
        if [value.shape[dim : dim + 1] for value in values] == [(n,) for n in wanted]
    ]
