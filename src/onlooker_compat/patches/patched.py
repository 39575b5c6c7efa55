"""Blocks in which ``torch.export`` by hand works better: registrations, and repairs of torch and
transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from onlooker.core.errors import UnsupportedError
from onlooker.pytrees.registry import register_flattening_functions

from .custom import patches_of_classes
from .from_transformers import (
    TransformersPatchEnum,
    enable_transformers_onnx_export_flags,
    patch_kinds,
    patches_of_transformers,
)
from .patch import PatchDetails, PatchInfo, applied
from .static_sizes import STATIC_SIZES
from .variadic_keywords import VARIADIC_KEYWORDS

__all__ = [
    "apply_patches_for_model",
    "bypass_export_some_errors",
    "torch_export_patches",
]


@contextlib.contextmanager
def torch_export_patches(
    patch_sympy: bool = True,
    patch_torch: bool | int = True,
    patch_transformers: Any = False,
    patch_diffusers: bool = False,
    catch_constraints: bool = True,
    stop_if_static: int = 0,
    patch: bool = True,
    custom_patches: Iterable[Any] | None = None,
    rewrite: Any = None,
    dump_rewriting: str | None = None,
    patch_details: PatchDetails | None = None,
    profile: str | None = None,
) -> Iterator[Callable[[Any], Any]]:
    """Registers the caches of transformers and applies the repairs, for as long as the block lasts.

    :param patch_torch: repairs of torch: ``dynamic_shapes`` with an entry for ``**kwargs``
    :param patch_transformers: the replacements that transformers has for its own exporter
    :param stop_if_static: 1 or more stops at the line of the model that makes a dynamic size a
        constant
    :param patch: False applies nothing and only registers
    :param custom_patches: classes with ``_PATCHED_CLASS_`` and ``_PATCHES_``
    :param patch_details: is filled with what was applied
    :param patch_sympy: changes nothing: sympy needs no repair with torch 2.13
    :param patch_diffusers: changes nothing: no repair of diffusers is known to be needed
    :param catch_constraints: changes nothing: a size that torch finds to be a constant, though it
        was to be dynamic, stays torch's own error, since the program would take no other size
    :param rewrite: must be None, as ``dump_rewriting`` and ``profile``
    :return: gives a function that returns the inputs of a model as they are
    :raises UnsupportedError: ``not-offered`` for methods to rewrite, and for a profile
    :raises UsageError: ``bad-custom-patch``

    >>> import torch
    >>> class Scale(torch.nn.Module):
    ...     def forward(self, x, **kwargs):
    ...         return x * kwargs["by"]
    >>> rows = {0: torch.export.Dim.DYNAMIC}
    >>> shapes = {"x": rows, "kwargs": {"by": rows}}
    >>> with torch_export_patches():
    ...     program = torch.export.export(
    ...         Scale(), (torch.ones(3, 4),), {"by": torch.ones(3, 4)}, dynamic_shapes=shapes
    ...     )
    >>> program.module()(torch.ones(7, 4), by=torch.ones(7, 4)).shape
    torch.Size([7, 4])
    """
    del patch_sympy, patch_diffusers, catch_constraints
    asked = {"rewrite": rewrite, "dump_rewriting": dump_rewriting, "profile": profile}
    if any(asked.values()):
        raise UnsupportedError(
            "torch_export_patches does not offer"
            f" {', '.join(name for name, value in asked.items() if value)}.",
            slug="not-offered",
            hint=(
                "Write a branch of the model with torch.cond, or watch it: observer.export() makes"
                " a graph for each."
            ),
        )
    kinds = patch_kinds(patch_transformers) if patch else TransformersPatchEnum.NONE
    patches = _chosen(bool(patch_torch) and patch, kinds)
    if patch:
        patches += [
            *(STATIC_SIZES if stop_if_static else ()),
            *patches_of_classes(custom_patches or ()),
        ]
    with register_flattening_functions() as unchanged, applied(patches, patch_details):
        yield unchanged


#: the older name
bypass_export_some_errors = torch_export_patches


@contextlib.contextmanager
def apply_patches_for_model(
    patch_torch: bool = False,
    patch_transformers: Any = False,
    model: Any = None,
    extra_patches: Iterable[PatchInfo] | None = None,
) -> Iterator[PatchDetails]:
    """Applies the repairs, for as long as the block lasts; caches are not registered.

    :param patch_torch: as for :func:`torch_export_patches`
    :param patch_transformers: True, or which kinds: the replacements that transformers has for its
        own exporter, the switches that ``model`` has
    :param model: its switches are turned on for the time of the block
    :param extra_patches: applied after the others
    :return: gives the patches that were applied

    >>> with apply_patches_for_model(patch_torch=True) as details:
    ...     [patch.name for patch in details]
    ['torch.export._trace._get_range_constraints', 'torch._export.non_strict_utils.make_sourced_prefixes']
    """
    kinds = patch_kinds(patch_transformers)
    patches = [*_chosen(patch_torch, kinds), *(extra_patches or ())]
    switched = model if TransformersPatchEnum.TRANSFORMERS_PATCH in kinds else None
    with applied(patches) as details, enable_transformers_onnx_export_flags(switched):
        yield details


def _chosen(torch_too: bool, kinds: TransformersPatchEnum) -> list[PatchInfo]:
    listed = patches_of_transformers() if TransformersPatchEnum.YOBX_PATCH in kinds else []
    return [*(VARIADIC_KEYWORDS if torch_too else ()), *listed]
