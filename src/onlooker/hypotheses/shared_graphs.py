"""Which calls can one graph serve? Two kinds of calls share one if what a call lacks can be
filled, unnoticed.

An example: a prefill has ``ids`` (2, 10) and no cache, a decoding step has ``ids`` (2, 1) and a cache of two
tensors (2, 4, 10, 8). The richest form comes first, and the other one joins it in three steps:

1. The union of both has all three tensors; the prefill lacks the cache. Which axis of it grows from call to
   call is known from the calls: axis 2.
2. The likeliest values for a cache are none: tensors of shape (2, 4, 0, 8). For a mask they are ones.
3. The model is run for the prefill with that cache. It gives what it gave in the call, so one graph serves
   both, with an empty cache for calls that bring none. Else each form has a graph of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from ..core.call import Call, Values
from ..core.path import Path
from ..core.plan import Fill, LeafPlan, Plan
from ..core.sizes.expression import Sizes
from ..core.spec import ConstantSpec, Spec, TensorSpec
from ..core.structure import Result, Structure, child_of
from ..infer.unify import Form, Union, find_conflict, forms_of, growing_dim, union_of
from ..lab.lab import Lab, SpentError
from ..lab.small_sizes import short_call
from ..materialise.arguments import close_arguments, fill_of, leaf_values
from ..materialise.counting import sizes_of
from ..observing.store import Sample
from ..pytrees.comparisons.agree import agreement
from .draft import Draft
from .overrides import Overrides

__all__ = ["find_drafts", "is_neutral"]

logger = logging.getLogger(__name__)

#: choices of values for what a call lacks
_MOST_CHOICES = 12
#: kept calls of one form that are run with the values
_MOST_CALLS = 2
_LISTS = ("list", "tuple")
_CONTAINERS = (*_LISTS, "dict")
_UNTESTED = "every way to serve several kinds of calls with one graph was tested"


def find_drafts(
    calls: Sequence[Call], samples: Sequence[Sample], lab: Lab, overrides: Overrides | None = None
) -> list[Draft]:
    """The fewest drafts that a greedy search finds: the richest form of a call first, each next
    one joins if it can.
    """
    overrides = overrides or Overrides()
    forms = sorted(forms_of(calls), key=lambda form: -form.example.n_tensors)
    drafts: list[Draft] = []
    for form in forms:
        for position, draft in enumerate(drafts):
            joined = _joined((*draft.union.forms, form), samples, lab, overrides)
            if joined is not None:
                drafts[position] = joined
                break
        else:
            drafts.append(Draft(union_of((form,)), {}, overrides=overrides))
    if len(drafts) == 1:
        return drafts
    return [replace(draft, name=f"graph_{number}") for number, draft in enumerate(drafts)]


def _joined(
    forms: Sequence[Form], samples: Sequence[Sample], lab: Lab, overrides: Overrides
) -> Draft | None:
    """The draft of all forms, with values for what some lack that the model does not notice; None
    without any.

    The runs of the first choice are necessary, since without them every form needs a graph of its
    own.
    """
    union = union_of(forms)
    conflict = find_conflict(union)
    if conflict is not None:
        logger.debug("two graphs are needed: %s", conflict)
        return None
    if any(_has_ints_alone(union, path) for form in forms for path in union.missing(form)):
        logger.debug("two graphs are needed: no ints stand for an argument that is left out")
        return None
    if any(_lacks_item(form, path) for form in forms for path in union.missing(form)):
        logger.debug("two graphs are needed: a list or a dict has more items in some calls")
        return None
    for number, fills in enumerate(islice(_fill_choices(union), _MOST_CHOICES)):
        draft = Draft(union, fills, overrides=overrides)
        try:
            if all(is_neutral(draft, form, samples, lab, necessary=number == 0) for form in forms):
                return draft
        except SpentError as spent:
            lab.note_unknown(_UNTESTED, spent)
            return None
    return None


def _has_ints_alone(union: Union, path: Path) -> bool:
    """True for a part of an argument that holds ints and no tensor, as ``sizes=[2, 3]`` does: the model
    may do something else without it, so each kind of calls has a graph.
    """
    specs = [spec for other, spec in union.leaves.items() if other.root == path.root]
    spec = union.leaves[path]
    is_int = isinstance(spec, ConstantSpec) and spec.is_int
    return is_int and not any(isinstance(other, TensorSpec) for other in specs)


def _lacks_item(form: Form, path: Path) -> bool:
    """True for an item of a list, a tuple or a dict that has other items in the calls of a form: the
    model may count them. An argument that is not there, or empty, is settled by traces.
    """
    inputs = form.example.inputs
    container = child_of(inputs.structure, *path.entries[:-1])
    is_argument = container is inputs.structure
    return (
        container is not None
        and not is_argument
        and container.kind in _CONTAINERS
        and len(container.entries) > 0
    )


def _fill_choices(union: Union) -> Iterator[dict[Path, Fill]]:
    """Yields the values that the missing leaves may have: per argument a short list, the likeliest
    first.
    """
    by_argument: dict[str, dict[Path, None]] = {}
    for form in union.forms:
        for path in union.missing(form):
            by_argument.setdefault(path.root, {})[path] = None
    options = [_options(union, paths) for paths in by_argument.values()]
    for choice in product(*options):
        fills: dict[Path, Fill] = {}
        for part in choice:
            fills |= part
        yield fills


def _options(union: Union, paths: Iterable[Path]) -> list[dict[Path, Fill]]:
    """The ways to fill the leaves of one argument: a cache is empty, a mask hides nothing."""
    specs = {path: union.leaves[path] for path in paths}
    is_state = any(isinstance(spec, TensorSpec) and len(spec.shape) > 2 for spec in specs.values())
    kinds = ("empty", "zeros") if is_state else ("ones", "zeros")
    found: list[dict[Path, Fill]] = []
    for kind in kinds:
        fills = {path: _fill(union, path, spec, kind) for path, spec in specs.items()}
        option = {path: fill for path, fill in fills.items() if fill is not None}
        if option not in found:
            found.append(option)
    return found


def _fill(union: Union, path: Path, spec: Spec, kind: str) -> Fill | None:
    if isinstance(spec, ConstantSpec):
        return Fill("constant", value=0) if spec.is_int else None
    if not isinstance(spec, TensorSpec):
        return None
    if kind != "empty":
        return Fill(kind)
    dim = growing_dim(union, path, spec)
    return Fill("zeros") if dim is None else Fill("empty", dim=dim)


def is_neutral(
    draft: Draft, form: Form, samples: Sequence[Sample], lab: Lab, *, necessary: bool = False
) -> bool:
    """True when the model gives for the calls of a form, filled, what it gave without the fills.

    :raises SpentError: when the budget ended, and the runs are not necessary
    """
    missing = draft.union.missing(form)
    if not missing:
        return True
    indices = {call.index for call in form.calls}
    own = [sample for sample in samples if sample.call.index in indices]
    if not own:
        return False
    plan = draft.plan()
    roots = ", ".join(dict.fromkeys(path.root for path in missing))
    for sample in own[:_MOST_CALLS]:
        claim = f"call {sample.call.index} gives the same with a default for {roots}"
        short = short_call(plan, sample, lab) or sample
        holds = _gives_the_same(plan, short, lab, claim, necessary)
        if not lab.record_claim(claim, holds, argument=next(iter(missing)).root):
            return False
    return True


def _gives_the_same(plan: Plan, sample: Sample, lab: Lab, why: str, necessary: bool) -> bool:
    values = leaf_values(sample)
    sizes = sizes_of(plan, values)
    try:
        filled = {leaf.path: _filled_value(leaf, values, sizes) for leaf in plan.leaves}
        arguments = close_arguments(plan, filled)
    except Exception as error:
        logger.debug("a call cannot be filled: %s: %s", type(error).__name__, error)
        return False
    got = lab.try_run(arguments, why=why, memo=True, necessary=necessary)
    expected = lab.expected(sample)
    return got is not None and expected is not None and _has_all_outputs(expected, got)


def _filled_value(leaf: LeafPlan, values: Values, sizes: Sizes) -> Any:
    """The value of a leaf in a call: its own, else its fill, else its constant."""
    value = values.get(leaf.path)
    is_given = value is not None or (leaf.path in values and leaf.fill is None)
    if is_given:
        return value
    if leaf.fill is not None:
        return fill_of(leaf, sizes)
    return leaf.constant.value if leaf.constant is not None else None


def _has_all_outputs(expected: Result, got: Result) -> bool:
    """True when every output that was observed comes out with its value; there may be more, though not
    in a list of things alike: a result for each of two images is not that of one image.
    """
    before, after = dict(expected.items()), dict(got.items())
    is_whole = _has_no_longer_list(expected.structure, got.structure)
    if not is_whole or not before.keys() <= after.keys():
        return False
    return agreement(list(before), list(before.values()), [after[path] for path in before]).holds


def _has_no_longer_list(expected: Structure, got: Structure) -> bool:
    """True when no list, and no tuple of things alike, has more items in the other result."""
    more = got.children[len(expected.children) :]
    kinds = {child.kind for child in expected.children}
    if expected.kind == got.kind in _LISTS and any(child.kind in kinds for child in more):
        return False
    others = dict(got.parts)
    return all(
        _has_no_longer_list(child, others[entry])
        for entry, child in expected.parts
        if entry in others
    )
