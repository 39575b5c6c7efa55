"""Tiny models in every precision on every target: size, speed, distance and verdict.

    python benchmarks/precision.py --out FILE [--only NAME,...] [--targets 'torch;onnx;...']
    python benchmarks/precision.py --out FILE --page

The first writes one line of JSON for each row, and goes on where it was ended; the second writes the tables into
docs/precision.md. ExecuTorch and torchao need the environment of ``make test-executorch``, which has all others too.
Speed is the processor time of the program over that of the float program of the same target in the same process, on
one core: the median of pairs of runs on the largest kept call. The files of peers (:mod:`precision_peers`) are judged
as programs of onlooker are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from precision_peers import PEERS, TORCHAO, as_reduced, of_peer, of_torchao

from onlooker import InputObserver, Program
from onlooker.core.errors import OnlookerError
from onlooker.core.verdict import Tally
from onlooker.targets.targets import target_of

PAGE = Path(__file__).parent.parent / "docs" / "precision.md"
BEGIN, END = "<!-- {}: written by benchmarks/precision.py -->", "<!-- end of {} -->"
OBSERVED = {"ranges": "observed"}
#: the rows of each target, with the options of the conversion
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "onnx": ("onnx", {}),
    "openvino": ("openvino", {}),
    "aoti": ("aoti", {}),
    "executorch": ("executorch", OBSERVED),
    "executorch, xnnpack": ("executorch", {**OBSERVED, "backend": "xnnpack"}),
}
HIDDEN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
Watched = tuple[Any, Callable[[], None], Callable[[Any], float] | None]


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 96, (rows, length))


def decoder() -> Watched:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=96, num_key_value_heads=2, max_position_embeddings=64, **HIDDEN)
    )

    def use() -> None:
        for rows, length in ((2, 5), (3, 8), (2, 11)):
            given = ids(rows, length)
            model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=3, do_sample=False
            )

    return model, use, None


def encoder() -> Watched:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(vocab_size=96, **HIDDEN))

    def use() -> None:
        for rows, length in ((2, 5), (3, 8), (4, 11), (1, 6), (2, 9), (5, 7)):
            given = ids(rows, length)
            model(input_ids=given, attention_mask=torch.ones_like(given))

    return model, use, None


def encoder_decoder() -> Watched:
    model = torch.nn.Transformer(64, 4, 2, 2, 128, batch_first=True)

    def use() -> None:
        for rows, source, target in ((2, 5, 7), (3, 8, 4), (4, 11, 9), (2, 6, 5)):
            model(torch.randn(rows, source, 64), torch.randn(rows, target, 64))

    return model, use, None


def digits() -> Watched:
    """A classifier of the digits that scikit-learn ships, trained here in some seconds; its metric is its accuracy on
    images that it was not trained on.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with torch.enable_grad():
        for _ in range(12):
            for part in train[torch.randperm(len(train))].split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()

    def use() -> None:
        for start in range(0, 192, 16):
            model(x[train[start : start + 8 + start // 16]])

    def accuracy(run: Any) -> float:
        scores = torch.cat([run(part) for part in x[test].split(16)])  # no larger than calls were
        return float((scores.argmax(1) == y[test]).float().mean())

    return model, use, accuracy


def vision() -> Watched:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(
        ViTConfig(image_size=32, patch_size=8, num_labels=10, **HIDDEN)
    )

    def use() -> None:
        for rows in (1, 2, 3, 4, 5, 6):
            model(pixel_values=torch.randn(rows, 3, 32, 32))

    return model, use, None


def speech() -> Watched:
    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, 32, 10, stride=5),
        torch.nn.GELU(),
        torch.nn.Conv1d(32, 64, 4, stride=2),
        torch.nn.GELU(),
        torch.nn.Conv1d(64, 64, 3, padding=1, groups=8),
        torch.nn.GELU(),
        torch.nn.ConvTranspose1d(64, 40, 4, stride=2),
    )

    def use() -> None:
        for rows, length in ((1, 400), (2, 640), (3, 500), (2, 810), (1, 700), (4, 450)):
            model(torch.randn(rows, 1, length))

    return model, use, None


def unet() -> Watched:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    )

    def use() -> None:
        for rows, step in ((1, 5), (2, 50), (3, 500), (2, 900)):
            model(torch.randn(rows, 3, 16, 16), torch.tensor([step] * rows), return_dict=False)

    return model, use, None


