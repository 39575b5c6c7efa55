"""Texts of sizes are free only where nothing of the model reads them again."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import sys
import warnings

import pytest

from onlooker.repairs.numbers.for_people import Outlets


class Keeps(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def logger_with(*handlers: logging.Handler) -> logging.Logger:
    logger = logging.Logger("of a model")
    for handler in handlers:
        logger.addHandler(handler)
    return logger


def test_prints_are_shown_on_the_streams_from_before() -> None:
    outlets = Outlets()
    assert outlets.shows_prints()
    assert outlets.shows_prints(sys.stderr)
    assert not outlets.shows_prints(io.StringIO())
    with contextlib.redirect_stdout(io.StringIO()):
        assert not outlets.shows_prints()


@pytest.mark.parametrize(
    ("handlers", "shown"),
    [
        ((), True),
        ((logging.StreamHandler(),), True),
        ((logging.NullHandler(),), True),
        ((logging.StreamHandler(io.StringIO()),), False),
        ((Keeps(),), False),
        ((logging.handlers.MemoryHandler(10),), False),
    ],
)
def test_a_logger_shows_records_where_all_its_handlers_write(
    handlers: tuple[logging.Handler, ...], shown: bool
) -> None:
    assert Outlets().shows_logs(logger_with(*handlers)) is shown
    below = logging.Logger("below")
    below.parent = logger_with(*handlers)
    assert Outlets().shows_logs(below) is shown
    below.propagate = False
    assert Outlets().shows_logs(below)


def test_a_filter_reads_what_it_lets_pass() -> None:
    logger = logger_with()
    logger.addFilter(lambda record: True)
    assert not Outlets().shows_logs(logger)


def test_warnings_are_shown_while_nobody_changes_their_rules() -> None:
    outlets = Outlets()
    assert outlets.shows_warnings()
    with warnings.catch_warnings(record=True):
        assert not outlets.shows_warnings()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="size 40")
        assert not outlets.shows_warnings()
    assert outlets.shows_warnings()
