"""What may stand for a dimension in ``dynamic_shapes``: a name, a ``Dim``, a hint, a number or
nothing.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["dim_name", "is_dim", "is_dynamic", "is_hint", "use_dyn_not_str"]


def is_hint(dim: Any) -> bool:
    """True for ``Dim.DYNAMIC``, ``Dim.AUTO`` and ``Dim.STATIC``, with or without a range."""
    return isinstance(dim, type(torch.export.Dim.DYNAMIC))


def is_dynamic(dim: Any) -> bool:
    """True for what lets a dimension change.

    >>> [is_dynamic(dim) for dim in ("batch", torch.export.Dim.AUTO, torch.export.Dim.STATIC, 3, None)]
    [True, True, False, False, False]
    """
    if is_hint(dim):
        return bool(dim.type != torch.export.Dim.STATIC.type)
    return isinstance(dim, (str, torch.export.Dim))


def is_dim(dim: Any) -> bool:
    """True for anything that torch.export or torch.onnx take for a dimension."""
    return dim is None or is_hint(dim) or isinstance(dim, (str, int, torch.export.Dim))


def dim_name(dim: Any) -> str | None:
    """The name of a dimension; None for a hint, a number and None.

    >>> dim_name("batch"), dim_name(2 * torch.export.Dim("n")), dim_name(torch.export.Dim.AUTO)
    ('batch', '2*n', None)
    """
    if isinstance(dim, str):
        return dim
    return str(dim.__name__) if isinstance(dim, torch.export.Dim) else None


def use_dyn_not_str(dynamic_shapes: Any, default_value: Any = None) -> Any:
    """``dynamic_shapes`` with names replaced, since torch.export takes no names.

    :param dynamic_shapes: any nesting of lists, tuples, sets and dicts
    :param default_value: what stands for a name, ``Dim.DYNAMIC`` by default
    :return: the same nesting; what is no text is kept

    >>> use_dyn_not_str({"x": {0: "batch"}, "y": [None]})
    {'x': {0: DimHint(DYNAMIC)}, 'y': [None]}
    """
    if isinstance(dynamic_shapes, str):
        return torch.export.Dim.DYNAMIC if default_value is None else default_value
    if isinstance(dynamic_shapes, dict):
        return {key: use_dyn_not_str(child, default_value) for key, child in dynamic_shapes.items()}
    if isinstance(dynamic_shapes, tuple) and hasattr(dynamic_shapes, "_fields"):
        return type(dynamic_shapes)(
            *(use_dyn_not_str(child, default_value) for child in dynamic_shapes)
        )
    if isinstance(dynamic_shapes, (list, tuple, set)):
        return type(dynamic_shapes)(
            use_dyn_not_str(child, default_value) for child in dynamic_shapes
        )
    return dynamic_shapes
