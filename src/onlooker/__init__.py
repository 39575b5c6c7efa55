"""onlooker watches a PyTorch model while it is used, and exports it with the right dynamic shapes."""

from __future__ import annotations

from ._api import InputObserver as InputObserver
