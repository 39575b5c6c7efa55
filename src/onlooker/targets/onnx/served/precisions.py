"""Models of ONNX with smaller numbers, by the tools of ONNX Runtime.

``fp16`` computes in half precision, and takes and gives what the model took and gave. ``bf16`` keeps the
weights in bfloat16, and makes float32 of them again, since ONNX Runtime computes nothing in bfloat16 on
the CPU. ``int8`` and ``int4`` keep the weights of matrix products as blocks of such numbers, each block with
a scale of its own; ONNX Runtime multiplies them by activations that it rounds to 8 bits, row by row, so
that no row depends on the others of its batch. ``int8-static`` rounds the weights and the activations of
products and convolutions, activations between the bounds that calls had.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....core.errors import ExportError
from ....patches.swap import swapped
from ....trace.graph import Graph
from ...integers.layers import float_weights_of, is_one_of
from ...names import names_of
from ...places import places_of
from ...stand_ins import computed
from ..operators.packed import is_plain_gemm, put_product
from ..weights import external_proto, external_weights, large_tensors, share

__all__ = ["with_precision"]

#: how many numbers of a column share a scale
BLOCK = 32
_BITS = {"int8": 8, "int4": 4}
#: products of ONNX Runtime round activations to 8 bits from this level on
_ACCURACY_LEVEL = 4
_RUNTIME = "com.microsoft"


def with_precision(
    model: Any,
    precision: str,
    graph: Graph,
    *,
    whole_caches: bool,
    calls: Sequence[Sequence[Any]] = (),
) -> Any:
    """The model of onnx_ir in another precision. With ``whole_caches`` caches stay float32. ``calls``
    are the inputs of those that activations are measured on.

    :raises ExportError: ``onnx-not-quantised``
    """
    if precision == "fp16":
        return _half(model, whole_caches)
    if precision == "bf16":
        return _with_bfloat16_weights(model)
    if precision == "int8-static":
        return _static(model, graph, calls)
    left = _left_in_float(model, graph)
    products = [node for node in _products_of_blocks(model) if node not in left]
    channels = _put_channels(model, [*products, *left])
    if not products and not channels and not left:
        raise _refused(graph, precision, "it has no product by a matrix of weights")
    return _blocks(model, _BITS[precision], products)


def _left_in_float(model: Any, graph: Graph) -> list[Any]:
    """The nodes that read weights of layers that stay in floats."""
    weights = float_weights_of(graph).values()
    if not weights:
        return []
    found: list[Any] = []
    for node in model.graph:
        at = _WEIGHTS.get(node.op_type) if node.domain == "" else None
        known = None if at is None else node.inputs[at].const_value
        if known is not None and is_one_of(known.numpy(), weights):
            node.name = node.name or f"onlooker_float_{len(found)}"
            found.append(node)
    return found


def _half(model: Any, whole_caches: bool) -> Any:
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass
    from onnxruntime.transformers import float16

    _sink_transposes(model)
    whole = [node.name for node in _turned_products(model)]
    kept = [*float16.DEFAULT_OP_BLOCK_LIST, *(["GroupQueryAttention"] if whole_caches else [])]
    share([model])
    arrays = external_weights([model], 0)
    numbers = {name: tensor.raw for name, tensor in large_tensors(model).items()}
    proto = external_proto(model, places_of(arrays))
    # the converter would read a weight to learn its shape, and there is no file of weights here
    described = swapped(float16, "make_value_info_from_tensor", _described)
    with warnings.catch_warnings(), described:
        warnings.simplefilter("ignore")  # numbers too small for half precision are told one by one
        converted = float16.convert_float_to_float16(
            proto,
            keep_io_types=True,
            disable_shape_infer=True,
            op_block_list=kept,
            node_block_list=whole,
        )
    _drop_repeated_nodes(converted)
    made = onnx_ir.serde.deserialize_model(converted)
    _give_half(made, numbers)
    TopologicalSortPass()(made)
    if whole_caches:
        _join_caches(made)
        RemoveUnusedNodesPass()(made)
    return made


def _described(tensor: Any) -> Any:
    """The name, the dtype and the shape of a tensor of protobuf."""
    import onnx

    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)


def _give_half(model: Any, numbers: Mapping[str, Any]) -> None:
    """Gives the weights of a converted model, which it has by name alone, their numbers again: rounded
    where the converter says so.
    """
    import numpy
    import onnx_ir
    from onnxruntime.transformers.float16 import convert_np_to_float16

    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if not isinstance(tensor, onnx_ir.ExternalTensor):
            continue
        known = numbers[name]
        if tensor.dtype.numpy() != known.dtype:
            known = computed(known, known.shape, numpy.float16, convert_np_to_float16)
        value.const_value = onnx_ir.Tensor(known, dtype=tensor.dtype, name=name)


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


def _with_bfloat16_weights(model: Any) -> Any:
    """Stores each weight of float32 with two axes or more in bfloat16, and casts it where it is read."""
    import onnx_ir

    for name, value in list(model.graph.initializers.items()):
        known = value.const_value
        if known is None or known.dtype != onnx_ir.DataType.FLOAT or len(known.shape) < 2:
            continue
        dtype = onnx_ir.DataType.BFLOAT16.numpy()
        numbers = computed(known.numpy(), known.shape.numpy(), dtype, partial(_cast, dtype))
        stored = onnx_ir.Value(
            name=f"{name}_bf16",
            type=onnx_ir.TensorType(onnx_ir.DataType.BFLOAT16),
            shape=value.shape,
            const_value=onnx_ir.Tensor(numbers, name=f"{name}_bf16"),
        )
        cast = onnx_ir.node("Cast", [stored], attributes={"to": onnx_ir.DataType.FLOAT.value})
        made = cast.outputs[0]
        made.name, made.dtype, made.shape = f"{name}_float", onnx_ir.DataType.FLOAT, value.shape
        value.replace_all_uses_with(made)
        del model.graph.initializers[name]
        model.graph.initializers[stored.name] = stored
        model.graph.insert_before(model.graph[0], cast)
    return model


#: the operators that read rounded numbers in ``int8-static``, where they have weights. Products of
#: activations stay: a softmax over fewer tokens than calls had lies beyond the bounds of these
_ROUNDED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _static(model: Any, graph: Graph, calls: Sequence[Sequence[Any]]) -> Any:
    """The model in which products and convolutions read integers of 8 bits.

    :raises ExportError: ``onnx-not-quantised``
    """
    import onnx_ir
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    products = [node for node in model.graph if node.op_type in _ROUNDED and node.domain == ""]
    left = _left_in_float(model, graph)
    plain = [node for node in products if node.inputs[1].const_value is None or node in left]
    if len(plain) == len(products) and not left:
        raise _refused(graph, "int8-static", "it has no product by weights and no convolution")
    for number, node in enumerate(plain):
        node.name = node.name or f"onlooker_plain_{number}"

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rest = iter(calls)

        def get_next(self) -> dict[str, Any] | None:
            inputs = next(self._rest, None)
            return None if inputs is None else _feeds(model, graph, inputs)

    with (
        tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder,
        _without_advice(),
    ):
        before, after = Path(folder, "float.onnx"), Path(folder, "static.onnx")
        onnx_ir.save(model, before)
        quantize_static(
            str(before),
            str(after),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_ROUNDED),
            nodes_to_exclude=[node.name for node in plain],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # what a product gives is rounded where another product reads it, and nowhere else: a sum
            # beside that product reads it as it is
            extra_options={
                "OpTypesToExcludeOutputQuantization": list(_ROUNDED),
                "DedicatedQDQPair": True,
            },
        )
        made = onnx_ir.load(after)
        onnx_ir.external_data.load_to_model(made)
    return made


def _feeds(model: Any, graph: Graph, inputs: Sequence[Any]) -> dict[str, Any]:
    """The arrays of a call, by the names of the inputs that the model has."""
    import torch

    known = {value.name for value in model.graph.inputs}
    pairs = zip(names_of(graph).inputs, inputs, strict=True)
    return {name: torch.as_tensor(value).numpy() for name, value in pairs if name in known}


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Without the lines that the quantiser logs to the root logger about preparing a model."""
    root = logging.getLogger()
    root.addFilter(_nothing)
    try:
        yield
    finally:
        root.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _is_matrix(value: Any) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == 2


