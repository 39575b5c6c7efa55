"""A folder of transformers that is larger than memory: it is made of random numbers in pieces, converted
under a limit, and the most memory that the process had is what the kernel says.

    python -m benchmarks.low_memory FOLDER --parameters 7 --to onnx --dtype float16

The conversion runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

#: the sizes of Llamas, by billions of parameters
SIZES: dict[str, dict[str, int]] = {
    "1": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "7": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}
#: the bytes of a file of weights
_SHARD = 2 * 2**30
_CHILD = """
import json, resource, sys, time
from onlooker.cli.command_line import main
start = time.process_time()
code = main(sys.argv[1:], open("/dev/null", "w"), sys.stderr)
own, twin = (resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
seconds = time.process_time() - start
print(json.dumps({"code": code, "peak": max(own, twin), "whole": own, "twin": twin, "seconds": seconds}))
"""


def make(folder: Path, sizes: dict[str, int], dtype: torch.dtype = torch.float16) -> int:
    """Writes a configuration and random weights, a tensor at a time, and returns their bytes."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from onlooker.targets.safetensors_files import write_safetensors

    config = LlamaConfig(vocab_size=32000, max_position_embeddings=4096, dtype="float16", **sizes)
    config.architectures = ["LlamaForCausalLM"]
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shards: list[dict[str, Any]] = [{}]
    total = held = 0
    for name, weight in model.state_dict().items():
        nbytes = weight.numel() * dtype.itemsize
        if held + nbytes > _SHARD and shards[-1]:
            shards.append({})
            held = 0
        shards[-1][name] = tuple(weight.shape)
        held += nbytes
        total += nbytes
    index = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(name, shape, dtype) for name, shape in shard.items()}
        write_safetensors(tensors, folder / file, {"format": "pt"})
        index |= dict.fromkeys(shard, file)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return total


def _random(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Ones with noise for a norm, as trained ones are; small numbers for all else."""
    numbers = torch.randn(shape).mul_(0.02)
    return (numbers + 1 if len(shape) == 1 else numbers).to(dtype)


def measured(folder: Path, out: Path, options: list[str]) -> dict[str, Any]:
    """Converts the folder in a process of its own: the peak of it, that of the process
    that proves the twin, its processor time, its exit code.
    """
    command = ["export", "--model", str(folder), "--low-memory", "--out", str(out), *options]
    start = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *command], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    files = sum(path.stat().st_size for path in out.iterdir())
    return {**found, "wall": time.perf_counter() - start, "written": files}


def main() -> None:
    """Makes the folder where it is not there, converts it, and prints one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", choices=SIZES, default="7")
    own, options = parser.parse_known_args()
    sizes = SIZES[own.parameters]
    if not (own.folder / "model.safetensors.index.json").exists():
        free = shutil.disk_usage(own.folder.parent).free
        if free < float(own.parameters) * 5 * 2**30:
            sys.exit(f"{free / 2**30:.0f} GiB are free, and twice the model is needed")
        make(own.folder, sizes)
    weights = sum(path.stat().st_size for path in own.folder.glob("*.safetensors"))
    with tempfile.TemporaryDirectory(dir=own.folder.parent) as beside:
        row = measured(own.folder, Path(beside, "out"), options)
    print(json.dumps({"weights": weights, "options": options, **row}))


if __name__ == "__main__":
    main()
