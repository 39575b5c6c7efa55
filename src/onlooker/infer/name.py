"""Names for the classes of axes that change: from the names of arguments, then from the role of the
axis.

The rules follow conventions of the ecosystem (``input_ids``, ``attention_mask``, the ``keys`` of a
cache), never the name of a model.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence

from ..core.drawing.alike import unused_name
from ..core.path import Attr, Key, Path, label_of
from ..core.spec import Axis
from .mine import Mined
from .relations import Column

__all__ = ["Given", "names_of"]

#: (part of the argument's name, dimension, name): the first rule that fits an axis of the class
#: names it
RULES: tuple[tuple[str, int, str], ...] = (
    ("decoder_input_ids", 1, "decoder_sequence"),
    ("decoder_attention_mask", 1, "decoder_sequence"),
    ("ids", 1, "sequence"),
    ("embeds", 1, "sequence"),
    ("encoder_outputs", 1, "encoder_sequence"),
    ("mask", 1, "total_sequence"),
    ("mask", 2, "sequence"),
    ("mask", 3, "total_sequence"),
    ("pixel_values", 2, "height"),
    ("pixel_values", 3, "width"),
    ("input_values", 1, "samples"),
    ("input_features", 2, "frames"),
)


#: the name that the user gives to an axis, or None
Given = Callable[[Axis], str | None]


def _nothing(axis: Axis) -> None:
    """No axis has a name of the user."""


def names_of(mined: Mined, given: Given = _nothing) -> dict[str, str]:
    """A name for every class, free or derived; no two are the same. A name that the user has
    ``given`` to an axis comes before all others.
    """
    names: dict[str, str] = {}
    for column in mined.columns:
        own = next(filter(None, map(given, column.axes)), None)
        if own is not None and own not in names.values():
            names[column.name] = own
    batch = _batch(mined.columns)
    for column in mined.columns:
        if column.name in names:
            continue
        own = next(filter(None, map(given, column.axes)), None)
        name = "batch" if column is batch else _role(column) or _fallback(column.axes[0])
        name = own or name
        if (
            name == "total_sequence"
            and column.name not in mined.derived
            and "sequence" not in names.values()
        ):
            name = "sequence"
        names[column.name] = unused_name(name, names.values())
    return names


def _batch(columns: Sequence[Column]) -> Column | None:
    """The class with the most first dimensions: one made of them, else one that has no other
    role.
    """

    def count(column: Column) -> int:
        return sum(axis.dim == 0 for axis in column.axes)

    first = [column for column in columns if column.is_first]
    mixed = [column for column in columns if count(column) and _role(column) is None]
    return max(first or mixed, key=count, default=None)


def _role(column: Column) -> str | None:
    for axis in column.axes:
        if (name := _cache_role(axis)) is not None:
            return name
    for part, dim, name in RULES:
        if any(axis.dim == dim and _is_called(axis.path, part) for axis in column.axes):
            return name
    return None


def _is_called(path: Path, part: str) -> bool:
    """True where the argument, or the key of a mapping that the leaf has in it, is called so."""
    keys = [str(entry.key) for entry in path if isinstance(entry, Key)]
    return any(part in name for name in (path.root, *keys[-1:]))


def _cache_role(axis: Axis) -> str | None:
    attributes = [entry.name for entry in axis.path if isinstance(entry, Attr)]
    if axis.dim == 2 and attributes and attributes[-1] in ("keys", "values"):
        return "encoder_sequence" if "cross_attention_cache" in attributes else "past_sequence"
    if axis.dim is None and attributes and attributes[-1].startswith("cumulative"):
        return "seen_sequence"
    return None


def _fallback(axis: Axis) -> str:
    label = re.sub(r"\W", "_", label_of(axis.path))
    label = f"_{label}" if not label.isidentifier() or keyword.iskeyword(label) else label
    return label if axis.dim is None else f"{label}_dim_{axis.dim}"
