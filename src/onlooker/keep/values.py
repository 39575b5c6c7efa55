"""The kept values of calls: tensors in a safetensors file, everything else by the specs of the
recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.recording import Recording
from ..core.spec import ConstantSpec, OpaqueSpec, TensorSpec
from ..core.structure import Tree
from ..disk.codec import document_at, write_document
from ..disk.text import damaged, write_json
from ..observing.store import Sample
from ..pytrees.open import spec_of
from ..targets.weights import read_tensors, write_tensors
from .containers import hidden_of, with_builders
from .standin import StandIn

__all__ = ["VALUES", "read_values", "tensors_of", "tree_of", "write_values"]

#: the file with the tensors of the kept calls
VALUES = "values.safetensors"
_TABLE = "values.json"


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A kept call, with what its containers hold beside their leaves."""

    index: int
    counted: bool
    inputs: Any
    outputs: Any


def write_values(samples: Sequence[Sample], folder: Path) -> list[str]:
    """Writes the values of the calls and gives the names of the files."""
    rows = tuple(
        KeptCall(
            s.call.index, s.counted, hidden_of(s.inputs.structure), hidden_of(s.outputs.structure)
        )
        for s in samples
    )
    (folder / _TABLE).write_bytes(write_json(write_document("values", tuple[KeptCall, ...], rows)))
    tables: dict[str, dict[str, torch.Tensor]] = {}
    for number, sample in enumerate(samples):
        for side, tree in (("inputs", sample.inputs), ("outputs", sample.outputs)):
            tables[f"{number}.{side}"] = tensors_of(tree, f"{number}.{side}")
    write_tensors(tables, folder / VALUES)
    return [_TABLE, VALUES]


def tensors_of(tree: Tree[Any], name: str) -> dict[str, torch.Tensor]:
    """The tensors of a tree, by names from which :func:`tree_of` finds their places."""
    return {
        f"{name}.{n}": leaf.detach()
        for n, leaf in enumerate(tree.leaves)
        if isinstance(leaf, torch.Tensor)
    }


def read_values(recording: Recording, folder: Path) -> list[Sample]:
    """The kept calls.

    :raises SavedFileError: ``file-damaged``
    """
    where = str(folder / _TABLE)
    rows: tuple[KeptCall, ...] = document_at(folder / _TABLE, "values", tuple[KeptCall, ...])
    calls = {call.index: call for call in recording.calls}
    tables = read_tensors(folder / VALUES)
    found = []
    for number, row in enumerate(rows):
        if row.index not in calls:
            raise damaged(where, f"there is no call {row.index}")
        call = calls[row.index]
        trees = []
        for side, specs, hidden in (
            ("inputs", call.inputs, row.inputs),
            ("outputs", call.outputs, row.outputs),
        ):
            table = tables.get(f"{number}.{side}", {})
            trees.append(tree_of(specs, hidden, table, f"{number}.{side}", where))
        found.append(Sample(call, trees[0], trees[1], row.counted))
    return found


def tree_of(
    specs: Tree[Any], hidden: Any, tensors: dict[str, torch.Tensor], name: str, where: str
) -> Tree[Any]:
    """The tree with these specs, of tensors that :func:`tensors_of` named.

    :raises SavedFileError: ``file-damaged``
    """
    structure = with_builders(specs.structure, hidden, where)
    leaves = tuple(
        _leaf(spec, tensors.get(f"{name}.{n}"), where) for n, spec in enumerate(specs.leaves)
    )
    return replace(specs, structure=structure, leaves=leaves)


def _leaf(spec: Any, tensor: torch.Tensor | None, where: str) -> Any:
    if isinstance(spec, ConstantSpec):
        return spec.value
    if isinstance(spec, OpaqueSpec):
        return StandIn(spec.kind, (), ())
    if tensor is None or not isinstance(spec, TensorSpec) or spec_of(tensor) != spec:
        raise damaged(where, f"the values have no {spec}")
    return tensor