def _products_of_blocks(model: Any) -> list[Any]:
    """The products by a matrix with whole blocks: those that have an operator for blocks."""
    found = []
    for node in model.graph.all_nodes():
        is_product = node.op_type == "MatMul" and node.domain == ""
        if is_product or is_plain_gemm(node, turned=_has_turned_matrix(node)):
            matrix = node.inputs[1].const_value
            inputs = 1 if _has_turned_matrix(node) else 0
            if matrix is not None and len(matrix.shape) == 2 and matrix.shape[inputs] % BLOCK == 0:
                found.append(node)
    return found


def _has_turned_matrix(node: Any) -> bool:
    """True for a Gemm whose matrix has the outputs first."""
    return "transB" in node.attributes and node.attributes["transB"].as_int() == 1


#: of each operator without blocks, the input with weights
_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


def _put_channels(model: Any, products: Sequence[Any]) -> int:
    """Stores the weights of all other products and of convolutions in 8 bits, with a scale for each
    output, from which DequantizeLinear makes them again; returns how many there are.
    """
    import numpy
    import onnx_ir

    axes: dict[Any, set[int]] = {}
    for node in model.graph:
        if node.op_type not in _WEIGHTS or node.domain != "" or node in products:
            continue
        value = node.inputs[_WEIGHTS[node.op_type]]
        known = value.const_value
        if known is not None and len(known.shape) > 1 and known.dtype == onnx_ir.DataType.FLOAT:
            axes.setdefault(value, set()).add(_axis_of_outputs(node))
    count = 0
    for value, found in axes.items():
        users = {use.node.op_type for use in value.uses()}
        if len(found) > 1 or not users <= set(_WEIGHTS) or not value.is_initializer():
            continue
        (axis,) = found
        matrix = value.const_value.numpy()
        outputs = (matrix.shape[axis],)
        integers = computed(matrix, matrix.shape, numpy.int8, partial(_channels, axis))
        scales = computed(matrix, outputs, numpy.float32, partial(_scales, axis))
        stored = onnx_ir.val(f"{value.name}_int8", const_value=onnx_ir.tensor(integers))
        scale = onnx_ir.val(f"{value.name}_scale", const_value=onnx_ir.tensor(scales))
        again = onnx_ir.node("DequantizeLinear", [stored, scale], attributes={"axis": axis})
        made = again.outputs[0]
        made.name, made.dtype = f"{value.name}_float", onnx_ir.DataType.FLOAT
        made.shape = value.shape
        value.replace_all_uses_with(made)
        del model.graph.initializers[value.name]
        for one in (stored, scale):
            model.graph.initializers[one.name] = one
        model.graph.insert_before(model.graph[0], again)
        count += 1
    return count


