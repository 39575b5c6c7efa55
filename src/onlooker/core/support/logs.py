"""The variable ONLOOKER_LOG: what onlooker logs, on the standard error, without a line of code."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ..errors import OnlookerWarning, warn

__all__ = ["VARIABLE", "log_as_asked", "parse_levels"]

VARIABLE = "ONLOOKER_LOG"
_LEVELS = ("debug", "info", "warning", "error")
_FORM = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def log_as_asked(environment: Mapping[str, str] = os.environ) -> None:
    """Logs to the standard error what ONLOOKER_LOG asks for; without it, logging stays as it is.

    ``ONLOOKER_LOG=debug`` is everything; ``ONLOOKER_LOG=info,trace=debug`` is a level for all, and
    another one for the part ``onlooker.trace``. A level that there is not is a warning
    (``unknown-log-level``).
    """
    asked = environment.get(VARIABLE, "")
    if not asked.strip():
        return
    levels = parse_levels(asked)
    if levels is None:
        warn(
            OnlookerWarning(
                f"{VARIABLE}={asked} is no level of logging.",
                slug="unknown-log-level",
                hint=f"Say {', '.join(_LEVELS)}, or a level for a part: {VARIABLE}=info,trace=debug.",
            )
        )
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORM))
    logging.getLogger("onlooker").addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def parse_levels(text: str) -> dict[str, int] | None:
    """The level of each logger; None for a text that says none.

    >>> parse_levels("info,trace=debug")
    {'onlooker': 20, 'onlooker.trace': 10}
    >>> parse_levels("loud") is None
    True
    """
    found: dict[str, int] = {}
    for item in text.split(","):
        part, _, level = item.strip().rpartition("=")
        if level.lower() not in _LEVELS:
            return None
        name = f"onlooker.{part}" if part else "onlooker"
        found[name] = getattr(logging, level.upper())
    return found
