"""Patches that a user writes as a class: ``_PATCHED_CLASS_`` names the class, ``_PATCHES_`` its
attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from onlooker.core.errors import UsageError

from .patch import PatchInfo

__all__ = ["patches_of_classes"]


def patches_of_classes(classes: Iterable[Any]) -> list[PatchInfo]:
    """One patch per attribute that ``_PATCHES_`` lists; a :class:`PatchInfo` among the classes is
    taken as it is.

    >>> class Other:
    ...     def size(self):
    ...         return 1
    >>> class PatchedOther:
    ...     _PATCHED_CLASS_ = Other
    ...     _PATCHES_ = ["size"]
    ...     def size(self):
    ...         return 2
    >>> [patch.target.rpartition(".")[2] for patch in patches_of_classes([PatchedOther])]
    ['size']

    :raises UsageError: ``bad-custom-patch``
    """
    return [
        patch
        for cls in classes
        for patch in ([cls] if isinstance(cls, PatchInfo) else _of_class(cls))
    ]


def _of_class(cls: Any) -> Iterable[PatchInfo]:
    if not hasattr(cls, "_PATCHED_CLASS_") or not hasattr(cls, "_PATCHES_"):
        raise _refusal(cls, "it has no _PATCHED_CLASS_, or no _PATCHES_")
    # a class that could not be imported is None; the path says where the reader has to look
    owner = cls._PATCHED_CLASS_ or f"{cls.__module__}.{cls.__qualname__}._PATCHED_CLASS_"
    for name in cls._PATCHES_:
        try:
            value = inspect.getattr_static(cls, name)
        except AttributeError:
            raise _refusal(cls, f"its _PATCHES_ lists {name!r}, which it does not have") from None
        yield PatchInfo(owner, name, _always(value), why=inspect.getdoc(cls) or "")


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _refusal(cls: Any, why: str) -> UsageError:
    return UsageError(
        f"{getattr(cls, '__qualname__', cls)!s} is no patch: {why}.",
        slug="bad-custom-patch",
        hint=(
            "Give the class to patch as _PATCHED_CLASS_ and the names of the attributes to replace"
            " as _PATCHES_."
        ),
    )
