"""What is only true on a CUDA device, and shown there: collected where torch has one.

``pytest -rP tests/gpu`` shows what each test measured.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

DEVICE = torch.device("cuda", 0)
HAS_CUDA = torch.cuda.is_available()

# nothing of this folder is even imported elsewhere
collect_ignore_glob = [] if HAS_CUDA else ["*"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAS_CUDA:
        terminalreporter.write_line("tests/gpu is left out: torch.cuda.is_available() is False")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device of all tests here, after its first use: that one waits."""
    torch.ones(1, device=DEVICE).sum().item()
    return DEVICE


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():  # torch says once that this mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def no_waiting() -> contextlib.AbstractContextManager[None]:
    """A block in which whatever makes Python wait for the device raises a RuntimeError."""
    return _no_waiting()
