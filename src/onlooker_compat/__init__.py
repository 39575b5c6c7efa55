"""The names that other packages have for what onlooker does, and untrained models to try them on.

``onlooker.compat`` gives the same names: those of :mod:`onlooker_compat.names`, which is imported
when the first of them is used. ``onlooker`` itself needs nothing of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .names import *  # noqa: F403 (the names of that module, all of them)
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module("onlooker_compat.names"), name)


def __dir__() -> list[str]:
    return sorted(importlib.import_module("onlooker_compat.names").__all__)
