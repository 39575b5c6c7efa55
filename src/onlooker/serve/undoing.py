"""Undoes what a run of a graph did before the call was refused.

A graph of torch computes as it goes: it writes to an argument, draws random numbers, and only then
meets an assertion that does not hold, or an id that is no row of a table. The caller's tensors and
generators must then be as they were, since the next graph, or the model itself, takes the call.

Only the arguments of graphs that may refuse after their first write are copied before a run. The run
itself has the arguments of the caller, so that results share their memory where those of the model
do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from ..core.call import ARGUMENTS
from ..core.path import Key
from ..core.runtimes import RUNTIMES
from ..core.structure import child_of
from ..lab.runner import cuda_devices
from ..proofs.operators import draws, written_before_refusal
from ..trace.graph import Graph

__all__ = ["Undoing"]


@dataclass(frozen=True, slots=True)
class Undoing:
    """Undoes what one graph leaves behind when it refuses: writes to inputs, by their positions,
    writes to tensors of its own, and draws of random numbers.
    """

    written: tuple[int, ...] = ()
    own: tuple[torch.Tensor, ...] = ()
    draws: bool = False

    @classmethod
    def of(cls, graph: Graph) -> Undoing | None:
        """Reads from the code of a graph what it leaves behind, None for nothing; machine code may
        write to every input that changes, and may draw.
        """
        program = graph.artifact
        if not isinstance(program, torch.export.ExportedProgram):
            if not RUNTIMES[graph.target].is_machine_code:
                return None
            changes = child_of(graph.outputs.structure, Key(ARGUMENTS)) is not None
            return cls(tuple(range(len(graph.plan.inputs))) if changes else (), draws=True)
        names = written_before_refusal(program)
        written, own, position = [], [], 0
        for spec in program.graph_signature.input_specs:
            is_written = getattr(spec.arg, "name", "") in names
            if spec.kind is InputKind.USER_INPUT:
                written += [position] if is_written else []
                position += 1
            elif is_written and spec.target in program.state_dict:
                own.append(program.state_dict[spec.target])
        is_random = any(map(draws, program.graph.nodes))
        found = cls(tuple(written), tuple(own), is_random)
        return None if found == cls() else found

    @contextlib.contextmanager
    def on_refusal(self, inputs: Sequence[Any]) -> Iterator[None]:
        """A block that raises leaves tensors and random numbers as they were before."""
        tensors = [inputs[position] for position in self.written]
        held = [value for value in (*tensors, *self.own) if isinstance(value, torch.Tensor)]
        copies = [value.detach().clone() for value in held]
        devices = cuda_devices() if self.draws else []
        state = torch.get_rng_state() if self.draws else None
        states = [torch.cuda.get_rng_state(device) for device in devices]
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for value, copy in zip(held, copies, strict=True):
                    if not torch.equal(value, copy):
                        value.copy_(copy)
            if state is not None:
                torch.set_rng_state(state)
            for device, former in zip(devices, states, strict=True):
                torch.cuda.set_rng_state(former, device)
            raise
