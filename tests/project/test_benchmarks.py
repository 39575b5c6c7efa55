"""What the benchmarks measure, held by counts: functions run, exports and probes made, never seconds."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlooker.repairs import guard_count
from python_calls import python_calls

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """The scripts of the benchmarks, as modules that see one another."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


@pytest.mark.slow
def test_inference_is_linear_in_calls_and_in_leaves(script):
    inference = script("inference")
    given = [inference.decoder_calls(*sizes) for sizes in ((100, 42), (200, 42), (100, 82))]
    one, more_calls, more_leaves = (python_calls(partial(inference.plan_of, calls)) for calls in given)
    assert more_calls <= 2.1 * one
    assert more_leaves <= 2.1 * one


def twice_over_once(script: Any, table_of: Callable[[Any, int], Any], axes: int) -> float:
    """How many functions more are run to find the relations of twice the axes."""
    inference = script("inference")
    one, two = (python_calls(partial(inference.mine, table_of(inference, n))) for n in (axes, 2 * axes))
    return two / one


@pytest.mark.slow
def test_relations_are_a_question_per_pair_of_classes_and_no_more(script):
    assert twice_over_once(script, lambda inference, n: inference.unrelated_table(n, 8), 30) <= 4.4


@pytest.mark.slow
def test_axes_of_the_same_classes_cost_little_more(script):
    assert twice_over_once(script, lambda inference, n: inference.related_table(n, 20), 100) <= 2.2


def test_axes_that_some_calls_lack_cost_little_more(script):
    """One that never changes, and that a call lacks, looks for its class among those of its dimension."""

    def table_of(inference: Any, n: int) -> Any:
        whole = inference.related_table(n, 3)
        names = [inference.Axis(inference.Path((inference.Name(f"y{i}"),)), 0) for i in range(n)]
        return inference.Table({**whole.columns, **dict.fromkeys(names, (4, None, 4))}, whole.labels)

    assert twice_over_once(script, table_of, 100) <= 2.2


#: per model: the most runs of it between the recording and the program, and the exports of torch: one for the graph,
#: and one for each other side of its conditions (llama: a first call, one token, and both; its runs without a mask or a
#: cache, one for each side of what it decides, are among them)
PIPELINES = {"perceptron": (20, 1), "llama": (100, 1), "vit": (30, 1)}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.one_in(3)
@pytest.mark.slow
def test_a_pipeline_makes_one_graph_and_no_export_that_is_refused(script, name, monkeypatch):
    subjects, exports = script("subjects"), script("exports")
    made = []
    module_of = torch.export.ExportedProgram.module
    monkeypatch.setattr(
        torch.export.ExportedProgram, "module", lambda *args, **kwargs: made.append(1) or module_of(*args, **kwargs)
    )
    subject = next(s for s in subjects.subjects(quick=True) if s.name == name)
    run = exports.pipeline(subject.module, subject.watch)
    assert run.program.tally.verified
    runs, exported = PIPELINES[name]
    assert len(run.exports) <= exported
    assert not any(export.program is None for export in run.exports)
    assert run.of_graphs == run.exports[:1]
    assert run.program.report.probes <= runs
    assert len(made) <= 3, "to make a module of a program takes long"


class Strided(torch.nn.Module):
    """Takes images from a least side on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 8, stride=4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layer(image).relu().mean((2, 3))


def test_a_size_with_a_least_value_is_one_graph_and_no_export_that_is_refused(script):
    exports = script("exports")
    model = Strided().eval()
    run = exports.pipeline(model, lambda: model(torch.randn(2, 3, 24, 24)))
    assert run.program.tally.verified
    assert run.of_graphs == run.exports[:1]
    assert len(run.exports) <= 4, "a result of one row, of one column, and of both are the other sides"
    assert not any(export.program is None for export in run.exports)
    assert {symbol.low for symbol in run.program.plans[0].symbols} == {0, 8}


class Deep(torch.nn.Module):
    """Appends to many tensors, each of which brings guards of its own."""

    def forward(self, new: torch.Tensor, pasts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.cat([past, new], dim=1) * pasts[0].shape[1] for past in pasts]


@pytest.mark.slow
def test_the_guards_of_many_inputs_ask_for_no_second_export(script, monkeypatch):
    """A few per input are more than the most of a model with few inputs, which is made small here."""
    exports = script("exports")
    monkeypatch.setattr(guard_count, "_MOST_GUARDS", 10)
    model = Deep()

    def watch() -> None:
        for batch, past in ((2, 3), (3, 5)):
            model(torch.ones(batch, 1, 4), [torch.ones(batch, past, 4) for _ in range(8)])

    run = exports.pipeline(model, watch)
    assert run.program.tally.verified
    assert len(run.exports) == 1
    assert len(run.program.graphs[0].artifact._guards_code) > 10
    assert not any("without guards" in note for note in run.program.graphs[0].notes)


@pytest.mark.slow
def test_the_exports_of_a_pipeline_can_be_made_again(script):
    subjects, exports, export = script("subjects"), script("exports"), script("export")
    subject = next(subjects.subjects(quick=True))
    (made,) = exports.exports_of(subject.module, subject.watch)
    again = made.again()
    assert again.graph_module.code == made.program.graph_module.code
    assert torch.export.export is exports._EXPORT
    ratio, ours, theirs = export.compared(made, 3, named_first=True)
    assert min(ratio, ours, theirs) > 0


def test_calls_and_depth_are_compared_with_torch(script):
    scaling = script("scaling")
    small, large = (
        {"torch.export": 1.0, "probe": 0.1, "infer": 1e-4},
        {"torch.export": 3.0, "probe": 0.4, "infer": 1e-3},
    )
    whole, probe, infer = scaling.growth(small, large, "1 -> 4", 4)
    assert (whole.value, whole.target) == (3.0, None)
    assert (round(probe.value, 3), probe.mark, len(probe.profile)) == (1.333, "NOT REACHED", 3)
    assert (infer.target, infer.profile) == (None, ())


def test_the_other_scripts_run(script):
    assert script("imports").measure("pass")[0] < 1
    dispatch = script("dispatch")
    make, calls, call = dispatch.cases()["3 tensors"]
    assert dispatch.measure(dispatch.exported(make(), calls), call, 3)["leaves"] == 3
    assert script("watching").kept_bytes is not None
    assert script("pipeline").described is not None


def test_the_page_is_what_the_results_say(script):
    """`make bench` writes both."""
    results = json.loads((FOLDER / "results.json").read_text())["benchmarks"]
    assert (ROOT / "docs" / "benchmarks.md").read_text() == script("page").page_of(results)
    assert all((FOLDER / f"{name}.py").exists() for name in results)


def test_a_figure_says_whether_its_target_is_reached(script):
    figure = script("frame").Figure
    found = [figure("a", 1.0, "s", 2.0), figure("b", 3.0, "s", 2.0, "why", ("here",)), figure("c", 3.0, "s")]
    assert [f.mark for f in found] == ["reached", "NOT REACHED", ""]
    assert [f.read(json.loads(json.dumps(f.values()))) for f in found] == found
    assert str(found[1]).endswith("NOT REACHED  (why)")


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_shown_number_is_near_the_number(script, value):
    assert float(script("frame").shown(value)) == pytest.approx(value, rel=0.006, abs=1e-300)
