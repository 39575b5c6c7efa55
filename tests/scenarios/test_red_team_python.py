"""Attacks by what Python decides: options, state, containers, numbers made of sizes, and exceptions.

A verified program may refuse a call, and is never wrong; the model, the globals of this file and the environment are
afterwards what they were before ``export()``.
"""

from __future__ import annotations

import bisect
import contextvars
import enum
import functools
import itertools
import math
import operator
import os
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, rand

from planted_options import held
from red_team import Attack, Named, attack

SIZES = ((2, 5), (3, 9), (4, 7))
LATER = ((2, 40), (3, 65), (1, 1), (5, 5), (9, 2), (3, 100), (2, 16), (4, 12))

#: what the models below keep in globals
WORLD: dict[str, Any] = {"calls": 0, "seen": set(), "table": {5: 2.0, 7: 3.0, 9: 2.0, 40: 5.0}}
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)
LOCAL = threading.local()
MISSING = object()


class Kind(enum.Enum):
    MEAN = "mean"
    LAST = "last"


class Parts(enum.Flag):
    NONE = 0
    DOUBLE = 1
    SHIFT = 2


@dataclass
class Inner:
    last: bool = False


@dataclass
class Options:
    scale: float = 1.0
    inner: Inner = field(default_factory=Inner)
    names: tuple[str, ...] = ()


PLAIN = Options()


class Truthy:
    def __init__(self, number: int) -> None:
        self.number = number

    def __bool__(self) -> bool:
        return self.number > 2

    def __len__(self) -> int:
        return self.number


def calls(*options: Any, sizes: Sequence[tuple[int, int]] = SIZES) -> Callable[[], list[tuple[Any, ...]]]:
    """Calls of some sizes with each of the options; a dict is given by name, a tuple in order."""

    def made() -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for size, option in zip(
            itertools.cycle(sizes), itertools.islice(itertools.cycle(options), max(6, len(options)))
        ):
            given = option() if callable(option) and getattr(option, "__name__", "") == "<lambda>" else option
            rest = given if type(given) is tuple else (Named(given),) if type(given) is dict else (given,)
            found.append((rand(*size, 4), *rest))
        return found

    return made


WATCHED = calls(())
FOOLING = calls((), (), (), (), (), (), (), (), sizes=LATER)


