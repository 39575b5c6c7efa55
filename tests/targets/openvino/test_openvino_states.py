"""Caches as the state of models of OpenVINO: what they hold before the first call, from call to call, and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, RejectedCallError, SavedFileError
from onlooker.zoo import tiny_model

openvino = pytest.importorskip("openvino")
transformers = pytest.importorskip("transformers")


#: what generate() gives to every call
CONSTANTS = {"use_cache": True, "logits_to_keep": 1, "return_dict": True}


class Watched:
    def __init__(self) -> None:
        tiny = tiny_model("llama")
        observer = InputObserver()
        with observer(tiny.model), torch.no_grad():
            tiny.watch()
        self.model, self.torch = tiny.model, observer.export()
        self.program = self.torch.to("openvino", stateful=True)


@pytest.fixture(scope="module")
def llama() -> Watched:
    return Watched()


def steps(model: Any, *lengths: int, batch: int = 3) -> list[dict[str, Any]]:
    """Calls in sequence, each with the cache of the one before left out, and what the model gives for it."""
    generator = torch.Generator().manual_seed(sum(lengths))
    cache, past, found = transformers.DynamicCache(config=model.config), 0, []
    for length in lengths:
        ids = torch.randint(3, 60, (batch, length), generator=generator)
        positions = torch.arange(past, past + length).expand(batch, length).contiguous()
        mask = torch.ones(batch, past + length, dtype=torch.int64)
        given = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions,
            "use_cache": True,
            "logits_to_keep": 1,
            "return_dict": True,
        }
        with torch.no_grad():
            expected = model(**given, past_key_values=cache)
        found.append({**given, "expected": expected.logits})
        past += length
    return found


def logits(program: Program, given: dict[str, Any]) -> torch.Tensor:
    values = {name: value for name, value in given.items() if name != "expected"}
    found: torch.Tensor = program(**values).logits
    return found


def last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, -1:]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(last(got), last(expected), atol=1e-5, rtol=1e-5)


def test_the_cache_is_neither_an_input_nor_an_output_of_the_model(llama: Watched) -> None:
    (graph,) = llama.program.graphs
    names = {name for port in graph.artifact.inputs for name in port.get_names()}
    assert names == {"input_ids", "attention_mask", "position_ids"}
    assert len(graph.artifact.outputs) == 1
    assert len(graph.artifact.get_variables()) == len(graph.outputs.names) - 1
    assert graph.keeps == ("past_key_values",)
    assert all(graph.exported_sizes.values())


def test_states_are_verified_from_every_cache_that_calls_may_have(llama: Watched) -> None:
    tally = llama.program.verify()
    assert tally.verified, llama.program.report
    assert {dict(check.sizes).get("past_sequence") for check in tally.checks} >= {0, 1}


def test_calls_without_a_cache_go_on_until_they_are_reset(llama: Watched) -> None:
    for lengths, batch in (((5, 1, 1, 3), 3), ((1, 1), 2)):
        llama.program.reset_state()
        for given in steps(llama.model, *lengths, batch=batch):
            assert close(logits(llama.program, given), given["expected"])


def test_a_call_with_a_cache_changes_nothing_that_is_kept(llama: Watched) -> None:
    llama.program.reset_state()
    first, second = steps(llama.model, 4, 1)
    assert close(logits(llama.program, first), first["expected"])
    (other,) = steps(llama.model, 7)
    other = {**other, "past_key_values": transformers.DynamicCache(config=llama.model.config)}
    assert close(logits(llama.program, other), other["expected"])
    assert close(logits(llama.program, second), second["expected"])


def test_a_refused_call_leaves_what_is_kept(llama: Watched) -> None:
    llama.program.reset_state()
    first, second = steps(llama.model, 4, 1)
    logits(llama.program, first)
    with pytest.raises(RejectedCallError):
        logits(llama.program, {**second, "attention_mask": torch.ones(3, 9, dtype=torch.int64)})
    assert close(logits(llama.program, second), second["expected"])


def test_a_saved_program_keeps_its_cache_and_so_does_its_file_alone(llama: Watched, tmp_path: Path) -> None:
    llama.program.save(tmp_path / "out")
    read = onlooker.load(tmp_path / "out")
    for given in steps(llama.model, 3, 1):
        assert close(logits(read, given), given["expected"])
    compiled = openvino.Core().compile_model(tmp_path / "out" / "main.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for lengths in ((3, 1, 1), (6, 2)):
        request.reset_state()
        for given in steps(llama.model, *lengths):
            feed = {name: given[name].numpy() for name in ("input_ids", "attention_mask", "position_ids")}
            found = request.infer(feed)["logits"]
            assert numpy.allclose(found[:, -1], given["expected"][:, -1].numpy(), atol=1e-5)


def test_generate_runs_on_states(llama: Watched) -> None:
    ids = torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(1))
    same = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 2):
        expected = llama.model.generate(ids, num_beams=beams, **same)
        with llama.program.installed(llama.model):
            assert torch.equal(llama.model.generate(ids, num_beams=beams, **same), expected)


def test_states_of_another_plan_are_damage(llama: Watched, tmp_path: Path) -> None:
    llama.program.save(tmp_path / "out")
    path = tmp_path / "out" / "main.xml"
    path.write_text(path.read_text().replace("past_key_values.0.key", "past_key_values.7.key"))
    with pytest.raises(SavedFileError, match="file-damaged"):
        onlooker.load(tmp_path / "out")


def test_a_model_without_a_cache_is_refused() -> None:
    model, observer = torch.nn.Linear(4, 2), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.ones(2, 4))
    with pytest.raises(ExportError, match="neither takes nor gives a cache") as caught:
        observer.export().to("openvino", stateful=True)
    assert caught.value.slug == "openvino-not-stateful"
