"""Dispatch: the same answer however often a structure came, refusals that say why, and a bounded cost per leaf."""

from __future__ import annotations

import copy
import enum
import gc
import itertools
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, StaticCache

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.core.marks import asked_mark
from onlooker.core.path import Name, Path
from onlooker.core.structure import LEAF, Structure
from onlooker.core.traffic import ViolationKind
from onlooker.pytrees.open import open_arguments, open_tree
from onlooker.serve.contexts import conflict, flags_of
from onlooker.serve.dispatch import Dispatcher
from onlooker_compat.trees.make import make_dynamic_cache


def cache(layers: int, batch: int = 2, past: int = 5) -> DynamicCache:
    return make_dynamic_cache([(torch.zeros(batch, 2, past, 4), torch.ones(batch, 2, past, 4))] * layers)


def static_cache(length: int = 6, batch: int = 2) -> StaticCache:
    made = StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=length)
    made.update(torch.zeros(batch, 2, 1, 4), torch.zeros(batch, 2, 1, 4), 0)
    return made


def recording(flag: bool) -> DynamicCache:
    made = cache(1)
    made.layers[0].record_past = flag
    return made


FLAGS = {
    "another window": (cache(1), lambda c: setattr(c.layers[0], "window", 4), "layers[0].window is always None"),
    "recording the past": (recording(False), lambda c: setattr(c.layers[0], "record_past", True), "record_past is"),
    "more heads": (static_cache(6), lambda c: setattr(c.layers[0], "num_heads", 9), "num_heads is always"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_of_a_container_is_compared(name: str) -> None:
    planned, change, text = FLAGS[name]
    structure = open_arguments({"past": planned}).structure
    other = copy.deepcopy(planned)
    assert conflict(structure, open_arguments({"past": other}).structure, ()) is None
    change(other)
    found = conflict(structure, open_arguments({"past": other}).structure, [asked_mark("window")])
    assert found is not None
    assert text in found.said


def test_what_holds_nothing_and_what_follows_from_tensors_is_no_conflict() -> None:
    structure = open_arguments({"past": static_cache(batch=2)}).structure
    assert conflict(structure, open_arguments({"past": static_cache(batch=3)}).structure, ()) is None
    assert (
        conflict(open_arguments({"past": cache(2)}).structure, open_arguments({"past": DynamicCache()}).structure, ())
        is None
    )


def test_a_part_that_was_none_is_refused_as_a_value() -> None:
    leaf = Structure(LEAF)
    planned = Structure("cache.Layer", (Name("length"),), (leaf,), "{'keys': None}")
    given = Structure("cache.Layer", (Name("keys"), Name("length")), (leaf, leaf), "{}")
    found = conflict(planned, given, (), Path((Name("past"),)))
    assert found is not None
    assert found.said == "past.keys is always None, the call has a value"


def test_a_cache_of_another_class_is_refused_by_its_name() -> None:
    found = conflict(
        open_arguments({"past": cache(1)}).structure, open_arguments({"past": static_cache()}).structure, ()
    )
    assert found is not None
    assert found.said == (
        "past is a transformers.cache_utils.DynamicCache, the call has a transformers.cache_utils.StaticCache"
    )


class Items(list[Any]):
    """A list of a class of its own."""


class Pair(NamedTuple):
    """A tuple of a class of its own."""

    first: Any
    second: Any


X = torch.zeros(2)
CLASSES: list[list[Any]] = [
    [[X, X], (X, X), deque([X, X]), Items([X, X]), Pair(X, X), torch.Size([1, 2])],
    [{"a": X}, OrderedDict(a=X), defaultdict(list, a=X)],
]


@pytest.mark.parametrize(
    ("planned", "given"), [pair for values in CLASSES for pair in itertools.permutations(values, 2)], ids=str
)
def test_a_container_of_another_class_is_refused(planned: Any, given: Any) -> None:
    structure = open_arguments({"p": planned}).structure
    found = conflict(structure, open_arguments({"p": given}).structure, ())
    assert found is not None
    assert found.kind is ViolationKind.CLASS
    assert conflict(structure, open_arguments({"p": copy.copy(planned)}).structure, ()) is None


class LooksUpItsScale(torch.nn.Module):
    def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        try:
            return parts["x"] * parts["scale"]
        except KeyError:
            return parts["x"]


def test_a_dict_that_makes_its_items_does_not_stand_for_a_plain_one() -> None:
    observer, model = InputObserver(), LooksUpItsScale()
    with torch.no_grad(), observer(model):
        for rows in (2, 3):
            model({"x": torch.rand(rows, 4)})
    program = observer.export()
    with pytest.raises(RejectedCallError, match=r"parts is a dict, the call has a collections\.defaultdict"):
        program(defaultdict(lambda: torch.zeros(1), x=torch.rand(5, 4)))
    assert program({"x": torch.ones(5, 4)}).sum() == 20


def exported(model: torch.nn.Module, *calls: Sequence[Any]) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for call in calls:
            model(*call)
    program = observer.export()
    assert program.verify().verified
    return program


class AsksForSparse(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_dense().sum() * 3 if x.is_sparse else x.sum() * 2


@pytest.mark.parametrize("other", ["to_sparse", "to_mkldnn"])
def test_a_tensor_of_another_layout_is_refused_by_it(other: str) -> None:
    program = exported(AsksForSparse(), [torch.rand(2, 4)], [torch.rand(3, 4)])
    with pytest.raises(RejectedCallError, match=r"x is a float32.* of the layout torch\."):
        program(getattr(torch.rand(5, 4), other)())
    assert program(torch.ones(5, 4)) == 40


class CountsParts(torch.nn.Module):
    def forward(self, parts: Any) -> torch.Tensor:
        if isinstance(parts, dict):
            return parts["x"] * len(parts)
        return parts.x * (2 if hasattr(parts, "extra") else 3)


@pytest.mark.parametrize("made", [dict, SimpleNamespace])
@pytest.mark.parametrize("empty", [[], (), {}], ids=str)
@pytest.mark.one_in(2)
def test_an_empty_container_inside_of_an_argument_is_not_an_absent_one(made: Any, empty: Any) -> None:
    calls = [[made(x=torch.rand(rows, 4), extra=empty)] for rows in (2, 3)]
    program = exported(CountsParts(), *calls)
    with pytest.raises(RejectedCallError, match=r"extra.* has to be an empty"):
        program(made(x=torch.rand(5, 4)))
    with pytest.raises(RejectedCallError, match="extra"):
        program(made(x=torch.rand(5, 4), extra=None))
    assert program(made(x=torch.ones(5, 4), extra=empty)).sum() == 40


class NamesItsResults(torch.nn.Module):
    def forward(self, parts: dict[Any, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"layer_{key}": value * 2 for key, value in parts.items()}


@pytest.mark.parametrize(
    ("key", "others"), [(1, [True, 1.0]), (0.0, [0, False, -0.0]), (("a", 1), [("a", True), ("a", 1.0)])], ids=str
)
def test_keys_that_are_one_to_a_dict_are_not_one_to_a_model(key: Any, others: Sequence[Any]) -> None:
    program, x = exported(NamesItsResults(), [{key: torch.rand(2, 4)}], [{key: torch.rand(3, 4)}]), torch.rand(5, 4)
    for _ in range(2):
        assert list(program({key: x})) == [f"layer_{key}"]
        for other in others:
            with pytest.raises(RejectedCallError, match="parts"):
                program({other: x})


@given(
    st.dictionaries(st.text(max_size=4), st.sampled_from([1, "a, b", "'", (1, (2, 3)), {"x": [1]}, None]), max_size=4)
)
def test_flags_are_read_back_from_the_text_of_a_context(flags: dict[str, Any]) -> None:
    assert flags_of(repr(flags)) == {repr(key): repr(value) for key, value in flags.items()}


class Step(torch.nn.Module):
    """A step of a decoder that does nothing but append to its cache."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = layers

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, past: Any = None, use_cache: bool = True
    ) -> dict[str, Any]:
        past = DynamicCache() if past is None else past
        new = ids.to(torch.float32)[:, None, :, None].expand(-1, 2, -1, 4)
        total = torch.zeros(())
        for layer in range(self.layers):
            keys, _ = past.update(new, new, layer)
            total = total + keys.sum()
        return {"total": total if mask is None else total * mask.sum(), "past": past}


def step_call(layers: int, batch: int, sequence: int, past: int) -> dict[str, Any]:
    return {
        "ids": torch.ones(batch, sequence, dtype=torch.int64),
        "mask": torch.ones(batch, past + sequence, dtype=torch.int64),
        "past": cache(layers, batch, past),
        "use_cache": True,
    }


class Way(enum.IntEnum):
    """Which is an int of Python, and no size."""

    ONCE = 1
    TWICE = 2


class Ways(torch.nn.Module):
    def forward(self, x: torch.Tensor, way: Way = Way.ONCE) -> torch.Tensor:
        return x * 2 if way is Way.TWICE else x + way


def test_members_of_an_enum_of_ints_have_a_graph_each() -> None:
    program = exported(Ways(), (torch.randn(2, 3),), (torch.randn(3, 3), Way.TWICE))
    assert program.verify().verified
    for way in Way:
        x = torch.randn(5, 3)
        torch.testing.assert_close(program(x, way), Ways()(x, way))
    with pytest.raises(RejectedCallError, match=r"way is always <Way.ONCE: 1>, the call has 1"):
        program(torch.randn(5, 3), 1)


@pytest.fixture(scope="module")
def program() -> Program:
    observer, model = InputObserver(), Step()
    with observer(model):
        for sizes in ((2, 3, 5), (3, 4, 7)):
            model(**step_call(2, *sizes))
        model(torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), use_cache=True)
    return observer.export(probe=False)


def same(got: Any, expected: Any) -> None:
    left, right = open_tree(got), open_tree(expected)
    assert left.structure == right.structure
    for one, other in zip(left.leaves, right.leaves, strict=True):
        torch.testing.assert_close(one, other)


def test_structures_and_ways_of_calling_may_come_in_any_order(program: Program) -> None:
    """What was learnt from one call changes no other."""
    model = Step()
    prompt = {
        "ids": torch.ones(4, 2, dtype=torch.int64),
        "mask": torch.ones(4, 2, dtype=torch.int64),
        "use_cache": True,
    }
    for round_ in range(3):
        for make in (
            lambda past=6 + round_: ((), step_call(2, 4, 1, past)),
            lambda: ((), prompt),
            lambda: ((), {**prompt, "past": None}),
            lambda: ((), {**prompt, "past": DynamicCache()}),
            lambda: (tuple(prompt.values())[:2], {"use_cache": True}),
            lambda: ((), dict(reversed(step_call(2, 5, 2, 3).items()))),
        ):
            (args, kwargs), (own_args, own_kwargs) = make(), make()
            same(program(*args, **kwargs), model(*own_args, **own_kwargs))


REFUSED = {
    "a constant": (lambda c: {**c, "use_cache": False}, "use_cache is always True, the call has False"),
    "a dtype": (lambda c: {**c, "ids": c["ids"].int()}, r"ids is a int64\[.*\], the call has int32\[2, 3\]"),
    "a rank": (lambda c: {**c, "ids": c["ids"][None]}, r"ids is a int64\[.*\], the call has int64\[1, 2, 3\]"),
    "no tensor": (lambda c: {**c, "ids": 3}, "ids is a int64.*, the call has 3"),
    "heads": (
        lambda c: {**c, "past": make_dynamic_cache([(torch.zeros(2, 3, 5, 4),) * 2] * 2)},
        r"shape\[1\] is always 2",
    ),
    "more layers": (lambda c: {**c, "past": cache(3)}, r"past.layers\[2\].keys is not an input"),
    "a static cache": (lambda c: {**c, "past": static_cache()}, "is"),
    "an object": (lambda c: {**c, "mask": object()}, "mask is a int64.*, the call has <builtins.object>"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_the_same_the_first_and_the_next_time(program: Program, name: str) -> None:
    change, text = REFUSED[name]
    program(**step_call(2, 2, 3, 5))
    said = []
    for _ in range(3):
        with pytest.raises(RejectedCallError, match=text) as caught:
            program(**change(step_call(2, 2, 3, 5)))
        said.append(caught.value.message)
    assert len(set(said)) == 1
    same(program(**step_call(2, 2, 3, 5)), Step()(**step_call(2, 2, 3, 5)))


def test_constants_are_looked_at_before_tensors(program: Program) -> None:
    call = step_call(2, 2, 3, 5)
    with pytest.raises(RejectedCallError, match="use_cache is always True, the call has None"):
        program(call["ids"].int(), call["mask"], call["past"], None)


def test_a_size_above_the_greatest_is_refused_with_the_symbol_and_its_range(program: Program) -> None:
    (graph,) = program.graphs[:1]
    symbols = tuple(replace(s, high=8) if s.name == "batch" else s for s in graph.plan.symbols)
    bounded = Dispatcher([replace(graph, plan=replace(graph.plan, symbols=symbols))], program.recording.signature)
    bounded((), step_call(2, 8, 1, 4))
    with pytest.raises(RejectedCallError, match=r"ids.shape\[0\] is batch, 1 to 8, the call has 9"):
        bounded((), step_call(2, 9, 1, 4))


class Star(torch.nn.Module):
    """Takes as many tensors as come."""

    def forward(self, *parts: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return sum(parts, torch.zeros(())) + more["last"]


def test_arguments_that_are_gathered_are_bound_every_time() -> None:
    observer, model = InputObserver(), Star()
    calls = [[torch.ones(size, 3) for _ in range(3)] for size in (2, 4)]
    with observer(model):
        for *parts, last in calls:
            model(*parts, last=last)
    program = observer.export(probe=False)
    for size in (3, 5):
        x = torch.ones(size, 3)
        torch.testing.assert_close(program(x, x, last=x), model(x, x, last=x))
    with pytest.raises(RejectedCallError):
        program(x, last=x)


def counted(dispatcher: Dispatcher, call: dict[str, Any]) -> int:
    """The functions of Python that a dispatch enters, with that of the graph itself."""
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    dispatcher((), call)
    gc.disable()
    sys.setprofile(watch)
    try:
        dispatcher((), call)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_dispatch_enters_few_functions_per_leaf() -> None:
    """The cost, without a clock: 2 functions a layer (it is read, it is built), and a fixed number a call."""
    counts, leaves = [], []
    for layers in (2, 6):
        observer, model = InputObserver(), Step(layers)
        with observer(model):
            for sizes in ((2, 3, 5), (3, 4, 7)):
                model(**step_call(layers, *sizes))
        (graph,) = observer.export(probe=False).graphs
        given = graph.run([leaf for leaf in open_arguments(step_call(layers, 2, 1, 4)).leaves if leaf is not True])
        still = replace(graph, run=lambda inputs, given=given: given)
        call = step_call(layers, 2, 1, 4)
        counts.append(counted(Dispatcher([still], observer.recording().signature), call))
        leaves.append(len(open_arguments(call).leaves))
    assert counts[0] <= 60 + leaves[0]
    assert (counts[1] - counts[0]) / (leaves[1] - leaves[0]) <= 1.5


def test_an_array_of_numpy_is_refused_with_the_way_to_a_tensor() -> None:
    model, observer = torch.nn.Linear(4, 2), InputObserver()
    with observer(model):
        model(torch.ones(2, 4)), model(torch.ones(3, 4))
    program = observer.export(probe=False)
    with pytest.raises(RejectedCallError, match=r"pass torch\.from_numpy\(array\)"):
        program(torch.ones(2, 4).numpy())


def test_a_list_of_numbers_is_no_tensor() -> None:
    model, observer = torch.nn.Linear(4, 2).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 3):
            model(torch.randn(rows, 4))
    with pytest.raises(RejectedCallError, match="input is a tensor, the call has a list"):
        observer.export()([[1.0, 2.0, 3.0, 4.0]])
