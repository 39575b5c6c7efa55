"""Programs in other precisions, and of checkpoints that are quantised already, serve as float ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.cli.commands import EMITTED
from onlooker.zoo import tiny_model
from quantised_layers import WordsByInput

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[0, 0, 5, 6, 7, 9], [3, 4, 5, 8, 9, 2]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
PLAIN = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
CASES = [("torch", "int8"), ("onnx", "int4"), ("openvino", "int8-static")]


def watched(model: Any) -> Program:
    observer = InputObserver()
    with observer(model, keep=16), torch.no_grad():
        model.generate(**PADDED, **PLAIN)
    return observer.export()


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Program]:
    torch.manual_seed(0)
    model = tiny_model("llama").model
    return model, watched(model)


def check_served(model: Any, program: Program, folder: Path) -> torch.Tensor:
    """The tokens of a program, which are the same in the model, without it, and from a folder; its
    emitters speak of the same sizes as those of the folder.
    """
    program.save(folder, values=True)
    loaded = onlooker.load(folder)
    tokens = onlooker.generation(folder, model.config).generate(**PADDED, **PLAIN)
    for one in (program, loaded):
        with one.installed(model) as served:
            assert torch.equal(model.generate(**PADDED, **PLAIN), tokens)
        assert served.eager == 0
        assert served.calls["main"] == 6
    for kind in EMITTED:
        assert str(program.emit(kind)) == str(loaded.emit(kind))
    assert loaded.check(program.recording).holds
    return tokens


@pytest.mark.parametrize(("target", "precision"), CASES)
@pytest.mark.slow
def test_a_precision_serves(llama: tuple[Any, Program], tmp_path: Path, target: str, precision: str) -> None:
    pytest.importorskip({"torch": "torch", "onnx": "onnxruntime", "openvino": "nncf"}[target])
    model, base = llama
    program = base.to(target, precision=precision)
    assert program.verify(trials=40).verdict.endswith(f"verified as {precision}")
    assert program.report.verified
    tokens = check_served(model, program, tmp_path / "out")
    loaded = onlooker.load(tmp_path / "out")
    assert loaded.graphs[0].options["precision"] == precision
    assert loaded.verify_saved().failed == 0
    if target == "onnx":
        check_genai(program, tmp_path / "genai", tokens)


def check_genai(program: Program, folder: Path, tokens: torch.Tensor) -> None:
    """ONNX Runtime GenAI generates the same tokens with the integers of the program."""
    genai = pytest.importorskip("onnxruntime_genai")
    absent = min(set(range(256)) - set(tokens.flatten().tolist()))
    program.save_genai(folder, generation_config={"eos_token_id": absent})
    model = genai.Model(str(folder))
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=12, batch_size=1, do_sample=False)
    generator = genai.Generator(model, search)
    generator.append_tokens(IDS[1:].int().numpy())
    while not generator.is_done():
        generator.generate_next_token()
    assert [int(token) for token in generator.get_sequence(0)] == tokens[1].tolist()


@pytest.mark.slow
def test_a_checkpoint_of_integers_serves(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = tiny_model("llama").model
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            old = getattr(layer.mlp, name)
            setattr(layer.mlp, name, WordsByInput(old.in_features, old.out_features, block=16))
    program = watched(model).to("onnx")
    assert program.verify(trials=12).failed == 0
    with torch.no_grad():
        wanted = model.generate(**PADDED, **PLAIN)
    tokens = check_served(model, program, tmp_path / "out")
    assert torch.equal(tokens, wanted)
    check_genai(program, tmp_path / "genai", tokens)