def model_of(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    """A class of modules whose ``forward`` has the signature of the function."""

    def made() -> nn.Module:
        return type(function.__name__, (nn.Module,), {"forward": function})()

    return made


# -- options


def by_partial(self: Any, x: Any, mode: Any = None) -> Any:
    step = functools.partial(lambda y, mode: y * 2 if mode == "double" else y + 1, mode="double")
    return step(x) if mode is None else step(x, mode=mode)


def by_dataclass(self: Any, x: Any, options: Any = PLAIN) -> Any:
    x = x * options.scale if "scale" in options.names else x
    return x[:, -1] if options.inner.last else x


def by_nested_flags(self: Any, x: Any, options: Any = None) -> Any:
    return x * 2 if (options or {}).get("a", {}).get("b", [False])[0] else x


def by_enum(self: Any, x: Any, kind: Any = Kind.LAST) -> Any:
    return x.mean(1) if kind is Kind.MEAN else x[:, -1]


def by_flag(self: Any, x: Any, parts: Any = Parts.NONE) -> Any:
    x = x * 2 if parts & Parts.DOUBLE else x
    return x + 1 if Parts.SHIFT in parts else x


def by_namespace(self: Any, x: Any, options: Any = None) -> Any:
    return x[:, -1] if getattr(options, "last", False) else x * getattr(options, "scale", 1.0)


def by_kwargs_order(self: Any, x: Any, **steps: float) -> Any:
    for name, number in steps.items():
        x = getattr(torch, name)(x, number)
    return x


def by_sentinel(self: Any, x: Any, k: Any = MISSING) -> Any:
    return x if k is MISSING else x * 2 if k is None else x * k


def by_slice(self: Any, x: Any, part: Any = slice(None)) -> Any:
    return x[..., part]


def by_callable(self: Any, x: Any, act: Any = torch.relu) -> Any:
    return act(x - 0.5)


def by_type_of_number(self: Any, x: Any, k: Any = 1) -> Any:
    if isinstance(k, bool):
        return x * 5
    return x * 3 if isinstance(k, float) else x * 2 if isinstance(k, int) else x + k


def by_none_in_a_list(self: Any, x: Any, parts: Any = ()) -> Any:
    for number, part in enumerate(parts):
        x = x * (number + 2) if part is None else x + part
    return x


def by_frozenset(self: Any, x: Any, options: Any = frozenset()) -> Any:
    return x * 2 if "double" in options else x


def by_sign_of_zero(self: Any, x: Any, scale: float = 0.0) -> Any:
    return x * math.copysign(2.0, scale) + scale


def by_whole_float(self: Any, x: Any, scale: float = 1.5) -> Any:
    return x * 2 if float(scale).is_integer() else x * scale


def by_text_of_a_float(self: Any, x: Any, scale: float = 1.0) -> Any:
    return x * (7.0 if f"{scale:.1f}" == "0.5" else scale)


def by_prefix(self: Any, x: Any, mode: str = "mean") -> Any:
    return x.mean(1) if mode.startswith("mean") else x.sum(1) if mode.endswith("_sum") else x


def by_truth_of_an_object(self: Any, x: Any, options: Any = None) -> Any:
    return x * 2 if options else x * 3


def by_numpy_option(self: Any, x: Any, k: Any = 1) -> Any:
    return x * 2 if isinstance(k, np.integer) else x * int(k)


def by_range(self: Any, x: Any, steps: Any = range(2)) -> Any:
    for step in steps:
        x = x * (step + 1)
    return x


def by_rest(self: Any, x: Any, *flags: Any) -> Any:
    return x * (1 + len(flags)) + sum(flags)


def by_class_of_a_tensor(self: Any, x: Any, other: Any = None) -> Any:
    return x * 2 if isinstance(other, nn.Parameter) else x * 3 if other is None else x + other


OPTIONS = [
    (by_partial, calls("double"), calls((), "other", None)),
    (
        by_dataclass,
        calls(lambda: Options(2.0, Inner(True), ("scale",))),
        calls((), lambda: Options(3.0), lambda: Options(2.0, Inner(), ("scale",))),
    ),
    (
        by_nested_flags,
        calls(lambda: {"options": {"a": {"b": [True]}}}),
        calls((), lambda: {"options": {"a": {"b": [False]}}}, lambda: {"options": {"a": {}}}, lambda: {"options": {}}),
    ),
    (by_enum, calls(Kind.MEAN), calls((), Kind.LAST, "mean")),
    (by_flag, calls(Parts.DOUBLE), calls((), Parts.DOUBLE | Parts.SHIFT, Parts.NONE, 1)),
    (
        by_namespace,
        calls(lambda: SimpleNamespace(scale=2.0)),
        calls((), lambda: SimpleNamespace(scale=3.0), lambda: SimpleNamespace(scale=2.0, last=True)),
    ),
    (by_kwargs_order, calls({"mul": 2.0, "add": 1.0}), calls({"add": 1.0, "mul": 2.0}, {"mul": 2.0}, {"sub": 1.0}, ())),
    (by_sentinel, calls(None), calls((), 3, 2.0)),
    (by_slice, calls(slice(0, 3)), calls((), slice(1, 4), slice(0, 3, 2))),
    (by_callable, calls(torch.relu), calls((), torch.tanh, torch.sigmoid, nn.functional.gelu)),
    (by_type_of_number, calls(1), calls((), True, 1.0, 2, lambda: torch.tensor(1), np.int64(1))),
    (
        by_none_in_a_list,
        calls(lambda: [None, torch.ones(4)]),
        calls(lambda: [torch.ones(4), None], (), lambda: [None], lambda: [None, None]),
    ),
    (by_frozenset, calls(frozenset({"double"})), calls((), frozenset(), frozenset({"other"}))),
    (by_sign_of_zero, calls(0.0, 1.0, 2.0), calls(-0.0, -1.0, float("nan"), ())),
    (by_whole_float, calls(1.5, 2.5, 0.5), calls(2.0, 3.0, (), float("inf"))),
    (by_text_of_a_float, calls(1.0, 2.0, 3.0), calls(0.5, 0.47, ())),
    (by_prefix, calls("mean_x"), calls((), "mean_y", "x_sum", "")),
    (by_truth_of_an_object, calls(lambda: Truthy(3)), calls((), lambda: Truthy(0), lambda: Truthy(2), None)),
    (by_numpy_option, calls(2), calls(np.int64(3), np.int64(2), (), 3)),
    (by_range, calls(range(3)), calls((), range(1, 3), range(0, 5), [0, 1, 2])),
    (by_rest, calls((1,)), calls((), (1, 1), (2,), (True,))),
    (by_class_of_a_tensor, calls(lambda: torch.ones(4)), calls((), lambda: nn.Parameter(torch.ones(4)), None)),
]


# -- state


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.start()

    def start(self) -> None:
        """What the model keeps at first."""

    def is_changed(self, x: torch.Tensor) -> Any:
        """Whether the result is another one."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.is_changed(x) else self.layer(x)


class WarmUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_warm = False


class FlagOfASubmodule(Plain):
    def start(self) -> None:
        self.sub = WarmUp()

    def is_changed(self, x: torch.Tensor) -> Any:
        was_warm = self.sub.is_warm
        self.sub.is_warm = was_warm or x.shape[1] > 30
        return was_warm


class CountsMisses(Plain):
    def start(self) -> None:
        self.cached = functools.lru_cache(lambda n: n * 2)

    def is_changed(self, x: torch.Tensor) -> Any:
        self.cached(x.ndim)
        return self.cached.cache_info().hits > 6


class CountsByIterator(Plain):
    def start(self) -> None:
        self.steps = itertools.count()

    def is_changed(self, x: torch.Tensor) -> Any:
        return next(self.steps) > 6


class CountsInAContext(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        VARIABLE.set(VARIABLE.get() + 1)
        return VARIABLE.get() > 7


class CountsInTheEnvironment(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            os.environ["ONLOOKER_ATTACK"] = "long"
        return os.environ.get("ONLOOKER_ATTACK") == "long"


class HoldsAWeakReference(Plain):
    def start(self) -> None:
        self.owner = WarmUp()
        self.reference = weakref.ref(self.owner)

    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            self.owner = WarmUp()
        return self.reference() is not self.owner


class KeepsByModule(Plain):
    def start(self) -> None:
        self.kept = weakref.WeakKeyDictionary()

    def is_changed(self, x: torch.Tensor) -> Any:
        self.kept[self.layer] = self.kept.get(self.layer, 0) + 1
        return self.kept[self.layer] > 7


class ReassignsABuffer(Plain):
    def start(self) -> None:
        self.register_buffer("kept", torch.zeros(4))

    def is_changed(self, x: torch.Tensor) -> Any:
        return False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x + self.kept
        if x.shape[1] > 30:
            self.kept = x.mean((0, 1))
        return result


class RegistersAHook(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            self.layer.register_forward_hook(lambda _module, _inputs, result: result * 3)
        return False


class HookThatCounts(Plain):
    def start(self) -> None:
        counter = [0]

        def hook(_module: Any, inputs: Any) -> Any:
            counter[0] += 1
            return (inputs[0] * 2,) if counter[0] > 7 else None

        self.layer.register_forward_pre_hook(hook)

    def is_changed(self, x: torch.Tensor) -> Any:
        return False


class CountsInAProperty(Plain):
    def start(self) -> None:
        self.reads = 0

    @property
    def is_old(self) -> bool:
        self.reads += 1
        return self.reads > 7

    def is_changed(self, x: torch.Tensor) -> Any:
        return self.is_old


class FindsByGetattr(Plain):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("factor_"):
            return float(name.removeprefix("factor_")) / 8
        return super().__getattr__(name)

    def is_changed(self, x: torch.Tensor) -> Any:
        return getattr(self, f"factor_{x.shape[1]}") > 4


class CountsInItsClass(Plain):
    count = 0

    def is_changed(self, x: torch.Tensor) -> Any:
        type(self).count += 1
        return type(self).count > 7


class RemembersSizes(Plain):
    def start(self) -> None:
        self.sizes: deque[int] = deque(maxlen=2)

    def is_changed(self, x: torch.Tensor) -> Any:
        self.sizes.append(x.shape[0])
        return sum(self.sizes) > 9


class ComparesWithTheLast(Plain):
    def start(self) -> None:
        self.last: Any = None

    def is_changed(self, x: torch.Tensor) -> Any:
        before, self.last = self.last, x.shape
        return before == x.shape


class SeenSizes(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        is_known = x.shape[1] in WORLD["seen"]
        WORLD["seen"].add(x.shape[1])
        return is_known


def helper(n: Any) -> bool:
    helper.calls = getattr(helper, "calls", 0) + 1  # type: ignore[attr-defined]
    return helper.calls > 7  # type: ignore[attr-defined]


class CountsInAFunction(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        return helper(x.shape[1])


class CountsInAClosure(Plain):
    def start(self) -> None:
        count = 0

        def counted() -> bool:
            nonlocal count
            count += 1
            return count > 7

        self.counted = counted

    def is_changed(self, x: torch.Tensor) -> Any:
        return self.counted()


class TogglesTraining(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            self.layer.training = True
        return self.layer.training


class CountsInAThread(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        LOCAL.count = getattr(LOCAL, "count", 0) + 1
        return LOCAL.count > 7


class DeletesAnAttribute(Plain):
    def start(self) -> None:
        self.first = True

    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30 and hasattr(self, "first"):
            del self.first
        return not hasattr(self, "first")


class SwapsALayer(Plain):
    def start(self) -> None:
        self.other = nn.Linear(4, 4)

    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            self.layer, self.other = self.other, self.layer
        return False


class ScalesItsWeight(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        if x.shape[1] > 30:
            self.layer.weight.data.mul_(0.5)
        return False


class DefaultThatGrows(nn.Module):
    def forward(self, x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return x * 2 if len(seen) > 7 else x


class DefaultTable(nn.Module):
    def forward(self, x: torch.Tensor, known: dict[int, float] = {}) -> torch.Tensor:  # noqa: B006
        return x * known.setdefault(x.shape[0], float(len(known)))


class CountsWithDefault(Plain):
    def start(self) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int)

    def is_changed(self, x: torch.Tensor) -> Any:
        self.counts[x.ndim] += 1
        return self.counts[x.ndim] > 7


class CountsErrors(Plain):
    def start(self) -> None:
        self.errors: list[Exception] = []

    def is_changed(self, x: torch.Tensor) -> Any:
        try:
            x.reshape(-1, 80)
        except RuntimeError as error:
            self.errors.append(error)
        return len(self.errors) > 7


class ReadsTheDefaultDtype(Plain):
    def is_changed(self, x: torch.Tensor) -> Any:
        return torch.get_default_dtype() != torch.float32


class CallsItself(Plain):
    def start(self) -> None:
        self.depth = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.depth += 1
        try:
            return x * self.depth if x.shape[1] < 8 else self.forward(x[:, ::2])
        finally:
            self.depth -= 1


class OneGenerator(Plain):
    def start(self) -> None:
        self.steps = iter([False] * 6 + [True] * 99)

    def is_changed(self, x: torch.Tensor) -> Any:
        return next(self.steps)


class Dispatches(Plain):
    def start(self) -> None:
        self.ways = OrderedDict(short=self.layer, long=nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name, way = next(iter(self.ways.items()))
        if x.shape[1] > 30:
            self.ways.move_to_end(name)
        return way(x)


STATES = [
    *(FlagOfASubmodule, CountsMisses, CountsByIterator, CountsInAContext, CountsInTheEnvironment, HoldsAWeakReference),
    *(KeepsByModule, ReassignsABuffer, RegistersAHook, HookThatCounts, CountsInAProperty, FindsByGetattr),
    *(CountsInItsClass, RemembersSizes, ComparesWithTheLast, SeenSizes, CountsInAFunction, CountsInAClosure),
    *(TogglesTraining, CountsInAThread, DeletesAnAttribute, SwapsALayer, ScalesItsWeight, DefaultThatGrows),
    *(DefaultTable, CountsWithDefault, CountsErrors, ReadsTheDefaultDtype, CallsItself, OneGenerator, Dispatches),
]


# -- sizes and tensors


def viewed(self: Any, x: Any) -> Any:
    try:
        return x.view(-1, 80).sum() + x
    except RuntimeError:
        return x * 3


def indexed(self: Any, x: Any) -> Any:
    try:
        return x[:, 30] * 2
    except IndexError:
        return x[:, 0]


def looked_up(self: Any, x: Any) -> Any:
    try:
        return x * WORLD["table"][x.shape[1]]
    except KeyError:
        return x


def asserted(self: Any, x: Any) -> Any:
    try:
        assert x.shape[1] < 30
    except AssertionError:
        return x * 2
    return x


def smallest_first(self: Any, x: Any, y: Any) -> Any:
    return sorted([x, y], key=lambda part: part.shape[1])[0].sum() * 2 + min(x, y, key=len).mean()


def sorts_in_place(self: Any, x: Any, parts: Any) -> Any:
    parts.sort(key=lambda part: part.shape[0])
    return x.sum() + parts[0].sum() * 2


def pops(self: Any, x: Any, parts: Any) -> Any:
    return x + parts.pop("a") * len(parts)


def adds_a_key(self: Any, x: Any, parts: Any) -> Any:
    if x.shape[1] > 30:
        parts["long"] = x
    return x + parts.setdefault("a", 1.0)


def reverses(self: Any, x: Any, parts: Any) -> Any:
    if x.shape[1] > 30:
        parts.reverse()
    return x + parts[0]


def stops_early(self: Any, x: Any) -> Any:
    for step in range(10):
        if step * 8 >= x.shape[1]:
            break
        x = x + step
    else:
        return x * 2
    return x


def halves(self: Any, x: Any) -> Any:
    n = x.shape[1]
    while n > 16:
        n, x = n // 2, x * 2
    return x


def matches(self: Any, x: Any) -> Any:
    match tuple(x.shape):
        case (1, _, 4):
            return x * 2
        case (_, n, 4) if n > 30:
            return x * 3
    return x


def bisected(self: Any, x: Any) -> Any:
    return x * bisect.bisect([8, 16, 32], x.shape[1])


def by_numpy(self: Any, x: Any) -> Any:
    return x * int(np.ceil(np.log2(np.prod(x.shape[:2])))) + float(np.array(x.shape).max())


def by_gcd(self: Any, x: Any) -> Any:
    return x * math.gcd(x.shape[1], 8)


def by_length_of_text(self: Any, x: Any) -> Any:
    return x * len(str(x.shape[1]))


def by_hash(self: Any, x: Any) -> Any:
    return x * (hash(x.shape[1]) % 3) + operator.index(x.shape[0])


def by_type(self: Any, x: Any) -> Any:
    return x * 2 if type(x.shape[1]) is int else x * 3


def by_whole_quotient(self: Any, x: Any) -> Any:
    return x * 2 if (x.shape[1] / 5).is_integer() else x


def by_parity(self: Any, x: Any) -> Any:
    return {0: torch.relu, 1: torch.tanh}[x.shape[1] % 2](x)


def by_pieces(self: Any, x: Any) -> Any:
    return x * len(x.split(8, 1)) + len(range(0, x.shape[1], 3))


def by_power(self: Any, x: Any) -> Any:
    return x * pow(x.shape[1], 2, 7)


def by_chunks(self: Any, x: Any) -> Any:
    return functools.reduce(lambda one, other: one + other.sum(), x.chunk(4, 1), 0.0)


def by_slice_indices(self: Any, x: Any) -> Any:
    start, stop, step = slice(-8, None).indices(x.shape[1])
    return x[:, start:stop:step] * (stop - start)


def by_bytes(self: Any, x: Any) -> Any:
    return x * 2 if x.nbytes > 500 else x * 3 if x.numel() % 16 else x


def by_dtype(self: Any, x: Any) -> Any:
    return x * 2 if x.dtype.itemsize == 4 else x * 3 if x.is_floating_point() else x


def by_storage(self: Any, x: Any) -> Any:
    return x * 2 if x.untyped_storage().nbytes() == x.nbytes else x * 3


def by_version(self: Any, x: Any) -> Any:
    return x * 2 if x._version == 0 else x * 3


def by_member(self: Any, x: Any) -> Any:
    return x * 2 if 7 in x else x * 3


def by_equality(self: Any, x: Any) -> Any:
    return x * 2 if torch.equal(x, x.round()) else x * 3


def by_values_in_a_list(self: Any, x: Any) -> Any:
    return x * max(x.flatten().tolist())


def squeezed(self: Any, x: Any) -> Any:
    return x.squeeze() * x.squeeze().ndim


def by_broadcast(self: Any, x: Any) -> Any:
    try:
        return x * len(torch.broadcast_shapes(x.shape, (40, 4)))
    except RuntimeError:
        return x * 7


def by_threads(self: Any, x: Any) -> Any:
    return x * (2 if torch.is_inference_mode_enabled() else 3) + torch.get_num_threads()


def by_swallowed_raise(self: Any, x: Any) -> Any:
    def checked(n: int) -> None:
        if n > 30:
            raise StopIteration(n)

    try:
        checked(x.shape[1])
    except StopIteration as stop:
        return x * stop.value
    return x


def generated(self: Any, x: Any) -> Any:
    def pieces() -> Iterator[torch.Tensor]:
        start = 0
        while start < x.shape[1]:
            yield x[:, start : start + 16].sum(1)
            start += 16

    return sum(pieces())


def returns_a_list(self: Any, x: Any) -> Any:
    return [x[:, start : start + 16].sum() for start in range(0, x.shape[1], 16)]


def returns_bools(self: Any, x: Any) -> Any:
    return x, (x > 0.5).any(), bool(x.shape[0] > 4), x.shape[1] if x.shape[1] > 30 else None


def two(*sizes: tuple[int, int]) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [(rand(2, one, 4), rand(3, other, 4)) for one, other in sizes]


def with_list(*sizes: tuple[int, int]) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [(rand(2, 3, 4), [rand(one, 4), rand(other, 4)]) for one, other in sizes]


def tensors(*makers: Callable[[], torch.Tensor]) -> Callable[[], list[tuple[Any, ...]]]:
    return lambda: [(make(),) for make in makers]


TENSORS = tensors(
    lambda: rand(2, 40, 4).round(),
    lambda: rand(2, 6, 8)[..., :4],
    lambda: rand(2, 6, 4).add_(1),
    lambda: rand(2, 6, 4).double(),
    lambda: rand(2, 6, 4).half(),
    lambda: torch.full((2, 6, 4), 7.0),
    lambda: torch.ones(2, 6, 4, dtype=torch.int64),
)
SIZE_ATTACKS = [
    *(
        (one, WATCHED, FOOLING)
        for one in (
            *(viewed, indexed, looked_up, asserted, stops_early, halves, matches, bisected, by_numpy, by_gcd),
            *(by_length_of_text, by_hash, by_type, by_whole_quotient, by_parity, by_pieces, by_power, by_chunks),
            *(by_slice_indices, by_bytes, squeezed, by_broadcast, by_threads, by_swallowed_raise, generated),
            *(returns_a_list, returns_bools),
        )
    ),
    *((one, WATCHED, TENSORS) for one in (by_dtype, by_storage, by_member, by_equality, by_values_in_a_list)),
    (by_version, WATCHED, tensors(lambda: rand(2, 6, 4).add_(1), lambda: rand(2, 40, 4).mul_(2))),
    (smallest_first, two((5, 9), (4, 12), (7, 8)), two((9, 5), (40, 2), (6, 6), (1, 3))),
    (sorts_in_place, with_list((5, 9), (4, 12), (7, 8)), with_list((9, 5), (40, 2), (6, 6), (1, 3))),
    (
        pops,
        calls(lambda: {"parts": {"a": torch.ones(4)}}),
        calls(lambda: {"parts": {"a": torch.ones(4), "b": torch.ones(4)}}, lambda: {"parts": {"a": torch.zeros(4)}}),
    ),
    (
        adds_a_key,
        calls(lambda: {"parts": {"a": torch.ones(4)}}),
        calls(lambda: {"parts": {"a": torch.ones(4)}}, lambda: {"parts": {}}, sizes=LATER),
    ),
    (
        reverses,
        calls(lambda: {"parts": [torch.ones(4), torch.zeros(4)]}),
        calls(lambda: {"parts": [torch.ones(4), torch.zeros(4)]}, sizes=LATER),
    ),
]

ATTACKS = [
    *(Attack(function.__name__, model_of(function), *those) for function, *those in (*OPTIONS, *SIZE_ATTACKS)),
    *(Attack(model.__name__, model, WATCHED, FOOLING) for model in STATES),
]
#: attacks on mechanisms of their own, which run in continuous integration
QUICK = {"by_sentinel", "FlagOfASubmodule", "CountsInAContext", "viewed"}


def standing(model: nn.Module) -> dict[str, str]:
    """What the model, this file and the environment hold."""
    kept = {"world": WORLD, "variable": VARIABLE.get(), "local": dict(vars(LOCAL)), "environment": dict(os.environ)}
    classes = {name: getattr(kind, "count", None) for name, kind in globals().items() if isinstance(kind, type)}
    defaults = [DefaultThatGrows.forward.__defaults__, DefaultTable.forward.__defaults__]
    return dict(held([model, kept, classes, defaults, dict(vars(helper))]))


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Globals as they are at first."""
    monkeypatch.setenv("ONLOOKER_ATTACK", "short")
    monkeypatch.setitem(WORLD, "seen", set())
    VARIABLE.set(0)
    vars(LOCAL).clear()
    vars(helper).clear()
    CountsInItsClass.count = 0
    DefaultThatGrows.forward.__defaults__[0].clear()  # type: ignore[index]
    DefaultTable.forward.__defaults__[0].clear()  # type: ignore[index]


@pytest.mark.usefixtures("clean")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "one", [pytest.param(one, marks=() if one.name in QUICK else pytest.mark.slow) for one in ATTACKS], ids=str
)
@pytest.mark.one_in(2)
def test_no_verified_program_is_fooled(one: Attack) -> None:
    outcome = attack(one, standing=standing)
    assert outcome.lies == []
    assert outcome.harm == []
