"""The page of models that fell back: what its cells and sums say, and of which rows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return importlib.import_module("fell_back_page")


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_a_model_stands_beside_both_exporters_of_torch(page: ModuleType) -> None:
    rows = [
        {"name": "ViT/onlooker", "status": "ok", "right": [3, 3], "export_seconds": 9.1, "files": 1},
        {"name": "ViT/dynamo", "status": "refused", "message": "ValueError: \x1b[96mno\x1b[0m", "export_seconds": 2.0},
        {
            "name": "ViT/legacy",
            "status": "wrong",
            "right": [1, 3],
            "message": "2 outputs instead of 1",
            "export_seconds": 1.5,
            "files": 1,
        },
    ]
    text = page.page_of(rows)
    assert line_of(text, "ViT") == "| ViT | timm | **3/3** | 9.1 | 1 | refused | 2.0 |  | 1/3 | 1.5 | 1 |"
    assert line_of(text, "onlooker") == "| onlooker | 1 of 1 | 0 | 0 | 9 |"
    assert line_of(text, "`dynamo=False`") == "| `dynamo=False` | 0 of 1 | 1 | 0 | 2 |"
    assert "- **ViT**, refused: `ValueError: no`" in text


def test_a_file_that_is_wrong_for_the_example_says_so(page: ModuleType) -> None:
    row = {"name": "ViT/legacy", "status": "wrong", "right": [0, 3], "message": "the example: 2 outputs", "files": 1}
    assert "| wrong example, 0/3 |" in page.page_of([row])


def test_the_page_in_the_documentation_is_made_of_the_rows(page: ModuleType) -> None:
    sweep = importlib.import_module("sweep")
    rows = sweep.rows_of(FOLDER / "rows" / "fell_back.jsonl")
    assert page.page_of(rows.values()) == (FOLDER.parent / "docs" / "fell_back.md").read_text()
    models = importlib.import_module("fell_back_models")
    assert {name.partition("/")[0] for name in rows} == {entry.name for entry in models.entries()}


def test_each_own_model_runs_on_all_of_its_calls() -> None:
    models = importlib.import_module("fell_back_models")
    own = [entry for entry in models.entries() if entry.package == "own"]
    assert len(own) == 5
    for entry in own:
        torch.manual_seed(0)
        script = entry.build()
        with torch.no_grad():
            shapes = {
                str(torch.utils._pytree.tree_map(lambda x: x.shape, script.model(*call))) for call in script.calls
            }
        assert len(shapes) > 1, entry.name


def test_what_a_file_gives_is_compared_by_number_shape_and_count() -> None:
    fell_back = importlib.import_module("fell_back")
    wanted = [torch.tensor([1.0, 2.0])]
    assert fell_back.difference(wanted, [wanted[0].numpy()], 1e-3) == ""
    assert "shape [1]" in fell_back.difference(wanted, [wanted[0][:1].numpy()], 1e-3)
    assert "apart" in fell_back.difference(wanted, [(wanted[0] * 2).numpy()], 1e-3)
    assert "apart" in fell_back.difference(wanted, [(wanted[0] * torch.nan).numpy()], 1e-3)
    assert "2 outputs" in fell_back.difference(wanted, [wanted[0].numpy()] * 2, 1e-3)
