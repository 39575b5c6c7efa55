"""One exported graph, and how a call of the model becomes a call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.contract import Contract
from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Structure
from ..infer.name import label_of
from ..observing.surroundings import outside_autocast
from ..repairs.float_tensors import with_float_tensors
from ..torch_internals.modes import is_any_autocast_enabled

__all__ = ["Graph", "Outputs"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the model returns: the containers, the leaves that the graph gives by name, the
    constants.

    ``ints`` are the positions of the leaves that are Python ints, as the counter of a sliding cache
    is, ``floats`` those of floats, ``bools`` those of bools, which a graph gives as 0 or 1. ``kinds``
    has the dtype and the shape of each leaf that the graph gives, in the symbols of the plan.
    """

    structure: Structure
    labels: tuple[str, ...]
    dynamic: tuple[bool, ...]
    constants: tuple[Any, ...]
    ints: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    bools: tuple[int, ...] = ()
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaves that the graph gives."""
        return tuple(label for label, flag in zip(self.labels, self.dynamic, strict=True) if flag)

    @property
    def are_ints(self) -> tuple[bool, ...]:
        """Per leaf that the graph gives: True for a Python int, and for a bool, which is 0 or 1."""
        ints = {*self.ints, *self.bools}
        return tuple(position in ints for position, flag in enumerate(self.dynamic) if flag)

    @property
    def are_floats(self) -> tuple[bool, ...]:
        """Per leaf that the graph gives: True for a float of Python."""
        return tuple(position in self.floats for position, flag in enumerate(self.dynamic) if flag)

    @property
    def numbers(self) -> frozenset[int]:
        """The positions of the leaves that are numbers of Python and not constant."""
        return frozenset((*self.ints, *self.floats, *self.bools))

    def leaves(self, values: Sequence[Any]) -> list[Any]:
        """All leaves of the result, from those that the graph gives.

        :raises RuntimeError: for another number of them, as torch does for a call that a graph
            refuses
        """
        if len(values) != self.dynamic.count(True):
            raise RuntimeError(
                f"the graph gives {len(values)} results, and {self.dynamic.count(True)} were"
                " exported"
            )
        given = iter(values)
        leaves = [
            next(given) if flag else constant
            for flag, constant in zip(self.dynamic, self.constants, strict=True)
        ]
        for position in self.bools:
            leaves[position] = bool(leaves[position])
        return leaves


@dataclass(frozen=True, slots=True)
class Graph:
    """One regime of a program: the plan, what was obtained, and what runs it.

    ``run`` takes the inputs in the order of the plan and gives the named outputs. ``obtained`` says
    per axis (by its name as Python) what the program itself holds: a number, or an expression with
    its range. ``sizes`` are those of the export, ``named`` the expressions that torch took by a
    name, with their bounds; ``oblivious`` is True when torch was asked to keep no guards on 0 and
    1. ``contract`` says for which sizes the graph is proven; ``run`` itself checks nothing.
    ``file`` is the name of its file in the folder that a program was loaded from. ``blocked`` says
    why the runtime of the target cannot run the graph in this process, and is empty where it can.
    ``keeps`` are the arguments, caches, that the files of the graph keep inside from call to call.
    ``marks`` are what the model reads of a call beside sizes, each with the line that reads it
    (:mod:`onlooker.core.marks`).
    ``input_names`` are what the user calls the inputs, ``axis_names`` what files call axes, by the
    name of the input or output.
    ``options`` say which variant of the files of the target was asked for: ``{"precision": "int8"}``.
    """

    plan: Plan
    names: Mapping[Path, str]
    outputs: Outputs
    run: Callable[[Sequence[Any]], Sequence[Any]]
    artifact: Any
    target: str
    sizes: Mapping[str, int]
    obtained: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    example: tuple[Any, ...] = ()
    named: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    oblivious: bool = False
    contract: Contract = field(default_factory=Contract)
    file: str = ""
    blocked: str = ""
    keeps: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    axis_names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the regime."""
        return self.plan.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the inputs in files, in their order: those of the user, else readable ones
        of the paths.
        """
        return self.input_names or tuple(label_of(leaf.path) for leaf in self.plan.inputs)

    @property
    def form(self) -> tuple[Any, ...]:
        """What a call has to be beside its sizes: the arguments, the constants and the marks. Of
        graphs of one form the sizes alone say which takes a call.
        """
        leaves = self.plan.leaves
        constants = {leaf.path: repr(leaf.constant) for leaf in leaves if leaf.is_constant}
        inputs = tuple(leaf.path for leaf in self.plan.inputs)
        return self.plan.structure, inputs, constants, dict(self.marks)

    def __repr__(self) -> str:
        """The name, the target and the number of inputs: an artifact may print thousands of lines."""
        return f"<Graph {self.name} of {self.target}: {len(self.plan.inputs)} inputs>"

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """All leaves of the result for inputs in the order of the plan; a float may be one of
        Python.

        Autocast of the caller is off meanwhile: the casts of the watched calls are in the graph, and
        a second cast would give other results than those that were verified.
        """
        if is_any_autocast_enabled():
            with outside_autocast():
                return self(inputs)
        with torch.no_grad():
            return self.outputs.leaves(self.run(with_float_tensors(inputs)))
