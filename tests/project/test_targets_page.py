"""The page of targets: what its cells and sums say, and of which rows."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("targets_page")
    sys.path.remove(str(FOLDER))


def row(model: str, way: str, **values: object) -> dict[str, object]:
    return {"model": model, "way": way, **values}


def line_of(text: str, model: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {model} |"))


def test_a_cell_has_its_counts_and_its_cause(page: ModuleType) -> None:
    refused = "ExportError: main cannot be converted to OpenVINO: no operators for aten.x. [openvino-refused]"
    text = page.page_of(
        [
            row("llama", "torch", calls=[8, 8], tokens=[3, 3]),
            row("llama", "onnx", calls=[7, 8], tokens=[2, 3], cause="wrong: 0.5 of 1 + max|expected|"),
            row("llama", "openvino", cause=refused),
            row("bert", "torch", calls=[3, 3]),
        ]
    )
    assert line_of(text, "llama") == "| llama | 8/8, t 3/3 | 7/8, t 2/3 [1] | no [2] |"
    assert line_of(text, "bert") == "| bert | 3/3 |  |  |"
    assert line_of(text, "**whole**") == "| **whole** | 2 of 2 | 0 of 1 | 0 of 1 |"
    assert "llama (openvino)" in text.partition("## Causes")[2]
    assert "transformers.exporters" not in text.partition("## Causes")[0].partition("## Every target")[2]


def test_both_sides_stand_next_to_one_another(page: ModuleType) -> None:
    text = page.page_of(
        [row("bert", "onnx", calls=[3, 3]), row("bert", "peer-onnx", calls=[2, 3], cause="rejects: ValueError: no")]
    )
    compared = text.partition("## Beside transformers.exporters")[2]
    assert line_of(compared, "bert") == "| bert | 3/3 | 2/3 [1] |  |  |  |  |"
    assert line_of(compared, "**whole**").startswith("| **whole** | 1 of 1 | 0 of 1 |")


def test_memory_is_summed_over_the_graphs(page: ModuleType) -> None:
    choices = [{"factor": f, "bounds": {"batch": 2 * f}, "bytes": [1000 * f, 1]} for f in page.FACTORS]
    text = page.page_of([row("bert", "memory", memory=choices)])
    assert "| bert | batch 2 | 1,001 | 2,001 | 4,001 | 16,001 |" in text


def test_a_model_whose_process_dies_goes_on_with_its_next_cell(page: ModuleType, tmp_path: Path, monkeypatch) -> None:
    targets = importlib.import_module("targets")
    file = tmp_path / "targets.py"
    file.write_text(
        """
import os
def measured(folder, note, model, ways, seconds, out):
    done = []
    for way in ways:
        note({"stage": way, "measured": done})
        if way == "onnx":
            os._exit(7)
        with open(out, "a") as file:
            file.write('{"model": "%s", "way": "%s"}\\n' % (model, way))
        done.append(way)
    return {"measured": done}
"""
    )
    monkeypatch.setattr(targets, "__file__", str(file))
    options = argparse.Namespace(out=tmp_path / "rows.jsonl", seconds=1, memory=64.0, jobs=2)
    targets.run({"llama": ["torch", "onnx", "aoti"], "bert": ["torch"], "gpt2": []}, options)
    cells = targets.cells_of(options.out)
    assert sorted(cells) == [("bert", "torch"), ("llama", "aoti"), ("llama", "onnx"), ("llama", "torch")]
    assert cells["llama", "onnx"]["cause"] == "the process died in onnx (exit code 7)"
