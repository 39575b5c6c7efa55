"""``--entry``: parts of a pipeline, exported, shown and verified from the shell."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onlooker
from onlooker import Programs, Recording
from onlooker.cli import main
from onlooker.cli.entries import texts_by_entry

APP = """
import torch
from tiny_pipeline import Pipeline


def build():
    pipe = Pipeline()
    pipe.count = 0
    return pipe, pipe.use


def pipe():
    return Pipeline()


def unet():
    return Pipeline().unet


def other():
    pipe = Pipeline()
    torch.nn.init.zeros_(pipe.unet.inner.bias)
    return pipe.unet


def idle():
    pipe = Pipeline()
    return pipe, lambda: pipe.unet(torch.ones(2, 4, 3, 3), torch.tensor(1), torch.ones(2, 3, 8))
"""
ENTRIES = ("--entry", "unet", "--entry", "vae.decode")


def run(*argv: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(argv, stdout, stderr)
    return code, stdout.getvalue(), stderr.getvalue()


@pytest.fixture(scope="module", autouse=True)
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a pipeline, exported once; the current directory of every test here."""
    place = tmp_path_factory.mktemp("workshop")
    (place / "pipeline_app.py").write_text(APP, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(shutil, "which", lambda _: "/usr/bin/onlooker")
        code, stdout, stderr = run("export", "pipeline_app.py:build", *ENTRIES, "--out", "programs", "--values")
        assert code == 0, stderr
        assert stdout.startswith("verdict: verified\n")
        assert stdout.endswith("\nwrote programs\n\nnext: onlooker show programs\n")
        yield place
        sys.modules.pop("pipeline_app", None)


def test_export_writes_a_folder_for_each_entry() -> None:
    programs = onlooker.load("programs")
    assert isinstance(programs, Programs)
    assert {name: each.recording.method for name, each in programs.items()} == {
        "unet": "forward",
        "vae_decode": "decode",
    }
    assert Recording.load("programs/vae_decode/recording.json").method == "decode"


def test_show_has_all_programs_and_names_one() -> None:
    code, stdout, _ = run("show", "programs")
    assert code == 0
    assert "all programs" in stdout
    following = stdout.splitlines()[-1]
    assert following == "next: onlooker show programs/unet"
    assert run(*shlex.split(following)[2:])[0] == 0
    found = json.loads(run("show", "programs", "--json")[1])
    assert found["kind"] == "programs"
    assert list(found["report"]["programs"]) == ["unet", "vae_decode"]


def test_verify_watches_the_same_entries() -> None:
    code, stdout, stderr = run("verify", "programs", "--build", "pipeline_app.py:build", *ENTRIES, "--trials", "6")
    assert code == 0, stderr
    assert "\nverified, 12 of 12 checks passed" in stdout
    code, stdout, stderr = run(
        "verify", "programs/vae_decode", "--build", "pipeline_app.py:build", "--entry", "vae.decode", "--trials", "6"
    )
    assert code == 0, stderr
    assert "\nverified, 6 of 6 checks passed" in stdout


def test_a_function_that_export_takes_with_recorded_calls_is_taken_by_verify() -> None:
    """It returns the pipeline alone: the calls are those of the recording, or of the program."""
    of_pipe = ("--build", "pipeline_app.py:pipe")
    code, _, stderr = run("export", "programs/unet", *of_pipe, "--entry", "unet", "--no-verify", "--out", "again")
    assert code == 0, stderr
    for place, entries, count in (("again", ENTRIES[:2], 6), ("programs", ENTRIES, 12)):
        code, stdout, stderr = run("verify", place, *of_pipe, *entries, "--trials", "6")
        assert code == 0, stderr
        assert f"\nverified, {count} of {count} checks passed" in stdout
    code, stdout, stderr = run("verify", "programs/unet", "--build", "pipeline_app.py:other", "--trials", "6")
    assert code == 2, stderr


def test_the_file_of_another_maker_takes_recorded_calls_too(workshop: Path) -> None:
    pytest.importorskip("onnxruntime")
    of_pipe = ("--build", "pipeline_app.py:pipe", "--entry", "unet")
    code, _, stderr = run("export", "programs/unet", *of_pipe, "--to", "onnx", "--out", "unet.onnx")
    assert code == 0, stderr
    argv = ("verify", "unet.onnx", "--build", "pipeline_app.py:unet")
    code, stdout, stderr = run(*argv, "--recording", "programs/unet")
    assert code == 0, stderr
    assert "sample" in stdout
    code, _, stderr = run(*argv)
    assert (code, "returned a Denoiser, and not a model and a callable" in stderr) == (1, True)


def test_verify_without_a_model_compares_the_saved_values() -> None:
    code, stdout, _ = run("verify", "programs")
    assert code == 0
    assert "programs is as it was written, 5 of 5 saved calls give what the model gave" in stdout


@pytest.mark.slow
def test_the_next_command_runs_after_an_export_that_proves_nothing(workshop: Path) -> None:
    argv = ("export", "pipeline_app.py:build", *ENTRIES, "--no-probe", "--no-verify")
    code, stdout, _ = run(*argv)
    assert code == 0
    following = shlex.split(stdout.splitlines()[-1])[2:]
    assert following == [*argv, "--out", "program"]
    code, stdout, _ = run(*argv, "--out", "untried")
    assert shlex.split(stdout.splitlines()[-1])[2:] == [
        "verify",
        "untried",
        "--build",
        "pipeline_app.py:build",
        *ENTRIES,
    ]


def test_a_pin_is_of_one_entry_or_of_all() -> None:
    pins = ("--range", "unet:batch=2:8", "--static", "vae_decode:z:1")
    argv = ("export", "pipeline_app.py:build", *ENTRIES, *pins, "--no-probe", "--no-verify", "--json")
    code, stdout, stderr = run(*argv)
    assert code == 0, stderr
    programs = json.loads(stdout)["report"]["programs"]
    limits = {
        name: {row["name"]: row["range"] for row in report["graphs"][0]["symbols"]}["batch"]
        for name, report in programs.items()
    }
    assert limits["unet"] == "2 to 8"
    assert limits["vae_decode"] != "2 to 8"
    assert texts_by_entry(["x:1", "unet:1", "unet:y:2"], ["unet"]) == {"": ["x:1", "unet:1"], "unet": ["y:2"]}


@pytest.mark.parametrize(
    ("argv", "slug", "text"),
    [
        ("export pipeline_app.py:build --entry unte", "bad-entry", "Pipeline has no 'unte'"),
        ("export pipeline_app.py:build --entry vae.decod", "bad-entry", "Autoencoder has no 'decod'"),
        ("export pipeline_app.py:build --entry count", "bad-entry", "count: The entry is a int"),
        ("export pipeline_app.py:build --entry unet --entry unet", "bad-entry", "has the name unet"),
        ("export pipeline_app.py:build --entry unet --entry unet.forward", "bad-entry", "forward of the same object"),
        ("export pipeline_app.py:build --entry a..b", "bad-entry", "has no 'a'"),
        ("export pipeline_app.py:build --entry unet --method decode", "bad-command-line", "--method is for one method"),
        (
            "export pipeline_app.py:build --entry unet --save-recording c.json",
            "bad-command-line",
            "--save-recording is for one",
        ),
        ("export pipeline_app.py:idle --entry unet --entry vae.decode", "entries-refused", "vae_decode: No inputs"),
        ("explain programs sample 0", "several-programs", "Name the folder of one: programs/unet."),
        ("code programs", "several-programs", "programs holds several programs: unet, vae_decode."),
        ("verify programs --build pipeline_app.py:build", "bad-command-line", "Give --entry for each"),
        (
            "verify programs/unet --build pipeline_app.py:build --entry unet --entry vae.decode",
            "bad-command-line",
            "one program",
        ),
        (
            "verify programs --build pipeline_app.py:build --entry unet",
            "bad-command-line",
            "--entry does not name vae_decode",
        ),
        ("verify programs/unet --build pipeline_app.py:pipe", "bad-entry", "name the attribute that holds it: --entry"),
    ],
)
def test_a_wrong_use_is_one_message(argv: str, slug: str, text: str) -> None:
    code, stdout, stderr = run(*argv.split())
    assert (code, stdout) == (1, "")
    assert f"[{slug}]\n" in stderr
    assert text in stderr
    assert "Traceback" not in stderr
