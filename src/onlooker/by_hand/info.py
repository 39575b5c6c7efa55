"""The kept calls in full, as users of the observer look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.call import Passing, Signature
from ..core.errors import ObservationError
from ..core.path import Path
from ..core.support.kinds import ArgsKwargs
from ..materialise.arguments import leaf_values
from ..observing.store import Sample
from ..pytrees.deepcopy import torch_deepcopy
from ..pytrees.descriptions.describe import string_type
from ..pytrees.open import open_tree

__all__ = ["InputCandidate", "InputObserverInfo", "info_of"]


@dataclass(frozen=True)
class InputCandidate:
    """One kept call.

    ``args`` and ``kwargs`` are what the method was given, copied with ``clone``; ``cst_kwargs`` are
    the constants among the named ones. ``aligned_flat_list`` holds the tensors with None where
    another call has a tensor and this one has not; it is None for arguments that were not laid
    beside those of other calls. ``latency`` is in seconds.

    >>> candidate = InputCandidate((torch.zeros(2), [torch.ones(3)]), {}, False, {})
    >>> [tuple(tensor.shape) for tensor in candidate.flat_list]
    [(2,), (3,)]
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    clone: bool = False
    cst_kwargs: dict[str, Any] = field(default_factory=dict)
    aligned_flat_list: list[torch.Tensor | None] | None = None
    latency: float = 0.0

    def __repr__(self) -> str:
        return f"<InputCandidate: {self.str_obs()}>"

    def __post_init__(self) -> None:
        if self.clone:
            args, kwargs = torch_deepcopy((self.args, self.kwargs))
            object.__setattr__(self, "args", args)
            object.__setattr__(self, "kwargs", kwargs)

    @property
    def flat_list(self) -> list[torch.Tensor]:
        """The tensors in their order."""
        return [
            leaf
            for leaf in open_tree((self.args, self.kwargs)).leaves
            if isinstance(leaf, torch.Tensor)
        ]

    @property
    def n_aligned_tensors(self) -> int:
        """The number of tensors over all calls, the missing ones included.

        :raises ObservationError: ``not-aligned`` for arguments that no observer saw
        """
        if self.aligned_flat_list is None:
            raise ObservationError(
                "This input was not aligned with the others.",
                slug="not-aligned",
                hint="The candidates of observer.info are.",
            )
        return len(self.aligned_flat_list)

    def str_obs(self) -> str:
        """The arguments in one line, with shapes."""
        return string_type((self.args, self.kwargs), with_shape=True)

    def __len__(self) -> int:
        return len(self.flat_list)


@dataclass(frozen=True)
class InputObserverInfo:
    """All kept calls: ``inputs[i]``, ``flat_outputs[i]`` (its tensors) and ``latencies[i]`` (in
    seconds).
    """

    inputs: list[InputCandidate]
    flat_outputs: list[list[torch.Tensor]]
    latencies: list[float]
    signature_names: list[str]

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"<InputObserverInfo: {len(self)} kept calls>"


def info_of(samples: Sequence[Sample], signature: Signature) -> InputObserverInfo:
    """The kept calls of a method; tensors stand in the order of its signature."""
    kept = [sample for sample in samples if sample.counted]
    paths: dict[Path, None] = {}
    for sample in kept:
        paths.update(
            dict.fromkeys(p for p, leaf in sample.inputs.items() if isinstance(leaf, torch.Tensor))
        )
    order = {name: position for position, name in enumerate(signature.names)}
    aligned = sorted(paths, key=lambda path: order.get(path.root, len(order)))
    return InputObserverInfo(
        [_candidate(sample, aligned) for sample in kept],
        [
            [leaf for leaf in sample.outputs.leaves if isinstance(leaf, torch.Tensor)]
            for sample in kept
        ],
        [sample.call.seconds for sample in kept],
        list(signature.names),
    )


def _as_passed(sample: Sample) -> ArgsKwargs:
    """The arguments of a call, by position those that came by position."""
    args: list[Any] = []
    kwargs = sample.arguments()
    for name, how in sample.call.passed:
        if how is Passing.POSITIONAL:
            args.append(kwargs.pop(name))
        elif how is Passing.VAR_POSITIONAL:
            args += kwargs.pop(name)
    return tuple(args), kwargs


def _candidate(sample: Sample, paths: Sequence[Path]) -> InputCandidate:
    values = leaf_values(sample)
    args, kwargs = _as_passed(sample)
    constants = {
        name: value for name, value in kwargs.items() if isinstance(value, (bool, int, float, str))
    }
    found = [values.get(path) for path in paths]
    aligned = [value if isinstance(value, torch.Tensor) else None for value in found]
    return InputCandidate(args, kwargs, False, constants, aligned, sample.call.seconds)
