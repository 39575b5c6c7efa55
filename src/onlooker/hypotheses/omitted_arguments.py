"""Arguments that every call passed: which of them may a call leave out?

``generate()`` drops a mask that hides nothing, and some of its ways leave out flags that the
configuration of the model says anyway. A tensor may be left out where the model gives for ones, or
zeros, of its shape what it gives without it; a flag where it gives the same with it and without it.
Both are tested on several sizes: each tensor alone, each flag alone at the sizes of two calls, and
then all of them together. Where that does not hold, each flag is tested alone at all sizes, too.

A cache that was empty in some calls and absent in none is another question: the model may return
one only where it was given one. The calls with an empty one are run without it. Where a mask may be
left out beside an empty cache and not without one, a call has to bring the cache: each call did.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from ..core.call import Call
from ..core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from ..core.path import Path
from ..core.plan import Fill, LeafPlan, Plan
from ..core.spec import ConstantSpec
from ..core.structure import Tree
from ..infer.sizes import Sizes, cut_sizes, example_sizes, is_possible, size_label
from ..lab.judge import results_agree
from ..lab.lab import Lab, SpentError
from ..lab.rerun import difference
from ..lab.small_sizes import representative, short_call
from ..lab.work import work_of
from ..materialise.arguments import close_arguments, fill_of, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..materialise.domain import Domain
from ..materialise.domains import Domains, domains_of
from ..observing.store import Sample
from .draft import Draft

__all__ = ["OmittedArguments"]

logger = logging.getLogger(__name__)

#: choices of general sizes beside those of the first and the last call
_CHOICES = 1
#: the sizes at which flags are left out one by one: those of the last call, and of the first one
_QUICK = 2

#: what stands for each argument that is left out; None for a flag, which nothing has to stand for
_Defaults = dict[Path, Fill | None]


class OmittedArguments:
    """A call may leave out an argument that every call passed: a tensor with a neutral default,
    or a flag.
    """

    question: ClassVar[str] = "which arguments that every call passed may be left out?"
    most_runs: ClassVar[int] = 96

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft, self._lab = draft, lab
        self._samples = draft.own(samples)

    def drafts(self) -> Iterator[Draft]:
        """The draft with a default for every tensor, and a word for every flag, that a call may
        leave out.
        """
        self._draft = self._with_needed()
        yield self._draft
        plan = self._draft.plan()
        candidates = [leaf for leaf in plan.leaves if _is_candidate(leaf, plan, self._lab)]
        if not self._samples or all(self._is_refused_without(leaf) for leaf in candidates):
            return
        test = _OmissionTest(
            plan,
            self._lab,
            tuple(_bases(plan, self._samples, self._lab)),
            domains_of(self._samples),
        )
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
        """True when the model refuses the last call without an argument. Where a run is a lot of work,
        it is first made without values.

        :raises SpentError: when the budget has ended
        """
        claim = f"{leaf.path} may be left out"
        sample = self._samples[-1]
        rest = {name: value for name, value in sample.arguments().items() if name != leaf.path.root}
        is_large = work_of(self._lab.model, leaf_values(sample)) > self._lab.most_work
        if is_large and self._lab.takes_shapes(rest, why=f"{claim}, without values"):
            return False
        if self._lab.try_run(rest, why=claim, memo=True) is not None:
            return False
        finding = Finding(FindingKind.REFUTED)
        self._lab.record(finding=finding, claim=claim, argument=leaf.path.root)
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
        kind = FindingKind.CONFIRMED if holds else FindingKind.REFUTED
        self._lab.record(finding=Finding(kind), claim=claim, argument=root)
        return holds

    def untested(self, spent: SpentError) -> BlindSpot:
        """All of them: what was found alone may not hold together."""
        return BlindSpot(BlindKind.BUDGET, detail="every argument was left out", limit=spent.limit)


def _calls(draft: Draft) -> Iterator[Call]:
    return (call for form in draft.union.forms for call in form.calls)


def _n_leaves(call: Call, root: str) -> int | None:
    """How many leaves an argument of a call has; None for one that is absent, or None itself."""
    structure = call.inputs.structure
    for entry, child in zip(structure.entries, structure.children, strict=True):
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

    values: Mapping[Path, Any]
    empty: frozenset[str] = frozenset()


def _bases(plan: Plan, samples: Sequence[Sample], lab: Lab) -> Iterator[_Base]:
    """At the sizes of the last call and of the first one, each as small as the model is the same
    there, then at general ones, and at general ones with what may be empty.
    """
    general = list(islice(representative(plan, samples, lab, example_sizes(plan)), _CHOICES))
    observed = [sizes_of(plan, leaf_values(sample)) for sample in (samples[-1], samples[0])]
    seen: list[Sizes] = []
    for sizes in observed:
        choices = [*(cut_sizes(plan, sizes, small) for small in general), sizes]
        seen.append(next(representative(plan, samples, lab, choices), sizes))
    for sizes in {size_label(sizes): sizes for sizes in (*seen, *general)}.values():
        yield _Base(materialise(plan, sizes, samples))
    roots = dict.fromkeys(leaf.path.root for leaf in plan.inputs)
    empty = frozenset(root for root in roots if _may_be_empty(plan, root)) - {*plan.needed}
    for sizes in general if empty else ():
        smallest = {**sizes, **{symbol.name: 0 for symbol in plan.symbols if symbol.allows(0)}}
        if is_possible(plan, smallest):
            values = materialise(plan, smallest, samples)
            absent = [leaf for leaf in plan.inputs if leaf.path.root in empty]
            yield _Base(
                {**values, **{leaf.path: fill_of(leaf, smallest) for leaf in absent}}, empty
            )


@dataclass(frozen=True, slots=True)
class _OmissionTest:
    """One plan, tested on some calls; the Lab remembers calls that were tried already."""

    plan: Plan
    lab: Lab
    bases: tuple[_Base, ...]
    domains: Domains

    def empty(self) -> frozenset[str]:
        """The arguments that some of the calls leave out because they are empty."""
        return frozenset[str]().union(*(base.empty for base in self.bases))

    def given(self, roots: Collection[str]) -> _OmissionTest:
        """The same test where these arguments are never left out: a call has to bring them."""
        bases = (replace(base, empty=base.empty.difference(roots)) for base in self.bases)
        return replace(self, bases=tuple(bases))

    def found(self, leaves: Sequence[LeafPlan]) -> _Defaults:
        """The leaves that a call may leave out at once, each with its default.

        :raises SpentError: when the budget has ended
        """
        flags = [leaf for leaf in leaves if not leaf.is_tensor]
        tensors = self.alone([leaf for leaf in leaves if leaf.is_tensor])
        quick = {**tensors, **replace(self, bases=self.bases[:_QUICK]).alone(flags)}
        ordered = {leaf.path: quick[leaf.path] for leaf in leaves if leaf.path in quick}
        if len(flags) < 2 or not self._holds(ordered):
            whole = {**tensors, **self.alone([leaf for leaf in flags if leaf.path in quick])}
            ordered = {path: fill for path, fill in ordered.items() if path in whole}
            return self.together(ordered)
        return ordered

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
            for fill in _defaults_of(leaf, self.domains.of(leaf.path)):
                if self._holds({leaf.path: fill}):
                    found[leaf.path] = fill
                    break
            kind = FindingKind.CONFIRMED if leaf.path in found else FindingKind.REFUTED
            detail = f"it is then as {found[leaf.path]}" if found.get(leaf.path) is not None else ""
            claim = f"{leaf.path} may be left out"
            self.lab.record(finding=Finding(kind, detail), claim=claim, argument=leaf.path.root)
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
            arguments = close_arguments(self.plan, base.values)
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

    def _filled(
        self, base: Mapping[Path, Any], omitted: Mapping[Path, Fill | None]
    ) -> Tree[Any] | None:
        """The result with the defaults; None where the model refuses it, a default is not in the
        domain of its leaf, or its size shows nowhere else.
        """
        known = sizes_of(
            self.plan, {path: value for path, value in base.items() if path not in omitted}
        )
        values = dict(base)
        for leaf in self.plan.inputs:
            fill = omitted.get(leaf.path)
            if fill is None:
                continue
            values[leaf.path] = fill_of(replace(leaf, fill=fill), known)
            if values[leaf.path].shape != base[leaf.path].shape:
                return None
        if not self.domains.are_lawful(values):
            return None
        return self._run(close_arguments(self.plan, values), omitted, "as a default")

    def _run(
        self, arguments: dict[str, Any], omitted: Collection[Path], what: str
    ) -> Tree[Any] | None:
        why = f"{', '.join(map(str, omitted))} {what}"
        return self.lab.try_run(arguments, why=why, memo=True)


def _defaults_of(leaf: LeafPlan, domain: Domain) -> tuple[Fill | None, ...]:
    """What may stand for an argument that is left out: a mask hides nothing, anything else adds
    nothing.
    """
    if not leaf.is_tensor:
        return (None,)
    ones, zeros = Fill("ones"), Fill("zeros")
    return (
        (ones, zeros)
        if domain.is_mask or (domain.is_binary and domain.high == 1)
        else (zeros, ones)
    )
