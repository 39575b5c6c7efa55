"""The place of a leaf: a path that prints as Python, and can be followed and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

__all__ = ["Attr", "Entry", "Index", "Key", "Name", "Path", "is_same_key"]


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The name of an argument, or of an output: the beginning of a path."""

    name: str

    def code(self) -> str:
        """This step as Python source."""
        return self.name

    def follow(self, obj: Any) -> Any:
        """The object that this step leads to, from a mapping of names."""
        return obj[self.name]

    def put(self, obj: Any, value: Any) -> None:
        """Writes ``value`` where this step leads to."""
        obj[self.name] = value


@dataclass(frozen=True, slots=True, order=True)
class Attr:
    """A step to an attribute."""

    name: str

    def code(self) -> str:
        """This step as Python source."""
        return f".{self.name}"

    def follow(self, obj: Any) -> Any:
        """The object that this step leads to."""
        return getattr(obj, self.name)

    def put(self, obj: Any, value: Any) -> None:
        """Writes ``value`` where this step leads to."""
        setattr(obj, self.name, value)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A step to the value of a key. The keys ``1``, ``1.0`` and ``True``, which are one to a dict, are
    three steps: a model may tell them apart.
    """

    key: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return is_same_key(self.key, other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def code(self) -> str:
        """This step as Python source."""
        return f"[{self.key!r}]"

    def follow(self, obj: Any) -> Any:
        """The object that this step leads to."""
        return obj[self.key]

    def put(self, obj: Any, value: Any) -> None:
        """Writes ``value`` where this step leads to."""
        obj[self.key] = value


@dataclass(frozen=True, slots=True, order=True)
class Index:
    """A step to an item of a sequence."""

    index: int

    def code(self) -> str:
        """This step as Python source."""
        return f"[{self.index}]"

    def follow(self, obj: Any) -> Any:
        """The object that this step leads to."""
        return obj[self.index]

    def put(self, obj: Any, value: Any) -> None:
        """Writes ``value`` where this step leads to."""
        obj[self.index] = value


Entry = Name | Attr | Key | Index


@dataclass(frozen=True, slots=True)
class Path:
    """The steps from the arguments of a call (or from its outputs) to a leaf.

    >>> path = Path((Name("past_key_values"), Attr("layers"), Index(0), Attr("keys")))
    >>> path.code()
    'past_key_values.layers[0].keys'
    >>> Path((Name("x"), Key("a"))).follow({"x": {"a": 3}})
    3
    """

    entries: tuple[Entry, ...] = ()

    def code(self) -> str:
        """The path as Python source."""
        return "".join(entry.code() for entry in self.entries)

    __str__ = code

    def __truediv__(self, entry: Entry) -> Path:
        return Path((*self.entries, entry))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def root(self) -> str:
        """The name of the argument (or output) where the path begins."""
        first = self.entries[0] if self.entries else None
        return first.name if isinstance(first, Name) else ""

    def follow(self, obj: Any) -> Any:
        """Returns the value at this path in ``obj``, a mapping of the names to the values.

        :raises UsageError: ``path-not-found`` when a step leads nowhere
        """
        here = obj
        for position, entry in enumerate(self.entries):
            try:
                here = entry.follow(here)
            except (AttributeError, KeyError, IndexError, TypeError) as error:
                done = Path(self.entries[:position]).code() or "the arguments"
                raise UsageError(
                    f"{self.code()} cannot be followed: {done} has no {entry.code()}.",
                    slug="path-not-found",
                ) from error
        return here

    def put(self, obj: Any, value: Any) -> None:
        """Writes ``value`` at this path in ``obj``.

        :raises UsageError: ``path-not-found`` when a step leads nowhere
        """
        if not self.entries:
            raise UsageError("An empty path cannot be written.", slug="path-not-found")
        here = Path(self.entries[:-1]).follow(obj)
        try:
            self.entries[-1].put(here, value)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise UsageError(
                f"{self.code()} cannot be written: {type(error).__name__}: {error}.",
                slug="path-not-found",
            ) from error


def is_same_key(one: Any, other: Any) -> bool:
    """True for keys that are equal, and of one class.

    >>> is_same_key(1, 1), is_same_key(1, True), is_same_key(("a", 0), ("a", False))
    (True, False, False)
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is float:  # NaN is NaN, and 0.0 is not -0.0
        return repr(one) == repr(other)
    if kind is tuple:
        return len(one) == len(other) and all(map(is_same_key, one, other))
    return bool(one == other)


def label_of(path: Path) -> str:
    """A short name for a leaf, without brackets, for the inputs of a program.

    The layers of a cache are called as other exporters call them.

    >>> from onlooker.core.path import Index, Name
    >>> label_of(Path((Name("past_key_values"), Attr("layers"), Index(0), Attr("keys"))))
    'past_key_values.0.key'
    """
    parts: list[str] = []
    for entry in path:
        step = entry.code().strip(".[]").strip("'\"")
        if not (step == "layers" and isinstance(entry, Attr)):
            parts.append(step)
    if "layers" in [entry.name for entry in path if isinstance(entry, Attr)] and parts[-1] in (
        "keys",
        "values",
    ):
        parts[-1] = parts[-1].removesuffix("s")
    return ".".join(part.replace(".", "_") for part in parts)
