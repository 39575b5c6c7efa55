"""Tokens of ``generate()`` on exported programs against the model's own: a table of model x mode x
target.

``python benchmarks/installed.py [--models llama,t5] [--targets torch,onnx] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from generators import GENERATORS, Generator

from onlooker import InputObserver, Program

#: what is generated after watching one other generate: batch 3, padded, 30 new tokens
PADDING, LENGTH, NEW = (0, 4, 2), 9, 30
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 20},
}


def exported(generator: Generator, target: str) -> Program:
    """The program of what one plain generate showed."""
    observer = InputObserver()
    with observer(generator.watched):
        generator.observe()
    return observer.export(to=target)


def tokens(generator: Generator, mode: str) -> torch.Tensor:
    """Tokens of a generate that nobody has watched."""
    torch.manual_seed(7)
    return generator.generate(PADDING, LENGTH, seed=5, max_new_tokens=NEW, **MODES[mode])


def compare(generator: Generator, program: Program, mode: str) -> tuple[str, str]:
    """``equal``, or what is not, and the calls that each graph served."""
    expected = tokens(generator, mode)
    try:
        with program.installed(generator.watched) as served:
            got = tokens(generator, mode)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}", ""
    counts = " ".join(f"{name}:{number}" for name, number in served.calls.items())
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)} for {tuple(expected.shape)}", counts
    different = int((got != expected).sum())
    return ("equal" if not different else f"{different} of {got.numel()} differ"), counts


def main() -> int:
    """Prints the table; 0 when all tokens are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(GENERATORS))
    parser.add_argument("--targets", default="torch,onnx")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        generator = GENERATORS[name]()
        program = exported(generator, "torch")
        for target in options.targets.split(","):
            start = time.perf_counter()
            served = program.to(target)
            print(
                f"{name} {target}: {len(served.graphs)} graphs,"
                f" {time.perf_counter() - start:.1f} s",
                flush=True,
            )
            for mode in options.modes.split(","):
                outcome, counts = compare(generator, served, mode)
                rows.append(
                    {
                        "model": name,
                        "target": target,
                        "mode": mode,
                        "outcome": outcome,
                        "calls": counts,
                    }
                )
                print(f"  {mode:9} {outcome}  [{counts}]", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    equal = sum(row["outcome"] == "equal" for row in rows)
    print(f"{equal} of {len(rows)} equal")
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
