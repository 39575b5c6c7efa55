"""The results of an exported model beside those that were observed: a row of numbers per call."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from ..core.call import Signature
from ..core.errors import ArgumentKindError, UsageError
from ..core.path import Path
from ..observing.bind import as_args_kwargs
from ..pytrees.comparisons.leaves import Difference, leaf_difference
from ..pytrees.descriptions.describe import string_type
from ..pytrees.open import open_tree
from ..pytrees.registry import register_flattening_functions
from ..serve.dispatch import Dispatcher
from ..targets.onnx.runtime.feeds import match_inputs
from ..targets.onnx.runtime.model import OnnxModel, is_onnx
from ..trace.graph import Graph
from .completed import CompletedCall

__all__ = ["Rules", "discrepancies", "judge"]

logger = logging.getLogger(__name__)


# How any kind of exported model takes a call that was observed.
@dataclass(frozen=True, slots=True)
class RunnableExport:
    """``feeds`` gives the inputs by name, fresh for every call, ``run`` the leaves of the
    result.
    """

    feeds: Callable[[CompletedCall], Mapping[str, Any]]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]


def serve(model: Any, signature: Signature) -> RunnableExport:
    """Returns a function that runs ``model`` on a call.

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


def _onnx(model: OnnxModel) -> RunnableExport:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        masks = [
            n
            for n in model.names
            if n.endswith("mask") and not any(p.root == n for p in call.values)
        ]
        found = match_inputs([name for name in model.names if name not in masks], call.values)
        given = {name: call.values[path] for name, path in found.items()}
        return given | _masks_left_out(model, masks, given)

    return RunnableExport(feeds, model.run)


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


