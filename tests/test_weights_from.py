"""Models of the device meta, observed while their weights stay in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import low_memory
from onlooker.core.errors import SavedFileError, UnsupportedError
from onlooker.targets.safetensors_files import write_safetensors


class Scores(torch.nn.Module):
    """Scores by the table of ids itself, whose weights are there once."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(40, 32)
        self.layer = torch.nn.Linear(32, 32)
        self.head = torch.nn.Linear(32, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.relu(self.layer(self.table(ids))))
        return scores


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scores:
    """A model whose weights are in a folder, each large enough to stay there."""
    monkeypatch.setattr(low_memory, "SMALLEST", 1024)
    torch.manual_seed(0)
    model = Scores().eval()
    names = ("table.weight", "layer.weight", "layer.bias")
    state = model.state_dict()
    write_safetensors({name: state[name] for name in names}, tmp_path / "model.safetensors", {})
    return model


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.arange(rows * length).reshape(rows, length) % 40


def exported(model: Any, to: str) -> onlooker.Program:
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        model(ids(2, 5))
        model(ids(3, 7))
    return observer.export(to=to)


@pytest.mark.parametrize("to", ["torch", "onnx", "openvino"])
def test_a_program_of_a_meta_model_has_the_weights_of_the_folder(whole: Scores, to: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Scores().eval()
    with onlooker.weights_from(model, tmp_path) as watched:
        program = exported(watched, to)
        with pytest.raises(UnsupportedError, match="not in memory"):
            program(ids(2, 4))
        with pytest.raises(UnsupportedError, match="not in memory"):
            program.verify()
        with pytest.raises(UnsupportedError, match="not in memory"):
            program.save(tmp_path / f"one{'.pt2' if to == 'torch' else '.onnx' if to == 'onnx' else '.xml'}")
        with pytest.raises(UnsupportedError, match="not in memory"):
            program.save(tmp_path / "late", values=True)
        program.save(tmp_path / "program")
    assert all(weight.is_meta for weight in model.parameters())
    with pytest.raises(UnsupportedError, match="not in memory"):
        program.save(tmp_path / "late")
    read = onlooker.load(tmp_path / "program")
    assert not read.report.verified
    for rows, length in ((4, 9), (1, 1)):
        torch.testing.assert_close(read(ids(rows, length)), whole(ids(rows, length)))


def test_a_tensor_that_is_not_in_the_folder_is_refused(whole: Scores, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Scores()
        model.register_buffer("scale", torch.ones(3))
    with pytest.raises(UnsupportedError, match="scale and 0 more"), onlooker.weights_from(model, tmp_path):
        raise AssertionError
    with torch.device("meta"):
        model = Scores()
        model.layer = torch.nn.Linear(16, 32)
    with (
        pytest.raises(UnsupportedError, match=r"size mismatch for layer\.weight"),
        onlooker.weights_from(model, tmp_path),
    ):
        raise AssertionError


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(SavedFileError) as found, onlooker.weights_from(Scores(), folder):
            raise AssertionError
        assert found.value.slug == "file-missing"
        assert found.value.message == f"There is no file {folder / 'model.safetensors'}."
        assert "a folder with model.safetensors, or with model.safetensors.index.json" in str(found.value)


@pytest.mark.slow
def test_a_meta_model_of_transformers_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(low_memory, "SMALLEST", 4096)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=128, num_hidden_layers=2, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    with torch.device("meta"):
        without = transformers.LlamaForCausalLM(config).eval()
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with onlooker.weights_from(without, tmp_path / "model") as watched:
        observer = onlooker.InputObserver()
        with observer(watched):
            watched.generate(ids(2, 5), **options)
        observer.export().save(tmp_path / "program")
    made = onlooker.generation(tmp_path / "program", config)
    assert made.generate(ids(2, 6), **options).equal(model.generate(ids(2, 6), **options))
