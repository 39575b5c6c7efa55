"""``dynamic_shapes`` for a ``forward(..., **kwargs)``.

Why: the entry for ``**kwargs`` is a dict under the name of that parameter, and ``torch.export``
checks that it is. Two of its later steps read the arguments otherwise. The one that makes the
ranges lists every keyword twice, by itself and inside ``kwargs``, and fails ("Must provide a
tree_name"). The one that names the sizes calls one ``L['kwargs']['y']``, and the module of the
program, whose argument is ``y``, fails on its own guards ("name 'L' is not defined").

The repair gives both steps a function whose signature has the keywords of the call instead of
``**kwargs``.

Upstream: https://github.com/pytorch/pytorch/issues/150022 and
https://github.com/pytorch/pytorch/pull/186879. Needed with torch 2.13. torch 2.15.0 takes the same
shapes without it, and the module of its program still fails on its own guards
(``upstream/torch_variadic_keywords.py``). It may go when both halves of
``test_each_half_of_the_repair_is_needed`` of ``tests/compat/test_patches.py`` fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .patch import PatchInfo

__all__ = ["VARIADIC_KEYWORDS"]


def _ranges(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_range_constraints(
        mod: Any, export_artifact: Any, args: Any, kwargs: Any, dynamic_shapes: Any
    ) -> Any:
        spread = _spread(mod, args, kwargs)
        if spread is None or not isinstance(dynamic_shapes, (dict, tuple, list)):
            return original(mod, export_artifact, args, kwargs, dynamic_shapes)
        function, name, bound = spread
        shapes = dict(
            dynamic_shapes
            if isinstance(dynamic_shapes, dict)
            else zip(bound, dynamic_shapes, strict=False)
        )
        inside = shapes.pop(name, None) or dict.fromkeys(bound[name])
        return original(function, export_artifact, args, kwargs, shapes | inside)

    return get_range_constraints


def _sources(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_sourced_prefixes(nn_module: Any, args: Any, kwargs: Any) -> Any:
        spread = _spread(nn_module, args, kwargs)
        return original(nn_module if spread is None else spread[0], args, kwargs)

    return make_sourced_prefixes


def _spread(
    module: Any, args: Any, kwargs: Any
) -> tuple[Callable[..., None], str, Mapping[str, Any]] | None:
    """A function with the signature of ``module.forward``, its ``**kwargs`` spread into the
    keywords of the call.

    With it the name of that parameter, and the arguments bound to the signature as it is; None when
    the call has no such keywords.
    """
    signature = inspect.signature(getattr(module, "forward", module))
    bound = signature.bind(*args, **(kwargs or {})).arguments
    parameters = list(signature.parameters.values())
    variadic = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if variadic is None or variadic not in bound:
        return None
    kept = [p for p in parameters if p.name != variadic]
    if {p.name for p in kept} & bound[
        variadic
    ].keys():  # a positional-only name given again as a keyword
        return None

    def spread(*args: Any, **kwargs: Any) -> None:
        """Only its signature is read."""

    names = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in bound[variadic]]
    spread.__signature__ = signature.replace(parameters=[*kept, *names])  # type: ignore[attr-defined]
    return spread, variadic, bound


def _patch(owner: str, name: str, replace: Callable[[Any], Any], why: str) -> PatchInfo:
    return PatchInfo(
        owner,
        name,
        replace,
        family="torch",
        why=why,
        link="https://github.com/pytorch/pytorch/issues/150022",
        versions="torch 2.13",
        test="test_variadic_keywords_fail_without_the_repair",
    )


#: both halves of the repair
VARIADIC_KEYWORDS = (
    _patch(
        "torch.export._trace",
        "_get_range_constraints",
        _ranges,
        "ranges for the entries of **kwargs",
    ),
    _patch(
        "torch._export.non_strict_utils",
        "make_sourced_prefixes",
        _sources,
        "guards on the entries of **kwargs",
    ),
)
