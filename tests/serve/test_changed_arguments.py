"""Arguments that a method changes and does not return: a program gives them, and brings the caller's to that state."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from onlooker.pytrees.open import open_tree


class InPlace(torch.nn.Module):
    """Fills the first rows of a tensor of the caller."""

    def forward(self, x, total):
        total[:, : x.shape[1]] = 2 * x
        return total.sum((1, 2)) + x.sum((1, 2))


class InPlaceInTuple(torch.nn.Module):
    """The same with tensors that a tuple holds."""

    def forward(self, x, pair):
        keys, values = pair
        keys[:, : x.shape[1]] = x
        values[:, : x.shape[1]] += x
        return (keys + values).sum(1)


class InDict(torch.nn.Module):
    """Puts a longer tensor into a dict."""

    def forward(self, x, table):
        table["rows"] = torch.cat([table["rows"], x], 1)
        return table["rows"].sum((1, 2))


class InContainersOfTuple(torch.nn.Module):
    """Changes a dict and a list that stand in tuples, and a tensor in an inner tuple."""

    def forward(self, x, parts):
        _, table, (rows, seen) = parts
        table["calls"] = 2.5
        table["rows"] = rows + x
        seen.append(x.shape[1])
        rows.mul_(2)
        return table["rows"].sum((1, 2))


class InRest(torch.nn.Module):
    """Changes a dict of numbers among the arguments without names."""

    def forward(self, x, *rest):
        rest[1]["calls"] = 3
        return x.sum(1) * rest[0]


class InList(torch.nn.Module):
    """Puts a longer tensor into a list, and writes to another one."""

    def forward(self, x, parts):
        parts[0] = torch.cat([parts[0], x], 1)
        parts[1] += 1
        return parts[0].sum((1, 2))


class Appends(torch.nn.Module):
    """Makes a list longer, which is empty at first."""

    def forward(self, x, seen):
        seen.append(2 * x)
        return x.sum(1) + sum(one.sum(1) for one in seen)


class InCache(torch.nn.Module):
    """Updates a cache, and returns hidden states only: a layer of a decoder does so."""

    def forward(self, x, past):
        keys, values = past.update(x[:, None], 2 * x[:, None], 0)
        return (keys + values).sum((1, 2))


class InStaticCache(torch.nn.Module):
    """Writes into a cache that has all of its room from the beginning."""

    def forward(self, x, past, position):
        keys, values = past.update(x[:, None], 2 * x[:, None], 0, {"cache_position": position})
        return (keys * values).sum((1, 2))


class OptionalCache(torch.nn.Module):
    """Gets along without the cache as well."""

    def forward(self, x, *, past=None):
        if past is None:
            return x.sum(1)
        keys, values = past.update(x[:, None], 2 * x[:, None], 0)
        return (keys + values).sum((1, 2))


class Memory:
    """A hand-written cache."""

    def __init__(self, batch: int, past: int) -> None:
        self.keys = [torch.randn(batch, past, 4) for _ in range(2)]
        self.total = torch.zeros(batch, 4)
        self.name = "mine"


class InObject(torch.nn.Module):
    """Changes lists and tensors of an object."""

    def forward(self, x, memory):
        for layer, keys in enumerate(memory.keys):
            memory.keys[layer] = torch.cat([keys, x + layer], dim=1)
        memory.total.add_(x.sum(dim=1))
        return sum(keys.sum(dim=1) for keys in memory.keys) + memory.total


def cache(batch: int, length: int) -> Any:
    made = transformers.DynamicCache()
    made.update(torch.randn(batch, 1, length, 4), torch.randn(batch, 1, length, 4), 0)
    return made


def static_cache(batch: int) -> Any:
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=1, hidden_size=4)
    made = transformers.StaticCache(config=config, max_cache_len=16)
    empty = torch.zeros(batch, 1, 3, 4)
    made.update(empty, empty, 0, {"cache_position": torch.arange(3)})
    return made


#: the model, and the arguments behind x for a batch and a length
MODELS: dict[str, tuple[type[torch.nn.Module], Callable[[int, int], tuple[Any, ...]]]] = {
    "a tensor": (InPlace, lambda b, n: (torch.randn(b, 16, 4),)),
    "a tuple": (InPlaceInTuple, lambda b, n: ((torch.randn(b, 16, 4), torch.randn(b, 16, 4)),)),
    "a dict": (InDict, lambda b, n: ({"rows": torch.randn(b, n + 2, 4)},)),
    "containers of a tuple": (
        InContainersOfTuple,
        lambda b, n: (("all", {"calls": 1.5}, (torch.randn(b, n, 4), [3])),),
    ),
    "a dict among the rest": (InRest, lambda b, n: (0.5, {"calls": 1})),
    "a list": (InList, lambda b, n: ([torch.randn(b, n + 2, 4), torch.randn(b, 4)],)),
    "an empty list": (Appends, lambda b, n: ([],)),
    "a cache": (InCache, lambda b, n: (cache(b, n + 2),)),
    "a static cache": (InStaticCache, lambda b, n: (static_cache(b), torch.arange(3, 3 + n))),
    "an object": (InObject, lambda b, n: (Memory(b, n + 2),)),
}

#: after a call the arguments of these are as in no watched call
ONLY_ONCE = ("an empty list", "a static cache", "containers of a tuple", "a dict among the rest")


def call(kind: str, batch: int, length: int) -> tuple[Any, ...]:
    torch.manual_seed(batch)
    return torch.randn(batch, length, 4), *MODELS[kind][1](batch, length)


def exported(model: torch.nn.Module, *calls: tuple[Any, ...], probe: bool = True) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for one in calls:
            model(*one)
    return observer.export(probe=probe)


def assert_same(left: Any, right: Any) -> None:
    for one, other in zip(open_tree(left).leaves, open_tree(right).leaves, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
        else:
            assert one == other


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.one_in(4)
def test_the_argument_of_the_caller_is_what_it_is_after_the_model(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind][0]()
    program = exported(model, call(kind, 2, 3), call(kind, 3, 5))
    assert program.verify().verified, program.tally.summary
    program.save(tmp_path / "out", values=True)
    loaded = onlooker.load(tmp_path / "out")
    assert isinstance(loaded, Program)
    if kind != "an object":  # whose class no loaded program builds
        assert all(check.passed for check in loaded.verify_saved().checks)
    programs = [program, program.to("onnx"), *([loaded] if kind != "an object" else [])]
    assert programs[1].verify().verified, programs[1].tally.summary
    for one in programs:
        theirs, direct, inside = (call(kind, 4, 6) for _ in range(3))
        held = [leaf for leaf in open_tree(list(direct)).leaves if isinstance(leaf, torch.Tensor)]
        before = [leaf.data_ptr() for leaf in held]
        for _ in range(1 if kind in ONLY_ONCE else 2):
            with torch.no_grad():
                expected = model(*theirs)
                torch.testing.assert_close(one(*direct), expected, atol=1e-4, rtol=1e-4)
                with one.installed(model) as served:
                    torch.testing.assert_close(model(*inside), expected, atol=1e-4, rtol=1e-4)
            assert served.eager == 0
            assert_same(list(direct[1:]), list(theirs[1:]))
            assert_same(list(inside[1:]), list(theirs[1:]))
        assert [leaf.data_ptr() for leaf in held] == before


class Buffered(torch.nn.Module):
    """Writes to a buffer of its caller and returns it, beside what it computes or alone."""

    def __init__(self, alone: bool = False) -> None:
        super().__init__()
        self.alone = alone

    def forward(self, x: torch.Tensor, buffer: torch.Tensor) -> Any:
        buffer[:, : x.shape[1]] = x
        return buffer.mul_(2) if self.alone else {"sum": buffer.sum(1), "buffer": buffer}


@pytest.mark.parametrize(
    ("target", "alone"),
    [
        ("torch", True),
        ("onnx", True),
        ("onnx", False),
        ("openvino", False),
        pytest.param("aoti", True, marks=pytest.mark.slow),
    ],
)
def test_an_argument_that_is_written_and_returned_is_written_on_each_target(
    target: str, alone: bool, tmp_path: Path
) -> None:
    model = Buffered(alone)
    program = exported(model, *((torch.randn(n, n, 4), torch.zeros(n, 8, 4)) for n in (2, 3))).to(target)
    assert program.verify().verified, program.tally.summary
    program.save(tmp_path / "out")
    for one in (program, onlooker.load(tmp_path / "out", machine_code=True)):
        theirs, mine = (torch.zeros(4, 9, 8)[::2, :, ::2] for _ in range(2))
        x = torch.randn(2, 5, 4)
        torch.testing.assert_close(one(x, mine), model(x, theirs))
        torch.testing.assert_close(mine, theirs)


def test_what_is_written_in_place_stays_the_same_tensor_and_what_is_replaced_does_not() -> None:
    model = InObject()
    program = exported(model, (torch.randn(2, 3, 4), Memory(2, 5)), (torch.randn(3, 5, 4), Memory(3, 7)))
    mine = Memory(4, 6)
    keys, first, total = mine.keys, mine.keys[0], mine.total
    was = first.clone()
    program(torch.randn(4, 2, 4), mine)
    assert mine.keys is keys
    assert mine.total is total
    assert mine.keys[0].shape == (4, 8, 4)
    torch.testing.assert_close(first, was)  # the caller may hold it elsewhere


@pytest.mark.parametrize("target", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_cache_that_is_left_out_stays_out(target: str) -> None:
    model, observer = OptionalCache(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, 4))
        for batch, length in ((2, 3), (3, 5)):
            model(torch.randn(batch, length, 4), past=cache(batch, length))
    program = observer.export().to(target)
    assert program.verify().verified, program.tally.summary
    x, theirs, mine = torch.randn(4, 6, 4), cache(4, 2), None
    mine = copy.deepcopy(theirs)
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(program(x, past=mine), model(x, past=theirs), atol=1e-5, rtol=1e-5)
    assert_same(mine, theirs)


class ChangesSmall(torch.nn.Module):
    """Changes the dict for small batches only."""

    def forward(self, x, table):
        if x.shape[0] < 3:
            table["rows"] = table["rows"] + 1
        return x.sum(1) + table["rows"].sum(1)


@pytest.mark.parametrize("batches", [(4, 5), (2, 4), (2, 1)])
@pytest.mark.one_in(3)
def test_a_change_that_depends_on_sizes_is_served_or_refused(batches: tuple[int, ...]) -> None:
    model = ChangesSmall()
    program = exported(model, *((torch.randn(b, 3, 4), {"rows": torch.randn(b, 2, 4)}) for b in batches))
    assert program.verify().verified, program.tally.summary
    served = []
    for batch in (1, 2, 3, 4, 6):
        x, theirs = torch.randn(batch, 3, 4), {"rows": torch.randn(batch, 2, 4)}
        mine = {"rows": theirs["rows"].clone()}
        expected = model(x, theirs)
        with contextlib.suppress(RejectedCallError):
            got = program(x, mine)
            served.append(batch)
            torch.testing.assert_close(got, expected)
            assert_same(mine, theirs)
    assert served == {(4, 5): [3, 4, 6], (2, 4): [1, 2, 3, 4, 6], (2, 1): [1, 2]}[batches]


class Counted:
    """An object of the user's."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows, self.calls = rows, 0


