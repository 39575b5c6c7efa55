"""The format of ``.pt2`` files, which is written and read here without pickles."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .needed import needed

with needed("files of programs"):
    from torch._export.serde import schema, serialize
    from torch._export.serde.serialize import _SYM_OPS as SYM_OPS
    from torch.export.pt2_archive._package import PT2ArchiveWriter

__all__ = ["SYM_OPS", "PT2ArchiveWriter", "schema", "serialize", "serialize_without_tensors"]

_LEFT_OUT = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")


def serialize_without_tensors(program: torch.export.ExportedProgram) -> Any:
    """Returns the program as torch serializes it, without weights, constants and example inputs.

    torch 2.10 cannot leave them out: it pickles them in memory, and nobody reads that.
    """
    known = inspect.signature(serialize.serialize).parameters
    left_out: Any = {name: False for name in _LEFT_OUT if name in known}
    return serialize.serialize(program, **left_out)
