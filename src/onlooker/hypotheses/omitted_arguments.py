"""Arguments that every call passed: which of them may a call leave out?

``generate()`` drops a mask that hides nothing, and some of its ways leave out flags that the
configuration of the model says anyway. A tensor may be left out where the model gives for ones, or
zeros, of its shape what it gives without it; a flag where it gives the same with it and without it.
Experiments at two or three sizes only choose candidates: each argument alone, then all of them
together. Traces and runs on each side of what the model decides settle what is true (``graphs``).
Flags of calls of several kinds stay bound there, so they are not tested.

An example: all calls passed ``ids``, ``mask`` and ``token_types``::

    left out               the model gives the same as    what follows
    ids                    it refuses the call            ids are needed
    mask                   with ones                      may be left out, ones stand for it
    token_types            with zeros                     may be left out, zeros stand for it
    mask, token_types      with both                      a call may leave out both

A cache that was empty in some calls and absent in none is another question: the model may return
one only where it was given one. The calls with an empty one are run without it. Where a mask may be
left out beside an empty cache and not without one, a call has to bring the cache: each call did.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.call import Arguments, Call, Values
from ..core.path import Path
from ..core.plan import Fill, LeafPlan, Plan
from ..core.spec import ConstantSpec
from ..core.structure import Result
from ..infer.sizes import cut_sizes, example_sizes, is_possible
from ..lab.judge import results_agree
from ..lab.lab import Lab
from ..lab.rerun import difference
from ..lab.small_sizes import representative, short_call
from ..materialise.arguments import Calls, fill_of
from ..materialise.counting import sizes_of
from ..materialise.domain import Domain
from ..observing.store import Sample
from .draft import Draft
from .family import Family

__all__ = ["OmittedArguments"]

logger = logging.getLogger(__name__)

#: what stands for each argument that is left out; None for a flag, which nothing has to stand for
_Defaults = dict[Path, Fill | None]


class OmittedArguments(Family):
    """A call may leave out an argument that every call passed: a tensor with a neutral default,
    or a flag.
    """

    question = "which arguments that every call passed may be left out?"
    #: what was found alone may not hold together
    all_tested = "every argument was left out"
    most_runs = 96

    def drafts(self) -> Iterator[Draft]:
        """The draft with a default for every tensor, and a word for every flag, that a call may
        leave out.
        """
        self._draft = self._with_needed()
        yield self._draft
        plan = self._draft.plan()
        has_one_form = len(self._draft.union.forms) == 1
        candidates = [
            leaf
            for leaf in plan.leaves
            if (leaf.is_tensor or has_one_form) and _is_candidate(leaf, plan, self._lab)
        ]
        if not self._samples or all(self._is_refused_without(leaf) for leaf in candidates):
            return
        calls = Calls(plan, self._samples)
        test = _OmissionTest(calls, self._lab, tuple(_bases(calls, self._lab)))
        found = test.found(candidates)
        always_given = self._always_given(test.empty())
        if always_given:
            more = test.given(always_given).found_beside(found, candidates)
            if _tensors(more) > _tensors(found):
                found = more
                needed = dict.fromkeys((*self._draft.needed, *always_given))
                self._draft = replace(self._draft, needed=tuple(needed))
        fills = dict(self._draft.fills)
        flags = set()
        for path, fill in found.items():
            if fill is None:
                flags.add(path)
            else:
                fills[path] = fill
        logger.debug("may be left out: %s", ", ".join(map(str, found)))
        yield replace(self._draft, fills=fills, optional=frozenset(flags))

    def _is_refused_without(self, leaf: LeafPlan) -> bool:
        """True when the model refuses the last call without an argument.

        :raises SpentError: when the budget has ended
        """
        claim = f"{leaf.path} may be left out"
        sample = self._samples[-1]
        rest = {name: value for name, value in sample.arguments().items() if name != leaf.path.root}
        if self._lab.takes(rest, why=claim):
            return False
        self._lab.record_claim(claim, False, argument=leaf.path.root)
        return True

    def _always_given(self, roots: Collection[str]) -> tuple[str, ...]:
        """Those arguments that each call brought, be it an empty one."""
        return tuple(
            root
            for root in sorted(roots)
            if all(_n_leaves(call, root) is not None for call in _calls(self._draft))
        )

    def _with_needed(self) -> Draft:
        """The draft with the arguments that were empty and never absent, and that a call has to bring.

        :raises SpentError: when the budget has ended
        """
        plan = self._draft.plan()
        needed = []
        for root in dict.fromkeys(leaf.path.root for leaf in plan.inputs):
            parameter = self._lab.signature.get(root)
            if parameter is None or parameter.required or not _may_be_empty(plan, root):
                continue
            empty = [sample for sample in self._samples if not _n_leaves(sample.call, root)]
            if (
                self._always_given([root])
                and empty
                and not self._is_same_without(plan, root, empty[0])
            ):
                needed.append(root)
        return replace(self._draft, needed=tuple(needed))

    def _is_same_without(self, plan: Plan, root: str, sample: Sample) -> bool:
        """True when the model gives without an empty argument what it gives with it."""
        claim = f"{root} may be left out where it is empty"
        short = short_call(plan, sample, self._lab) or sample
        rest = {name: value for name, value in short.arguments().items() if name != root}
        got, expected = self._lab.try_run(rest, why=claim, memo=True), self._lab.expected(short)
        holds = got is not None and expected is not None and not difference(expected, got)
        return self._lab.record_claim(claim, holds, argument=root)


def _calls(draft: Draft) -> Iterator[Call]:
    return (call for form in draft.union.forms for call in form.calls)


def _n_leaves(call: Call, root: str) -> int | None:
    """Returns the number of leaves of an argument; None for one that is absent, or None itself."""
    structure = call.inputs.structure
    for entry, child in structure.parts:
        if Path((entry,)).root == root:
            return None if child.is_leaf else child.n_leaves
    return None


def _tensors(found: _Defaults) -> set[Path]:
    """The tensors among what may be left out."""
    return {path for path, fill in found.items() if fill is not None}


def _may_be_empty(plan: Plan, root: str) -> bool:
    """True for an argument with parts of which each has a fill."""
    leaves = [leaf for leaf in plan.inputs if leaf.path.root == root]
    return all(len(leaf.path.entries) > 1 and leaf.fill is not None for leaf in leaves)


def _is_candidate(leaf: LeafPlan, plan: Plan, lab: Lab) -> bool:
    """True for a whole argument that every call passed, and that the signature does not require."""
    if len(leaf.path.entries) > 1 or leaf.fill is not None or leaf.calls < len(plan.calls):
        return False
    parameter = lab.signature.get(leaf.path.root)
    if parameter is None:
        is_optional = lab.signature.of_kind("VAR_KEYWORD") is not None
    else:
        is_optional = not parameter.required and not parameter.kind.startswith("VAR")
    if leaf.is_tensor or not is_optional:
        return is_optional
    default = parameter.default if parameter is not None else None
    return leaf.constant is not None and leaf.constant not in (ConstantSpec(None), default)


@dataclass(frozen=True, slots=True)
class _Base:
    """A call that an argument is left out of; ``empty`` are arguments without elements, which are
    left out together with it.
    """

    values: Values
    empty: frozenset[str] = frozenset()


def _bases(calls: Calls, lab: Lab) -> Iterator[_Base]:
    """At the sizes of the last call, as small as the model is the same there, then at general ones,
    and at general ones with what may be empty.
    """
    plan = calls.plan
    general = next(representative(calls, lab, example_sizes(plan)), None)
    observed = calls.sizes_of(calls.samples[-1])
    choices = [observed] if general is None else [cut_sizes(plan, observed, general), observed]
    last = next(representative(calls, lab, choices), observed)
    yield _Base(calls.values(last))
    if general is None:
        return
    if general != last:
        yield _Base(calls.values(general))
    roots = dict.fromkeys(leaf.path.root for leaf in plan.inputs)
    empty = frozenset(root for root in roots if _may_be_empty(plan, root)) - {*plan.needed}
    smallest = {**general, **{symbol.name: 0 for symbol in plan.symbols if symbol.allows(0)}}
    if empty and is_possible(plan, smallest):
        absent = [leaf for leaf in plan.inputs if leaf.path.root in empty]
        fills = {leaf.path: fill_of(leaf, smallest) for leaf in absent}
        yield _Base({**calls.values(smallest), **fills}, empty)


@dataclass(frozen=True, slots=True)
class _OmissionTest:
    """One plan, tested on some calls; the Lab remembers calls that were tried already."""

    calls: Calls
    lab: Lab
    bases: tuple[_Base, ...]

    def empty(self) -> frozenset[str]:
        """The arguments that some of the calls leave out because they are empty."""
        return frozenset[str]().union(*(base.empty for base in self.bases))

    def given(self, roots: Collection[str]) -> _OmissionTest:
        """Returns the same test for calls that have to bring these arguments."""
        bases = (replace(base, empty=base.empty.difference(roots)) for base in self.bases)
        return replace(self, bases=tuple(bases))

    def found(self, leaves: Sequence[LeafPlan]) -> _Defaults:
        """The leaves that a call may leave out at once, each with its default.

        :raises SpentError: when the budget has ended
        """
        return self.together(self.alone(leaves))

    def found_beside(self, known: _Defaults, leaves: Sequence[LeafPlan]) -> _Defaults:
        """As :meth:`found`, where ``known`` holds among more arguments that are left out: further
        tensors are looked for.

        :raises SpentError: when the budget has ended
        """
        further = self.alone([leaf for leaf in leaves if leaf.is_tensor and leaf.path not in known])
        return self.together({**known, **further}) if further else known

    def alone(self, leaves: Sequence[LeafPlan]) -> _Defaults:
        """The leaves that a call may leave out, each with its default.

        :raises SpentError: when the budget has ended
        """
        found: _Defaults = {}
        for leaf in leaves:
            for fill in _defaults_of(leaf, self.calls.domains.of(leaf.path)):
                if self._holds({leaf.path: fill}):
                    found[leaf.path] = fill
                    break
            detail = f"it is then as {found[leaf.path]}" if found.get(leaf.path) is not None else ""
            claim, root = f"{leaf.path} may be left out", leaf.path.root
            self.lab.record_claim(claim, leaf.path in found, argument=root, detail=detail)
        return found

    def together(self, found: _Defaults) -> _Defaults:
        """Those of them that a call may leave out at once, the first ones first.

        :raises SpentError: when the budget has ended
        """
        if len(found) < 2 or self._holds(found):
            return found
        kept: _Defaults = {}
        for path, fill in found.items():
            if self._holds({**kept, path: fill}):
                kept[path] = fill
        return kept

    def _holds(self, omitted: Mapping[Path, Fill | None]) -> bool:
        """True when the model gives without these arguments what it gives with their defaults,
        wherever it runs.
        """
        roots = {path.root for path in omitted}
        n_held = 0
        for number, base in enumerate(self.bases):
            arguments = self.calls.arguments_of(base.values)
            absent = roots | base.empty
            rest = {name: value for name, value in arguments.items() if name not in absent}
            without = self._run(rest, omitted, "left out")
            if without is None and number == 0:
                return False
            with_defaults = self._filled(base.values, omitted)
            if with_defaults is None and without is None:
                continue
            if (
                with_defaults is None
                or without is None
                or not results_agree(without, with_defaults)
            ):
                return False
            n_held += 1
        return n_held >= min(2, len(self.bases))

    def _filled(self, base: Values, omitted: Mapping[Path, Fill | None]) -> Result | None:
        """The result with the defaults; None where the model refuses it, a default is not in the
        domain of its leaf, or its size shows nowhere else.
        """
        known = sizes_of(
            self.calls.plan, {path: value for path, value in base.items() if path not in omitted}
        )
        values = dict(base)
        for leaf in self.calls.plan.inputs:
            fill = omitted.get(leaf.path)
            if fill is None:
                continue
            values[leaf.path] = fill_of(replace(leaf, fill=fill), known)
            if values[leaf.path].shape != base[leaf.path].shape:
                return None
        if not self.calls.domains.are_valid(values):
            return None
        return self._run(self.calls.arguments_of(values), omitted, "as a default")

    def _run(self, arguments: Arguments, omitted: Collection[Path], what: str) -> Result | None:
        why = f"{', '.join(map(str, omitted))} {what}"
        return self.lab.try_run(arguments, why=why, memo=True)


def _defaults_of(leaf: LeafPlan, domain: Domain) -> tuple[Fill | None, ...]:
    """Returns the values that may stand for an argument that is left out: a mask hides nothing,
    anything else adds nothing.
    """
    if not leaf.is_tensor:
        return (None,)
    ones, zeros = Fill("ones"), Fill("zeros")
    return (
        (ones, zeros)
        if domain.is_mask or (domain.is_binary and domain.high == 1)
        else (zeros, ones)
    )
