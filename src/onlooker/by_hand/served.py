"""How any kind of exported model takes a call that was observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Signature
from ..core.errors import ArgumentKindError, UsageError
from ..observing.bind import as_args_kwargs
from ..pytrees.open import open_tree
from ..pytrees.registry import register_flattening_functions
from ..serve.dispatch import Dispatcher
from ..targets.onnx.feeds import match_inputs
from ..targets.onnx.model import OnnxModel, is_onnx
from ..trace.graph import Graph
from .completed import CompletedCall

__all__ = ["Served", "serve"]


@dataclass(frozen=True, slots=True)
class Served:
    """``feeds`` gives the inputs by name, fresh for every call, ``run`` the leaves of the
    result.
    """

    feeds: Callable[[CompletedCall], Mapping[str, Any]]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]


def serve(model: Any, signature: Signature) -> Served:
    """How ``model`` is run.

    An ONNX model, and a program of torch.export, get the completed call; a program of ours, one of
    its graphs, and any other callable get the call as it was.

    :raises ArgumentKindError: ``not-a-model``
    """
    if is_onnx(model):
        return _onnx(OnnxModel(model))
    if isinstance(model, torch.export.ExportedProgram):
        with (
            register_flattening_functions()
        ):  # the guards of the module are written for registered classes
            return _completed(model.module())
    if isinstance(model, torch.fx.GraphModule):
        return _completed(model)
    if isinstance(model, Graph):
        return _as_it_was(Dispatcher((model,), signature))
    if callable(model):
        return _as_it_was(lambda args, kwargs: model(*args, **kwargs))
    raise ArgumentKindError(
        f"A {type(model).__name__} is not a model that can be run.",
        slug="not-a-model",
        hint=(
            "Give a path, a ModelProto, a program of torch.onnx.export, torch.export or onlooker,"
            " or a function."
        ),
    )


def _onnx(model: OnnxModel) -> Served:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        masks = [
            n
            for n in model.names
            if n.endswith("mask") and not any(p.root == n for p in call.values)
        ]
        found = match_inputs([name for name in model.names if name not in masks], call.values)
        given = {name: call.values[path] for name, path in found.items()}
        return given | _masks_left_out(model, masks, given)

    return Served(feeds, model.run)


def _masks_left_out(
    model: OnnxModel, masks: Sequence[str], given: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Ones for the masks that no call passed: a caller leaves out a mask that hides nothing."""
    sizes = {
        dim: int(size)
        for name, value in given.items()
        for dim, size in zip(model.shapes[name], getattr(value, "shape", ()), strict=False)
        if isinstance(dim, str)
    }
    found = {name: model.ones(name, sizes) for name in masks}
    missing = [name for name, mask in found.items() if mask is None]
    if missing:
        raise UsageError(
            f"The model has inputs {', '.join(missing)} that no argument is called like, and their"
            " sizes do not follow from those of the others.",
            slug="inputs-do-not-match",
            hint="Watch a call that passes them.",
        )
    return {name: mask for name, mask in found.items() if mask is not None}


def _completed(module: Any) -> Served:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        args, kwargs = call.args_kwargs()
        return {"args": args, "kwargs": kwargs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        with register_flattening_functions(), torch.no_grad():
            return open_tree(module(*given["args"], **given["kwargs"])).leaves

    return Served(feeds, run)


def _as_it_was(function: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Served:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        args, kwargs = as_args_kwargs(call.union.signature, call.sample.arguments())
        return {"args": args, "kwargs": kwargs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        with torch.no_grad():
            return open_tree(function(given["args"], given["kwargs"])).leaves

    return Served(feeds, run)
