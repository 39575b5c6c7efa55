"""Attacks on verified programs: a module, the calls that are watched, and the calls that should fool its program.

:func:`attack` exports and verifies, and compares program and model on each fooling call: results with their types, what
the call leaves in its arguments, and the random state. A refusal is no lie, and neither is a program that was not
verified.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from onlooker import InputObserver, OnlookerError, Program, RejectedCallError

Call = Callable[[torch.nn.Module | Program], Any]


@dataclass(frozen=True)
class Attack:
    """A module, the arguments of the calls that are watched, and of those that should fool the program.

    The latter are made inside of the context ``around``.
    """

    name: str
    module: Callable[[], torch.nn.Module]
    watched: Callable[[], Sequence[tuple[Any, ...]]]
    fooling: Callable[[], Sequence[tuple[Any, ...]]]
    targets: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def __str__(self) -> str:
        """The name, as pytest shows it."""
        return self.name


@dataclass(frozen=True)
class Outcome:
    """What became of an attack: the verdict on each target, and the lies of verified programs."""

    verified: dict[str, bool]
    lies: list[str]
    harm: list[str]


def attack(attack: Attack, *, standing: Callable[[torch.nn.Module], dict[str, str]] | None = None) -> Outcome:
    """Watches, exports, verifies, and calls the program where it should be fooled.

    ``standing`` gives all that the model and its surroundings hold, by path: what ``export()`` and ``verify()``
    change of it is harm.
    """
    torch.manual_seed(0)
    model = attack.module().eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for arguments in attack.watched():
            _called(model, arguments)
    verified: dict[str, bool] = {}
    programs: dict[str, Program] = {}
    before = standing(model) if standing is not None else {}
    for target in ("torch", *attack.targets):
        with contextlib.suppress(OnlookerError):
            made = observer.export() if target == "torch" else programs["torch"].to(target)
            programs[target] = made
            verified[target] = made.verify().verified
        if "torch" not in programs:
            break
    after = standing(model) if standing is not None else {}
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    harm = [f"{path}: {before.get(path, '')[:90]} became {after.get(path, '')[:90]}" for path in changed]
    lies = []
    for target in (target for target, is_verified in verified.items() if is_verified):
        now = copy.deepcopy(model)  # the calls of the model and of the program follow each other
        for number, (ours, theirs) in enumerate(zip(_made(attack), _made(attack), strict=True)):
            lie = _lie_of(now, programs[target], ours, theirs, attack.around)
            if lie:
                lies.append(f"{target}, call {number}: {lie}")
    return Outcome(verified, lies, harm)


def _lie_of(
    model: torch.nn.Module,
    program: Program,
    ours: tuple[Any, ...],
    theirs: tuple[Any, ...],
    around: Callable[[], AbstractContextManager[Any]],
) -> str:
    """How the program differs from the model on a call; empty where it does not, or refuses."""
    torch.manual_seed(1)
    with torch.no_grad(), around():
        try:
            got = _called(program, theirs)
        except RejectedCallError:  # who falls back on the model has called the model
            return "" if torch.rand(1).equal(_first_draw()) else "a refusal drew random numbers"
    drawn = torch.rand(1)
    torch.manual_seed(1)
    with torch.no_grad(), around():
        try:
            expected: Any = _called(model, ours)
        except Exception as error:  # the model may raise whatever it likes
            expected = error
    if isinstance(expected, Exception):
        return f"the model raises {type(expected).__name__}, the program gives {got!r}"
    if not alike(expected, got):
        return f"the model gives {expected!r}, the program {got!r}"
    if not alike(ours, theirs):
        return f"the call leaves {ours!r}, the program {theirs!r}"
    return "" if torch.rand(1).equal(drawn) else "another random state is left"


def _first_draw() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(1)


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    *args, last = (*arguments, {}) if not (arguments and isinstance(arguments[-1], Named)) else arguments
    return function(*args, **last)


class Named(dict[str, Any]):
    """The last entry of arguments that are given by name."""


def _made(attack: Attack) -> Sequence[tuple[Any, ...]]:
    """The arguments of the fooling calls, made anew: a copy may be no view, and have no hooks."""
    torch.manual_seed(0)
    return attack.fooling()


def alike(one: Any, other: Any) -> bool:
    """True for results of one type that hold the same; floats within rounding, NaN is NaN."""
    if isinstance(one, torch.Tensor):
        is_same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return is_same and torch.allclose(one.detach(), other.detach(), atol=1e-4, rtol=1e-4, equal_nan=True)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return one == other or abs(one - other) < 1e-6 * max(1.0, abs(one)) or (one != one and other != other)
    if hasattr(one, "__dict__") and not callable(one):
        return alike(vars(one), vars(other))
    if isinstance(one, slice):
        return alike((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    return bool(one == other)
