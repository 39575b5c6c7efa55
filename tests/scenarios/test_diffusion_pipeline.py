"""A pipeline of diffusers in a script that nobody edited: from watching to an equal picture."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker.cli import main
from tiny_diffusion import stable_diffusion

pytest.importorskip("diffusers", reason="diffusers is not installed, whose pipeline is watched here")

#: the script of a user: it knows nothing of onlooker
DRAW = """
import sys
import torch
from diffusers import StableDiffusionPipeline

pipe = StableDiffusionPipeline.from_pretrained("tiny-sd")
for size, *prompts in (argument.split(",") for argument in sys.argv[1:]):
    generator = torch.Generator().manual_seed(0)
    images = pipe(prompts, height=int(size), width=int(size), num_inference_steps=2, generator=generator).images
    images[0].save(f"picture{size}.png")
"""
APP = """
from diffusers import StableDiffusionPipeline


def make():
    return StableDiffusionPipeline.from_pretrained("tiny-sd")
"""
ENTRIES = ("--entry", "text_encoder", "--entry", "unet", "--entry", "vae.decode")


def run(*argv: object) -> str:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main([str(part) for part in argv], stdout, stderr)
    assert code == 0, stdout.getvalue() + stderr.getvalue()
    return stdout.getvalue()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved pipeline, the script that draws with it, and what was recorded of that."""
    folder = tmp_path_factory.mktemp("pipeline")
    stable_diffusion(folder).save_pretrained(folder / "tiny-sd")
    (folder / "draw.py").write_text(DRAW)
    (folder / "app.py").write_text(APP)
    command = ["run", "--out", "seen", "--watch", "AutoencoderKL.decode", "draw.py", "16,a cat", "24,a cat,a dog"]
    subprocess.run(
        [sys.executable, "-m", "onlooker", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(onlooker.__file__).parent.parent)},
        check=True,
    )
    assert (folder / "picture16.png").is_file()
    return folder


@pytest.mark.slow
def test_the_report_names_the_parts_and_their_axes(watched: Path) -> None:
    found = json.loads(run("report", watched / "seen", "--json"))["report"]["entries"]
    axes = {entry["place"]: {row["path"]: row["size"] for row in entry["axes"]} for entry in found}
    assert set(axes) == {"pipe.text_encoder", "pipe.unet", "pipe.vae.decode"}
    assert axes["pipe.text_encoder"] == {"input_ids.shape[0]": "batch", "input_ids.shape[1]": "77"}
    assert axes["pipe.vae.decode"]["z.shape[0]"] == "batch"
    assert axes["pipe.vae.decode"]["z.shape[3]"] == axes["pipe.vae.decode"]["z.shape[2]"] == "z_dim_2"
    assert axes["pipe.unet"]["encoder_hidden_states.shape[0]"] == axes["pipe.unet"]["sample.shape[0]"] == "batch"


@pytest.mark.slow
@pytest.mark.parametrize(("target", "atol"), [("torch", 1e-6), ("onnx", 1e-5)])
def test_the_programs_draw_the_picture_of_the_model(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, atol: float
) -> None:
    from diffusers import StableDiffusionPipeline

    monkeypatch.chdir(watched)
    out = tmp_path / "programs"
    run("export", "seen", *ENTRIES, "--build", "app.py:make", "--to", target, "--out", out)
    programs: Any = onlooker.load(out)
    pipe = StableDiffusionPipeline.from_pretrained("tiny-sd")
    pipe.set_progress_bar_config(disable=True)

    def draw(prompts: list[str], size: int, steps: int) -> torch.Tensor:
        found: torch.Tensor = pipe(
            prompts,
            height=size,
            width=size + 8,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
        ).images
        return found

    models = {"text_encoder": pipe.text_encoder, "unet": pipe.unet, "vae_decode": pipe.vae}
    # sizes that were watched, and other prompts, numbers of pictures and of steps, and sizes
    for prompts, size, steps in ((["a cat"], 16, 2), (["a bird", "a fish", "two"], 40, 3)):
        expected = draw(prompts, size, steps)
        with programs.installed(models) as served:
            given = draw(prompts, size, steps)
        assert given.shape == (len(prompts), 3, size, size + 8)
        assert torch.allclose(given, expected, rtol=0, atol=atol)
        assert [sum(one.calls.values()) for one in served.values()] == [2, steps, 1]
        assert not any(one.eager for one in served.values())
