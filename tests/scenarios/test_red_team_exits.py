"""Attacks by numbers that leave the model: bools, shapes, slices, values of tensors, and texts of sizes."""

from __future__ import annotations

import contextlib
import io
import logging
import string
import warnings
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from red_team import Attack, attack

Function = Callable[[torch.Tensor], Any]


def of(function: Function) -> Callable[[], torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return Model


def images(*sizes: tuple[int, int]) -> Callable[[], Sequence[tuple[Any, ...]]]:
    return lambda: [(torch.randn(*size, 4),) for size in sizes]


WATCHED = images((2, 5), (3, 9), (4, 7))
FOOLING = images((2, 40), (3, 65), (1, 1), (5, 5), (9, 2), (3, 100))
Pair = namedtuple("Pair", ["y", "flag"])


@dataclass
class Result:
    y: torch.Tensor
    is_long: bool


class Last(logging.Handler):
    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        Last.text = record.getMessage()


class Remembers(logging.Filter):
    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        Remembers.text = record.getMessage()
        return False


LOG = logging.Logger("attacks")
LOG.addHandler(Last())
FILTERED = logging.Logger("filtered")
FILTERED.addFilter(Remembers())
BUFFER = io.StringIO()
BUFFERED = logging.Logger("buffered")
BUFFERED.addHandler(logging.StreamHandler(BUFFER))


def logged(n: Any) -> str:
    LOG.warning("size %s", n)
    return Last.text


def logged_late(n: Any) -> str:
    LOG.warning("size %(n)s", {"n": n})
    return Last.text


def filtered(n: Any) -> str:
    FILTERED.warning(f"size {n}")
    return Remembers.text


def buffered(n: Any) -> str:
    BUFFER.truncate(0)
    BUFFERED.warning("size %s", n)
    return BUFFER.getvalue()


def printed(n: Any) -> str:
    buffer = io.StringIO()
    print("size", n, file=buffer)
    return buffer.getvalue()


def redirected(n: Any) -> str:
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        print(f"size {n}")  # noqa: T201
    return buffer.getvalue()


def recorded(n: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"size {n}", stacklevel=2)
    return str(caught[0].message)


def raised(n: Any) -> str:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="size 40")
        try:
            warnings.warn(f"size {n}", stacklevel=2)
        except UserWarning:
            return "size 40"
    return ""


def in_an_exception(n: Any) -> str:
    try:
        raise ValueError(f"size {n}")
    except ValueError as error:
        return str(error)


def by_template(n: Any) -> str:
    return string.Template("size $n").substitute(n=n)


def by_percent(n: Any) -> str:
    return "size %s" % n  # noqa: UP031


def by_repr_of_a_list(n: Any) -> str:
    return f"size {[n]}".replace("[", "").replace("]", "")


def by_text(text_of: Callable[[Any], str]) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if "40" in text_of(x.shape[1]) else 1.0)

    return function


EXITS: dict[str, Function] = {
    "above": lambda x: (x + 1, x.shape[1] > 64),
    "dict": lambda x: {"y": x + 1, "long": x.shape[1] > 64},
    "named tuple": lambda x: Pair(x + 1, x.shape[1] % 5 == 0),
    "dataclass": lambda x: Result(x + 1, x.shape[1] > 64),
    "namespace": lambda x: (x + 1, SimpleNamespace(long=x.shape[1] > 64)),
    "deep": lambda x: (x + 1, [[{"flags": (x.shape[0] > 4, x.shape[1] == 40)}]]),
    "equal": lambda x: (x + 1, x.shape[0] == x.shape[1]),
    "chain": lambda x: (x + 1, 8 < x.shape[1] < 50),
    "sum of bools": lambda x: (x + 1, (x.shape[1] > 8) + (x.shape[1] > 50)),
    "int of bool": lambda x: (x + 1, int(x.shape[1] > 50)),
    "bool by or": lambda x: (x + 1, x.shape[1] > 50 or x.shape[0] > 4),
    "not": lambda x: (x + 1, not x.shape[1] > 50),
    "any": lambda x: (x + 1, any(n > 50 for n in x.shape)),
    "in": lambda x: (x + 1, x.shape[1] in (40, 100)),
    "shape": lambda x: (x + 1, x.shape),
    "slice": lambda x: (x + 1, slice(0, x.shape[1], 2)),
    "ratio": lambda x: (x + 1, x.shape[1] / x.shape[0]),
    "kinds": lambda x: x * 2 if type(x.shape[1]) is int and isinstance(x.shape[0], int) else x,
    "bounded index": lambda x: x * (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)[min(x.shape[1], 6)],
    "empty": lambda x: (x + 1, x.shape[1] == 0, x.shape[1] == 1, x.shape[1] != 1),
    "largest above": lambda x: (x + 1, (x.max() > 2.5).item()),
    "count": lambda x: (x + 1, (x > 2).sum().item(), bool((x > 2).any())),
    "argmax": lambda x: (x + 1, x[0, 0].argmax().item() == 2),
    "text": lambda x: (x + 1, f"{x.shape[1]} tokens"),
    "format": lambda x: (x + 1, format(x.shape[1], "04d")),
    "join": lambda x: (x + 1, "x".join(map(str, x.shape))),
    "str of shape": lambda x: (x + 1, str(x.shape)),
    "set": lambda x: (x + 1, {"long"} if x.shape[1] > 64 else set()),
    "dict key": lambda x: {str(x.shape[1]): x + 1},
}
TEXTS = (
    *(logged, logged_late, filtered, buffered, printed, redirected, recorded, raised),
    *(in_an_exception, by_template, by_percent, by_repr_of_a_list),
)
ATTACKS = [
    *(Attack(name, of(function), WATCHED, FOOLING) for name, function in EXITS.items()),
    *(Attack(text.__name__, of(by_text(text)), WATCHED, FOOLING) for text in TEXTS),
]


@pytest.mark.one_in(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("one", ATTACKS, ids=str)
def test_no_verified_program_is_fooled(one: Attack) -> None:
    assert attack(one).lies == []


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["above", "dict", "deep", "equal", "shape", "slice", "argmax", "kinds", "bounded index"]
)
def test_most_exits_are_served(name: str) -> None:
    (one,) = [one for one in ATTACKS if one.name == name]
    assert attack(one).verified == {"torch": True}
