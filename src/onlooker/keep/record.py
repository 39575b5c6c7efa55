"""The values of a program that ``plan.json`` holds: all that dispatch and reports need, and no
tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..contract.checker import Checker
from ..core.call import OUTPUT, ChangedArgument
from ..core.contract import Contract
from ..core.errors import OnlookerError
from ..core.path import Key, Path
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.spec import ConstantSpec, OpaqueSpec
from ..core.structure import Structure
from ..core.verdict import Tally
from ..disk.text import damaged
from ..observing.bind import python_signature
from ..pytrees.joins import Join
from ..pytrees.open import spec_of
from ..trace.graph import Graph, Outputs
from .containers import hidden_of, with_builders
from .standin import StandIn
from .state import StateRecord

__all__ = ["GraphRecord", "ProgramRecord", "graph_of", "record_of"]


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
    named: Mapping[str, tuple[int | None, int | None]] = dataclasses.field(default_factory=dict)
    oblivious: bool = False
    contract: Contract = dataclasses.field(default_factory=Contract)
    ints: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    bools: tuple[int, ...] = ()
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    seconds: float = 0.0
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
    untouched: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    changed: tuple[ChangedArgument, ...] = ()


_OWN = frozenset(f.name for f in dataclasses.fields(GraphRecord))
#: the fields that are written as they are
_SAME = _OWN & {f.name for f in dataclasses.fields(Graph)}
_OUTPUTS = _OWN & {f.name for f in dataclasses.fields(Outputs)} - {"structure", "constants"}


def record_of(graph: Graph) -> GraphRecord:
    """The record of a graph.

    :raises UnsupportedError: ``not-saved``
    """
    outputs = graph.outputs
    same: Any = {name: getattr(graph, name) for name in _SAME} | {
        name: getattr(outputs, name) for name in _OUTPUTS
    }
    return GraphRecord(
        plan_hidden=hidden_of(graph.plan.structure),
        structure=outputs.structure,
        hidden=hidden_of(outputs.structure),
        constants=tuple(_constant(value) for value in outputs.constants),
        **same,
    )


def _constant(value: Any) -> ConstantSpec | OpaqueSpec:
    if isinstance(value, StandIn):
        return OpaqueSpec(value._stand_in_for)
    found = spec_of(value, identified=False)
    return found if isinstance(found, (ConstantSpec, OpaqueSpec)) else OpaqueSpec("torch.Tensor")


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
    same: Any = {name: getattr(record, name) for name in _SAME} | {"plan": plan}
    given: Any = {name: getattr(record, name) for name in _OUTPUTS}
    outputs = Outputs(structure=structure, constants=constants, **given)
    return Graph(outputs=outputs, run=_nothing, artifact=None, **same)


def _nothing(inputs: Sequence[Any]) -> Sequence[Any]:
    raise AssertionError("a graph without a program")  # replaced before anybody can call it


def _value(spec: ConstantSpec | OpaqueSpec) -> Any:
    return spec.value if isinstance(spec, ConstantSpec) else StandIn(spec.kind, (), ())


def _check_plan(record: GraphRecord, where: str) -> None:
    """What a plan has to fulfil so that calls can be served by it."""
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
    known = {symbol.name for symbol in plan.symbols}
    for leaf in plan.inputs:
        sizes = (*leaf.shape, *([leaf.value] if leaf.value is not None else []))
        if not {name for size in sizes for name in size.symbols} <= known:
            raise damaged(where, f"{leaf.path} has a size that the plan does not know")
        if (
            leaf.fill is not None
            and leaf.fill.kind == "empty"
            and not 0 <= (leaf.fill.dim or 0) < len(leaf.shape)
        ):
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
