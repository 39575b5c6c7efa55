"""The values of a program that ``plan.json`` holds: all that dispatch and reports need, and no
tensors.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch

from ..contract.checker import Checker
from ..core.call import OUTPUT, ChangedArgument, Join
from ..core.contents import Outputs, ProgramContents
from ..core.contract import Contract
from ..core.errors import OnlookerError
from ..core.path import Key, Path
from ..core.plan import Plan, Range, symbol_names
from ..core.recording import Recording
from ..core.sizes.expression import Expression
from ..core.spec import ConstantSpec, OpaqueSpec
from ..core.structure import Structure
from ..core.verdict import Tally
from ..disk.text import damaged
from ..observing.bind import python_signature
from ..pytrees.nodes import qualified_name
from ..pytrees.open import spec_of
from ..trace.graph import Graph, no_graph
from .containers import find_class, hidden_of, with_builders
from .standin import StandIn
from .state import StateRecord
from .weights import WeightsRecord

__all__ = [
    "GraphRecord",
    "ProgramRecord",
    "check_program",
    "contents_of",
    "graph_of",
    "record_of",
    "record_of_program",
    "without_calls",
]


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One graph without what runs it."""

    plan: Plan
    plan_hidden: Any
    names: Mapping[Path, str]
    target: str
    structure: Structure
    hidden: Any
    labels: tuple[str, ...]
    dynamic: tuple[bool, ...]
    constants: tuple[ConstantSpec | OpaqueSpec, ...]
    sizes: Mapping[str, int]
    obtained: Mapping[str, str]
    ranges: Mapping[str, tuple[int, int | None]]
    notes: tuple[str, ...] = ()
    named: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    oblivious: bool = False
    contract: Contract = dataclasses.field(default_factory=Contract)
    ints: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    bools: tuple[int, ...] = ()
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    written: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decided: tuple[str, ...] = ()
    marks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    axis_names: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """A program: ``recording`` has the names and the signature, and no calls; ``files`` are those
    of the graphs.

    ``limits`` has the least and the greatest number of ids and masks, from which a script draws its
    own. ``untouched`` are the arguments that calls leave as they are, by the name of the graph;
    ``changed`` those that graphs give beside the result.
    """

    recording: Recording
    graphs: tuple[GraphRecord, ...]
    files: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    limits: Mapping[Path, tuple[float, float]] = dataclasses.field(default_factory=dict)
    tally: Tally | None = None
    unlawful: tuple[str, ...] = ()
    state: StateRecord | None = None
    weights: WeightsRecord | None = None
    untouched: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    changed: tuple[ChangedArgument, ...] = ()


_OWN = frozenset(f.name for f in dataclasses.fields(GraphRecord))
#: what stands for the size of an axis of an input that the graph does not use
_UNUSED = "unused"
#: the fields that are written as they are
_SAME = _OWN & {f.name for f in dataclasses.fields(Graph)}
_SAME_OF_PROGRAM = ("refusals", "joins", "limits", "unlawful", "untouched", "changed")
_OUTPUTS = _OWN & {f.name for f in dataclasses.fields(Outputs)} - {"structure", "constants"}


def record_of(graph: Graph) -> GraphRecord:
    """The record of a graph.

    :raises UnsupportedError: ``not-saved``
    """
    outputs = graph.outputs
    same: Any = {name: getattr(graph, name) for name in _SAME} | {
        name: getattr(outputs, name) for name in _OUTPUTS
    }
    sizes = graph.exported_sizes
    return GraphRecord(
        obtained={str(axis): _UNUSED if e is None else str(e) for axis, e in sizes.items()},
        plan_hidden=hidden_of(graph.plan.structure),
        structure=outputs.structure,
        hidden=hidden_of(outputs.structure),
        constants=tuple(_constant(value) for value in outputs.constants),
        **same,
    )


def record_of_program(
    program: ProgramContents[Graph],
    files: Sequence[str],
    state: StateRecord | None,
    weights: WeightsRecord | None,
) -> ProgramRecord:
    """The record of a program, whose graphs stand in these files.

    :raises UnsupportedError: ``not-saved``
    """
    same: Any = {name: getattr(program, name) for name in _SAME_OF_PROGRAM}
    return ProgramRecord(
        recording=without_calls(program.recording),
        graphs=tuple(replace(record_of(graph), seconds=0.0) for graph in program.graphs),
        files=tuple(files),
        tally=program.tally if program.tally != Tally() else None,
        state=state,
        weights=weights,
        **same,
    )


def contents_of(
    record: ProgramRecord, graphs: Sequence[Graph], recording: Recording
) -> ProgramContents[Graph]:
    """The contents of the program of a record, with its graphs and its calls."""
    same: Any = {name: getattr(record, name) for name in _SAME_OF_PROGRAM}
    tally = record.tally or Tally()
    return ProgramContents(graphs=tuple(graphs), recording=recording, tally=tally, **same)


#: classes of values that Python reads from their own texts
_LITERALS = (complex, bytes, set, frozenset)


def _constant(value: Any) -> ConstantSpec | OpaqueSpec:
    if isinstance(value, StandIn):
        return OpaqueSpec(value._stand_in_for)
    text = _text_of(value)
    if text is not None:
        return OpaqueSpec(qualified_name(type(value)), text)
    found = spec_of(value, identified=False)
    return found if isinstance(found, (ConstantSpec, OpaqueSpec)) else OpaqueSpec("torch.Tensor")


def _text_of(value: Any) -> str | None:
    """The text of a value that has no :class:`ConstantSpec`, as :func:`_read` reads it; None for a value that has no
    such text.
    """
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, numpy.generic):
        return repr(value.item())
    if type(value) is range:
        return repr((value.start, value.stop, value.step))
    if type(value) not in _LITERALS:
        return None
    text = repr(set(value) if type(value) is frozenset else value)
    with contextlib.suppress(ValueError, SyntaxError):
        return text if ast.literal_eval(text) == value else None
    return None


