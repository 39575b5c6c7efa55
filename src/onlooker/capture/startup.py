"""Waits for torch in a process that is watched. Nothing is imported here that a program without
torch would have to pay for.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .settings import Settings

__all__ = ["start"]


def start() -> None:
    """Watches the modules of torch in this process, once torch is imported."""
    settings = Settings.read(os.environ)
    if settings is None:
        return

    def watch() -> None:
        with contextlib.suppress(Exception):  # the program runs whatever happens here
            from .hook import install

            install(settings)

    if "torch" in sys.modules:
        watch()
    else:
        sys.meta_path.insert(0, _WaitsFor("torch", watch))


class _WaitsFor(importlib.abc.MetaPathFinder):
    """Calls ``then`` when a module has been imported; finds it as the other finders do."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the others find, whose loader calls ``then`` once."""
        if fullname != self._name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)  # it may be there later
            return spec
        _call_after(spec.loader, self._then)
        return spec


def _call_after(loader: Any, then: Callable[[], None]) -> None:
    """The loader calls ``then`` when it has executed the module; it is as before afterwards."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        then()

    loader.exec_module = exec_module
