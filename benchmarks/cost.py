"""An export and its proof beside a bare export of the same dynamic axes, for six models of published
sizes, and the first minute of a user.

    python benchmarks/cost.py [--quick] [--json FILE]

The bare export is one that a user would write by hand who knew the axes and the cache. Seconds are
those of the processor. Every model has random weights and a process of its own; of two bare exports
after a first one the quicker one counts. What the export did before it cost less stands beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import real
import torch
from frame import Figure, main, seconds_of
from real import Use

import onlooker

MOST, MOST_OF_MEDIAN, MOST_OF_PROOF = 2.0, 1.6, 1.5
#: seconds of a shell command beyond imports; an ONNX export with its proof beside torch's own
MOST_IN_SHELL, MOST_OF_ONNX = 4.0, 1.5
DYNAMIC = torch.export.Dim.DYNAMIC
#: by model the prompt, or the images; then what an export took before, beside a bare one
USES = {
    "decoder of 0.2 B 2x400": (Use("0.2 B", 2, 400, 4), "4.2 x"),
    "Qwen2.5-0.5B 2x500": (Use("Qwen2.5-0.5B", 2, 500, 4), "3.0 x"),
    "BERT-base 2x128": (Use("Bert", 2, 128), "18.0 x"),
    "ViT-base 2x224": (Use("ViT", 2, 224), "5.0 x"),
    "ConvNeXt-tiny 2x224": (Use("ConvNext", 2, 224), "4.4 x"),
    "Swin-tiny 2x224": (Use("Swin", 2, 224), "7.6 x"),
}
#: the dimensions of an image that change, where these are more than the first one
SIDES = {"ConvNext": (0, 2, 3)}


def decoder() -> Any:
    """A Llama of 0.2 B parameters."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    sizes = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816}
    return real.decoder("llama", num_hidden_layers=12, **sizes, **heads)


def encoder(name: str) -> Any:
    """A model of transformers that is no decoder, of its default configuration."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")()
    kind = "SequenceClassification" if name == "Bert" else "ImageClassification"
    return getattr(transformers, f"{name}For{kind}")(config).eval()


BUILD: Mapping[str, Callable[[], Any]] = {"0.2 B": decoder, "Qwen2.5-0.5B": real.qwen}


def inputs_of(use: Use, rows: int, length: int) -> dict[str, torch.Tensor]:
    """The arguments of a call of an encoder."""
    if use.model != "Bert":
        return {"pixel_values": torch.randn(rows, 3, length, length)}
    ids = torch.randint(3, 200, (rows, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bare(model: Any, use: Use) -> Callable[[], object]:
    """An export by hand."""
    if use.new:
        return lambda: real.bare(model, use)
    call = inputs_of(use, use.rows, use.length)
    axes = dict.fromkeys((0, 1) if use.model == "Bert" else SIDES.get(use.model, (0,)), DYNAMIC)
    shapes = dict.fromkeys(call, axes)

    def export() -> object:
        with torch.no_grad():
            return torch.export.export(model, (), call, dynamic_shapes=shapes, strict=False)

    return export


def watched(model: Any, use: Use) -> onlooker.InputObserver:
    """An observer of a model in use: of texts the second one is shorter."""
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        if use.new:
            real.used(model, use)()
            return observer
        model(**inputs_of(use, use.rows, use.length))
        if use.model == "Bert":
            model(**inputs_of(use, use.rows + 1, use.length // 2))
    return observer


def measured(use: Use) -> dict[str, float]:
    """Seconds of both exports; runs in a process of its own."""
    model = BUILD[use.model]() if use.model in BUILD else encoder(use.model)
    by_hand = bare(model, use)
    by_hand()  # what torch loads and keeps of a model
    found = {"bare": min(seconds_of(by_hand) for _ in range(2))}
    observer, programs, traces = watched(model, use), list[Any](), list[float]()
    export = torch.export.export

    def counted(*args: Any, **kwargs: Any) -> Any:
        results: list[Any] = []
        traces.append(seconds_of(lambda: results.append(export(*args, **kwargs))))
        return results[0]

    torch.export.export = counted
    found["export"] = seconds_of(lambda: programs.append(observer.export()))
    torch.export.export = export
    (program,) = programs
    found["verify"] = seconds_of(program.verify)
    return {
        **found,
        "graphs": len(program.graphs),
        "traces": len(traces),
        "traced": sum(traces),
        "verified": float(program.tally.verified),
        "tried": program.tally.total,
        "of": program.tally.total + program.tally.left_out,
    }


def of_model(name: str, use: Use, before: str) -> tuple[Figure, Figure]:
    """The figures of one model: its export, and its proof."""
    command = [sys.executable, __file__, "--model", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    parts = [
        f"{found['export']:.1f} s, bare {found['bare']:.1f} s",
        f"{found['traces']:.0f} traces of {found['traced'] / found['bare']:.2f} x together",
        f"{found['graphs']:.0f} graph{'s' * (found['graphs'] > 1)}",
        *([f"before: {before}"] if before else []),
    ]
    verdict = "verified" if found["verified"] else "NOT VERIFIED"
    tried = (
        f"{verdict} on {found['tried']:.0f} of {found['of']:.0f} trials; {found['verify']:.1f} s"
    )
    return (
        Figure(
            f"{name}: export / bare", found["export"] / found["bare"], "x", MOST, "; ".join(parts)
        ),
        Figure(
            f"{name}: verify / bare", found["verify"] / found["bare"], "x", MOST_OF_PROOF, tried
        ),
    )


def small_bert() -> Any:
    """A BERT of two layers."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(intermediate_size=512, **sizes)).eval()


