"""Exports one regime with torch.export."""

from __future__ import annotations

import logging
import operator
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

import torch

from ..core.contract import Constraint, Contract, Origin, Region
from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..infer.name import label_of
from ..infer.sizes import Sizes, alike_sizes
from ..lab.example import Example, find_example
from ..lab.lab import Lab
from ..lab.rerun import difference
from ..lab.runner import opened
from ..materialise.arguments import leaf_values
from ..materialise.counting import sizes_of
from ..model_source.lines import comes_through, place_of_error
from ..observing.inner import advice_on_inner
from ..observing.reach import Change
from ..observing.store import Sample, copy_leaves
from ..proofs.decisions import Decision, recorded_decisions
from ..pytrees.open import copy_tensors
from ..repairs.by_values import (
    UncheckedBranchError,
    check_decided,
    depends_on_values,
    has_two_rows_at_least,
)
from ..repairs.encoder_padding import padding_is_zero
from ..repairs.float_tensors import floats_stay_numbers, with_float_tensors
from ..repairs.greatest_sizes import BOUNDS_DIFFER
from ..repairs.guard_count import TooManyGuardsError, most_guards
from ..repairs.implied_bounds import drop_implied_bounds
from ..repairs.memory_copies import may_write_to_copies
from ..repairs.quick_nodes import nodes_made_quickly
from ..repairs.recurrent_steps import steps_stay_sizes
from ..repairs.repeated_operators import operators_repeat
from ..repairs.rolled_loops import Rolling
from ..repairs.size_functions import UNHASHABLE
from ..repairs.size_ints import asks_for_int, bakes_int, ints_stay_sizes, is_asked_at
from ..repairs.unchanged_modules import REFUSAL
from ..repairs.unsolved_equations import UNSOLVED
from ..torch_internals.operators import OpOverload
from ..torch_internals.tracing import UserError, dynamo_config, lazy_graph_module
from .dim_names import takes_names
from .dims import Asked
from .flat import FlatModel, identifiers, output_labels
from .float_check import checked_floats
from .generators import check_generators
from .graph import Graph, Outputs
from .mask_check import mask_difference, mask_refusal
from .obtained import output_kinds, read_obtained
from .path_condition import Atom, PathCondition, path_condition
from .size_bounds import find_bounds
from .sizes_check import is_exact_elsewhere
from .torch_run import runner_on_demand

