"""Objects as arguments: their tensors are inputs, or a program takes only the object that it was exported with."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import gc
import threading
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onlooker
from onlooker import InputObserver, RejectedCallError
from onlooker.pytrees.identity import identity_of
from onlooker.pytrees.open import close_tree, open_tree


class Called:
    """An object that is a function too."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __call__(self) -> Any:
        return self.x

    def method(self) -> Any:
        return self.x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    def __call__(self) -> Any:
        return self.x


class Dict(dict[str, Any]):
    pass


class List(list[Any]):
    def __init__(self, *values: Any) -> None:
        super().__init__(values)


class Tuple(tuple[Any, ...]):
    def __new__(cls, *values: Any) -> Tuple:
        return super().__new__(cls, values)


@dataclasses.dataclass
class Record:
    scale: int = 1

    def with_extra(self, x: Any) -> Record:
        self.extra = x
        return self


class Table:
    """Holds its tensors in a part that knows its owner, and forwards attributes to it, as batches of graphs do."""

    def __init__(self, **content: Any) -> None:
        self.__dict__["store"] = Part(self, content)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["store"].content[name]
        except KeyError:
            raise AttributeError(name) from None

    def __call__(self, *names: str) -> Any:
        return iter(self.store.content)


class Part:
    def __init__(self, owner: Table, content: dict[str, Any]) -> None:
        self.content, self.owner = content, weakref.ref(owner)


class Child:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.inner = Called(x)
        self.inner.parent = self  # type: ignore[attr-defined]


class Closed:
    """Refuses that anybody reads its attributes but itself."""

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", x)

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "__class__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(name)


def linear(x: torch.Tensor) -> torch.nn.Linear:
    made = torch.nn.Linear(3, 3)
    with torch.no_grad():
        made.weight.copy_(x[:1].expand(3, 3))
    return made


def closure(x: Any) -> Callable[[], Any]:
    return lambda: x


#: how an object is made of a tensor, how the model reads it, and whether its tensors are inputs of a program
OBJECTS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any], bool]] = {
    "called": (Called, lambda box: box(), True),
    "slots": (Slotted, lambda box: box(), True),
    "a function with arguments": (lambda x: functools.partial(torch.mul, x), lambda f: f(1), True),
    "named arguments": (lambda x: functools.partial(torch.mul, other=x), lambda f: f(torch.ones(3)), True),
    "derived from dict": (lambda x: Dict(x=x), lambda box: box["x"], True),
    "derived from list": (lambda x: List(x, 1), lambda box: box[0], True),
    "derived from tuple": (lambda x: Tuple(x, 1), lambda box: box[0], True),
    "UserDict": (lambda x: UserDict(x=x), lambda box: box["x"], True),
    "UserList": (lambda x: UserList([x]), lambda box: box[0], True),
    "deque": (lambda x: deque([x]), lambda box: box[0], True),
    "dataclass with an extra attribute": (lambda x: Record().with_extra(x), lambda box: box.extra, True),
    "a part that knows its owner": (lambda x: Table(x=x), lambda box: box.store.owner().x, True),
    "a child that knows its parent": (Child, lambda box: box.inner.parent.x + box.inner(), True),
    "deep inside": (lambda x: Called(Called(Called([{"a": Called(Called(x))}]))), lambda b: b()()()[0]["a"]()(), True),
    "unreadable from outside": (Closed, lambda box: box.x, True),
    "a distribution": (lambda x: torch.distributions.Normal(x, 1.0, validate_args=False), lambda d: d.mean, True),
    "method": (lambda x: Called(x).method, lambda method: method(), False),
    "closure": (closure, lambda function: function(), False),
    "set": (lambda x: {x}, lambda box: next(iter(box)), False),
    "weak reference": (lambda x: weakref.ref(x), lambda box: box(), False),
    "an object with a module": (lambda x: Called(linear(x)), lambda box: box()(torch.ones(2, 3)), False),
    "iterator": (
        lambda x: Called((x, iter([x]))),
        lambda box: box()[0] * box()[1].__length_hint__(),
        False,
    ),
    "iterator that is not read": (lambda x: Called((x, iter([x]))), lambda box: box()[0], True),
    "array": (lambda x: x.numpy(), lambda array: torch.from_numpy(array), False),
    "state without tensors": (lambda x: Called(x.tolist()), lambda box: torch.tensor(box.x), False),
}


