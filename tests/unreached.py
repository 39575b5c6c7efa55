"""A list that no walk from a model finds: tests count in it how often experiments run a model, which
puts back whatever else the model changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Unreached:
    """Notes things; its class counts as one of the standard library, into whose objects nobody looks."""

    __module__ = "logging"

    def __init__(self, *items: Any) -> None:
        self.items: list[Any] = list(items)

    def __deepcopy__(self, memo: object) -> Unreached:
        return self

    def append(self, item: Any) -> None:
        self.items.append(item)

    def clear(self) -> None:
        self.items.clear()

    def count(self, item: Any) -> int:
        return self.items.count(item)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __setitem__(self, index: int, item: Any) -> None:
        self.items[index] = item

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == other

    __hash__ = None  # type: ignore[assignment]
