"""Converts an exported graph to a model of ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.export.graph_signature import TensorArgument

from ...core.errors import ExportError, UsageError
from ...patches.swap import swapped
from ...repairs.loops.recurrent_steps import steps_stay_sizes
from ...repairs.repeated_operators import conversion_repeats
from ...torch_internals.fake_tensors import mode_of
from ...torch_internals.graph_modules import (
    called,
    changed_graphs,
    copied_module,
    nodes_of,
    with_module,
)
from ...trace.graph import Graph
from ...trace.torch_run import without_guards
from ..exact_numbers import long_ints_compared, means_of_no_numbers
from ..integers.packed import with_packed_weights
from ..masked_rows import masked_rows_give_zeros
from ..refused import refused_graph
from ..taken_apart import derivatives_by_parts, slices_measured_anew, take_apart
from .operators.assertions import assertions_kept, name_assertions, with_result_to_check
from .operators.attention_forms import attention_as_converted
from .operators.complex_numbers import complex_numbers_as_pairs
from .operators.empty import empty_tensors_as_in_torch
from .operators.kernels import cast_for_kernels
from .operators.missing import stop_of
from .operators.packed import mark_packed_matrices, write_packed_matrices
from .operators.table import functions_read_once, translations

__all__ = ["check_opset", "convert_graph", "opset_of", "shapes_of_the_trace_forgotten"]


# The shapes of results in a converted model: forgotten where the model is simplified, and written as
# the trace has them for those who look for patterns.
@contextlib.contextmanager
def shapes_of_the_trace_forgotten(model: Any) -> Iterator[None]:
    """Inside the block no result of the model has a shape; on exit its outputs have theirs again.

    The shapes are those of the example. ``x[:, :8]`` of five columns has five, which the converter
    writes down as the size of ``x``; where a graph serves longer rows too, what simplifies the model
    by these shapes, as ONNX Runtime does when it loads it, would drop the cut. Shapes that hold for
    all sizes are inferred again.
    """
    outputs = [(value, value.shape) for value in model.graph.outputs]
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    try:
        yield
    finally:
        for value, shape in outputs:
            value.shape = shape


@contextlib.contextmanager
def splits_of_sizes_kept() -> Iterator[None]:
    """Inside the block the optimizer of onnxscript leaves a tensor that is split by a size as it is.

    ``x.chunk(2)`` along an axis that changes splits by a number that is computed. The optimizer reads
    the number as a constant, and ends with "'NoneType' object has no attribute 'ndim'". Upstream:
    https://github.com/microsoft/onnxscript/blob/main/onnxscript/optimizer/_constant_folding.py
    (``split_to_sequence``), and ``upstream/onnx_split_by_a_size.py``.
    """
    from onnxscript.optimizer import _constant_folding as folding

    def looked_up(self: Any, domain: str, name: str, version: int) -> list[Any]:
        found = before(self, domain, name, version)
        return [_of_constants(one) for one in found] if name == "SplitToSequence" else found

    with swapped(folding.PartialEvaluatorRegistry, "lookup_evaluators", looked_up) as before:
        yield


@contextlib.contextmanager
def small_numbers_kept() -> Iterator[None]:
    """Inside the block the optimizer of onnxscript takes 0 for 0 and 1 for 1 alone.

    It leaves out ``x + 0`` and ``x * 1``, and asks for the numbers with a tolerance: ``x + 1e-8``, which keeps a
    root from zero, is left out too. Upstream:
    https://github.com/microsoft/onnxscript/blob/main/onnxscript/rewriter/_pattern_ir.py (``Constant``), and
    ``upstream/onnx_small_number_added.py``.
    """
    from onnxscript.rewriter import _matcher as matcher

    def is_close(value: float, expected: float, **tolerances: float) -> bool:
        if expected in (0, 1):
            return value == expected
        return math.isclose(value, expected, **tolerances)

    with swapped(matcher, "math", SimpleNamespace(isclose=is_close)):
        yield


def _of_constants(unfold: Callable[..., Any]) -> Callable[..., Any]:
    """The function that unfolds a split, for splits by a constant or by a list of lengths alone."""

    def unfolded(node: Any, *others: Any) -> Any:
        length: Any = node.inputs[1] if len(node.inputs) > 1 else None
        is_known = length is None or length.const_value is not None
        is_list = length is not None and length.shape is not None and len(length.shape) > 0
        return unfold(node, *others) if is_known or is_list else None

    return unfolded


def write_traced_shapes(model: Any, program: torch.export.ExportedProgram) -> None:
    """Gives results that have the name of an operator of ``program`` the shape that they have there.

    ``program`` is the one that the converter made, whose operators are those of ONNX by name. A size
    that changes is an expression in the names of the trace. Sizes that hold for the example only may
    be among them: what is made of a model with these shapes has to be tried.
    """
    import onnx_ir

    shapes = _traced_shapes(program)
    for node in model.graph:
        for value in node.outputs:
            traced = shapes.get(value.name)
            known = value.shape
            if traced is not None and (known is None or len(known) == len(traced)):
                value.shape = onnx_ir.Shape(
                    [size if isinstance(size, int) else str(size) for size in traced]
                )


def _traced_shapes(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """The shapes of the tensors of a program by the names of their nodes."""
    return {
        node.name: node.meta["val"].shape
        for node in nodes_of(program)
        if isinstance(node.meta.get("val"), torch.Tensor)
    }


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOWEST = 18  # the functions of torch's converter are written for it


def check_opset(opset: Any) -> None:
    """Passes for None and for an opset that torch converts to and onnx knows.

    :raises UsageError: ``bad-opset``
    """
    import onnx

    highest = onnx.defs.onnx_opset_version()
    if opset is None or (type(opset) is int and LOWEST <= opset <= highest):
        return
    raise UsageError(
        f"opset={opset!r} is not supported.",
        slug="bad-opset",
        hint=(
            f"Give a number from {LOWEST} to {highest}, or nothing for the one that torch chooses."
        ),
    )


def opset_of(model: Any) -> int:
    """The opset of the plain operators of a model."""
    return int(model.opset_imports.get("", 0))


def convert_graph(
    graph: Graph, opset: int | None, *, shapes: bool = False
) -> torch.onnx.ONNXProgram:
    """The model of a graph of torch, with the names of its inputs and outputs.

    With ``shapes`` its results have the shapes of the trace, for those who look for patterns.

    :raises ExportError: ``onnx-refused`` with the message of the converter
    """
    from .operators.doubles import floats_are_doubles

    # An output that is an input, or stands there twice, has one value and so one name in the
    # converter: named there, it would rename the input. The names of outputs are given afterwards.
    try:
        program = with_packed_weights(graph.artifact)
        if program is not graph.artifact:
            mark_packed_matrices(program)
        program = with_result_to_check(_with_own_results(take_apart(program)))
        with (
            _quiet(),
            torch.no_grad(),
            without_guards(program),
            changed_graphs(
                program,
                slices_measured_anew,
                derivatives_by_parts,
                attention_as_converted,
                masked_rows_give_zeros,
                long_ints_compared,
                means_of_no_numbers,
                complex_numbers_as_pairs,
            ),
            steps_stay_sizes(program),
            assertions_kept() as assertions,
            _no_sizes_left(program),
            conversion_repeats(program),  # torch decomposes the operators of each block anew
            functions_read_once(),
            floats_are_doubles(),
        ):
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(graph.labels),
                opset_version=opset,
                custom_translation_table=translations(),
                verbose=False,
                optimize=False,
            )
            if converted is not None:
                with (
                    shapes_of_the_trace_forgotten(converted.model),
                    splits_of_sizes_kept(),
                    small_numbers_kept(),
                ):
                    converted.optimize()
                empty_tensors_as_in_torch(converted.model)
                cast_for_kernels(converted.model)
                write_packed_matrices(converted.model)
                name_assertions(converted.model, assertions, graph.decided)
                if shapes and converted.exported_program is not None:
                    write_traced_shapes(converted.model, converted.exported_program)
    except Exception as error:
        raise _stopped(graph, error) from None
    if converted is None or (opset is not None and opset_of(converted.model) != opset):
        got = "nothing" if converted is None else f"opset {opset_of(converted.model)}"
        raise _refused(graph, f"opset {opset} was asked for, and the converter gave {got}")
    return converted


def _with_own_results(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with a tensor for each result that is one number at all of its sizes, and with a copy of each result
    in half precision.

    torch's converter traces the program anew, and wants a value of the graph for a number. It computes ``abs`` or
    ``sum`` of halves in float32, casts back what other operators read, and gives the float32 as the result: see
    ``upstream/onnx_half_sum.py``.
    """
    specs = program.graph_signature.output_specs
    results = program.graph.output_node().args[0]
    places = [
        place for place, one in enumerate(results) if _number(one) is not None or _is_half(one)
    ]
    if not places:
        return program
    module = copied_module(program)
    output = module.graph.output_node()
    given: Any = output.args[0]
    results, found = list(given), list(specs)
    for place in places:
        number = _number(results[place])
        with module.graph.inserting_before(output):
            if number is None:
                made = called(module.graph, torch.ops.aten.clone.default, results[place])
            else:
                kind = {"dtype": torch.float64 if type(number) is float else torch.int64}
                made = called(module.graph, torch.ops.aten.full.default, [], number, **kind)
        results[place] = made
        found[place] = replace(specs[place], arg=TensorArgument(name=made.name))
    output.args = (tuple(results),)
    return with_module(program, module, outputs=found)


