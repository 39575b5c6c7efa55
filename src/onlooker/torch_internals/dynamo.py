"""torch.compile: what it compiled and why, and its memory of sizes, which a count must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType
from typing import Any

from .needed import needed

with needed("counts of what torch.compile compiles"):
    import torch._dynamo.config as dynamo_config
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as cache_entries
    from torch._C._dynamo.eval_frame import reset_code
    from torch._dynamo import decorators as marking
    from torch._dynamo import pgo
    from torch._dynamo.convert_frame import register_bytecode_hook
    from torch._dynamo.utils import get_compilation_metrics

__all__ = ["compilations", "marking", "private_cache"]

#: compilations of one function that a count may need
_MOST_COMPILED = 4096


@contextlib.contextmanager
def private_cache() -> Iterator[None]:
    """Inside the block torch.compile begins with no memory of sizes, and compiles as often as calls
    ask for; on exit its memory is as before, and functions that only the block compiled are as they
    were.
    """
    compiled: set[CodeType] = set()

    def note(code: CodeType, new_code: CodeType) -> None:
        if not cache_entries(code):
            compiled.add(code)

    handle = register_bytecode_hook(note)
    memory, pgo._CODE_STATE = pgo._CODE_STATE, None
    before = pgo._INIT_CODE_STATE
    pgo._INIT_CODE_STATE = None
    limits: dict[str, Any] = {
        "recompile_limit": _MOST_COMPILED,
        "accumulated_recompile_limit": _MOST_COMPILED,
    }
    try:
        with dynamo_config.patch(limits):
            yield
    finally:
        handle.remove()
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = memory, before
        for code in compiled:
            reset_code(code)


@contextlib.contextmanager
def compilations() -> Iterator[list[Any]]:
    """Gives a list, which on exit has the records that torch made of each compilation inside the
    block, in their order.
    """
    known = {id(record) for record in get_compilation_metrics()}
    made: list[Any] = []
    yield made
    made += [record for record in get_compilation_metrics() if id(record) not in known]
