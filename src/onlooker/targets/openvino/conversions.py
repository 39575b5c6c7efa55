"""Operators of torch that OpenVINO has, and that its front end knows only taken apart.

Why: torch takes a product apart by asking which sizes are 1, and the answer holds for the example
alone. So a program that is right for any size would become a model that is right for some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["CONVERSIONS", "RESULTS", "extensions"]


# Recurrent layers (``torch.nn.LSTM``, ``GRU``, ``RNN``) as the sequences of OpenVINO, for any
# number of steps and any batch.
#
# The front end of OpenVINO takes a layer that torch took apart, which has as many steps as the
# example, and knows no operator for a whole one. An operator that is added to it gives one tensor, so
# that each result of a layer is an operator here.
_aten = torch.ops.aten


class OneResult:
    """One result of an operator with several as an operator of its own, whose name is its text."""

    def __init__(self, made: Callable[[Any], list[Any]], operator: Any, position: int) -> None:
        self.__name__ = f"{operator}.{position}"
        self.__module__ = __name__
        self._made, self._position = made, position

    def __call__(self, *_: Any) -> Any:
        """Stands in a graph for the front end alone.

        :raises NotImplementedError: always
        """
        raise NotImplementedError(self.__name__)

    def convert(self, context: Any) -> list[Any]:
        """The nodes of OpenVINO."""
        return [self._made(context)[self._position]]

    def __str__(self) -> str:
        return self.__name__


def results_of_operators() -> dict[Any, tuple[OneResult, ...]]:
    """Per recurrent operator, and that of inverses, its results, each as an operator."""
    made: dict[Any, tuple[Callable[[Any], list[Any]], int]] = {
        _aten.lstm.input: (_lstm, 3),
        _aten.gru.input: (_gru, 2),
        _aten.rnn_tanh.input: (partial(_rnn, "tanh"), 2),
        _aten.rnn_relu.input: (partial(_rnn, "relu"), 2),
        _aten.linalg_inv_ex.default: (_inverse, 2),
    }
    return {
        operator: tuple(OneResult(function, operator, at) for at in range(count))
        for operator, (function, count) in made.items()
    }


#: torch has the gates of an LSTM as input, forget, cell, output; OpenVINO begins with forget
_LSTM_GATES = (1, 0, 2, 3)
#: torch has the gates of a GRU as reset, update, new; OpenVINO as update, reset, new
_GRU_GATES = (1, 0, 2)
_SWAPPED = (1, 0, 2)


def _lstm(context: Any) -> list[Any]:
    """``aten::lstm.input``: the results of all steps, the last hidden states, the last cells."""
    hidden, cells = context.get_input(1).get_node().input_values()
    return _stacked(context, "lstm_sequence", (hidden, cells), _LSTM_GATES)


def _gru(context: Any) -> list[Any]:
    """``aten::gru.input``: the results of all steps, and the last hidden states."""
    states = (context.get_input(1),)
    return _stacked(context, "gru_sequence", states, _GRU_GATES, linear_before_reset=True)


def _rnn(activation: str, context: Any) -> list[Any]:
    """``aten::rnn_tanh.input`` and ``aten::rnn_relu.input``, as :func:`_gru`."""
    states = (context.get_input(1),)
    return _stacked(context, "rnn_sequence", states, (0,), activations=[activation])


def _stacked(
    context: Any, kind: str, states: Sequence[Any], gates: Sequence[int], **settings: Any
) -> list[Any]:
    """The layers, each on the results of the one before."""
    from openvino import opset13

    has_biases = context.get_values_from_const_input(3)
    n_layers = context.get_values_from_const_input(4)
    n_ways = 2 if context.get_values_from_const_input(7) else 1
    batch_first = context.get_values_from_const_input(8)
    params = context.get_input(2).get_node().input_values()
    n_params = 4 if has_biases else 2
    rows = context.get_input(0)
    if not batch_first:
        rows = opset13.transpose(rows, _SWAPPED).output(0)
    last: list[list[Any]] = [[] for _ in states]
    for number in range(n_layers):
        first = n_ways * number
        ways = [
            params[n_params * way : n_params * (way + 1)] for way in range(first, first + n_ways)
        ]
        begin = [_part(state, first, first + n_ways) for state in states]
        layer = getattr(opset13, kind)(
            rows,
            *(opset13.transpose(state, _SWAPPED) for state in begin),
            _steps_of(rows),
            *_weights(ways, gates, has_biases),
            int(states[0].get_partial_shape()[2].get_length()),
            "bidirectional" if n_ways == 2 else "forward",
            **settings,
        )
        # batch, ways, steps, hidden -> batch, steps, ways * hidden
        results = opset13.transpose(layer.output(0), [0, 2, 1, 3])
        rows = opset13.reshape(results, [0, 0, -1], True).output(0)
        for of_state, after in zip(last, layer.outputs()[1:], strict=True):
            of_state.append(opset13.transpose(after, _SWAPPED).output(0))
    if not batch_first:
        rows = opset13.transpose(rows, _SWAPPED).output(0)
    return [rows, *(opset13.concat(of_state, 0).output(0) for of_state in last)]


def _part(state: Any, first: int, end: int) -> Any:
    """The first states of one layer: (ways, batch, hidden)."""
    from openvino import opset13

    return opset13.slice(state, [first], [end], [1], [0])


def _steps_of(rows: Any) -> Any:
    """The number of steps, for each row of the batch; ``rows`` are (batch, steps, features)."""
    from openvino import opset13

    shape = opset13.shape_of(rows, output_type="i64")
    batch, steps = (opset13.gather(shape, [dim], opset13.constant(0)) for dim in (0, 1))
    return opset13.broadcast(steps, batch)


def _weights(ways: Sequence[Sequence[Any]], gates: Sequence[int], has_biases: bool) -> list[Any]:
    """For both ways together: the weights of the input, those of the state, the biases.

    A GRU has the bias of the state of its last gate apart, since that one is multiplied.
    """
    from openvino import opset13

    found = [[_ordered(way[position], gates) for way in ways] for position in (0, 1)]
    biases = []
    for way in ways:
        if not has_biases:
            kind = way[0].get_element_type().to_dtype()
            size = int(way[0].get_partial_shape()[0].get_length())
            into = back = opset13.constant([0.0] * size, dtype=kind).output(0)
        else:
            into, back = way[2:]
        biases.append(_bias(_ordered(into, gates), _ordered(back, gates), len(gates)))
    return [
        opset13.concat([opset13.unsqueeze(part, 0) for part in parts], 0)
        for parts in (*found, biases)
    ]


def _ordered(weight: Any, gates: Sequence[int]) -> Any:
    """The weight with its gates in this order."""
    from openvino import opset13

    if len(gates) == 1:
        return weight
    parts = opset13.split(weight, 0, len(gates)).outputs()
    return opset13.concat([parts[gate] for gate in gates], 0).output(0)


def _bias(into: Any, back: Any, n_gates: int) -> Any:
    from openvino import opset13

    if n_gates != len(_GRU_GATES):
        return opset13.add(into, back)
    own = opset13.split(into, 0, n_gates).outputs()
    of_state = opset13.split(back, 0, n_gates).outputs()
    # the last gate of a GRU multiplies the state before it adds: its two biases stay apart
    sums = [opset13.add(*pair) for pair in zip(own[:-1], of_state[:-1], strict=True)]
    return opset13.concat([*sums, own[-1], of_state[-1]], 0)


def _inverse(context: Any) -> list[Any]:
    """``aten::linalg_inv_ex``: the inverse, and a zero for each matrix that has one."""
    from openvino import opset14

    matrix = context.get_input(0)
    inverse = opset14.inverse(matrix, False)
    sums = opset14.reduce_sum(inverse, [-2, -1])
    return [inverse.output(0), opset14.convert(opset14.is_nan(sums), "i32").output(0)]


def _matmul(context: Any) -> list[Any]:
    from openvino import opset13

    product = opset13.matmul(context.get_input(0), context.get_input(1), False, False)
    return [product.output(0)]


def _einsum(context: Any) -> list[Any]:
    from openvino import opset13

    text = context.get_input(0).get_node().get_data().tobytes().decode()
    tensors = context.get_input(1).get_node().input_values()
    return [opset13.einsum(tensors, _with_result(text)).output(0)]


def _with_result(equation: str) -> str:
    """The equation with its right side: without one the result has the letters that stand once.

    >>> _with_result("ij, jk")
    'ij,jk->ik'
    """
    equation = equation.replace(" ", "")
    if "->" in equation:
        return equation
    letters = sorted(set(equation) - set(",."))
    dots = "..." if "..." in equation else ""
    return f"{equation}->{dots}{''.join(one for one in letters if equation.count(one) == 1)}"


def _scatter_reduce(context: Any) -> list[Any]:
    from openvino import opset13 as ops

    x, dim, places, values, name = (context.get_input(at) for at in range(5))
    kind = name.get_node().get_data().tobytes().decode()
    kind = {"amax": "max", "amin": "min"}.get(kind, kind)
    # an index is one of the rows of the values that it has
    shape = ops.shape_of(places)
    start = ops.broadcast(ops.constant(0), ops.shape_of(shape))
    values = ops.slice(values, start, shape, ops.broadcast(ops.constant(1), ops.shape_of(shape)))
    with_own = context.get_values_from_const_input(5)
    made = ops.scatter_elements_update(x, places, values, dim, kind, with_own)
    return list(made.outputs())


#: operator of torch -> the function that makes nodes of OpenVINO
CONVERSIONS: dict[Any, Callable[[Any], list[Any]]] = {
    torch.ops.aten.matmul.default: _matmul,
    torch.ops.aten.einsum.default: _einsum,
    torch.ops.aten.scatter_reduce.two: _scatter_reduce,
}


#: operator of torch -> each of its results as an operator that has a function here
RESULTS = results_of_operators()


def extensions() -> list[Any]:
    """The functions, for the front end."""
    from openvino.frontend.pytorch import ConversionExtension

    results = [result for of_one in RESULTS.values() for result in of_one]
    return [
        *(ConversionExtension(str(operator), made) for operator, made in CONVERSIONS.items()),
        *(ConversionExtension(str(result), result.convert) for result in results),
    ]
