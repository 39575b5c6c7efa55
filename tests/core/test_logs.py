"""ONLOOKER_LOG: what is logged where, and that nothing is logged without it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from onlooker import OnlookerWarning
from onlooker.core.support.logs import log_as_asked

CODE = """
import logging, onlooker
logging.getLogger("onlooker.trace.x").debug("a detail of a trace")
logging.getLogger("onlooker.lab.x").debug("a detail of the lab")
logging.getLogger("onlooker.lab.x").info("a run of the model")
"""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of onlooker, which is as before afterwards."""
    logger = logging.getLogger("onlooker")
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(asked: str | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "ONLOOKER_LOG"}
    if asked is not None:
        environment["ONLOOKER_LOG"] = asked
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert not done.stdout
    return done.stderr


def test_without_the_variable_nothing_is_logged() -> None:
    assert logged(None) == ""


def test_a_part_may_have_a_level_of_its_own() -> None:
    text = logged("info,trace=debug")
    assert "onlooker.trace.x: a detail of a trace" in text
    assert "onlooker.lab.x: a run of the model" in text
    assert "a detail of the lab" not in text


def test_an_unknown_level_is_a_warning_and_logs_nothing(logger: logging.Logger) -> None:
    handlers = list(logger.handlers)
    with pytest.warns(OnlookerWarning, match=r"ONLOOKER_LOG=loud is no level.*\[unknown-log-level\]"):
        log_as_asked({"ONLOOKER_LOG": "loud"})
    assert logger.handlers == handlers


def test_the_level_is_set(logger: logging.Logger) -> None:
    log_as_asked({"ONLOOKER_LOG": "DEBUG"})
    assert logger.level == logging.DEBUG