class Reads(torch.nn.Module):
    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, box: Any, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.read(box) * 2 + y.sum()
        return result


_kept: list[torch.Tensor] = []


def tensor(n: int, value: float) -> torch.Tensor:
    _kept.append(torch.full((n, 3), value) + torch.arange(3))
    return _kept[-1]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", OBJECTS)
def test_what_an_object_holds_is_never_baked_unseen(name: str, tmp_path: Path) -> None:
    make, read, is_input = OBJECTS[name]
    model, observer = Reads(read), InputObserver()
    first, y = make(tensor(2, 1.0)), torch.ones(4)
    with observer(model):
        model(first, y)
        model(first, torch.ones(7))
    program = observer.export()
    assert torch.equal(program(first, y), model(first, y))
    program.save(tmp_path / "program")
    for served in (program, onlooker.load(tmp_path / "program")):
        for box in (make(tensor(2, 5.0)), make(tensor(2, -3.0))):
            conforms = served.check([((box, y), {})]).holds
            assert conforms is is_input
            if is_input:
                assert torch.equal(served(box, y), model(box, y))
            else:
                with pytest.raises(RejectedCallError, match=r"box.* is always"):
                    served(box, y)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    name: str
    limit: Any = None


STATES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.sampled_from(
            [0.0, -0.0, 1.5, "", "a", b"a", 1j, Color.RED, Color.BLUE, torch.float16, torch.int8, len, max]
        ),
        st.builds(slice, st.integers(0, 2)),
        st.builds(lambda n: numpy.arange(n), st.integers(0, 2)),
        st.frozensets(st.integers(0, 3), max_size=3),
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=2),
        st.lists(inside, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from("ab"), inside, max_size=2),
        st.builds(Settings, st.sampled_from("ab"), inside),
        st.builds(Called, inside),
    ),
    max_leaves=5,
)


