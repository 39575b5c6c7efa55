"""An exported program and its graphs as values, without what runs them.

A program runs its graphs, a folder keeps them, a report shows them and a script rebuilds them. All
four read the same two values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .call import ChangedArgument, Join
from .contract import Contract
from .path import Path, label_of
from .plan import Plan, Range
from .recording import Recording
from .sizes.expression import Expression
from .spec import Axis
from .structure import Structure
from .verdict import Tally

__all__ = ["GraphContents", "Outputs", "ProgramContents"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The result of the model: the containers, the leaves that the graph gives by name, the
    constants.

    ``ints`` are the positions of the leaves that are Python ints, as the counter of a sliding cache
    is, ``floats`` those of floats, ``bools`` those of bools, which a graph gives as 0 or 1. ``kinds``
    has the dtype and the shape of each leaf that the graph gives, in the symbols of the plan. ``written``
    are the leaves that are an input to which the graph writes: for each its place among those that the
    graph gives, and the place of the input.
    """

    structure: Structure
    labels: tuple[str, ...]
    dynamic: tuple[bool, ...]
    constants: tuple[Any, ...]
    ints: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    bools: tuple[int, ...] = ()
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    written: tuple[tuple[int, int], ...] = ()

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
    def are_complex(self) -> tuple[bool, ...]:
        """Per leaf that the graph gives: True for a tensor of complex numbers."""
        return tuple(dtype.startswith("complex") for dtype, _ in self.kinds)

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


#: how the note of a graph starts that says which loop of the model it rolled
LOOP_NOTE = "the loop at"


@dataclass(frozen=True, slots=True)
class GraphContents:
    """One graph of a program: its plan, and what an export gave for it.

    ``exported_sizes`` says per axis what the graph itself has there: a number or an expression, None
    for an axis of an input that the graph does not use. ``ranges`` are the least and the greatest
    size per expression of the plan. ``sizes`` are those of the export, ``named`` the expressions
    that torch took by a name, with their bounds; ``oblivious`` is True when torch was asked to keep
    no guards on 0 and 1. ``contract`` says for which sizes the graph is proven. ``file`` is the name
    of its file in the folder of the program. ``marks`` are what the model reads of a call beside
    sizes, each with the line that reads it (:mod:`onlooker.core.marks`). ``input_names`` are what
    the user calls the inputs, ``axis_names`` what files call axes, by the name of the input or
    output. ``decided`` are the lines of the model that decide by values, of which the graph has the side
    of its example. ``options`` say which variant of the files of the target was asked for:
    ``{"precision": "int8"}``.
    """

    plan: Plan
    names: Mapping[Path, str]
    outputs: Outputs
    target: str
    sizes: Mapping[str, int]
    exported_sizes: Mapping[Axis, Expression | None] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    named: Mapping[str, Range] = field(default_factory=dict)
    oblivious: bool = False
    contract: Contract = field(default_factory=Contract)
    file: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    decided: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    axis_names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the graph, which is that of its plan."""
        return self.plan.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the inputs in files, in their order: those of the user, else readable ones
        of the paths.
        """
        return self.input_names or tuple(label_of(leaf.path) for leaf in self.plan.inputs)

    @property
    def has_rolled_loops(self) -> bool:
        """True where a loop of the model is one operator of the graph, for any number of steps. torch.export by
        itself writes the steps of its example one by one.
        """
        return any(note.startswith(LOOP_NOTE) for note in self.notes)

    def fixed_size(self, axis: Axis) -> int | None:
        """The number that the graph has at an axis; None where it has an expression, or tells nothing."""
        size = self.exported_sizes.get(axis)
        return size.evaluate({}) if size is not None and size.is_constant else None

    @property
    def fixed_axes(self) -> tuple[tuple[Axis, Expression, int], ...]:
        """The axes that change in the plan and are a number in the graph: each with the expression of
        the plan and the number.
        """
        found = []
        for leaf in self.plan.inputs:
            for axis, expression in leaf.axes:
                size = self.fixed_size(axis) if expression.symbols else None
                if size is not None:
                    found.append((axis, expression, size))
        return tuple(found)

    @property
    def form(self) -> tuple[Any, ...]:
        """Everything of a call but its sizes: the arguments, the constants and the marks that the
        graph demands. Of graphs of one form the sizes alone say which takes a call.
        """
        leaves = self.plan.leaves
        constants = {leaf.path: repr(leaf.constant) for leaf in leaves if leaf.is_constant}
        inputs = tuple(leaf.path for leaf in self.plan.inputs)
        return self.plan.structure, inputs, constants, dict(self.marks)

    @property
    def title(self) -> str:
        """The name, with the options of the files where there are any."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


GraphT = TypeVar("GraphT", bound=GraphContents)


@dataclass(frozen=True, slots=True)
class ProgramContents(Generic[GraphT]):
    """A program: its graphs, the calls that it was made from, and what was proven of it.

    ``refusals`` say why some calls have no graph. ``joins`` are the parts of a call that
    count as one. ``limits`` are the least and the greatest number of ids and masks, as they were
    saved; a script draws its own values from them. ``tally`` is what was verified so far, and
    ``unlawful`` are sizes that the model itself refuses. ``untouched`` are the arguments that calls
    leave as they are, by the name of the graph; ``changed`` are those that graphs give beside the
    result.
    """

    graphs: tuple[GraphT, ...]
    recording: Recording
    refusals: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    limits: Mapping[Path, tuple[float, float]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    unlawful: tuple[str, ...] = ()
    untouched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed: tuple[ChangedArgument, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each graph."""
        return tuple(graph.plan for graph in self.graphs)

    @property
    def method(self) -> str:
        """The watched method, as in ``Linear.forward``."""
        return f"{self.recording.model}.{self.recording.method}"
