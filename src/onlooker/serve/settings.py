"""The plain attributes of a model that was exported: the graphs have those that the model reads as constants.

An installed program stands in for a model that its user still has, and may switch: ``model.train()``, a flag of a
layer, a number of its configuration. One run of the model tells whether a call reads what was switched.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..observing.attribute_reads import reads_are_told
from ..observing.module_state import own_values, owners_of
from ..pytrees.nodes import is_plain

__all__ = ["Setting", "Settings", "read_by"]

#: a longer list or dict is a table, and no setting
_MOST_ITEMS = 64
_CONTAINERS = (list, tuple, dict)
#: the mode, which every module has
_MODE = "training"


@dataclass(frozen=True, slots=True)
class Setting:
    """An attribute of a module of a model, or of an object that is an attribute there, and the value
    that it had.
    """

    path: str
    owner: Any
    name: str
    value: Any

    @property
    def now(self) -> Any:
        """The value that the attribute has now; the old one where the attribute is gone."""
        return vars(self.owner).get(self.name, self.value)

    def is_other(self) -> bool:
        """True where the attribute has another plain value now."""
        now = self.now
        if now is self.value:
            return False
        return is_plain(now) and (type(now) is not type(self.value) or now != self.value)


class Settings:
    """The settings of a model at one moment, but for those at the paths that are ``state``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5)).eval()
    >>> settings = Settings(model)
    >>> model[0].p = 0.1
    >>> [(one.path, one.value, one.now) for one in settings.changed()]
    [('0.p', 0.5, 0.1)]
    """

    def __init__(self, model: Any, state: Collection[str] = ()) -> None:
        # the same object is the same value, but for a list or a dict: nearly all attributes are no more to ask
        self._held = [
            (
                vars(one.owner),
                one.name,
                None if type(one.value) in _CONTAINERS else one.value,
                one,
            )
            for one in _settings_of(model)
            if one.path not in state
        ]

    def changed(self) -> Sequence[Setting]:
        """Returns the settings that have another value now."""
        held = self._held
        maybe = [one for space, name, value, one in held if space.get(name, held) is not value]
        return [one for one in maybe if one.is_other()]


def _settings_of(model: Any) -> Iterator[Setting]:
    if not hasattr(model, "__dict__"):
        return
    for prefix, owner in owners_of(model):
        space = vars(owner)
        mode = [(_MODE, space[_MODE])] if _MODE in space else []
        for name, value in dict((*own_values(owner), *mode)).items():
            is_long = type(value) in _CONTAINERS and len(value) > _MOST_ITEMS
            if name in space and not is_long and is_plain(value):
                yield Setting(f"{prefix}.{name}" if prefix else name, owner, name, _copied(value))


def _copied(value: Any) -> Any:
    return copy.deepcopy(value) if type(value) in _CONTAINERS else value


def read_by(run: Callable[[], object], settings: Sequence[Setting]) -> list[Setting]:
    """Returns the settings that a run reads and leaves as they are: a counter that the run moves on is no setting."""
    read: dict[str, Setting] = {}
    begun = [replace(one, value=_copied(one.now)) for one in settings]
    with contextlib.ExitStack() as stack:
        for one in settings:
            note = partial(read.__setitem__, one.path, one)
            if not stack.enter_context(reads_are_told(one.owner, one.name, note)):
                note()
        run()
    moved = {one.path for one in begun if one.is_other()}
    return [one for path, one in read.items() if path not in moved]
