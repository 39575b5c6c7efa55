"""Saved models whose weights go into the files of a program one at a time."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import onlooker
from onlooker import low_memory
from onlooker.cli import low_memory as command
from onlooker.cli.command_line import main
from onlooker.core.errors import ExportError, SavedFileError, UnsupportedError
from onlooker.targets import stand_ins
from onlooker.targets.safetensors_files import Checkpoint, write_safetensors
from onlooker.targets.stand_ins import StandIns

transformers = pytest.importorskip("transformers")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a Llama of several files, and gives its folder."""

    def of(dtype: torch.dtype, tied: bool) -> Path:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
        )
        model = transformers.LlamaForCausalLM(config).to(dtype)
        model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
        return tmp_path / "model"

    return of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small matrices stand for themselves, as those of large models do."""
    monkeypatch.setattr(low_memory, "SMALLEST", 4096)
    monkeypatch.setattr(stand_ins, "_AT_ONCE", 1024)


def run(*argv: object) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main([str(each) for each in argv], stdout, stderr), stdout.getvalue(), stderr.getvalue()


def scores(model: Any) -> torch.Tensor:
    ids = torch.arange(18).reshape(2, 9) * 5
    positions = torch.arange(9).expand(2, 9).clone()
    with torch.no_grad():
        found: torch.Tensor = model(
            ids, position_ids=positions, use_cache=True, logits_to_keep=1, return_dict=True
        ).logits
    return found


@pytest.mark.parametrize(
    ("to", "dtype", "options", "most"),
    [
        pytest.param("onnx", torch.bfloat16, (), 1e-5, marks=pytest.mark.slow),
        pytest.param("onnx", torch.float16, ("--dtype", "float16"), 2e-3, marks=pytest.mark.slow),
        ("onnx", torch.float16, ("--precision", "int8"), 0.05),
        pytest.param("openvino", torch.bfloat16, (), 1e-5, marks=pytest.mark.slow),
        pytest.param("openvino", torch.float16, ("--dtype", "float16"), 2e-3, marks=pytest.mark.slow),
        pytest.param("torch", torch.float16, (), 1e-6, marks=pytest.mark.slow),
        pytest.param("torch", torch.bfloat16, ("--precision", "int4"), 0.3, marks=pytest.mark.slow),
    ],
)
def test_weights_go_from_folder_to_folder(
    saved: Any, small: None, to: str, dtype: Any, options: Any, most: float, tmp_path: Path
) -> None:
    folder, out = saved(dtype, dtype == torch.bfloat16), tmp_path / "out"
    assert (folder / "model.safetensors.index.json").exists()
    code, text, error = run("export", "--model", folder, "--to", to, "--low-memory", "--out", out, *options)
    assert code == 0, error
    large = 23 if dtype == torch.bfloat16 else 24  # tied scores are the table of the embedding
    assert "verified on a twin of 2 layers with random weights; the whole was not run." in text
    assert f" {large - 1} weights," in text or f" {large} weights," in text, text
    made = onlooker.load(out)
    assert not made.report.verified  # the whole never is
    kind = torch.float16 if "--dtype" in options else torch.float32
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=kind).eval()
    difference = (scores(onlooker.generation(made, out)) - scores(model)).abs().max()
    assert difference <= most * max(1.0, float(scores(model).abs().max()))


def test_a_weight_that_is_not_in_the_folder_is_refused(saved: Any, small: None) -> None:
    folder = saved(torch.float32, False)
    cls, config = command._class_and_configuration(folder)
    config.num_hidden_layers = 4
    with pytest.raises(UnsupportedError, match="not in the folder"):
        low_memory.model_of_folder(cls, config, Checkpoint(folder), torch.float32, StandIns())


def test_other_options_are_refused(tmp_path: Path) -> None:
    for options in (
        ["--model", "x"],
        ["--model", "x", "--out", "y", "--to", "aoti"],
        ["--model", "x", "--out", "y", "--no-verify"],
        ["--model", "x", "--out", "y", "--to", "openvino", "--precision", "int8"],
    ):
        code, _, error = run("export", *options, "--low-memory")
        assert code == 1
        assert "low-memory" in error


def test_files_are_those_of_the_library(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.arange(4), "é": torch.ones(7).to(torch.bfloat16)}
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    write_safetensors(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()
    read = Checkpoint(tmp_path)
    assert set(read) == set(load_file(tmp_path / "theirs"))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_a_file_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    write_safetensors({"a": torch.ones(8)}, tmp_path / "model.safetensors", {})
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-4])
    with pytest.raises(SavedFileError, match="does not fit"):
        Checkpoint(tmp_path)


def test_weights_of_a_twin_lie_in_one_memory_where_they_are_alike() -> None:
    model = torch.nn.ModuleList(torch.nn.Linear(256, size, bias=False) for size in (1024, 512, 256, 512))
    with torch.no_grad():
        model[2].weight.mul_(3)
    before = [weight.detach().clone() for weight in model.parameters()]
    command._overlap_weights(model)
    places = [weight.data_ptr() - model[0].weight.data_ptr() for weight in model.parameters()]
    assert places[0] == 0
    assert (places[1], places[3]) == (64 * 4, 3 * 64 * 4)
    assert not 0 <= places[2] < 4 * 256 * 1024  # other numbers
    assert [weight.shape for weight in model.parameters()] == [weight.shape for weight in before]
    assert all(torch.equal(model[at].weight, before[at]) for at in (0, 2))
    assert not torch.equal(model[1].weight, model[3].weight)


def test_what_is_computed_from_weights_is_found() -> None:
    known = StandIns()
    weights = known.pool([64, 64], torch.float32)
    for number, weight in enumerate(weights):
        known.add(weight, lambda number=number: torch.full((64,), float(number)), f"w{number}")
    with stand_ins.using(known), stand_ins.without_numbers():
        whole = weights[1].view(8, 8).numpy()
        assert (stand_ins.written(whole.T) == 1).all()
        stand_ins.check_found([whole, whole.T], "main")
        for wrong in (whole[1:], whole.sum(keepdims=True), whole + 1):
            with pytest.raises(ExportError, match="computed from weights"):
                stand_ins.check_found([wrong], "main")
    assert stand_ins.written(whole) is whole
