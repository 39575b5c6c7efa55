"""Does a graph do what the model does? Both are run on calls that the trace did not have.

- At other sizes: a loop that became a scan, and rows that were joined, are right at all sizes or at
  none.
- With other floats: a float that decides in the Python of the model ends the trace. Other models
  ask for the class of the float, or write it into a text, and then take a way of their own in the
  trace: on other values they differ from it.
- With masks that hide nothing, and with masks that hide a part: a model may read whether a mask
  hides anything and go another way if it does not, but go one way only while it is traced:
  transformers leaves a mask of ones out, except in a trace. Mostly both ways compute the same. Where
  they do not, there is one graph for two functions, and no decision about sizes tells of it.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Iterator, Sequence

from ..core.call import Values
from ..core.errors import ExportError
from ..core.sizes.expression import Sizes
from ..core.sizes.formula import symbols_in
from ..infer.sizes import smaller_sizes, trial_sizes
from ..lab.lab import Lab
from ..lab.small_sizes import representative
from ..materialise.arguments import Calls
from ..materialise.floats import float_choices
from ..materialise.padding import with_padding
from ..proofs.path_condition import PathCondition
from ..torch_internals.graph_modules import nodes_of
from ..torch_internals.operators import HigherOrderOperator, OpOverload
from ..torch_internals.serialized import SYM_OPS
from .graph import Graph

__all__ = ["checked_floats", "is_exact_elsewhere", "mask_difference", "mask_refusal"]

logger = logging.getLogger(__name__)
_TRIALS = 4
_OPERATORS = (OpOverload, HigherOrderOperator)
_WRITTEN = frozenset({operator.getitem, *SYM_OPS})
_BEYOND = (math.inf, -math.inf, math.nan)
#: operators may give so many numbers with another float, and so many times those of the call: 1 GB of floats
_MOST_NUMBERS, _MOST_TIMES = 2**28, 4
#: the two ways may round differently: this much of 1 + the largest value is no rounding
_APART = 1e-2


def is_exact_elsewhere(graph: Graph, calls: Calls, lab: Lab) -> bool | None:
    """True when the graph gives at other sizes in its contract what the model gives, wherever it runs; None where
    it runs at none that is tried. Sizes that the contract fixes are those of the trace.
    """
    tried, own = 0, dict(graph.sizes)
    for chosen in [*trial_sizes(graph.plan, [own]), *_several_times(graph)]:
        refused = [symbols_in(one.formula) for one in graph.contract.failing(chosen)]
        fixed = own.keys() & frozenset().union(*refused)
        sizes = {**chosen, **{name: own[name] for name in fixed}}
        if sizes == own or graph.contract.failing(sizes):
            continue
        values = calls.values(sizes)
        try:
            expected = lab.try_out(calls.arguments_of(values))
            found = graph.compared(values, expected)
        except Exception:  # no size for the model, or none of the graph
            continue
        if not found.holds:
            return False
        tried += 1
        if tried >= _TRIALS:
            break
    return True if tried else None


def _several_times(graph: Graph) -> Iterator[dict[str, int]]:
    """Sizes that are several times those of the trace: blocks of rows are whole at them too."""
    for factor in (2, 3):
        for one in graph.plan.symbols:
            yield {**graph.sizes, one.name: one.nearest(factor * graph.sizes[one.name])}


def checked_floats(graph: Graph, calls: Calls, lab: Lab) -> Graph:
    """The graph, where it gives what the model gives for all floats that are tried and that the
    model takes.

    The graph need not take infinities and NaN that no call had, but gives nothing else for them.

    :raises ExportError: ``float-decides``
    """
    floats = [leaf.path for leaf in graph.plan.inputs if leaf.is_float]
    if not floats:
        return graph
    for function in _unwritten(graph):
        raise _decides(
            graph, "any float", f"the graph has {function}() of it, which torch writes into no file"
        )
    values = calls.values(graph.sizes)
    choices = [(choice, True) for choice in float_choices(graph.plan)]
    choices += [(dict.fromkeys(floats, number), False) for number in _BEYOND]
    want_memory = _those_that_want_memory([choice for choice, _ in choices], values, calls, lab)
    for choice, must_run in choices:
        changed = {**values, **choice}
        shown = ", ".join(f"{path} = {changed[path]}" for path in floats)
        if choice in want_memory:
            logger.debug("%s asks for too much memory", shown)
            continue
        try:
            expected = lab.run(calls.arguments_of(changed), why="another float", memo=True)
        except Exception as error:
            logger.debug("%s is refused by the model: %s", shown, type(error).__name__)
            continue
        try:
            found = graph.compared(changed, expected)
        except Exception as error:
            if not must_run:
                continue
            why = f"the graph refuses it ({type(error).__name__})"
            raise _decides(graph, shown, why) from error
        if not found.holds:
            raise _decides(graph, shown, found.note)
    return graph


def _those_that_want_memory(
    choices: Sequence[Values], values: Values, calls: Calls, lab: Lab
) -> list[Values]:
    """The floats with which the model wants much more memory than with those of a call: a factor by which an image
    grows may be one for which there is none. Where neither the largest ones nor the smallest ones change what it
    wants, none does.
    """
    finite = [one for one in choices if all(map(math.isfinite, one.values()))]
    if not finite:
        return []

    def numbers(choice: Values) -> int:
        arguments = calls.arguments_of({**values, **choice})
        return lab.numbers_without_values(arguments, why="the shapes for another float")

    def size(choice: Values) -> float:
        return sum(abs(float(one)) for one in choice.values())

    usual = numbers({})
    positive = [one for one in finite if size(one) > 0] or finite
    ends = max(finite, key=size), min(positive, key=size)
    if all(numbers(one) == usual for one in ends):
        return []
    most = max(_MOST_NUMBERS, _MOST_TIMES * usual)
    return [one for one in finite if numbers(one) > most]


def _unwritten(graph: Graph) -> Iterator[str]:
    """The functions of Python in the graph that torch cannot write into a file, ``round(t)`` for
    instance.
    """
    for node in nodes_of(graph.artifact):
        target = node.target
        is_written = isinstance(target, _OPERATORS) or target in _WRITTEN
        if node.op == "call_function" and not is_written:
            yield str(getattr(target, "__name__", target))


def _decides(graph: Graph, shown: str, why: str) -> ExportError:
    return ExportError(
        f"A float decides what {graph.plan.model or 'the model'}.{graph.plan.method} computes: with"
        f" {shown}, {why}.",
        slug="float-decides",
        hint=(
            "Compute with the float without asking for its class or its text, to have one graph for"
            " all values."
        ),
    )


def mask_difference(graph: Graph, calls: Calls, lab: Lab, condition: PathCondition) -> str:
    """Compares a graph with the model for padding masks of one kind: returns the difference;
    nothing where there is none, or where neither of them can be tried.

    Where a run is dear, the sizes are small ones that stand for those of the trace, which goes one
    way by the path ``condition``.
    """
    values = calls.values(graph.sizes)
    if lab.is_dear(values):

        def holds(sizes: Sizes) -> bool:
            is_general = all(atom.constraint().holds(sizes) for atom in condition.tried)
            return is_general and not graph.contract.failing(sizes)

        choices = smaller_sizes(graph.plan, dict(graph.sizes), holds)
        smaller = next(filter(holds, representative(calls, lab, choices)), None)
        if smaller is not None:
            found = _mask_difference_of(graph, calls, lab, calls.values(smaller))
            if found is not None:
                return found
    return _mask_difference_of(graph, calls, lab, values) or ""


def _mask_difference_of(graph: Graph, calls: Calls, lab: Lab, values: Values) -> str | None:
    """The difference for one call, with masks in the place of its own; None where not all of them
    could be tried.
    """
    plain = with_padding(calls, values, hidden=False)
    padded = with_padding(calls, values, hidden=True)
    if plain is None and padded is None:
        return None
    kinds = {
        "hide nothing": plain or values,
        "hide a part of some rows": padded or values,
    }
    are_tried = True
    for kind, changed in kinds.items():
        why = f"masks that {kind}"
        try:
            expected = lab.run(calls.arguments_of(changed), why=why, memo=True)
            found = graph.compared(changed, expected, atol=_APART)
        except Exception as error:
            logger.debug("%s are not tried: %s", why, error)
            are_tried = False
            continue
        if not found.holds:
            return f"with {why}, {found.note}"
    return "" if are_tried else None


def mask_refusal(graph: Graph, difference: str) -> ExportError:
    """The error about a graph that differs, however the model was traced."""
    plan = graph.plan
    return ExportError(
        f"{plan.model or 'The model'}.{plan.method} computes something else while it is traced:"
        f" {difference}.",
        slug="mask-decides",
        hint=(
            "The model reads the values of a mask, and goes another way in a trace. Let both ways"
            " compute the same, or watch calls without the mask."
        ),
    )
