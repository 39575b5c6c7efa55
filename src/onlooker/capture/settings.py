"""The settings that ``onlooker run`` gives to the processes of a program, by the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["SITE", "VARIABLE", "Settings"]

#: the variable of the environment that has the settings; without it nothing is watched
VARIABLE = "ONLOOKER_RUN"
#: the folder with the ``sitecustomize`` that starts the watching, for the PYTHONPATH
SITE = Path(__file__).parent / "site"
#: the folder that holds the package: a program may run in an environment that lacks it
_HOME = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: the folder of the files, and what is recorded.

    ``into`` is a folder, absolute, or a URL. ``entries`` are patterns, ``Class`` or ``Class.method``, of what
    is recorded besides outermost calls of modules. ``values`` is ``"none"`` or ``"first"``: whether
    the values of the first calls are kept. ``at_exit`` are the targets to export to when the first
    process ends, none or one. Of each entry point, ``most_specs`` different calls are told from each
    other in each process; further ones are counted together. With ``metrics``, sizes are metrics of
    OpenTelemetry too.
    """

    into: str
    entries: tuple[str, ...] = ()
    values: str = "none"
    at_exit: tuple[str, ...] = ()
    most_specs: int = 4096
    metrics: bool = False

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """The environment of a program that is watched."""
        folders = [str(SITE)]
        if before.get("PYTHONPATH"):
            folders.append(before["PYTHONPATH"])
        told = {**asdict(self), "home": str(_HOME), "first": os.getpid()}
        return {**before, "PYTHONPATH": os.pathsep.join(folders), VARIABLE: json.dumps(told)}

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings | None:
        """The settings of this process; None where it is not watched."""
        if VARIABLE not in environment:
            return None
        told = json.loads(environment[VARIABLE])
        return cls(
            told["into"],
            tuple(told["entries"]),
            told["values"],
            tuple(told["at_exit"]),
            told["most_specs"],
            told["metrics"],
        )

    @staticmethod
    def is_first(environment: Mapping[str, str]) -> bool:
        """True in the process that ``onlooker run`` became."""
        first: object = json.loads(environment[VARIABLE])["first"]
        return first == os.getpid()
