"""Stops an export at the line of the model that makes a dynamic size a constant.

Why: torch.export reports it at the end, for all sizes together and without the line, and for
``Dim.AUTO`` not at all. No repair: a tool to find the line, asked for with
``torch_export_patches(stop_if_static=1)``.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py,
where ``ShapeEnv._set_replacement`` is told every such constant.
``test_the_line_that_makes_a_size_static`` of ``tests/compat/test_patches.py`` fails when it is no
longer so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onlooker.core.errors import ExportError

from .patch import PatchInfo

__all__ = ["STATIC_SIZES"]


def _stop(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_replacement(self: Any, a: Any, tgt: Any, msg: str) -> Any:
        sources = getattr(self, "var_to_sources", {}).get(a)
        if sources and getattr(tgt, "is_number", False):
            raise ExportError(
                f"The size {sources[0].name} becomes the constant {tgt}.",
                slug="size-became-static",
                hint="The line of the model that asks for it is in the traceback above.",
            )
        return original(self, a, tgt, msg)

    return set_replacement


#: the patch behind ``stop_if_static``
STATIC_SIZES = (
    PatchInfo(
        "torch.fx.experimental.symbolic_shapes.ShapeEnv",
        "_set_replacement",
        _stop,
        family="torch",
        why="stops where a dynamic size becomes a constant",
        link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py",
        versions="torch 2.13",
        test="test_the_line_that_makes_a_size_static",
    ),
)
