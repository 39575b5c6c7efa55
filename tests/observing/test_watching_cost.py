"""What watching costs, by counting: calls of Python, operators of torch, imports. No clock is read."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

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
    assert brought == {"onlooker"}


def test_watching_imports_neither_transformers_nor_onnx() -> None:
    code = "import torch, onlooker\nm = torch.nn.Identity()\nwith onlooker.InputObserver()(m): m(torch.ones(1))"
    roots = {name.partition(".")[0] for name in modules_after(code)}
    assert not roots & {"transformers", "onnx", "onnxruntime", "onnxscript"}


def test_unknown_names_are_refused_as_in_any_module() -> None:
    import onlooker

    with pytest.raises(AttributeError, match=r"module 'onlooker' has no attribute 'nope'"):
        _ = onlooker.nope
    assert "InputObserver" in dir(onlooker)
