"""``onlooker export --diffusers``: a saved pipeline, from its folder to a folder of files for each part."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from onlooker.cli import main
from tiny_pipeline import Autoencoder, Denoiser, TextEncoder


class Coder(Autoencoder):
    """With the dtype that parts of diffusers have."""

    dtype = torch.float32


class Pipeline:
    """Text to image, with the arguments of a pipeline of diffusers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        parts = {"text_encoder": TextEncoder(), "unet": Denoiser(), "vae": Coder(), "never": torch.nn.Identity()}
        self.components: dict[str, Any] = {**parts, "scheduler": object(), "tokenizer": object()}

    def to(self, dtype: torch.dtype) -> None:
        assert dtype == torch.float32

    def set_progress_bar_config(self, disable: bool) -> None:
        assert disable

    def __call__(
        self, prompt: list[str], height: int | None = None, num_inference_steps: int = 50, output_type: str = "pil"
    ) -> Any:
        assert output_type == "pt"
        size = (height or 8) // 2
        states = self.components["text_encoder"](torch.arange(5 * len(prompt)).reshape(-1, 5))
        latents = torch.linspace(-1, 1, len(prompt) * 16 * size).reshape(-1, 4, size, 4)
        for step in range(num_inference_steps):
            latents = latents - 0.1 * self.components["unet"](latents, torch.tensor(step), states)
        return SimpleNamespace(images=self.components["vae"].decode(latents))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved pipeline, and a package that reads it."""
    place = tmp_path / "saved"
    for part in ("text_encoder", "unet", "vae", "never", "scheduler", "tokenizer"):
        (place / part).mkdir(parents=True)
        (place / part / "config.json").write_text(json.dumps({"part": part}))
    (place / "unet" / "diffusion_pytorch_model.safetensors").write_text("weights")
    (place / "model_index.json").write_text("{}")
    diffusers: Any = ModuleType("diffusers")
    diffusers.DiffusionPipeline = SimpleNamespace(from_pretrained=lambda *_, **__: Pipeline())
    monkeypatch.setitem(sys.modules, "diffusers", diffusers)
    return place


def run(*argv: object) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main([str(part) for part in argv], stdout, stderr), stdout.getvalue(), stderr.getvalue()


def test_each_part_is_a_folder_with_a_model_that_runs(folder: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    code, stdout, stderr = run("export", "--diffusers", folder, "--to", "onnx", "--out", out)
    assert code == 0, stdout + stderr
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    models = {f"{part}/model.onnx" for part in ("text_encoder", "unet", "vae_encoder", "vae_decoder")}
    assert models <= files
    assert {"model_index.json", "scheduler/config.json", "tokenizer/config.json"} <= files
    assert not [name for name in files if name.startswith("never/") or name.endswith(".safetensors")]
    assert json.loads((out / "vae_decoder" / "config.json").read_text()) == {"part": "vae"}
    parts = Pipeline().components
    latents = torch.randn(3, 4, 5, 7)
    states = torch.randn(3, 6, 8)
    session = onnxruntime.InferenceSession(out / "unet" / "model.onnx")
    given = {"sample": latents.numpy(), "timestep": torch.tensor(1).numpy(), "states": states.numpy()}
    expected = parts["unet"](latents, torch.tensor(1), states)
    assert torch.allclose(torch.from_numpy(session.run(None, given)[0]), expected, atol=1e-5)
    pictures = torch.randn(2, 3, 8, 12)
    session = onnxruntime.InferenceSession(out / "vae_encoder" / "model.onnx")
    encoded = torch.from_numpy(session.run(None, {"x": pictures.numpy()})[0])
    assert torch.allclose(encoded, parts["vae"].encode(pictures), atol=1e-5)


class Sided(Denoiser):
    """Computes otherwise where the height is odd, as a unet does that halves it."""

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        found = super().forward(sample, timestep, states)
        return found if sample.shape[2] % 2 == 0 else found.flip(2)


class SidedPipeline(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        self.components["unet"] = Sided()


@pytest.mark.slow
def test_the_graph_of_the_calls_that_were_made_is_the_first_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    read = SimpleNamespace(from_pretrained=lambda *_, **__: SidedPipeline())
    monkeypatch.setattr(sys.modules["diffusers"], "DiffusionPipeline", read)
    out = tmp_path / "out"
    code, stdout, stderr = run("export", "--diffusers", folder, "--to", "onnx", "--out", out, "--no-verify")
    assert code == 0, stdout + stderr
    assert not (out / "unet" / "model_2.onnx").exists()  # no call took the other side
    given = {"sample": torch.randn(2, 4, 8, 12), "timestep": torch.tensor(1), "states": torch.randn(2, 6, 8)}
    session = onnxruntime.InferenceSession(out / "unet" / "model.onnx")
    found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0]
    expected = SidedPipeline().components["unet"](**given)
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)


def test_what_is_no_saved_pipeline_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, stderr = run("export", "--diffusers", tmp_path)
    assert (code, "has no model_index.json" in stderr) == (1, True)
    code, _, stderr = run("export", "--diffusers", folder, "--to", "genai", "--out", tmp_path / "out")
    assert (code, "[one-model-only]" in stderr) == (1, True)
    monkeypatch.setattr(Pipeline, "__call__", lambda self, **_: 1 / 0)
    code, _, stderr = run("export", "--diffusers", folder)
    assert (code, "[no-natural-use]" in stderr, "ZeroDivisionError" in stderr) == (1, True, True)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    code, _, stderr = run("export", "--diffusers", folder)
    assert (code, "[missing-package]" in stderr) == (1, True)
