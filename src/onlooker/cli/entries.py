"""``--entry unet --entry vae.decode``: parts of what the user's function gives, watched together."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ..core.errors import UsageError
from ..hypotheses.overrides import OBSERVED
from ..model_source.user_function import Used, raised_by_the_user
from ..observers import Observers, observe

__all__ = ["entry_name", "named_entries", "texts_by_entry", "watch_entries"]


def watch_entries(used: Used, paths: Sequence[str], keep: int) -> Observers:
    """The observers of one use of an object, of which parts are watched.

    :raises UsageError: ``bad-entry``
    :raises FunctionRaisedError: ``function-raised`` when the use raises
    """
    entries = named_entries(paths, [_part(used, path) for path in paths])
    with (
        observe(store_n_calls=keep, **entries) as observers,
        torch.no_grad(),
        raised_by_the_user(f"the callable of {used.name}"),
    ):
        used.use()
    return observers


def named_entries(paths: Sequence[str], parts: Sequence[Any]) -> dict[str, Any]:
    """The parts that stand at these paths, by the names of their programs.

    :raises UsageError: ``bad-entry`` where two have one name
    """
    entries: dict[str, Any] = {}
    for path, part in zip(paths, parts, strict=True):
        name = entry_name(path)
        if name in entries:
            raise UsageError(
                f"Argument --entry: {path!r} has the name {name}, as another one has.",
                slug="bad-entry",
                hint="Name each part once.",
            )
        entries[name] = part
    return entries


def entry_name(path: str) -> str:
    """The name of the program, and of its folder: ``vae_decode`` for ``vae.decode``."""
    return path.replace(".", "_")


def texts_by_entry(texts: Sequence[str], names: Collection[str]) -> dict[str, list[str]]:
    """The values of an option that begin with the name of an entry and a colon, by that name; all
    others under ``""``.

    >>> texts_by_entry(["unet:x:0,2", "x:1"], ["unet"])
    {'unet': ['x:0,2'], '': ['x:1']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        of_entry = name in names and (":" in rest or "=" in rest or rest == OBSERVED)
        found.setdefault(name if of_entry else "", []).append(rest if of_entry else text)
    return found


def _part(used: Used, path: str) -> Any:
    """The object at a path of attributes, or the pair of an object and a method where the path ends
    at one.
    """
    owner, found, last = None, used.model, ""
    for part in path.split("."):
        owner, last = found, part
        with raised_by_the_user(f"{path} of {used.name}", but=(AttributeError,)):
            found = _attribute(owner, part, path)
    return (owner, last) if inspect.isroutine(found) else found


def _attribute(owner: Any, name: str, path: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise UsageError(
            f"Argument --entry: {path!r} is no part of it: {type(owner).__name__} has no {name!r}.",
            slug="bad-entry",
            hint="Give a path of attributes, as in unet or vae.decode.",
        ) from error
