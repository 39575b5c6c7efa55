"""The data of a page are the recording and the proof, to the last call; and the file is one file."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE, SIZES, data_of, program, very_many, watched

from onlooker import Program, Recording
from onlooker.cli import main
from onlooker.core.verdict import Check, Outcome, Tally
from onlooker.page.page import entry_data, page_of
from onlooker.page.subject import of_program


@pytest.fixture(scope="module")
def proven() -> Program:
    return program()


def spread(packed: Any, count: int) -> list[Any]:
    return packed if isinstance(packed, list) else [packed] * count


def calls_in_order(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The sizes of each call, one after the other, by the text of their column."""
    repeats = spread(entry["repeats"], entry["runs"])
    order = entry["order"] or range(entry["runs"])
    columns = {one["text"]: spread(one["sizes"], entry["different"]) for one in entry["columns"]}
    rows = [row for row, count in zip(order, repeats, strict=True) for _ in range(count)]
    return [{text: sizes[row] for text, sizes in columns.items()} for row in rows]


def test_a_run_has_every_call_in_the_order_of_time(tmp_path: Path) -> None:
    captured = watched(tmp_path)
    data = data_of(page_of(captured, "seen"))
    by_name = {entry["name"]: entry for entry in data["entries"]}
    assert {name: entry["calls"] for name, entry in by_name.items()} == {
        seen.name: seen.n_calls for seen in captured.seen
    }
    named = by_name["Named"]
    assert [row["batch"] for row in calls_in_order(named)] == [2, 5, 5]
    assert named["columns"][0]["axes"] == [f"parts[{HOSTILE!r}].shape[0]"]
    assert [row[4] for row in data["tables"][0]["rows"]] == [4, 3], "the calls of both processes"


def test_a_program_has_its_graphs_guards_and_trials(proven: Program) -> None:
    (entry,) = data_of(page_of(proven, "program"))["entries"]
    assert entry["graphs"] == [graph.name for graph in proven.graphs]
    counts = spread(entry["counts"], entry["different"])
    taken: Counter[str] = Counter()
    for graph, count in zip(entry["graph_of"], counts, strict=True):
        taken[entry["graphs"][graph]] += count
    assert dict(taken) == {"main": 4, "main_2": 3}
    rows = calls_in_order(entry)
    assert sorted((row["batch"], row["x_dim_1"], row["2*x_dim_1"]) for row in rows) == sorted(
        (batch, width, 2 * width) for batch, width in SIZES
    )
    (main, other) = [one for one in entry["guards"] if "x_dim_1" in one["condition"]]
    assert (main["condition"], main["sides"], other["sides"]) == ("x_dim_1 <= 24", [4, 3], [3, 4])
    assert "if x.shape[1] > 24:" in main["line"]
    assert main["fates"][0].startswith("taken by graph main_2")
    proof = entry["proof"]
    tried = sum(sum(cell[-2:]) for cell in proof["cells"]) + sum(proof["without"])
    assert tried == proven.tally.total
    (pair,) = entry["joints"]
    assert [(box["x"], box["y"]) for box in pair["boxes"]] == [([0, None], [0, 24]), ([0, None], [25, None])]


def test_a_relation_is_drawn_from_what_the_calls_had(proven: Program) -> None:
    (entry,) = data_of(page_of(proven, "program"))["entries"]
    points = {(x, y) for one in entry["relations"] for x, y, _ in one["points"]}
    assert points == {(width, 2 * width) for _, width in SIZES}
    assert sum(count for one in entry["relations"] for *_, count in one["points"]) == len(SIZES)
    for one in entry["relations"]:
        assert all(y == 2 * x for x, y in one["line"])


def test_a_failed_trial_is_no_passed_one(proven: Program) -> None:
    sizes = (("batch", 2), ("x_dim_1", 5))
    checks = (
        Check("unseen", "batch=2", Outcome.EXACT, sizes),
        Check("unseen", "batch=2", Outcome.DIFFERENT, sizes, float("inf"), "another shape"),
        Check("observed", "call 0", Outcome.FAILED),
    )
    entry = entry_data(replace(of_program("net", proven), tally=Tally(checks)))
    assert entry["proof"]["cells"] == [[2, 5, 1, 1]]
    assert entry["proof"]["without"] == [0, 1]
    assert entry["joints"][0]["tried"] == [[2, 5, 1, 1]]
    (trials,) = [one for one in entry["tables"] if one["title"] == "Trials"]
    assert trials["rows"][1][1:] == ["different", "", "infinite", "another shape"]
    json.dumps(entry, allow_nan=False)


def test_a_recording_without_a_program_is_drawn_too(proven: Program) -> None:
    recording = proven.recording
    data = data_of(page_of(recording, "calls"))
    (entry,) = data["entries"]
    assert (data["kind"], data["calls"], entry["guards"], entry["proof"]["cells"]) == ("recording", len(SIZES), [], [])
    assert entry["waste"][0]["steps"][-1]["share"] == 0, "a bucket for each size wastes nothing"
    shares = [step["share"] for step in entry["waste"][0]["steps"]]
    assert shares == sorted(shares, reverse=True)


def test_nothing_in_the_file_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(watched(tmp_path), HOSTILE)
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attributes)))

    Reader().feed(page)
    assert [tag for tag, _ in found].count("script") == 2
    assert not [tag for tag, _ in found if tag in ("img", "iframe", "object")]
    links = [value for _, own in found for name, value in own.items() if name in ("src", "href")]
    assert all(value == "data:," or value.startswith("#") for value in links if value is not None)
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg|https://example.com/x", "", page.partition("</style>")[2])


def test_very_many_calls_are_a_small_file(tmp_path: Path) -> None:
    page = page_of(very_many(tmp_path), "many")
    assert len(page.encode()) < 2_000_000
    (entry,) = data_of(page)["entries"]
    assert len(calls_in_order(entry)) == entry["calls"] == 100_000
    assert entry["counted"] == 0


def test_the_command_writes_the_file_and_says_so(proven: Program, tmp_path: Path) -> None:
    calls = tmp_path / "calls.json"
    proven.recording.save(calls)
    assert Recording.load(calls) == proven.recording
    stdout, stderr = io.StringIO(), io.StringIO()
    out = tmp_path / "page.html"
    assert main(["html", str(calls), "-o", str(out), "--json"], stdout, stderr) == 0
    assert json.loads(stdout.getvalue())["bytes"] == out.stat().st_size
    assert main(["html", str(calls), "-o", str(tmp_path)], stdout, stderr) == 1
    assert "[not-a-file]" in stderr.getvalue()
    assert data_of(out.read_text())["calls"] == len(SIZES)


def test_the_page_has_the_report_a_contents_list_and_what_the_verdict_means(proven: Program) -> None:
    page = page_of(proven, "program")
    (entry,) = data_of(page)["entries"]
    facts = dict(entry["facts"])
    assert list(facts)[:2] == ["verdict", "program"]
    assert {"graphs", "sizes", "inputs", "outputs", "run"} <= set(facts)
    assert "float32[batch, x_dim_1]" in facts["inputs"]
    assert 'href="#meaning"' in page
    assert 'id="meaning"' in page
    assert 'class="contents"' in page


def test_a_page_of_calls_has_no_verdict_to_explain(proven: Program) -> None:
    page = page_of(proven.recording, "calls")
    assert "#meaning" not in page
