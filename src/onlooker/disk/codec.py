"""Values of ``core`` <-> JSON documents with a version.

A document is ``{"onlooker": kind, "schema": number, "structures": [...], "value": ...}``.
Structures, which many calls share, stand once in a table, and a child comes before what holds it;
so the text is flat however deep the containers are. A value that is written and read again is the
same value: it is equal, and so is its hash.
"""

from __future__ import annotations

from typing import Any

from ..core.errors import SavedFileError
from .codec_read import Decoder
from .codec_write import Encoder
from .text import damaged

__all__ = ["SCHEMA", "check_version", "read_document", "write_document"]

#: the version of what is written; it grows when a reader of an older one would misunderstand
SCHEMA = 1


def write_document(kind: str, declared: Any, value: Any) -> dict[str, Any]:
    """The document of a value; ``declared`` is its type.

    :raises UnsupportedError: ``not-saved`` for a value that JSON cannot hold
    """
    encoder = Encoder()
    content = encoder.encode(declared, value)
    return {"onlooker": kind, "schema": SCHEMA, "structures": encoder.structures, "value": content}


def read_document(document: Any, kind: str, declared: Any, where: str) -> Any:
    """The value that :func:`write_document` wrote; ``where`` names the file.

    :raises SavedFileError: ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    check_version(document, kind, where)
    if set(document) != {"onlooker", "schema", "structures", "value"}:
        raise damaged(where, "it has other parts than structures and a value")
    decoder = Decoder(document["structures"], where)
    return decoder.decode(declared, document["value"], f"{where} at value")


def check_version(document: Any, kind: str, where: str) -> None:
    """Passes for a document of this kind, written by this version or an older one.

    :raises SavedFileError: ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    if not isinstance(document, dict) or document.get("onlooker") != kind:
        raise SavedFileError(
            f"{where} is not a {kind} of onlooker.",
            slug="file-foreign",
            hint="Give what onlooker has saved.",
        )
    schema = document.get("schema")
    if type(schema) is not int or schema < 1:
        raise damaged(f"{where} at schema", "the version of the format is missing")
    if schema > SCHEMA:
        raise SavedFileError(
            f"{where} has format {schema}, and this version of onlooker reads up to {SCHEMA}.",
            slug="file-newer",
            hint="Install a newer version of onlooker: pip install -U onlooker.",
        )
