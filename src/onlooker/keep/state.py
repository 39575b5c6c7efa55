"""The state of a program: tensors in a safetensors file, everything else in ``plan.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.spec import Spec
from ..core.structure import Tree
from ..disk.text import damaged
from ..pytrees.open import close_tree, open_tree, spec_of
from ..serve.state import ProgramState
from ..targets.weights import read_tensors, write_tensors
from .containers import hidden_of
from .values import tensors_of, tree_of

__all__ = ["STATE_FILE", "StateRecord", "read_state", "state_record", "write_state"]

#: the file with the tensors of the state
STATE_FILE = "state.safetensors"
_INITIAL, _VALUES = "initial", "values"


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state without its tensors: what it began with, and what it is now."""

    name: str
    paths: tuple[str, ...]
    initial: Tree[Spec]
    initial_hidden: Any
    values: Tree[Spec]
    values_hidden: Any


def state_record(state: ProgramState) -> StateRecord:
    """The record of a state.

    :raises UnsupportedError: ``not-saved``
    """
    initial, values = open_tree(dict(state.initial)), open_tree(dict(state.values))
    return StateRecord(
        state.name,
        state.paths,
        _specs(initial),
        hidden_of(initial.structure),
        _specs(values),
        hidden_of(values.structure),
    )


def _specs(tree: Tree[Any]) -> Tree[Spec]:
    return tree.each(spec_of)


def write_state(state: ProgramState, folder: Path) -> list[str]:
    """Writes the tensors of a state and gives the names of the files.

    :raises UnsupportedError: ``tensor-not-saved``
    """
    trees = {_INITIAL: open_tree(dict(state.initial)), _VALUES: open_tree(dict(state.values))}
    tables = {name: tensors_of(tree, name) for name, tree in trees.items()}
    write_tensors(tables, folder / STATE_FILE)
    return [STATE_FILE]


def read_state(record: StateRecord, folder: Path, where: str) -> ProgramState:
    """The state of a record.

    :raises SavedFileError: ``file-damaged``
    """
    tables = read_tensors(folder / STATE_FILE)
    initial = _read(record.initial, record.initial_hidden, tables, _INITIAL, where)
    values = _read(record.values, record.values_hidden, tables, _VALUES, where)
    if not {*initial, *values} <= {*record.paths}:
        raise damaged(where, "its state has an attribute that is none of its paths")
    return ProgramState(record.name, record.paths, initial, values)


def _read(
    specs: Tree[Spec], hidden: Any, tables: Mapping[str, Any], name: str, where: str
) -> dict[str, Any]:
    tree = tree_of(specs, hidden, tables.get(name, {}), name, where)
    if tree.structure.kind != "dict":
        raise damaged(where, "its state is no dict")
    found: dict[str, Any] = close_tree(tree.structure, tree.leaves)
    return found
