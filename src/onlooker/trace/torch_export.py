"""Exports one plan with torch.export: an attempt, what it tells, and the next one."""

from __future__ import annotations

import logging
import operator
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..core.contents import Outputs
from ..core.contract import Constraint, Contract, Origin, Region
from ..core.drawing.alike import named_few
from ..core.errors import ExportError
from ..core.path import label_of
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..infer.sizes import alike_sizes, listed
from ..lab.example import Example, find_example
from ..lab.lab import Lab
from ..lab.rerun import difference, rerun
from ..lab.runner import opened
from ..lab.stateful import Stateful
from ..materialise.arguments import Calls
from ..model_source.lines import place_of_error
from ..observing.effects import Effect
from ..observing.store import Sample, copy_leaves
from ..observing.wrapped_model import advice_on_wrapped
from ..proofs.decisions import recorded_decisions
from ..proofs.exported_sizes import output_kinds, read_sizes
from ..proofs.operators import written_results
from ..proofs.path_condition import Atom, PathCondition, path_condition
from ..pytrees.nodes import is_plain
from ..pytrees.open import copy_tensors
from ..repairs.guard_count import UNGUARDED, TooManyGuardsError
from ..repairs.loops.rolled_loops import Rolling
from ..repairs.loops.whole_rows import WHOLE_ROWS
from ..repairs.not_tracing import EQUAL_SIZES, NOT_TRACING
from ..repairs.numbers.by_values import (
    BY_VALUES,
    UncheckedBranchError,
    check_decided,
    forget_values,
)
from ..repairs.numbers.float_tensors import with_float_tensors
from ..repairs.numbers.implied_bounds import drop_implied_bounds
from ..repairs.numbers.size_ints import ends_a_trace
from ..repairs.repair import Attempt, Repair, Retry, Setup, TraceRequest
from ..repairs.repairs import REPAIRS, anew, next_attempt, repaired
from ..repairs.watched_sizes import WATCHED_SIZES
from ..torch_internals.graph_modules import add_up_sums, modules_of, note_users
from ..torch_internals.operators import OpOverload
from ..torch_internals.tracing import dynamo_config, lazy_graph_module
from .dim_names import takes_names
from .dims import dynamic_shapes
from .flat import FlatModel, FlatRun, output_labels
from .float_ranges import with_float_ranges
from .generators import NoGraphError, check_generators, told_of_generators
from .graph import Graph
from .graph_check import checked_floats, is_exact_elsewhere, mask_difference, mask_refusal
from .plain_weights import take_weights_apart
from .size_bounds import find_bounds
from .state_reads import tensors_read
from .torch_run import runner_on_demand

