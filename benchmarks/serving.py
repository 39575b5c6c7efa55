"""One step of a decoder of 12 layers and hidden size 768 at a past of 512 tokens, by ONNX Runtime on
one thread: the variants of a program that are made to be served, beside the plain file.

    python benchmarks/serving.py [--quick] [--json FILE]

All variants take their steps in turns in one process, each with the cache of its own step before.
Where the target is not reached, the figure has the operators that take longest.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from frame import Figure, main, seconds_of

from onlooker import InputObserver, Program

LAYERS, HEADS, PAST, STEPS = 12, 12, 512, 24
#: a token takes at most this share of what it takes with the plain file
TARGET = 1 / 1.5
WARM = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused, cache in place": {"in_place_cache": True},
    "fused, cache in place, int8": {"in_place_cache": True, "precision": "int8"},
    "fused, cache in place, int4": {"in_place_cache": True, "precision": "int4"},
}


def decoder(layers: int) -> Any:
    """An untrained Llama with a head of keys for each one of queries, as configurations have them
    where nothing is said.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config).eval()


def exported(model: Any) -> Program:
    """The program of one short, padded generate."""
    ids = torch.randint(3, 8000, (2, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0)
    return observer.export()


class Decoding:
    """One text that goes on, token by token, on one graph."""

    def __init__(self, program: Program, past: list[torch.Tensor]) -> None:
        self.graph = program.graphs[0]
        self.cache = past
        self.token = torch.tensor([[5]])

    def step(self) -> None:
        """One further token."""
        length = self.cache[0].shape[2]
        named = {
            "input_ids": self.token,
            "attention_mask": torch.ones(1, length + 1, dtype=torch.long),
            "position_ids": torch.tensor([[length]]),
        }
        caches = iter(self.cache)
        paths = [leaf.path.code() for leaf in self.graph.plan.inputs]
        given = [named[path] if path in named else next(caches) for path in paths]
        scores, *self.cache = self.graph.run(given)
        self.token = scores[:, -1:].argmax(-1)


def seconds_by_variant(programs: dict[str, Program], layers: int) -> dict[str, float]:
    """The median of the seconds of a step of each variant."""
    generator = torch.Generator().manual_seed(2)
    shape = (1, HEADS, PAST, 64)
    past = [torch.randn(shape, generator=generator) for _ in range(2 * layers)]
    running = {name: Decoding(program, past) for name, program in programs.items()}
    found: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(STEPS + WARM):
        for name, decoding in running.items():
            found[name].append(seconds_of(decoding.step))
    return {name: median(seconds[WARM:]) for name, seconds in found.items()}


def operators_of(program: Program, layers: int) -> tuple[str, ...]:
    """The share of each operator in some steps, by the profile of ONNX Runtime."""
    import numpy
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = program.save_graphs(folder)[0]
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options)
        cache = numpy.zeros((1, HEADS, PAST, 64), numpy.float32)
        feeds = {value.name: cache for value in session.get_inputs()}
        feeds |= {
            "input_ids": numpy.array([[5]]),
            "attention_mask": numpy.ones((1, PAST + 1), numpy.int64),
            "position_ids": numpy.array([[PAST]]),
        }
        for _ in range(WARM):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    seconds: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            seconds[event["args"]["op_name"]] += event["dur"]
    whole = sum(seconds.values())
    return tuple(f"{each / whole:6.1%}  {name}" for name, each in seconds.most_common(6))


def figures(quick: bool) -> Iterator[Figure]:
    """Per variant the time of a token beside that of the plain file."""
    layers = 2 if quick else LAYERS
    base = exported(decoder(layers))
    programs = {name: base.to("onnx", **options) for name, options in VARIANTS.items()}
    sizes = {name: size_of(program) for name, program in programs.items()}
    seconds = seconds_by_variant(programs, layers)
    for name, each in seconds.items():
        note = f"{1000 * each:.1f} ms a token, files of {sizes[name] / 1e6:.0f} MB"
        if name == "plain":
            yield Figure(f"{layers} layers, past {PAST}, plain file", 1000 * each, "ms", note=note)
            continue
        target = TARGET if name == "fused, cache in place" else None
        title = f"{layers} layers, past {PAST}, {name} / plain file"
        figure = Figure(title, each / seconds["plain"], "x", target, note)
        if figure.reached is False:
            lines = [f"plain file: {line}" for line in operators_of(programs["plain"], layers)]
            lines += [f"{name}: {line}" for line in operators_of(programs[name], layers)]
            figure = replace(figure, profile=tuple(lines))
        yield figure


def size_of(program: Program) -> int:
    """The bytes of the files of the graphs."""
    with tempfile.TemporaryDirectory() as folder:
        return sum(path.stat().st_size for path in program.save_graphs(folder))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