def _completed(module: Any) -> RunnableExport:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        args, kwargs = call.args_kwargs()
        return {"args": args, "kwargs": kwargs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        with register_flattening_functions(), torch.no_grad():
            return open_tree(module(*given["args"], **given["kwargs"])).leaves

    return RunnableExport(feeds, run)


def _as_it_was(function: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> RunnableExport:
    def feeds(call: CompletedCall) -> Mapping[str, Any]:
        args, kwargs = as_args_kwargs(call.union.signature, call.sample.arguments())
        return {"args": args, "kwargs": kwargs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        with torch.no_grad():
            return open_tree(function(given["args"], given["kwargs"])).leaves

    return RunnableExport(feeds, run)


@dataclass(frozen=True, slots=True)
class Rules:
    """Says when two results count as the same, and which columns a row has."""

    atol: float = 1e-4
    rtol: float = 0.1
    hist: tuple[float, ...] = (0.1, 0.01)
    include_io: bool = True
    skip_none: bool = True


class Judged(NamedTuple):
    """The sum of the differences, or why there is none."""

    difference: Difference
    error: str | None = None


class _ExportRun(NamedTuple):
    """One run of the exported model; ``outputs`` is None when it failed."""

    n_inputs: int
    inputs: str
    outputs: Sequence[Any] | None
    seconds: float
    error: str | None


def discrepancies(
    model: Any, calls: Sequence[CompletedCall], rules: Rules, *, progress_bar: bool = False
) -> list[dict[str, Any]]:
    """A row per call; a call that fails is a row with its error.

    :raises UsageError: ``model-not-loaded``
    :raises ArgumentKindError: ``not-a-model``
    """
    served = serve(model, calls[0].union.signature)
    shown: Iterable[CompletedCall] = calls
    if progress_bar:
        shown = track(calls, description="comparing", console=Console(stderr=True))
    return [_row(index, call, served, rules) for index, call in enumerate(shown)]


def _row(index: int, call: CompletedCall, served: RunnableExport, rules: Rules) -> dict[str, Any]:
    run = _run(call, served, rules)
    judged = Judged(_nothing(rules), run.error)
    if run.outputs is not None:
        judged = judge(call.sample.outputs.items(), run.outputs, rules)
    found, failed = judged.difference, judged.error is not None
    largest = (math.inf, math.inf) if failed else (found.abs, found.rel)
    row = {
        "index": index,
        "SUCCESS": not failed and largest[0] <= rules.atol and largest[1] <= rules.rtol,
        "error": judged.error,
        "abs": largest[0],
        "rel": largest[1],
        "sum": found.sum,
        "n": found.n,
        "dnan": found.dnan,
        "dev": found.dev or 0,
        **dict(found.rep),
        "n_inputs": run.n_inputs,
        "n_none": len(call.missing),
        "n_empty": call.n_empty,
        "duration_torch": call.sample.call.seconds,
        "ort_duration": run.seconds,
        "atol": rules.atol,
        "rtol": rules.rtol,
    }
    if rules.include_io:
        row |= {
            "inputs": run.inputs,
            "outputs_torch": _shown(call.sample.outputs.leaves),
            "outputs_ort": "" if run.outputs is None else _shown(run.outputs),
        }
    return row


def _run(call: CompletedCall, served: RunnableExport, rules: Rules) -> _ExportRun:
    begin, n_inputs, inputs = time.perf_counter(), 0, ""
    try:
        feeds = served.feeds(call)
        n_inputs = _count(feeds)
        inputs = _shown(feeds) if rules.include_io else ""
        begin = time.perf_counter()
        outputs = served.run(feeds)
    except Exception as error:  # a call that fails is a row
        logger.debug("call %s fails", call.sample.call.index, exc_info=True)
        text = f"{type(error).__name__}: {error}"
        return _ExportRun(n_inputs, inputs, None, time.perf_counter() - begin, text)
    return _ExportRun(n_inputs, inputs, outputs, time.perf_counter() - begin, None)


def _count(feeds: Mapping[str, Any]) -> int:
    """The number of inputs, those that are given as ``args`` and ``kwargs`` counted one by one."""
    if set(feeds) == {"args", "kwargs"}:
        return len(feeds["args"]) + len(feeds["kwargs"])
    return len(feeds)


def _shown(value: Any) -> str:
    return string_type(value, with_shape=True, with_min_max=True)


def _nothing(rules: Rules) -> Difference:
    """The difference of nothing, with its counts."""
    return Difference(rep=tuple((f">{bound}", 0) for bound in rules.hist))


def judge(expected: Iterable[tuple[Path, Any]], got: Sequence[Any], rules: Rules) -> Judged:
    """All leaves of a result, beside the outputs of the exported model.

    Exporters drop the outputs that are None, and those that are no tensors: these are left out on
    both sides when the numbers differ otherwise.
    """
    leaves = list(expected)
    pairs = _aligned(leaves, list(got), rules)
    if pairs is None:
        count = f"{len(got)} outputs of the model, {len(leaves)} of the call"
        return Judged(_nothing(rules), f"not the same number of outputs: {count}")
    total, compared = _nothing(rules), 0
    for path, left, right in pairs:
        name = f"output{path.code()}"
        if left is None or right is None:
            if left is not right and not rules.skip_none:
                return Judged(
                    _nothing(rules),
                    f"missing output: {name} is {_brief(right)}, {_brief(left)} is expected",
                )
            continue
        problem = _kind_differs(left, right)
        if problem:
            text = f"not the same {problem}: {name} is {_brief(right)}, {_brief(left)} is expected"
            return Judged(_nothing(rules), text)
        total += leaf_difference(left, _like(right, left), rules.hist)
        compared += 1
    if not compared and any(left is not None for _, left, _ in pairs):
        return Judged(_nothing(rules), "missing output: the model gives none of the outputs")
    return Judged(total)


def _aligned(
    expected: list[tuple[Path, Any]], got: list[Any], rules: Rules
) -> list[tuple[Path, Any, Any]] | None:
    same_places = [leaf is None for _, leaf in expected] == [value is None for value in got]
    if same_places or (not rules.skip_none and len(expected) == len(got)):
        return [(path, leaf, value) for (path, leaf), value in zip(expected, got, strict=True)]
    if not rules.skip_none:
        return None
    present = [value for value in got if value is not None]
    values = [(path, leaf) for path, leaf in expected if leaf is not None]
    tensors = [(path, leaf) for path, leaf in expected if isinstance(leaf, torch.Tensor)]
    for left, right in ((values, present), (tensors, present), (expected, got)):
        if len(left) == len(right):
            return [(path, leaf, value) for (path, leaf), value in zip(left, right, strict=True)]
    return None


def _kind_differs(left: Any, right: Any) -> str:
    """Names the property, shape or type, in which two leaves cannot be compared; empty where they can."""
    if isinstance(left, torch.Tensor) != isinstance(right, torch.Tensor):
        one = next(x for x in (left, right) if isinstance(x, torch.Tensor))
        return "" if one.numel() == 1 else "shape"
    if not isinstance(left, torch.Tensor):
        return "" if type(left) is type(right) else "type"
    if left.shape != right.shape:
        return "shape"
    return "" if left.dtype == right.dtype else "type"


def _like(value: Any, other: Any) -> Any:
    """A tensor of one element as a scalar, where a number stands on the other side."""
    return (
        value.reshape(())
        if isinstance(value, torch.Tensor) and not isinstance(other, torch.Tensor)
        else value
    )


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