__all__ = ["Traced", "export_graph", "graph_of", "reads_state", "traced_at"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 24
#: how often a trace is made anew to see whether it reads what it changes
_MOST_LIFTED = 2
#: watched calls that are run after one that leaves something behind
_MOST_CALLS_AFTER = 3
#: places that a refusal names
_MOST_NAMED = 4
_PASS_IT = "Pass them to the method, and return them: watched calls did not show that they matter."
_KEEP_LISTS = (
    "Keep the state in an attribute of the model that is a tensor, a number, a cache, or a list, tuple or dict of"
    " these: state=True takes no other objects over."
)
_WATCH_STATE = (
    "Watch with InputObserver(state=True), which makes inputs and outputs of attributes that are"
    " tensors and numbers."
)


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, the path condition of its trace, and the ``bounds`` beyond which the model refuses
    what the condition allows: together they are the contract of the graph. ``unread`` are the
    attributes that each call sets before it reads them. ``by_run`` is True where no trace was made: a run of the
    model went the operators of the graph.
    """

    graph: Graph
    condition: PathCondition
    request: TraceRequest = field(default_factory=TraceRequest)
    rolling: Rolling = field(default_factory=Rolling)
    bounds: tuple[Atom, ...] = ()
    unread: frozenset[str] = frozenset()
    by_run: bool = False


def export_graph(
    plan: Plan,
    samples: Sequence[Sample],
    lab: Lab,
    *,
    choices: Sequence[Sizes] | None = None,
    like: TraceRequest | None = None,
    most_guards: int | None = None,
    off: Collection[Repair] = (),
) -> Traced:
    """The exported graph of a plan with its path condition and its bounds, traced as often as a repair asks
    for another attempt.

    Each attempt is a trace with the repairs that are on. After a refusal, or a program that holds for fewer
    calls than another one would, a repair gives the request for the next attempt. A graph is checked against the
    model before it is given.

    ``choices`` are sizes to export with, the likeliest first; without them general ones are chosen.
    ``like`` is how a trace of the same model was asked for, so that this one begins where that one
    ended. With ``most_guards`` the trace ends where it meets more guards: by itself it is made again in
    another way. The repairs that are ``off`` are part of no attempt.

    :raises ExportError: ``export-refused`` with the last message of torch, ``packed-weights``,
        ``float-decides``, ``mask-decides``, ``model-keeps-state``
    :raises TooManyGuardsError: only with ``most_guards``
    """
    start = time.perf_counter()
    request = (TraceRequest() if like is None else anew(like)).without_repair(*off)
    calls = Calls(plan, samples)
    notes = [Retry(request, repair.note, repair) for repair in REPAIRS if repair in request.on]
    error: Exception | None = None
    left = _ATTEMPTS
    while left:
        left -= 1
        sizes = _sizes_of_calls(calls, request, choices)
        example = find_example(calls, lab, choices=sizes, shapes_only=True)
        flat = FlatRun(lab, plan, example.values, request, most_guards=most_guards)
        attempt = _attempt(flat, lab, example, request, is_side=like is not None)
        seconds = time.perf_counter() - start
        if most_guards is not None and isinstance(attempt.error, TooManyGuardsError):
            raise attempt.error
        error = attempt.error or error
        if attempt.error is not None and not lab.kept.lifted.issuperset(flat.state.found):
            # the next attempt runs the same Python, which reads this state again
            raise _reads_state(plan, flat.state.found, lab)
        found: Retry | Traced | None = next_attempt(attempt)
        if found is None and attempt.program is None:
            found = _at_watched_sizes(attempt, lab)
        elif found is None:
            found = _leaving_less(attempt, flat, example, calls, lab)
            found = found or _changing_less(attempt, flat)
            found = found or _traced(attempt, flat, example, calls, lab)
        if found is None:
            break
        if isinstance(found, Traced):
            said = (
                *map(str, plan.notes),
                *_notes_of(notes, request),
                *flat.notes,
                *request.reasons,
            )
            graph = replace(found.graph, notes=tuple(dict.fromkeys(said)), seconds=seconds)
            return replace(found, graph=graph)
        if found.request.sizes and not request.sizes:
            left = _ATTEMPTS  # what was found at other sizes is asked again
        request = found.request
        notes.append(found)
    unchecked = error if isinstance(error, UncheckedBranchError) else None
    cause = error if unchecked is None else request.value_error
    raise _refused(plan, cause, lab, unchecked) from cause


def _notes_of(notes: Iterable[Retry], request: TraceRequest) -> list[str]:
    """The notes of attempts, without those of repairs that were given up again."""
    held = [one for one in notes if one.repair is None or one.repair.is_part_of(request)]
    return [one.note for one in held if one.note]


def _attempt(
    flat: FlatRun, lab: Lab, example: Example, request: TraceRequest, *, is_side: bool
) -> Attempt:
    """One trace; ``is_side`` is True for sizes that another trace left out."""
    program: torch.export.ExportedProgram | None = None
    error: Exception | None = None
    with recorded_decisions(ends_a_trace(request)) as log:
        try:
            program = _export(flat, lab, example, request)
        except Exception as refusal:
            logger.debug("torch.export refuses: %s", refusal)
            error = told_of_generators(refusal)
    decisions = list(log.decisions.values())
    return Attempt(request, decisions, flat.readers, error, program, is_side)


def _traced(
    attempt: Attempt, flat: FlatRun, example: Example, calls: Calls, lab: Lab
) -> Traced | Retry:
    """The graph of an attempt with its contract; where the graph is not what the model computes, how
    to trace otherwise.
    """
    request = attempt.request
    graph = graph_of(attempt, flat, example)
    if flat.rows is not None and flat.rows.joined and not is_exact_elsewhere(graph, calls, lab):
        return Retry(request.without_repair(WHOLE_ROWS))
    condition = path_condition(
        attempt.decisions, flat.plan, flat.names, graph.ranges, flat.reads.sizes
    )
    most_steps = [atom for atom in condition.atoms.values() if flat.is_of_steps(atom)]
    condition = condition.without(most_steps)
    has_guards = UNGUARDED not in request.on
    named = takes_names(attempt.decisions, graph) if has_guards else {}
    graph = replace(
        graph,
        oblivious=not has_guards,
        named=named,
        marks={**flat.marks, **flat.marks_of_memory(graph.artifact)},
        decided=flat.decided,
    )
    condition, bounds = find_bounds(graph, condition, calls, lab)
    graph = replace(graph, contract=_contract(graph, condition, bounds, most_steps))
    is_exact = is_exact_elsewhere(graph, calls, lab) if flat.loops.rolled else True
    if request.sizes and graph.contract.failing(dict(request.sizes[-1])):
        is_exact = None  # the graph does not hold for the first example, which was asked for
    if is_exact is None and not request.sizes:
        # a loop, or what a step reads, may be of the size 1, which torch keeps
        return Retry(replace(request, unrolled_here=(), sizes=_larger_sizes(graph)))
    if not is_exact:
        again = replace(request, sizes=request.sizes[-1:])  # those of the first example
        return Retry(again.unrolling(flat.loops.rolled, here=is_exact is None))
    graph = with_float_ranges(graph, flat.symbols_of_floats, flat.decided_floats)
    graph = checked_floats(graph, calls, lab)
    # a trace like another one goes the way that was found right there
    by_masks = "" if attempt.is_side else mask_difference(graph, calls, lab, condition)
    if by_masks and NOT_TRACING in request.on:
        raise mask_refusal(graph, by_masks)
    if by_masks:
        note = f"{NOT_TRACING.note}: {by_masks}"
        return Retry(request.with_repair(NOT_TRACING), note, NOT_TRACING)
    found = replace(request, sizes_are_values=flat.has_values_of_floats)
    return Traced(graph, condition, found, flat.rolling, bounds, flat.unread)


def _leaves_tables(flat: FlatRun, example: Example, calls: Calls, lab: Lab) -> bool:
    """True where a trace leaves behind tables alone: tensors that were made for other sizes, and these sizes, after
    which watched calls give what they gave.
    """
    if not all(
        _is_of_sizes(change.after) and _is_plain_key(change) for change in flat.state_written
    ):
        return False
    arguments = flat.note_side(example.values)
    with lab.private_run(why="watched calls after one of other sizes"):
        try:
            begun = lab.subject.keeper.begun.again()
            lab(copy_tensors(arguments))
            lab.kept.look_at(lab.model, begun, lambda: lab(copy_tensors(arguments)))
            return not any(
                difference(sample.outputs, opened(lab(sample.arguments())))
                for sample in calls.samples[:_MOST_CALLS_AFTER]
                if not sample.altered
            )
        except Exception as error:
            logger.debug("a call after another one is refused: %s", error)
            return False


def _is_of_sizes(value: Any) -> bool:
    """True for a tensor, and for sizes."""
    if isinstance(value, tuple):
        return all(map(_is_of_sizes, value))
    return isinstance(value, (torch.Tensor, torch.SymInt)) or type(value) is int


def _is_plain_key(change: Effect) -> bool:
    """False for a key that is an object, as a tensor of the caller, who may pass it again with other values."""
    if isinstance(change.key, tuple):
        return all(is_plain(part) or isinstance(part, torch.Size) for part in change.key)
    return is_plain(change.key)


def _leaving_less(
    attempt: Attempt, flat: FlatRun, example: Example, calls: Calls, lab: Lab
) -> Retry | None:
    """Returns the way to trace where the model left behind what no watched call does: once more, to
    see whether it reads that, and then at the sizes of watched calls; None where it did not.

    :raises ExportError: ``model-keeps-state`` where the trace reads what calls count, or where one
        leaves behind what no watched call does, at sizes that no call had
    """
    request, kept, reads = attempt.request, lab.kept, flat.state.found
    if attempt.program is not None:
        reads = {**reads, **tensors_read(attempt.program, kept.renewed)}
    if reads:
        found = _at_watched_sizes(attempt, lab) if kept.lifted.issuperset(reads) else None
        if found is None:
            raise _reads_state(flat.plan, reads, lab)
        return found
    if flat.state_written:
        _look_at_watched_calls(calls.samples, lab)
    if not flat.state_written or _leaves_tables(flat, example, calls, lab):
        return None
    if not attempt.is_side and request.lifted < _MOST_LIFTED:
        kept.lift(flat.state_written)
        return Retry(replace(request, lifted=request.lifted + 1))
    refusal = writes_state(flat.plan, flat.state_written)
    flat.note_side(example.values, refusal=refusal)
    raise refusal


def _changing_less(attempt: Attempt, flat: FlatRun) -> Retry | None:
    """Returns the way to trace where the model changed the dicts, lists or objects of its caller as no watched
    call does: at the sizes of watched calls; None where it did not.

    :raises ExportError: ``arguments-change`` where these are the sizes, or those of another side
    """
    if not flat.arguments_changed:
        return None
    if not attempt.is_side and WATCHED_SIZES not in attempt.request.on:
        return Retry(attempt.request.with_repair(WATCHED_SIZES))
    shown = dict.fromkeys(effect.place.code() for effect in flat.arguments_changed)
    raise ExportError(
        f"At these sizes a call of {flat.plan.model or 'the model'}.{flat.plan.method} changes its arguments as no"
        f" watched call does: {named_few([*shown], _MOST_NAMED)}. A graph leaves them as they are.",
        slug="arguments-change",
        hint="Watch a call of these sizes as well, or let the model change a copy.",
    )


def _look_at_watched_calls(samples: Sequence[Sample], lab: Lab) -> None:
    """Runs all kept calls again, once: the first and the last one, which were, may leave less behind
    than one between them.
    """
    if not lab.kept.is_of_all_calls:
        lab.kept.is_of_all_calls = True
        for sample in samples:
            rerun(sample, lab)


def _at_watched_sizes(attempt: Attempt, lab: Lab) -> Retry | None:
    """Returns the way to trace after a trace that read what only traces change, or ended at what stood
    for it: at the sizes of watched calls, which do not change it; None where that was tried.
    """
    request, kept = attempt.request, lab.kept
    is_of_stand_in = attempt.error is None or isinstance(attempt.error, (TypeError, AttributeError))
    if not kept.lifted or not is_of_stand_in or attempt.is_side or WATCHED_SIZES in request.on:
        return None
    kept.settle(list(kept.lifted))
    return Retry(request.with_repair(WATCHED_SIZES))


def reads_state(
    plan: Plan, reads: Mapping[str, str], *, is_watched: bool = False, is_lifted: bool = False
) -> ExportError:
    """The refusal of a model that reads what its calls count; ``is_watched`` is True where state is an argument, and
    watched calls did not show that these attributes matter, ``is_lifted`` where state is an argument that has no
    place for such objects.
    """
    inner = "inner." if is_lifted else ""  # the model in the function of its state
    named = {path.removeprefix(inner): line for path, line in reads.items()}
    shown = [f"{path} (at {line})" if line else path for path, line in named.items()]
    return ExportError(
        f"The model keeps state: each call of {plan.model or 'the model'}.{plan.method} changes what"
        f" it reads, {named_few(shown, _MOST_NAMED)}. So a later call may compute something else.",
        slug="model-keeps-state",
        hint=_PASS_IT
        if is_watched
        else f"{_KEEP_LISTS if is_lifted else _WATCH_STATE} Or pass them to the method, and return them.",
    )


def _reads_state(plan: Plan, reads: Mapping[str, str], lab: Lab) -> ExportError:
    """As :func:`reads_state`, for the model of a lab."""
    return reads_state(plan, reads, is_lifted=isinstance(lab.model, Stateful))


def writes_state(plan: Plan, changes: Sequence[Effect]) -> ExportError:
    """The refusal of sizes at which the model leaves behind what no graph carries."""
    shown = ", ".join(map(str, changes[:_MOST_NAMED]))
    return ExportError(
        f"At these sizes a call of {plan.model or 'the model'}.{plan.method} leaves behind what no"
        f" watched call does: {shown}. A graph would not.",
        slug="model-keeps-state",
        hint="Watch a call of these sizes with InputObserver(state=True).",
    )


def _contract(
    graph: Graph, condition: PathCondition, bounds: Iterable[Atom], most_steps: Iterable[Atom]
) -> Contract:
    """The contract of one trace; ``most_steps`` are the conditions that bound the steps of loops."""
    of_model = [atom.constraint() for atom in bounds]
    steps = [Constraint(atom.formula, Origin.STEPS, atom.line) for atom in most_steps]
    constraints = (*condition.constraints(), *_fixed(graph, condition), *of_model, *steps)
    return Contract((Region(constraints, traced_at(graph.sizes)),))


def traced_at(sizes: Sizes) -> str:
    """By which trace a region is proven."""
    return f"traced with {listed(sizes)}" if sizes else "traced"


def _fixed(graph: Graph, condition: PathCondition) -> Iterable[Constraint]:
    """The expressions of the plan that are a number in the program."""
    known = {atom.formula for atom in condition.atoms.values()}
    found: dict[str, Constraint] = {}
    for _, expression, number in graph.fixed_axes:
        formula = f"{expression} == {number}"
        if formula not in known:
            found.setdefault(formula, Constraint(formula, Origin.FIXED))
    return found.values()


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
    """Returns the error for the user; ``unchecked`` is why the values of the call cannot decide
    instead.
    """
    place = place_of_error(refusal) if refusal is not None else ""
    if isinstance(refusal, (TypeError, AttributeError)) and lab.kept.counted:
        # a stand-in of what calls count was given to something that wants the value itself
        return _reads_state(plan, dict.fromkeys(lab.kept.counted, place), lab)
    where = f"The line of the model is {place}. " if place else ""
    what = f"{plan.model or 'the model'}.{plan.method} ({plan.name})"
    packed = _packed_weights(lab.model) if refusal is not None else ""
    scripted = packed.rpartition(".")[0] if packed.endswith("._c") else ""
    if scripted:
        return ExportError(
            f"{what} has a part in TorchScript, {scripted}, which torch.export does not read.",
            slug="packed-weights",
            hint="Watch the model with the module itself there, as it was before torch.jit.script or trace.",
        )
    if packed:
        return ExportError(
            f"{what} has weights in an object of C++, {packed}, which torch.export does not read.",
            slug="packed-weights",
            hint=(
                "Export the model as it was before it was quantised, or quantise it so that its"
                " weights stay tensors."
            ),
        )
    if isinstance(refusal, NoGraphError):
        return ExportError(
            f"{what} cannot be exported: {refusal}.",
            slug="export-refused",
            hint=f"{where}{refusal.hint}",
        )
    inner = advice_on_wrapped(lab.model)
    values = "" if unchecked is None else f"The values of a call cannot decide: {unchecked}. "
    return ExportError(
        f"torch.export refuses {what}: {str(refusal).strip() or type(refusal).__name__}",
        slug="export-refused",
        hint=(
            f"{where}{values}{inner}The message above is torch's own; the plan that was asked for"
            " is observer.plans()."
        ),
    )


def _larger_sizes(graph: Graph) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Sizes of about twice those of a trace, and those."""
    own = graph.sizes
    larger = {one.name: one.nearest(2 * own[one.name] + 1) for one in graph.plan.symbols}
    return tuple(larger.items()), tuple(own.items())


def _sizes_of_calls(
    calls: Calls, request: TraceRequest, choices: Sequence[Sizes] | None
) -> Sequence[Sizes] | None:
    """The sizes of an example: those of the request, those that are given, or as the calls of the plan have them,
    where a repair wants them.
    """
    if request.sizes:
        return [dict(sizes) for sizes in request.sizes]
    if choices:
        return choices
    if not request.on & {EQUAL_SIZES, WATCHED_SIZES}:
        return None
    watched = [calls.sizes_of(sample) for sample in calls.own]
    if EQUAL_SIZES in request.on:
        return list(alike_sizes(calls.plan, watched)) if watched else None
    # the last call first: torch takes no size below 2 for an example
    return [
        {name: max(size, 2) for name, size in sizes.items()} for sizes in reversed(watched)
    ] or None


def _export(
    flat: FlatRun, lab: Lab, example: Example, request: TraceRequest
) -> torch.export.ExportedProgram:
    """The program that torch makes with the repairs of a request."""
    plan, names = flat.plan, flat.names
    leaves = copy_leaves(tuple(example.values[leaf.path] for leaf in plan.inputs))
    inputs = dict(zip(names.values(), with_float_tensors(leaves), strict=True))
    # torch caches what operators give for fake tensors; with symbolic sizes the cache takes as long
    # as the trace itself
    uncached = dynamo_config.patch(fake_tensor_cache_enabled=False)
    # the passes of an export build a dozen modules that never run: their code is written when it is
    # asked for
    lazy = lazy_graph_module._use_lazy_graph_module(True)
    with (
        uncached,
        lazy,
        warnings.catch_warnings(),
        lab.untouched(traced=True),
        repaired(Setup(lab.model, plan, request)) as given,
    ):
        warnings.simplefilter("ignore")
        shapes, model = dynamic_shapes(plan, names), FlatModel.of(flat)
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)
    modules = modules_of(program)
    for module in modules:
        note_users(module.graph)
    decided = given.get(BY_VALUES)
    check_decided(program, decided.symbols if decided is not None else ())
    forget_values(program)
    flat.decided = tuple(decided.lines) if decided is not None else ()
    flat.decided_floats = tuple(decided.floats) if decided is not None else ()
    check_generators(program)
    drop_implied_bounds(program)
    take_weights_apart(program)
    # what nothing uses: an operator that raised in a try block of the model, a part of a tensor
    for module in modules:
        add_up_sums(module.graph)
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