def sentences() -> Watched:
    from transformers import DistilBertConfig, DistilBertModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = DistilBertModel(
                DistilBertConfig(vocab_size=96, dim=64, hidden_dim=128, n_layers=2, n_heads=4)
            )

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            rows = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask[:, :, None].to(rows.dtype)
            return torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1), dim=-1)

    model = Pooled()

    def use() -> None:
        for rows, length in ((2, 5), (3, 8), (4, 11), (1, 6), (2, 9), (5, 7)):
            given = ids(rows, length)
            model(given, torch.ones_like(given))

    return model, use, None


MODELS: dict[str, Callable[[], Watched]] = {
    "decoder": decoder,
    "encoder": encoder,
    "encoder-decoder": encoder_decoder,
    "digits": digits,
    "vision": vision,
    "speech": speech,
    "unet": unet,
    "sentences": sentences,
}


def exported(
    name: str, change: Callable[[Any], None] | None = None
) -> tuple[Program, Callable[[Any], float] | None]:
    torch.manual_seed(0)
    model, use, metric = MODELS[name]()
    model.eval()
    if change is not None:
        change(model)
    observer = InputObserver()
    with observer(model, keep=64), torch.no_grad():
        use()
    return observer.export(), metric


def size_of(program: Program) -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "program")
        program.save(place)
        names = {"onlooker.json", "plan.json", "report.json", "recording.json"}
        return sum(
            file.stat().st_size
            for file in place.rglob("*")
            if file.is_file() and file.name not in names
        )


def speed_beside(program: Program, plain: Program) -> float:
    """The time of a program over that of another one, on the largest kept call."""
    samples = plain._program.samples
    sample = max(
        samples,
        key=lambda one: sum(leaf.numel() for leaf in one.inputs.leaves if torch.is_tensor(leaf)),
    )

    def seconds(one: Program) -> float:
        arguments = sample.arguments()
        start = time.process_time()
        one._program.serve(arguments)
        return time.process_time() - start

    for one in (program, plain):
        seconds(one)
    return statistics.median(seconds(program) / seconds(plain) for _ in range(15))


def rows_of(
    name: str, targets: Sequence[str], known: set[tuple[str, str, str]]
) -> Iterator[dict[str, Any]]:
    wanted = {
        label: [one for one in precisions_of(label) if (name, label, one) not in known]
        for label in targets
    }
    wanted = {label: precisions for label, precisions in wanted.items() if precisions}
    if not wanted:
        return
    base, metric = exported(name)
    floats = Floats(base)
    for label, precisions in wanted.items():
        for precision in precisions:
            row = {"model": name, "target": label, "precision": precision}
            try:
                yield row | measured(*pair_of(name, floats, label, precision), metric)
            except OnlookerError as error:
                yield row | {"verdict": f"refused: {error.slug}"}
            except Exception as error:  # of a peer
                yield row | {"verdict": f"ended with {type(error).__name__}"}


def precisions_of(label: str) -> tuple[str, ...]:
    if label in TARGETS:
        return ("", *target_of(TARGETS[label][0]).precisions)
    return ("int8", "int4") if label == TORCHAO else (PEERS[label].precision,)


class Floats:
    """The float programs of a model, each made once."""

    def __init__(self, base: Program) -> None:
        self.base = base
        self._made: dict[str, Program] = {}

    def on(self, label: str) -> Program:
        if label not in self._made:
            target, options = TARGETS[label]
            self._made[label] = self.base.to(target, **options)
        return self._made[label]


