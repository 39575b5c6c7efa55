"""Folders that ``ExportedModel.save_pretrained`` of transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import UsageError

__all__ = ["component_of", "is_exported_model"]

#: the file that names the components of such a folder
_MANIFEST = "export.json"


def is_exported_model(path: Path) -> bool:
    """True for a folder of transformers' ExportedModel."""
    return (path / _MANIFEST).is_file()


def component_of(path: Path, name: str | None) -> Path:
    """The file of one component; without a name, of the only one.

    :raises UsageError: ``no-such-component``, ``model-not-loaded``
    """
    try:
        manifest: Any = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        files = {key: str(entry["file"]) for key, entry in manifest["components"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path / _MANIFEST} does not name the files of its components ({error!r}).",
            slug="model-not-loaded",
            hint="Give a folder that ExportedModel.save_pretrained() wrote.",
        ) from error
    chosen = name if name is not None else next(iter(files), "")
    if chosen not in files or (name is None and len(files) > 1):
        raise UsageError(
            f"{path} has the components {', '.join(files)}.",
            slug="no-such-component",
            hint="Name one of them with component=, or --component.",
        )
    file = path / files[chosen]
    if file.parent != path:
        raise UsageError(
            f"The component {chosen} of {path} lies outside of it.",
            slug="model-not-loaded",
            hint="Give a folder that ExportedModel.save_pretrained() wrote.",
        )
    return file
