"""Tokens per second of a decoder of 24 layers: eager, and installed programs of each target.

    python benchmarks/speed.py [--quick] [--json FILE]

Prefill is a generate of one new token, decoding what each further token takes. Every way runs in a
process of its own, on one thread, and must give the tokens of eager. ``torch.compile`` is stopped
after a time limit.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
from frame import Figure, main, seconds_of

from onlooker import InputObserver

ROWS, LENGTH, NEW = 2, 128, 32
WAYS = ("eager", "torch", "onnx", "aoti", "torch.compile")
#: seconds for all that one way needs: export, conversion, compilation and both runs
LIMIT = 420
REPEATS = 3


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


@contextlib.contextmanager
def running(model: Any, way: str) -> Iterator[None]:
    """Inside the block the model runs in one of :data:`WAYS`."""
    if way == "eager":
        yield
    elif way == "torch.compile":
        model.compile(dynamic=True)
        yield
    else:
        observer = InputObserver()
        with observer(model):
            generate(model, 4)
        with observer.export(to=way).installed(model):
            yield


def measured(way: str, layers: int) -> dict[str, Any]:
    """Seconds of prefill and of one decoding step, and the tokens."""
    model = decoder(layers)
    with running(model, way):
        tokens = generate(model, NEW + 1)  # loads and compiles what is needed
        prefill = min(seconds_of(lambda: generate(model, 1)) for _ in range(REPEATS))
        whole = min(seconds_of(lambda: generate(model, NEW + 1)) for _ in range(REPEATS))
    return {"prefill": prefill, "step": (whole - prefill) / NEW, "tokens": tokens.tolist()}


def in_own_process(way: str, layers: int) -> dict[str, Any] | None:
    """What :func:`measured` finds there; None where the time is over."""
    command = [sys.executable, __file__, "--way", way, str(layers)]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(quick: bool) -> Iterator[Figure]:
    """Per way, and for prefill and decoding, the time beside that of eager."""
    layers, ways = (2, ("eager", "torch", "onnx")) if quick else (24, WAYS)
    eager: dict[str, Any] = {}
    for way in ways:
        found = in_own_process(way, layers)
        if found is None:
            name = f"{layers} layers, {way}: seconds until the first tokens"
            yield Figure(name, LIMIT, "s", note=f"stopped after {LIMIT} s")
            continue
        eager = eager or found
        same = "the tokens of eager" if found["tokens"] == eager["tokens"] else "OTHER TOKENS"
        for part, count in (("prefill", ROWS * LENGTH), ("step", ROWS)):
            speed = f"{count / found[part]:.0f} tokens per second, {same}"
            ratio = found[part] / eager[part]
            yield Figure(f"{layers} layers, {way}: {part} / eager", ratio, "x", note=speed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        print(json.dumps(measured(sys.argv[2], int(sys.argv[3]))))
        sys.exit()
    sys.exit(main(__doc__ or "", figures))
