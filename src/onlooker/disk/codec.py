"""Values of ``core`` <-> JSON documents with a version.

A document is ``{"onlooker": kind, "schema": number, "structures": [...], "value": ...}``.
Structures, which many calls share, stand once in a table, and a child comes before what holds it;
so the text is flat however deep the containers are. A value that is written and read again is the
same value: it is equal, and so is its hash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import SavedFileError, UnsupportedError
from .by_type import KNOWN, WRITTEN, reader_of, writer_of
from .files import read_file
from .structures import KnownStructures, WrittenStructures
from .text import Fault, NotWritten, damaged, read_json

__all__ = [
    "SCHEMA",
    "Decoder",
    "Encoder",
    "check_version",
    "document_at",
    "read_document",
    "write_document",
]

#: the version of what is written; it grows when a reader of an older one would misunderstand
SCHEMA = 1


class Encoder:
    """Writes values; the structures that they hold are collected in ``structures``."""

    def __init__(self) -> None:
        self._written = WrittenStructures()
        self.structures = self._written.rows

    def encode(self, declared: Any, value: Any) -> Any:
        """``value``, of the type ``declared``, as JSON.

        :raises UnsupportedError: ``not-saved``
        """
        token = WRITTEN.set(self._written)
        try:
            return writer_of(declared)(value)
        except NotWritten as error:
            raise UnsupportedError(
                f"A {error} cannot be written into a file.",
                slug="not-saved",
                hint=(
                    "It is a key of a dict, or a constant, that is no bool, number, text, None or"
                    " tuple of these."
                ),
            ) from None
        finally:
            WRITTEN.reset(token)


class Decoder:
    """Reads values; ``structures`` is the table of the document, ``where`` the name of the file."""

    def __init__(self, structures: Any, where: str) -> None:
        try:
            self._known = KnownStructures(structures)
        except Fault as fault:
            raise fault.damage(f"{where} at structures") from None

    def decode(self, declared: Any, data: Any, where: str) -> Any:
        """The value of the type ``declared``.

        :raises SavedFileError: ``file-damaged``
        """
        token = KNOWN.set(self._known)
        try:
            return reader_of(declared)(data)
        except Fault as fault:
            raise fault.damage(where) from None
        finally:
            KNOWN.reset(token)


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


def document_at(path: Path, kind: str, declared: Any) -> Any:
    """The value of a document in a file.

    :raises SavedFileError: ``file-missing``, and those of :func:`read_document`
    """
    where = str(path)
    return read_document(read_json(read_file(path), where), kind, declared, where)


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
