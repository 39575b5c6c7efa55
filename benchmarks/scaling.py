"""How all stages grow with the depth of a model, and with the number of calls that were watched.

    python benchmarks/scaling.py [--quick] [--json FILE]

A Llama of hidden size 256 generates while it is watched; from the calls to the verified program,
each stage is compared with ``torch.export`` itself: none should grow faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from exports import Run, pipeline
from frame import Figure, main, seconds_of

from onlooker import InputObserver

LAYERS, HIDDEN = (2, 8, 32), 256
STEPS = (4, 32, 256)
#: stages that take less than this share of the whole are too short to tell how they grow
LEAST_SHARE = 0.01


def llama(layers: int, hidden: int = HIDDEN) -> Any:
    """An untrained Llama, on the CPU, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config).eval()


def generate(model: Any, steps: int = 4) -> None:
    """One prompt of 10 tokens, and some new ones."""
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        model.generate(
            ids, max_new_tokens=steps, do_sample=False, pad_token_id=0, eos_token_id=None
        )


def stages_of(run: Run) -> dict[str, float]:
    """Seconds of the processor per stage: torch.export stands apart from what an export takes
    beside it.
    """
    bare = sum(export.seconds for export in run.exports)
    stages = {name: share * run.seconds for name, share in run.shares.items() if name != "export"}
    return {
        "torch.export": bare,
        "export beside it": max(run.shares["export"] * run.seconds - bare, 0.0),
        **stages,
    }


def depth_figures(layers: tuple[int, ...], rounds: int) -> Iterator[Figure]:
    """The share of each stage per depth, and how much each grows beside torch.export."""
    found: dict[int, dict[str, float]] = {}
    first = llama(2)
    pipeline(first, partial(generate, first))
    for number in layers:
        model = llama(number)
        runs = [pipeline(model, partial(generate, model)) for _ in range(rounds)]
        tables = [stages_of(run) for run in runs]
        found[number] = {stage: min(table[stage] for table in tables) for stage in tables[0]}
        whole = sum(found[number].values())
        shares = ", ".join(
            f"{stage} {100 * seconds / whole:.0f} %" for stage, seconds in found[number].items()
        )
        note = f"{len(runs[0].exports)} exports for {len(runs[0].program.graphs)} graphs; {shares}"
        yield Figure(f"observe to verify, {number} layers", whole, "s", note=note)
    for small, large in pairwise(layers):
        yield from growth(found[small], found[large], f"{small} -> {large} layers", large / small)


def growth(
    small: Mapping[str, float], large: Mapping[str, float], label: str, layers: float
) -> Iterator[Figure]:
    """How much each stage grows for each time that torch.export grows; below 1 it grows slower."""
    bare = large["torch.export"] / small["torch.export"]
    yield Figure(f"growth of torch.export, {label}", bare, "x")
    whole = sum(large.values())
    for stage in (name for name in large if name != "torch.export"):
        own = large[stage] / max(small[stage], 1e-9)
        short = large[stage] < LEAST_SHARE * whole
        note = f"{own:.2f} times" + (", too short to tell" if short else "")
        name = f"growth of {stage} / of torch.export, {label}"
        figure = Figure(name, own / bare, "x", None if short else 1.0, note)
        lines = [
            f"{layers:.0f} times the layers; linear is {layers / bare:.2f} here, since torch.export"
            " has a fixed part"
        ]
        lines += [
            f"{name:18} {small[name]:7.2f} s, then {large[name]:7.2f} s"
            for name in (stage, "torch.export")
        ]
        yield replace(figure, profile=tuple(lines) if figure.reached is False else ())


def call_figures(steps: tuple[int, ...]) -> Iterator[Figure]:
    """Infer, probe and verify for more and more calls, every one of another size: the model is
    the same.
    """
    model = llama(2, 64)
    times = {}
    for number in steps:
        observer = InputObserver()
        with observer(model):
            generate(model, number)
        times[number] = seconds_of(observer.plans)
        yield Figure(f"infer and probe after {number} calls", times[number], "s")
    growth = (times[steps[-1]] / times[steps[0]]) / (steps[-1] / steps[0])
    yield Figure(
        f"growth for {steps[-1] // steps[0]} times the calls, beside linear", growth, "x", 1.0
    )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    yield from depth_figures((2, 4) if quick else LAYERS, 1 if quick else 2)
    yield from call_figures(STEPS[:2] if quick else STEPS)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
