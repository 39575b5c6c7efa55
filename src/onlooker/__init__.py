"""onlooker watches a PyTorch model while it is used, and exports it with the right dynamic shapes."""

from __future__ import annotations

from ._api import InputObserver as InputObserver
from .pytrees.compare import max_diff as max_diff
from .pytrees.describe import string_type as string_type
from .pytrees.make import make_dynamic_cache as make_dynamic_cache
from .pytrees.registry import register_flattening_functions as register_flattening_functions
