"""What a verification has tried, so that one that was ended goes on from there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.structure import Tree
from ..core.verdict import Check
from ..lab.work import rows_of
from ..pytrees.open import open_arguments
from .trials import Trial

__all__ = ["Progress", "Tried", "weights_of"]


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one trial.

    ``unlawful`` is its label where the model itself refuses it; ``refused`` are its sizes where
    they are outside all contracts and the program refuses them too; ``graph`` is the name of the
    graph that the trial was for.
    """

    checks: tuple[Check, ...] = ()
    unlawful: str = ""
    refused: str = ""
    graph: str = ""


@dataclass(slots=True)
class Progress:
    """The trials that were made, by their number among those that a seed gives.

    ``smallest`` is the one that is repeated at the end, with the result of the model.
    """

    tried: dict[int, Tried] = field(default_factory=dict)
    smallest: tuple[tuple[bool, int], Trial, Tree[Any]] | None = None
    repeated: list[Check] = field(default_factory=list)

    def propose(self, trial: Trial, expected: Tree[Any]) -> None:
        """Takes a trial as the one to be repeated where it is smaller than the one so far; observed
        ones come first.
        """
        rank = trial.kind != "observed", rows_of(dict(open_arguments(trial.arguments).items()))
        if self.smallest is None or rank < self.smallest[0]:
            self.smallest = rank, trial, expected

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
    def graphs(self) -> frozenset[str]:
        """The names of the graphs that a lawful trial had."""
        return frozenset(tried.graph for tried in self.tried.values())

    def _in_order(self) -> Iterable[Tried]:
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
