"""Recurrent layers (``torch.nn.LSTM``, ``GRU``, ``RNN``) as the operators of ONNX, for any number of
steps and any batch.

torch's converter writes a plain recurrent layer out step by step, for the steps of the example
alone. Its functions for LSTM and GRU mix up batch and steps unless the batch comes first, and know
no LSTM with projections. They may be used again when ``tests/targets/test_onnx_recurrent.py`` passes
without these.

Upstream:
https://github.com/microsoft/onnxscript/blob/v0.7.2/onnxscript/function_libs/torch_lib/ops/core.py,
``aten_lstm`` and ``aten_gru``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onnxscript import opset18 as op

__all__ = ["gru", "lstm", "rnn_relu", "rnn_tanh"]

_STEPS_FIRST = [1, 0, 2]
#: torch has the gates of an LSTM as input, forget, cell, output; ONNX as input, output, forget, cell
_LSTM_GATES = (0, 3, 1, 2)
#: torch has the gates of a GRU as reset, update, new; ONNX as update, reset, new
_GRU_GATES = (1, 0, 2)


def _operator(layer_of: Callable[..., tuple[Callable[..., Any], int]]) -> Callable[..., Any]:
    """A recurrent operator of torch: the results of all steps, and the last state of each kind.

    ``layer_of`` takes the first states, ``(layers * ways, batch, hidden)`` each, and gives the function
    of one layer, with the number of parameters that it has beside weights and biases.
    """

    def recurrent(
        input: Any,
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        layer, n_more = layer_of(*states)
        return _stacked(
            layer,
            input,
            states,
            params,
            n_params=(4 if has_biases else 2) + n_more,
            num_layers=num_layers,
            bidirectional=bidirectional,
            batch_first=batch_first,
        )

    return recurrent


def _plain(
    operator: Callable[..., Any], gates: Sequence[int], state: Any, **settings: Any
) -> Callable[..., Any]:
    """The function of one layer that ``operator`` of ONNX computes as a whole."""
    size = _size(state)

    def layer(rows: Any, ways: Sequence[Sequence[Any]], states: Sequence[Any]) -> Any:
        own = {
            name: values * len(ways) for name, values in settings.items() if name == "activations"
        }
        return operator(
            rows,
            *_weights(ways, size, gates),
            None,
            *states,
            direction=_direction(ways),
            hidden_size=size,
            **{**settings, **own},
        )

    return layer


def _lstm_layer(hidden: Any, cells: Any) -> tuple[Callable[..., Any], int]:
    if _size(hidden) != _size(cells):
        return partial(_projected_lstm_layer, hidden_size=_size(cells)), 1
    return _plain(op.LSTM, _LSTM_GATES, cells), 0


def _gru_layer(state: Any) -> tuple[Callable[..., Any], int]:
    return _plain(op.GRU, _GRU_GATES, state, linear_before_reset=1), 0


def _rnn_layer(activation: str, state: Any) -> tuple[Callable[..., Any], int]:
    return _plain(op.RNN, (0,), state, activations=[activation]), 0


#: ``aten::lstm.input``, ``aten::gru.input``, ``aten::rnn_tanh.input`` and ``aten::rnn_relu.input``
lstm = _operator(_lstm_layer)
gru = _operator(_gru_layer)
rnn_tanh = _operator(partial(_rnn_layer, "Tanh"))
rnn_relu = _operator(partial(_rnn_layer, "Relu"))


def _stacked(
    layer: Callable[..., Any],
    input: Any,
    states: Sequence[Any],
    params: Sequence[Any],
    *,
    n_params: int,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """The layers, each on the results of the one before.

    ``layer`` takes ``(steps, batch, features)``, the parameters of each way, and the first states
    ``(ways, batch, hidden)``; it gives ``(steps, ways, batch, hidden)`` and the last states.
    """
    n_ways = 2 if bidirectional else 1
    rows = op.Transpose(input, perm=_STEPS_FIRST) if batch_first else input
    last: list[Sequence[Any]] = []
    for number in range(num_layers):
        first, end = n_ways * number, n_ways * (number + 1)
        ways = [params[n_params * way : n_params * (way + 1)] for way in range(first, end)]
        begin = [op.Slice(state, [first], [end], [0]) for state in states]
        results, *after = layer(rows, ways, begin)
        # steps, ways, batch, hidden -> steps, batch, ways * hidden
        rows = op.Reshape(op.Transpose(results, perm=[0, 2, 1, 3]), [0, 0, -1])
        last.append(after)
    rows = op.Transpose(rows, perm=_STEPS_FIRST) if batch_first else rows
    return rows, *(_joined(of_layers) for of_layers in zip(*last, strict=True))


def _projected_lstm_layer(
    rows: Any, ways: Sequence[Sequence[Any]], states: Sequence[Any], *, hidden_size: int
) -> Any:
    """A layer with projections, ``h = W_hr (o * tanh(c))``, which the operator of ONNX lacks.

    The operator computes ``o * tanh(c)`` when the weight of its state is ``W_hh W_hr``. The first
    state would be multiplied by ``W_hh`` alone, so that it is given as features of the first step
    (of the last one, on the way back), which are 0 at all other steps, with ``W_hh`` as weight.
    """
    hidden, cells = states
    by_way = [op.Slice(hidden, [way], [way + 1], [0]) for way in range(len(ways))]
    others = op.Expand(
        op.CastLike(op.Constant(value_float=0.0), hidden),
        op.Concat(
            op.Sub(op.Shape(rows, start=0, end=1), op.Constant(value_ints=[1])),
            op.Shape(hidden, start=1, end=3),
            axis=0,
        ),
    )
    firsts = [op.Concat(by_way[0], others, axis=0)]
    firsts += [op.Concat(others, state, axis=0) for state in by_way[1:]]
    made = []
    for way, (into, back, *biases, out) in enumerate(ways):
        unused = op.Mul(back, op.CastLike(op.Constant(value_float=0.0), back))
        starts = [back if other == way else unused for other in range(len(ways))]
        made.append((op.Concat(into, *starts, axis=1), op.MatMul(back, out), *biases))
    results, _, last_cells = op.LSTM(
        op.Concat(rows, *firsts, axis=2),
        *_weights(made, hidden_size, _LSTM_GATES),
        None,
        None,
        cells,
        direction=_direction(ways),
        hidden_size=hidden_size,
    )
    # steps, ways, batch, hidden x ways, hidden, projected
    outs = _joined([op.Unsqueeze(op.Transpose(way[-1], perm=[1, 0]), [0]) for way in ways])
    results = op.MatMul(results, outs)
    last = op.Slice(results, [-1], [2**31 - 1], [0])
    at_end = [op.Slice(last, [0], [1], [1])]
    at_end += [op.Slice(op.Slice(results, [0], [1], [0]), [1], [2], [1])] if len(ways) > 1 else []
    return results, op.Squeeze(_joined(at_end, axis=1), [0]), last_cells


def _weights(
    ways: Sequence[Sequence[Any]], size: int, gates: Sequence[int] = (0,)
) -> tuple[Any, Any, Any]:
    """The weights of the input, those of the state, and the biases (None for a layer without): each
    with the ways as first axis and the gates in the order of ONNX.
    """
    into, back = ([_of_gates(way[number], size, gates) for way in ways] for number in (0, 1))
    if len(ways[0]) == 2:
        return _joined(into), _joined(back), None
    biases = [
        op.Concat(_of_gates(way[2], size, gates), _of_gates(way[3], size, gates), axis=1)
        for way in ways
    ]
    return _joined(into), _joined(back), _joined(biases)


def _of_gates(weight: Any, size: int, gates: Sequence[int]) -> Any:
    """A weight, whose rows are those of all gates, with the gates in another order and an axis in
    front.
    """
    if len(gates) > 1:
        parts = [op.Slice(weight, [size * gate], [size * (gate + 1)], [0]) for gate in gates]
        weight = op.Concat(*parts, axis=0)
    return op.Unsqueeze(weight, [0])


def _joined(values: Sequence[Any], axis: int = 0) -> Any:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)


def _direction(ways: Sequence[Any]) -> str:
    return "bidirectional" if len(ways) > 1 else "forward"


def _size(state: Any) -> int:
    """The features of a state, which a model has as a number."""
    return int(state.shape[2])
