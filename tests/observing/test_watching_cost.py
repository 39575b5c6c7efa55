"""What watching costs, by counting: calls of Python, operators of torch, imports. No clock is read."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache

from onlooker import InputObserver
from python_calls import python_calls

#: functions that a watched call runs beside the model's own, once, and for every layer of a cache in and out
MOST_CALLS = 45
MOST_CALLS_PER_LEAF = 0.1


class Passes(torch.nn.Module):
    def forward(self, x: Any, cache: Any = None) -> Any:
        return {"out": x, "cache": cache}


def cache_of(layers: int) -> Any:
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), layer)
    return cache


@pytest.mark.parametrize("layers", [0, 16, 100])
@pytest.mark.one_in(3)
def test_a_watched_call_runs_few_functions(layers: int) -> None:
    model, args = Passes(), (torch.zeros(1, 3), cache_of(layers))
    plain = python_calls(partial(model, *args))
    with InputObserver()(model, store_n_calls=1):
        model(*args)
        model(*args)
        watched = python_calls(partial(model, *args))
    leaves = 2 * (1 + 2 * layers)
    assert watched - plain <= MOST_CALLS + MOST_CALLS_PER_LEAF * leaves


def operators(model: Any, *args: Any) -> list[str]:
    """The operators that one call runs, as the profiler of torch sees them: no mode hides any."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(*args)
    return [event.name for event in seen.events() if event.name.startswith("aten::")]


class Works(Passes):
    def forward(self, x: torch.Tensor, cache: Any = None) -> Any:
        return {"out": x * 2 + 1, "cache": cache}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_operator_runs_for_a_call_whose_values_are_not_kept(device: str) -> None:
    """Nothing is copied, compared or waited for."""
    model, args = Works(), (torch.zeros(1, 3, device=device), cache_of(4))
    plain = operators(model, *args)
    observer = InputObserver()
    with observer(model, store_n_calls=1):
        stored = operators(model, *args)
        watched = operators(model, *args)
    assert plain == watched
    assert len(stored) > len(plain)
    assert len(observer.recording()) == 2


#: what brings values of a tensor to Python, and so waits for an accelerator
READERS = (
    *("item", "tolist", "numpy", "cpu", "nonzero", "__array__", "__contains__"),
    *("__bool__", "__int__", "__float__", "__index__", "__complex__"),
)


def grown(device: str) -> Any:
    cache = DynamicCache()
    for layer in range(2):
        cache.update(*(torch.zeros(1, 2, 3, 4, device=device) for _ in "kv"), layer)
    return cache


def static(device: str) -> Any:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    cache = StaticCache(config=LlamaConfig(vocab_size=8, intermediate_size=8, **sizes), max_cache_len=6)
    for layer in range(2):
        cache.update(*(torch.zeros(1, 2, 3, 4, device=device) for _ in "kv"), layer)
    return cache


def views(device: str) -> Any:
    rows = torch.zeros(4, 6, device=device)
    return {"rows": list(rows), "turned": rows.t(), "expanded": rows[:1].expand(5, 6), "scalar": rows[0, 0]}


VALUES = {
    "tensor": lambda device: torch.zeros(2, 3, device=device),
    "views": views,
    "cache": grown,
    "static": static,
    "two caches": lambda device: EncoderDecoderCache(grown(device), grown(device)),
    "flags": lambda device: [torch.zeros((), dtype=kind, device=device) for kind in (torch.bool, torch.int64)],
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", VALUES)
def test_watching_brings_no_value_to_python(kind: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for calls whose values are kept nor for others: on an accelerator each would wait for the device."""
    model, cache = Passes(), VALUES[kind](device)
    x, observer, read = torch.zeros(2, 3, device=device), InputObserver(), []
    with observer(model, store_n_calls=2), monkeypatch.context() as patched:
        for name in READERS:
            patched.setattr(torch.Tensor, name, noting(name, read))
        for _ in range(4):
            model(x, cache)
    assert not read
    assert observer.recording().missed == ()
    assert observer.num_obs() == 2
    assert sum(call.count for call in observer.recording().calls) == 4


def noting(name: str, read: list[str]) -> Any:
    def reader(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        read.append(name)
        raise AssertionError(f"{name} was called")

    return reader


def test_a_watcher_that_reads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is able to fail, though the user's run never does."""

    def reads(store: Any, *args: Any) -> Any:
        return bool(torch.zeros(()))

    read: list[str] = []
    model = Passes()
    with InputObserver()(model), monkeypatch.context() as patched:
        patched.setattr("onlooker.observing.store.Store._copied", reads)
        patched.setattr(torch.Tensor, "__bool__", noting("__bool__", read))
        model(torch.zeros(2, 3))
    assert read == ["__bool__"]


def test_the_copies_of_a_kept_call_do_not_read_what_is_on_a_device() -> None:
    """On an accelerator reading a value waits for all that was started."""
    model, args = Works(), (torch.zeros(1, 3, device="meta"), [torch.zeros(2, device="meta")])
    with InputObserver()(model, store_n_calls=1):
        names = set(operators(model, *args))
    assert not names & {"aten::item", "aten::_local_scalar_dense", "aten::equal", "aten::_to_copy", "aten::is_nonzero"}


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_imports_nothing_heavy() -> None:
    brought = modules_after("import torch, onlooker") - modules_after("import torch")
    assert {name for name in brought if name.partition(".")[0] != "onlooker"} == set()
    light = {"core", "core.errors", "core.support", "core.support.logs", "core.messages", "core.versions"}
    assert brought <= {"onlooker", *(f"onlooker.{name}" for name in light)}


@pytest.mark.slow
def test_watching_imports_neither_transformers_nor_onnx() -> None:
    code = "import torch, onlooker\nm = torch.nn.Identity()\nwith onlooker.InputObserver()(m): m(torch.ones(1))"
    roots = {name.partition(".")[0] for name in modules_after(code)}
    assert not roots & {"transformers", "onnx", "onnxruntime", "onnxscript"}


def test_unknown_names_are_refused_as_in_any_module() -> None:
    import onlooker

    with pytest.raises(AttributeError, match=r"module 'onlooker' has no attribute 'nope'"):
        _ = onlooker.nope
    assert "InputObserver" in dir(onlooker)
