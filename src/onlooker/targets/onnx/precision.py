"""Models of ONNX with smaller weights, by the tools of ONNX Runtime.

``fp16`` computes in half precision, and takes and gives what the model took and gave. ``int8`` and
``int4`` keep the weights of matrix products as blocks of such numbers, each block with a scale of
its own; ONNX Runtime multiplies them by activations that it rounds to 8 bits, row by row, so that no
row depends on the others of its batch.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from ...core.errors import ExportError
from ...trace.graph import Graph

__all__ = ["BLOCK", "PRECISIONS", "with_precision"]

PRECISIONS = ("fp16", "int8", "int4")
#: how many numbers of a column share a scale
BLOCK = 32
_BITS = {"int8": 8, "int4": 4}
#: products of ONNX Runtime round activations to 8 bits from this level on
_ACCURACY_LEVEL = 4


def with_precision(model: Any, precision: str, graph: Graph, *, whole_caches: bool) -> Any:
    """The model of onnx_ir in another precision. With ``whole_caches`` caches stay float32.

    :raises ExportError: ``onnx-not-quantised``
    """
    if precision == "fp16":
        return _half(model, whole_caches)
    _check_blocks(model, graph, precision)
    return _blocks(model, _BITS[precision])


def _half(model: Any, whole_caches: bool) -> Any:
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass
    from onnxruntime.transformers.float16 import (
        DEFAULT_OP_BLOCK_LIST,
        convert_float_to_float16,
    )

    _sink_transposes(model)
    whole = [node.name for node in _turned_products(model)]
    kept = [*DEFAULT_OP_BLOCK_LIST, *(["GroupQueryAttention"] if whole_caches else [])]
    proto = onnx_ir.serde.serialize_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers too small for half precision are told one by one
        converted = convert_float_to_float16(
            proto,
            keep_io_types=True,
            disable_shape_infer=True,
            op_block_list=kept,
            node_block_list=whole,
        )
    _drop_repeated_nodes(converted)
    made = onnx_ir.serde.deserialize_model(converted)
    TopologicalSortPass()(made)
    if whole_caches:
        _join_caches(made)
        RemoveUnusedNodesPass()(made)
    return made


def _sink_transposes(model: Any) -> None:
    """Moves a transpose of all axes but the last one behind the product by a matrix that reads it:
    each row is multiplied alike, wherever it stands.

    ONNX Runtime 1.31 fuses the two, and dies with signal 11 where a table of float16 comes before,
    as in an encoder that has its batch second (MatmulTransposeFusion).
    """
    import onnx_ir

    for product in [node for node in model.graph if node.op_type == "MatMul"]:
        before = product.inputs[0].producer()
        if before is None or before.op_type != "Transpose" or not _is_matrix(product.inputs[1]):
            continue
        order = list(before.attributes["perm"].as_ints()) if "perm" in before.attributes else []
        if not order or order[-1] != len(order) - 1:
            continue
        result = product.outputs[0]
        name, shape = result.name, result.shape
        product.replace_input_with(0, before.inputs[0])
        behind = onnx_ir.node("Transpose", [result], attributes={"perm": order})
        moved = behind.outputs[0]
        moved.dtype, moved.shape = result.dtype, shape
        result.replace_all_uses_with(moved, replace_graph_outputs=True)
        behind.replace_input_with(0, result)
        result.name, result.shape, moved.name = f"{name}_rows", None, name
        model.graph.insert_after(product, behind)


def _turned_products(model: Any) -> list[Any]:
    """The products of a transposed tensor and one of another rank that stay float32, with the
    transposes: those that ONNX Runtime 1.31 dies of.

    It has no product of float16 on the CPU, and puts a cast before one. Its MatmulTransposeFusion
    then moves the transpose behind the cast, finds that the ranks differ, and leaves nodes without
    edges (``upstream/onnxruntime_half_transpose.py``). A transpose that is float32 has no cast
    behind it.
    """
    found = []
    for product in [node for node in model.graph.all_nodes() if node.op_type == "MatMul"]:
        befores = [value.producer() for value in product.inputs]
        turned = [node for node in befores if node is not None and _moves_first_axis(node)]
        ranks = {None if value.shape is None else len(value.shape) for value in product.inputs}
        if turned and (len(ranks) > 1 or None in ranks):
            found += [product, *turned]
    return found


def _moves_first_axis(node: Any) -> bool:
    """True for a transpose whose result begins with the second axis."""
    if node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    order = list(node.attributes["perm"].as_ints())
    return len(order) > 2 and order[0] == 1


def _drop_repeated_nodes(proto: Any) -> None:
    """Leaves each node once: the converter casts a value again for every node that stays float32,
    under one name.
    """
    known: set[tuple[str, ...]] = set()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        if tuple(node.output) not in known:
            known.add(tuple(node.output))
            proto.graph.node.append(node)


def _join_caches(model: Any) -> None:
    """Gives a cache to GroupQueryAttention as it comes, and out as it goes: the converter rounds
    both to half precision in between.
    """
    for node in [node for node in model.graph if node.op_type == "GroupQueryAttention"]:
        for at in (3, 4):
            node.replace_input_with(at, _before_casts(node.inputs[at]))
        for value in node.outputs[1:3]:
            last = _behind_casts(value)
            if last is not value:
                name = last.name
                value.shape, value.dtype = last.shape, last.dtype
                last.replace_all_uses_with(value, replace_graph_outputs=True)
                last.name, value.name = f"{name}_before", name


def _before_casts(value: Any) -> Any:
    while (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value


def _behind_casts(value: Any) -> Any:
    while not value.is_graph_output() and [each.node.op_type for each in value.uses()] == ["Cast"]:
        value = value.uses()[0].node.outputs[0]
    return value


def _products(model: Any) -> list[Any]:
    """The products by a matrix of the model: those that are quantised."""
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "MatMul" and node.domain == "" and _is_matrix(node.inputs[1])
    ]


def _is_matrix(value: Any) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == 2


def _check_blocks(model: Any, graph: Graph, precision: str) -> None:
    """Passes where every matrix has whole blocks.

    :raises ExportError: ``onnx-not-quantised``
    """
    products = _products(model)
    if not products:
        raise _refused(graph, precision, "it has no product by a matrix of weights")
    sizes = {int(node.inputs[1].const_value.shape[0]): node for node in products}
    wrong = {size: node for size, node in sizes.items() if size % BLOCK}
    if wrong:
        size, node = next(iter(wrong.items()))
        raise _refused(
            graph,
            precision,
            f"{node.inputs[1].name} has {size} rows, and a block has {BLOCK} of them",
        )


def _refused(graph: Graph, precision: str, reason: str) -> ExportError:
    return ExportError(
        f"{graph.name} cannot have weights of {precision}: {reason}.",
        slug="onnx-not-quantised",
        hint='precision="fp16" takes any sizes.',
    )


def _blocks(model: Any, bits: int) -> Any:
    import onnx_ir

    with _root_logger_kept():
        from onnxruntime.quantization.matmul_nbits_quantizer import (
            DefaultWeightOnlyQuantConfig,
            MatMulNBitsQuantizer,
        )

        config = DefaultWeightOnlyQuantConfig(
            block_size=BLOCK, is_symmetric=True, accuracy_level=_ACCURACY_LEVEL, bits=bits
        )
        quantizer = MatMulNBitsQuantizer(onnx_ir.serde.serialize_model(model), algo_config=config)
        quantizer.process()
    return onnx_ir.serde.deserialize_model(quantizer.model.model)


@contextlib.contextmanager
def _root_logger_kept() -> Iterator[None]:
    """Without the log lines of the quantiser; and the root logger is as it was, which its module
    sets up, for the whole process, when it is imported (ONNX Runtime 1.31).
    """
    root = logging.getLogger()
    own = logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer")
    handlers, level, own_level = list(root.handlers), root.level, own.level
    own.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        own.setLevel(own_level)
