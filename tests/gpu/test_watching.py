"""Watching a model on a CUDA device: nothing waits for the device, and what is kept stays there."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache

from onlooker import InputObserver

SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}


class Decodes(torch.nn.Module):
    """Work on the device that waits for nothing; what else is given comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, rest: Any = None) -> dict[str, Any]:
        return {"out": torch.relu(self.linear(x)), "rest": rest}


def grown(device: torch.device) -> Any:
    cache = DynamicCache()
    for layer in range(2):
        cache.update(*(torch.ones(1, 2, 3, 4, device=device) for _ in "kv"), layer)
    return cache


def static(device: torch.device) -> Any:
    cache = StaticCache(config=LlamaConfig(vocab_size=8, intermediate_size=8, **SIZES), max_cache_len=6)
    for layer in range(2):
        cache.update(*(torch.ones(1, 2, 3, 4, device=device) for _ in "kv"), layer)
    return cache


def views(device: torch.device) -> Any:
    rows = torch.ones(4, 6, device=device)
    return {"rows": list(rows), "turned": rows.t(), "expanded": rows[:1].expand(5, 6), "scalar": rows[0, 0]}


KINDS: dict[str, Callable[[torch.device], Any]] = {
    "nothing": lambda device: None,
    "tensor": lambda device: torch.ones(2, 3, device=device),
    "flag": lambda device: torch.ones((), dtype=torch.bool, device=device),
    "views": views,
    "cache": grown,
    "static cache": static,
    "two caches": lambda device: EncoderDecoderCache(grown(device), grown(device)),
}


@pytest.fixture
def model(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    return Decodes().to(device).eval()


def test_the_mode_notices_who_waits(device: torch.device, no_waiting: contextlib.AbstractContextManager[None]) -> None:
    """Without this the tests below would show nothing."""
    x = torch.ones(3, device=device)
    with no_waiting, pytest.raises(RuntimeError, match="synchroniz"):
        x.sum().item()


@pytest.mark.parametrize("kind", KINDS)
def test_watching_does_not_wait_for_the_device(
    kind: str, model: Any, device: torch.device, no_waiting: contextlib.AbstractContextManager[None]
) -> None:
    """Neither calls whose values are kept nor others; what a watcher raises would stand in ``missed``."""
    x, rest = torch.ones(2, 16, device=device), KINDS[kind](device)
    observer = InputObserver()
    with torch.no_grad(), observer(model, store_n_calls=2), no_waiting:
        results = [model(x, rest)["out"] for _ in range(6)]
    recording = observer.recording()
    n_calls = sum(call.count for call in recording.calls)
    print(f"{kind}: {n_calls} calls watched, {observer.num_obs()} kept, no wait")
    assert recording.missed == ()
    assert (n_calls, observer.num_obs()) == (6, 2)
    with torch.no_grad():
        expected = model(x, rest)["out"]
    assert all(torch.equal(result, expected) for result in results)


def launched(model: Any, *args: Any) -> list[str]:
    """The kernels and copies that one call starts on the device, by name."""
    with warnings.catch_warnings():  # where CUPTI cannot be used, the profiler only warns
        warnings.simplefilter("ignore")
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            model(*args)
            torch.cuda.synchronize()
    names = [event.name for event in seen.events() if event.device_type == DeviceType.CUDA]
    if not names:
        pytest.skip("the profiler sees no kernels here: it needs CUPTI, and leave to use it")
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_watching_starts_a_fixed_number_of_copies(kind: str, model: Any, device: torch.device) -> None:
    """A call whose values are kept starts at most one copy or kernel for each tensor; others start nothing."""
    x, rest = torch.ones(2, 16, device=device), KINDS[kind](device)
    launched(model, x, rest)  # the first call of all loads kernels
    plain = launched(model, x, rest)
    observer = InputObserver()
    with observer(model, store_n_calls=1):
        kept = launched(model, x, rest)
        other = launched(model, x, rest)
    call = observer.recording().calls[0]
    n_tensors = sum(hasattr(leaf, "shape") for leaf in (*call.inputs.leaves, *call.outputs.leaves))
    print(f"{kind}: {len(plain)} launches unwatched, {len(other)} watched, {len(kept)} kept ({n_tensors} tensors)")
    assert observer.num_obs() == 1
    assert sorted(other) == sorted(plain)
    assert len(plain) < len(kept) <= len(plain) + n_tensors
    assert not [name for name in kept if "DtoH" in name or "HtoD" in name]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree.leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_values_stay_on_the_device(kind: str, model: Any, device: torch.device) -> None:
    x, rest = torch.ones(2, 16, device=device), KINDS[kind](device)
    observer = InputObserver()
    before = torch.cuda.memory_allocated(device)
    with torch.no_grad(), observer(model, store_n_calls=2):
        model(x, rest)
        model(x * 2, rest)
    used = torch.cuda.memory_allocated(device) - before
    samples = observer._watcher.store().samples
    found = [tensor for sample in samples for tree in (sample.inputs, sample.outputs) for tensor in tensors_of(tree)]
    print(f"{kind}: {len(found)} tensors kept, all on {device}, {used} bytes there")
    assert len(samples) == 2
    assert {tensor.device for tensor in found} == {device}
    assert torch.equal(samples[1].inputs.leaves[0], x * 2)
    assert used > 0
    specs = [leaf for call in observer.recording().calls for leaf in call.inputs.leaves]
    assert {leaf.device for leaf in specs if hasattr(leaf, "device")} == {str(device)}


def test_the_random_state_of_the_device_does_not_move(device: torch.device) -> None:
    model = torch.nn.Dropout(0.5).to(device).train()
    x = torch.ones(64, device=device)
    torch.manual_seed(7)
    expected = [model(x), model(x)]
    after = torch.cuda.get_rng_state(device)
    torch.manual_seed(7)
    with InputObserver()(model):
        got = [model(x), model(x)]
    print("dropout twice: the same draws, the same state after them")
    assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))
    assert torch.equal(torch.cuda.get_rng_state(device), after)


def test_a_call_on_another_stream_is_kept_as_it_was(model: Any, device: torch.device) -> None:
    """Copies stand in the stream of the call: behind what makes the values, before what overwrites them."""
    observer, stream = InputObserver(), torch.cuda.Stream(device)
    x = torch.zeros(1024, 16, device=device)
    torch.cuda.synchronize()
    with torch.no_grad(), observer(model), torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # x is not filled yet when the call begins
        x.fill_(3)
        model(x)
        x.zero_()
    torch.cuda.synchronize()
    (sample,) = observer._watcher.store().samples
    print(f"kept from a side stream: {sample.inputs.leaves[0][0, 0].item()}")
    assert torch.equal(sample.inputs.leaves[0], torch.full_like(x, 3))
