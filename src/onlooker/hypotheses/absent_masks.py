"""Masks that no call passed: a mask of ones is often left out, and a program without it takes no
padding.

A parameter of the signature that is annotated as a tensor and called a mask gets a shape made of
the symbols of the plan. It becomes an input, with ones as its default, when the model gives the
same with ones as without the mask, on several sizes and for every observed form of a call, and
something else when a part is hidden.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.experiment import BlindKind, BlindSpot
from ..core.path import Name, Path
from ..core.plan import Fill, Plan, symbol_names
from ..core.sizes.expression import Expression
from ..core.spec import TensorSpec
from ..core.structure import LEAF, Result, Structure
from ..infer.samples import Row, row_of_values
from ..infer.sizes import example_sizes
from ..infer.unify import Union
from ..lab.example import Example, find_example
from ..lab.lab import Lab, SpentError
from ..lab.small_sizes import representative
from ..materialise.arguments import Calls
from ..observing.store import Sample
from ..pytrees.comparisons.agree import agreement
from .draft import Draft
from .family import Family
from .shared_graphs import is_neutral

__all__ = ["AbsentMasks"]

logger = logging.getLogger(__name__)

#: examples without the mask
_MOST_EXAMPLES = 3
#: what is hidden at the end of a mask: the last element, else a quarter, for models that read
#: frames of samples
_HIDDEN_PARTS = (1 << 30, 4)
_DTYPES = (torch.int64, torch.bool)
#: a list of masks is no mask
_CONTAINER = re.compile(r"\b(list|tuple|dict|sequence)\[.*?\]", re.IGNORECASE)


class AbsentMasks(Family):
    """Ones are neutral for a mask that no call passed, so that a program may take one."""

    question = "which masks that no call passed does the model take?"
    most_runs = 160

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft, self._samples, self._lab = draft, samples, lab
        self._untested: tuple[str, ...] = ()

    def drafts(self) -> Iterator[Draft]:
        """The draft after each mask: with it, or with the blind spot that it is unknown."""
        draft = self._draft
        names = tuple(self._candidates())
        for number, name in enumerate(names):
            self._untested = names[number:]
            draft = self._with_mask(draft, name)
            yield draft

    def untested(self, spent: SpentError) -> BlindSpot:
        """The masks that were not tested."""
        detail = f"{', '.join(self._untested)} could be tested as a mask that no call passed"
        return BlindSpot(
            BlindKind.BUDGET, argument=self._untested[0], detail=detail, limit=spent.limit
        )

    def _candidates(self) -> Iterator[str]:
        """The parameters that are masks by name and tensors by annotation, and that no call
        passed.
        """
        leaves = self._draft.union.leaves
        passed = {path.root for path in leaves}
        for parameter in self._lab.signature.parameters:
            is_tensor = "Tensor" in _CONTAINER.sub("", parameter.annotation)
            if parameter.required or not is_tensor or not parameter.name.endswith("mask"):
                continue
            spec = leaves.get(Path((Name(parameter.name),)))
            is_none = getattr(spec, "value", 0) is None
            if parameter.name not in passed or is_none:
                yield parameter.name

    def _with_mask(self, draft: Draft, name: str) -> Draft:
        calls = Calls(draft.plan(), self._samples)
        lengths = list(_lengths(calls.plan))
        examples = _Examples(calls, self._lab) if lengths else ()
        test = _MaskTest(draft, calls, self._lab, name, examples)
        claim = f"{name} may be given, and ones are its default"
        if test.is_unread():
            self._lab.record_claim(claim, False, argument=name, detail="nothing reads it")
            return draft
        for part in _HIDDEN_PARTS:
            for length, dtype in lengths:
                found = test.with_mask(length, dtype, part)
                if found is not None:
                    detail = f"its shape is (batch, {length})"
                    self._lab.record_claim(claim, True, argument=name, detail=detail)
                    return found
        self._lab.record_claim(claim, False, argument=name)
        return draft.with_blind(BlindSpot(BlindKind.MASK_NEVER_PASSED, argument=name))


def _lengths(plan: Plan) -> Iterator[tuple[Expression, torch.dtype]]:
    """Yields the lengths that a mask may have: the sum of two lengths first, then one more than a
    length, then a length.
    """
    first = {str(leaf.shape[0]) for leaf in plan.inputs if leaf.shape}
    second = {str(leaf.shape[1]) for leaf in plan.inputs if len(leaf.shape) > 1}
    names = [name for name in symbol_names(plan) if name not in first]
    lengths = [Expression.symbol(name) for name in names]
    candidates = [one + two for one, two in combinations(lengths, 2)]
    if "1" in second:
        one = Expression.constant(1)
        candidates += [length + one for length in lengths]
    candidates += lengths
    for dtype in _DTYPES:
        for length in candidates:
            yield length, dtype


class _Examples:
    """A few calls of general sizes that the model takes without the mask; each is made when it is asked for:
    most masks fail with the first one.

    Reading them raises ``SpentError`` when the budget has ended.
    """

    def __init__(self, calls: Calls, lab: Lab) -> None:
        self._made: list[Example] = []
        self._others = islice(self._found(calls, lab), _MOST_EXAMPLES)

    def __iter__(self) -> Iterator[Example]:
        yield from self._made
        for example in self._others:
            self._made.append(example)
            yield example

    @staticmethod
    def _found(calls: Calls, lab: Lab) -> Iterator[Example]:
        for sizes in representative(calls, lab, example_sizes(calls.plan)):
            with contextlib.suppress(ExportError):
                yield find_example(calls, lab, choices=[sizes], necessary=False)


@dataclass(frozen=True, slots=True)
class _MaskTest:
    """One parameter of one draft; ``refused`` are the masks, each with the number of its
    example, that do not fit.
    """

    draft: Draft
    calls: Calls
    lab: Lab
    name: str
    examples: Iterable[Example]
    refused: set[tuple[Any, ...]] = field(default_factory=set)

    def is_unread(self) -> bool:
        """True when a mask of a length that no axis has, which hides every second element, changes
        nothing: the model skips what would read it, as a decoder does with the mask of an encoder that
        has run before.

        :raises SpentError: when the budget has ended
        """
        example = next(iter(self.examples), None)
        if example is None:
            return False
        every_second = torch.arange(1 + sum(example.sizes.values())) % 2
        mask = every_second[None].to(_device(example.values))
        got = self._run(self.calls.arguments_of(example.values), mask, "that no axis has")
        return got is not None and _has_equal_leaves(example.outputs, got)

    def with_mask(self, length: Expression, dtype: torch.dtype, part: int) -> Draft | None:
        """The draft with a mask of that length, or None where it is not neutral, or hides nothing.

        :raises SpentError: when the budget has ended
        """
        batch = next(
            (e for leaf in self.calls.plan.inputs for e in leaf.shape[:1] if e.is_symbol), None
        )
        if batch is None:
            return None
        rows: list[Row] = []
        shape, device = (0, 0), ""
        for number, example in enumerate(self.examples):
            shape = (batch.evaluate(example.sizes), length.evaluate(example.sizes))
            device = _device(example.values)
            if (number, shape, dtype) in self.refused:
                return None
            if not self._is_neutral(number, example, torch.ones(shape, dtype=dtype), part):
                return None
            rows.append(self._row(f"probe of {self.name} {number}", example.values, shape))
        if len(rows) < 2:
            return None
        spec = TensorSpec(shape, str(dtype), device)
        extended = self._extended(spec, rows)
        if all(
            is_neutral(extended, form, self.calls.samples, self.lab)
            for form in extended.union.forms
        ):
            logger.debug(
                "%s was never passed and is neutral as ones of (%s, %s)", self.name, batch, length
            )
            return extended
        return None

    def _is_neutral(self, number: int, example: Example, mask: torch.Tensor, part: int) -> bool:
        """True when ones change nothing, and zeros in either end of the mask change something."""
        arguments, expected = self.calls.arguments_of(example.values), example.outputs
        mask = mask.to(_device(example.values))
        got = self._run(arguments, mask, "of ones")
        if got is None or not _has_equal_leaves(expected, got):
            self.refused.add((number, tuple(mask.shape), mask.dtype))
            return False
        if mask.shape[1] < 2:
            return True
        first_half = slice(0, mask.shape[1] // 2)
        end = slice(-1 - mask.shape[1] // part, None)
        return all(self._hides(number, example, mask, where) for where in (first_half, end))

    def _hides(self, number: int, example: Example, mask: torch.Tensor, where: slice) -> bool:
        """True when zeros there give another result: a mask that is too long is cut, and its end
        is never read.
        """
        hidden = mask.clone()
        hidden[0, where] = 0
        arguments = self.calls.arguments_of(example.values)
        got = self._run(arguments, hidden, "that hides a part")
        if got is None:
            self.refused.add((number, tuple(mask.shape), mask.dtype))
            return False
        return not _has_equal_leaves(example.outputs, got)

    def _run(self, arguments: Mapping[str, Any], mask: torch.Tensor, what: str) -> Result | None:
        """The result with the mask, None where the model refuses it."""
        why = f"{self.name} of shape {tuple(mask.shape)} {what}"
        return self.lab.try_run({**arguments, self.name: mask}, why=why, memo=True)

    def _row(self, label: str, values: Mapping[Path, Any], shape: tuple[int, int]) -> Row:
        mask = torch.empty(shape, device="meta")
        return row_of_values(label, {**values, Path((Name(self.name),)): mask})

    def _extended(self, spec: TensorSpec, rows: Sequence[Row]) -> Draft:
        """The draft with the mask as its last argument."""
        name, path = Name(self.name), Path((Name(self.name),))
        union = self.draft.union
        before = union.structure
        children = dict(before.parts)
        children.pop(name, None)
        children[name] = Structure(LEAF)
        structure = Structure(
            before.kind, tuple(children), tuple(children.values()), before.context
        )
        leaves = dict(union.leaves)
        leaves.pop(path, None)
        leaves[path] = spec
        grown = Union(structure, leaves, union.forms)
        fills = {**self.draft.fills, path: Fill("ones")}
        return replace(self.draft, union=grown, fills=fills).with_probes(*rows)


def _has_equal_leaves(expected: Result, got: Result) -> bool:
    return agreement(expected.structure.paths(), expected.leaves, got.leaves).holds


def _device(values: Mapping[Path, Any]) -> str:
    devices = (str(value.device) for value in values.values() if isinstance(value, torch.Tensor))
    return next(devices, "cpu")
