"""Modules of files that belong to no package: scripts beside the library, which are tested too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_of(file: Path, name: str) -> ModuleType:
    """The module that a file makes, under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the names of their annotations
    spec.loader.exec_module(module)
    return module
