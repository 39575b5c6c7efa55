"""Recurrent layers on packed sequences, written for padded ones.

``pack_padded_sequence`` puts the rows of all steps into one tensor, and ``batch_sizes`` says how many
each step has. The kernels of torch loop over the numbers in it, which a trace does not have. Here rows
are found by their places instead, and a layer runs on the padded tensor: its second direction begins
at the end of each sequence. The results are those of the kernels but for rounding.

An LSTM gives its cells after the last step alone, and each sequence has another one. So they are those
of a further run, in which all sequences end together and gates keep the state until each one begins. A
graph whose model reads no cells does not have this run.

``shape`` below: T steps, B sequences, N rows in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...torch_internals import operators
from .padded_rows import padded_rows

__all__ = ["PACKED", "pack_padded", "pad_packed"]

#: added to a gate, it opens or closes it whatever the other terms are: ``sigmoid`` gives 1 or 0
_SURE = 10_000.0
#: gates that keep a cell and show nothing of it, as torch orders them: input, forget, cell, output
_GATES_BEFORE = (-_SURE, _SURE, 0.0, -_SURE)
#: the attribute of ``batch_sizes`` that has the number of sequences
_COUNT = "_onlooker_sequences"


def pack_padded(
    input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows ``[N, ...]`` of a padded tensor, and how many each step has, ``[T]``.

    Lengths that torch refuses, such as some that are not sorted, are refused when the graph runs.
    """
    padded = input.transpose(0, 1) if batch_first else input
    is_sorted = (lengths == lengths.sort(descending=True)[0]).all() & (lengths > 0).all()
    torch.ops.aten._assert_async.msg(
        is_sorted, "lengths of packed sequences are sorted, and more than 0"
    )
    n_steps, n_rows = lengths[0].item(), lengths.sum().item()
    torch._check(n_steps >= 1)  # type: ignore[no-untyped-call]  # torch has no types here
    torch._check(n_steps <= padded.shape[0])  # type: ignore[no-untyped-call]
    torch._check(n_rows >= 1)  # type: ignore[no-untyped-call]
    batch_sizes = (torch.arange(n_steps)[:, None] < lengths).sum(1)
    setattr(batch_sizes, _COUNT, lengths.shape[0])
    return _rows_at(_places(batch_sizes, n_rows), padded), batch_sizes


