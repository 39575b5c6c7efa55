"""Decoders of the zoo in every variant of ONNX that is made to be served -> the table of
``docs/serve.md``.

    python benchmarks/serving_zoo.py --out FILE [--only NAME,...]
    python benchmarks/serving_zoo.py --out FILE --page

Each model is watched in one use, exported once, and made into each variant, which is verified within
the limits of :data:`VARIANTS` and takes the watched calls in turns with the plain file. A model is a
line in the file, and is not measured again. Models are tiny: what a call costs beside arithmetic is
most of their time, and ``benchmarks/serving.py`` has a larger one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from frame import seconds_of
from serving import size_of
from sweep_measure import text_of
from targets_models import MODELS, model_of

from onlooker import InputObserver, Program

PAGE = Path(__file__).parent.parent / "docs" / "serve.md"
BEGIN, END = "<!-- variants: written by benchmarks/serving_zoo.py -->", "<!-- end of variants -->"
DECODERS = tuple(name for name, (kind, _) in MODELS.items() if kind == "CausalLM")
#: name -> the options of a variant; the largest difference, and the least share of tokens
VARIANTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "plain": ({}, 1e-5, 1.0),
    "fused": ({"fuse": "cpu"}, 1e-5, 1.0),
    "in place": ({"in_place_cache": True}, 1e-5, 1.0),
    "fp16": ({"fuse": "cpu", "precision": "fp16"}, 1e-2, 0.9),
    "int8": ({"fuse": "cpu", "precision": "int8"}, 0.1, 0.9),
    "int4": ({"fuse": "cpu", "precision": "int4"}, 0.5, 0.9),
}
REPEATS, TRIALS = 15, 20
_TITLES = (
    "model",
    "variant",
    "fused",
    "kB",
    "scores differ",
    "watched",
    "unseen",
    "time",
    "verdict",
)


def watched(model: Any) -> InputObserver:
    """One padded generate of two rows, all of its calls kept."""
    ids = torch.randint(3, 250, (2, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    observer = InputObserver()
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 12}
    with observer(model, store_n_calls=12), torch.no_grad():
        model.generate(ids.masked_fill(mask == 0, 0), attention_mask=mask, **options)
    return observer


def measured(name: str) -> dict[str, Any]:
    """The rows of one model, by variant."""
    base = watched(model_of(name)).export()
    rows: dict[str, Any] = {}
    plain: Program | None = None
    for variant, (options, atol, agreement) in VARIANTS.items():
        try:
            program = base.to("onnx", **options)
            plain = plain or program
            tally = program.verify(atol=atol, agreement=agreement, trials=TRIALS)
            seen, unseen = tally.scores("observed"), tally.scores("unseen")
            rows[variant] = {
                "fused": fused(program),
                "bytes": size_of(program),
                "difference": max(seen.difference, unseen.difference),
                "watched": [seen.agreeing, seen.count],
                "unseen": [unseen.agreeing, unseen.count],
                "time": time_beside(program, plain),
                "verdict": program.report.verdict,
                "limits": [atol, agreement],
                "notes": [note for graph in program.graphs for note in graph.notes],
            }
        except Exception as error:
            rows[variant] = {"cause": text_of(error)[:300]}
            traceback.print_exc()
    return rows


def fused(program: Program) -> dict[str, int]:
    """How many nodes there are of each operator of ONNX Runtime."""
    nodes = [node for graph in program.graphs for node in graph.artifact.model.graph.all_nodes()]
    own = (node.op_type for node in nodes if node.domain == "com.microsoft")
    return dict(sorted(Counter(own).items()))


def time_beside(program: Program, plain: Program) -> float:
    """The time of the last watched call beside that of the plain file, both in turns."""
    sample = program._program.beside_model().samples[-1]
    found: dict[str, list[float]] = {"program": [], "plain": []}
    for _ in range(REPEATS):
        for key, one in (("program", program), ("plain", plain)):
            arguments = sample.arguments()
            found[key].append(seconds_of(lambda one=one, given=arguments: one(**given)))
    return median(found["program"]) / median(found["plain"])


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """What the file has, by model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row["rows"] for row in map(json.loads, lines)}


def table_of(rows: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown, and the causes below it."""
    lines = [f"| {' | '.join(_TITLES)} |", f"|{'---|' * len(_TITLES)}"]
    causes: dict[str, list[str]] = {}
    for model in [name for name in DECODERS if name in rows]:
        for variant, row in rows[model].items():
            if "cause" in row:
                causes.setdefault(row["cause"], []).append(f"{model}, {variant}")
                lines.append(f"| {model} | {variant} | | | | | | | no |")
                continue
            cells = (model, variant, counted(row["fused"]), f"{row['bytes'] / 1000:.0f}")
            agreeing = ("{} of {}".format(*row[kind]) for kind in ("watched", "unseen"))
            cells += (f"{row['difference']:.2g}", *agreeing, f"{row['time']:.2f}", row["verdict"])
            lines.append(f"| {' | '.join(cells)} |")
    told = [f"- {' and '.join(where)}: {cause}" for cause, where in causes.items()]
    left = {
        model: note.partition("since ")[2]
        for model, variants in rows.items()
        for note in variants.get("fused", {}).get("notes", ())
        if "stays as it is" in note
    }
    told += [
        f"- {model}: an attention is not fused, since {reason}" for model, reason in left.items()
    ]
    return "\n".join([*lines, *([""] if told else []), *told])


def counted(operators: dict[str, int]) -> str:
    """The operators that matter most, by the letters of their names: ``2 GQA, 4 Skip, 4 Rotary``."""
    short = {
        "GroupQueryAttention": "GQA",
        "SkipSimplifiedLayerNormalization": "skip norms",
        "SkipLayerNormalization": "skip norms",
        "RotaryEmbedding": "rotations",
        "MatMulNBits": "quantised products",
    }
    known = {short[name]: count for name, count in operators.items() if name in short}
    return ", ".join(f"{count} {name}" for name, count in known.items())


def main() -> int:
    """0 when all was measured or written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default=",".join(DECODERS), metavar="NAME,...")
    parser.add_argument("--page", action="store_true", help="write the table into docs/serve.md")
    options = parser.parse_args()
    if options.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        behind = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table_of(rows_of(options.out))}\n{END}{behind}")
        return 0
    for name in options.only.split(","):
        if name not in rows_of(options.out):
            row = {"model": name, "rows": measured(name)}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
