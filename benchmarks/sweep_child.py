"""The job of one architecture. The libraries are imported, and what they have is listed, before the
processes of the jobs are made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch._dynamo
import torch.export  # noqa: F401
from sweep import architectures

_KNOWN = {one.label: one for one in architectures()}


def measured(folder: Path, note: Callable[[dict[str, Any]], None], label: str) -> dict[str, Any]:
    """The row of an architecture."""
    return _KNOWN[label].measured(note)
