"""Attacks by numbers that Python makes of sizes, by marks of tensors, and by what stands around a call.

A verified program may refuse a call, and is never wrong. Some calls are made inside of a context that no watched call
was in, as with gradients or with another default dtype.
"""

from __future__ import annotations

import array
import contextlib
import fractions
import functools
import itertools
import logging
import math
import random
import statistics
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, rand

from red_team import Attack, attack

SIZES = ((2, 5), (3, 9), (4, 7))
LATER = ((2, 40), (3, 65), (1, 1), (5, 5), (9, 2), (3, 100), (2, 16), (4, 12), (2, 33), (6, 8))
LOG = logging.getLogger("attacks.surroundings")
TABLE = [float(number % 7) for number in range(200)]

Function = Callable[..., Any]
Around = Callable[[], AbstractContextManager[Any]]


def of(function: Function) -> Callable[[], nn.Module]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, other: Any = None) -> Any:
            return function(x) if other is None else function(x, other)

    return Model


def watched() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4),) for size in SIZES]


def later() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4),) for size in LATER]


# -- numbers of Python that are made of sizes


@dataclass(frozen=True, order=True)
class Size:
    number: Any


class Sized:
    """An object whose length and truth are a size."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __len__(self) -> int:
        return int(self.number)


@functools.lru_cache
def cached(number: Any) -> float:
    return 3.0 if number == 40 else 2.0


def by_isqrt(x: Any) -> Any:
    return x * math.isqrt(x.shape[1])


def by_divmod(x: Any) -> Any:
    whole, rest = divmod(x.shape[1], 7)
    return x * whole + rest


def by_bits(x: Any) -> Any:
    n = x.shape[1]
    return x * ((n ^ 5) & 6) + (n << 1 | 3) - (n >> 2)


def by_inverted_bits(x: Any) -> Any:
    return x * (~x.shape[1] % 5)


def by_round(x: Any) -> Any:
    return x[:, : round(x.shape[1] * 0.3) + 1]


def by_rounded_tens(x: Any) -> Any:
    return x * round(x.shape[1], -1)


def by_float(x: Any) -> Any:
    return x * 2 if float(x.shape[1]) * 0.1 > 3.05 else x


def by_set(x: Any) -> Any:
    return x * len({*x.shape})


def by_sorted(x: Any) -> Any:
    small, *_, large = sorted(x.shape)
    return x * small + large


def by_extremes(x: Any) -> Any:
    return x * min(x.shape, key=lambda n: abs(n - 33)) + max(x.shape, default=0)


def by_text_key(x: Any) -> Any:
    return x * {"2x40": 5.0, "3x65": 7.0}.get(f"{x.shape[0]}x{x.shape[1]}", 1.0)


def by_hash_of_a_shape(x: Any) -> Any:
    return x * (hash(tuple(x.shape)) % 3)


def by_any_of_values(x: Any) -> Any:
    return x * 2 if any(bool((row > 0.99).any()) for row in x) else x


def by_all_lengths(x: Any) -> Any:
    return x * 2 if all(len(row) > 8 for row in x) else x


def by_broadcast_error(x: Any) -> Any:
    try:
        return x + torch.zeros(40, 4)
    except RuntimeError:
        return x * 3


def by_division_error(x: Any) -> Any:
    try:
        return x * (100 // (x.shape[1] - 40))
    except ZeroDivisionError:
        return x * 7


def by_binary_digits(x: Any) -> Any:
    return x * f"{x.shape[1]:b}".count("1")


def by_bit_length(x: Any) -> Any:
    return x * x.shape[1].bit_length()


def by_digits(x: Any) -> Any:
    return x * sum(map(int, str(x.shape[1])))


def by_order_of_texts(x: Any) -> Any:
    return x * 2 if str(x.shape[1]) < "35" else x


def by_fraction(x: Any) -> Any:
    return x * 2 if fractions.Fraction(x.shape[1], 10) > 3 else x


def by_packed_bytes(x: Any) -> Any:
    return x * struct.pack("<h", x.shape[1])[0]


def by_bytearray(x: Any) -> Any:
    return x * len(bytearray(x.shape[1]))


def by_array(x: Any) -> Any:
    return x * len(array.array("d", [0.0] * x.shape[1]))


def by_repeated_text(x: Any) -> Any:
    return x * len("ab" * x.shape[1])


def by_strict_zip(x: Any) -> Any:
    try:
        return x * sum(1 for _ in zip(range(x.shape[1]), range(40), strict=True))
    except ValueError:
        return x


def by_islice(x: Any) -> Any:
    return x * len(list(itertools.islice(range(30), x.shape[1])))


def by_first_of_a_generator(x: Any) -> Any:
    return x * next(step for step in itertools.count() if step * 9 >= x.shape[1])


def by_table(x: Any) -> Any:
    return x * TABLE[x.shape[1]]


def by_slice_of_a_table(x: Any) -> Any:
    return x * sum(TABLE[: x.shape[1]])


def by_distance(x: Any) -> Any:
    return x * abs(x.shape[1] - 33) + ((x.shape[1] > 33) - (x.shape[1] < 33))


def by_doubling(x: Any) -> Any:
    k = 1
    while (k := k * 2) < x.shape[1]:
        x = x + 1
    return x * k


def by_median(x: Any) -> Any:
    return x * statistics.median(x.shape)


def by_seeded_random(x: Any) -> Any:
    return x * random.Random(int(x.shape[1])).random()


def by_seeded_generator(x: Any) -> Any:
    return x * torch.rand(4, generator=torch.Generator().manual_seed(int(x.shape[1])))


def by_cached_function(x: Any) -> Any:
    return x * cached(x.shape[1])


def by_dataclass_of_a_size(x: Any) -> Any:
    return x * 2 if Size(x.shape[1]) == Size(40) or Size(x.shape[1]) > Size(64) else x


def by_object_of_a_size(x: Any) -> Any:
    return x * (2 if Sized(x.shape[1] - 1) else 3) + len(Sized(x.shape[1]))


def by_instance(x: Any) -> Any:
    return x * (2 if isinstance(x.shape[1], int) else 3) + (1 if type(x.shape[1]) in (int, bool) else 0)


def by_ceil(x: Any) -> Any:
    return x * math.ceil(x.shape[1] / 16) + math.floor(math.log2(x.shape[1])) + math.trunc(x.shape[1] ** 0.5)


def by_modulo_of_a_float(x: Any) -> Any:
    return x * 2 if math.fmod(x.shape[1], 2.5) < 0.1 else x


def by_closeness(x: Any) -> Any:
    return x * 2 if math.isclose(x.shape[1] / 3, 11.0) else x


def by_comb(x: Any) -> Any:
    return x * math.comb(x.shape[1], 2) + math.lcm(x.shape[1], 6)


def by_raised_number(x: Any) -> Any:
    def steps() -> Iterator[int]:
        yield from range(33)
        raise OverflowError

    try:
        return x * sum(1 for _ in zip(range(x.shape[1]), steps(), strict=False))
    except OverflowError:
        return x


def by_nested_tuple_key(x: Any) -> Any:
    return x * {(40, 4): 3.0, (65, 4): 4.0}.get((x.shape[1], x.shape[2]), 1.0)


def by_member_of_a_range(x: Any) -> Any:
    return x * 2 if x.shape[1] in range(0, 100, 5) else x


def by_count_in_a_list(x: Any) -> Any:
    return x * [1, 33, 40, 65].count(x.shape[1]) + [*x.shape].index(4)


def by_reversed_text(x: Any) -> Any:
    return x * int(str(x.shape[1])[::-1])


def by_complex(x: Any) -> Any:
    return x * abs(complex(x.shape[1], 3))


NUMBERS: tuple[Function, ...] = (
    *(by_isqrt, by_divmod, by_bits, by_inverted_bits, by_round, by_rounded_tens, by_float, by_set, by_sorted),
    *(by_extremes, by_text_key, by_hash_of_a_shape, by_any_of_values, by_all_lengths, by_broadcast_error),
    *(by_division_error, by_binary_digits, by_bit_length, by_digits, by_order_of_texts, by_fraction, by_packed_bytes),
    *(by_bytearray, by_array, by_repeated_text, by_strict_zip, by_islice, by_first_of_a_generator, by_table),
    *(by_slice_of_a_table, by_distance, by_doubling, by_median, by_seeded_random, by_seeded_generator),
    *(by_cached_function, by_dataclass_of_a_size, by_object_of_a_size, by_instance, by_ceil, by_modulo_of_a_float),
    *(by_closeness, by_comb, by_raised_number, by_nested_tuple_key, by_member_of_a_range, by_count_in_a_list),
    *(by_reversed_text, by_complex),
)


# -- marks of tensors


class Marked(torch.Tensor):
    """A class of tensors of its own."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Marked:
        return self.clone().as_subclass(Marked)


