"""The settings of all tests: offline, one thread per process, no deadline for Hypothesis."""

from __future__ import annotations

import logging
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: the tests run in several processes
os.environ["MPLBACKEND"] = "Agg"

import torch
from hypothesis import settings

# The first example may pay for an import, and machines of continuous integration are slow.
settings.register_profile("onlooker", deadline=None)
settings.load_profile("onlooker")

# torch writes a trace of every export as soon as this logger has a handler, and pytest 9.2 gives one to each
# logger that does not propagate: thousands of lines in front of every failure.
logging.getLogger(f"{torch.__name__}.__trace").propagate = True
