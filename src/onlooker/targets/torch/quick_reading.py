"""Reads an exported program in a third of the time, and programs that torch writes and then refuses.

torch parses the same few texts again for every tensor of a graph: inside the block two functions of
its deserialiser remember what they gave, the type hints of a class of the format, and the expression
of a size. A size made from values that the graph checks to be a number has no symbol any more when
the graph was read, and torch (2.13) asks where the symbol comes from: inside the block such symbols
are not asked for. All is put back when the block ends.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_export/serde/serialize.py
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ...patches.swap import swapped
from ...torch_internals.serialized import serialize
from ...torch_internals.sizes import symbolic_shapes
from ...torch_internals.tracing import dynamo_config, lazy_graph_module

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

    find = symbolic_shapes._free_unbacked_symbols_with_path

    @functools.wraps(find)
    def find_unreplaced(value: Any, path: Any, **options: Any) -> Any:
        found = find(value, path, **options)
        shapes, pending = options.get("shape_env"), options.get("pending")
        if shapes is not None and pending is not None:
            pending.difference_update(shapes.replacements)
        return found

    module = SimpleNamespace(**{**vars(typing), "get_type_hints": hints_of})
    with (
        swapped(serialize, "typing", module),
        swapped(serialize.GraphModuleDeserializer, "_parse_sym_expr", parse_once),
        swapped(symbolic_shapes, "_free_unbacked_symbols_with_path", find_unreplaced),
        dynamo_config.patch(fake_tensor_cache_enabled=False),
        lazy_graph_module._use_lazy_graph_module(True),
    ):
        yield
