"""The words of the command line: every option that several commands have is declared here, once.

A spelling means the same wherever it stands. What a command cannot do without is typed without a
dash, what it can do without is an option:

============================ ======================================================================
SOURCE                       what has the calls: MODULE:FUNCTION, or a recording
PROGRAM                      the folder of a program
RECORDING                    calls: a file of JSON, the folder of `onlooker run`, or of a program
``--build MODULE:FUNCTION``  the function that returns the model, and a callable that uses it
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
    "BUILD",
    "ENTRY",
    "ENTRY_OF_RUN",
    "FULL",
    "JSON",
    "MACHINE_CODE",
    "METHOD",
    "NO_PROBE",
    "OPERATORS",
    "OUT",
    "PROGRAM",
    "QUIET",
    "RANGE",
    "RECORDING",
    "TO",
    "Option",
    "Options",
    "add_pins",
    "add_program",
    "formerly",
]

#: where the warnings about former spellings wait in the parsed options
WARNINGS = "spelling_warnings"


class Options(Protocol):
    """What options are declared to: a parser, or a group of its options."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """As that of argparse."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an argument without a dash, as ``add_argument`` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def add(self, options: Options, **changes: Any) -> argparse.Action:
        """Declares it for a command, for which some settings may differ."""
        return options.add_argument(*self.names, **{**self.settings, **changes})


def _option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


PROGRAM = _option("place", type=Path, metavar="PROGRAM", help="the folder of a program")
RECORDING = _option(
    "--recording",
    type=Path,
    metavar="RECORDING",
    help="calls: a file of JSON, or the folder of `onlooker run` or of a program",
)
BUILD = _option(
    "--build",
    metavar="MODULE:FUNCTION",
    help=(
        "a function that returns a model and a callable which uses it: package.module:name or"
        " file.py:name"
    ),
)
ENTRY = _option(
    "--entry",
    action="append",
    default=[],
    metavar="NAME",
    help=(
        "a part, by its attributes or its class: unet, vae.decode, AutoencoderKL.decode; for several"
        " parts several times"
    ),
)
ENTRY_OF_RUN = _option(
    "--entry", metavar="NAME", help="of the folder of `onlooker run`: unet, UNet"
)
TO = _option("--to", default="torch", help="default: %(default)s")
OUT = _option("-o", "--out", type=Path, metavar="DIR", help="save the result there")
METHOD = _option(
    "--method", default="forward", metavar="NAME", help="the method to watch; default: %(default)s"
)
ATOL = _option(
    "--atol", type=float, metavar="X", help="largest difference allowed, times (1 + largest value)"
)
AGREEMENT = _option(
    "--agreement",
    type=float,
    metavar="SHARE",
    help=(
        "least share of tokens for which the largest score stands at the same place; default: 1.0"
        " for a program of another precision than its model"
    ),
)
RANGE = _option(
    "--range",
    action="append",
    default=[],
    metavar="SYMBOL=LOW:HIGH",
    help=(
        "least and greatest size: batch=1:64; batch=observed: those of the calls; observed"
        " alone: those of the calls for every symbol that no other --range names"
    ),
)
NO_PROBE = _option(
    "--no-probe", action="store_true", help="do not ask the model what calls cannot tell"
)
OPERATORS = _option(
    "--operators",
    action="append",
    default=[],
    metavar="NAMESPACE",
    help="custom operators that it may call",
)
MACHINE_CODE = _option(
    "--machine-code",
    action="store_true",
    help="run what AOTInductor compiled; only if you trust who made it",
)
FULL = _option(
    "--full",
    action="store_true",
    help="everything: all evidence, and each item of a list in a row of its own",
)
QUIET = _option("-q", "--quiet", action="store_true", help="say nothing while the work goes on")
JSON = _option("--json", action="store_true", help="print one JSON object, and nothing else")


def add_program(parser: Options, **changes: Any) -> None:
    """Declares the folder of a program, and what its reader allows it."""
    PROGRAM.add(parser, **changes)
    OPERATORS.add(parser)
    MACHINE_CODE.add(parser)


def add_pins(parser: Options) -> None:
    """Declares what the user says about axes."""
    for option, meaning in (("--static", "never change"), ("--dynamic", "change")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="ARG:DIMS",
            help=f"dimensions that {meaning}: x:0,2",
        )
    RANGE.add(parser)


def formerly(options: Options, name: str, now: str, dest: str, **settings: Any) -> None:
    """Declares a former spelling: it sets ``dest`` as ``now`` does, and warns.

    ``name`` has no dashes for an argument that is an option now.
    """
    settings = {"default": argparse.SUPPRESS, **settings}
    if name.startswith("-"):
        settings["dest"] = dest
    else:
        settings = {"nargs": "?", "former_dest": dest, **settings, "default": None}
    options.add_argument(name, action=_Former, now=now, help=argparse.SUPPRESS, **settings)


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
