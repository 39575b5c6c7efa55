"""What watching costs: time, memory and time per leaf, each figure beside its target.

    python benchmarks/watching.py [--quick] [--json FILE]

Time: a cached Llama of 16 layers decodes; runs with and without the observer alternate in one
process, and the figure is the median of the ratios of neighbours. Every call is recorded, three are
stored. Calls of a program that `onlooker run` watches are those of two processes, one of them watched.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from frame import Figure, main

import onlooker
from onlooker import InputObserver
from onlooker.capture.combine import read_captured
from onlooker.capture.settings import Settings
from onlooker.pytrees.open import open_tree

LAYERS, HIDDEN, PROMPT, BATCH, STEPS = 16, 512, 256, 2, 60
MOST_RATIO = 1.02
MOST_US, MOST_US_PER_LEAF = 30.0, 1.0
MOST_BYTES = 1 << 20
MANY_CALLS = 10_000
#: calls that are timed together: no longer than a process runs until another one takes its turn, so
#: that on a busy machine too the quietest round is the cost of the calls
ROUND = 5
HERE, SOURCE = Path(__file__).parent, Path(onlooker.__file__).parent.parent


def llama(layers: int) -> Any:
    """An untrained Llama, on the CPU, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config).eval()


def decode(model: Any, steps: int, prompt: int = PROMPT) -> torch.Tensor:
    """A prompt and some steps, greedily, with a cache."""
    from transformers import DynamicCache

    cache, ids = DynamicCache(), torch.arange(BATCH * prompt).reshape(BATCH, prompt) % 1000
    mask = torch.ones_like(ids)
    with torch.no_grad():
        for _ in range(steps + 1):
            out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
            ids = out.logits[:, -1:].argmax(-1)
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return ids


@contextlib.contextmanager
def watched_by_onlooker(model: Any) -> Iterator[Any]:
    """Every call recorded, three stored."""
    observer = InputObserver()
    with observer(model, store_n_calls=3):
        yield observer


@contextlib.contextmanager
def watched_by_torch(model: Any, store_n_calls: int) -> Iterator[Any]:
    """The observer of torch, with the caches registered, which it needs."""
    from torch.onnx import InputObserver as Other

    from onlooker import torch_export_patches

    observer = Other()
    with (
        torch_export_patches(patch_transformers=True),
        observer(model, store_n_calls=store_n_calls),
    ):
        yield observer


def seconds_of(run: Callable[[], Any]) -> float:
    """How long a run takes; what earlier runs left is collected before."""
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratios(model: Any, watch: Callable[[Any], Any], steps: int, pairs: int) -> list[float]:
    """Seconds watched over seconds plain, of neighbours that take turns in going first."""

    def watched() -> None:
        with watch(model):
            decode(model, steps)

    found = []
    for number in range(pairs):
        order = [watched, lambda: decode(model, steps)]
        times = {run: seconds_of(run) for run in (order if number % 2 else reversed(order))}
        found.append(times[order[0]] / times[order[1]])
    return found


def time_figures(quick: bool) -> list[Figure]:
    """The ratio of a watched decode to a plain one, ours and that of the observer of torch."""
    model, pairs = llama(4 if quick else LAYERS), 3 if quick else 15
    decode(model, 3)
    ours = ratios(model, watched_by_onlooker, STEPS, pairs)
    spread = statistics.quantiles(ours, n=4)
    name = f"decode of {STEPS} steps, observed / plain"
    found = [
        Figure(
            name,
            statistics.median(ours),
            "x",
            MOST_RATIO,
            f"{pairs} pairs, quartiles {spread[0]:.3f}, {spread[2]:.3f}",
        )
    ]
    for stored in (STEPS + 1, 3):
        label = f"the same, torch.onnx.InputObserver, {stored} calls"
        try:
            other = ratios(
                model, lambda m, n=stored: watched_by_torch(m, n), STEPS, max(2, pairs // 5)
            )
            found.append(Figure(label, statistics.median(other), "x"))
        except Exception as error:
            found.append(
                Figure(f"{label}: {type(error).__name__}: {str(error)[:60]}", float("nan"), "x")
            )
    return found


class Passes(torch.nn.Module):
    """Does nothing: what a call of it takes longer when watched is the cost of watching."""

    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None
    ) -> Any:
        return {"logits": input_ids, "past_key_values": past_key_values}


def cache_of(layers: int, length: int = 3) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.zeros(1, 1, length, 2), torch.zeros(1, 1, length, 2), layer)
    return cache


def per_call_figures(quick: bool) -> list[Figure]:
    """The microseconds that a call takes longer, for several numbers of leaves (inputs and
    outputs).

    The rounds are short and the quietest of each kind are compared: what else the machine does is
    left out.
    """
    found, rounds = [], 50 if quick else 200
    for layers in (0, 16, 50):
        model = Passes()
        kwargs = {
            "input_ids": torch.zeros(1, 3, dtype=torch.int64),
            "attention_mask": torch.ones(1, 3, dtype=torch.int64),
            "past_key_values": cache_of(layers),
        }
        leaves = (
            open_tree(kwargs).structure.n_leaves + open_tree(model(**kwargs)).structure.n_leaves
        )

        def one_round(kwargs: Any = kwargs, model: Any = model) -> float:
            start = time.perf_counter()
            for _ in range(ROUND):
                model(**kwargs)
            return 1e6 * (time.perf_counter() - start) / ROUND

        plain, observed = [], []
        for _ in range(10):
            plain += [one_round() for _ in range(rounds)]
            with InputObserver()(model, store_n_calls=1):
                model(**kwargs)
                observed += [one_round() for _ in range(rounds)]
        target = MOST_US + MOST_US_PER_LEAF * leaves
        found.append(Figure(f"per call, {leaves} leaves", min(observed) - min(plain), "us", target))
    return found


