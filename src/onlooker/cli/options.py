"""The words of the command line: every option that several commands have is declared here, once.

A spelling means the same wherever it stands. What a command cannot do without is typed without a
dash, what it can do without is an option:

============================ ======================================================================
SOURCE                       what has the calls: MODULE:FUNCTION, or a recording
PROGRAM                      the folder of a program
RECORDING                    calls: a file of JSON, the folder of `onlooker run`, or of a program
``--build MODULE:FUNCTION``  the function that returns the model, and a callable that uses it; the
                             callable may be missing where a recording, or the program, has calls
``--recording RECORDING``    reads calls; ``--save-recording FILE`` writes them
``--entry NAME``             one of several parts, by its attributes or its class
``-o, --out PLACE``          where the result is written
============================ ======================================================================

An option that had another name before keeps it: it is hidden from the help, and warns.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import OnlookerWarning

__all__ = [
    "AGREEMENT",
    "ATOL",
    "AXES",
    "BUILD",
    "ENTRY",
    "ENTRY_OF_RUN",
    "FULL",
    "JSON",
    "KEEP",
    "MACHINE_CODE",
    "METHOD",
    "METRIC",
    "NO_PROBE",
    "OPERATORS",
    "OUT",
    "PROGRAM",
    "QUIET",
    "RANGE",
    "RECORDING",
    "SAVE_RECORDING",
    "SECONDS",
    "TO",
    "WORKERS",
    "Group",
    "Option",
    "Options",
    "formerly",
    "option",
    "program_options",
]

#: where the warnings about former spellings wait in the parsed options
WARNINGS = "spelling_warnings"


class Options(Protocol):
    """A parser, or a group of its options, to which options are declared."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """As that of argparse."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an argument without a dash, as ``add_argument`` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, **changes: Any) -> Option:
        """The option with other settings, for one command."""
        return Option(self.names, {**self.settings, **changes})

    def add(self, options: Options, **changes: Any) -> argparse.Action:
        """Declares it for a command, for which some settings may differ."""
        return options.add_argument(*self.names, **{**self.settings, **changes})


@dataclass(frozen=True, slots=True)
class Group:
    """Options under a title of their own."""

    title: str
    options: tuple[Option, ...]

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Declares them for a command."""
        group = parser.add_argument_group(self.title)
        for each in self.options:
            each.add(group)


def option(*names: str, **settings: Any) -> Option:
    """An option, or an argument without a dash, with the settings of ``add_argument``."""
    return Option(names, settings)


PROGRAM = option("place", type=Path, metavar="PROGRAM", help="the folder of a program")
RECORDING = option(
    "--recording",
    type=Path,
    metavar="RECORDING",
    help="calls: a file of JSON, or the folder of `onlooker run` or of a program",
)
SAVE_RECORDING = option(
    "--save-recording", type=Path, metavar="FILE", help="save the specs of all calls there"
)
BUILD = option(
    "--build",
    metavar="MODULE:FUNCTION",
    help=(
        "a function that returns a model, and a callable which uses it where no recording has the"
        " calls: package.module:name or file.py:name"
    ),
)
ENTRY = option(
    "--entry",
    action="append",
    default=[],
    metavar="NAME",
    help=(
        "a part, by its attributes or its class: unet, vae.decode, AutoencoderKL.decode; for several"
        " parts several times"
    ),
)
ENTRY_OF_RUN = option("--entry", metavar="NAME", help="of the folder of `onlooker run`: unet, UNet")
KEEP = option(
    "--keep",
    type=int,
    default=3,
    metavar="N",
    help="calls whose values are kept; default: %(default)s",
)
TO = option("--to", default="torch", help="default: %(default)s")
OUT = option("-o", "--out", type=Path, metavar="DIR", help="save the result there")
METHOD = option(
    "--method", default="forward", metavar="NAME", help="the method to watch; default: %(default)s"
)
ATOL = option(
    "--atol", type=float, metavar="X", help="largest difference allowed, times (1 + largest value)"
)
AGREEMENT = option(
    "--agreement",
    type=float,
    metavar="SHARE",
    help=(
        "least share of tokens for which the largest score stands at the same place; default: 1.0"
        " for a program of another precision than its model that --atol is given for"
    ),
)
METRIC = (
    option(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="a function that returns one of what is called as the model is, which returns a number,"
        " the higher the better",
    ),
    option(
        "--at-least",
        type=float,
        metavar="X",
        help="the least metric of the program; default: that of the model",
    ),
)
RANGE = option(
    "--range",
    action="append",
    default=[],
    metavar="SYMBOL=LOW:HIGH",
    help=(
        "least and greatest size: batch=1:64; batch=observed: those of the calls; observed"
        " alone: those of the calls for every symbol that no other --range names"
    ),
)
SECONDS = option("--seconds", type=float, metavar="N")
WORKERS = option(
    "--workers", type=int, metavar="N", help="processes at a time; default: one a processor"
)
NO_PROBE = option(
    "--no-probe", action="store_true", help="do not ask the model what calls cannot tell"
)
OPERATORS = option(
    "--operators",
    action="append",
    default=[],
    metavar="NAMESPACE",
    help="custom operators that it may call",
)
MACHINE_CODE = option(
    "--machine-code",
    action="store_true",
    help="run what AOTInductor compiled; only if you trust who made it",
)
FULL = option(
    "--full",
    action="store_true",
    help="everything: all evidence, and each item of a list in a row of its own",
)
QUIET = option("-q", "--quiet", action="store_true", help="say nothing while the work goes on")
JSON = option("--json", action="store_true", help="print one JSON object, and nothing else")


def program_options(**changes: Any) -> tuple[Option, ...]:
    """The folder of a program, and what its reader allows it."""
    return PROGRAM.changed(**changes), OPERATORS, MACHINE_CODE


#: what the user says about axes
AXES = (
    *(
        option(
            name,
            action="append",
            default=[],
            metavar="ARG:DIMS",
            help=f"dimensions that {meaning}: x:0,2",
        )
        for name, meaning in (("--static", "never change"), ("--dynamic", "change"))
    ),
    RANGE,
)


def formerly(name: str, now: str, dest: str, **settings: Any) -> Option:
    """A former spelling: it sets ``dest`` as ``now`` does, and warns.

    ``name`` has no dashes for an argument that is an option now.
    """
    settings = {"default": argparse.SUPPRESS, **settings}
    if name.startswith("-"):
        settings["dest"] = dest
    else:
        settings = {"nargs": "?", "former_dest": dest, **settings, "default": None}
    return option(name, action=_Former, now=now, help=argparse.SUPPRESS, **settings)


class _Former(argparse.Action):
    """Sets what the present spelling sets, and notes a warning."""

    def __init__(
        self, *args: Any, now: str, former_dest: str = "", appends: bool = False, **settings: Any
    ):
        super().__init__(*args, **settings)
        self._now, self._target, self._appends = now, former_dest or self.dest, appends

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values is None:  # an argument that was not typed
            return
        if self._appends:
            values = [*(getattr(namespace, self._target, None) or ()), values]
        setattr(namespace, self._target, True if values == [] else values)
        said = option_string or f"{values} without an option"
        warning = OnlookerWarning(
            f"{said} is a former spelling.", slug="former-spelling", hint=f"Write {self._now}."
        )
        known: Sequence[OnlookerWarning] = getattr(namespace, WARNINGS, ())
        setattr(namespace, WARNINGS, (*known, warning))
