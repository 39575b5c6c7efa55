"""Time of a decoder of 24 layers beside eager: programs of each target, installed in the model and by
generation(), on one and two threads.

    python benchmarks/speed.py [--quick] [--json FILE]

Prefill is a generate of one new token, decoding what each further token takes. Every way runs in a
process of its own, in turns with eager, and must give the tokens of eager; a ratio is the median of
the rounds. On one thread it is one of processor time, on two one of the wall clock, which other work
on the machine disturbs. ``torch.compile`` is stopped after a time limit.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from frame import Figure, main

import onlooker
from onlooker import InputObserver

ROWS, LENGTH, NEW = 2, 128, 24
#: the programs, and the most that a step of each may take beside one of eager
TARGETS = {"torch": 1.05, "onnx": 0.9, "aoti": 1.0}
#: how a program runs in the place of the model
PLACES = ("installed", "generation")
COMPILED = "torch.compile"
#: seconds for all that one process needs: compilation and all rounds
LIMIT = 420
ROUNDS = 4


def decoder(layers: int) -> Any:
    """An untrained Llama of hidden size 512."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    return LlamaForCausalLM(config).eval()


def generate(model: Any, new: int) -> torch.Tensor:
    """The tokens of a greedy generate."""
    torch.manual_seed(1)
    ids = torch.randint(3, 8000, (ROWS, LENGTH))
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        tokens: torch.Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return tokens


def make(folder: Path, target: str, layers: int) -> None:
    """Exports the decoder, and saves its program in a folder of the name of the target."""
    model, observer = decoder(layers), InputObserver()
    with observer(model):
        generate(model, 4)
    observer.export(to=target).save(folder / target)


def served(way: str, place: str, folder: Path, layers: int, stack: contextlib.ExitStack) -> Any:
    """A model that generates in one way until the stack is closed."""
    model = decoder(layers)
    if way == COMPILED:
        model.compile(dynamic=True)
        return model
    program = onlooker.load(folder / way, machine_code=True)
    if place == "generation":
        return onlooker.generation(program, model.config)
    stack.enter_context(program.installed(model))
    return model


def seconds_of(model: Any, threads: int) -> tuple[float, float]:
    """The seconds of a prefill and of one decoding step."""
    clock = time.process_time if threads == 1 else time.perf_counter
    times = [clock()]
    for new in (1, NEW + 1):
        generate(model, new)
        times.append(clock())
    prefill = times[1] - times[0]
    return prefill, (times[2] - times[1] - prefill) / NEW


def measured(way: str, place: str, threads: int, folder: Path, layers: int) -> dict[str, Any]:
    """The ratios of prefill and of a step, the seconds of those of eager, and whether the tokens are
    those of eager.
    """
    torch.set_num_threads(threads)
    eager = decoder(layers)
    with contextlib.ExitStack() as stack:
        model = served(way, place, folder, layers, stack)
        same = torch.equal(generate(eager, NEW + 1), generate(model, NEW + 1))
        rounds = [(seconds_of(eager, threads), seconds_of(model, threads)) for _ in range(ROUNDS)]
    ratios = [median(ours[part] / theirs[part] for theirs, ours in rounds) for part in range(2)]
    seconds = [median(theirs[part] for theirs, _ in rounds) for part in range(2)]
    return {"ratios": ratios, "seconds": seconds, "same": same}


def in_own_process(*words: str) -> dict[str, Any] | None:
    """What a process of this script prints; None where the time is over."""
    command = [sys.executable, __file__, *words]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(quick: bool) -> Iterator[Figure]:
    """Per way and number of threads, and for prefill and decoding, the time beside that of eager."""
    layers, targets = (2, ("torch", "onnx")) if quick else (24, tuple(TARGETS))
    with tempfile.TemporaryDirectory() as folder:
        ways = [(target, place) for target in targets for place in PLACES]
        for target in targets:
            in_own_process("--make", folder, target, str(layers))
        for way, place in [*ways, *([] if quick else [(COMPILED, "")])]:
            for threads in (1, 2):
                count = "one thread" if threads == 1 else "two threads"
                name = f"{layers} layers, {way} {place}".strip() + f", {count}"
                words = ("--way", way, place, str(threads), folder, str(layers))
                yield from of_way(name, way, in_own_process(*words))


def of_way(name: str, way: str, found: dict[str, Any] | None) -> Iterator[Figure]:
    """The figures of one process."""
    if found is None:
        yield Figure(f"{name}: seconds", LIMIT, "s", note=f"stopped after {LIMIT} s")
        return
    same = "the tokens of eager" if found["same"] else "OTHER TOKENS"
    for at, (part, count) in enumerate((("prefill", ROWS * LENGTH), ("step", ROWS))):
        speed = count / found["seconds"][at]
        ratio, most = found["ratios"][at], TARGETS.get(way) if part == "step" else None
        note = f"{speed / ratio:.0f} tokens per second, eager {speed:.0f}; {same}"
        yield Figure(f"{name}: {part} / eager", ratio, "x", most, note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        print("{}")
        sys.exit()
    if sys.argv[1:2] == ["--way"]:
        way, place, threads, folder, layers = sys.argv[2:]
        print(json.dumps(measured(way, place, int(threads), Path(folder), int(layers))))
        sys.exit()
    sys.exit(main(__doc__ or "", figures))
