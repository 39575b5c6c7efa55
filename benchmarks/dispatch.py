"""What calling a program costs beyond calling its exported graph module: microseconds, beside the
target.

    python benchmarks/dispatch.py [--quick] [--json FILE]

All are called in one process, in turn, on the same arguments; the overhead is the median of the
differences between the program and the module that torch gives. ``dispatch`` is that between the
program and its graph, which is called without the pytrees of torch's module. The target is 50
microseconds and 1 more per leaf, for the overhead.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from frame import Figure, main
from transformers import DynamicCache

from onlooker import InputObserver, Program
from onlooker.pytrees.open import open_arguments

FIXED, PER_LEAF = 50.0, 1.0


class Mlp(torch.nn.Module):
    """Three tensors."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        return x + y + z


class Cached(torch.nn.Module):
    """A step of a decoder that does nothing but append to its cache."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: DynamicCache,
        use_cache: bool = True,
    ) -> dict[str, Any]:
        """The mean of the mask, and the cache with one more token per token."""
        new = (input_ids + position_ids).to(torch.float32)[:, None, :, None].expand(-1, 2, -1, 8)
        for layer in range(self.layers):
            past_key_values.update(new, new, layer)
        return {"logits": attention_mask.float().mean(dim=1), "past_key_values": past_key_values}


def cached_call(layers: int, batch: int, sequence: int, past: int) -> dict[str, Any]:
    """Arguments of :class:`Cached`, as ``generate`` passes them."""
    pair = (torch.zeros(batch, 2, past, 8), torch.zeros(batch, 2, past, 8))
    return {
        "input_ids": torch.ones(batch, sequence, dtype=torch.int64),
        "attention_mask": torch.ones(batch, past + sequence, dtype=torch.int64),
        "position_ids": torch.arange(past, past + sequence).expand(batch, -1),
        "past_key_values": DynamicCache([pair] * layers),
        "use_cache": True,
    }


def cases() -> dict[
    str, tuple[Callable[[], torch.nn.Module], list[dict[str, Any]], dict[str, Any]]
]:
    """Per case: the model, the calls to watch, and the call to time."""
    vectors = [{name: torch.ones(size, 4) for name in "xyz"} for size in (2, 3)]
    found: dict[str, Any] = {
        "3 tensors": (Mlp, vectors, {name: torch.ones(5, 4) for name in "xyz"})
    }
    for layers in (16, 98):
        watched = [cached_call(layers, 2, 3, 5), cached_call(layers, 3, 4, 7)]
        found[f"cache of {layers} layers"] = (
            lambda n=layers: Cached(n),
            watched,
            cached_call(layers, 2, 1, 9),
        )
    return found


def exported(model: torch.nn.Module, calls: list[dict[str, Any]]) -> Program:
    """The program of some calls."""
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(**call)
    return observer.export(probe=False)


def measure(program: Program, call: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Microseconds of the program, of its module and of the difference, and the number of
    leaves.
    """
    (graph,) = program.graphs
    module = graph.artifact.module()
    leaves = dict(open_arguments(call).items())
    inputs = {graph.names[leaf.path]: leaves[leaf.path] for leaf in graph.plan.inputs}
    values = list(inputs.values())
    runs: dict[str, Callable[[], Any]] = {
        "module": lambda: module(**inputs),
        "graph": lambda: graph.run(values),
        "program": lambda: program(**call),
    }
    spent: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter_ns()
                run()
                spent[name].append((time.perf_counter_ns() - start) / 1000)
    count = len(leaves)
    overhead = statistics.median(
        p - m for p, m in zip(spent["program"], spent["module"], strict=True)
    )
    dispatch = statistics.median(
        p - g for p, g in zip(spent["program"], spent["graph"], strict=True)
    )
    whole, bare = statistics.median(spent["program"]), statistics.median(spent["module"])
    return {
        "leaves": count,
        "module_us": round(bare, 1),
        "program_us": round(whole, 1),
        "graph_us": round(statistics.median(spent["graph"]), 1),
        "overhead_us": round(overhead, 1),
        "dispatch_us": round(dispatch, 1),
        "ratio": round(whole / bare, 3),
        "target_us": FIXED + PER_LEAF * count,
    }


def figures(quick: bool) -> Iterator[Figure]:
    """The overhead of each case."""
    for name, (make, calls, call) in cases().items():
        program = exported(make().eval(), calls)
        measure(program, call, 20)
        row = measure(program, call, 50 if quick else 300)
        note = f"program {row['program_us']} us, its module {row['module_us']} us"
        yield Figure(
            f"dispatch, {name}, {row['leaves']} leaves",
            row["overhead_us"],
            "us",
            row["target_us"],
            note,
        )


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
