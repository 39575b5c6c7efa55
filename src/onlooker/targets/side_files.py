"""The small files beside the weights of a saved model, which whoever runs it reads as well:
configurations, tokenizer, processor.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.support.kinds import as_path

__all__ = ["copy_tokenizer", "side_files", "write_json"]

#: what tokenizers, processors and configurations are written as
_SUFFIXES = frozenset({".json", ".jinja", ".model", ".tiktoken", ".txt"})
#: the list of the parts of weights that are in several files
_LIST_OF_WEIGHTS = ".index.json"


def side_files(folder: Path) -> list[Path]:
    """The files of a folder itself that are no weights, sorted by name."""
    found = (path for path in folder.iterdir() if path.is_file() and path.suffix in _SUFFIXES)
    return sorted(path for path in found if not path.name.endswith(_LIST_OF_WEIGHTS))


def copy_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Writes the files of a tokenizer: those of a local folder, or of one that saves itself, as
    those of transformers do.

    :raises UsageError: ``no-tokenizer`` for a folder without files of one
    :raises ArgumentKindError: ``wrong-kind``
    """
    if callable(getattr(tokenizer, "save_pretrained", None)):
        tokenizer.save_pretrained(os.fspath(folder))
        _name_known_class(folder)
        return
    source = as_path(tokenizer, "The tokenizer")
    files = side_files(source) if source.is_dir() else []
    if not files:
        raise UsageError(
            f"{source} has no files of a tokenizer.",
            slug="no-tokenizer",
            hint="Give the folder that tokenizer.save_pretrained wrote, or the tokenizer itself.",
        )
    for path in files:
        shutil.copyfile(path, folder / path.name)


def _name_known_class(folder: Path) -> None:
    """Calls a tokenizer that is its file alone by the name that all versions of transformers know:
    version 5 writes ``TokenizersBackend``, which version 4 and transformers.js do not know.
    """
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_json(path, settings)


def write_json(path: Path, content: Any) -> None:
    """Writes a file that people read too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
