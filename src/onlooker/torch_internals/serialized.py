"""The format of ``.pt2`` files, which is written and read here without pickles."""

from __future__ import annotations

from .needed import needed

with needed("files of programs"):
    from torch._export.serde import schema, serialize
    from torch._export.serde.serialize import _SYM_OPS as SYM_OPS
    from torch.export.pt2_archive._package import PT2ArchiveWriter

__all__ = ["SYM_OPS", "PT2ArchiveWriter", "schema", "serialize"]
