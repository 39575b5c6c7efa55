"""Stands in a loaded program for a class that this process does not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["StandIn"]


class StandIn:
    """The fields of a result, by attribute, by key and by position, as the class of the model has
    them.

    >>> result = StandIn("models.Output", ("logits", "loss"), (1, 2))
    >>> result.logits, result["loss"], result[0], list(result), len(result)
    (1, 2, 1, ['logits', 'loss'], 2)
    >>> result
    <stand-in for models.Output: logits, loss>
    """

    def __init__(self, kind: str, names: Sequence[Any], values: Sequence[Any]) -> None:
        self.__dict__["_stand_in_for"] = kind
        self.__dict__["_fields"] = dict(zip(names, values, strict=True))

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{self!r} has no {name!r}")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) or (isinstance(key, int) and key not in self._fields):
            return tuple(self._fields.values())[key]
        return self._fields[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def keys(self) -> Any:
        """The names of the fields."""
        return self._fields.keys()

    def values(self) -> Any:
        """The fields."""
        return self._fields.values()

    def items(self) -> Any:
        """The fields with their names."""
        return self._fields.items()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._fields if isinstance(name, str))]

    def __repr__(self) -> str:
        return f"<stand-in for {self._stand_in_for}: {', '.join(map(str, self._fields))}>"
