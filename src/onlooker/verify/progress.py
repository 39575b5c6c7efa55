"""The trials that a verification has made, so that one that was ended goes on from there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.distance import OutputDistance
from ..core.structure import Result
from ..core.verdict import Check
from ..lab.work import rows_of
from ..pytrees.open import open_arguments
from .trials import Trial

__all__ = ["Progress", "TrialResult", "weights_of"]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of one trial.

    ``unlawful`` is its label where the model itself refuses it; ``refused`` are its sizes where
    they are outside all contracts and the program refuses them too; ``drawn`` is its label where
    model and program draw random numbers of their own; ``graph`` is the name of the graph that the
    trial was for.
    """

    checks: tuple[Check, ...] = ()
    unlawful: str = ""
    refused: str = ""
    graph: str = ""
    drawn: str = ""
    distances: tuple[OutputDistance, ...] = ()


@dataclass(slots=True)
class Progress:
    """The trials that were made, by their number among those that a seed gives.

    ``smallest`` is the one that is repeated at the end, with the result of the model; None where
    another process has made the trial.
    """

    tried: dict[int, TrialResult] = field(default_factory=dict)
    smallest: tuple[tuple[bool, int], int, Trial, Result | None] | None = None
    repeated: list[Check] = field(default_factory=list)

    def propose(self, number: int, trial: Trial, expected: Result | None) -> None:
        """Takes a trial as the one to be repeated where it is smaller than the one so far; observed
        ones come first.
        """
        rank = trial.kind != "observed", rows_of(dict(open_arguments(trial.arguments).items()))
        if self.smallest is None or rank < self.smallest[0]:
            self.smallest = rank, number, trial, expected

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks in the order of the trials, the repetition last."""
        found = [check for tried in self._in_order() for check in tried.checks]
        return (*found, *self.repeated)

    @property
    def unlawful(self) -> tuple[str, ...]:
        """The labels of the trials that the model refuses."""
        return tuple(tried.unlawful for tried in self._in_order() if tried.unlawful)

    @property
    def refused(self) -> tuple[str, ...]:
        """The sizes outside all contracts, each once."""
        return tuple(dict.fromkeys(tried.refused for tried in self._in_order() if tried.refused))

    @property
    def drawn(self) -> tuple[str, ...]:
        """The labels of the trials in which model and program draw random numbers of their own."""
        return tuple(tried.drawn for tried in self._in_order() if tried.drawn)

    @property
    def distances(self) -> tuple[OutputDistance, ...]:
        """The distances in all trials."""
        return tuple(one for tried in self._in_order() for one in tried.distances)

    @property
    def graphs(self) -> frozenset[str]:
        """The names of the graphs that a valid trial had."""
        return frozenset(tried.graph for tried in self.tried.values())

    def _in_order(self) -> Iterable[TrialResult]:
        return (self.tried[number] for number in sorted(self.tried))


def weights_of(model: Any) -> tuple[Any, ...]:
    """Equal for a model as long as its weights are; writing to them changes their version.

    >>> model = torch.nn.Linear(2, 2)
    >>> before = weights_of(model)
    >>> _ = model.weight.data.fill_(1.0), model.weight.detach().mul_(2.0)
    >>> weights_of(model) == before
    False
    """
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    return (id(model), *((id(tensor), _version_of(tensor)) for tensor in tensors))


def _version_of(tensor: torch.Tensor) -> object:
    """Another one after each write; torch counts none for tensors that were made in inference
    mode, which are therefore never equal.
    """
    return object() if tensor.is_inference() else tensor._version
