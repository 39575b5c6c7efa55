"""The inputs of an ONNX model by the leaves of a call: by the names that exporters give, else by
order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ....core.errors import UsageError
from ....core.path import Attr, Index, Path, label_of

__all__ = ["match_inputs", "plain_name", "spellings"]

_CACHE = {"keys": "key", "values": "value"}


def match_inputs(names: Sequence[str], values: Mapping[Path, Any]) -> dict[str, Path]:
    """The leaf of each input.

    First come the names, by the spellings of :func:`spellings`; what is left of the inputs then
    stands in the order of what is left of the tensors, or of the tensors and numbers, if these are
    as many.

    :raises UsageError: ``inputs-do-not-match`` when the inputs cannot be told

    >>> from onlooker.core.path import Name
    >>> x, y = (Path((Name(name),)) for name in "xy")
    >>> found = match_inputs(["y", "input_1"], {x: torch.zeros(1), y: torch.zeros(1)})
    >>> {name: str(path) for name, path in found.items()}
    {'y': 'y', 'input_1': 'x'}
    """
    leaves = [p for p, v in values.items() if isinstance(v, (torch.Tensor, bool, int, float))]
    found = _by_name(names, leaves)
    rest = [name for name in names if name not in found]
    free = [path for path in leaves if path not in found.values()]
    tensors = [path for path in free if isinstance(values[path], torch.Tensor)]
    for candidates in ([], tensors, free):
        if len(candidates) == len(rest):
            return {**found, **dict(zip(rest, candidates, strict=True))}
    raise UsageError(
        f"The model has inputs {', '.join(rest)} that no argument is called like; "
        f"left are {', '.join(map(str, tensors)) or 'none'}.",
        slug="inputs-do-not-match",
        hint="Export with input_names, one per tensor of the arguments.",
    )


def _by_name(names: Sequence[str], leaves: Sequence[Path]) -> dict[str, Path]:
    spelled = {path: spellings(path) for path in leaves}
    wanted: dict[str, list[str]] = {}
    for name in names:
        wanted.setdefault(plain_name(name), []).append(name)
    found: dict[str, Path] = {}
    for level in range(max(map(len, spelled.values()), default=0)):
        claims: dict[str, list[Path]] = {}
        for path, texts in spelled.items():
            if level < len(texts) and path not in found.values():
                claims.setdefault(texts[level], []).append(path)
        for text, paths in claims.items():
            free = [name for name in wanted.get(text, []) if name not in found]
            if len(paths) == len(free) == 1:
                found[free[0]] = paths[0]
    return found


def spellings(path: Path) -> tuple[str, ...]:
    """Returns the names that exporters give to a leaf, in plain form: lower case, ``_`` between the
    parts; the most telling name first.

    >>> from onlooker.core.path import Name
    >>> spellings(Path((Name("past_key_values"), Attr("layers"), Index(0), Attr("keys"))))[:3]
    ('past_key_values_0_key', 'past_key_values_key_0', 'past_key_values_key_cache_0')
    """
    texts = [label_of(path), path.code()]
    layer = _layer_of(path)
    if layer is not None:
        before, index, kind = layer
        root = path.root
        texts[1:1] = [
            f"{before}_{kind}_{index}",
            f"{before}_{kind}_cache_{index}",
            f"{root}_{kind}_{index}",
        ]
        texts += [f"{root}_{index}_{kind}", f"past_{kind}_{index}", f"{kind}_{index}"]
        texts += [f"{kind}_cache_{index}", f"past_{kind}_values_{index}"]
    return tuple(dict.fromkeys(map(plain_name, texts)))


def _layer_of(path: Path) -> tuple[str, int, str] | None:
    """``(what stands before the layers, number, key or value)`` of a leaf of a cache."""
    if len(path.entries) < 3:
        return None
    *before, layers, index, last = path.entries
    if not (isinstance(layers, Attr) and layers.name == "layers" and isinstance(index, Index)):
        return None
    if not isinstance(last, Attr) or last.name not in _CACHE:
        return None
    return label_of(Path(tuple(before))), index.index, _CACHE[last.name]


def plain_name(text: str) -> str:
    """A name in lower case, with ``_`` for everything that is no letter and no digit."""
    return re.sub(r"[\W_]+", "_", text).strip("_").lower()
