"""Recurrent layers in ONNX Runtime, for numbers of steps and batches that the export did not have."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from onlooker import InputObserver
from onlooker.repairs.loops.recurrent_steps import steps_stay_sizes
from onlooker.targets.onnx.operators.table import translations

FEATURES, HIDDEN = 4, 6
KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 3}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
#: bidirectional, batch_first, num_layers, bias, with a state, with a batch
LAYOUTS = [
    (False, False, 1, True, False, True),
    (False, False, 2, False, True, True),
    (False, True, 2, True, True, True),
    (True, False, 2, True, True, True),
    (True, True, 1, False, True, True),
    (True, True, 2, True, False, True),
    (False, False, 1, True, True, False),
    (True, False, 2, False, False, False),
]
DYNAMIC = torch.export.Dim.DYNAMIC


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer.eval()

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.layer(x, state)


def inputs(layer: nn.RNNBase, batch: int, steps: int, has_state: bool, has_batch: bool) -> tuple[Any, ...]:
    """What the layer takes: the input, and the state if it is given one."""
    rows = (batch,) if has_batch else ()
    x = torch.randn(*rows, steps, FEATURES) if layer.batch_first else torch.randn(steps, *rows, FEATURES)
    if not has_state:
        return (x,)
    n_states = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(n_states, *rows, layer.proj_size or HIDDEN)
    is_lstm = isinstance(layer, nn.LSTM)
    return (x, (hidden, torch.randn(n_states, *rows, HIDDEN)) if is_lstm else hidden)


def session_of(layer: nn.RNNBase, args: tuple[Any, ...], has_batch: bool) -> onnxruntime.InferenceSession:
    model = Recurrent(layer)
    batch = {1: DYNAMIC} if has_batch else {}
    states = [pytree.tree_map(lambda _: batch, state) for state in args[1:]]
    shapes = ({0: DYNAMIC, **batch}, *states)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the converter calls what torch deprecates
        with steps_stay_sizes(model):
            program = torch.export.export(model, args, dynamic_shapes=shapes)
        with steps_stay_sizes(program):
            converted = torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=translations())
    assert converted is not None
    return onnxruntime.InferenceSession(converted.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [  # every kind and every layout; all pairs of them take a minute
        pytest.param(kind, layout, marks=pytest.mark.slow if (i + j) % 4 else ())
        for (i, kind), (j, layout) in itertools.product(enumerate(KINDS), enumerate(LAYOUTS))
    ],
)
@pytest.mark.one_in(40)
def test_a_recurrent_layer_takes_any_steps_and_batch(kind: str, layout: tuple[Any, ...]) -> None:
    bidirectional, batch_first, num_layers, bias, has_state, has_batch = layout
    made, options = KINDS[kind]
    torch.manual_seed(0)
    layer = made(
        FEATURES,
        HIDDEN,
        num_layers,
        bias=bias,
        batch_first=batch_first,
        bidirectional=bidirectional,
        **options,
    ).eval()
    session = session_of(layer, inputs(layer, 3, 5, has_state, has_batch), has_batch)
    names = [value.name for value in session.get_inputs()]
    for batch, steps in ((3, 5), (2, 9), (1, 1), (4, 1), (1, 7)):
        args = inputs(layer, batch, steps, has_state, has_batch)
        with torch.no_grad():
            expected = pytree.tree_leaves(layer(*args))
        given = pytree.tree_leaves(args)
        got = session.run(None, {name: value.numpy() for name, value in zip(names, given, strict=True)})
        for value, result in zip(expected, got, strict=True):
            torch.testing.assert_close(torch.from_numpy(result), value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_takes_any_batch(cell: type[nn.Module]) -> None:
    model = cell(FEATURES, HIDDEN).eval()  # type: ignore[call-arg]
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 5):
            model(torch.randn(batch, FEATURES))
    program = observer.export().to("onnx")
    assert program.verify().verified


def test_a_state_that_later_calls_give_back_is_served_in_onnx() -> None:
    model = Recurrent(nn.LSTM(FEATURES, HIDDEN, 2)).eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch, steps in ((2, 5), (3, 7)):
            _, state = model(torch.randn(steps, batch, FEATURES))
            model(torch.randn(steps, batch, FEATURES), state)
    exported = observer.export()
    program = exported.to("onnx")
    for batch, steps in ((4, 9), (1, 1)):
        x = torch.randn(steps, batch, FEATURES)
        with torch.no_grad():
            expected, state = model(x)
            again, _ = model(x, state)
        for served in (program, exported):  # a conversion leaves the program of torch as it is
            torch.testing.assert_close(served(x)[0], expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(served(x, state)[0], again, atol=1e-5, rtol=1e-5)