def graph_of(record: GraphRecord, where: str) -> Graph:
    """The graph of a record, without what runs it.

    :raises SavedFileError: ``file-damaged``
    """
    structure = with_builders(record.structure, record.hidden, where)
    plan = replace(
        record.plan, structure=with_builders(record.plan.structure, record.plan_hidden, where)
    )
    constants = tuple(_value(spec) for spec in record.constants)
    counts = {structure.n_leaves, len(record.labels), len(record.dynamic), len(constants)}
    if len(counts) != 1:
        raise damaged(where, "its outputs are not as many as its structure has")
    if len(record.input_names) not in (0, len(record.plan.inputs)):
        raise damaged(where, "the names of its inputs are not as many as its inputs")
    _check_plan(record, where)
    _check_contract(record, where)
    numbers = (*record.ints, *record.floats, *record.bools)
    if not all(0 <= position < len(record.dynamic) for position in numbers):
        raise damaged(where, "a number stands at a place that its outputs do not have")
    n_given, n_inputs = record.dynamic.count(True), len(record.plan.inputs)
    if not all(0 <= place < n_given and 0 <= one < n_inputs for place, one in record.written):
        raise damaged(where, "an output is an input that the graph does not have")
    same: Any = {name: getattr(record, name) for name in _SAME} | {"plan": plan}
    given: Any = {name: getattr(record, name) for name in _OUTPUTS}
    outputs = Outputs(structure=structure, constants=constants, **given)
    same["exported_sizes"] = {
        axis: None if text == _UNUSED else Expression.of_text(text)
        for leaf in plan.inputs
        for axis, _ in leaf.axes
        if (text := record.obtained.get(str(axis))) is not None
    }
    return Graph(outputs=outputs, run=no_graph, artifact=None, **same)


def _value(spec: ConstantSpec | OpaqueSpec) -> Any:
    if isinstance(spec, ConstantSpec):
        return spec.value
    found = None
    with contextlib.suppress(ValueError, SyntaxError, TypeError, RuntimeError, KeyError):
        found = _read(spec)
    return StandIn(spec.kind, (), ()) if found is None else found


def _read(spec: OpaqueSpec) -> Any:
    """The value that was written as a text; None where its class is not here."""
    kind, text = spec.kind, spec.identity
    if kind == qualified_name(torch.dtype):
        found = getattr(torch, text.removeprefix("torch."), None)
        return found if isinstance(found, torch.dtype) else None
    if kind == qualified_name(torch.device):
        return torch.device(text)
    if kind == "builtins.range":
        return range(*ast.literal_eval(text))
    for literal in _LITERALS:
        if kind == qualified_name(literal):
            return literal(ast.literal_eval(text))
    cls = find_class(kind) if text else None
    if cls is not None and issubclass(cls, enum.Enum):
        return cls[text]
    return (
        cls(ast.literal_eval(text)) if cls is not None and issubclass(cls, numpy.generic) else None
    )


def _check_plan(record: GraphRecord, where: str) -> None:
    """Passes for a plan by which calls can be served."""
    plan = record.plan
    inputs = [leaf.path for leaf in plan.inputs]
    if [leaf.path for leaf in plan.leaves] != list(plan.structure.paths()) and len(
        plan.leaves
    ) < len(inputs):
        raise damaged(where, "its leaves are not those of its structure")
    if list(record.names) != inputs or len(set(record.names.values())) != len(inputs):
        raise damaged(where, "the names are not those of the inputs")
    if not all(name.isidentifier() for name in record.names.values()):
        raise damaged(where, "a name of an input is no name")
    known = set(symbol_names(plan))
    for leaf in plan.inputs:
        if not leaf.symbols <= known:
            raise damaged(where, f"{leaf.path} has a size that the plan does not know")
        if leaf.empty_dim is not None and not 0 <= leaf.empty_dim < len(leaf.shape):
            raise damaged(where, f"{leaf.path} is filled along a dimension that it does not have")


def _check_contract(record: GraphRecord, where: str) -> None:
    """The contract is made of comparisons of the sizes of its plan; nothing of it is evaluated
    before.
    """
    try:
        Checker(record.plan, record.contract)
    except (OnlookerError, SyntaxError, RecursionError, MemoryError) as error:
        raise damaged(where, f"what its calls must satisfy cannot be read ({error})") from error


def check_program(record: ProgramRecord, where: str) -> None:
    """Passes for a program that can be called: it has graphs, each of a name of its own, and a
    signature.
    """
    names = [graph.plan.name for graph in record.graphs]
    targets = {graph.target for graph in record.graphs}
    if not names or len(set(names)) != len(names) or len(targets) != 1:
        raise damaged(where, "a program has graphs of one target, each of a name of its own")
    state = record.state
    if state is not None and record.recording.signature.get(state.name) is None:
        raise damaged(where, "its state is no parameter of its signature")
    weights = record.weights
    if weights is not None and record.recording.signature.get(weights.argument) is None:
        raise damaged(where, "its weights are no parameter of its signature")
    output = Key(OUTPUT)
    for graph in record.graphs if record.changed else ():
        if graph.structure.kind != "dict" or output not in graph.structure.entries:
            raise damaged(where, "its graphs give no result beside the arguments that they change")
    try:
        python_signature(record.recording.signature)
    except (AttributeError, TypeError, ValueError, OnlookerError) as error:
        raise damaged(where, f"its signature is none ({error})") from error


def without_calls(recording: Recording) -> Recording:
    """The names and the signature of a recording."""
    return replace(recording, calls=())