def plain(value: Any) -> Any:
    """A value as data that Python can compare: with classes, so that 1, 1.0 and True are three things."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(child) for child in value]
    if isinstance(value, dict):
        return "dict", [(key, plain(child)) for key, child in value.items()]
    if isinstance(value, numpy.ndarray):
        return "array", value.tolist()
    if isinstance(value, (Settings, Called)):
        return type(value).__name__, sorted((key, plain(child)) for key, child in vars(value).items())
    return type(value).__name__, repr(value)


@given(STATES, STATES)
def test_two_objects_are_the_same_exactly_when_their_state_is(left: Any, right: Any) -> None:
    assert (identity_of(left) == identity_of(right)) is (plain(left) == plain(right))


@pytest.mark.parametrize(
    "make",
    [
        object,
        threading.Lock,
        lambda: Called(torch.Generator()),
        lambda: iter([1]),
        lambda: Called(threading.Lock()),
        lambda: [object()],
    ],
    ids=["object", "lock", "an object with a generator", "iterator", "an object with a lock", "a list with an object"],
)
def test_what_has_no_readable_state_is_only_itself(make: Callable[[], Any]) -> None:
    one = make()
    before = identity_of(one)
    for _ in range(50):
        other = make()
        assert identity_of(other) != before
        del other
        gc.collect(0)
    assert identity_of(one) == before


def test_functions_are_told_apart_by_their_code_and_what_they_hold() -> None:
    functions = [lambda x: x + 1, lambda x: x + 2, lambda x, n=1: x + n, lambda x, n=2: x + n, closure(1), closure(2)]
    assert len(set(map(identity_of, functions))) == len(functions)
    assert identity_of(closure(1)) == identity_of(closure(1))


@pytest.mark.parametrize("make", [Child, lambda x: Table(x=x)])
def test_what_refers_back_refers_to_the_object_that_was_built(make: Callable[[Any], Any]) -> None:
    opened = open_tree(make(torch.zeros(1)))
    again = close_tree(opened.structure, opened.leaves)
    back: Any = vars(again.inner)["parent"] if isinstance(again, Child) else again.store.owner()
    assert back is again


def test_a_constant_of_another_kind_has_a_graph_of_its_own() -> None:
    class Converts(torch.nn.Module):
        def forward(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            return x.to(dtype)

    model, observer = Converts(), InputObserver()
    with observer(model):
        for dtype in (torch.float16, torch.float64):
            model(torch.ones(2, 3), dtype)
    program = observer.export()
    assert program(torch.ones(4, 3), torch.float64).dtype is torch.float64
    assert program(torch.ones(4, 3), torch.float16).dtype is torch.float16
    assert program.verify().verified
    with pytest.raises(RejectedCallError, match=r"the call has <torch.dtype: torch.int8>"):
        program(torch.ones(2, 3), torch.int8)


def test_an_object_of_its_own_per_call_takes_little_room() -> None:
    model, observer = Reads(lambda box: torch.ones(1)), InputObserver()
    with observer(model):
        for _ in range(300):
            model(object(), torch.ones(1))
    assert len(observer.recording().calls) <= 70
    assert len(observer.recording()) == 300


class Tracker:
    """An argument without tensors, which calls change."""

    def __init__(self) -> None:
        self.count, self.seen = 0, {"start"}


class Tracks(torch.nn.Module):
    def forward(self, x: torch.Tensor, tracker: Tracker) -> torch.Tensor:
        tracker.count += 1
        tracker.seen.add(x.shape[0])
        return x * 2


def test_objects_that_calls_change_are_as_after_the_calls() -> None:
    trackers = [Tracker() for _ in range(3)]
    model, observer = Tracks(), onlooker.InputObserver()
    with observer(model):
        for rows, tracker in enumerate(trackers, 2):
            model(torch.randn(rows, 3), tracker)
    with pytest.raises(onlooker.ExportError, match=r"tracker is always the <.*Tracker"):
        observer.export()
    assert [(tracker.count, tracker.seen) for tracker in trackers] == [(1, {"start", n}) for n in (2, 3, 4)]


class NewCache:
    """A cache that holds nothing before the first call."""

    def __init__(self, keys: Any = None, values: Any = None) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        self.values = values if self.values is None else torch.cat([self.values, values], 1)
        return self.keys, self.values


class Attends(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: NewCache) -> torch.Tensor:
        query = self.query(x)
        return torch.nn.functional.scaled_dot_product_attention(query, *cache.update(query, x))


def filled(batch: int, past: int) -> NewCache:
    return NewCache(torch.randn(batch, past, 8), torch.randn(batch, past, 8))


@torch.no_grad()
def test_a_cache_of_none_is_filled_by_the_first_call() -> None:
    model, observer = Attends(), onlooker.InputObserver()
    first = NewCache()
    with observer(model):
        model(torch.randn(1, 4, 8), first)
        for batch, past in ((1, 4), (1, 5), (2, 6)):
            model(torch.randn(batch, 1, 8), filled(batch, past))
    program = observer.export()
    assert program.verify().verified
    assert type(first.keys) is torch.Tensor
    assert first.keys.shape == (1, 4, 8)
    for batch, length, past in ((2, 6, 0), (3, 1, 9), (1, 2, 3)):
        x, ours = torch.randn(batch, length, 8), filled(batch, past) if past else NewCache()
        theirs = copy.deepcopy(ours)
        torch.testing.assert_close(program(x, ours), model(x, theirs))
        torch.testing.assert_close((ours.keys, ours.values), (theirs.keys, theirs.values))
