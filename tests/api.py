"""Writes tests/project/api.txt: every public name of onlooker, with its signature.

    python tests/api.py

A test compares the file with the library, so that no public name changes by accident. Whoever changes one on purpose
runs this, and adds a line to CHANGELOG.md; a name that goes is deprecated first (CONTRIBUTING.md).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import onlooker

__all__ = ["FILE", "MODULES", "listing"]

FILE = Path(__file__).parent / "project" / "api.txt"
#: the modules whose ``__all__`` is public
MODULES = ("onlooker", "onlooker.compat", "onlooker.testing", "onlooker.zoo")
#: annotations are texts, which ``inspect`` shows in quotes
_QUOTED = re.compile(r"(: |-> )'([^']*)'")


def listing() -> str:
    """The content of the file."""
    lines = []
    for title, names in public_names():
        module = importlib.import_module(title.partition(",")[0])
        lines.append(f"# {title}")
        for public in sorted(names):
            lines += described(public, getattr(module, public))
        lines.append("")
    return "\n".join(lines)


def public_names() -> Iterator[tuple[str, Collection[str]]]:
    """The title of each section, which begins with the module, and the names in it."""
    for name in MODULES:
        yield name, importlib.import_module(name).__all__
        if name == "onlooker":
            more = onlooker._HOMES.keys() - set(onlooker.__all__)
            yield "onlooker, reachable beside its __all__", more


def described(name: str, value: Any) -> Iterator[str]:
    """The lines of one name: a class has one more for each public member of its own."""
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"class {name}({bases}){signature(value) if takes_arguments(value) else ''}"
        for member in sorted(members(value)):
            yield f"    {member}"
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def members(cls: type) -> Iterator[str]:
    """The public members that the class, or a base of ours, has."""
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("onlooker", "onlooker_compat")]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in names:
        value = inspect.getattr_static(cls, name)
        if isinstance(value, property):
            yield f"{name}: property"
        elif isinstance(value, (classmethod, staticmethod)) or callable(value):
            yield f"{name}{signature(getattr(cls, name))}"
        else:
            yield name


def takes_arguments(cls: type) -> bool:
    """False for a class whose constructor is that of another library."""
    return any("__init__" in vars(base) for base in cls.__mro__ if base.__module__.startswith("onlooker"))


def signature(value: Any) -> str:
    """The arguments and the result, as they are written in the source; defaults that are objects by their class."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [shortened(parameter) for parameter in found.parameters.values()]
    return _QUOTED.sub(r"\1\2", str(found.replace(parameters=parameters)))


def shortened(parameter: inspect.Parameter) -> inspect.Parameter:
    if " at 0x" in repr(parameter.default):
        return parameter.replace(default=type(parameter.default))
    return parameter


if __name__ == "__main__":
    FILE.write_text(listing(), encoding="utf-8")
