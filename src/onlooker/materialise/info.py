"""The kept calls in full, as users of the observer look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Signature
from ..core.path import Path
from ..observe.bind import as_args_kwargs
from ..observe.store import Sample
from ..pytrees.describe import string_type
from .arguments import leaf_values

__all__ = ["InputCandidate", "InputObserverInfo", "info_of"]


@dataclass(frozen=True)
class InputCandidate:
    """One kept call.

    ``args`` and ``kwargs`` are what the method was given, ``cst_kwargs`` the constants among the named ones,
    ``flat_list`` the tensors in their order, ``aligned_flat_list`` the same with None where another call has
    a tensor and this one has not. ``latency`` is in seconds.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cst_kwargs: dict[str, Any]
    flat_list: list[torch.Tensor]
    aligned_flat_list: list[torch.Tensor | None]
    latency: float

    @property
    def n_aligned_tensors(self) -> int:
        """The number of tensors over all calls, the missing ones included."""
        return len(self.aligned_flat_list)

    def str_obs(self) -> str:
        """The arguments in one line, with shapes."""
        return string_type((self.args, self.kwargs), with_shape=True)


@dataclass(frozen=True)
class InputObserverInfo:
    """All kept calls: ``inputs[i]``, ``flat_outputs[i]`` (its tensors) and ``latencies[i]`` (in seconds)."""

    inputs: list[InputCandidate]
    flat_outputs: list[list[torch.Tensor]]
    latencies: list[float]
    signature_names: list[str]

    def __len__(self) -> int:
        return len(self.inputs)


def info_of(samples: Sequence[Sample], signature: Signature) -> InputObserverInfo:
    """The kept calls of a method."""
    kept = [sample for sample in samples if sample.counted]
    paths: dict[Path, None] = {}
    for sample in kept:
        paths.update(dict.fromkeys(p for p, leaf in sample.inputs.items() if isinstance(leaf, torch.Tensor)))
    return InputObserverInfo(
        [_candidate(sample, paths, signature) for sample in kept],
        [[leaf for leaf in sample.outputs.leaves if isinstance(leaf, torch.Tensor)] for sample in kept],
        [sample.call.seconds for sample in kept],
        list(signature.names),
    )


def _candidate(sample: Sample, paths: Mapping[Path, None], signature: Signature) -> InputCandidate:
    values = leaf_values(sample)
    args, kwargs = as_args_kwargs(signature, sample.arguments())
    constants = {name: value for name, value in kwargs.items() if isinstance(value, (bool, int, float, str))}
    tensors = [leaf for leaf in values.values() if isinstance(leaf, torch.Tensor)]
    aligned = [values.get(path) for path in paths]
    return InputCandidate(args, kwargs, constants, tensors, aligned, sample.call.seconds)
