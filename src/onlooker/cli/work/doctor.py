"""``onlooker doctor``: versions, what is installed, and what works here."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

import torch
from rich.console import Console

from ... import torch_internals
from ...core.errors import MissingPackageError, OnlookerError
from ...core.versions import __version__, installed_version
from ...targets.targets import TARGETS
from ..command import Answer, ExitCode, to_type

__all__ = ["run"]


# What is installed, and what works here: the facts that ``onlooker doctor`` shows.
#: the packages that change what works, in the order in which they are shown
PACKAGES = (
    "torch",
    "transformers",
    "diffusers",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-genai",
    "openvino",
    "executorch",
    "numpy",
    "sympy",
    "safetensors",
    "rich",
    "optree",
)


@dataclass(frozen=True, slots=True)
class EnvironmentFact:
    """One line: its ``group``, what it is about, and what is known; ``works`` is None where
    nothing was tried.
    """

    group: str
    name: str
    text: str
    works: bool | None = None


def facts() -> tuple[EnvironmentFact, ...]:
    """All facts, in the order in which they are shown. Nothing personal: no path, no variable."""
    return (*_versions(), *_internals(), *_targets(), *_devices())


def _versions() -> Iterator[EnvironmentFact]:
    yield EnvironmentFact("versions", "onlooker", __version__)
    yield EnvironmentFact(
        "versions", "Python", f"{platform.python_version()}, {sys.implementation.name}"
    )
    yield EnvironmentFact(
        "versions", "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    )
    for package in PACKAGES:
        version = installed_version(package)
        yield EnvironmentFact("versions", package, version or "not installed")


def _internals() -> Iterator[EnvironmentFact]:
    """Says whether torch has the names that onlooker needs beyond the documented ones."""
    for module in pkgutil.iter_modules(torch_internals.__path__):
        if module.name == "needed":
            continue
        try:
            importlib.import_module(f"{torch_internals.__name__}.{module.name}")
        except OnlookerError as error:
            yield EnvironmentFact("inside of torch", module.name, error.message, works=False)
        else:
            yield EnvironmentFact("inside of torch", module.name, "as expected", works=True)


def _targets() -> Iterator[EnvironmentFact]:
    for target in TARGETS:
        try:
            target.require()
        except MissingPackageError as error:
            yield EnvironmentFact(
                "targets", target.name, f"{error.message} {error.hint}", works=False
            )
        else:
            yield EnvironmentFact("targets", target.name, "works here", works=True)


def _devices() -> Iterator[EnvironmentFact]:
    yield EnvironmentFact("devices", "C++ compiler", _compiler())
    yield EnvironmentFact(
        "devices", "cpu", f"{os.cpu_count()} processors, {torch.get_num_threads()} threads of torch"
    )
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        yield EnvironmentFact("devices", f"cuda:{number}", f"{name}, CUDA {torch.version.cuda}")
    if torch.backends.mps.is_available():
        yield EnvironmentFact("devices", "mps", "available")
    providers = _onnxruntime_providers()
    if providers:
        yield EnvironmentFact("devices", "onnxruntime", ", ".join(providers))
    for device in _openvino_devices():
        yield EnvironmentFact("devices", "openvino", device)


def _onnxruntime_providers() -> list[str]:
    try:
        import onnxruntime
    except ImportError:
        return []
    return list(onnxruntime.get_available_providers())


def _openvino_devices() -> list[str]:
    try:
        import openvino
    except ImportError:
        return []
    core = openvino.Core()
    return [
        f"{name}: {core.get_property(name, 'FULL_DEVICE_NAME')}" for name in core.available_devices
    ]


def _compiler() -> str:
    """The name of the C++ compiler that AOTInductor takes, without its folder."""
    try:
        from ...torch_internals.compiled import get_cpp_compiler

        return os.path.basename(get_cpp_compiler())
    except Exception as error:  # torch has a class for each reason
        return f"none ({type(error).__name__})"


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Looks at everything."""
    found = facts()
    broken = any(fact.works is False for fact in found if fact.group == "inside of torch")
    return Answer(
        ExitCode.ERROR if broken else ExitCode.VERIFIED,
        lambda console: _show(found, console),
        lambda: _data(found),
        to_type("demo"),
    )


_MARKS = {True: "yes", False: "no", None: ""}


def _show(found: Sequence[EnvironmentFact], console: Console) -> None:
    """Plain lines, which can be pasted anywhere."""
    for group, members in groupby(found, lambda fact: fact.group):
        console.print(f"{group}:")
        for fact in members:
            mark = _MARKS[fact.works]
            text = f"{mark}: {fact.text}" if fact.works is False else mark or fact.text
            console.print(f"  {fact.name:<18} {text}", soft_wrap=True)


def _data(found: Sequence[EnvironmentFact]) -> dict[str, object]:
    groups: dict[str, list[dict[str, object]]] = {}
    for fact in found:
        row: dict[str, object] = {"name": fact.name, "text": fact.text, "works": fact.works}
        groups.setdefault(fact.group, []).append(row)
    return {"facts": groups}
