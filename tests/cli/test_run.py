"""``onlooker run``, ``report``, ``combine``, and ``export`` of what a run recorded, as they are typed."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import onlooker
from onlooker.capture.recorded import read_recording
from onlooker.cli import main
from onlooker.cli.work.run import check_command, command_of
from onlooker.core.errors import SavedFileError, UsageError
from onlooker.model_source.user_function import load_function
from tiny_pipeline import Pipeline

SCRIPT = """
import sys
import torch

class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze(-1)

def make():
    torch.manual_seed(0)
    return Scorer()

if __name__ == "__main__":
    model = make()
    with torch.no_grad():
        for size in (2, 3):
            model(torch.zeros(size, 5, 4))
    print(sys.argv[1:])
    sys.exit("a reason")
"""


def run(*argv: object) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main([str(a) for a in argv], stdout, stderr), stdout.getvalue(), stderr.getvalue()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script that was watched by the command line itself."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "serve.py").write_text(SCRIPT)
    source = str(Path(onlooker.__file__).parent.parent)
    command = ["run", "--out", "calls", "--at-exit", "--watch", "Scorer", "serve.py", "--port", "8000", "--into", "x"]
    done = subprocess.run(
        [sys.executable, "-m", "onlooker", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "['--port', '8000', '--into', 'x']\n", "a reason\n")
    return folder


def test_the_report_of_a_run(workshop: Path) -> None:
    code, stdout, _ = run("report", workshop / "calls")
    assert code == 0
    assert "2 calls in 1 process" in stdout
    assert "Scorer" in stdout
    code, stdout, _ = run("report", workshop / "calls", "--json")
    (entry,) = json.loads(stdout)["report"]["entries"]
    assert (entry["model"], entry["place"], entry["calls"]) == ("serve.Scorer", "model", 2)
    assert [row["size"] for row in entry["axes"]] == ["batch", "5", "4"]


def test_folders_are_combined(workshop: Path, tmp_path: Path) -> None:
    code, stdout, _ = run("combine", workshop / "calls", workshop / "calls", "--out", tmp_path / "all")
    assert (code, stdout.splitlines()[0]) == (0, f"1 processes in {tmp_path / 'all'}")
    assert len([*(tmp_path / "all").glob("*.jsonl")]) == 1


def test_a_program_of_what_was_recorded(workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workshop)
    out = tmp_path / "program"
    code, stdout, stderr = run("export", "calls", "--build", "serve.py:make", "--out", out)
    assert code == 0, stderr
    assert "verdict: verified" in stdout
    assert onlooker.load(out).recording.model.endswith("Scorer")


@pytest.mark.parametrize(
    "argv",
    [
        ("check", "calls/programs/Scorer", "calls"),
        ("emit", "buckets", "calls/programs/Scorer", "--recording", "calls"),
        ("show", "calls"),
        ("html", "calls", "--out", "page.html"),
        ("plan", "calls"),
        ("plan", "calls", "--entry", "Scorer", "--build", "serve.py:make"),
        ("code", "calls", "--build", "serve.py:make", "--entry", "Scorer"),
    ],
    ids=" ".join,
)
def test_the_folder_of_a_run_is_a_recording(
    workshop: Path, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    code, stdout, stderr = run(*argv)
    assert code == 0, stderr
    assert stdout


def test_a_foreign_file_is_tried_at_the_sizes_of_a_run(
    workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    app = "import serve, torch\ndef build():\n    m = serve.make()\n    return m, lambda: m(torch.zeros(4, 5, 4))"
    (workshop / "used.py").write_text(app)
    model = load_function("used.py:build").model
    torch.export.save(torch.export.export(model, (torch.zeros(4, 5, 4),)), tmp_path / "baked.pt2")
    argv = ("verify", tmp_path / "baked.pt2", "--build", "used.py:build", "--full")
    shown = [run(*argv, *more)[1] for more in ((), ("--recording", "calls"))]
    without, with_run = (int(re.findall(r"(\d+) of given sizes", text)[0]) for text in shown)
    assert with_run == without + 2


def test_one_of_several_entry_points_is_the_one_of_the_program(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pipeline)
    code, _, stderr = run("plan", "calls")
    assert code == 0, stderr
    seen = read_recording(Path("calls"), "unet")
    assert read_recording(Path("calls"), like=seen) == seen
    with pytest.raises(UsageError, match=r"There are 3 entry points\. Give one with --entry; there are .*Denoiser"):
        read_recording(Path("calls"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SavedFileError, match="empty holds no calls"):
        read_recording(tmp_path / "empty")


def test_a_program_was_made_when_the_run_ended(workshop: Path) -> None:
    place = workshop / "calls" / "programs"
    assert "verified" in (place / "log.txt").read_text()
    assert onlooker.load(place / "Scorer").recording.method == "forward"


PIPELINE = """
from tiny_pipeline import Pipeline

