"""The sweep over architectures: what it measures, and what its page says of it."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """The scripts of the benchmarks, as modules that see one another."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


class Doubled(torch.nn.Module):
    """Twice its input; with ``broken_at`` a batch at which the model itself has a bug."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def use_of(script, model, *batches, watched=2):
    def of(batch):
        return lambda module: module(torch.arange(4.0 * batch).reshape(batch, 4))

    return script("sweep_measure").Use("rows", model, of(watched), tuple(map(of, batches)))


def row_of(script, use) -> dict:
    row = {"name": "own/one", "family": "own", "status": None}
    script("sweep_measure").measure(lambda: use, row, lambda _: None)
    return row


def test_a_model_that_any_batch_may_use_is_ok(script):
    row = row_of(script, use_of(script, Doubled(), 3, 1))
    assert row["status"] == "ok"
    assert row["unseen"] == {"ok": 2}
    assert row["verified"]


def test_an_unseen_call_that_is_refused_is_no_success(script):
    class Chosen(Doubled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 4:  # a graph of its own, which no watched call needs
                return x * self.weight * 3
            return x * self.weight

    row = row_of(script, use_of(script, Chosen(), 5))
    assert row["status"] == "rejects"
    assert "RejectedCallError" in row["message"]


def test_another_result_is_wrong_whatever_verify_says(script):
    measure = script("sweep_measure")
    [call] = measure.recorded(Doubled(), lambda module: module(torch.ones(2, 4)))
    assert measure.answer(lambda x: x * 2, call) == ("ok", "")
    assert measure.answer(lambda x: x * 3, call)[0] == "wrong"
    assert measure.answer(lambda x: x[:1] * 2, call)[0] == "wrong"
    assert measure.answer(lambda x: x * float("nan"), call)[0] == "wrong"
    assert measure.answer(lambda x: [x * 2, x], call)[0] == "wrong"
    assert measure.status_of(["ok", "wrong", "rejects"], True) == "wrong-but-verified"
    assert measure.status_of(["ok", "wrong", "rejects"], False) == "wrong"
    assert measure.status_of(["ok"], False) == "not-verified"


def test_what_is_expected_comes_from_a_copy_that_was_never_used(script):
    class Counting(Doubled):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.weight

    use = use_of(script, Counting(), 3, 1)
    assert len(script("sweep_measure").unseen_calls(use)) == 2
    assert use.model.calls == 0
    assert "forward" not in vars(use.model)


def test_a_model_that_keeps_state_is_watched_as_the_error_asks(script):
    class Summing(Doubled):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total = self.total + x.sum(0)
            return x * self.weight + self.total

    def twice(batch: int) -> Callable[[torch.nn.Module], object]:
        x = torch.arange(4.0 * batch).reshape(batch, 4)
        return lambda module: [module(x), module(x[1:])]

    measure = script("sweep_measure")
    row = {"name": "own/one", "family": "own", "status": None}
    measure.measure(lambda: measure.Use("twice", Summing(), twice(3), (twice(4), twice(6))), row, lambda _: None)
    assert row["status"] == "ok", row
    assert row["state"] is True
    assert row["unseen"] == {"ok": 4}


def test_an_architecture_without_an_unseen_run_is_not_built(script):
    class Strict(Doubled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] != 2:
                raise ValueError("two rows only")
            return x * self.weight

    row = row_of(script, use_of(script, Strict(), 3))
    assert (row["status"], row["slug"]) == ("not-built", "no-use")
    assert "two rows only" in row["message"]


def test_why_there_is_no_tiny_model_is_told_apart(script):
    why_none = script("sweep_transformers").why_none

    class Wanting(torch.nn.Module):
        error: Exception = ValueError("no default")
        config_class = dict

        def __init__(self, config: object) -> None:
            super().__init__()
            if self.error is not None:
                raise self.error

    assert why_none(Wanting) == "no-default-model"
    Wanting.error = ImportError("another library")
    assert why_none(Wanting) == "missing-library"
    Wanting.error = None
    assert why_none(Wanting) == "no-tiny-model"


def test_architectures_of_transformers_are_built_by_rule(script):
    transformers = pytest.importorskip("transformers")
    found = {name: head for name, head, _ in script("sweep_transformers").architectures()}
    assert len(found) >= 350
    assert all(hasattr(transformers, name) for name in list(found)[:5])
    assert list(found).index("LlamaForCausalLM") < list(found).index("LlamaModel")
    for name, story in (
        ("LlamaForCausalLM", "generate from text"),
        ("BertModel", "call with input_ids"),
        ("ViTForImageClassification", "call with pixel_values"),
    ):
        use = script("sweep_transformers").build(name)
        assert use.story == story
        assert sum(weight.numel() for weight in use.model.parameters()) < 10_000_000
        calls = script("sweep_measure").unseen_calls(use)
        assert len(calls) >= 2


def test_a_row_that_the_file_has_is_not_measured_again(script, tmp_path, monkeypatch):
    sweep = script("sweep")
    found = [sweep.Architecture("own", name, "own", lambda: None) for name in ("one", "two", "three")]
    monkeypatch.setattr(sweep, "architectures", lambda: iter(found))
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps({"name": "own/one", "status": "ok"}) + '\n{"name": "own/tw')
    options = argparse.Namespace(out=out, only=None, sample=None, seed=0, redo=False)
    assert [one.label for one in sweep.chosen(options)] == ["own/two", "own/three"]
    options.redo = True
    assert len(sweep.chosen(options)) == 3
    options.only, options.redo = "own/t*", False
    assert [one.label for one in sweep.chosen(options)] == ["own/two", "own/three"]
    options.sample = 1
    assert len(sweep.chosen(options)) == 1


def test_a_job_that_takes_too_long_or_dies_has_a_row(script, tmp_path):
    sweep, file = script("sweep"), tmp_path / "functions.py"
    file.write_text(
        """
