"""The report of a program: data compared with literals, made from plans by hand, then ink."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from onlooker.core.call import Parameter, Signature
from onlooker.core.contents import GraphContents, Outputs
from onlooker.core.contract import Constraint, Contract, Dropped, Origin, Region
from onlooker.core.experiment import BlindKind, BlindSpot
from onlooker.core.path import Attr, Index, Name, Path
from onlooker.core.plan import Evidence, Fill, LeafPlan, Plan, Relation, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import Axis, ConstantSpec
from onlooker.core.structure import Structure
from onlooker.core.verdict import Check, Focus, Outcome, Reach, Scores, Tally
from onlooker.report.blind import blind_spots
from onlooker.report.data import AxisRow, GraphReport, graph_report
from onlooker.report.report import Report

IDS, MASK, FLAG, SEEN = (Path((Name(name),)) for name in ("input_ids", "attention_mask", "use_cache", "seen"))
KEYS = Path((Name("past"), Attr("layers"), Index(0), Attr("keys")))
EVIDENCE = Evidence(("call 0", "call 1"), 2)


def shape_of(*texts: str) -> tuple[Expression, ...]:
    return tuple(map(Expression.parse, texts))


PLAN = Plan(
    "main",
    Structure(),
    (
        LeafPlan(IDS, "torch.int64", "cpu", shape_of("batch", "sequence")),
        LeafPlan(MASK, "torch.int64", "cpu", shape_of("batch", "past + sequence"), fill=Fill("ones")),
        LeafPlan(KEYS, "torch.float32", "cpu", shape_of("batch", "2", "past", "8"), fill=Fill("empty", dim=2)),
        LeafPlan(SEEN, value=Expression.parse("past")),
        LeafPlan(FLAG, constant=ConstantSpec(True)),
    ),
    (Symbol("batch", (2, 3)), Symbol("sequence", (1, 3, 4, 5, 6, 10), 1, 128), Symbol("past", (0, 10), 0)),
    (
        Relation(Axis(MASK, 0), Expression.parse("batch"), "equal", EVIDENCE),
        Relation(Axis(MASK, 1), Expression.parse("past + sequence"), "sum", EVIDENCE),
    ),
    (0, 1, 2),
)
AXES = {str(axis): axis for leaf in PLAN.inputs for axis, _ in leaf.axes}
OBTAINED = {axis: expression for leaf in PLAN.inputs for axis, expression in leaf.axes}

LONG = Constraint("past + sequence <= 64", Origin.MODEL, "model.py:12 in forward: if n > 64:")
CONTRACT = Contract((Region((LONG,)),), (Dropped("batch != 1", "a trace at batch = 1 gives the same graph"),))


def contents_of(plan: Plan, **more: Any) -> GraphContents:
    """A graph of which nothing but the plan, and what is given, is known."""
    empty = Outputs(Structure(), (), (), ())
    return GraphContents(**{"plan": plan, "names": {}, "outputs": empty, "target": "torch", "sizes": {}, **more})


def graph_of(**obtained: str) -> GraphReport:
    """The report of the plan, with other things obtained for some axes."""
    contents = contents_of(
        PLAN,
        exported_sizes=OBTAINED | {AXES[text]: Expression.parse(size) for text, size in obtained.items()},
        contract=CONTRACT,
        sizes={"batch": 3, "sequence": 5, "past": 7},
        notes=("asked again",),
        seconds=1.23456,
    )
    return graph_report(contents)


def check(outcome: Outcome, label: str = "batch=5", kind: str = "unseen", **more: Any) -> Check:
    return Check(kind, label, outcome, **more)


GOOD = Tally((check(Outcome.EXACT, "call 0", "observed"), check(Outcome.EXACT, difference=1e-6)))


def report_of(*graphs: GraphReport, tally: Tally = GOOD, **more: Any) -> Report:
    return Report("lib.Model", "forward", graphs or (graph_of(),), tally, **more)


def full_text(report: Report) -> str:
    """All that a report has."""
    return report.text(full=True)


def test_a_graph_is_reported_axis_by_axis() -> None:
    batch, many = "2, 3", "1, 3 ... 10 (6 sizes)"
    equal = str(EVIDENCE)
    assert graph_of().axes == (
        AxisRow("input_ids.shape[0]", batch, "batch", "batch"),
        AxisRow("input_ids.shape[1]", many, "sequence", "sequence"),
        AxisRow("attention_mask.shape[0]", batch, "batch", "batch", equal),
        AxisRow("attention_mask.shape[1]", "follows from its symbols", "past + sequence", "past + sequence", equal),
        AxisRow("past.layers[0].keys.shape[0]", batch, "batch", "batch"),
        AxisRow("past.layers[0].keys.shape[1]", "2", "2", "2", changes=False),
        AxisRow("past.layers[0].keys.shape[2]", "0, 10", "past", "past"),
        AxisRow("past.layers[0].keys.shape[3]", "8", "8", "8", changes=False),
        AxisRow("seen", "0, 10", "past", "past"),
    )


def test_a_graph_is_reported_with_its_symbols_and_what_surrounds_them() -> None:
    graph = graph_of()
    assert (graph.name, graph.target, graph.calls) == ("main", "torch", (0, 1, 2))
    assert graph.symbols == (
        ("batch", "2, 3", "1 and more"),
        ("sequence", "1, 3 ... 10 (6 sizes)", "1 to 128"),
        ("past", "0, 10", "0 and more"),
    )
    assert graph.relations == (("attention_mask.shape[1] == past + sequence", "call 0, call 1 (2 distinct)"),)
    assert graph.fills == (("attention_mask", "ones"), ("past.layers[0].keys", "empty along 2"))
    assert graph.constants == (("use_cache", "True"),)
    assert graph.sizes == (("batch", 3), ("sequence", 5), ("past", 7))
    assert (graph.notes, graph.seconds) == (("asked again",), 1.23456)
    assert graph.needs == ("past + sequence <= 64, because of model.py:12 in forward: if n > 64:",)
    assert graph.dropped == (Dropped("batch != 1", "a trace at batch = 1 gives the same graph"),)


def test_a_graph_with_several_regions_needs_one_of_them() -> None:
    contract = Contract((Region((LONG,)), Region((Constraint("batch == 3", Origin.FIXED),))))
    graph = graph_report(contents_of(PLAN, contract=contract))
    assert graph.needs == (f"one of 2: {LONG}", "one of 2: batch == 3")


@pytest.mark.parametrize("text", ["4*images", "2*images + 1", "images + text", "4096 - images"])
def test_a_derived_axis_says_where_its_sizes_come_from(text: str) -> None:
    leaf = LeafPlan(Path((Name("x"),)), "torch.float32", "cpu", shape_of(text))
    plan = replace(PLAN, leaves=(leaf,), symbols=(Symbol("images", (2, 3)), Symbol("text", (4, 9))), relations=())
    graph = graph_report(contents_of(plan))
    (row,) = graph.axes
    assert row.asked == str(Expression.parse(text))
    assert row.observed not in ("", "?")


def test_an_axis_that_the_program_does_not_tell_is_marked() -> None:
    plan = replace(PLAN, leaves=PLAN.leaves[:1])
    graph = graph_report(contents_of(plan, target="onnx"))
    assert [row.obtained for row in graph.axes] == ["?", "?"]


@pytest.mark.parametrize(
    ("asked", "obtained", "narrowed"),
    [
        ("batch", "batch", False),
        ("batch", "s0", False),
        ("batch", "1", True),
        ("batch", "0", True),
        ("past + sequence", "8", True),
        ("past + sequence", "past + sequence", False),
        ("8", "8", False),
        ("8", "batch", False),
        ("batch", "?", False),
    ],
)
def test_a_number_for_a_symbol_is_narrower(asked: str, obtained: str, narrowed: bool) -> None:
    path = Path((Name("x"),))
    plan = replace(PLAN, leaves=(LeafPlan(path, "torch.float32", "cpu", shape_of(asked)),), relations=())
    sizes = {} if obtained == "?" else {Axis(path, 0): Expression.parse(obtained)}
    (row,) = graph_report(contents_of(plan, exported_sizes=sizes)).axes
    assert (row.obtained, row.narrowed, row.changes) == (obtained, narrowed, asked != "8")


BAD = check(Outcome.DIFFERENT, difference=0.5, note="logits differs by 0.5")
FIXED = check(Outcome.REJECTED, "x.shape[0]", note="it should change", focus=Focus.AXES)
GIVEN = check(Outcome.FAILED, "sequence=129", note="128 rows of positions", focus=Focus.GIVEN)
NARROW = graph_of(**{"input_ids.shape[0]": "2", "attention_mask.shape[0]": "2"})


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (report_of(), "verified"),
        (report_of(tally=Tally()), "not verified: nothing was tried"),
        (report_of(tally=GOOD + GOOD + Tally((BAD,))), "not verified: 1 of 5 trials failed"),
        (report_of(NARROW, tally=GOOD + Tally((FIXED,))), "not verified: x.shape[0] stays a number"),
        (report_of(NARROW, graph_of()), "verified"),
        (report_of(NARROW, tally=Tally()), "not verified: nothing was tried"),
        (report_of(unlawful=("batch=1",)), "verified"),
        (report_of(tally=replace(GOOD, left_out=190)), "verified on 2 of 192 trials"),
        (
            report_of(tally=Tally((*GOOD.checks, BAD), left_out=190, reach=Reach.WATCHED_SERVED)),
            "serves the watched sizes alone: not verified on 3 of 193 trials: 1 of 3 trials failed",
        ),
        (report_of(tally=GOOD + Tally((GIVEN,))), "not verified: 1 given size failed (sequence=129)"),
    ],
    ids=[
        "good",
        "nothing",
        "one-failed",
        "narrow",
        "narrow-in-one-graph",
        "narrow-and-untried",
        "unlawful",
        "left-out",
        "watched-sizes",
        "given",
    ],
)
def test_the_verdict_is_a_sentence(report: Report, verdict: str) -> None:
    assert report.verdict == report.tally.verdict == verdict
    assert report.verified == report.tally.verified


def test_only_observed_calls_are_not_a_proof_and_nothing_is_said_to_fail() -> None:
    report = report_of(tally=Tally(GOOD.checks[:1]))
    assert report.verdict.startswith("not verified: ")
    assert "0 of 1 trials failed" not in report.verdict


def test_a_number_in_one_of_the_graphs_is_told_and_is_no_failure() -> None:
    report = report_of(graph_of(**{"input_ids.shape[0]": "2"}))
    assert report.narrowed == ("input_ids.shape[0]",)
    assert report.verified


def test_what_was_not_tried_not_recorded_and_not_known_is_remarked() -> None:
    report = report_of(
        unlawful=("batch=0",), missed=("before a call: RuntimeError: no clone",), blind=("labels never passed",)
    )
    assert report.remarks == (
        "not valid for the model itself, not counted: batch=0",
        "a call was not recorded: before a call: RuntimeError: no clone",
        "blind spot: labels never passed",
    )
    assert all(remark in full_text(report) for remark in report.remarks)


def test_a_report_is_json() -> None:
    failures = (
        check(Outcome.DIFFERENT, sizes=(("batch", 5),), difference=math.inf, note="NaN against a number"),
        check(Outcome.REJECTED, difference=math.nan, note="refused"),
    )
    report = report_of(tally=GOOD + Tally(failures), unlawful=("batch=0",), missed=("lost",))
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    parts = ["schema", "model", "method", "verdict", "graphs", "trials", "scores"]
    parts += ["distances", "tally", "refused", "drawn"]
    assert list(data) == [
        *parts,
        "left_out",
        "blocked",
        "unlawful",
        "surroundings",
        "missed",
        "blind",
        "stages",
        "probes",
    ]
    assert data["tally"] == {"observed": 1, "sizes": 3}
    assert (data["schema"], data["model"], data["method"]) == (1, "lib.Model", "forward")
    assert data["verdict"] == "not verified: 2 of 4 trials failed"
    assert (data["unlawful"], data["missed"]) == (["batch=0"], ["lost"])


def test_scores_are_told_beside_the_trials() -> None:
    near = Check("observed", "call 0", Outcome.EXACT, scores=Scores(0.01, 2, 2))
    far = Check("unseen", "batch=5", Outcome.EXACT, scores=Scores(0.25, 4, 5))
    again = Check("observed", "call 0, again", Outcome.EXACT, focus=Focus.REPEATED, scores=Scores(0.01, 2, 2))
    report = report_of(tally=Tally((near, far, far, again)))
    watched = "2 of 2 watched tokens agree, scores differ by up to 0.01"
    unseen = "8 of 10 unseen tokens agree, scores differ by up to 0.25"
    assert report.remarks == (f"{watched}; {unseen}",)
    assert report.to_dict()["scores"] == {
        "observed": {"agreeing": 2, "count": 2, "difference": 0.01},
        "unseen": {"agreeing": 8, "count": 10, "difference": 0.25},
    }


def test_the_stages_have_seconds_and_shares() -> None:
    report = report_of(stages=(("observe", 0.001), ("probe", 0.499), ("export", 1.5)), probes=7)
    data = report.to_dict()
    assert data["stages"] == [
        {"stage": "observe", "seconds": 0.001, "share": 0.0005},
        {"stage": "probe", "seconds": 0.499, "share": 0.2495},
        {"stage": "export", "seconds": 1.5, "share": 0.75},
    ]
    assert data["probes"] == 7
    line = "time: observe 0.00 s (< 1 %), probe 0.50 s (25 %), export 1.50 s (75 %); 7 runs of the model"
    assert report.remarks == (line,)
    assert line in full_text(report)


@pytest.mark.parametrize(
    ("seconds", "texts"), [((1, 999), ("< 1 %", "> 99 %")), ((0, 1), ("0 %", "100 %")), ((1, 1), ("50 %", "50 %"))]
)
def test_a_share_is_never_rounded_to_nothing_or_to_the_whole(seconds: tuple[int, int], texts: tuple[str, str]) -> None:
    (line,) = report_of(stages=tuple(zip(("infer", "export"), seconds, strict=True)), probes=1).remarks
    assert line.endswith("; 1 run of the model")
    assert all(f"({text})" in line for text in texts)


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        (Symbol("n"), "1 and more"),
        (Symbol("n", low=0), "0 and more"),
        (Symbol("n", low=1, high=9), "1 to 9"),
        (Symbol("n", low=2, high=6), "2 to 6"),
        (Symbol("n", low=11), "11 and more"),
    ],
)
def test_the_range_of_a_symbol_is_that_of_the_plan(symbol: Symbol, shown: str) -> None:
    plan = replace(PLAN, leaves=(), symbols=(symbol,), relations=())
    graph = graph_report(contents_of(plan))
    assert graph.symbols == (("n", "", shown),)


def plan_with(*leaves: LeafPlan, blind: tuple[BlindSpot | str, ...] = ()) -> Plan:
    return replace(PLAN, leaves=leaves, symbols=(), relations=(), blind=blind)


def signature_of(*names: str) -> Signature:
    return Signature((*(Parameter(name) for name in names), Parameter("kwargs", "VAR_KEYWORD")))


UNPASSED = BlindSpot(BlindKind.MASK_NEVER_PASSED, argument="labels")
BLIND = {
    "what the plan says": ((plan_with(blind=("no batch",)), plan_with(blind=("no batch",))), ("no batch",)),
    "never passed": ((plan_with(),), ("labels never passed: such a call is refused, watch one to have it served",)),
    "only None": (
        (plan_with(LeafPlan(Path((Name("labels"),)), constant=ConstantSpec(None))),),
        ("labels only passed as None: another value is refused, watch one to have it served",),
    ),
    "told once": ((plan_with(blind=(UNPASSED,)),), (str(UNPASSED),)),
    "a graph without the mask": (
        (plan_with(LeafPlan(Path((Name("labels"),)))), replace(plan_with(blind=(UNPASSED,)), name="graph_1")),
        (f"in calls of graph_1, {UNPASSED}",),
    ),
    "a flag": (
        (plan_with(LeafPlan(Path((Name("labels"),)), constant=ConstantSpec(True))),),
        ("only labels=True seen: the other value is refused, watch a call that has it to have it served",),
    ),
    "both values": (
        tuple(plan_with(LeafPlan(Path((Name("labels"),)), constant=ConstantSpec(flag))) for flag in (True, False)),
        (),
    ),
}


@pytest.mark.parametrize("name", BLIND)
def test_a_blind_spot_says_which_run_settles_it(name: str) -> None:
    plans, expected = BLIND[name]
    names = [] if name == "what the plan says" else ["labels"]
    assert blind_spots(plans, signature_of(*names)) == expected


def test_a_trial_as_json() -> None:
    failed = check(Outcome.DIFFERENT, sizes=(("batch", 5),), difference=math.inf, note="NaN against a number")
    assert report_of(tally=Tally((failed,))).to_dict()["trials"] == [
        {
            "kind": "unseen",
            "label": "batch=5",
            "outcome": "different",
            "sizes": {"batch": 5},
            "difference": "infinite",
            "note": "NaN against a number",
            "focus": "",
        }
    ]


def test_a_graph_as_json() -> None:
    (graph,) = report_of().to_dict()["graphs"]  # type: ignore[misc]
    assert graph["axes"][3] == {
        "axis": "attention_mask.shape[1]",
        "observed": "follows from its symbols",
        "asked": "past + sequence",
        "obtained": "past + sequence",
        "evidence": "call 0, call 1 (2 distinct)",
    }
    assert len(graph.pop("axes")) == 9
    assert graph == {
        "name": "main",
        "target": "torch",
        "options": {},
        "calls": [0, 1, 2],
        "symbols": [
            {"name": "batch", "observed": "2, 3", "range": "1 and more"},
            {"name": "sequence", "observed": "1, 3 ... 10 (6 sizes)", "range": "1 to 128"},
            {"name": "past", "observed": "0, 10", "range": "0 and more"},
        ],
        "relations": [
            {"relation": "attention_mask.shape[1] == past + sequence", "evidence": "call 0, call 1 (2 distinct)"}
        ],
        "fills": {"attention_mask": "ones", "past.layers[0].keys": "empty along 2"},
        "constants": {"use_cache": "True"},
        "sizes": {"batch": 3, "sequence": 5, "past": 7},
        "needs": ["past + sequence <= 64, because of model.py:12 in forward: if n > 64:"],
        "dropped": ["batch != 1 is not needed: a trace at batch = 1 gives the same graph"],
        "conditions": [
            {
                "condition": "past + sequence <= 64",
                "otherwise": "past + sequence > 64",
                "origin": "model",
                "line": "model.py:12 in forward: if n > 64:",
                "other_side": [
                    {"outcome": "not-traced", "graph": "", "sizes": {"batch": 3, "sequence": 58, "past": 7}},
                ],
            }
        ],
        "evidence": [
            {"condition": "batch != 1", "line": "", "evidence": "a trace at batch = 1 gives the same graph"},
        ],
        "notes": ["asked again"],
        "seconds": 1.235,
    }


@pytest.mark.parametrize(
    "text",
    [
        "onlooker report of lib.Model.forward",
        "main (torch), calls 0 to 2",
        "attention_mask",
        "[batch, past + sequence]",
        "[batch, 2, past, 8]",
        "1 and more",
        "1 to 128",
        "relation attention_mask.shape[1] == past + sequence: call 0, call 1 (2 distinct)",
        "absent past.layers[0].keys is filled: empty along 2",
        "constants: use_cache=True",
        "exported with batch=3, sequence=5, past=7 in 1.2 s",
        "note: asked again",
        "verdict: verified",
    ],
)
def test_the_text_of_a_report_says(text: str) -> None:
    assert text in full_text(report_of())


def test_the_text_of_a_report_fits_its_width() -> None:
    long = LeafPlan(Path((Name("x" * 90),)), "torch.float32", "cpu", shape_of("batch", "sequence", "past"))
    graph = graph_report(contents_of(replace(PLAN, leaves=(long,))))
    lines = full_text(report_of(graph)).splitlines()
    assert max(map(len, lines)) <= 118
    assert [line for line in lines if line != line.rstrip()] == []


def test_brackets_in_text_are_no_markup() -> None:
    note = check(Outcome.FAILED, note="logits[0]: [bold]RuntimeError[/bold] in x['a']")
    text = full_text(report_of(tally=Tally((note,)), missed=("[red]lost[/red]",)))
    assert "failed: batch=5: logits[0]: [bold]RuntimeError[/bold] in x['a']" in text
    assert "[red]lost[/red]" in text


def test_brackets_in_the_name_of_a_graph_are_no_markup() -> None:
    assert "decode[0] (torch), calls 0 to 2" in full_text(report_of(replace(graph_of(), name="decode[0]")))
    assert "[red] (torch), calls 0 to 2" in full_text(report_of(replace(graph_of(), name="[red]")))


def test_the_first_failures_are_listed_and_the_others_counted() -> None:
    tally = Tally(tuple(check(Outcome.DIFFERENT, f"batch={i}", note="differs") for i in range(11)))
    text = full_text(report_of(tally=tally))
    assert [f"different: batch={i}: differs" in text for i in range(11)] == [True] * 8 + [False] * 3
    assert "... and 3 more" in text
    assert "more" not in full_text(report_of(tally=Tally(tally.checks[:8]))).partition("trials")[2]


def test_what_passed_is_counted_and_not_listed() -> None:
    passed = check(Outcome.EXACT, "sequence=7", note="said nothing")
    text = full_text(report_of(tally=GOOD + Tally((passed, BAD))))
    assert "different: batch=5: logits differs by 0.5" in text
    assert "sequence=7" not in text


@pytest.mark.parametrize(
    ("calls", "text"), [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((2, 3, 4), "2 to 4"), ((0, 2, 3), "0, 2, 3")]
)
def test_calls_are_listed_shortly(calls: tuple[int, ...], text: str) -> None:
    assert (
        full_text(report_of(replace(graph_of(), calls=calls))).splitlines()[1].rstrip()
        == f"main (torch), calls {text}".rstrip()
    )


def test_a_report_prints_as_tables_in_a_terminal() -> None:
    stream = io.StringIO()
    Console(file=stream, width=118, force_terminal=True).print(report_of(NARROW))
    assert "\x1b[" in stream.getvalue()
    assert "verdict: \x1b[1;32mverified" in stream.getvalue()


def test_trials_are_counted_by_kind() -> None:
    lines = [
        line
        for line in full_text(report_of(tally=GOOD + Tally((BAD,)))).splitlines()
        if "observed" in line or "unseen" in line
    ]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert ["observed", "1", "1", "0"] in cells
    assert ["unseen", "1", "2", "1e-06"] in cells
