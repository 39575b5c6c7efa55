"""JSON text, read with distrust and written so that every number and text comes back exactly.

JSON has no infinity and no NaN, Python reads integers of more than 4300 digits not at all, and a
text with half a surrogate pair is another text afterwards. These are written as objects of one key.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from ..core.errors import SavedFileError

__all__ = [
    "MOST_BYTES",
    "Fault",
    "NotWritten",
    "damaged",
    "read_constant",
    "read_json",
    "read_nested",
    "write_constant",
    "write_json",
    "write_nested",
]

#: a JSON file that is larger is not read
MOST_BYTES = 1 << 29
#: the deepest constant: tuples as keys of dicts
_DEEPEST = 64
_INT = 1 << 63
_CLASSES: dict[str, type] = {"int": int, "float": float, "str": str}


class Fault(Exception):
    """An error in a document; its place is known from the inside out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self._steps: list[str] = []

    def inside(self, step: str) -> Fault:
        """The fault, one step further out: ``.shape`` or ``[3]``."""
        self._steps.append(step)
        return self

    def damage(self, where: str) -> SavedFileError:
        """The error for the file; ``where`` names it and the part of the document."""
        return damaged(where + "".join(reversed(self._steps)), self.problem)


class NotWritten(Exception):
    """A value that JSON cannot hold."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__}")


def damaged(where: str, problem: str) -> SavedFileError:
    """The error for a file whose content cannot be meant; ``where`` is the file and the place in
    it.
    """
    return SavedFileError(
        f"{where}: {problem}.",
        slug="file-damaged",
        hint="The file is not as onlooker wrote it: save it again, or take it from where it came.",
    )


def write_json(document: Any) -> bytes:
    """The document as ASCII text."""
    return (
        json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        + b"\n"
    )


def read_json(content: bytes, where: str) -> Any:
    """Reads bytes that :func:`write_json` wrote.

    :raises SavedFileError: ``file-damaged`` for what is no JSON, has a key twice, a NaN, or is too
        deep or too long
    """
    if len(content) > MOST_BYTES:
        raise damaged(where, f"{len(content)} bytes are more than a file of onlooker has")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice in one object")
        return found

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number of JSON")

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise damaged(where, "it is nested too deeply") from None
    except ValueError as error:
        raise damaged(where, f"it is no JSON ({str(error)[:200]})") from None


def write_constant(value: Any) -> Any:
    """A bool, int, float, str or None as JSON; an instance of a derived class keeps the name of
    its class.

    :raises NotWritten: for anything else
    """
    if value is None or type(value) is bool:
        return value
    for name, cls in _CLASSES.items():
        if isinstance(value, cls):
            plain = _plain(value, cls)
            if type(value) is cls:
                return plain
            return {
                "class": type(value).__name__,
                "of": name,
                "text": _plain(repr(value), str),
                "value": plain,
            }
    raise NotWritten(value)


def _plain(value: Any, cls: type) -> Any:
    if cls is int:
        number = int.__index__(value)
        return number if -_INT < number < _INT else {"int": hex(number)}
    if cls is float:
        real = float.__add__(value, -0.0)
        return real if math.isfinite(real) else {"float": str(real)}
    text = str.__str__(value) if type(value) is str else "".join(value)
    if any("\ud800" <= c <= "\udfff" for c in text):
        return {"text": text.encode("utf-8", "surrogatepass").hex()}
    return text


def write_nested(value: Any) -> Any:
    """A constant, or a tuple of such, as JSON."""
    if type(value) is tuple:
        return {"tuple": [write_nested(child) for child in value]}
    return write_constant(value)


def read_nested(data: Any, depth: int = 0) -> Any:
    """Reads text that :func:`write_nested` wrote.

    :raises Fault: for anything else
    """
    if not isinstance(data, dict) or data.keys() != {"tuple"}:
        return read_constant(data)
    if not isinstance(data["tuple"], list):
        raise Fault("a list is wanted here")
    if depth > _DEEPEST:
        raise Fault("it is nested too deeply")
    return tuple(read_nested(child, depth + 1) for child in data["tuple"])


def read_constant(data: Any) -> Any:
    """The constant that :func:`write_constant` wrote.

    :raises Fault: for anything else
    """
    if not isinstance(data, (dict, list)):
        return data
    if isinstance(data, dict) and data.keys() == {"class", "of", "text", "value"}:
        return _derived(data)
    if isinstance(data, dict) and len(data) == 1:
        ((kind, text),) = data.items()
        try:
            if kind == "int" and isinstance(text, str):
                return int(text, 16)
            if kind == "float" and text in ("inf", "-inf", "nan"):
                return float(text)
            if kind == "text" and isinstance(text, str):
                return bytes.fromhex(text).decode("utf-8", "surrogatepass")
        except ValueError:
            pass
    raise Fault("a number, a text, true, false or null is wanted here")


def _derived(data: dict[str, Any]) -> Any:
    """An instance of a class of its own, as equal to the one that was written as two constants
    can be.
    """
    name, text = data["class"], read_constant(data["text"])
    cls = _CLASSES.get(data["of"]) if isinstance(data["of"], str) else None
    value = read_constant(data["value"])
    fits = isinstance(name, str) and isinstance(text, str) and cls is not None
    if not fits or type(value) is not cls:
        raise Fault("a constant has a class that fits its value")
    made: Any = type("Constant", (cls,), {"__repr__": lambda self: text, "__slots__": ()})
    made.__name__ = made.__qualname__ = name if name.isidentifier() else "Constant"
    return made(value)
