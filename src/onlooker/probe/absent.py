"""Arguments that no call passed: a mask of ones is often left out, and a program without it takes no padding.

A parameter of the signature that is annotated as a tensor and called a mask gets a shape made of the symbols of
the plan. It is taken when the model gives the same with ones as without it, on several sizes and on every
observed form, and something else when a part is hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.expression import Expression
from ..core.path import Name, Path
from ..core.plan import Fill, Plan
from ..core.spec import TensorSpec
from ..core.structure import LEAF, Structure, Tree
from ..infer.samples import Row, row_of_values
from ..infer.unify import Union
from ..materialise.arguments import close_arguments
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .example import Example, find_example, size_choices
from .regimes import Regime, is_neutral
from .subject import Subject

__all__ = ["add_absent"]

logger = logging.getLogger(__name__)
_CHOICES = 3
#: the part of a mask that is hidden at its end: the last one, else a quarter, for models that read frames of samples
_ENDS = (1 << 30, 4)
_DTYPES = (torch.int64, torch.bool)


def add_absent(regime: Regime, samples: Sequence[Sample], subject: Subject) -> Regime:
    """The regime with every mask that the model takes and no call passed, filled with ones where it is absent."""
    for name in _candidates(regime, subject):
        plan = regime.plan()
        experiment = _Experiment(regime, plan, samples, subject, name, tuple(_examples(plan, samples, subject)))
        ways = ((*choice, part) for part in _ENDS for choice in _choices(experiment.plan))
        found = next(filter(None, (experiment.with_mask(*way) for way in ways)), None)
        unknown = f"{name} was never passed, and no ones in its place are neutral: run one padded batch"
        regime = found if found is not None else replace(regime, blind=(*regime.blind, unknown))
    return regime


def _candidates(regime: Regime, subject: Subject) -> Iterator[str]:
    """The parameters that are masks by name and tensors by annotation, and that no call passed."""
    passed = {path.root for path in regime.union.leaves}
    for parameter in subject.signature.parameters:
        optional = not parameter.required and "Tensor" in parameter.annotation
        given = parameter.name in passed and not _is_none(regime, parameter.name)
        if optional and parameter.name.endswith("mask") and not given:
            yield parameter.name


def _is_none(regime: Regime, name: str) -> bool:
    spec = regime.union.leaves.get(Path((Name(name),)))
    return getattr(spec, "value", 0) is None


def _choices(plan: Plan) -> Iterator[tuple[Expression, torch.dtype]]:
    """What the length of a mask may be: the sum of two lengths first, then one more than a length, then a length."""
    batch = {str(leaf.shape[0]) for leaf in plan.inputs if leaf.shape}
    lengths = [s.name for s in plan.symbols if s.name not in batch]
    sums = [Expression.symbol(a) + Expression.symbol(b) for a, b in combinations(lengths, 2)]
    single = any(len(leaf.shape) > 1 and str(leaf.shape[1]) == "1" for leaf in plan.inputs)
    nexts = [Expression.symbol(a) + Expression.constant(1) for a in lengths] if single else []
    for dtype in _DTYPES:
        for length in (*sums, *nexts, *map(Expression.symbol, lengths)):
            yield length, dtype


def _examples(plan: Plan, samples: Sequence[Sample], subject: Subject) -> Iterator[Example]:
    """A few calls of general sizes that the model takes without the mask."""
    count = 0
    for sizes in size_choices(plan):
        try:
            yield find_example(plan, samples, subject, choices=[sizes])
        except ExportError:
            continue
        count += 1
        if count == _CHOICES:
            return


@dataclass(frozen=True, slots=True)
class _Experiment:
    """One parameter of one regime, asked about with the model."""

    regime: Regime
    plan: Plan
    samples: Sequence[Sample]
    subject: Subject
    name: str
    examples: tuple[Example, ...]
    refused: set[tuple[int, ...]] = field(default_factory=set)

    def with_mask(self, length: Expression, dtype: torch.dtype, part: int) -> Regime | None:
        """The regime with a mask of that length, or None where it is not neutral, or hides nothing."""
        batch = next((e for leaf in self.plan.inputs for e in leaf.shape[:1] if e.is_symbol), None)
        if batch is None:
            return None
        rows = []
        for number, example in enumerate(self.examples):
            shape = (batch.evaluate(example.sizes), length.evaluate(example.sizes))
            if (number, *shape, _DTYPES.index(dtype)) in self.refused:
                return None
            if not self._is_neutral(number, torch.ones(shape, dtype=dtype), part):
                return None
            values = example.values
            rows.append(self._row(f"probe of {self.name} {number}", values, shape))
        if len(rows) < 2:
            return None
        extended = self._extended(TensorSpec(shape, str(dtype), _device(values)), rows)
        if all(is_neutral(extended, form, self.samples, self.subject) for form in extended.union.forms):
            logger.debug("%s was never passed and is neutral as ones of (%s, %s)", self.name, batch, length)
            return extended
        return None

    def _is_neutral(self, number: int, mask: torch.Tensor, part: int) -> bool:
        example = self.examples[number]
        arguments, expected = close_arguments(self.plan, example.values), example.outputs
        mask = mask.to(_device(example.values))
        try:
            got = self.subject.try_out({**arguments, self.name: mask})
            if not _agree(expected, got):
                self.refused.add((number, *mask.shape, _DTYPES.index(mask.dtype)))
                return False
            if mask.shape[1] < 2:
                return True
            ends = (slice(0, mask.shape[1] // 2), slice(-1 - mask.shape[1] // part, None))
            return all(self._hides(arguments, expected, mask, where) for where in ends)
        except Exception as error:
            self.refused.add((number, *mask.shape, _DTYPES.index(mask.dtype)))
            logger.debug("%s of shape %s is refused: %s", self.name, tuple(mask.shape), type(error).__name__)
            return False

    def _hides(self, arguments: Mapping[str, Any], expected: Tree[Any], mask: torch.Tensor, where: slice) -> bool:
        """True when zeros there give another result: a mask that is too long is cut, and its end is never read."""
        hidden = mask.clone()
        hidden[0, where] = 0
        return not _agree(expected, self.subject.try_out({**arguments, self.name: hidden}))

    def _row(self, label: str, values: Mapping[Path, Any], shape: tuple[int, int]) -> Row:
        mask = {Path((Name(self.name),)): torch.empty(shape, device="meta")}
        return row_of_values(label, {**values, **mask})

    def _extended(self, spec: TensorSpec, rows: Sequence[Row]) -> Regime:
        path, union = Path((Name(self.name),)), self.regime.union
        structure = union.structure
        kept = [(e, c) for e, c in zip(structure.entries, structure.children, strict=True) if e != Name(self.name)]
        entries = (*(e for e, _ in kept), Name(self.name))
        children = (*(c for _, c in kept), Structure(LEAF))
        leaves = {p: s for p, s in union.leaves.items() if p != path} | {path: spec}
        grown = Union(Structure(structure.kind, entries, children, structure.context), leaves, union.forms)
        return replace(
            self.regime,
            union=grown,
            fills={**self.regime.fills, path: Fill("ones")},
            probes=(*self.regime.probes, *rows),
        )


def _agree(expected: Tree[Any], got: Tree[Any]) -> bool:
    return agreement(expected.structure.paths(), expected.leaves, got.leaves).holds


def _device(values: Mapping[Path, Any]) -> str:
    return next((str(v.device) for v in values.values() if isinstance(v, torch.Tensor)), "cpu")
