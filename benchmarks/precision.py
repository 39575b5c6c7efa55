"""Tiny models in every precision on every target: size, speed, distance and verdict.

    python benchmarks/precision.py --out FILE [--only NAME,...] [--targets torch,onnx,openvino]
    python benchmarks/precision.py --out FILE --page

The first writes one line of JSON for each row, and goes on where it was ended; the second writes the table into
docs/precision.md. Speed is the time of the program over that of the float program of the same target in the same
process, on one thread: the median of pairs of runs on the largest kept call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import OnlookerError
from onlooker.targets.targets import target_of

PAGE = Path(__file__).parent.parent / "docs" / "precision.md"
BEGIN, END = "<!-- precisions: written by benchmarks/precision.py -->", "<!-- end of precisions -->"
TARGETS = ("torch", "onnx", "openvino")
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
        return float((run(x[test]).argmax(1) == y[test]).float().mean())

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


def exported(name: str) -> tuple[Program, Callable[[Any], float] | None]:
    torch.manual_seed(0)
    model, use, metric = MODELS[name]()
    model.eval()
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
        start = time.perf_counter()
        one._program.serve(arguments)
        return time.perf_counter() - start

    for one in (program, plain):
        seconds(one)
    return statistics.median(seconds(program) / seconds(plain) for _ in range(15))


def rows_of(
    name: str, targets: tuple[str, ...], known: set[tuple[str, str, str]]
) -> Iterator[dict[str, Any]]:
    wanted = [
        (t, p) for t in targets for p in ("", *target_of(t).precisions) if (name, t, p) not in known
    ]
    if not wanted:
        return
    base, metric = exported(name)
    for target in dict.fromkeys(target for target, _ in wanted):
        plain = base.to(target)
        for precision in [p for t, p in wanted if t == target]:
            row: dict[str, Any] = {"model": name, "target": target, "precision": precision}
            try:
                program = base.to(target, precision=precision) if precision else plain
                given = {} if metric is None else {"metric": metric, "at_least": 0.0}
                tally = program.verify(**given)
                with torch.no_grad():
                    speed = speed_beside(program, plain)
                row |= {"bytes": size_of(program), "speed": speed, "verdict": tally.verdict}
                judged = [one for one in tally.distances if one.kind != "calibration"]
                if judged:
                    worst = max(judged, key=lambda one: one.program.mean_error)
                    row |= {
                        "mean": worst.program.mean_error,
                        "rounding": worst.rounding.mean_error if worst.rounding else None,
                        "largest": max(one.program.largest_error for one in judged),
                        "cosine": min(one.program.cosine for one in judged),
                        "same": [
                            sum(getattr(one.program, what) for one in judged)
                            for what in ("agreeing", "rows")
                        ],
                    }
                else:
                    row |= {"difference": tally.difference}
                if metric is not None:
                    row["metric"] = metric(program)
            except OnlookerError as error:
                row["verdict"] = f"refused: {error.slug}"
            yield row


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
        cells += [f"{row['bytes'] / 1024:.0f}", f"{row['speed']:.2f}"]
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
        verdict = row["verdict"].partition(":")[0]
        verdict += f", accuracy {row['metric']:.3f}" if "metric" in row else ""
        lines.append(f"| {' | '.join([*cells, verdict])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    if options.page:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        order = {name: number for number, name in enumerate(MODELS)}
        rows.sort(key=lambda row: order[row["model"]])
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(rows)}\n\n{END}{after}", encoding="utf-8")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {(row["model"], row["target"], row["precision"]) for row in rows}
    for name in options.only.split(","):
        for row in rows_of(name, tuple(options.targets.split(",")), known):
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["model"], row["target"], row["precision"], row["verdict"], flush=True)


if __name__ == "__main__":
    main()
