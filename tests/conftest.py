"""The settings of all tests: offline, one thread per process, the same examples of Hypothesis in every run."""

from __future__ import annotations

import collections
import logging
import os
import zlib
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: the tests run in several processes
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

# No deadline: the first example may pay for an import, and machines of continuous integration are slow.
# A run of the tests says the same as the one before; `make fuzz` looks for what none has seen.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", deadline=None, derandomize=False, database=None, max_examples=300, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# torch writes a trace of every export as soon as this logger has a handler, and pytest 9.2 gives one to each
# logger that does not propagate: thousands of lines in front of every failure.
logging.getLogger(f"{torch.__name__}.__trace").propagate = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=int, default=1, help="run one test of so many, by the checksum of its name")


_cases = collections.Counter[str]()
#: tests that take long and whose files have others that stay in continuous integration
_SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().splitlines())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of the cases of a test that is marked ``one_in(n)`` all are slow but the first of each n, and so is each case
    that ``slow.txt`` names.
    """
    for mark in item.iter_markers("one_in"):
        test = item.nodeid.partition("[")[0]
        if _cases[test] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        _cases[test] += 1
    if item.nodeid in _SLOW:
        item.add_marker(pytest.mark.slow)


def _check_names(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Passes where ``slow.txt`` names tests that are there, as far as whole files were collected."""
    found = {item.nodeid for item in items}
    files = {name.partition("::")[0] for name in found}
    gone = sorted(name for name in _SLOW - found if name.partition("::")[0] in files)
    if gone and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"tests/slow.txt names tests that are not there: {', '.join(gone)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A part of the tests that no result and no later test changes."""
    _check_names(config, items)
    share = config.getoption("--share")
    left_out = [item for item in items if zlib.crc32(item.nodeid.encode()) % share]
    items[:] = [item for item in items if not zlib.crc32(item.nodeid.encode()) % share]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
