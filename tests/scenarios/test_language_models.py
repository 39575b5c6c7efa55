"""The main job: a stock model watched through its own generate(), exported with no patch, exact on unseen sizes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from onlooker import InputObserver, OnlookerWarning, Program
from onlooker.core.verdict import Focus, Outcome
from onlooker.zoo import tiny_model

SIZES = [
    {"batch": batch, "sequence": sequence, "past_sequence": past}
    for batch, sequence, past in itertools.product((1, 3, 5), (1, 7), (0, 30))
]


@pytest.fixture(scope="module")
def watched() -> Any:
    """An observer of each language model; observed once per module."""
    observers: dict[str, InputObserver] = {}

    def get(name: str) -> InputObserver:
        if name not in observers:
            tiny = tiny_model(name)
            observers[name] = InputObserver()
            with observers[name](tiny.model):
                tiny.watch()
        return observers[name]

    return get


@pytest.fixture(scope="module")
def programs(watched: Any) -> Any:
    found: dict[tuple[str, str], Program] = {}

    def get(name: str, target: str) -> Program:
        if (name, target) not in found:
            found[name, target] = watched(name).export(to=target)
        return found[name, target]

    return get


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_one_generate_gives_a_program_that_holds_on_every_size(programs: Any, name: str, target: str) -> None:
    program = programs(name, target)
    assert len(program.graphs) == 1
    tally = program.verify(sizes=SIZES)
    assert tally.verified, program.report
    ordinary = [check for check in tally.checks if check.focus is not Focus.EXTREME]
    assert max(check.difference for check in ordinary) <= 1e-5
    tried = [dict(check.sizes) for check in tally.checks]
    assert all(sizes in tried for sizes in SIZES)
    assert any(check.label.endswith(", padded") for check in tally.checks)
    assert any(check.label.endswith(", not padded") for check in tally.checks)


@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.slow
def test_batch_sequence_and_past_are_three_symbols_and_the_mask_is_their_sum(programs: Any, target: str) -> None:
    program = programs("llama", target)
    (plan,) = program.plans
    assert sorted(s.name for s in plan.symbols) == ["batch", "past_sequence", "sequence"]
    rows = {row.axis: row.obtained for row in program.report.graphs[0].axes}
    assert rows["attention_mask.shape[1]"] == "past_sequence + sequence"
    assert rows["input_ids.shape[0]"] == "batch"
    assert rows["input_ids.shape[1]"] == "sequence"
    assert rows["past_key_values.layers[1].values.shape[2]"] == "past_sequence"
    assert program.report.verdict.startswith("not verified") or program.tally.total


@pytest.mark.slow
def test_the_names_in_the_onnx_file_are_readable(programs: Any) -> None:
    model = programs("llama", "onnx").graphs[0].artifact.model_proto
    inputs = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    outputs = {o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
    assert inputs["input_ids"] == ["batch", "sequence"]
    assert inputs["attention_mask"] == ["batch", "past_sequence + sequence"]
    assert inputs["past_key_values.0.key"] == ["batch", 2, "past_sequence", 8]
    assert outputs["logits"][0] == "batch"
    assert outputs["present.1.value"] == ["batch", 2, "past_sequence + sequence", 8]


def test_a_mask_of_another_length_is_refused_not_answered(programs: Any) -> None:
    program = programs("llama", "torch")
    values = {"input_ids": torch.ones(2, 3, dtype=torch.int64), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    with pytest.raises(ValueError, match="No graph of this program takes the call"):
        program(**values, position_ids=torch.arange(3).repeat(2, 1), use_cache=True, logits_to_keep=1, return_dict=True)


def test_the_caches_that_come_out_can_go_in_again(programs: Any, watched: Any) -> None:
    program, model = programs("llama", "torch"), tiny_model("llama").model
    prompt = torch.arange(3, 12).reshape(1, 9)
    fixed = {"use_cache": True, "logits_to_keep": 1, "return_dict": True}
    mask = torch.ones(1, 9, dtype=torch.int64)
    expected = got = None
    ids, cache, own = prompt, None, None
    for step in range(4):
        positions = torch.arange(mask.shape[1] - ids.shape[1], mask.shape[1]).unsqueeze(0)
        with torch.no_grad():
            expected = model(ids, mask, positions, cache, **fixed)
            got = program(ids, mask, positions, own, **fixed)
        torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=1e-5)
        assert type(got.past_key_values) is type(expected.past_key_values), step
        cache, own = expected.past_key_values, got.past_key_values
        ids = expected.logits[:, -1:].argmax(dim=-1)
        mask = torch.ones(1, mask.shape[1] + 1, dtype=torch.int64)


@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.one_in(4)
def test_encoders_are_verified_too(programs: Any, name: str, target: str) -> None:
    program = programs(name, target)
    tally = program.verify()
    assert tally.verified, program.report
    assert {check.outcome for check in tally.checks} == {Outcome.EXACT}


@pytest.mark.slow
def test_an_attention_that_sees_nothing_needs_the_repair(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, the converter gives zeros for masked rows, and targets/masked_rows.py may go."""
    from onlooker.targets.onnx import convert

    monkeypatch.setattr(convert, "masked_rows_give_zeros", lambda graph: None)
    with pytest.warns(OnlookerWarning, match="serves less than the program of torch"):
        unrepaired = programs("llama", "torch").to("onnx")
    failed = [check for check in unrepaired.verify().checks if not check.passed]
    assert {check.outcome for check in failed} == {Outcome.DIFFERENT}


def test_the_repair_leaves_the_graph_as_it_was(programs: Any) -> None:
    from onlooker.targets.masked_rows import masked_rows_give_zeros
    from onlooker.torch_internals.graph_modules import changed_graphs

    artifact = programs("llama", "torch").graphs[0].artifact
    before = str(artifact.graph)
    with changed_graphs(artifact, masked_rows_give_zeros):
        added = artifact.graph.find_nodes(op="call_function", target=torch.ops.aten.where.ScalarOther)
        assert len(added) == 2
        assert str(artifact.graph) != before
    assert str(artifact.graph) == before


def test_probes_find_the_batch_that_one_prompt_hides() -> None:
    tiny = tiny_model("gpt2")
    observer = InputObserver()
    with observer(tiny.model), torch.no_grad():
        tiny.model.generate(torch.arange(3, 13).reshape(1, 10), max_new_tokens=3, do_sample=False)
    (plan,) = observer.plans()
    assert plan.symbol("batch").observed[:2] == (1, 2)
    assert any("probe" in row for row in plan.symbol("batch").evidence.rows)
    (unprobed,) = observer.plans(probe=False)
    assert "batch" not in {symbol.name for symbol in unprobed.symbols}