def adds_a_key(memory: dict[str, Any]) -> None:
    memory["sum"] = memory["rows"] + 1


def pops_a_key(memory: dict[str, Any]) -> None:
    memory.pop("more")


def puts_a_key_behind(memory: dict[str, Any]) -> None:
    memory["rows"] = memory.pop("rows")


def turns_a_list(memory: list[torch.Tensor]) -> None:
    memory.reverse()


def counts_in_an_object(memory: Counted) -> None:
    memory.calls += 1


def sets_an_attribute(memory: Counted) -> None:
    memory.sum = memory.rows + 1  # type: ignore[attr-defined]


class ChangesOnASide(torch.nn.Module):
    """Changes its second argument for large batches only."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x, memory):
        if x.shape[0] > 3:
            self.change(memory)
        return 2 * x


@pytest.mark.parametrize(
    "change", [pops_a_key, adds_a_key, puts_a_key_behind, turns_a_list, counts_in_an_object, sets_an_attribute]
)
@pytest.mark.one_in(3)
def test_a_side_that_changes_an_argument_as_no_watched_call_did_is_refused(change: Callable[[Any], None]) -> None:
    def memory(batch: int) -> Any:
        rows, more = torch.randn(batch, 2), torch.randn(batch, 2)
        if change is turns_a_list:
            return [rows, more]
        return Counted(rows) if change in (counts_in_an_object, sets_an_attribute) else {"rows": rows, "more": more}

    def call(batch: int) -> tuple[torch.Tensor, Any]:
        return torch.randn(batch, 4), memory(batch)

    program = exported(ChangesOnASide(change), call(2), call(3))
    assert program.verify().verified, program.tally.summary
    program(*call(1))
    with pytest.raises(RejectedCallError, match=r"needs x\.shape\[0\] <= 3"):
        program(*call(4))


class ChangesTwo(torch.nn.Module):
    """Changes a dict and an object."""

    def forward(self, x, table, memory):
        table["rows"] = table["rows"] + x
        memory.total.add_(x.sum(1))
        return table["rows"].sum(1) + memory.total


def test_a_call_that_is_refused_changes_none_of_the_arguments(tmp_path: Path) -> None:
    program = exported(
        ChangesTwo(), *((torch.randn(b, 3, 4), {"rows": torch.randn(b, 3, 4)}, Memory(b, 2)) for b in (2, 3))
    )
    program.save(tmp_path / "out")
    loaded = onlooker.load(tmp_path / "out")
    assert isinstance(loaded, Program)
    rows, memory = torch.randn(4, 3, 4), Memory(4, 2)
    table = {"rows": rows}
    with pytest.raises(RejectedCallError, match="stand-in for its class, Memory") as caught:
        loaded(torch.randn(4, 3, 4), table, memory)
    assert caught.value.slug == "cache-not-returned"
    assert table["rows"] is rows
    assert not memory.total.any()


class Counts(torch.nn.Module):
    """Keeps a sum in itself, and fills a table of its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x, table):
        self.total = self.total + x.sum((0, 1))
        table["rows"] = torch.cat([table["rows"], x], 1)
        return table["rows"].sum(1) + self.total


