"""Random modules with hidden branches, as Python source, and the calls that are made of them.

A module has one to three steps. Each has a condition on sizes (or on an int argument) and two arms that differ only in
some values or for some sizes, or not at all. Constants are planted on, beside, between, below and above the sizes of
the watched calls. The choices come from Hypothesis (:func:`cases`), or from a seed and a number (:func:`case_of`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import math
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol, TypeVar

import torch
from hypothesis import assume
from hypothesis import strategies as st

T = TypeVar("T")
Sizes = Mapping[str, int]

#: What the watched sizes are drawn from; the first is the simplest.
LENGTHS = (5, 8, 3, 4, 6, 7, 9, 12, 15, 16, 20, 24, 30, 32, 40, 48, 2, 1)
CHOICES = {
    "batch": (2, 3, 4, 5, 8, 1),
    "length": LENGTHS,
    "other": LENGTHS,
    "past": (6, 3, 4, 8, 9, 12, 16, 20, 31, 2, 1, 0),
    "k": (5, 3, 1, 2, 8, 12, 20, 30, 40, 50, 0, -1, -7),
}
DIVISORS = (4, 2, 3, 8)

#: The inputs of a module -> the shape of each tensor, or what makes another argument from its number.
#: A tensor with a negative size is absent: None.
INPUTS: dict[str, dict[str, Any]] = {
    "x": {"x": ("batch", "length")},
    "x, y": {"x": ("batch", "length"), "y": ("batch", "other")},
    "x, k": {"x": ("batch", "length"), "k": int},
    "x, past, mask": {"x": ("batch", "length"), "past": ("batch", "past"), "mask": ("batch", "past + length")},
    "x, flag": {"x": ("batch", "length"), "flag": bool},
    "x, scale": {"x": ("batch", "length"), "scale": lambda number: number / 2},
    "x, y=None": {"x": ("batch", "length"), "y": ("batch", "other")},
    "z": {"z": ("batch", "length", "width")},
}
#: How often each of them is chosen.
USUAL_INPUTS = ("x", "x, y", "x, k", "x, past, mask", "x", "x, y", "x, k")
#: How the result starts, from the inputs.
STARTS = {
    "x": ("x * 1.0", "x", "x + x.shape[1]"),
    "x, y": ("x + y.sum(1, keepdim=True)", "torch.cat([x, y], 1)", "x * y.shape[1]"),
    "x, k": ("x + k", "x", "x * k"),
    "x, past, mask": ("torch.cat([past, x], 1) * mask", "mask + torch.cat([x, past], 1)"),
}
#: As before, where both inputs have the same length in every watched call.
STARTS_ALIKE = ("x + y", "x * y", "torch.cat([x, y], 1)")

#: Numbers that a condition may test or a body may use: {c} is a constant, {d} a divisor.
NUMBERS = {
    "x": {
        "length": ("x.shape[1]", "x.size(-1)", "x.shape[1]"),
        "batch": ("x.shape[0]", "len(x)", "x.size(0)"),
        "product": ("x.shape[0] * x.shape[1]", "x.numel()", "x.view(-1).shape[0]", "x.shape[1] ** 2"),
        "sum": ("x.shape[0] + x.shape[1]", "x.shape[1] - x.shape[0]", "sum(x.shape)", "abs(x.shape[1] - {c})"),
        "floor division": (
            "x.shape[1] // {d}",
            "(x.shape[1] + {d} - 1) // {d}",
            "len(range(0, x.shape[1], {d}))",
            "int(x.shape[1] / {d})",
        ),
        "modulo": ("x.shape[1] % {d}", "-x.shape[1] % {d}", "x.numel() % {d}", "x.shape[0] % {d}"),
        "minimum": ("min(x.shape[1], {c})", "max(x.shape[1], {c})", "max(x.shape)", "min(x.shape)"),
        "slice": ("x[:, :{c}].shape[1]", "x[:, {c}:].shape[1]", "x[:, ::{d}].shape[1]", "len(x[{d}:])"),
        "float": ("math.ceil(x.shape[1] / {d})", "int(x.shape[1] * 0.75)", "x.shape[1] / {d}", "x.shape[1] ** 0.5"),
        "rank": ("x.squeeze(0).dim()", "x.squeeze(1).dim()", "x.squeeze().dim()", "x.squeeze(0).shape[0]"),
        "count of parts": ("len(x.split({wide}, 1))", "len(x.chunk({d}, 1))", "len(x.split(3, 0))"),
    },
    "y": {
        "other": ("y.shape[1]", "y.size(1)"),
        "two inputs": (
            "x.shape[1] + y.shape[1]",
            "x.shape[1] - y.shape[1]",
            "y.shape[1] - x.shape[1]",
            "x.shape[1] * y.shape[1]",
            "max(x.shape[1], y.shape[1])",
            "min(x.shape[1], y.shape[1])",
            "torch.cat([x, y], 1).shape[1]",
            "y.numel() - x.numel()",
        ),
    },
    "k": {
        "int": ("k", "k", "abs(k)", "k % {d}", "k // {d}", "max(k, {c})"),
        "int and size": ("k + x.shape[1]", "k - x.shape[1]", "k * x.shape[0]", "x[:, :k].shape[1]"),
    },
    "past": {
        "past": ("past.shape[1]", "past.shape[1]", "min(past.shape[1], {c})", "past.numel()"),
        "past and sequence": ("past.shape[1] + x.shape[1]", "past.shape[1] - x.shape[1]"),
    },
    "mask": {
        "total": ("mask.shape[1]", "mask.shape[1] - x.shape[1]", "mask.shape[1] - past.shape[1]", "mask.numel()"),
        "three inputs": ("past.shape[1] - mask.shape[1] + x.shape[1]", "mask[:, past.shape[1] :].shape[1]"),
    },
}

#: Conditions on a number {n}; {c} and {e} are constants, {d} a divisor.
CONDITIONS = {
    ">": ("{n} > {c}",),
    ">=": ("{n} >= {c}",),
    "<": ("{n} < {c}",),
    "<=": ("{n} <= {c}",),
    "==": ("{n} == {c}",),
    "!=": ("{n} != {c}",),
    "%": ("{n} % {d} == 0", "{n} % {d}", "not {n} % {d}", "{n} % {d} != 1"),
    "between": ("{c} < {n} < {e}", "{n} > {c} and {n} != {e}", "{n} < {c} or {n} > {e}", "{n} in ({c}, {e})"),
}
#: Conditions without a number of their own, by the input that they need.
WHOLE_CONDITIONS = {
    "x": {
        "== 1": ("x.shape[0] == 1", "x.shape[1] == 1", "x.shape[1] != 1", "x.shape[0] > 1", "x.numel() == 1"),
        "== 0": ("x.shape[1] == 0", "x.numel() == 0", "not len(x)", "x.shape[1] < 1"),
        "rank": ("x.squeeze(0).dim() == 1", "x.squeeze(1).dim() == 2", "x.squeeze().dim() < 2"),
        "square": ("x.shape[0] == x.shape[1]", "x.shape[1] > x.shape[0]", "x.shape[1] % max(x.shape[0], 1) == 0"),
        "any of": ("all(size > 2 for size in x.shape)", "any(size == 7 for size in x.shape)", "x.shape[1:] == (12,)"),
    },
    "y": {
        "two inputs": ("x.shape[1] == y.shape[1]", "x.shape == y.shape", "x.shape[1] > y.shape[1]", "y.shape[1] == 1")
    },
    "k": {"int": ("k", "k == 1", "k > 0", "k < x.shape[1]", "k == x.shape[0]")},
    "past": {"past": ("past.shape[1] == 0", "past.shape[1] > 0 and x.shape[1] == 1", "past.numel()")},
    "mask": {"three inputs": ("past.shape[1] - mask.shape[1] + x.shape[1] > 0", "mask.shape[1] > x.shape[1]")},
}

#: Pairs of arms: expressions of ``out``. {n} is a number, {c} a constant of the length, {b} one of the batch,
#: {one} the constant of the length, but at least 1.
ARMS = {
    "same": (
        ("out * 2", "2 * out"),
        ("out + 0", "out * 1"),
        ("out.cumsum(1)", "torch.cumsum(out, dim=1)"),
        ("out[:, : out.shape[1]] * 2", "out * 2"),
        ("F.pad(out, (0, 0)) + 1", "out + 1"),
        ("out.reshape(out.shape[0], out.shape[1]).relu()", "out.relu()"),
        ("out - out.mean(1, keepdim=True)", "out - out.mean(dim=-1, keepdim=True)"),
    ),
    "scale": (("out * 2", "out * 3"), ("out + 1", "out"), ("out", "-out")),
    "window": (
        ("out * (torch.arange(out.shape[1]) < {c})", "out * 1"),
        ("out.masked_fill(torch.arange(out.shape[1]) >= {c}, 0.0)", "out"),
        ("out * (torch.arange(out.shape[0]) < {b})[:, None]", "out"),
        ("out.tril({c})", "out"),
    ),
    "clamp": (
        ("out.clamp(-50, 50)", "out"),
        ("out.clamp(max=50) * 2", "out * 2"),
        ("out.clamp(min=-100)", "out"),
        ("torch.where(out > 900, 0.0, out)", "out"),
    ),
    "sign": (("out.abs()", "out"), ("out.relu()", "out.clamp(min=-0.5)"), ("-out.abs()", "-out")),
    "special": (
        ("torch.where(out == 0, 1.0, out)", "out"),
        ("torch.where(out.isnan(), 0.0, out)", "out"),
        ("torch.where(out.isinf(), 7.0, out)", "out"),
        ("out.nan_to_num(0.0, 1e4, -1e4)", "out"),
    ),
    "number": (
        ("out * min({n}, {c})", "out * {n}"),
        ("out * {n}", "out * max({n}, {c})"),
        ("out + {n}", "out + {c}"),
        ("out.sum(1, keepdim=True) / max({n}, 1) + out", "out.sum(1, keepdim=True) / {one} + out"),
        ("out * x[:, :{c}].shape[1]", "out * x.shape[1]"),
    ),
    "pad": (
        ("F.pad(out, (0, -out.shape[1] % {d}))", "out"),
        ("F.pad(out, (0, max({c} - out.shape[1], 0)))", "out"),
        ("F.pad(out, (0, 1))[:, 1:]", "out"),
    ),
    "concatenation": (
        ("torch.cat([out, out[:, {c}:]], 1)", "out"),
        ("torch.cat([out[:, {c}:], out[:, :{c}]], 1)", "out"),
        ("torch.cat([out, out[:, :1]], 1)", "torch.cat([out, out[:, -1:]], 1)"),
    ),
    "cut": (("out[:, :{one}]", "out"), ("out[:, -{one}:]", "out"), ("out[:{one}]", "out")),
    "order": (
        ("out.flip(1)", "out"),
        ("out.flip(0).cumsum(0)", "out.cumsum(0)"),
        ("out.cumsum(1)", "out"),
        ("out.softmax(1)", "torch.ones_like(out) / max(out.shape[1], 1)"),
        ("out - out.mean(0)", "out * 0"),
        ("out.roll({d}, 1)", "out"),
    ),
}

#: Steps without two arms, which decide something about sizes all the same.
PLAIN_STEPS = {
    "minimum": ("out = out * min({n}, {c})", "out = out + max({n} - {c}, 0)"),
    "loop": (
        "for _ in range(min({n} // {wide}, 9)):\n    out = out * 1.25 + 1",
        "for start in range(0, out.shape[1], {wide}):\n    out = out + out[:, start : start + 1]",
        "out = torch.cat([out[:, i : i + {wide}].flip(1) for i in range(0, out.shape[1], {wide})], 1)",
        "for part in x.split(3, 0):\n    out = out + part.sum()",
    ),
    "parts": (
        "out = torch.cat(out.chunk({d}, 1)[::-1], 1)",
        "out = torch.cat(out.split({wide}, 1)[::-1], 1)",
        "out = torch.cat([out, out.tensor_split({d}, 1)[0]], 1)",
        "out = out + torch.stack([part.sum() for part in x.split({wide}, 1)]).amax()",
    ),
    "flag as number": (
        "out = out * ({n} > {c})",
        "out = out + bool({n} == {e})",
        "out = out * (2 if {n} > {c} else 3)",
    ),
    "refusal": ("if {n} > {high}:\n    raise ValueError('too large')", "assert {n} != {c} + 1"),
    "lookup": ("out = out * {{{c}: 2.0, {e}: 3.0}}.get(int({n}), 1.0)",),
}
#: Families of plain steps as often as they are chosen: a lookup needs a graph a size.
USUAL_STEPS = (*(3 * ("minimum", "loop", "parts", "flag as number", "refusal")), "lookup")

#: Steps with a branch that changes nothing, since its operator does nothing on the other side.
NEEDLESS_STEPS = (
    "pad = -out.shape[1] % {d}\nif pad > 0:\n    out = F.pad(out, (0, pad))",
    "missing = {c} - out.shape[1]\nif missing > 0:\n    out = F.pad(out, (0, missing))",
    "if out.shape[1] > {one}:\n    out = out[:, :{one}]",
    "if x.shape[1] != 1:\n    out = out.flip(1).flip(1)",
    "if out.shape[0] > 1:\n    out = out * 1.0",
)

#: How the two arms are written; {q} is the condition, {a} and {z} are the arms.
FLOWS = {
    "statement": "if {q}:\n{a}\nelse:\n{z}",
    "expression": "out = {a} if {q} else {z}",
    "one sided": "if {q}:\n{a}",
    "reversed": "if not ({q}):\n{z}\nelse:\n{a}",
    "chosen": "out = ((lambda: {z}), (lambda: {a}))[bool({q})]()",
    "table": "out = {{True: (lambda: {a}), False: (lambda: {z})}}[bool({q})]()",
    "flag": "flag = {q}\nif flag:\n{a}\nelse:\n{z}",
}
#: Where the arm is an expression, so that nothing can be nested in it.
EXPRESSION_FLOWS = ("expression", "chosen", "table")

HEADER = "import math\n\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"


@dataclass(frozen=True)
class Case:
    """A module, the sizes of its watched calls, and what was planted in it."""

    source: str
    inputs: str
    watched: tuple[Sizes, ...]
    conditions: tuple[str, ...] = ()
    constants: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()

    @property
    def axes(self) -> tuple[str, ...]:
        return axes_of(self.inputs)


def axes_of(inputs: str) -> tuple[str, ...]:
    """The names of the sizes and of the numbers that a call has."""
    found: dict[str, None] = {}
    for name, shape in INPUTS[inputs].items():
        for size in shape if isinstance(shape, tuple) else (name,):
            found.update(dict.fromkeys(size.split(" + ")))
    return tuple(found)


def given_values(inputs: str, sizes: Sizes, tensor: Callable[[tuple[int, ...]], torch.Tensor]) -> dict[str, Any]:
    """The arguments of a call by name; ``tensor`` makes one of a shape."""
    found: dict[str, Any] = {}
    for name, shape in INPUTS[inputs].items():
        if not isinstance(shape, tuple):
            found[name] = shape(sizes[name])
            continue
        numbers = tuple(sum(sizes[part] for part in size.split(" + ")) for size in shape)
        found[name] = tensor(numbers) if min(numbers) >= 0 else None
    return found


@functools.cache
def compiled(text: str) -> CodeType:
    return compile(text, text, "eval")


def evaluated(text: str, inputs: str, sizes: Sizes) -> Any:
    """The value of a number or condition of the source on tensors without values, None where Python refuses it."""
    names = given_values(inputs, sizes, lambda shape: torch.empty(shape, device="meta"))
    try:
        return eval(compiled(text), {"math": math, "torch": torch, **names})
    except (ArithmeticError, AttributeError, ValueError, RuntimeError, IndexError):
        return None


# files and calls

_folder = tempfile.TemporaryDirectory(prefix="planted_")


def loaded(source: str) -> ModuleType:
    """The source as an imported Python file, so that its lines can be shown."""
    name = f"planted_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    path = Path(_folder.name) / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_model(case: Case) -> torch.nn.Module:
    return loaded(case.source).Planted().eval()


VALUES = ("ordinary", "large", "special", "zero", "transposed")


def filled_tensor(shape: tuple[int, ...], values: str, generator: torch.Generator) -> torch.Tensor:
    """Values of a kind: around 0, up to 1,000 with exact zeros, with NaN and infinities, all 0, or in another order."""
    drawn = torch.randn(shape, generator=generator)
    if values == "ordinary":
        return drawn
    if values == "zero":
        return torch.zeros(shape)
    if values == "transposed":
        return drawn.transpose(0, -1).contiguous().transpose(0, -1)
    chosen = torch.randint(0, 10, shape, generator=generator)
    if values == "large":
        drawn = drawn * 300
        replaced = {0: 0.0, 1: 1000.0, 2: -1000.0}
    else:
        replaced = {0: math.nan, 1: math.inf, 2: -math.inf, 3: 0.0}
    for index, value in replaced.items():
        drawn = torch.where(chosen == index, torch.tensor(value), drawn)
    return drawn


def arguments(case: Case, sizes: Sizes, values: str = "ordinary") -> tuple[Any, ...]:
    """The arguments of a call, the same in every run."""
    number = sum(size * weight for size, weight in zip(sizes.values(), (1, 1009, 100003), strict=False))
    generator = torch.Generator().manual_seed(abs(number) + VALUES.index(values))
    found = given_values(case.inputs, sizes, lambda shape: filled_tensor(shape, values, generator))
    return tuple(found.values())


def run(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    """What a function gives, None where it raises."""
    try:
        with torch.no_grad():
            return function(*call)
    except Exception:
        return None


# the choices


class Chooser(Protocol):
    """Where the choices come from: Hypothesis, which can shrink them, or a random number generator."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""