def pad_packed(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The padded tensor of ``total_length`` steps, and the lengths ``[B]``."""
    n_sequences = _count_of(batch_sizes)
    lengths = _lengths(batch_sizes, n_sequences)
    steps = torch.nn.functional.pad(batch_sizes, (0, total_length - batch_sizes.shape[0]))
    padded = padded_rows(data, steps, n_sequences, padding_value)
    return padded.transpose(0, 1) if batch_first else padded, lengths


def _count_of(batch_sizes: torch.Tensor) -> Any:
    """The number of sequences B."""
    known = vars(batch_sizes).get(_COUNT)
    return batch_sizes[0].item() if known is None else known


def _lengths(batch_sizes: torch.Tensor, n_sequences: Any) -> torch.Tensor:
    """The length of each sequence, ``[B]``."""
    return (batch_sizes[:, None] > torch.arange(n_sequences)).sum(0)


def _places(batch_sizes: torch.Tensor, n_rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The step and the sequence of each of the N rows."""
    ends = batch_sizes.cumsum(0)
    row = torch.arange(n_rows)
    step = torch.searchsorted(ends, row, right=True)
    return step, row - (ends - batch_sizes).index_select(0, step)


def _rows_at(places: tuple[torch.Tensor, torch.Tensor], padded: torch.Tensor) -> torch.Tensor:
    """The rows of a padded tensor at steps of sequences."""
    step, sequence = places
    place = step * padded.shape[1] + sequence
    return padded.flatten(0, 1).index_select(0, place.to(padded.device))


def _on_packed(layer: Callable[..., Any], *, has_cell: bool) -> Callable[..., Any]:
    """A recurrent layer of torch that runs on the padded tensor where it is given packed sequences."""

    def run(data: torch.Tensor, batch_sizes: Any, state: Any, *others: Any) -> Any:
        if not isinstance(batch_sizes, torch.Tensor) or not isinstance(state, _OF_STATES[has_cell]):
            return NotImplemented
        weights, has_biases, n_layers, dropout, is_training, is_bidirectional = others
        states = tuple(state) if has_cell else (state,)
        n_sequences = _count_of(batch_sizes)
        torch._check(states[0].shape[1] == n_sequences)  # type: ignore[no-untyped-call]
        sequences = _Sequences(data, batch_sizes, n_sequences)
        padded, ends = sequences.padded(data), []
        n_directions = 2 if is_bidirectional else 1
        of_each = len(weights) // (n_layers * n_directions)
        for number in range(n_layers):
            if number and dropout and is_training:
                padded = torch.nn.functional.dropout(padded, dropout)
            outputs = []
            for direction in range(n_directions):
                place = number * n_directions + direction
                own = weights[place * of_each : (place + 1) * of_each]
                begin = tuple(one[place : place + 1] for one in states)
                output, *end = sequences.run(layer, padded, begin, own, has_biases, direction == 1)
                outputs.append(output)
                ends.append(end)
            padded = torch.cat(outputs, -1)
        joined = [torch.cat(of_layers) for of_layers in zip(*ends, strict=True)]
        return (sequences.packed(padded), *joined)

    return run


class _Sequences:
    """Packed sequences whose layers run on padded tensors ``[T, B, C]``."""

    def __init__(self, data: torch.Tensor, batch_sizes: torch.Tensor, n_sequences: Any) -> None:
        self._batch_sizes, self._count, self._device = batch_sizes, n_sequences, data.device
        self._lengths = _lengths(batch_sizes, n_sequences)
        self._step = torch.arange(batch_sizes.shape[0])[:, None]
        self._places = _places(batch_sizes, data.shape[0])

    def padded(self, data: torch.Tensor) -> torch.Tensor:
        """The padded tensor of the rows, with zeros."""
        return padded_rows(data, self._batch_sizes, self._count, 0.0)

    def packed(self, padded: torch.Tensor) -> torch.Tensor:
        """The rows of a padded tensor, ``[N, C]``."""
        return _rows_at(self._places, padded)

    def run(
        self,
        layer: Callable[..., Any],
        padded: torch.Tensor,
        begin: tuple[torch.Tensor, ...],
        weights: Sequence[torch.Tensor],
        has_biases: bool,
        is_backward: bool,
    ) -> tuple[torch.Tensor, ...]:
        """The output ``[T, B, H]`` of one direction of a layer, and its states at the ends."""
        step, last = self._step, self._lengths - 1
        turned = torch.where(step <= last, last - step, step)
        given = self._at(turned, padded) if is_backward else padded
        options = (has_biases, 1, 0.0, False, False, False)
        output = layer(given, begin[0] if len(begin) == 1 else begin, weights, *options)[0]
        ends = [self._at(last[None], output)]
        if len(begin) == 2:
            given, state, weights = self._ending_together(given, begin, weights)
            ends.append(layer(given, state, weights, *options)[2])
        return (self._at(turned, output) if is_backward else output, *ends)

    def _at(self, steps: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        """What a padded tensor has at some steps of each sequence, ``[steps, B]``."""
        places = steps.to(self._device)[..., None]
        return padded.gather(0, places.expand(-1, -1, padded.shape[2]))

    def _ending_together(
        self,
        padded: torch.Tensor,
        begin: tuple[torch.Tensor, ...],
        weights: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], list[torch.Tensor]]:
        """The input, the state and the weights of an LSTM for sequences that all end at the last step.

        Two more parts of the input say where a sequence has not begun, and what its state is when it does.
        """
        hidden, cell = begin
        of_input, of_hidden, *others = weights
        place = self._step - (self._step.shape[0] - self._lengths)
        is_before, is_first = (one.to(self._device)[..., None] for one in (place < 0, place == 0))
        moved = torch.where(is_before, 0.0, self._at(place.clamp(min=0), padded))
        state = torch.where(is_first, hidden, 0.0)
        gates = torch.tensor(_GATES_BEFORE, dtype=of_input.dtype, device=of_input.device)
        column = gates.repeat_interleave(of_input.shape[0] // len(_GATES_BEFORE))[:, None]
        given = torch.cat([moved, is_before.to(padded.dtype), state], 2)
        own = torch.cat([of_input, column, of_hidden], 1)
        return given, (torch.zeros_like(hidden), cell), [own, of_hidden, *others]


#: by whether a layer has a cell: the classes of its state
_OF_STATES: dict[bool, Any] = {True: (tuple, list), False: torch.Tensor}
#: functions of torch that loop over the steps of packed sequences, and others that do not
PACKED: dict[Any, Callable[..., Any]] = {
    operators.pack_padded_sequence: pack_padded,
    operators.pad_packed_sequence: pad_packed,
    torch.lstm: _on_packed(torch.lstm, has_cell=True),
    torch.gru: _on_packed(torch.gru, has_cell=False),
    torch.rnn_tanh: _on_packed(torch.rnn_tanh, has_cell=False),
    torch.rnn_relu: _on_packed(torch.rnn_relu, has_cell=False),
}