def _is_half(result: Any) -> bool:
    """True for a tensor in half precision that an operator gives."""
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    is_computed = isinstance(result, torch.fx.Node) and result.op == "call_function"
    return is_computed and getattr(value, "dtype", None) in (torch.float16, torch.bfloat16)


def _number(result: Any) -> int | float | None:
    """The number that a result is at all sizes; None for another one."""
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else result
    if isinstance(value, torch.SymInt):
        size = value.node.expr  # what a trace knows beside it assumes sizes of 2 and more
        return int(size) if size.is_number else None
    return value if type(value) in (bool, int, float) else None


def _reason(error: BaseException) -> str:
    """The message of the converter, without the advice and the colours around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:4])[:500]}"


def _stopped(graph: Graph, error: BaseException) -> ExportError:
    """The error of the converter, with the operators that it has no function for or stopped at,
    and their lines.
    """
    stop = stop_of(error)
    missing = [f"torch's converter has no function for {stop.spelled()}."] if stop.missing else []
    if stop.operator in stop.missing:
        return _refused(graph, missing[0], error)
    line = f", at {stop.place}" if stop.place else ""
    where = [f"({stop.operator}{line})"] if stop.operator else []
    return _refused(graph, " ".join([_reason(error), *where, *missing]), error)


def _refused(graph: Graph, reason: str, cause: BaseException | None = None) -> ExportError:
    error = ExportError(f"cannot be converted to ONNX: {reason}", slug="onnx-refused")
    return refused_graph(graph, error, cause)


@contextlib.contextmanager
def _no_sizes_left(program: torch.export.ExportedProgram) -> Iterator[None]:
    """On exit no size that was read from a tensor waits for a place in a graph.

    The converter traces a program anew and leaves some: the next conversion of the program would
    find them, and stop.
    """
    try:
        yield
    finally:
        mode = mode_of(program.graph.nodes)
        if mode is not None and mode.shape_env is not None:
            mode.shape_env.pending_fresh_unbacked_symbols.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress lines that the converter prints, and its log lines about absent
    packages and attributes.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