def seconds_of_process(*command: str) -> float:
    """The seconds of the processor that a process takes."""
    before = os.times()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def first_minute() -> Iterator[Figure]:
    """A command from the shell beside its imports, and an ONNX export beside that of torch."""
    model = small_bert()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model.save_pretrained(place / "model")
        imports = "import torch, transformers; transformers.BertForSequenceClassification"
        base = min(seconds_of_process("-c", imports) for _ in range(2))
        command = ("-m", "onlooker", "export", "--model", str(place / "model"))
        whole = seconds_of_process(*command, "-o", str(place / "program"))
        yield Figure(
            "onlooker export of a small BERT, beyond its imports",
            whole - base,
            "s",
            MOST_IN_SHELL,
            f"{whole:.1f} s; importing torch and transformers {base:.1f} s",
        )
        ids = torch.randint(3, 200, (2, 16))
        call = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        shapes = {name: {0: DYNAMIC, 1: DYNAMIC} for name in call}

        def of_torch() -> None:
            torch.onnx.export(
                model,
                (),
                place / "of_torch.onnx",
                kwargs=call,
                dynamic_shapes=shapes,
                verbose=False,
            )

        def of_onlooker() -> None:
            onlooker.onnx_export(
                model, (), place / "onlooker.onnx", kwargs=call, dynamic_shapes=shapes
            )

        of_torch()
        of_onlooker()
        base, ours = seconds_of(of_torch), seconds_of(of_onlooker)
        yield Figure(
            "onlooker.onnx_export of a small BERT, verified / torch.onnx.export",
            ours / base,
            "x",
            MOST_OF_ONNX,
            f"{ours:.1f} s and {base:.1f} s",
        )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures; a quick run has two models."""
    names = list(USES)[2:4] if quick else list(USES)
    found = []
    for name in names:
        export, proof = of_model(name, *USES[name])
        found.append(export)
        yield from (export, proof)
    median = statistics.median(figure.value for figure in found)
    yield Figure(f"export / bare, median of {len(found)}", median, "x", MOST_OF_MEDIAN)
    yield from first_minute()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--model"]:
        print(json.dumps(measured(USES[sys.argv[2]][0])))
        sys.exit()
    sys.exit(main(__doc__ or "", figures))
