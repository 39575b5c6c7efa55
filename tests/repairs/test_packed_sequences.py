"""Recurrent layers on packed sequences: the numbers of torch's kernels, and graphs for other lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.numbers.packed_sequences import PACKED

LAYERS = {
    "LSTM": lambda: torch.nn.LSTM(4, 6),
    "LSTM of two layers and directions": lambda: torch.nn.LSTM(4, 6, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: torch.nn.LSTM(4, 6, proj_size=3, bidirectional=True),
    "LSTM without biases": lambda: torch.nn.LSTM(4, 6, bias=False),
    "GRU": lambda: torch.nn.GRU(4, 6, num_layers=2, bidirectional=True),
    "RNN": lambda: torch.nn.RNN(4, 6, bidirectional=True),
    "RNN with ReLU": lambda: torch.nn.RNN(4, 6, nonlinearity="relu"),
}


class ByPlaces(TorchFunctionMode):
    """The functions of a trace, on tensors with values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        other = PACKED.get(func)
        result = NotImplemented if other is None else other(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layers_give_what_the_kernels_give(layer: Callable[[], torch.nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    net, lengths, x = layer(), torch.tensor([6, 1, 4, 4]), torch.randn(8, 4, 4)
    x = x.transpose(0, 1) if batch_first else x

    def results() -> list[torch.Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        output, state = net(packed)
        padded = pad_packed_sequence(output, batch_first, padding_value=2.0, total_length=9)
        states = state if isinstance(state, tuple) else (state,)
        return [packed.data, packed.batch_sizes, output.data, *padded, *states]

    expected = results()
    with ByPlaces():
        got = results()
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 6, batch_first=True, bidirectional=True)


class Padded(Layer):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


class LastStates(Layer):
    """Wants the lengths in their order, and has them as a list."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        order = lengths.argsort(descending=True)
        sizes = lengths[order].tolist()
        _, (hidden, cell) = self.layer(pack_padded_sequence(x[order], sizes, batch_first=True))
        return torch.cat([hidden[0], hidden[1], cell[1]], 1)[order.argsort()]


class Hidden(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0][0]


class OfRows(Layer):
    """Has a layer on the packed rows themselves, and a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(4, 6, batch_first=True)
        self.begin = torch.nn.Parameter(torch.randn(1, 1, 6))
        self.head = torch.nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, _ = self.layer(packed, self.begin.expand(1, x.shape[0], 6).contiguous())
        return output._replace(data=self.head(output.data))


def calls(*lengths: list[int], longer: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(len(n), max(n) + longer, 4), torch.tensor(n)) for n in lengths]


def watched(kind: type[Layer]) -> tuple[Layer, InputObserver]:
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for call in calls([3, 5], [2, 6, 1]):
            model(*call)
    return model, observer


def as_tensors(result: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Padded, LastStates, OfRows])
def test_graphs_take_other_lengths(kind: type[Layer]) -> None:
    model, observer = watched(kind)
    program = observer.export()
    assert program.verify().verified
    for call in calls([4], [1, 1], [2, 9, 9, 3], [5, 1, 2]) + calls([3, 4], longer=2):
        with torch.no_grad():
            torch.testing.assert_close(as_tensors(program(*call)), as_tensors(model(*call)))


@pytest.mark.filterwarnings("ignore:.*serves-less")  # OpenVINO has no LSTM of one row on the CPU
@pytest.mark.parametrize("target", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_files_of_other_runtimes_take_other_lengths(target: str) -> None:
    model, observer = watched(Hidden)
    program = observer.export(to=target)
    for call in calls([7, 2], [2, 9, 9, 3]):
        with torch.no_grad():
            torch.testing.assert_close(program(*call), model(*call), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lengths", [pytest.param([4, 0], marks=pytest.mark.slow), [4, 9]])
def test_lengths_that_the_model_refuses_are_refused(lengths: list[int]) -> None:
    model, observer = watched(Padded)
    program = observer.export()
    call = torch.randn(2, 5, 4), torch.tensor(lengths)
    with pytest.raises(RuntimeError):
        model(*call)
    with pytest.raises(RejectedCallError):
        program(*call)


def test_ints_are_padded_as_ints() -> None:
    labels, lengths = torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([3, 1])
    packed = pack_padded_sequence(labels, lengths, batch_first=True)
    with ByPlaces():
        padded, _ = pad_packed_sequence(packed, batch_first=True, padding_value=-100)
    assert padded.tolist() == [[3, 4, 5], [6, -100, -100]]
    assert padded.dtype == torch.int64


class Given(torch.nn.Module):
    """A recurrent layer whose input is packed by its callers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(4, 4)

    def forward(self, packed: PackedSequence) -> torch.Tensor:
        return pad_packed_sequence(self.layer(packed)[0])[0]


@pytest.mark.slow
def test_packed_sequences_are_arguments() -> None:
    torch.manual_seed(0)
    model, observer = Given().eval(), InputObserver()
    packed = [pack_padded_sequence(x.transpose(0, 1), n) for x, n in calls([5, 3], [6, 4, 2], [3, 3, 1], [4])]
    with observer(model), torch.no_grad():
        for one in packed[:2]:
            model(one)
    program = observer.export()
    assert program.verify().verified
    for one in packed:
        with torch.no_grad():
            torch.testing.assert_close(program(one), model(one))
