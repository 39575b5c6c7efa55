"""Finds the attributes by which a call depends on the calls before it: calls write them, and the
results of further calls depend on them.

Where the state of a model is watched, the same question is asked the other way round: which of the
attributes that calls write does nothing depend on?
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...core.call import STATE
from ...core.path import Key
from ...core.structure import Result
from ...lab.lab import Lab, SpentError
from ...lab.rerun import difference
from ...lab.runner import cuda_devices, opened
from ...observing.attribute_reads import reads_are_told
from ...observing.module_state import (
    are_equal,
    changed_paths,
    copied_values,
    held_values,
    put_values,
)
from ...observing.store import Sample
from ...pytrees.comparisons.agree import agreement
from ...pytrees.open import open_tree

__all__ = ["attributes_between_calls", "unread_attributes"]

logger = logging.getLogger(__name__)

#: attributes that are looked at one by one; of more all are named
_MOST_ALONE = 16
_NUMBERS = (bool, int, float, str)
#: runs that look for attributes that nothing depends on
_MOST_RUNS = 64


def attributes_between_calls(samples: Sequence[Sample], lab: Lab) -> tuple[str, ...]:
    """The paths of the attributes that runs of the samples write, and that their results depend on.

    Each sample is run from the state that stood before watching, then from what all of them left
    behind, with the same random numbers: where the results are the same, there is no such
    attribute. Which of the attributes it is, is found by setting each of them alone.
    """
    with lab.private_run(why="calls one after the other, for attributes that they write"):
        start = copied_values(held_values(lab.model))
        for sample in samples:
            _result(sample, lab)
        after = copied_values(held_values(lab.model))
        written = changed_paths(start, after)
        for sample in samples if written else ():
            expected = _from(start, written, sample, lab)
            if not _differs(expected, _from(after, written, sample, lab)):
                continue
            if len(written) > _MOST_ALONE:
                return written
            alone = [
                path
                for path in written
                if _differs(expected, _from(_with(start, after, path), written, sample, lab))
            ]
            return tuple(alone) or written
    return ()


def _with(start: Mapping[str, Any], after: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The values of the start, but for one attribute."""
    values = {name: value for name, value in start.items() if name != path}
    if path in after:
        values[path] = after[path]
    return values


def _from(
    values: Mapping[str, Any], paths: Sequence[str], sample: Sample, lab: Lab
) -> Result | Exception:
    """The result of a sample with these values of the attributes."""
    put_values(lab.model, paths, copied_values(values))
    return _result(sample, lab)


def _result(sample: Sample, lab: Lab) -> Result | Exception:
    try:
        with torch.random.fork_rng(devices=cuda_devices()):
            return opened(lab(sample.arguments()))
    except Exception as error:
        return error


def _differs(expected: Result | Exception, got: Result | Exception) -> bool:
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return type(expected) is not type(got)
    return bool(difference(expected, got))


def unread_attributes(
    samples: Sequence[Sample],
    lab: Lab,
    name: str,
    paths: Sequence[str],
    initial: Mapping[str, Any],
) -> tuple[str, ...]:
    """Of the attributes at ``paths``, which stand in the argument ``name`` of the samples, those
    that nothing depends on.

    Each sample is run with the initial value of one attribute. Where the results and all new values
    are the same, calls only write the attribute: the last output, for instance. An attribute whose
    own new value alone differs is read by its update: a running mean is state. If it has other
    shapes in other calls, it is a table that grows, or a list of what was seen, and no state: the
    initial value does as well.
    """
    found: list[str] = []
    try:
        with lab.share(_MOST_RUNS):
            for path in paths:
                if _is_unread(path, samples[::-1], lab, name, initial):
                    found.append(path)
    except SpentError as spent:
        logger.debug("%s: further attributes that calls write count as state", spent)
    return tuple(found)


def _is_unread(
    path: str, samples: Sequence[Sample], lab: Lab, name: str, initial: Mapping[str, Any]
) -> bool:
    tried = False
    shapes: set[Any] = set()
    is_updated = False
    for sample in samples:
        arguments = sample.arguments()
        state = arguments[name]
        if type(state.get(path)) in _NUMBERS:  # an input as cheap as any, which decides anything
            return False
        if path in state and state[path] is not None:
            shapes.add(_form(state[path]))
        if _is_initial(path, state, initial):
            continue
        expected = lab.try_run(arguments, why=f"call {sample.call.index} again", memo=True)
        others = {other: value for other, value in state.items() if other != path}
        first = copied_values({path: initial[path]} if path in initial else {})
        arguments = {**sample.arguments(), name: {**others, **first}}
        got = lab.try_run(arguments, why=f"{path} as it was when watching began")
        if expected is None or got is None or _depends(expected, got, path):
            return False
        if _asks_for_it(path, sample, lab, name, initial, expected):
            return False
        tried = True
        is_updated = is_updated or bool(difference(expected, got))
    return tried and (not is_updated or len(shapes) > 1)


def _asks_for_it(
    path: str,
    sample: Sample,
    lab: Lab,
    name: str,
    initial: Mapping[str, Any],
    result: Result,
) -> bool:
    """True where a call reads an attribute that was None when watching began, and puts another value
    there: ``if self.last is not None`` may decide, though it did nothing for the sizes of the sample.
    """
    state = sample.arguments()[name]
    if initial.get(path) is not None or path not in state or state[path] is None:
        return False
    leaves = [
        leaf for place, leaf in result.items() if place.entries[:2] == (Key(STATE), Key(path))
    ]
    if are_equal(open_tree(state[path]).leaves, tuple(leaves)):  # a table that the first call made
        return False
    prefix, _, attribute = path.rpartition(".")
    owner, reads = lab.model.inner.get_submodule(prefix), list[str]()
    with reads_are_told(owner, attribute, lambda: reads.append(path)):
        lab.try_run(sample.arguments(), why=f"who reads {path}")
    return bool(reads)


def _is_initial(path: str, state: Mapping[str, Any], initial: Mapping[str, Any]) -> bool:
    if path not in state or path not in initial:
        return (path in state) == (path in initial)
    return are_equal(initial[path], state[path])


def _form(value: Any) -> Any:
    """The containers of a value, and the shapes of its tensors."""
    tree = open_tree(value)
    return tree.structure, tuple(getattr(leaf, "shape", None) for leaf in tree.leaves)


def _depends(expected: Result, got: Result, path: str) -> bool:
    """True where results differ, but for the new value of this attribute."""
    left, right = (
        {
            place: leaf
            for place, leaf in tree.items()
            if place.entries[:2] != (Key(STATE), Key(path))
        }
        for tree in (expected, got)
    )
    if list(left) != list(right):
        return True
    return not agreement(left, list(left.values()), list(right.values())).holds
