"""Does the model only concatenate a list? Then any number of tensors goes through one graph, as
one tensor.

Each call is run with a list that notes who asks it for anything. Where it goes whole into ``torch.cat``, and
neither Python nor another function gets an item, the model cannot know how many there are, nor treat one
otherwise than its rows. Values and sizes of the calls say no such thing: ``torch.cat([x[:10] for x in xs])`` is
``torch.cat(xs)`` in all calls with fewer rows.

Of ``model([a, b])`` with 3 and 5 rows, the model is then run again on ``[torch.cat([a, b])]``, a list of one
tensor of 8 rows. If it gives the same, a graph takes the 8 rows as one tensor, and a program joins the list of
each call. A model that returns the list, of 3 and 5 rows, is compared after its results are joined too, and its
results are split again by the rows of the call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.call import Join
from ..core.errors import UsageError
from ..core.path import Path
from ..core.structure import Result, Tree
from ..lab.lab import Lab, SpentError
from ..lab.recorder import OperatorMode
from ..lab.rerun import difference
from ..materialise.domains import domains_of
from ..materialise.tensors import resized
from ..observing.store import Sample
from ..pytrees.joins import join_tensors, joined, joined_results, lists_of_tensors, split
from ..pytrees.open import close_tree, copy_tensors, open_tree
from ..repairs.trace_mode import reading
from ..repairs.whole_lists import ListWatch, noting_list
from ..torch_internals.trees import torch_pytree
from .family import FormFamily

__all__ = ["ConcatenatedLists"]

logger = logging.getLogger(__name__)
_DIMS = (0, 1)


class ConcatenatedLists(FormFamily):
    """The lists of tensors that the model reads as their concatenation, and in no other way, in the observed calls.

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
            dims = set(_DIMS)
            for sample, _ in seen:
                dims &= dims and set(_dims_of(path, sample, self._lab))
            sample, values = max(seen, key=lambda item: len(item[1]))
            join = self._concatenation_of(path, sorted(dims), sample, values)
            if join is not None:
                yield join

    def _concatenation_of(
        self, path: Path, dims: Sequence[int], sample: Sample, values: tuple[torch.Tensor, ...]
    ) -> Join | None:
        """The one of these dimensions along which the model concatenates a list, if there is one."""
        for dim in dims:
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


class _Operators(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Shows a :class:`ListWatch` the operators of a run: functions in C read lists where no Python notes it."""

    def __init__(self, watch: ListWatch) -> None:
        super().__init__()
        self._watch = watch

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator, and notes it."""
        self._watch.note_operator(func, args, kwargs)
        return func(*args, **kwargs)


def _dims_of(path: Path, sample: Sample, lab: Lab) -> Collection[int]:
    """The dimensions along which a call joins a list that goes whole into functions of torch; all of them where
    nothing reads it, and none where Python or a function gets an item: a trace would see one of them, joined of
    all, and could be another path.
    """
    arguments = copy_tensors(sample.arguments())
    try:
        found = path.follow(arguments)
        if type(found) not in (list, tuple) or not found[0].ndim:
            return ()
        watch = ListWatch(found)
        given = noting_list(found, watch)
        path.put(arguments, given)
    except UsageError as error:  # of an object that takes no other list
        logger.debug("%s cannot be watched: %s", path, error)
        return ()
    try:
        result = lab.run_within(arguments, _watched(watch, type(given)), why=f"who reads {path}")
    except SpentError:
        raise
    except Exception as error:
        logger.debug("%s: %s", type(error).__name__, error)
        return ()
    if watch.is_opened or difference(*map(_leaves_only, (sample.outputs, result))):
        return ()
    return watch.dims or _DIMS


def _leaves_only(result: Result) -> Result:
    """The result as a flat list: another class of a list in it is no other result."""
    return open_tree(list(result.leaves))


@contextlib.contextmanager
def _watched(watch: ListWatch, kind: type) -> Iterator[None]:
    """Inside the block a watch sees what the model does with a list of this class."""

    def taken_apart(values: Any) -> tuple[list[Any], None]:
        watch.note_reading()
        return [*values], None

    torch_pytree.SUPPORTED_NODES[kind] = torch_pytree.NodeDef(
        kind, taken_apart, lambda values, _: kind(values), None
    )
    watch.is_running = True
    try:
        with reading(watch), _Operators(watch):
            yield
    finally:
        watch.is_running = False
        del torch_pytree.SUPPORTED_NODES[kind]


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