def by_address(x: Any) -> Any:
    return x * 2 if x.data_ptr() % 64 == 0 else x * 3


def by_subclass(x: Any) -> Any:
    return x * 2 if isinstance(x, Marked) else x * 3


def by_exact_class(x: Any) -> Any:
    return x * 2 if type(x) is torch.Tensor else x * 3


def by_default_dtype(x: Any) -> Any:
    return x * 2 if x.dtype == torch.get_default_dtype() else x * 3


def by_attribute(x: Any) -> Any:
    return x * 2 if hasattr(x, "note") else x * 3


def by_attributes_of_all_kinds(x: Any) -> Any:
    return x * 2 if "note" in vars(x) else x * 3


def by_inference(x: Any) -> Any:
    return x * 2 if x.is_inference() else x * 3


def by_negation(x: Any) -> Any:
    return x * 2 if x.is_neg() else x * 3


def by_gradient(x: Any) -> Any:
    return x * 2 if x.grad is None else x + x.grad


def by_hooks(x: Any) -> Any:
    return x * 2 if x._backward_hooks else x * 3


def by_shared_memory(x: Any) -> Any:
    return x * 2 if x.is_shared() else x * 3


def by_dim_order(x: Any) -> Any:
    return x * 2 if x.dim_order() == (0, 1, 2) else x * 3


