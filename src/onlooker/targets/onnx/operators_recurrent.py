"""Plain recurrent layers (``torch.nn.RNN``) as the operator RNN of ONNX, for any number of steps.

torch's converter has functions for LSTM and GRU, and writes a plain recurrent layer out step by
step, for the number of steps of the example alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxscript import opset18 as op

__all__ = ["rnn_relu", "rnn_tanh"]

_STEPS_FIRST = [1, 0, 2]


def _layers(activation: str) -> Callable[..., Any]:
    def translated(
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
        n_ways = 2 if bidirectional else 1
        n_params = 4 if has_biases else 2
        rows = op.Transpose(input, perm=_STEPS_FIRST) if batch_first else input
        last = []
        for layer in range(num_layers):
            ways = [
                params[n_params * way : n_params * (way + 1)]
                for way in range(n_ways * layer, n_ways * (layer + 1))
            ]
            biases = op.Concat(*map(_bias, ways), axis=0) if has_biases else None
            results, state = op.RNN(
                rows,
                op.Concat(*(op.Unsqueeze(way[0], [0]) for way in ways), axis=0),
                op.Concat(*(op.Unsqueeze(way[1], [0]) for way in ways), axis=0),
                biases,
                None,
                op.Slice(hx, [n_ways * layer], [n_ways * (layer + 1)], [0]),
                activations=[activation] * n_ways,
                direction="bidirectional" if bidirectional else "forward",
                hidden_size=hx.shape[2],
            )
            # steps, ways, batch, hidden -> steps, batch, ways * hidden
            rows = op.Reshape(op.Transpose(results, perm=[0, 2, 1, 3]), [0, 0, -1])
            last.append(state)
        rows = op.Transpose(rows, perm=_STEPS_FIRST) if batch_first else rows
        return rows, op.Concat(*last, axis=0)

    return translated


def _bias(way: Sequence[Any]) -> Any:
    return op.Unsqueeze(op.Concat(way[2], way[3], axis=0), [0])


rnn_tanh = _layers("Tanh")
rnn_relu = _layers("Relu")
