"""Matrices of integers that a checkpoint has already, in OpenVINO.

OpenVINO multiplies by integers of 4 and 8 bits where a constant of these is made floats right before the
product, and its front end would fold the floats. So such a matrix is an input while a graph is converted,
and afterwards the operators that OpenVINO looks for. 64 outputs of 64 inputs in blocks of 32::

    u4[64, 2, 32] -> f32 - f32(u4[64, 2, 1]) -> * f32[64, 2, 1] -> reshape [64, 64] -> matmul

https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/weight-compression.html
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch.fx import GraphModule, Node

from ..integers.packed import MOST_OF_BITS, Packed

__all__ = ["dequantised", "take_packed_matrices"]


def take_packed_matrices(module: GraphModule) -> dict[Node, Packed]:
    """Makes inputs of the matrices of integers, and gives their numbers."""
    operators = torch.ops.quantized_decomposed
    if not hasattr(operators, "dequantize_per_channel_group"):
        return {}
    operator = operators.dequantize_per_channel_group.default
    found: dict[Node, Packed] = {}
    for node in list(module.graph.find_nodes(op="call_function", target=operator)):
        integers, scales, zeros = (_weight(module, one) for one in node.args[:3])
        if integers is None or scales is None:
            continue
        bits = next(bits for bits, limits in MOST_OF_BITS.items() if limits == node.args[3:5])
        first = next(iter(module.graph.nodes))
        with module.graph.inserting_before(first):
            made = module.graph.placeholder(f"onlooker_packed_{len(found)}")
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        found[made] = Packed(integers, scales, zeros, bits)
    return found


def _weight(module: GraphModule, node: Any) -> torch.Tensor | None:
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value.detach()  # type: ignore[no-any-return]


def dequantised(packed: Packed) -> Any:
    """The output of OpenVINO that has the floats of a matrix."""
    from openvino import opset13

    outputs, size = packed.integers.shape
    scales = packed.scales.numpy()
    shape = [outputs, scales.shape[1], packed.block]
    if scales.shape[1] == 1:
        shape, scales = [outputs, size], scales.reshape(outputs, 1)
    else:
        scales = scales[:, :, None]
    kind = "f16" if scales.dtype == numpy.float16 else "f32"
    signed = packed.zeros is None
    numbers = opset13.convert(_integers(packed.integers.numpy(), shape, packed.bits, signed), kind)
    if packed.zeros is not None:
        zeros = _integers(packed.zeros.numpy(), scales.shape, packed.bits, signed)
        numbers = opset13.subtract(numbers, opset13.convert(zeros, kind))
    made = opset13.multiply(numbers, opset13.constant(scales))
    if len(shape) > 2:
        made = opset13.reshape(made, opset13.constant([outputs, size]), False)
    return made.output(0)


def _integers(numbers: Any, shape: Any, bits: int, signed: bool) -> Any:
    """A constant of integers of 4 or 8 bits, those without a sign moved up by half of their range."""
    from openvino import Tensor, Type
    from openvino.op import Constant

    moved = numbers.astype(numpy.int16) + (0 if signed else 2 ** (bits - 1))
    flat = moved.astype(numpy.uint8).reshape(-1)
    if bits == 4:
        padded = numpy.pad(flat & 15, (0, flat.size % 2))
        flat = padded[0::2] | (padded[1::2] << 4)
    kinds = {(4, True): Type.i4, (4, False): Type.u4, (8, True): Type.i8, (8, False): Type.u8}
    kind = kinds[bits, signed]
    if bits == 8:
        flat = flat.view(numpy.int8) if signed else flat
        return Constant(numpy.ascontiguousarray(flat.reshape(shape)), shared_memory=False)
    return Constant(Tensor(numpy.ascontiguousarray(flat), list(shape), kind), shared_memory=False)
