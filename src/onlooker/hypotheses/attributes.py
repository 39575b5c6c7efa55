"""Finds the attributes by which a call depends on the calls before it: calls write them, and the
results of further calls depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.structure import Tree
from ..lab.lab import Lab
from ..lab.rerun import difference
from ..lab.runner import cuda_devices, opened
from ..observing.module_state import changed_paths, copied_values, held_values, put_values
from ..observing.store import Sample

__all__ = ["attributes_between_calls"]

#: attributes that are looked at one by one; of more all are named
_MOST_ALONE = 16


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
    others = {name: value for name, value in start.items() if name != path}
    return others | ({path: after[path]} if path in after else {})


def _from(
    values: Mapping[str, Any], paths: Sequence[str], sample: Sample, lab: Lab
) -> Tree[Any] | Exception:
    """The result of a sample with these values of the attributes."""
    put_values(lab.model, paths, copied_values(values))
    return _result(sample, lab)


def _result(sample: Sample, lab: Lab) -> Tree[Any] | Exception:
    try:
        with torch.random.fork_rng(devices=cuda_devices()):
            return opened(lab(sample.arguments()))
    except Exception as error:
        return error


def _differs(expected: Tree[Any] | Exception, got: Tree[Any] | Exception) -> bool:
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return type(expected) is not type(got)
    return bool(difference(expected, got))