def _cast(dtype: Any, numbers: Any) -> Any:
    return numbers.astype(dtype)


def _scales(axis: int, matrix: Any) -> Any:
    """The scale of each output, whose greatest number becomes 127; of zeros it is 1."""
    import numpy

    others = tuple(dim for dim in range(matrix.ndim) if dim != axis)
    greatest = numpy.abs(matrix).max(axis=others)
    return numpy.where(greatest == 0, 1, greatest / 127).astype(numpy.float32)


def _channels(axis: int, matrix: Any) -> Any:
    """The matrix as integers, with a scale for each output."""
    import numpy

    shape = [-1 if dim == axis else 1 for dim in range(matrix.ndim)]
    return numpy.rint(matrix / _scales(axis, matrix).reshape(shape)).astype(numpy.int8)


def _axis_of_outputs(node: Any) -> int:
    """The axis of the weights that has the outputs."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if _has_turned_matrix(node) else 1
    return 1


def _refused(graph: Graph, precision: str, reason: str) -> ExportError:
    return ExportError(
        f"{graph.name} cannot have weights of {precision}: {reason}.",
        slug="onnx-not-quantised",
        hint='precision="fp16" takes any sizes.',
    )


def _blocks(model: Any, bits: int, products: Sequence[Any]) -> Any:
    """Puts MatMulNBits in the place of products: the operator, and the integers, of the tools of ONNX
    Runtime.
    """
    import onnx_ir

    for product in products:
        rows, matrix = product.inputs[:2]
        is_turned = _has_turned_matrix(product)
        integers, scales = _blocks_of(model, matrix, bits, is_turned)
        outputs, count = scales.const_value.shape.numpy()
        sizes = {"K": count * BLOCK, "N": outputs, "bits": bits, "block_size": BLOCK}
        made = onnx_ir.node(
            "MatMulNBits",
            [rows, integers, scales],
            attributes={**sizes, "accuracy_level": _ACCURACY_LEVEL},
            domain=_RUNTIME,
            name=f"{product.name}_Q{bits}" if product.name else None,
        )
        made.metadata_props.update(product.metadata_props)
        put_product(product, made)
        if not matrix.uses():
            model.graph.initializers.pop(matrix.name, None)
    model.opset_imports.setdefault(_RUNTIME, 1)
    return model


def _blocks_of(model: Any, matrix: Any, bits: int, is_turned: bool) -> tuple[Any, Any]:
    """The integers and the scales of a matrix, as weights of the model: once for all that read it."""
    import numpy
    import onnx_ir

    numbers = matrix.const_value.numpy()
    outputs, size = numbers.shape if is_turned else numbers.shape[::-1]
    count = size // BLOCK
    name = f"{matrix.name}_turned" if is_turned else matrix.name
    shapes = {
        f"{name}_Q{bits}": ((outputs, count, BLOCK * bits // 8), numpy.uint8, 0),
        f"{name}_scales": ((outputs, count), numbers.dtype, 1),
    }
    found = []
    for name, (shape, dtype, place) in shapes.items():
        if name not in model.graph.initializers:
            made = computed(numbers, shape, dtype, partial(_quantised, bits, place, is_turned))
            model.graph.initializers[name] = onnx_ir.val(name, const_value=onnx_ir.tensor(made))
        found.append(model.graph.initializers[name])
    return found[0], found[1]


def _quantised(bits: int, place: int, is_turned: bool, numbers: Any) -> Any:
    """The integers of a matrix in blocks, or their scales: the part at this place."""
    import numpy
    from onnxruntime.capi import _pybind_state

    numbers = numbers.T if is_turned else numbers
    size, outputs = numbers.shape
    count = size // BLOCK
    packed = numpy.zeros((outputs, count, BLOCK * bits // 8), numpy.uint8)
    zeros = numpy.zeros((outputs, -(-count * bits // 8)), numpy.uint8)
    quantise = getattr(_pybind_state, f"quantize_matmul_{bits}bits")
    is_bfloat = not numbers.dtype.isbuiltin
    given = numpy.ascontiguousarray(numbers.astype(numpy.float32) if is_bfloat else numbers)
    scales = numpy.zeros((outputs, count), given.dtype)
    quantise(packed, given, scales, zeros, BLOCK, outputs, size, True)
    return (packed, scales.astype(numbers.dtype))[place]
