"""Products by integers that a checkpoint has already, in ONNX.

torch's converter has no function for matrices of integers with scales, and would fold one that is small
into floats. So such a matrix is an operator of ours while a graph is converted, and afterwards one of two
forms, whichever the sizes allow. A matrix of 64 outputs and 64 inputs in blocks of 32 becomes::

    MatMulNBits(x, uint8[64, 2, 16], float[128], uint8[64])        4 or 8 bits, in blocks
    MatMul(x, Transpose(DequantizeLinear(int8[64, 64], float[64])))   8 bits, a scale for each output

MatMulNBits is an operator of ONNX Runtime. It multiplies in float32 here: its products are those of the
checkpoint, and no activation is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ....torch_internals.operators import know_quantised_operators

__all__ = ["is_plain_gemm", "mark_packed_matrices", "put_product", "write_packed_matrices"]

_DOMAIN, _NAME = "onlooker", "PackedMatrix"
_RUNTIME = "com.microsoft"
#: the sizes that blocks of MatMulNBits may have
_BLOCKS = (256, 128, 64, 32, 16)
#: products of ONNX Runtime multiply in float32 at this level
_IN_FLOAT32 = 1


def mark_packed_matrices(program: torch.export.ExportedProgram) -> None:
    """Lets the converter take matrices of integers for an operator of ONNX, which is ours."""

    know_quantised_operators()
    operator = torch.ops.quantized_decomposed.dequantize_per_channel_group.default
    graph = program.graph_module.graph
    for node in list(graph.find_nodes(op="call_function", target=operator)):
        integers, scales, zeros, low, _, _, block, _ = node.args
        if any(one is not None and one.op != "placeholder" for one in (integers, scales, zeros)):
            continue
        value = node.meta["val"]
        names, numbers = ["bits", "block"], [4 if low == -8 else 8, block]
        with graph.inserting_before(node):
            marked = graph.call_function(
                torch.ops.onnx_symbolic._symbolic.default,
                ([integers, scales, zeros], _NAME, _number_of(value.dtype)),
                {
                    "shape": list(value.shape),
                    "attr_keys": names,
                    "attr_types": ["i", "i"],
                    "attr_pos": [(0, 1), (1, 2)],
                    "attr_ints": numbers,
                    "attr_floats": [],
                    "attr_strs": [],
                    "metadata_props_keys": [],
                    "metadata_props_values": [],
                    "domain": _DOMAIN,
                },
            )
        marked.meta = dict(node.meta)
        node.replace_all_uses_with(marked)
        graph.erase_node(node)
    program.graph_module.recompile()


def _number_of(dtype: torch.dtype) -> int:
    from onnx_ir.tensor_adapters import from_torch_dtype

    return int(from_torch_dtype(dtype))


def write_packed_matrices(model: Any) -> None:
    """Writes the matrices of integers of a converted model in operators that runtimes know."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    is_written = False
    for node in [one for one in model.graph.all_nodes() if one.domain == _DOMAIN]:
        if node.op_type == _NAME:
            _write(model, node)
            is_written = True
    if is_written:
        RemoveUnusedNodesPass()(model)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The numbers of a matrix: ``integers`` and ``zeros`` as int8."""

    name: str
    integers: Any
    scales: Any
    zeros: Any
    bits: int
    block: int

    @property
    def fitting_block(self) -> int:
        """The size of the blocks that MatMulNBits takes, each a part of a block here; 0 where there is
        none, and for 8 bits with one scale for each output, which DequantizeLinear says as well.
        """
        is_row = self.block == self.integers.shape[1]
        if is_row and self.bits == 8:
            return 0
        divisors = (size for size in _BLOCKS if self.block % size == 0)
        return next(divisors, _BLOCKS[0] if is_row else 0)

    def in_blocks(self) -> tuple[Any, Any, Any]:
        """The integers ``(outputs, blocks, bytes)`` as MatMulNBits has them, and the scales and the zeros
        of all blocks.
        """
        block = self.fitting_block
        count = -(-self.block // block)
        scales, zeros = (numpy.repeat(each, count, axis=1) for each in (self.scales, self.zeros))
        outputs, size = self.integers.shape
        padded = numpy.pad(self.integers, ((0, 0), (0, -size % block)))
        return self._bytes(padded.reshape(outputs, -1, block)), scales, self._bytes(zeros)

    def _bytes(self, numbers: Any) -> Any:
        """Integers without a sign, two of 4 bits in a byte."""
        half = 2 ** (self.bits - 1)
        unsigned = (numbers.astype(numpy.int16) + half).astype(numpy.uint8)
        if self.bits == 8:
            return unsigned
        last = [(0, 0)] * (unsigned.ndim - 1)
        unsigned = numpy.pad(unsigned, (*last, (0, unsigned.shape[-1] % 2)))
        return unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)


def _write(model: Any, node: Any) -> None:
    matrix = _matrix_of(node)
    value = node.outputs[0]
    if matrix.fitting_block:
        for product in list(_products_of(value)):
            _write_product(model, product, matrix)
    for user in [use.node for use in value.uses()]:
        if not any(one.uses() or one.is_graph_output() for one in user.outputs):
            user.graph.remove(user, safe=True)
    if value.uses() or value.is_graph_output():
        value.replace_all_uses_with(_dequantised(node, matrix), replace_graph_outputs=True)
    node.graph.remove(node, safe=True)


def _matrix_of(node: Any) -> _Matrix:
    integers, scales = (value.const_value.numpy() for value in node.inputs[:2])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zeros = numpy.zeros(scales.shape, numpy.int8)
    if given is not None:
        zeros = given.const_value.numpy().astype(numpy.int8)
    bits, block = (node.attributes[name].as_int() for name in ("bits", "block"))
    name = node.inputs[0].name.removesuffix("_integers")
    return _Matrix(name, integers, scales, zeros, bits, block)


def _products_of(value: Any) -> Iterator[Any]:
    """The products of a tensor by the transposed matrix, each with what it adds."""
    for use in list(value.uses()):
        node, at = use.node, use.idx
        if at == 1 and is_plain_gemm(node, turned=True):
            yield node
        is_turned = node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == [
            1,
            0,
        ]
        if not is_turned or node.outputs[0].is_graph_output():
            continue
        for behind in list(node.outputs[0].uses()):
            is_product = behind.node.op_type == "MatMul" and behind.node.domain == ""
            if behind.idx == 1 and (is_product or is_plain_gemm(behind.node, turned=False)):
                yield behind.node


def is_plain_gemm(node: Any, *, turned: bool) -> bool:
    """True for a Gemm that is ``x @ matrix + bias``, with a matrix that is ``turned``."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    return node.op_type == "Gemm" and {**plain, **given} == {**plain, "transB": int(turned)}


