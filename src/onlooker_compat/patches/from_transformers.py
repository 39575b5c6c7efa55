"""What transformers ships to make its models exportable, applied for a while.

Two things: the replacements that its own exporter of torch programs applies (vision attention
without a Python loop over the images, sliding windows that do not bake their counter ...), and the
switches that some models have (``config.onnx_export`` of Longformer, ``prepare_for_onnx_export_``
of ProphetNet). Nothing is written anew here: a replacement may go when transformers drops it from
its list.

Upstream: https://github.com/huggingface/transformers/tree/main/src/transformers/exporters. Needed
with transformers 5.23; ``test_vision_attention_fails_without_the_list_of_transformers`` of
``tests/compat/test_patches.py`` fails when the list is not needed any more.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
from collections.abc import Iterator
from typing import Any

from onlooker.core.errors import OnlookerWarning, warn
from onlooker.patches.swap import swapped

from .patch import PatchInfo

__all__ = [
    "TransformersPatchEnum",
    "enable_transformers_onnx_export_flags",
    "patch_kinds",
    "patches_of_transformers",
]

_LINK = "https://github.com/huggingface/transformers/tree/main/src/transformers/exporters"


class TransformersPatchEnum(enum.Flag):
    """The repairs to apply; the members can be combined with ``|``.

    ``YOBX_PATCH`` (the name is that of users who come from yobx) stands for the replacements, which
    need no model; ``TRANSFORMERS_PATCH`` for the switches of one model.
    """

    NONE = 0
    YOBX_PATCH = enum.auto()
    TRANSFORMERS_PATCH = enum.auto()
    ALL = YOBX_PATCH | TRANSFORMERS_PATCH


def patch_kinds(value: Any) -> TransformersPatchEnum:
    """The flag that True, False or a text such as ``"ALL"`` stands for.

    >>> patch_kinds(True) is TransformersPatchEnum.ALL, patch_kinds("none") is TransformersPatchEnum.NONE
    (True, True)
    """
    if isinstance(value, TransformersPatchEnum):
        return value
    if isinstance(value, str) and value.upper() in TransformersPatchEnum.__members__:
        return TransformersPatchEnum[value.upper()]
    return TransformersPatchEnum.ALL if value else TransformersPatchEnum.NONE


def patches_of_transformers() -> list[PatchInfo]:
    """The replacements that transformers registers for its exporter of torch programs.

    None where transformers is not installed; a release without that list is an
    :class:`OnlookerWarning`.
    """
    try:
        importlib.import_module("transformers")
    except ImportError:
        return []
    try:
        importlib.import_module("transformers.exporters.exporter_dynamo")
        listed = importlib.import_module("transformers.exporters.utils")._PATCHES["dynamo"]
    except (ImportError, AttributeError, KeyError):
        text = "The transformers patch of transformers.exporters finds nothing of that name."
        hint = f"Use a release of transformers that has it, {_LINK}."
        warn(OnlookerWarning(text, slug="patch-target-gone", hint=hint))
        return []
    return [_patch(owner, name, replace) for owner, name, replace in listed]


def _patch(owner: str, name: str, replace: Any) -> PatchInfo:
    return PatchInfo(
        owner,
        name,
        replace,
        family="transformers",
        why=(replace.__doc__ or "").strip().partition("\n")[0],
        link=_LINK,
        versions="transformers 5.23",
        test="test_vision_attention_fails_without_the_list_of_transformers",
        optional=True,  # a model that needs a package which is not installed cannot be meant
    )


@contextlib.contextmanager
def enable_transformers_onnx_export_flags(model: Any = None) -> Iterator[dict[str, list[str]]]:
    """Turns on the switches for an export that a model has itself, for as long as the block lasts.

    Yields the configurations with an ``onnx_export`` and the modules with a
    ``prepare_for_onnx_export_``, by name; the model itself is ``""``.

    >>> with enable_transformers_onnx_export_flags(None) as found:
    ...     found
    {'configs': [], 'modules': []}
    """
    found: dict[str, list[str]] = {"configs": [], "modules": []}
    with contextlib.ExitStack() as stack:
        for name, config in _configs(model):
            stack.enter_context(swapped(config, "onnx_export", True))
            found["configs"].append(name)
        for name, module in _modules(model):
            if hasattr(module, "prepare_for_onnx_export_"):
                stack.enter_context(swapped(module, "onnx_trace", True))
                module.prepare_for_onnx_export_()
                found["modules"].append(name)
        yield found


def _modules(model: Any) -> list[tuple[str, Any]]:
    return list(model.named_modules()) if hasattr(model, "named_modules") else []


def _configs(model: Any) -> Iterator[tuple[str, Any]]:
    """Every configuration with the switch, once; those that a configuration holds have its name
    in front.
    """
    seen: set[int] = set()
    for name, module in _modules(model):
        config = getattr(module, "config", None)
        inside = [
            (f"{name}.{key}".strip("."), child)
            for key, child in getattr(config, "__dict__", {}).items()
        ]
        for label, candidate in [(name, config), *inside]:
            if hasattr(candidate, "onnx_export") and id(candidate) not in seen:
                seen.add(id(candidate))
                yield label, candidate