def test_state_and_changed_arguments_go_together() -> None:
    model, observer = Counts(), InputObserver(state=True)
    with observer(model), torch.no_grad():
        for batch, length in ((2, 3), (3, 5), (2, 4)):
            model(torch.randn(batch, length, 4), {"rows": torch.randn(batch, 2, 4)})
    program = observer.export()
    assert program.verify().verified, program.tally.summary
    fresh = Counts()
    program.reset_state()
    for batch in (2, 4):
        x, theirs = torch.randn(batch, 3, 4), {"rows": torch.randn(batch, 2, 4)}
        mine = dict(theirs)
        torch.testing.assert_close(program(x, mine), fresh(x, theirs), atol=1e-5, rtol=1e-5)
        assert_same(mine, theirs)
    torch.testing.assert_close(program.state["total"], fresh.total, atol=1e-5, rtol=1e-5)


def test_the_names_of_the_outputs_and_the_report_say_it() -> None:
    program = exported(InCache(), call("a cache", 2, 3), call("a cache", 3, 5))
    (graph,) = program.graphs
    assert graph.outputs.names == ("output", "present.0.key", "present.0.value")
    assert "past is changed by the call and not returned" in program.report.text(full=True)


@pytest.mark.parametrize("kind", ["a tensor", "a tuple", "a dict", "a cache"])
@pytest.mark.one_in(2)
def test_what_is_changed_in_inference_mode_is_found_too(kind: str) -> None:
    model, observer = MODELS[kind][0](), InputObserver()
    with torch.inference_mode(), observer(model):
        for batch, length in ((2, 3), (3, 5)):
            model(*call(kind, batch, length))
    program = observer.export().to("onnx")
    assert program.verify().verified, program.tally.summary
    mine, theirs = call(kind, 4, 6), call(kind, 4, 6)
    torch.testing.assert_close(program(*mine), model(*theirs), atol=1e-5, rtol=1e-5)
    assert_same(list(mine), list(theirs))