__all__ = ["Traced", "export_graph", "graph_of"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 8
#: how often a trace is made anew to see whether it reads what it changes
_MOST_LIFTED = 2
#: watched calls that are run after one that leaves something behind
_MOST_CALLS_AFTER = 3
#: places that a refusal names
_MOST_NAMED = 4
#: a model with more branches that were taken in vain decides all of them
_MOST_DECIDED = 2
_PACKED = "torch.nn.utils.rnn.PackedSequence"
#: what torch says where an operator of a library is given a float that it does not know
_NO_FLOAT = "but instead found type 'SymFloat'"
_UNTOLD = "the model was told that it is not traced, where it computes something else"
_ONE_SIDE = "the side of a branch that the example takes is in the graph"
_TAKEN = "the branch at {} is taken for all sizes: it changes nothing where its test fails"
_READ_AS_SIZES = "int(), len() and range() of a size are read as sizes"


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, the path condition of its trace, and the ``bounds`` beyond which the model refuses
    what the condition allows: together they are the contract of the graph.
    """

    graph: Graph
    condition: PathCondition
    asked: Asked = field(default_factory=Asked)
    rolling: Rolling = field(default_factory=Rolling)
    bounds: tuple[Atom, ...] = ()


def export_graph(
    plan: Plan,
    samples: Sequence[Sample],
    lab: Lab,
    *,
    choices: Sequence[Sizes] | None = None,
    like: Asked | None = None,
    most_guards: int | None = None,
) -> Traced:
    """The exported graph of a plan; when torch refuses, its message is read and it is asked again.

    ``choices`` are sizes to export with, the likeliest first; without them general ones are chosen.
    ``like`` is how a trace of the same model was asked for, so that this one begins where that one
    ended; a branch on values is asked for anew, but where sizes are values themselves.

    With ``most_guards`` the trace ends where it meets more guards: by itself it is made again in
    another way.

    :raises ExportError: ``export-refused`` with the last message of torch, ``packed-sequence``,
        ``packed-weights``, ``float-decides``, ``mask-decides``
    :raises TooManyGuardsError: only with ``most_guards``
    """
    start = time.perf_counter()
    labels = [label_of(leaf.path) for leaf in plan.inputs]
    names = dict(zip([leaf.path for leaf in plan.inputs], identifiers(labels), strict=True))
    asked = like.anew() if like is not None else Asked()
    said = {_READ_AS_SIZES: asked.ints, _UNTOLD: asked.untold, _ONE_SIDE: asked.branch is not None}
    notes, join_rows = [*plan.notes, *(note for note, holds in said.items() if holds)], True
    refusal: Exception | None = None
    for _ in range(_ATTEMPTS):
        example = find_example(
            plan, samples, lab, choices=choices or _sizes_of_calls(plan, samples, asked)
        )
        flat = FlatModel.of(lab, plan, names, example.values)
        flat.join_rows(join_rows)
        flat.trace_as(asked)
        decisions: list[Decision] = []
        try:
            with recorded_decisions() as log:
                try:
                    program = _export(flat, lab, plan, names, example, asked, most_guards)
                finally:
                    decisions = list(log.decisions.values())
        except Exception as error:
            refusal = error
            logger.debug("torch.export refuses: %s", error)
            _check_guards(error, most_guards)
            other, note = _after_refusal(error, asked, decisions, flat, is_side=like is not None)
            if other is None:
                break
        else:
            other, note = _wider_way(asked, decisions, program, pads=bool(flat.taken))
            if other is None and not _only_tables(flat, example, samples, lab):
                other = _leaving_less(flat, example, asked, lab, is_side=like is not None)
        if other is not None:
            asked = other
            notes += [note] if note else []
            continue
        graph = graph_of(plan, names, program, example, flat)
        if flat.n_joined and not is_exact_elsewhere(graph, samples, lab):
            join_rows = False
            continue
        condition = path_condition(decisions, plan, names, graph.ranges, flat.reads)
        most_steps = [atom for atom in condition.atoms.values() if flat.is_of_steps(atom)]
        condition = condition.without(most_steps)
        named = {} if asked.oblivious else takes_names(decisions, graph)
        graph = replace(
            graph,
            notes=_told([*notes, *flat.rolled_notes, *map(_TAKEN.format, flat.taken)], asked),
            seconds=time.perf_counter() - start,
            oblivious=asked.oblivious,
            named=named,
            marks=flat.marks,
        )
        condition, bounds = find_bounds(graph, condition, samples, lab)
        graph = replace(graph, contract=_contract(graph, condition, bounds, most_steps))
        if flat.rolled and not is_exact_elsewhere(graph, samples, lab):
            asked = _without_loops(asked, flat.rolled)
            continue
        checked = checked_floats(graph, samples, lab)
        # a trace like another one goes the way that was found right there
        difference = mask_difference(checked, samples, lab) if like is None else ""
        if not difference:
            found = replace(asked, opaque=flat.has_values_of_floats)
            return Traced(checked, condition, found, flat.rolling, bounds)
        if asked.untold:
            raise mask_refusal(checked, difference)
        asked = replace(asked, untold=True)
        notes.append(f"{_UNTOLD}: {difference}")
    unchecked = refusal if isinstance(refusal, UncheckedBranchError) else None
    cause = refusal if unchecked is None else asked.branch
    raise _refused(plan, cause, lab, unchecked) from cause


def _only_tables(flat: FlatModel, example: Example, samples: Sequence[Sample], lab: Lab) -> bool:
    """True where a trace reads nothing that calls count, and leaves behind tables alone: tensors
    that were made for larger sizes, after which watched calls give what they gave.
    """
    is_table = all(isinstance(change.now, torch.Tensor) for change in flat.state_written)
    if flat.state_reads or not flat.state_written or not is_table:
        return False
    arguments = flat.note_side(example.values)
    with lab.private_run(why="watched calls after one of other sizes"):
        try:
            lab(copy_tensors(arguments))
            return not any(
                difference(sample.outputs, opened(lab(sample.arguments())))
                for sample in samples[:_MOST_CALLS_AFTER]
                if not sample.altered
            )
        except Exception as error:
            logger.debug("a call after another one is refused: %s", error)
            return False


def _leaving_less(
    flat: FlatModel, example: Example, asked: Asked, lab: Lab, *, is_side: bool
) -> Asked | None:
    """How else to trace where the model left behind what no watched call does: once more, to see
    whether it reads that, and then at the sizes of watched calls; None where it did not.

    :raises ExportError: ``model-keeps-state`` where the trace reads what calls count, or where one
        leaves behind what no watched call does, at sizes that no call had
    """
    kept, reads = lab.kept, flat.state_reads
    if reads:
        if is_side or asked.as_watched or not kept.lifted.issuperset(reads):
            raise reads_state(flat.plan, reads)
        kept.settle(reads)
        return replace(asked, as_watched=True)
    if not flat.state_written:
        return None
    if not is_side and asked.lifted < _MOST_LIFTED:
        kept.lift(flat.state_written)
        return replace(asked, lifted=asked.lifted + 1)
    refusal = writes_state(flat.plan, flat.state_written)
    flat.note_side(example.values, refusal=refusal)
    raise refusal


def reads_state(plan: Plan, reads: Mapping[str, str]) -> ExportError:
    """The refusal of a model that reads what its calls count."""
    shown = [
        f"{path} (at {line})" if line else path for path, line in list(reads.items())[:_MOST_NAMED]
    ]
    more = f" and {len(reads) - _MOST_NAMED} more" if len(reads) > _MOST_NAMED else ""
    return ExportError(
        f"The model keeps state: each call of {plan.model or 'the model'}.{plan.method} changes what"
        f" it reads, {', '.join(shown)}{more}. So a later call may compute something else.",
        slug="model-keeps-state",
        hint=(
            "Watch with InputObserver(state=True), which makes inputs and outputs of attributes that"
            " are tensors and numbers. Or pass them to the method, and return them."
        ),
    )


def writes_state(plan: Plan, changes: Sequence[Change]) -> ExportError:
    """The refusal of sizes at which the model leaves behind what no graph carries."""
    shown = ", ".join(map(str, changes[:_MOST_NAMED]))
    return ExportError(
        f"At these sizes a call of {plan.model or 'the model'}.{plan.method} leaves behind what no"
        f" watched call does: {shown}. A graph would not.",
        slug="model-keeps-state",
        hint="Watch a call of these sizes with InputObserver(state=True).",
    )


def _told(notes: Iterable[str], asked: Asked) -> tuple[str, ...]:
    """The notes of a graph, each one once; a way that was given up again is not among them."""
    kept = (note for note in notes if asked.untold or not note.startswith(_UNTOLD))
    return tuple(dict.fromkeys(kept))


def _contract(
    graph: Graph, condition: PathCondition, bounds: Iterable[Atom], most_steps: Iterable[Atom]
) -> Contract:
    """The contract of one trace; ``most_steps`` are the conditions that bound the steps of loops."""
    of_model = [atom.constraint() for atom in bounds]
    steps = [Constraint(atom.formula, Origin.STEPS, atom.line) for atom in most_steps]
    constraints = (*condition.constraints(), *_fixed(graph, condition), *of_model, *steps)
    return Contract((Region(constraints, _evidence(graph.sizes)),))


def _evidence(sizes: Mapping[str, int]) -> str:
    """By which trace a region is proven."""
    return (
        f"traced with {', '.join(f'{name} = {size}' for name, size in sizes.items())}"
        if sizes
        else "traced"
    )


def _fixed(graph: Graph, condition: PathCondition) -> Iterable[Constraint]:
    """The expressions of the plan that are a number in the program."""
    known = {atom.formula for atom in condition.atoms.values()}
    found: dict[str, Constraint] = {}
    for leaf in graph.plan.inputs:
        for axis, expression in leaf.axes:
            number = graph.obtained.get(str(axis), "")
            if expression.symbols and number.lstrip("-").isdigit():
                formula = f"{expression} == {number}"
                if formula not in known:
                    found.setdefault(formula, Constraint(formula, Origin.FIXED))
    return found.values()


def _packs(frame: FrameType) -> bool:
    """True in code of torch that makes packed sequences, or in a layer that was given some."""
    if frame.f_code.co_filename == torch.nn.utils.rnn.__file__:
        return True
    is_layer = frame.f_code.co_filename == torch.nn.modules.rnn.__file__
    return is_layer and frame.f_locals.get("batch_sizes") is not None


def _packed_weights(model: object) -> str:
    """The first attribute of a model that is an object of C++, as layers that are quantised to int8
    have; empty where there is none.
    """
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    for name, module in modules:
        for attribute, value in vars(module).items():
            if isinstance(value, torch.ScriptObject):
                return f"{name}.{attribute}".lstrip(".")
    return ""


def _refused(
    plan: Plan, refusal: Exception | None, lab: Lab, unchecked: Exception | None
) -> ExportError:
    """What the user is told; ``unchecked`` is why the values of the call cannot decide instead."""
    place = place_of_error(refusal) if refusal is not None else ""
    if isinstance(refusal, (TypeError, AttributeError)) and lab.kept.counted:
        # a stand-in of what calls count was given to something that wants the value itself
        return reads_state(plan, dict.fromkeys(lab.kept.counted, place))
    where = f"The line of the model is {place}. " if place else ""
    what = f"{plan.model or 'the model'}.{plan.method} ({plan.name})"
    if _PACKED in str(plan.structure) or (refusal is not None and comes_through(refusal, _packs)):
        return ExportError(
            f"{what} reads packed sequences, of which torch.export makes no graph: how many rows a"
            " step has hangs on the lengths, which are values.",
            slug="packed-sequence",
            hint=(
                f"{where}Give the recurrent layer the padded tensor, and take its results at the"
                " lengths."
            ),
        )
    packed = _packed_weights(lab.model) if refusal is not None else ""
    if packed:
        return ExportError(
            f"{what} has weights in an object of C++, {packed}, which torch.export does not read.",
            slug="packed-weights",
            hint=(
                "Export the model as it was before it was quantised, or quantise it so that its"
                " weights stay tensors."
            ),
        )
    inner = advice_on_inner(lab.model)
    values = "" if unchecked is None else f"The values of a call cannot decide: {unchecked}. "
    return ExportError(
        f"torch.export refuses {what}: {refusal}",
        slug="export-refused",
        hint=(
            f"{where}{values}{inner}The message above is torch's own; the plan that was asked for"
            " is observer.plans()."
        ),
    )


def _without_loops(asked: Asked, lines: Iterable[str]) -> Asked:
    """The same, with the loops at some lines of the model traced step by step."""
    return replace(asked, unrolled=(*asked.unrolled, *lines))


def _check_guards(error: Exception, most: int | None) -> None:
    """Passes unless a trace that may meet so many guards has ended by them.

    :raises TooManyGuardsError: the same error
    """
    if most is not None and isinstance(error, TooManyGuardsError):
        raise error


def _after_refusal(
    error: Exception,
    asked: Asked,
    decisions: Sequence[Decision],
    flat: FlatModel,
    *,
    is_side: bool,
) -> tuple[Asked | None, str]:
    """How else to trace after an error, which may be what came of a loop or of a branch that was
    taken; None where there is no other way.
    """
    if flat.unrolled is not None:
        return _without_loops(asked, [flat.unrolled.line]), str(flat.unrolled)
    if flat.not_neutral is not None:
        line = flat.not_neutral.line
        return _with_decisions(asked, [] if line is None else [line]), ""
    other, note = _another_way(error, asked, decisions, is_side=is_side)
    if other is None and flat.taken:
        return _with_decisions(asked), ""
    return other, note


def _with_decisions(asked: Asked, lines: Sequence[str] = ()) -> Asked:
    """The same, with the branches at some lines of the model decided by Python; without lines, or
    after a few of them, all branches.
    """
    known = asked.decided or ()
    is_last = not lines or len(known) >= _MOST_DECIDED
    return replace(asked, decided=None if is_last else (*known, *lines))


def _another_way(
    error: Exception, asked: Asked, decisions: Sequence[Decision], *, is_side: bool
) -> tuple[Asked | None, str]:
    """How else to trace, and a note where the way says something of the program; None where
    there is no other way. ``is_side`` is True for sizes that another trace left out.
    """
    if isinstance(error, TooManyGuardsError):
        return asked.without_guards(), f"asked again without guards on 0 and 1: {error}"
    if not asked.keys and UNHASHABLE in str(error):
        return replace(asked, keys=True), ""
    if asked.branch is not None and not asked.floats and _wants_float(error):
        return (
            replace(asked, floats=True),
            f"a float that is computed of sizes in a tensor is that of the example: {error}",
        )
    if asked.ints is None and depends_on_values(error) and is_asked_at(place_of_error(error)):
        return replace(asked, ints=True), f"{_READ_AS_SIZES}: {_first_line(error)}"
    if depends_on_values(error) and asked.untold and not asked.alike:
        # equal sizes may keep the model on the way without the branch, which serves more calls
        return replace(asked, untold=False, alike=True), ""
    if depends_on_values(error) and asked.branch is None:
        ints = True if asked.ints is None and bakes_int(decisions) else asked.ints
        way = replace(asked, branch=error, opaque=True, ints=ints)
        where = f" is asked at {place}" if (place := place_of_error(error)) else ""
        return (
            way,
            f"{_ONE_SIDE}{where}: {_first_line(error)}",
        )
    if asked.ints is None and asks_for_int(decisions):
        return replace(asked, ints=True), f"{_READ_AS_SIZES}: {_first_line(error)}"
    if asked.ints and not isinstance(error, UserError):
        return (
            replace(asked, ints=False),
            f"int() and range() are those of Python again: {_first_line(error)}",
        )
    if not asked.greatest and BOUNDS_DIFFER in str(error):
        return replace(asked, greatest=True), ""
    if not asked.unsolved and UNSOLVED in str(error):
        return replace(asked, unsolved=True), ""
    if not asked.conversions and REFUSAL in str(error):
        return replace(asked, conversions=True), ""
    is_refused = isinstance(error, RuntimeError) and not depends_on_values(error)
    if is_refused and not asked.untold and not (asked.alike and is_side):
        # the model runs at the sizes of the example: what is refused, it does in a trace alone
        return replace(asked, untold=True), f"{_UNTOLD}: {_first_line(error)}"
    return None, ""


def _sizes_of_calls(plan: Plan, samples: Sequence[Sample], asked: Asked) -> list[Sizes] | None:
    """Sizes of an example as the calls of the plan have them, where that is asked for."""
    if asked.alike:
        return _alike_sizes(plan, samples)
    if not asked.as_watched:
        return None
    calls = [
        sizes_of(plan, leaf_values(sample)) for sample in samples if sample.call.index in plan.calls
    ]
    # the last call first: torch takes no size below 2 for an example
    return [
        {name: max(size, 2) for name, size in sizes.items()} for sizes in reversed(calls)
    ] or None


def _alike_sizes(plan: Plan, samples: Sequence[Sample]) -> list[Sizes] | None:
    """Sizes of an example with those equal that the calls of the plan have equal; None where the
    plan was made of none of the calls.
    """
    calls = [
        sizes_of(plan, leaf_values(sample)) for sample in samples if sample.call.index in plan.calls
    ]
    return list(alike_sizes(plan, calls)) if calls else None


def _wider_way(
    asked: Asked,
    decisions: Sequence[Decision],
    program: torch.export.ExportedProgram,
    *,
    pads: bool,
) -> tuple[Asked | None, str]:
    """How else to trace for a program that holds for more calls, and a note; None where there is no
    such way. ``pads`` says that it pads by 0 where the model does not.
    """
    if asked.ints is None and bakes_int(decisions):
        note = f"{_READ_AS_SIZES}: a number made from a size would hold for that size alone"
        return replace(asked, ints=True), note
    if not asked.any_length and asked.branch is None and has_two_rows_at_least(program):
        return replace(asked, any_length=True), ""
    if not asked.in_memory and may_write_to_copies(program, pads=pads):
        return replace(asked, in_memory=True), ""
    return None, ""


def _wants_float(error: Exception) -> bool:
    """True for an operator that wants a plain number of a float that torch does not know."""
    return isinstance(error, UncheckedBranchError) or _NO_FLOAT in str(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _export(
    flat: FlatModel,
    lab: Lab,
    plan: Plan,
    names: Mapping[Path, str],
    example: Example,
    asked: Asked,
    most: int | None = None,
) -> torch.export.ExportedProgram:
    leaves = copy_leaves(tuple(example.values[leaf.path] for leaf in plan.inputs))
    inputs = dict(zip(names.values(), with_float_tensors(leaves), strict=True))
    usual = None if asked.oblivious else most_guards(len(plan.inputs))
    flat.limit_guards(most or usual)
    ints = ints_stay_sizes(lab.model if asked.ints else None)
    # torch caches what operators give for fake tensors; with symbolic sizes the cache takes as long
    # as the trace itself
    uncached = dynamo_config.patch(fake_tensor_cache_enabled=False)
    # the passes of an export build a dozen modules that never run: their code is written when it is
    # asked for
    lazy = lazy_graph_module._use_lazy_graph_module(True)
    floats = floats_stay_numbers(lab.model, plan)
    with (
        uncached,
        lazy,
        warnings.catch_warnings(),
        lab.untouched(traced=True),
        asked.settings() as decided,
        ints,
        floats,
        steps_stay_sizes(lab.model),
        padding_is_zero(lab.model),
        operators_repeat(),
        nodes_made_quickly(),
    ):
        warnings.simplefilter("ignore")
        shapes = asked.dynamic_shapes(plan, names)
        program = torch.export.export(flat, (), inputs, dynamic_shapes=shapes, strict=False)
    check_decided(program, decided)
    check_generators(program)
    drop_implied_bounds(program)
    # what nothing uses: an operator that raised in a try block of the model, a part of a tensor
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):  # a block of autocast is a graph of its own
            module.graph.eliminate_dead_code(_has_effects)
            module.recompile()
    return program


def _has_effects(node: torch.fx.Node) -> bool:
    """True for all nodes but operators that only compute, and parts of their results: a part may
    not be there at other sizes.
    """
    if node.target is operator.getitem:
        return False
    return (
        not isinstance(node.target, OpOverload)
        or node.is_impure()
        or node.target._schema.is_mutable
    )


def graph_of(
    plan: Plan,
    names: Mapping[Path, str],
    program: torch.export.ExportedProgram,
    example: Example,
    flat: FlatModel,
) -> Graph:
    """The graph around an exported program."""
    outputs = Outputs(
        example.outputs.structure,
        tuple(
            output_labels(
                example.outputs,
                [label_of(leaf.path) for leaf in plan.inputs],
                has_parts=flat.has_parts,
            )
        ),
        flat.dynamic,
        tuple(
            None if flag else leaf
            for leaf, flag in zip(example.outputs.leaves, flat.dynamic, strict=True)
        ),
        tuple(
            i
            for i, leaf in enumerate(example.outputs.leaves)
            if flat.dynamic[i] and type(leaf) is int
        ),
        tuple(
            i
            for i, leaf in enumerate(example.outputs.leaves)
            if flat.dynamic[i] and isinstance(leaf, float)
        ),
        tuple(
            i
            for i, leaf in enumerate(example.outputs.leaves)
            if flat.dynamic[i] and type(leaf) is bool
        ),
        output_kinds(program, plan, names),
    )
    obtained, ranges = read_obtained(program, plan, names)
    return Graph(
        plan,
        names,
        outputs,
        runner_on_demand(program, tuple(names.values())),
        program,
        "torch",
        example.sizes,
        obtained,
        ranges,
        example=tuple(example.values[leaf.path] for leaf in plan.inputs),
    )