def pair_of(name: str, floats: Floats, label: str, precision: str) -> tuple[Program, Program]:
    """The program of a row, and the one in floats that it is timed beside."""
    base = floats.base
    if label == TORCHAO:
        given, _ = exported(name, of_torchao(precision))
        return as_reduced(base, given.graphs, precision), base
    plain = floats.on(PEERS[label].target if label in PEERS else label)
    if label in PEERS:
        return of_peer(plain, PEERS[label]), plain
    target, options = TARGETS[label]
    return base.to(target, precision=precision, **options) if precision else plain, plain


def measured(
    program: Program, plain: Program, metric: Callable[[Any], float] | None
) -> dict[str, Any]:
    """Size, speed, distances and verdict of a program."""
    tally = program.verify(**({} if metric is None else {"metric": metric, "at_least": 0.0}))
    with torch.no_grad():
        speed = speed_beside(program, plain)
    row = {"bytes": size_of(program), "speed": speed, "verdict": tally.verdict}
    row |= distances_of(tally) or {"difference": tally.difference}
    return row if metric is None else {**row, "metric": metric(program)}


def distances_of(tally: Tally) -> dict[str, Any]:
    """The distances on calls that nothing was calibrated on; nothing for a program in floats."""
    judged = [one for one in tally.distances if one.kind != "calibration"]
    if not judged:
        return {}
    worst = max(judged, key=lambda one: one.program.mean_error)
    return {
        "mean": worst.program.mean_error,
        "rounding": worst.rounding.mean_error if worst.rounding else None,
        "largest": max(one.program.largest_error for one in judged),
        "cosine": min(one.program.cosine for one in judged),
        "same": [
            sum(getattr(one.program, what) for one in judged) for what in ("agreeing", "rows")
        ],
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | target | precision | KiB | time | mean error | rounding alone | largest | cosine"
        " | best the same | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["model"], row["target"], row["precision"] or "float32"]
        if "bytes" not in row:
            lines.append(f"| {' | '.join(cells)} | | | | | | | | {row['verdict']} |")
            continue
        speed = "" if row["speed"] is None else f"{row['speed']:.2f}"
        cells += [f"{row['bytes'] / 1024:.0f}", speed]
        if "mean" in row:
            rounding = "" if row["rounding"] is None else f"{row['rounding']:.2g}"
            agreeing, count = row["same"]
            cells += [
                f"{row['mean']:.2g}",
                rounding,
                f"{row['largest']:.2g}",
                f"{row['cosine']:.5f}",
            ]
            cells += [f"{agreeing} of {count}" if count else ""]
        else:
            cells += ["", "", f"({row['difference']:.1g})", "", ""]
        verdict = row["verdict"]
        if verdict.startswith("not verified"):
            verdict = verdict.partition(":")[0]
        verdict += f", accuracy {row['metric']:.3f}" if "metric" in row else ""
        lines.append(f"| {' | '.join([*cells, verdict])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument(
        "--targets", default=";".join([*TARGETS, *PEERS, TORCHAO]), help="divided by semicolons"
    )
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    if options.page:
        text = PAGE.read_text(encoding="utf-8")
        names, labels = list(MODELS), [*TARGETS, *PEERS, TORCHAO]
        rows.sort(key=lambda row: (names.index(row["model"]), labels.index(row["target"])))
        for kind, own in (("precisions", TARGETS), ("peers", (*PEERS, TORCHAO))):
            before, begin, rest = text.partition(BEGIN.format(kind))
            shown = table_of([row for row in rows if row["target"] in own])
            text = f"{before}{begin}\n\n{shown}\n\n{END.format(kind)}{rest.partition(END.format(kind))[2]}"
        PAGE.write_text(text, encoding="utf-8")
        return
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    warnings.simplefilter("ignore")
    known = {(row["model"], row["target"], row["precision"]) for row in rows}
    for name in options.only.split(","):
        for row in rows_of(name, options.targets.split(";"), known):
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["model"], row["target"], row["precision"], row["verdict"], flush=True)


if __name__ == "__main__":
    main()
