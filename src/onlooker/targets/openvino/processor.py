"""Models of OpenVINO without what its plugin for processors computes wrongly.

In five cases the plugin gives other numbers, and no error. They are written otherwise here, in operators that
compute the same on every device.

A weight that is read in two layouts, as by ``x @ w`` and ``x @ w.T`` with a square ``w``, or by a convolution
and a transposed one: the plugin packs a weight once for its address and its shape, and the second reader gets
what was packed for the first. So every further layout reads ``w`` times a power of two, which is computed once,
when a model is compiled or made smaller, and the result is divided.

Attention whose rows are read together with one number a row, as by ``attention * gate[..., None]``: from 128
columns on, the fused kernel gives what was in memory. A reshape to the shape that it has ends the fusion.

Attention in a step of a loop, over more rows in each step, as by ``(q @ x[:, :t].mT).softmax(-1) @ x[:, :t]``: from
16 rows on, the fused kernel gives what was in memory. Such a reshape of what the softmax reads ends that fusion.

A quotient of ints that is rounded down, as by ``rows // 3`` or ``-(-length // 3)``: the plugin rounds negative
ones up. And the rest, as by ``ids % 100``: both are computed with floats of 24 bits, so that ``100_000_001 // 3``
is 33333334. What the quotient leaves is divided once more, and the sum of both is moved to where it belongs.

Upstream: ``upstream/openvino_shared_weight.py``, ``upstream/openvino_attention_rows.py``,
``upstream/openvino_steps_of_attention.py`` and ``upstream/openvino_floor_division.py``, of which no thread is known. A
pass may go when its script says "repaired".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .weights import bodies_of

__all__ = ["avoid_wrong_numbers"]

#: the operators that a weight is packed for, as their second input
_PACKING = (
    "Convolution",
    "ConvolutionBackpropData",
    "GroupConvolution",
    "GroupConvolutionBackpropData",
    "MatMul",
)
#: what the plugin looks through to the constant behind
_VIEWS = ("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
#: what may stand between a softmax and the product with the values
_BETWEEN = ("Convert", "Divide", "Multiply", "Select")
#: the fewest columns of attention that are computed wrongly
_COLUMNS = 128
#: so many bytes of an int are more than the digits of a float
_BYTES = 4
#: what may read the rows of attention without being fused with it
_UNFUSED = ("Reshape", "Result", "Transpose")
#: operators whose results are not negative where their first input, or every input, is not
_OF_FIRST = ("Convert", "Gather", "Reshape", "Squeeze", "Unsqueeze")
_OF_ALL = ("Add", "Divide", "Multiply")


def avoid_wrong_numbers(model: Any) -> None:
    """Changes the model where its numbers would be wrong on a processor."""
    _give_each_layout_a_weight(model)
    outer = set(model.get_ordered_ops())
    for node in list(_nodes_of(model)):
        if _is_attention(node):
            _end_fusion(node)
        elif node.get_type_name() == "Softmax" and node not in outer:
            _end_fusion_before(node)
        elif _is_rounded_down(node):
            _round_down(node)
        elif _is_rest(node):
            _take_the_rest(node)


def _nodes_of(model: Any) -> Iterator[Any]:
    """The nodes of a model, and of the models inside of it."""
    for node in model.get_ordered_ops():
        yield node
        for body in bodies_of(node):
            yield from _nodes_of(body)


def _give_each_layout_a_weight(model: Any) -> None:
    readers: dict[Any, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for node in _nodes_of(model):
        if node.get_type_name() in _PACKING:
            weight, views = _weight_of(node.input_value(1))
            if weight is not None and node.get_output_element_type(0).is_real():
                layout = (node.get_type_name(), node.get_attributes().get("transpose_b"), *views)
                readers[weight][layout].append(node.input(1))
    for by_layout in readers.values():
        for power, others in enumerate(by_layout.values()):
            for reader in others if power else ():
                _scale(reader, 2.0**power)


def _scale(reader: Any, factor: float) -> None:
    """Lets a product read its weight times a power of two, and divides the result: no digit changes."""
    from openvino import opset13

    def times(port: Any, number: float) -> Any:
        return opset13.multiply(port, opset13.convert_like(opset13.constant(number), port)).output(
            0
        )

    result = reader.get_node().output(0)
    users = list(result.get_target_inputs())
    reader.replace_source_output(times(reader.get_source_output(), factor))
    divided = times(result, 1 / factor)
    for user in users:
        user.replace_source_output(divided)


def _weight_of(port: Any) -> tuple[Any, list[Any]]:
    """The place of the constant behind a port, None for what is computed, and the views on the way."""
    views = []
    while (node := port.get_node()).get_type_name() in _VIEWS:
        views.append((node.get_type_name(), str(port.get_partial_shape())))
        port = node.input_value(0)
    if node.get_type_name() != "Constant":
        return None, views
    return node.data.__array_interface__["data"][0], views


def _is_attention(node: Any) -> bool:
    if node.get_type_name() == "ScaledDotProductAttention":
        return True
    return node.get_type_name() == "MatMul" and _is_after_softmax(node.input_value(0))


def _is_after_softmax(port: Any) -> bool:
    node = port.get_node()
    if node.get_type_name() in _BETWEEN:
        return any(map(_is_after_softmax, node.input_values()))
    return bool(node.get_type_name() == "Softmax")


def _end_fusion(attention: Any) -> None:
    rows = attention.output(0)
    columns = rows.get_partial_shape()[-1]
    if columns.is_static and columns.get_length() < _COLUMNS:
        return
    readers = [
        reader
        for reader in rows.get_target_inputs()
        if reader.get_node().get_type_name() not in _UNFUSED
    ]
    if not readers:
        return
    apart = _apart(rows)
    for reader in readers:
        reader.replace_source_output(apart)


def _end_fusion_before(softmax: Any) -> None:
    """Ends the fusion of the softmax of a step with the product that it reads, where their size is not fixed."""
    scores = softmax.input_value(0)
    if scores.get_partial_shape().is_dynamic:
        softmax.input(0).replace_source_output(_apart(scores))


def _apart(port: Any) -> Any:
    """A value in the shape that it has, which no operator is fused with."""
    from openvino import opset13

    return opset13.reshape(port, opset13.shape_of(port), False).output(0)


def _is_rounded_down(node: Any) -> bool:
    if node.get_type_name() != "Divide" or node.get_output_element_type(0).is_real():
        return False
    return bool(node.get_attributes()["m_pythondiv"]) and not all(
        map(_is_size, node.input_values())
    )


def _is_size(port: Any) -> bool:
    """True for an int that is made of sizes, and not negative."""
    node = port.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return bool((node.data >= 0).all())
    if kind in _OF_FIRST:
        return _is_size(node.input_value(0))
    return kind == "ShapeOf" or (kind in _OF_ALL and all(map(_is_size, node.input_values())))


def _is_rest(node: Any) -> bool:
    kind = node.get_output_element_type(0)
    is_rest = node.get_type_name() == "FloorMod" and not kind.is_real() and kind.size >= _BYTES
    return is_rest and not all(map(_is_size, node.input_values()))


def _round_down(quotient: Any) -> None:
    from openvino import opset13

    number, divisor = quotient.input_values()
    if quotient.get_output_element_type(0).size >= _BYTES:
        _put(quotient, _quotient(number, divisor))
        return
    rest = opset13.floor_mod(number, divisor)
    quotient.input(0).replace_source_output(opset13.subtract(number, rest).output(0))


def _take_the_rest(rest: Any) -> None:
    from openvino import opset13

    number, divisor = rest.input_values()
    product = opset13.multiply(_quotient(number, divisor), divisor)
    _put(rest, opset13.subtract(number, product))


def _put(node: Any, other: Any) -> None:
    """Lets all that read a node read another one."""
    other.set_friendly_name(node.get_friendly_name())
    for user in list(node.output(0).get_target_inputs()):
        user.replace_source_output(other.output(0))


def _quotient(number: Any, divisor: Any) -> Any:
    """The quotient that is rounded down. Of 100_000_001 and 3 it is 33333334 first, which leaves -1."""
    from openvino import opset13

    def left_by(found: Any) -> Any:
        return opset13.subtract(number, opset13.multiply(found, divisor))

    found = opset13.divide(number, divisor)
    found = opset13.add(found, opset13.divide(left_by(found), divisor))
    # now it is at most 1 off
    left = opset13.multiply(left_by(found), opset13.sign(divisor))
    zero = opset13.convert_like(opset13.constant(0), divisor)
    is_high = opset13.convert_like(opset13.less(left, zero), divisor)
    is_low = opset13.convert_like(opset13.greater_equal(left, opset13.abs(divisor)), divisor)
    return opset13.subtract(opset13.add(found, is_low), is_high)