class TwoCaches(torch.nn.Module):
    """Updates two caches of one class, and returns the second one alone."""

    def forward(self, x, first, second):
        for one in (first, second):
            one.update(x[:, None], 2 * x[:, None], 0)
        return {"total": first.layers[0].keys.sum((1, 2)), "past_key_values": second}


def test_one_of_two_caches_is_returned() -> None:
    model = TwoCaches()
    program = exported(model, *((torch.randn(b, n, 4), cache(b, n), cache(b, n + 3)) for b, n in ((2, 3), (3, 5))))
    assert program.verify().verified, program.tally.summary
    x, first, second = torch.randn(4, 2, 4), cache(4, 6), cache(4, 1)
    mine = copy.deepcopy((first, second))
    expected, got = model(x, first, second), program(x, *mine)
    torch.testing.assert_close(got["total"], expected["total"])
    assert_same(mine[0], first)
    assert_same(got["past_key_values"], second)
    given = copy.deepcopy((first, second))
    with program.installed(model) as served:
        inside = model(x, *given)
    model(x, first, second)
    assert served.eager == 0
    assert inside["past_key_values"] is given[1]
    assert_same(list(given), [first, second])


class WritesFirst(torch.nn.Module):
    def forward(self, x, y):
        x.add_(1)
        return 2 * y


