"""Packages of AOTInductor: machine code, with the names and the shapes of nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.errors import UsageError
from ..pytrees.registry import register_flattening_functions
from ..torch_internals.trees import torch_pytree as pytree
from .exported import Exported, Port

__all__ = ["open_aoti"]


def open_aoti(path: Path) -> Exported:
    """A package that ``torch._inductor.aoti_compile_and_package`` wrote. It is run as it is.

    :raises UsageError: ``model-not-loaded``
    """
    from ..torch_internals.compiled import aoti_load_package

    try:
        with register_flattening_functions():
            model = aoti_load_package(str(path))
            in_spec = pytree.treespec_loads(model.loader.get_call_spec()[0])
    except Exception as error:
        raise UsageError(
            f"The package {path} cannot be loaded by AOTInductor: {str(error)[:300]}",
            slug="model-not-loaded",
            hint="Compile it again on this machine, with this version of torch.",
        ) from error
    inputs = tuple(map(Port, _names(in_spec)))

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        flat = [given[port.name] for port in inputs]
        with register_flattening_functions(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten(flat, in_spec)
            result = model(*args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    return Exported("aoti", inputs, (), run)


def _names(in_spec: Any) -> list[str]:
    """A name per leaf: that of its keyword where it is the only leaf there, else its number."""
    names: list[str] = []
    positional, named = in_spec.children()
    names += [str(number) for number in range(positional.num_leaves)]
    for key, child in zip(named.context, named.children(), strict=True):
        count = child.num_leaves
        names += [key] if count == 1 else [f"{key}.{number}" for number in range(count)]
    return names