def _write_product(model: Any, product: Any, matrix: _Matrix) -> None:
    """Puts MatMulNBits in the place of a product, and the sum behind it."""
    import onnx_ir

    integers, scales, zeros = matrix.in_blocks()
    stored = {"blocks": integers, "block_scales": scales.reshape(-1)}
    if matrix.zeros.any():
        stored["block_zeros"] = zeros.reshape(-1)
    inputs = [product.inputs[0], *(_stored(model, matrix, *one) for one in stored.items())]
    outputs, size = matrix.integers.shape
    sizes = {"K": size, "N": outputs, "bits": matrix.bits, "block_size": matrix.fitting_block}
    level = {"accuracy_level": _IN_FLOAT32} if scales.dtype == numpy.float32 else {}
    made = onnx_ir.node(
        "MatMulNBits", inputs, attributes={**sizes, **level}, domain=_RUNTIME, name=product.name
    )
    made.metadata_props.update(product.metadata_props)
    model.opset_imports.setdefault(_RUNTIME, 1)
    put_product(product, made)


def put_product(product: Any, made: Any) -> None:
    """Puts a product by integers in the place of MatMul or Gemm, and behind it the sum of a Gemm."""
    import onnx_ir

    nodes = [made]
    bias = product.inputs[2] if len(product.inputs) > 2 else None
    if bias is not None:
        nodes.append(onnx_ir.node("Add", [made.outputs[0], bias]))
    old, result = product.outputs[0], nodes[-1].outputs[0]
    product.graph.insert_before(product, nodes)
    if bias is not None:
        made.outputs[0].dtype = old.dtype
    result.dtype, result.shape, name = old.dtype, old.shape, old.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    product.graph.remove(product, safe=True)
    result.name = name


def _stored(model: Any, matrix: _Matrix, what: str, numbers: Any) -> Any:
    """A weight of the model with these numbers; one for all products that read it."""
    import onnx_ir

    name = f"{matrix.name}_{what}"
    if name not in model.graph.initializers:
        value = onnx_ir.val(name, const_value=onnx_ir.tensor(numbers, name=name))
        model.graph.initializers[name] = value
    return model.graph.initializers[name]


def _dequantised(node: Any, matrix: _Matrix) -> Any:
    """The matrix in floats, made of its integers when the model runs."""
    import onnx_ir

    model = node.graph
    outputs, size = matrix.integers.shape
    rows = numpy.ascontiguousarray(matrix.integers.reshape(-1, matrix.block))
    stored = {"rows": rows, "row_scales": matrix.scales.reshape(-1)}
    if matrix.zeros.any():
        stored["row_zeros"] = matrix.zeros.reshape(-1)
    inputs = []
    for what, numbers in stored.items():
        name = f"{matrix.name}_{what}"
        value = onnx_ir.val(name, const_value=onnx_ir.tensor(numbers, name=name))
        model.initializers[name] = value
        inputs.append(value)
    made = onnx_ir.node("DequantizeLinear", inputs, attributes={"axis": 0})
    nodes, old = [made], node.outputs[0]
    if len(rows) != outputs:
        shape = onnx_ir.val(
            f"{matrix.name}_shape",
            const_value=onnx_ir.tensor(numpy.array([outputs, size], numpy.int64)),
        )
        model.initializers[shape.name] = shape
        nodes.append(onnx_ir.node("Reshape", [made.outputs[0], shape]))
    for one in nodes:
        one.outputs[0].dtype = old.dtype
    nodes[-1].outputs[0].shape = onnx_ir.Shape([outputs, size])
    model.insert_before(node, nodes)
    return nodes[-1].outputs[0]