def test_a_write_that_another_argument_shows_is_refused_where_it_comes_last() -> None:
    model = WritesFirst()
    program = exported(model, *((torch.randn(n, 3), torch.randn(n, 3)) for n in (2, 4)))
    file = program.to("onnx")
    assert file.verify().verified
    rows = torch.zeros(4, 3)
    torch.testing.assert_close(program(rows, rows), torch.full((4, 3), 2.0))
    for x, y in ((rows, rows), (rows[:3], rows[1:]), (rows, rows[::2].expand(2, 3))):
        with pytest.raises(RejectedCallError, match="the call changes x, the call has y, which is x or a part of it"):
            file(x, y)
    torch.testing.assert_close(file(rows[:2], rows[2:]), torch.full((2, 3), 2.0))
    torch.testing.assert_close(rows, torch.tensor([2.0, 2, 1, 1])[:, None].expand(4, 3))


class Streams(torch.nn.Module):
    """A dict of inference parameters that the first call passes empty and every call fills, as of Mamba."""

    def forward(self, x: torch.Tensor, params: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        if params is None:
            return x.cumsum(1)
        if "sum" not in params:
            params["sum"] = torch.zeros(x.shape[0], 4)
        found = x.cumsum(1) + params["sum"][:, None]
        params["sum"] = params["sum"] + x.sum(1)
        return found


@pytest.mark.parametrize("target", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_dict_that_the_first_call_passes_empty_is_filled(target: str) -> None:
    model, observer, params = Streams(), InputObserver(), dict[str, torch.Tensor]()
    with observer(model), torch.no_grad():
        for length in (5, 1, 3):
            model(torch.randn(2, length, 4), params)
    program = observer.export(to=target)
    assert program.verify().verified, program.report
    mine, theirs = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for length in (7, 1, 2):
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(program(x, mine), model(x, theirs))
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(RejectedCallError, match="params was in every observed call"):
        program(torch.randn(3, 2, 4))