class Drawn:
    """The choices of Hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))


class Seeded:
    """The choices of a generator that a seed and a number repeat."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = random.Random(f"{seed}:{number}")
        self.taken: list[int] = []

    def pick(self, options: Sequence[T]) -> T:
        index = self.random.randrange(len(options))
        self.taken.append(index)
        return options[index]


class Replayed:
    """Choices that were taken before, perhaps changed; the first option where there are no more."""

    def __init__(self, indices: Sequence[int]) -> None:
        self.left = list(reversed(indices))
        self.taken: list[int] = []

    def pick(self, options: Sequence[T]) -> T:
        index = self.left.pop() % len(options) if self.left else 0
        self.taken.append(index)
        return options[index]


class Unusable(Exception):
    """A module that refuses what was to be watched."""


# the generator


def indented(lines: str) -> str:
    return "\n".join(f"    {line}" if line else line for line in lines.split("\n"))


def in_brackets(number: str) -> str:
    """A number that may stand beside any operator."""
    return f"({number})" if " " in number.split("(")[0] or number.startswith(("-", "(")) else number


@dataclass
class Writer:
    """Writes the source of one module."""

    chooser: Chooser
    inputs: str
    watched: tuple[Sizes, ...]
    conditions: list[str] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    hosts: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)

    def chance(self, percent: int) -> bool:
        return self.chooser.pick(range(100)) >= 100 - percent

    def of_family(self, table: Mapping[str, Sequence[T]], prefix: str, usual: Sequence[str] = ()) -> T:
        """A member of a random family, whose name becomes a feature of the module."""
        family = self.chooser.pick(usual or tuple(table))
        self.features.add(f"{prefix} {family}")
        return self.chooser.pick(table[family])

    def an_input(self) -> str:
        return self.chooser.pick(tuple(INPUTS[self.inputs]))

    def constant(self, number: str) -> int:
        """A constant on, beside, between, below or above the values that a number has in the watched calls."""
        values = {evaluated(number, self.inputs, sizes) for sizes in self.watched}
        known = sorted(int(value) for value in values if value is not None) or [4]
        least, greatest = known[0], known[-1]
        far = [least // 2, greatest + greatest // 2 + 1, 2 * greatest, least // 3 + 1]
        between = [(a + b) // 2 for a, b in itertools.pairwise(known)]
        beside = [value + step for value in known for step in (-1, 1)]
        groups = (between or far, far, known, beside, (1, 0, 2))
        chosen = self.chooser.pick(self.chooser.pick(groups))
        self.constants.append(chosen)
        return chosen

    def number(self, prefix: str) -> str:
        """The text of a number that depends on sizes or on an int."""
        template = self.of_family(NUMBERS[self.an_input()], prefix)
        length = self.constant("x.shape[1]")
        number = template.format(c=length, wide=max(length, 6), d=self.chooser.pick(DIVISORS))
        return in_brackets(number)

    def condition(self) -> str:
        """The text of a condition."""
        if self.chance(25):
            text = self.of_family(WHOLE_CONDITIONS[self.an_input()], "condition")
        else:
            number = self.number("condition on")
            template = self.of_family(CONDITIONS, "condition")
            least, greatest = sorted((self.constant(number), self.constant(number)))
            text = template.format(n=number, c=least, e=greatest, d=self.chooser.pick(DIVISORS))
        self.conditions.append(text)
        return text

    def filled(self, template: str) -> str:
        """A template of arms or of a step with its numbers and constants."""
        length = self.constant("x.shape[1]")
        batch = self.constant("x.shape[0]")
        number = self.number("uses") if "{n}" in template else "0"
        values = [evaluated(number, self.inputs, sizes) or 0 for sizes in self.watched]
        return template.format(
            n=number,
            c=length,
            e=batch,
            b=batch,
            d=self.chooser.pick(DIVISORS),
            one=max(length, 1),
            wide=max(length, 6),
            high=int(max(values)) + self.chooser.pick((0, 5, 20)),
        )

    def arms(self) -> tuple[str, str]:
        """The two arms of a branch, as expressions."""
        first, second = self.of_family(ARMS, "arms")
        first, second = self.filled(f"{first}\n{second}").split("\n")
        return (second, first) if self.chance(40) else (first, second)

    def block(self, expression: str, depth: int) -> str:
        """The lines of an arm, in which another branch may be hidden."""
        lines = f"out = {expression}"
        if depth < 2 and self.chance(25):
            self.features.add("nested")
            lines += "\n" + self.branch(depth + 1)
        return indented(lines)

    def branch(self, depth: int = 0) -> str:
        """The lines of a branch."""
        condition = self.condition()
        first, second = self.arms()
        flow = self.chooser.pick(tuple(FLOWS))
        self.features.add(f"flow {flow}")
        if flow in EXPRESSION_FLOWS:
            return FLOWS[flow].format(q=condition, a=first, z=second)
        if flow == "one sided":
            return FLOWS[flow].format(q=condition, a=self.block(first, depth))
        return FLOWS[flow].format(q=condition, a=self.block(first, depth), z=self.block(second, depth))

    def step(self) -> str:
        """The lines of a step."""
        if self.chance(10):
            self.features.add("step needless")
            return self.filled(self.chooser.pick(NEEDLESS_STEPS))
        if self.chance(20):
            return self.filled(self.of_family(PLAIN_STEPS, "step", USUAL_STEPS))
        return self.branch()

    def hosted(self, lines: str, number: int) -> str:
        """The lines of a step in forward, in a helper function, or in a module of its own."""
        place = self.chooser.pick(("forward", "forward", "function", "module"))
        parameters = f"out, {self.inputs}"
        if place == "forward":
            return lines
        self.features.add(f"in a {place}")
        if place == "function":
            self.hosts.append(f"def step_{number}({parameters}):\n{indented(lines)}\n    return out\n")
            return f"out = step_{number}({parameters})"
        body = indented(f"def forward(self, {parameters}):\n{indented(lines)}\n    return out")
        self.hosts.append(f"class Step{number}(nn.Module):\n{body}\n")
        self.members.append(f"self.step_{number} = Step{number}()")
        return f"out = self.step_{number}({parameters})"

    def start(self) -> str:
        """The expression that the result starts with."""
        if self.inputs == "x, y" and are_alike(self.watched):
            return self.chooser.pick(STARTS_ALIKE)
        return self.chooser.pick(STARTS[self.inputs])

    def source(self) -> str:
        """The source of the whole module."""
        steps = [f"out = {self.start()}"]
        for number in range(1, 1 + self.chooser.pick((1, 1, 1, 1, 2, 2, 3))):
            steps.append(self.hosted(self.step(), number))
        result = self.chooser.pick(("out", "out", "out", "out, out.sum()", "{'out': out}", "out.squeeze(0).sum(0)"))
        steps.append(f"return {result}")
        return source_of(self.inputs, "\n".join(steps), self.hosts, self.members)


def source_of(inputs: str, body: str, hosts: Sequence[str] = (), members: Sequence[str] = ()) -> str:
    """The source of a module with a forward, what stands before the module, and lines of its ``__init__``."""
    init = indented("\n".join(("super().__init__()", *members)))
    methods = f"def __init__(self):\n{init}\n\ndef forward(self, {inputs}):\n{indented(body)}"
    return "\n\n".join((HEADER, *hosts, f"class Planted(nn.Module):\n{indented(methods)}\n"))


def are_alike(watched: Sequence[Sizes]) -> bool:
    """True where both inputs had the same length in every call."""
    return all(sizes.get("other") == sizes["length"] for sizes in watched)


def watched_calls(chooser: Chooser, inputs: str) -> tuple[Sizes, ...]:
    """The sizes of one to three calls; an axis may be the same in all of them."""
    axes = axes_of(inputs)
    n_calls = chooser.pick((3, 2, 3, 1))
    columns = {}
    for axis in axes:
        sizes = [chooser.pick(CHOICES[axis]) for _ in range(n_calls)]
        stays = chooser.pick(range(10)) >= 8
        columns[axis] = sizes[:1] * n_calls if stays else sizes
    if "other" in axes and chooser.pick(range(10)) >= 7:
        columns["other"] = columns["length"]
    return tuple({axis: columns[axis][number] for axis in axes} for number in range(n_calls))


def build(chooser: Chooser) -> Case:
    """A random module.

    :raises Unusable: when it refuses a call that is to be watched
    """
    inputs = chooser.pick(USUAL_INPUTS)
    watched = watched_calls(chooser, inputs)
    writer = Writer(chooser, inputs, watched)
    source = writer.source()
    constants = tuple(sorted(set(writer.constants)))
    case = Case(source, inputs, watched, tuple(writer.conditions), constants, frozenset(writer.features))
    model = load_model(case)
    for sizes in watched:
        if run(model, arguments(case, sizes)) is None:
            raise Unusable(source)
    return case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """The strategy of Hypothesis."""
    try:
        return build(Drawn(draw))
    except Unusable:
        assume(False)
        raise


def case_of(seed: int, number: int) -> Case:
    """Module ``number`` of a seed."""
    return build(seeded(seed, number))


def seeded(seed: int, number: int) -> Replayed:
    """The choices of module ``number`` of a seed."""
    for attempt in itertools.count():
        chooser = Seeded(seed, number + attempt * 10**6)
        try:
            build(chooser)
        except Unusable:
            continue
        return Replayed(chooser.taken)
    raise AssertionError
