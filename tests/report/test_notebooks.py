"""What notebooks show: figures and tables, made of the recording and the proof."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import onlooker
from onlooker import MissingPackageError, Plan, Program, Recording, Tally
from onlooker.core.drawing.figure import Points, figure_of
from onlooker.core.verdict import Check, Outcome

SIZES = ((1, 3), (2, 5), (4, 40), (3, 30))
HOSTILE = "</td><script>alert(1)</script>"


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        doubled = x * 2 if x.shape[1] > 24 else x
        return doubled + parts[HOSTILE].mean()


@pytest.fixture(scope="module")
def program() -> Program:
    model, observer = Net(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, width in SIZES:
            model(torch.ones(batch, width), {HOSTILE: torch.ones(2)})
    made = observer.export()
    assert made.verify(trials=20).verified
    return made


class Cells(HTMLParser):
    """The rows of the tables of some HTML; every tag has to be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1].append(data)


def test_a_recording_shows_its_leaves(program: Program) -> None:
    cells = Cells(program.recording._repr_html_())
    assert cells.rows[1:] == [
        ["x", "float32, rank 2", "[1|2|3|4, 3|5|30|40]", "4"],
        [f"parts[{HOSTILE!r}]", "float32, rank 1", "[2]", "4"],
    ]
    assert cells.tags <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


def test_plan_program_and_tally_show_what_is_proven(program: Program) -> None:
    rows = Cells(program.plans[0]._repr_html_()).rows
    assert ["x", "float32", "[batch, x_dim_1]", "4 of 4"] in rows
    html = program._repr_html_()
    assert "verified" in html
    assert all(plan._repr_html_() in html for plan in program.plans)
    counted = Cells(program.tally._repr_html_()).rows
    assert sum(int(row[2]) for row in counted[1:]) == program.tally.total
    failed = Tally((Check("unseen", HOSTILE, Outcome.DIFFERENT, difference=2.0, note="another shape"),))
    rows = Cells(failed._repr_html_()).rows
    assert rows[1] == ["of unseen sizes", "0", "1", "2"]
    assert rows[3] == [HOSTILE, "different", "another shape"]
    assert failed._repr_html_().startswith("<p><b>not verified: 1 of 1 trials failed</b> 0 of 1 trials passed")
    for empty in (Recording(), Tally(), replace(program.plans[0], leaves=(), symbols=())):
        Cells(empty._repr_html_())
    assert isinstance(program.plans[0], Plan)


def points(panel: Any) -> set[tuple[float, ...]]:
    """What a panel has, with the trials left out."""
    marks = [one for one in panel.collections if one.get_label() not in ("tried", "failed")]
    return {tuple(map(float, point)) for one in marks for point in one.get_offsets()}


def test_figures_have_a_mark_for_each_call_and_trial(program: Program) -> None:
    pytest.importorskip("matplotlib")
    batch, width = program.recording.plot().axes
    assert points(batch) == {(place, batch) for place, (batch, _) in enumerate(SIZES)}
    assert (batch.get_ylabel(), width.get_ylabel()) == ("x.shape[0]", "x.shape[1]")
    *over_calls, pair = program.plot().axes
    assert points(over_calls[1]) == {(place, width) for place, (_, width) in enumerate(SIZES)}
    assert points(pair) == {tuple(map(float, sizes)) for sizes in SIZES}
    labels = {one.get_label(): len(one.get_offsets()) for one in pair.collections}
    sized = [check for check in program.tally.checks if {"batch", "x_dim_1"} <= dict(check.sizes).keys()]
    assert labels == {"main": 2, "main_2": 2, "tried": len(sized)}


def test_a_size_alone_has_whole_numbers_around_it() -> None:
    pytest.importorskip("matplotlib")
    figure = figure_of(
        "one size", [Points("batch", (2, 2, 2))], ["main"] * 3, (Points("x", (2,) * 3), Points("y", (5,) * 3))
    )
    figure.canvas.draw()
    for panel in figure.axes:
        ticks = [*panel.get_xticks(), *panel.get_yticks()]
        assert ticks == [round(tick) for tick in ticks]
    assert (figure.axes[0].get_ylim(), figure.axes[1].get_xlim()) == ((1, 3), (1, 3))


def test_a_recording_of_nothing_is_an_empty_figure() -> None:
    pytest.importorskip("matplotlib")
    assert points(Recording(model="net").plot().axes[0]) == set()


def test_matplotlib_is_named_where_it_is_missing(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingPackageError, match="drawn by matplotlib, which is not installed") as caught:
        program.plot()
    assert caught.value.slug == "missing-package"
