"""What is installed, and what works here: the facts that ``onlooker doctor`` shows."""

from __future__ import annotations

import importlib
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .. import torch_internals
from ..core.errors import MissingPackageError, OnlookerError
from ..core.versions import __version__, installed_version
from ..targets.targets import TARGETS

__all__ = ["PACKAGES", "Fact", "facts"]

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
class Fact:
    """One line: its ``group``, what it is about, and what is known; ``works`` is None where
    nothing was tried.
    """

    group: str
    name: str
    text: str
    works: bool | None = None


def facts() -> tuple[Fact, ...]:
    """All facts, in the order in which they are shown. Nothing personal: no path, no variable."""
    return (*_versions(), *_internals(), *_targets(), *_devices())


def _versions() -> Iterator[Fact]:
    yield Fact("versions", "onlooker", __version__)
    yield Fact("versions", "Python", f"{platform.python_version()}, {sys.implementation.name}")
    yield Fact(
        "versions", "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    )
    for package in PACKAGES:
        version = installed_version(package)
        yield Fact("versions", package, version or "not installed")


def _internals() -> Iterator[Fact]:
    """Whether torch has the names that onlooker needs beyond the documented ones."""
    for module in pkgutil.iter_modules(torch_internals.__path__):
        if module.name == "needed":
            continue
        try:
            importlib.import_module(f"{torch_internals.__name__}.{module.name}")
        except OnlookerError as error:
            yield Fact("inside of torch", module.name, error.message, works=False)
        else:
            yield Fact("inside of torch", module.name, "as expected", works=True)


def _targets() -> Iterator[Fact]:
    for target in TARGETS:
        try:
            target.require()
        except MissingPackageError as error:
            yield Fact("targets", target.name, f"{error.message} {error.hint}", works=False)
        else:
            yield Fact("targets", target.name, "works here", works=True)


def _devices() -> Iterator[Fact]:
    yield Fact("devices", "C++ compiler", _compiler())
    yield Fact(
        "devices", "cpu", f"{os.cpu_count()} processors, {torch.get_num_threads()} threads of torch"
    )
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        yield Fact("devices", f"cuda:{number}", f"{name}, CUDA {torch.version.cuda}")
    if torch.backends.mps.is_available():
        yield Fact("devices", "mps", "available")
    providers = _onnxruntime_providers()
    if providers:
        yield Fact("devices", "onnxruntime", ", ".join(providers))
    for device in _openvino_devices():
        yield Fact("devices", "openvino", device)


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
        from ..torch_internals.compiled import get_cpp_compiler

        return os.path.basename(get_cpp_compiler())
    except Exception as error:  # torch has a class for each reason
        return f"none ({type(error).__name__})"
