"""The report for a person: short, the verdict first, what is refused with the line that changes it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
import torch
from rich.console import Console

from onlooker import InputObserver, Program
from onlooker.core.call import Parameter, Signature
from onlooker.core.contents import GraphContents, Outputs
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.core.path import Name, Path
from onlooker.core.plan import Fill, LeafPlan, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import ConstantSpec
from onlooker.core.structure import Structure
from onlooker.core.verdict import Check, Focus, Outcome, Tally
from onlooker.report.brief import Section, sections_of
from onlooker.report.data import graph_report
from onlooker.report.refused import refusals_of, served_together
from onlooker.report.report import Report

IDS, MASK, FLAG = (Path((Name(name),)) for name in ("ids", "mask", "flag"))
LINE = "model.py:12 in forward: if n > 64:"


def plan_of(name: str = "main", *, flag: bool = True, length: str = "n") -> Plan:
    return Plan(
        name,
        Structure(),
        (
            LeafPlan(IDS, "torch.int64", "cpu", (Expression.parse("batch"), Expression.parse(length))),
            LeafPlan(MASK, "torch.float32", "cpu", (Expression.parse("batch"),), fill=Fill("ones")),
            LeafPlan(FLAG, constant=ConstantSpec(flag)),
        ),
        (Symbol("batch", (2, 3)), Symbol("n", (5, 9), 1)),
    )


def contract_of(*regions: tuple[str, ...], line: str = LINE) -> Contract:
    return Contract(tuple(Region(tuple(Constraint(text, Origin.MODEL, line) for text in region)) for region in regions))


def report_of(*graphs: tuple[Plan, Contract], tally: Tally | None = None, **more: Any) -> Report:
    kinds = (("float32", ("batch", "2")), ("float32", ("n",)))
    outputs = Outputs(Structure(), ("logits", "present.0.key"), (True, True), (None, None), kinds=kinds)
    contents = [
        GraphContents(plan, {}, outputs, "torch", {"batch": 3, "n": 5}, contract=contract) for plan, contract in graphs
    ]
    rows = tuple(graph_report(graph, traffic=[({"batch": 2, "n": 5}, 3)]) for graph in contents)
    groups = served_together(contents)
    signature = Signature(tuple(Parameter(name) for name in ("ids", "mask", "flag", "labels")))
    return Report(
        "lib.Model",
        "forward",
        rows,
        tally or Tally((Check("observed", "call 0", Outcome.EXACT), Check("unseen", "n=7", Outcome.EXACT))),
        served=tuple(group.served for group in groups),
        refusals=refusals_of(contents, groups, rows, signature),
        calls=4,
        **more,
    )


def lines(report: Report, heading: str) -> tuple[str, ...]:
    return next((section.lines for section in sections_of(report) if section.heading == heading), ())


def test_the_verdict_stands_first_and_the_sections_in_one_order() -> None:
    report = report_of((plan_of(), contract_of(())))
    assert str(report).splitlines()[0] == "verdict: verified"
    headings = ["program", "trials", "graphs", "sizes", "inputs", "outputs", "refused", "run", "more"]
    assert [section.heading for section in sections_of(report)] == headings


def test_inputs_have_dtypes_shapes_and_what_may_be_left_out() -> None:
    report = report_of((plan_of(), contract_of(())))
    assert lines(report, "inputs") == (
        "ids   int64[batch, n]",
        "mask  float32[batch]   may be left out: ones",
        "constants: flag=True",
    )
    assert lines(report, "outputs") == ("logits         float32[batch, 2]", "present.0.key  float32[n]")
    assert lines(report, "graphs") == ("main serves 3 of 4 watched calls",)
    assert lines(report, "sizes") == ("batch 1 and more (watched 2); n 1 and more (watched 5)",)


class Largest(torch.nn.Module):
    """The largest numbers of each row."""

    def forward(self, x: torch.Tensor, k: int = 2) -> torch.Tensor:
        return x.topk(k, -1).values


def test_an_int_that_a_call_leaves_out_was_its_default() -> None:
    observer, model = InputObserver(), Largest()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5))
        model(torch.randn(3, 6), k=3)
    assert re.search(r"\bk [^;]*\(watched 2, 3\)", observer.export().report.text())


def test_an_or_that_covers_everything_is_no_condition() -> None:
    report = report_of((plan_of(), contract_of(("n >= 3", "batch >= 2"), ("n < 3",), ("batch == 1",))))
    assert lines(report, "sizes")[0].startswith("batch 1 and more (watched 2); n 1 and more")
    assert not any("sizes" in line for line in lines(report, "refused"))
    assert "one of 3" in report.text(full=True), "all of it stands behind full"


def test_what_is_refused_has_its_line_and_the_call_that_changes_it() -> None:
    report = report_of((plan_of(), contract_of(("n <= 64",))))
    assert lines(report, "refused") == (
        f"sizes other than n 1 to 64 ({LINE}): observer.export(ranges={{'n': (1, None)}})",
        "calls with labels, which no call had: watch such a call, and export again",
        "other values of flag: watch such a call, and export again",
    )


def test_two_graphs_serve_together_what_neither_serves_alone() -> None:
    report = report_of((plan_of(), contract_of(("n <= 64",))), (plan_of("long"), contract_of(("n > 64",))))
    assert lines(report, "sizes")[0].startswith("batch 1 and more (watched 2); n 1 and more")
    assert [line.partition(": ")[2] for line in lines(report, "graphs")] == ["n 1 to 64", "n 65 and more"]
    assert not any("sizes" in line for line in lines(report, "refused"))


def test_graphs_of_other_constants_are_told_apart_by_them() -> None:
    report = report_of((plan_of(), contract_of(())), (plan_of("off", flag=False), contract_of(("n <= 64",))))
    assert [line.partition(": ")[2] for line in lines(report, "graphs")] == [
        "all sizes; flag=True",
        "n 1 to 64; flag=False",
    ]
    assert lines(report, "refused")[0].startswith("off: sizes other than n 1 to 64")
    assert not any("flag" in line for line in lines(report, "refused")), "both of its values were watched"


def test_graphs_of_other_arguments_are_told_apart_by_them() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x if mask is None else x * mask * 0.5

    observer = InputObserver()
    with observer(model := Masked()):
        model(torch.ones(2, 3))
        model(torch.ones(3, 3), torch.ones(3, 3))
    graphs = lines(observer.export().report, "graphs")
    assert graphs == (
        "graph_0 serves 1 of 2 watched calls: with mask; all sizes",
        "graph_1 serves 1 of 2 watched calls: without mask; all sizes",
    )


def test_graphs_that_take_numbers_alone_want_other_calls() -> None:
    report = report_of((plan_of(), contract_of(("n == 5",))), (plan_of("two"), contract_of(("n == 9",))))
    assert lines(report, "refused")[0].endswith(
        "sizes other than n 5 or 9 (" + LINE + "): watch such a call, and export again"
    )


def test_many_conditions_are_counted_and_two_are_shown() -> None:
    regions = [(f"n >= {size}", f"batch >= {9 - size}") for size in range(2, 8)]
    line = next(each for each in lines(report_of((plan_of(), contract_of(*regions))), "refused") if "none of" in each)
    assert "none of 6 conditions, the first two: (n 2 and more and batch 7 and more) or (" in line
    assert "see what is refused" in lines(report_of((plan_of(), contract_of(*regions))), "sizes")[-1]


def test_a_term_that_nobody_reads_is_counted() -> None:
    monster = "batch*((n + (2 + -1 * (n % 2)) % 2) // 2 + (4 + -1 * (n % 4)) % 4) >= 3"
    (line, *_) = lines(report_of((plan_of(), contract_of((monster,)))), "refused")
    assert line == "sizes that break a condition on computed sizes: watch such a call, and export again"


def test_the_first_failures_are_named_and_the_others_counted() -> None:
    failed = tuple(Check("unseen", f"n={size}", Outcome.DIFFERENT, note="differs") for size in range(5))
    report = report_of((plan_of(), contract_of(())), tally=Tally(failed))
    assert str(report).startswith("verdict: not verified: 5 of 5 trials failed")
    assert lines(report, "failed") == (*(f"n={size}: different, differs" for size in range(3)), "... and 2 more")


def test_trials_that_were_left_out_are_told() -> None:
    seen = Check("observed", "call 0", Outcome.EXACT, focus=Focus.OBSERVED)
    report = report_of((plan_of(), contract_of(())), tally=Tally((seen, seen), left_out=190))
    assert lines(report, "trials") == (
        "2 of 2 agree, largest difference 0: 2 watched calls, 0 further trials",
        "190 trials were left out, since each run of the model is long: verify() again goes on",
    )


def test_no_line_is_wider_than_the_terminal_and_none_is_markup() -> None:
    report = report_of((plan_of("[red]"), contract_of(("n <= 64",))))
    stream = io.StringIO()
    Console(file=stream, width=60).print(report)
    assert max(map(len, stream.getvalue().splitlines())) <= 60
    assert "[red]" in stream.getvalue()


def test_a_notebook_shows_the_same_lines() -> None:
    report = report_of((plan_of(), contract_of(("n <= 64",))))
    shown = unescape(re.sub("<[^>]*>", "", report._repr_html_()))
    assert "verdict: verified" in shown
    assert all(line in shown for section in sections_of(report) for line in section.lines)


def test_a_section_is_left_out_where_it_has_no_line() -> None:
    report = replace(report_of((plan_of(), contract_of(()))), refusals=())
    assert Section("refused", ()) not in sections_of(report)
    assert lines(report, "refused") == ()


class Layers(torch.nn.Module):
    def forward(self, x: torch.Tensor, past: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.cat([each, x], 1) * 2 for each in past]


@pytest.fixture(scope="module")
def layered() -> Program:
    observer = InputObserver()
    model = Layers()
    with observer(model):
        for rows, length, past in ((2, 5, 3), (3, 7, 4)):
            model(torch.randn(rows, length, 4), [torch.randn(rows, past, 4) for _ in range(24)])
    program = observer.export(probe=False)
    program.verify(trials=6)
    return program


def test_a_program_of_many_layers_has_a_short_report(layered: Program) -> None:
    text = str(layered.report)
    assert len(text.splitlines()) <= 25
    assert (
        "past[0..23]  float32[batch, past_dim_1, 4]" in " ".join(text.split()).replace("  ", " ")
        or "past[0..23]" in text
    )
    assert "output_0..23" in text or "output" in text
    assert len(layered.report.text(full=True).splitlines()) > 40


def test_shapes_of_outputs_are_in_the_symbols_of_the_plan(layered: Program) -> None:
    (graph,) = layered.report.graphs
    names = {symbol.name for symbol in layered.plans[0].symbols}
    shape = graph.outputs[0].kind.removeprefix("float32[").removesuffix("]").split(", ")
    assert shape[0] in names
    assert shape[1].count("+") == 1
    assert shape[2] == "4"