def quietest_call(layers: int, rounds: int) -> tuple[int, float]:
    """The leaves of a call, and its microseconds in the quietest of some rounds."""
    model = Passes()
    kwargs = {
        "input_ids": torch.zeros(1, 3, dtype=torch.int64),
        "attention_mask": torch.ones(1, 3, dtype=torch.int64),
        "past_key_values": cache_of(layers),
    }
    leaves = open_tree(kwargs).structure.n_leaves + open_tree(model(**kwargs)).structure.n_leaves
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(ROUND):
            model(**kwargs)
        times.append(1e6 * (time.perf_counter() - start) / ROUND)
    return leaves, min(times)


def run_figures(quick: bool) -> list[Figure]:
    """The microseconds that a call takes longer in a program that `onlooker run` watches.

    Processes with and without it take turns, and the quietest round of each kind is compared.
    """
    rounds, turns = (500, 1) if quick else (2000, 3)
    code = f"import watching\nfor n in (0, 16, 50): print(*watching.quietest_call(n, {rounds}))"
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE, SOURCE)))}
    plain: dict[int, list[float]] = {}
    watched: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(turns):
            for times, asked in ((plain, own), (watched, Settings(folder).environment(own))):
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    env=asked,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for line in done.stdout.splitlines():
                    leaves, micros = line.split()
                    times.setdefault(int(leaves), []).append(float(micros))
        counted = sum(one.n_calls for one in read_captured(Path(folder)).seen)
    calls = 3 * turns * (ROUND * rounds + 1)
    if counted != calls:
        raise RuntimeError(f"{counted} of {calls} calls were recorded")
    return [
        Figure(
            f"per call of a program under onlooker run, {leaves} leaves",
            min(watched[leaves]) - min(plain[leaves]),
            "us",
            MOST_US + MOST_US_PER_LEAF * leaves,
        )
        for leaves in plain
    ]


def kept_bytes(observer: Any) -> int:
    """The bytes of all tensors that an observer keeps."""
    samples = [s for store in observer._watcher.stores.values() for s in store.samples]
    storages = {}
    for leaf in [leaf for s in samples for leaf in (*s.inputs.leaves, *s.outputs.leaves)]:
        if isinstance(leaf, torch.Tensor):
            storages[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
    return sum(storages.values())


def stored_values(observer: Any) -> int:
    """The bytes of the values of the stored calls, each tensor by itself."""
    samples = [s for store in observer._watcher.stores.values() for s in store.samples]
    return sum(
        leaf.nbytes
        for s in samples
        for leaf in (*s.inputs.leaves, *s.outputs.leaves)
        if isinstance(leaf, torch.Tensor)
    )


def grown(observer: Any, run: Callable[[int], Any], calls: int) -> int:
    """The bytes of Python objects that further calls add."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(calls):
        run(number)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def memory_figures(quick: bool) -> list[Figure]:
    """What is kept of a decode, and what many calls add to it."""
    model = llama(LAYERS)
    observer = InputObserver()
    with observer(model, store_n_calls=3):
        decode(model, STEPS)
    mib = 1 << 20
    most = stored_values(observer) / mib
    found = [
        Figure(f"kept after {STEPS + 1} calls, 3 stored", kept_bytes(observer) / mib, "MiB", most)
    ]
    calls = MANY_CALLS // 10 if quick else MANY_CALLS
    passes, observer, kwargs = (
        Passes(),
        InputObserver(),
        {"input_ids": torch.zeros(1, 3), "past_key_values": None},
    )
    with observer(passes):
        for layers, label, lengths in (
            (50, "equal calls", 1),
            (50, "calls of distinct sizes", calls),
        ):
            kwargs["past_key_values"] = cache = cache_of(layers)
            keys = torch.zeros(1, 1, calls + 9, 2)
            for _ in range(4):
                passes(**kwargs)

            def run(
                number: int, cache: Any = cache, lengths: int = lengths, keys: Any = keys
            ) -> None:
                if lengths > 1:
                    for layer in cache.layers:
                        layer.keys = layer.values = keys[:, :, : number + 5]
                passes(**kwargs)

            added = grown(observer, run, calls)
            target = MOST_BYTES / 1024 if lengths == 1 else None
            found.append(
                Figure(
                    f"{calls} more {label}, 203 leaves",
                    added / 1024,
                    "KiB",
                    target,
                    f"{added / calls:.0f} bytes a call",
                )
            )
    return found


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    for part in (per_call_figures, run_figures, memory_figures, time_figures):
        yield from part(quick)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