def graph_of(attempt: Attempt, flat: FlatRun, example: Example) -> Graph:
    """The graph around the program of an attempt."""
    program, plan, names = attempt.program, flat.plan, flat.names
    assert program is not None
    if len(flat.dynamic) != len(example.outputs.leaves):
        raise ExportError(
            f"{plan.model or 'the model'}.{plan.method} ({plan.name}) gives {len(flat.dynamic)} values in a"
            f" trace, and {len(example.outputs.leaves)} in a run with the same arguments: something else"
            " than these decides, such as what earlier calls have left behind.",
            slug="model-keeps-state",
            hint=f"{_WATCH_STATE} Or pass it to the method, and return it.",
        )
    outputs = Outputs(
        example.outputs.structure,
        tuple(
            output_labels(
                example.outputs,
                [label_of(leaf.path) for leaf in plan.inputs],
                has_parts=flat.lab.subject.has_parts,
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
        written_results(program),
    )
    sizes, ranges = read_sizes(program, plan, names)
    return Graph(
        plan,
        names,
        outputs,
        "torch",
        example.sizes,
        sizes,
        ranges,
        run=runner_on_demand(program, tuple(names.values()), as_traced=True),
        artifact=program,
        example=tuple(example.values[leaf.path] for leaf in plan.inputs),
    )
