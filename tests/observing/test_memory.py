"""What is kept in memory: every value once, within a budget, and calls that are equal counted."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from onlooker import InputObserver, OnlookerWarning
from onlooker.core.errors import UsageError
from onlooker.core.spec import TensorSpec
from onlooker.observing import budget
from onlooker.observing.budget import MemoryBudget, free_bytes, in_words
from onlooker.observing.copies import Copying, held_storages
from onlooker.observing.ledger import Ledger


class Passes(torch.nn.Module):
    def forward(self, x: Any, cache: Any = None, flag: Any = None) -> Any:
        return {"out": x, "cache": cache}


class Appends(torch.nn.Module):
    """A decoder: its cache grows by what comes in."""

    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        cache = DynamicCache() if cache is None else cache
        for layer in range(3):
            cache.update(x[:, None], x[:, None] + 1, layer)
        return x.sum(-1), cache


def watch(observer: InputObserver, model: Any, *arguments: Any, fail: bool = False) -> None:
    """Calls the model inside a block, once with each argument."""
    with observer(model):
        for argument in arguments:
            model(argument)
        if fail:
            raise ZeroDivisionError


def samples_of(observer: InputObserver) -> list[Any]:
    return observer._watcher.store().samples


def kept_bytes(observer: InputObserver) -> int:
    leaves = [leaf for sample in samples_of(observer) for leaf in (*sample.inputs.leaves, *sample.outputs.leaves)]
    return sum(nbytes for _, nbytes in held_storages(leaves).values())


# copies


def nothing_known(tensor: torch.Tensor) -> torch.Tensor | None:
    return None


def shared_views() -> tuple[torch.Tensor, ...]:
    base = torch.arange(24.0)
    return base[:20].view(4, 5), base[4:], base[2:18:2]


LEAVES: dict[str, tuple[Callable[[], tuple[Any, ...]], int]] = {
    "one tensor twice": (lambda: (lambda t: (t, t, 3))(torch.arange(8.0)), 32),
    "two objects, one memory": (lambda: (lambda t: (t, t.detach()))(torch.arange(8.0)), 32),
    "views that overlap": (shared_views, 96),
    "views far apart": (lambda: (lambda t: (t[:4], t[-4:]))(torch.arange(1000.0)), 32),
    "a part of a large one": (lambda: (torch.arange(1000.0)[:4],), 16),
    "expanded": (lambda: (torch.arange(2.0)[:, None].expand(2, 500),), 8),
    "expanded from one number": (lambda: (torch.ones(()).expand(3, 4, 5),), 4),
    "a tensor and its bytes": (lambda: (lambda t: (t, t.view(torch.uint8)))(torch.arange(4.0)), 16),
    "empty": (lambda: (torch.ones(0, 3), torch.ones(0, 3)), 0),
    "complex, conjugated": (lambda: (torch.ones(4, dtype=torch.complex64).conj(),), 32),
    "transposed": (lambda: (torch.arange(6.0).view(2, 3).t(),), 24),
    "sparse": (lambda: (torch.eye(3).to_sparse(),), 60),
    "a parameter": (lambda: (torch.nn.Parameter(torch.ones(3)),), 12),
    "on no device": (lambda: (torch.ones(3, device="meta"),), 12),
}


@pytest.mark.parametrize(("make", "nbytes"), LEAVES.values(), ids=LEAVES)
def test_a_copy_takes_the_memory_of_what_it_copies(make: Callable[[], tuple[Any, ...]], nbytes: int) -> None:
    leaves = make()
    copying = Copying(leaves, nothing_known)
    copies = copying.run()
    assert sum(copying.nbytes.values()) == nbytes
    assert sum(size for _, size in held_storages(copies).values()) <= nbytes + 16
    for leaf, copy in zip(leaves, copies, strict=True):
        if not isinstance(leaf, torch.Tensor):
            assert copy is leaf
        elif leaf.device.type != "meta":
            assert (copy.shape, copy.dtype, copy.requires_grad) == (leaf.shape, leaf.dtype, False)
            assert torch.equal(copy.to_dense() if copy.is_sparse else copy, leaf.to_dense() if leaf.is_sparse else leaf)
            assert copy is not leaf
    if leaves[0].layout is torch.strided and leaves[0].numel() and leaves[0].device.type != "meta":
        with torch.no_grad():
            before = copies[0].clone()
            leaves[0].zero_() if not leaves[0].is_conj() and 0 not in leaves[0].stride() else None
            assert torch.equal(copies[0], before)


def test_a_tensor_that_stands_at_two_places_is_kept_as_one() -> None:
    observer, x = InputObserver(), torch.ones(1000)
    with observer(Passes()) as seen:
        pass
    assert seen is observer
    model = Passes()
    observer = InputObserver()
    with observer(model):
        model(x, [x, {"same": x}])
    (sample,) = samples_of(observer)
    assert len({id(leaf) for leaf in sample.inputs.leaves}) == 1
    assert kept_bytes(observer) == x.nbytes


def test_what_a_cache_hands_from_call_to_call_is_kept_once() -> None:
    """The keys that a call returns are those that the next one gets."""
    model, observer, cache = Appends(), InputObserver(), DynamicCache()
    with observer(model, store_n_calls=4):
        for _ in range(4):
            model(torch.rand(2, 5, 8), cache)
    leaves = [leaf for s in samples_of(observer) for leaf in (*s.inputs.leaves, *s.outputs.leaves)]
    values = sum(leaf.nbytes for leaf in leaves)
    assert kept_bytes(observer) < 0.65 * values
    for before, after in zip(samples_of(observer), samples_of(observer)[1:], strict=False):
        assert before.outputs.leaves[1:] == after.inputs.leaves[1:]


def test_a_tensor_written_behind_our_back_is_copied_again() -> None:
    """NumPy writes without a trace in the version of a tensor."""
    model, observer, x = Passes(), InputObserver(), torch.zeros(3)
    with observer(model):
        for number in range(3):
            x.numpy()[:] = number
            model(x)
    assert [s.inputs.leaves[0].tolist()[0] for s in samples_of(observer)] == [0.0, 1.0, 2.0]
    assert [s.outputs.leaves[0].tolist()[0] for s in samples_of(observer)] == [0.0, 1.0, 2.0]


# calls


def test_equal_calls_are_counted() -> None:
    model, observer = Passes(), InputObserver()
    with observer(model, store_n_calls=2):
        for n in (1, 1, 1, 2, 1, 2, 1):
            model(torch.ones(n))
    recording = observer.recording()
    assert [(call.index, call.count) for call in recording.calls] == [(0, 4), (1, 1), (3, 2)]
    assert len(recording) == 7
    assert observer.num_obs() == 2
    assert observer.plans(probe=False)[0].calls == (0, 1, 3)


@pytest.mark.parametrize("different", ["sizes", "spelling", "outputs", "dtype"])
def test_calls_that_differ_are_not_counted_as_one(different: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, long: bool = False) -> torch.Tensor:
            return torch.ones(int(x.flatten()[0].item()))

    model, observer = Model(), InputObserver()
    one = torch.ones(2)
    other = {
        "sizes": lambda: model(torch.ones(3)),
        "spelling": lambda: model(x=one),
        "outputs": lambda: model(one * 2),
        "dtype": lambda: model(one.double()),
    }[different]
    with observer(model, store_n_calls=0):
        for _ in range(3):
            model(one)
            other()
    assert [call.count for call in observer.recording().calls if call.index > 1] in ([2, 2], [3], [2, 3], [3, 2], [])
    assert sorted(sum_by_spec(observer.recording())) == [3, 3]


def sum_by_spec(recording: Any) -> list[int]:
    counts: dict[Any, int] = {}
    for call in recording.calls:
        key = (call.inputs, call.outputs, call.passed)
        counts[key] = counts.get(key, 0) + call.count
    return list(counts.values())


def test_two_looks_at_one_run_merge_into_the_later_one() -> None:
    model, observer = Passes(), InputObserver()
    with observer(model, store_n_calls=1):
        model(torch.ones(1))
        model(torch.ones(1))
        early = observer.recording()
        for _ in range(5):
            model(torch.ones(1))
    late = observer.recording()
    assert (len(early), len(late)) == (2, 7)
    assert early | late == late | early == late | late == late


def grown_by(run: Callable[[int], Any], calls: int) -> int:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(calls):
        run(number)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def cache_of(layers: int) -> Any:
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), layer)
    return cache


def test_ten_thousand_equal_calls_add_nothing() -> None:
    model, observer, x = Passes(), InputObserver(), torch.ones(2)
    with observer(model):
        for _ in range(4):
            model(x, [x, x])
        assert grown_by(lambda number: model(x, [x, x]), 10_000) < 64 << 10
    assert len(observer.recording()) == 10_004


@pytest.mark.slow
def test_calls_of_many_sizes_are_kept_small() -> None:
    """200 leaves a call, every call of another size: less than 1 KiB a call."""
    model, observer, cache = Passes(), InputObserver(), cache_of(50)
    long = torch.zeros(1, 1, 400, 2)

    def run(number: int) -> None:
        for layer in cache.layers:
            layer.keys = layer.values = long[:, :, : number + 4]
        model(long, cache)

    with observer(model, store_n_calls=1):
        run(0)
        assert grown_by(run, 300) < 300 << 10
    recording = observer.recording()
    assert len(recording.calls) == 300
    last = recording.calls[-1]
    assert {spec.shape for spec in last.inputs.leaves if isinstance(spec, TensorSpec)} == {
        (1, 1, 400, 2),
        (1, 1, 303, 2),
    }


def test_a_number_that_is_another_one_in_each_call_does_not_keep_each_call() -> None:
    model, observer = Passes(), InputObserver()
    with observer(model, store_n_calls=1):
        for number in range(50):
            model(torch.ones(2), flag=number / 7)
            model(torch.ones(2), flag=str(number))
            model(torch.ones(2), flag=number)
    assert observer.num_obs() == 1
    assert len(samples_of(observer)) <= 20
    assert len(observer.recording()) == 150


# the budget


def test_without_room_no_values_are_kept_and_it_is_said() -> None:
    model, observer = Passes(), InputObserver(max_bytes=100)
    with pytest.warns(OnlookerWarning) as caught:
        watch(observer, model, *map(torch.ones, (10, 20, 30)))
    assert [str(warning.message) for warning in caught] == [
        "Not all values were kept: from call 1 on only calls of a new kind are kept: 80 bytes more needed (limit: 100 "
        "bytes). "
        "Give InputObserver a larger max_bytes, or a smaller number to keep, or watch smaller inputs. [values-dropped]"
    ]
    recording = observer.recording()
    assert recording.missed == (
        "from call 1 on only calls of a new kind are kept: 80 bytes more needed (limit: 100 bytes)",
    )
    assert len(recording) == 3
    assert observer.num_obs() == 1


def test_a_call_of_a_new_kind_takes_the_place_of_one_that_is_kept_twice() -> None:
    model, observer = Passes(), InputObserver(max_bytes=200)
    with pytest.warns(OnlookerWarning, match="the values of call 1 were given up for a call of a new kind"):
        watch(observer, model, torch.ones(20), torch.ones(21), torch.ones(2, 11), torch.ones(22))
    assert [s.call.index for s in samples_of(observer)] == [0, 2]
    assert kept_bytes(observer) <= 200


def test_results_count_too() -> None:
    class Grows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(100)

    model, observer = Grows(), InputObserver(max_bytes=1000)
    with pytest.warns(OnlookerWarning, match="call 1, of a new kind, were not kept: 1.56 KiB more needed"):
        watch(observer, model, *[torch.ones(4)] * 10)
    assert observer.num_obs() == 0
    assert len(observer.recording().missed) <= 3


def test_with_no_bytes_only_specs_are_kept() -> None:
    model, observer = Passes(), InputObserver(max_bytes=0)
    with pytest.warns(OnlookerWarning, match="limit: 0 bytes"):
        watch(observer, model, *map(torch.ones, (2, 3, 4)))
    assert observer.infer_dynamic_shapes() == ({0: torch.export.Dim.DYNAMIC},)


def test_nothing_is_said_when_the_block_raises() -> None:
    model, observer = Passes(), InputObserver(max_bytes=0)
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        watch(observer, model, torch.ones(2), fail=True)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1 GiB", True])
def test_the_budget_is_a_number_of_bytes(wrong: Any) -> None:
    with pytest.raises(UsageError) as caught:
        InputObserver(max_bytes=wrong)
    assert str(caught.value) == (
        f"max_bytes is {wrong!r}. Give the number of bytes that kept values may take, 0 or more, or None for a share "
        "of what is free. [bad-max-bytes]"
    )


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("max", "5", 1000 * 1024), (str(100 << 10), str(60 << 10), 40 << 10), ("50", "70", 0), ("?", "1", 1000 * 1024)],
)
def test_what_is_free_is_the_least_of_machine_and_control_group(
    limit: str, used: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    monkeypatch.setattr(budget, "_CGROUP", tmp_path)
    monkeypatch.setattr(budget, "_machine", lambda: 1000 * 1024)
    assert free_bytes(CPU) == free
    assert MemoryBudget().fits({}, {CPU: free // 4})
    assert not MemoryBudget().fits({}, {CPU: free // 4 + 1})


def test_where_nothing_can_be_found_out_one_gib_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_CGROUP", tmp_path)
    monkeypatch.setattr(budget, "_machine", lambda: None)
    limits = MemoryBudget()
    assert limits.fits({}, {CPU: 1 << 30})
    assert not limits.fits({}, {CPU: (1 << 30) + 1})
    assert str(limits) == "a quarter of what was free: 1 GiB on cpu"


def test_the_machine_tells_what_is_free() -> None:
    assert free_bytes(CPU) > 1 << 20
    assert in_words(free_bytes(CPU)).split()[1] in ("MiB", "GiB", "TiB")


def test_the_ledger_gives_back_what_it_was_given() -> None:
    ledger = Ledger()
    assert (ledger.n_calls, ledger.calls()) == (0, ())
