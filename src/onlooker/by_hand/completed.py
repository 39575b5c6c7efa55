"""The kept calls, each completed with what it lacks and other calls have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Values
from ..core.errors import ObservationError
from ..core.path import Path
from ..core.recording import Recording
from ..core.support.kinds import ArgsKwargs
from ..materialise.arguments import leaf_values
from ..observing.store import Sample
from .inferred import check_kept, infer_values, spelled
from .missing import with_missing_calls, with_missing_samples
from .union import CallUnion, union_of_calls

__all__ = ["CompletedCall", "completed_calls"]


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """One kept call: as it was, and with a value per leaf that any call had.

    ``missing`` are the tensors that it lacked itself, filled in ``values``.
    """

    sample: Sample
    union: CallUnion
    values: Values
    missing: frozenset[Path]

    @property
    def tensors(self) -> dict[Path, torch.Tensor]:
        """The tensors among the values."""
        return {
            path: value for path, value in self.values.items() if isinstance(value, torch.Tensor)
        }

    @property
    def n_empty(self) -> int:
        """The number of tensors without elements, those filled in among them."""
        return sum(
            tensor.numel() == 0 or path in self.missing for path, tensor in self.tensors.items()
        )

    def args_kwargs(self) -> ArgsKwargs:
        """The completed arguments, as a program of torch.export was given them."""
        args, kwargs = spelled(self.union, self.values, as_args_kwargs=True)
        return args, kwargs


def completed_calls(
    recording: Recording, samples: Sequence[Sample], given: Mapping[str, Any]
) -> tuple[CompletedCall, ...]:
    """The calls whose values were asked for; all kept ones where none was.

    ``given`` holds values for missing arguments. Calls that contradict each other are completed
    each by itself.

    :raises ObservationError: ``no-values`` when no call was kept
    """
    kept = [sample for sample in samples if sample.counted] or list(samples)
    check_kept(kept)
    calls = with_missing_calls(recording.calls, given)
    filled = with_missing_samples(kept, given)
    unions = _unions(calls, filled, recording)
    return tuple(_completed(*item) for item in zip(kept, filled, unions, strict=True))


def _unions(
    calls: Sequence[Any], filled: Sequence[Sample], recording: Recording
) -> list[CallUnion]:
    try:
        return [union_of_calls(calls, recording.signature)] * len(filled)
    except ObservationError:
        return [union_of_calls([sample.call], recording.signature) for sample in filled]


def _completed(sample: Sample, filled: Sample, union: CallUnion) -> CompletedCall:
    values = infer_values(union, [filled], 0, general=False)
    own = leaf_values(sample)
    missing = frozenset(
        p for p, v in values.items() if isinstance(v, torch.Tensor) and own.get(p) is None
    )
    return CompletedCall(sample, union, values, missing)