def make():
    return Pipeline()

if __name__ == "__main__":
    pipe = make()
    pipe.use()
"""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script of a pipeline, which is no module, and what was recorded of it."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "draw.py").write_text(PIPELINE)
    paths = [str(Path(onlooker.__file__).parent.parent), str(Path(__file__).parent.parent)]
    command = ["run", "--out", "calls", "--watch", "Autoencoder.decode", "draw.py"]
    subprocess.run(
        [sys.executable, "-m", "onlooker", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
    )
    return folder


def test_several_entry_points_are_exported_at_once(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pipeline)
    out = tmp_path / "programs"
    entries = ("--entry", "text_encoder", "--entry", "Denoiser", "--entry", "vae.decode", "--static", "vae_decode:z:1")
    code, stdout, stderr = run("export", "calls", *entries, "--build", "draw.py:make", "--out", out)
    assert (code, "all programs" in stdout) == (0, True), stderr
    programs = onlooker.load(out)
    assert isinstance(programs, onlooker.Programs)
    pipe, ids = Pipeline(), torch.arange(21).reshape(3, 7) % 16
    expected = pipe(ids, size=5, steps=3)
    models = {"text_encoder": pipe.text_encoder, "Denoiser": pipe.unet, "vae_decode": pipe.vae}
    with programs.installed(models) as served:
        assert torch.allclose(pipe(ids, size=5, steps=3), expected, atol=1e-6)
    assert [sum(one.calls.values()) for one in served.values()] == [1, 3, 1]


def test_the_part_of_one_entry_point_is_found_in_what_was_built(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pipeline)
    out = tmp_path / "program"
    code, _, stderr = run("export", "calls", "--entry", "unet", "--build", "draw.py:make", "--no-verify", "--out", out)
    assert code == 0, stderr
    assert onlooker.load(out).recording.model.endswith("Denoiser")
    (pipeline / "other.py").write_text("def make():\n    return [1, 2]\n")
    code, _, stderr = run("export", "calls", "--entry", "unet", "--build", "other.py:make", "--out", out)
    assert (code, "no Denoiser at unet" in stderr) == (1, True)


@pytest.mark.parametrize(
    ("argv", "slug"),
    [
        (["run"], "bad-command-line"),
        (["run", "--"], "bad-command-line"),
        (["run", "absent.py"], "no-such-program"),
        (["run", "--", "no-such-command-at-all"], "no-such-program"),
        (["run", "--", sys.executable, "-I", "app.py"], "isolated-python"),
        (["run", "--", sys.executable, "-uE", "app.py"], "isolated-python"),
        (["report", "absent"], "file-missing"),
        (["export", ".", "--out", "x"], "bad-command-line"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(argv: list[str], slug: str) -> None:
    code, stdout, stderr = run(*argv)
    assert (code, stdout) == (1, "")
    assert f"[{slug}]" in stderr


def test_a_script_whose_first_line_isolates_python_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable} -I\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match="reads no PYTHONPATH"):
        check_command([str(script)])


def test_the_options_of_a_program_are_its_own() -> None:
    check_command([sys.executable, "app.py", "-I"])
    check_command([sys.executable, "-c", "print()", "-I"])
    check_command([sys.executable, "-W", "ignore", "-m", "mod", "-E"])
    assert command_of("pkg.mod", ["-x"]) == [sys.executable, "-m", "pkg.mod", "-x"]
