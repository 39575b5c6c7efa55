"""Runs a package of AOTInductor, which trusts what it is given: every input is brought into the
form it expects.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ExportError, SavedFileError
from ...disk.text import damaged
from ...trace.graph import Graph
from ..inputs import laid
from .compile import LAYOUTS, Package

__all__ = ["open_package"]

#: takes the inputs of a graph in their order, and gives its outputs
Run = Callable[[Sequence[Any]], Sequence[Any]]


def open_package(graph: Graph, package: Package, path: Path) -> Run:
    """A function of the inputs of ``graph`` that runs the package at ``path`` with the weights of
    ``package``.

    The package is machine code, and runs as such.

    :raises SavedFileError: ``file-damaged``, ``another-machine``
    :raises ExportError: ``aoti-refused`` when it cannot be loaded
    """
    from ...torch_internals.compiled import aoti_load_package

    about = _about(path)
    _check_machine(about, path.name)
    try:
        model = aoti_load_package(str(path))
        missing = [name for name in model.get_constant_fqns() if name not in package.weights]
        if missing:
            raise damaged(path.name, f"there are no weights for {', '.join(missing[:3])}")
        weights = {name: package.weights[name] for name in model.get_constant_fqns()}
        if weights:
            model.load_constants(weights, check_full_update=True, user_managed=True)
    except RuntimeError as error:
        raise ExportError(
            f"{path.name} cannot be loaded by AOTInductor: {str(error)[:500]}",
            slug="aoti-refused",
            hint="Compile it again on this machine: program.to('aoti').",
        ) from None
    try:
        return _runner(model, graph, json.loads(about[LAYOUTS]), weights)
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(
            path.name, f"it does not say how its inputs have to lie in memory ({error!r})"
        ) from error


def _about(path: Path) -> dict[str, str]:
    """The metadata of a package, read before anything of it is loaded.

    :raises SavedFileError: ``file-damaged``
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("wrapper_metadata.json")]
            found = json.loads(archive.read(name))
    except (zipfile.BadZipFile, OSError, ValueError, RecursionError) as error:
        raise damaged(path.name, f"it is no package of AOTInductor ({error})") from error
    if not isinstance(found, dict):
        raise damaged(path.name, "its metadata is no table")
    return found


def _check_machine(about: dict[str, str], where: str) -> None:
    """Passes on a machine that has the instructions which the package was compiled for.

    :raises SavedFileError: ``another-machine``
    """
    from ...torch_internals.compiled import get_device_information

    for key, own in get_device_information(about.get("AOTI_DEVICE_KEY", "cpu")).items():
        needed = str(about.get(key, own))
        if not set(needed.split()) <= set(str(own).split()):
            raise SavedFileError(
                f"{where} was compiled for a machine with {needed}, this one has"
                f" {own or 'none of it'}.",
                slug="another-machine",
                hint="Compile it on this machine: load the torch program and call to('aoti').",
            )


def _runner(model: Any, graph: Graph, layouts: Sequence[Any], alive: Any) -> Run:
    """The model as a function; ``alive`` are the weights, which it does not hold itself."""
    leaves = graph.plan.inputs
    devices = [leaf.device.partition(":")[0] for leaf in leaves]
    orders = [None if o is None or o == list(range(len(o))) else tuple(o) for o in layouts]
    if len(orders) != len(leaves):
        raise ValueError(f"{len(orders)} inputs for {len(leaves)}")
    pairs = zip(graph.outputs.are_ints, graph.outputs.are_floats, strict=True)
    kinds: list[Any] = [
        int if is_int else float if is_float else None for is_int, is_float in pairs
    ]
    boxed_run = model.loader.boxed_run

    def run(inputs: Sequence[Any], _alive: Any = alive) -> Sequence[Any]:
        given = [laid(*item) for item in zip(inputs, devices, orders, strict=True)]
        found = boxed_run(given)
        return [
            value if kind is None else kind(value) for value, kind in zip(found, kinds, strict=True)
        ]

    return run