def measured(folder, note, label):
    note({"name": label, "family": "own", "status": None, "stage": "build"})
    while label == "own/forever":
        pass
    if label == "own/dies":
        raise SystemExit(3)
    import os
    os._exit(3)
"""
    )
    options = argparse.Namespace(out=tmp_path / "rows.jsonl", jobs=2, timeout=1, memory=64.0)
    names = ("forever", "dies", "exits")
    todo = [sweep.Architecture("own", name, "own", lambda: None) for name in names]
    sweep.run(todo, options, f"{file}:measured")
    rows = sweep.rows_of(options.out)
    assert rows["own/forever"]["slug"] == "timeout in build"
    assert rows["own/forever"]["status"] == "timeout"
    assert [rows[f"own/{name}"]["status"] for name in ("dies", "exits")] == ["crash", "crash"]
    assert rows["own/exits"]["slug"] == "the process died"
    assert {row["family"] for row in rows.values()} == {"own"}


def test_every_architecture_has_a_folder(script, tmp_path):
    pytest.importorskip("transformers")
    sweep = script("sweep")
    described = [{"name": one.label, "run": "a.py:b"} for one in sweep.architectures()]
    assert len(script("onlooker.fleet.job").jobs_of(described, tmp_path)) == len(described) > 350


def test_the_page_counts_what_was_measured(script):
    rows = [
        {"name": "transformers/A", "family": "Model", "status": "ok", "day": "2026-11-24"},
        {"name": "transformers/B", "family": "Model", "status": "rejects", "slug": "rejected-call",
         "message": "rejects: RejectedCallError: No graph takes 3 rows. Hint."},
        {"name": "transformers/C", "family": "Model", "status": "rejects", "slug": "rejected-call",
         "message": "rejects: RejectedCallError: No graph takes 12 rows. Hint."},
        {"name": "timm/d", "family": "timm", "status": "not-built", "message": "NotBuilt: 90 million weights"},
    ]  # fmt: skip
    page = script("sweep_page").page_of(rows)
    assert "| transformers, Model | 3 | 1 | 2 |  | 33 % |" in page
    assert "| rejects | rejected-call | 2 | No graph takes N rows. | B, C |" in page
    assert "| **all** | 4 | 1 | 2 | 1 | 33 % |" in page
    assert page.count("million weights") == 1
    assert "Measured: 1 row on 2026-11-24, 3 rows earlier." in page


def test_the_page_in_the_documentation_has_the_form_that_is_generated(script):
    page = (FOLDER.parent / "docs" / "models.md").read_text()
    assert page.startswith(script("sweep_page")._TOP)