def by_same_storage(x: Any, other: Any) -> Any:
    is_same = x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return x * 2 if is_same else x + other


def by_set_to(x: Any, other: Any) -> Any:
    return x * 2 if x.is_set_to(other) else x + other


def noted(x: torch.Tensor) -> torch.Tensor:
    x.note = True
    return x


def with_gradient(x: torch.Tensor) -> torch.Tensor:
    x.grad = torch.ones_like(x)
    return x


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_().register_hook(lambda grad: grad)
    return x


def in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return rand(2, 6, 4)


def marked() -> Sequence[tuple[Any, ...]]:
    return [
        (rand(3, 6, 4)[1:],),
        (rand(241)[1:].reshape(2, 30, 4),),
        (rand(2, 6, 4).as_subclass(Marked),),
        (rand(2, 6, 4).double(),),
        (noted(rand(2, 6, 4)),),
        (torch._neg_view(rand(2, 6, 4)),),
        (in_inference(),),
        (with_gradient(rand(2, 6, 4)),),
        (hooked(rand(2, 6, 4)),),
        (rand(2, 6, 4).share_memory_(),),
        (rand(2, 4, 6).mT,),
    ]


def pairs() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), rand(*size, 4)) for size in SIZES]


def overlapping() -> Sequence[tuple[Any, ...]]:
    both = rand(4, 6, 4)
    return [(both[:2], both[:2]), (both[:2], both[2:]), (both[:2], both[1:3])]


MARKS: tuple[Function, ...] = (
    *(by_address, by_subclass, by_exact_class, by_default_dtype, by_attribute, by_inference, by_negation, by_gradient),
    *(by_hooks, by_shared_memory, by_dim_order, by_attributes_of_all_kinds),
)


# -- what stands around a call


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def by_gradients(x: Any) -> Any:
    return x * 2 if torch.is_grad_enabled() else x * 3


def by_inference_mode(x: Any) -> Any:
    return x * 2 if torch.is_inference_mode_enabled() else x * 3


def by_new_zeros(x: Any) -> Any:
    return x + torch.zeros(4)


def by_new_numbers(x: Any) -> Any:
    return torch.arange(4.0) / 3, x


def by_determinism(x: Any) -> Any:
    return x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3


def by_precision(x: Any) -> Any:
    return x * 2 if torch.get_float32_matmul_precision() == "highest" else x * 3


def by_thread(x: Any) -> Any:
    return x * 2 if threading.current_thread() is threading.main_thread() else x * 3


def by_log_level(x: Any) -> Any:
    return x * 2 if LOG.isEnabledFor(logging.DEBUG) else x * 3


SURROUNDINGS: tuple[tuple[Function, Around], ...] = (
    (by_gradients, torch.enable_grad),
    (by_inference_mode, torch.inference_mode),
    (by_new_zeros, default_dtype),
    (by_new_numbers, default_dtype),
    (by_default_dtype, default_dtype),
    (by_determinism, deterministic),
    (by_precision, matmul_precision),
    (by_thread, contextlib.nullcontext),
    (by_log_level, contextlib.nullcontext),
)


# -- what the module holds


class HoldsAPartial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = functools.partial(torch.mul, other=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.scaled(x)
        if x.shape[1] > 30:
            self.scaled.keywords["other"] = 5.0
        return result


class AddsABuffer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * 2 if hasattr(self, "table") else x
        if x.shape[1] > 30:
            self.register_buffer("table", torch.zeros(3))
        return result


class KnowsItself(nn.Module):
    known: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.known.append(id(self))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if id(self) in self.known else x * 3


class CountsItsAttributes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 30:
            setattr(self, f"at_{int(x.shape[1])}", True)
        return x * sum(name.startswith("at_") for name in vars(self))


class TrainsAPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * 2 if self.drop.training else x
        self.drop.train(x.shape[1] > 30)
        return result


class HasASlot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = Slotted()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.number += 1
        return x * 2 if self.count.number > 7 else x


class Slotted:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


HOLDERS = (HoldsAPartial, AddsABuffer, KnowsItself, CountsItsAttributes, TrainsAPart, HasASlot)

ATTACKS = [
    *(Attack(function.__name__, of(function), watched, later) for function in NUMBERS),
    *(Attack(function.__name__, of(function), watched, marked) for function in MARKS),
    *(Attack(function.__name__, of(function), pairs, overlapping) for function in (by_same_storage, by_set_to)),
    *(
        Attack(f"{function.__name__} around", of(function), watched, later, around=one)
        for function, one in SURROUNDINGS
    ),
    *(Attack(model.__name__, model, watched, later) for model in HOLDERS),
]
#: attacks on mechanisms of their own, which run in continuous integration
QUICK = {"by_bits", "by_subclass", "by_gradients around", "HasASlot"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "one", [pytest.param(one, marks=() if one.name in QUICK else pytest.mark.slow) for one in ATTACKS], ids=str
)
@pytest.mark.one_in(2)
def test_no_verified_program_is_fooled(one: Attack) -> None:
    cached.cache_clear()
    assert attack(one).lies == []
