"""The commands on a model of a user's own: what they print, their JSON, their exit codes, the next command."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
import onlooker.__main__ as program_start
from onlooker import InputObserver, Recording, UsageError, load
from onlooker.cli import COMMANDS, main
from onlooker.cli.work.code import source_of
from onlooker.cli.work.export import dimensions, ranges
from onlooker.model_source.user_function import FunctionRaisedError, load_function

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "command_line.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
APP = next(text for kind, text in BLOCKS if kind == "python")
SESSION = [
    (command.removeprefix("$ onlooker "), output)
    for kind, text in BLOCKS
    if kind == "console"
    for command, output in re.findall(r"^(\$ onlooker .*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE)
]


@pytest.fixture(scope="module", autouse=True)
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the app of the document, exported once; the current directory of every test here."""
    place = tmp_path_factory.mktemp("workshop")
    (place / "app.py").write_text(APP, encoding="utf-8")
    (place / "jobs.json").write_text('{"jobs": {"scorer": {"build": "app.py:build"}}}', encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(shutil, "which", lambda _: "/usr/bin/onlooker")
        code, _, stderr = run("export", "app.py:build", "--out", "program", "--save-recording", "calls.json")
        assert code == 0, stderr
        shutil.copytree("program", "first")
        assert run("push", "program", "models/scorer")[0] == 0
        yield place
        sys.modules.pop("app", None)


@pytest.fixture(autouse=True)
def program(workshop: Path) -> Path:
    """The program that was exported first: other tests export to the same folder."""
    shutil.rmtree("program")
    return Path(shutil.copytree("first", "program"))


def run(*argv: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(argv, stdout, stderr)
    return code, stdout.getvalue(), stderr.getvalue()


def record(*calls: dict[str, Any], to: str = "other.json") -> str:
    model = load_function("app.py:build").model
    observer = InputObserver()
    with observer(model):
        for call in calls:
            model(**call)
    observer.recording().save(to)
    return to


#: commands about programs that are watched from outside: see test_run.py
OF_RUNS = ("run", "report", "combine")
#: commands that serve until their input ends: see test_mcp.py
SERVERS = ("mcp",)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command.name not in (*OF_RUNS, *SERVERS)],
    ids=lambda command: command.name,
)
def test_the_example_of_the_help_runs(command: Any) -> None:
    _, text, _ = run(command.name, "--help")
    example = text.partition("example:\n  onlooker ")[2].strip()
    assert example == command.example
    code, stdout, stderr = run(*shlex.split(example))
    assert code == 0, stderr
    assert stdout


@pytest.mark.parametrize(
    "argv",
    [
        "export app.py:build --no-verify",
        "show program",
        "show calls.json",
        "explain program x 0",
        "verify program --build app.py:build",
        "verify program",
        "check program calls.json",
        "code program",
    ],
)
def test_json_is_one_object_and_names_the_next_command(argv: str) -> None:
    code, stdout, _ = run(*argv.split(), "--json")
    assert code == (2 if argv == "verify program" else 0)
    found = json.loads(stdout)
    assert found["command"] == argv.split()[0]
    following = shlex.split(found["next"])
    assert following[0] == "onlooker"
    assert following[1] in {command.name for command in COMMANDS}


EVERY_NEXT = [
    "show program",
    "show calls.json",
    "explain program x 0",
    "check program calls.json",
    "check program program",
    "emit buckets program --recording calls.json",
    "code program",
    "code program --build app.py:build --json",
    "html program --out page.html",
    "plan calls.json",
    "plan app.py:build --no-probe --static x:2",
    "verify program",
    "verify program --build app.py:build --trials 2",
    "export app.py:build --no-probe --no-verify --static x:2 --quiet",
    "export app.py:build --no-probe --no-verify --out next",
    "export calls.json --build app.py:build --no-probe --out next",
]


@pytest.mark.parametrize("argv", EVERY_NEXT)
def test_the_next_command_is_the_last_line_and_runs_as_it_stands(argv: str) -> None:
    _, stdout, stderr = run(*argv.split())
    if argv.endswith("--json"):
        last = f"next: {json.loads(stdout)['next']}"
    else:
        last = (stderr if argv.startswith(("code", "emit")) else stdout).splitlines()[-1]
    assert last.startswith("next: onlooker ")
    code, _, stderr = run(*shlex.split(last)[2:])
    assert code == 0, stderr


def test_a_plan_says_what_an_export_would_do() -> None:
    code, stdout, _ = run("plan", "app.py:build", "--range", "batch=1:64", "--json")
    assert code == 0
    (plan,) = json.loads(stdout)["plans"]
    assert (plan["calls"], plan["model"], plan["target"]) == (2, "app.Scorer", "torch")
    assert plan["experiments"] > 0
    assert 0 < plan["seconds"] < 60
    (graph,) = plan["graphs"]
    assert {row["symbol"]: row["made_for"] for row in graph["sizes"]} == {"batch": "1 to 64", "sequence": "1, 5 to 7"}
    fixed = {"axis": "x.shape[2]", "size": "4", "why": "the model refuses another size", "option": ""}
    assert graph["fixed"] == [fixed]
    assert graph["relations"] == ["mask.shape[0] == batch", "mask.shape[1] == sequence"]


def test_a_plan_of_calls_alone_says_how_to_ask() -> None:
    code, stdout, _ = run("plan", "calls.json")
    assert code == 0
    assert "1 graph at most, by the calls alone: with --build the model is asked, too" in stdout
    assert "--dynamic x:2" in stdout
    assert "time" not in stdout
    assert "asked for" in run("plan", "calls.json", "--static", "x:2")[1]


@pytest.mark.parametrize("place", ["calls.json", "program"])
def test_a_recording_is_a_file_or_the_folder_of_a_program(place: str) -> None:
    assert run("check", "program", place)[0] == 0
    assert "batch=3, sequence=7" in run("emit", "buckets", "program", "--recording", place)[1]
    code, stdout, stderr = run("code", "calls.json", "--build", "app.py:build")
    assert code == 0, stderr
    assert "def export_main(model):" in stdout
    assert 'runpy.run_path("app.py")["build"]()[0]' in stdout
    code, _, stderr = run("code", "calls.json")
    assert (code, "[no-model]" in stderr) == (1, True)


def test_opset_and_merged_are_those_of_onnx(workshop: Path) -> None:
    argv = ("export", "app.py:build", "--no-probe", "--no-verify", "--to")
    code, _, stderr = run(*argv, "onnx", "--opset", "20", "--merged", "--out", "one")
    assert code == 0, stderr
    model = pytest.importorskip("onnx").load(workshop / "one" / "main.onnx")
    assert {imported.domain: imported.version for imported in model.opset_import}[""] == 20
    code, _, stderr = run(*argv, "torch", "--opset", "20")
    assert (code, "The target 'torch' has no option opset." in stderr) == (1, True)


QUANTISED = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(64, 8, bias=False)).eval()
    return model, lambda: [model(torch.ones(rows, 3, 64)) for rows in (2, 3)]
"""


@pytest.mark.parametrize("target", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_the_next_line_accepts_a_program_of_another_precision(workshop: Path, target: str) -> None:
    pytest.importorskip(f"{target}runtime" if target == "onnx" else target)
    Path("quantised.py").write_text(QUANTISED, encoding="utf-8")
    options = ("--precision", "int8", "--atol", "1e-6")  # asked: else its distances say whether it is right
    code, stdout, _ = run("export", "quantised.py:build", "--to", target, *options, "--out", f"small-{target}")
    assert (code, "accept   these differences: verify(atol=" in stdout) == (2, True), stdout
    following = next_of(stdout)
    assert following[:3] == ["onlooker", "export", "quantised.py:build"]
    code, stdout, stderr = run(*following[1:])
    assert (code, next_of(stdout)) == (0, ["onlooker", "show", f"small-{target}"]), stderr
    code, stdout, _ = run("verify", f"small-{target}", "--build", "quantised.py:build", "--atol", "1e-6")
    assert code == 2
    assert run(*next_of(stdout)[1:])[0] == 0


def next_of(stdout: str) -> list[str]:
    """The words of the last line."""
    return stdout.splitlines()[-1].removeprefix("next: ").split()


def test_export_writes_a_program_and_a_recording(workshop: Path) -> None:
    assert load("program").graphs[0].name == "main"
    assert len(Recording.load("calls.json")) == 2


def test_export_without_a_place_says_how_to_save() -> None:
    code, stdout, _ = run("export", "app:build", "--no-probe")
    assert code == 0
    assert "verdict: verified" in stdout
    assert stdout.endswith("next: onlooker export app:build --no-probe --out program\n")


def test_export_obeys_what_is_said_about_axes() -> None:
    argv = ("export", "app.py:build", "--no-verify", "--static", "x:1", "--static", "mask:1", "--range", "batch=2:8")
    code, stdout, stderr = run(*argv, "--json")
    if code == 1:
        assert "pin-contradicts-calls" in stderr  # the length changed in the calls of the app
        code, stdout, stderr = run("export", "app.py:build", "--no-verify", "--range", "batch=2:8", "--json")
    assert code == 0, stderr
    (graph,) = json.loads(stdout)["report"]["graphs"]
    assert {row["name"]: row["range"] for row in graph["symbols"]}["batch"] == "2 to 8"


@pytest.mark.parametrize("target", ["torch", "onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_export_takes_the_sizes_of_the_calls_for_each_target(target: str) -> None:
    argv = ("export", "app.py:build", "--no-verify", "--json", "--to", target, "--range", "observed")
    code, stdout, stderr = run(*argv)
    assert code == 0, stderr
    (graph,) = json.loads(stdout)["report"]["graphs"]
    assert graph["symbols"]
    assert not any("and more" in row["range"] for row in graph["symbols"])
    code, stdout, stderr = run(*argv, "--range", "batch=1:64")
    assert code == 0, stderr
    (graph,) = json.loads(stdout)["report"]["graphs"]
    assert {row["name"]: row["range"] for row in graph["symbols"]}["batch"] == "1 to 64"


def test_a_program_that_is_not_verified_exits_with_2(workshop: Path) -> None:
    (workshop / "random_app.py").write_text(APP.replace("torch.manual_seed(0)", "torch.manual_seed(1)"))
    code, stdout, _ = run("verify", "program", "--build", "random_app.py:build")
    assert code == 2
    passed, total = map(int, re.findall(r"NOT verified, (\d+) of (\d+) ", stdout)[0])
    assert 0 < passed < total / 4  # NaN is NaN with any weights
    assert "does the function give the model the same weights every time?" in stdout


def test_verify_without_a_model_compares_the_saved_values(workshop: Path) -> None:
    code, stdout, _ = run("verify", "program")
    assert code == 2
    assert (
        "program is as it was written, and holds no values to try: give the function of the model with --build."
        in stdout
    )
    assert run("export", "app.py:build", "--out", "with_values", "--values", "--no-verify")[0] == 0
    code, stdout, _ = run("verify", "with_values")
    assert code == 0
    assert "with_values is as it was written, 2 of 2 saved calls give what the model gave" in stdout


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--recording calls.json", "onlooker check program calls.json."),
        ("--range x_dim_1=1:9", "Give --sizes NAME=SIZES"),
        ("--graph main", "All graphs of a program are tried."),
        ("--component main", "has its folder"),
    ],
)
def test_verify_refuses_what_it_would_leave_out_of_a_program(workshop: Path, option: str, meant: str) -> None:
    code, _, stderr = run("verify", "program", "--build", "app.py:build", *option.split())
    assert code == 1
    assert f"Argument {option.split()[0]} is for the export of another maker." in stderr
    assert meant in stderr
    assert run("verify", "program", *option.split())[0] == 1


def test_verify_finds_a_changed_file(workshop: Path) -> None:
    shutil.copytree("program", "damaged")
    (workshop / "damaged" / "report.json").write_text("{}")
    code, stdout, stderr = run("verify", "damaged", "--json")
    assert code == 1
    assert json.loads(stdout)["error"]["slug"] in stderr


def test_check_exits_with_2_where_a_call_falls_outside() -> None:
    x = torch.randn(2, 5, 4)
    mask = torch.ones(2, 5)
    name = record(
        {"x": x, "mask": mask}, {"x": x, "mask": mask.to(torch.int64)}, {"x": x[:1], "mask": torch.ones(3, 5)}
    )
    code, stdout, _ = run("check", "program", name)
    assert code == 2
    assert "int64[2, 5]" in stdout
    assert "of 3 calls fall outside" in stdout
    found = json.loads(run("check", "program", name, "--json")[1])
    assert found["holds"] is False
    assert {row["where"] for row in found["breaches"]} == {"mask", "mask.shape[0]"}
    following = shlex.split(found["next"])
    assert following == ["onlooker", "explain", "program", "mask", "0"]
    assert run(*following[1:])[0] == 0


@pytest.mark.parametrize("argv", [("x", "1"), ("x.shape[1]",)])
def test_explain_takes_an_axis_in_both_spellings(argv: tuple[str, ...]) -> None:
    code, stdout, _ = run("explain", "program", *argv)
    assert code == 0
    assert "x.shape[1] is " in stdout


@pytest.mark.parametrize("argv", [("y", "1"), ("x", "7")])
def test_explain_says_what_there_is(argv: tuple[str, ...]) -> None:
    code, _, stderr = run("explain", "program", *argv)
    assert code == 1
    assert stderr.endswith("[path-not-found]\n")


def test_the_script_is_alone_on_stdout_and_runs(workshop: Path) -> None:
    code, stdout, stderr = run("code", "program", "--build", "app.py:build")
    assert code == 0
    assert "next: onlooker verify program --build app.py:build" in stderr
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(stdout, "script.py", "exec"), names)
    exported = names["export_main"](names["make_model"]()).module()
    assert exported(**names["main_arguments"](batch=6)).shape == (6,)


@pytest.mark.parametrize("name", ["app.py:build", "app:build"])
def test_a_function_is_named_by_its_module_or_its_file(name: str) -> None:
    used = load_function(name)
    assert isinstance(used.model, torch.nn.Module)
    assert callable(used.use)
    names: dict[str, Any] = {}
    exec("def make_model():\n    " + source_of(name).replace("\n", "\n    "), names)
    assert isinstance(names["make_model"](), torch.nn.Module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("app", "'app' names no function"),
        ("app.py:", "'app.py:' names no function"),
        (":build", "':build' names no function"),
        ("app.py:a b", "'app.py:a b' names no function"),
        ("nothing.py:build", "There is no file nothing.py"),
        ("no_such_module_here:build", "There is no module 'no_such_module_here'"),
        ("app.py:nothing", "app.py has no function 'nothing'. It has Scorer, build."),
        ("wrong.py:number", "wrong.py:number returned a int, and not a model and a callable"),
        ("wrong.py:pair", "wrong.py:pair returned a tuple of int, int, and not a model and a callable"),
    ],
)
def test_what_names_no_function_is_one_clear_error(workshop: Path, name: str, message: str) -> None:
    (workshop / "wrong.py").write_text("def number(): return 1\ndef pair(): return 1, 2\n")
    code, stdout, stderr = run("export", name)
    assert (code, stdout) == (1, "")
    assert message in stderr
    assert stderr.endswith("[bad-function]\n")
    assert "Traceback" not in stderr


BROKEN = {
    "at_import.py": "1 / 0\n",
    "syntax.py": "def build(:\n",
    "missing.py": "import no_such_package_anywhere\n",
    "in_function.py": "def build():\n    return 1 / 0\n",
    "exits.py": "import sys\ndef build():\n    sys.exit(3)\n",
    "in_use.py": "import torch\ndef build():\n    model = torch.nn.ReLU()\n    return model, lambda: model(3)\n",
}


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("at_import.py", "ZeroDivisionError"),
        ("syntax.py", "SyntaxError"),
        ("missing.py", "ModuleNotFoundError"),
        ("in_function.py", "ZeroDivisionError"),
        ("exits.py", "SystemExit"),
        ("in_use.py", "TypeError"),
    ],
)
def test_what_the_user_s_code_raises_is_shown_as_theirs(workshop: Path, file: str, error: str) -> None:
    (workshop / file).write_text(BROKEN[file])
    code, stdout, stderr = run("export", f"{file}:build")
    assert (code, stdout) == (1, "")
    assert f'{file}", line ' in stderr
    assert f"raised {error}: " in stderr
    assert "onlooker/cli" not in stderr
    assert "<frozen" not in stderr
    assert stderr.endswith("[function-raised]\n")


def test_a_module_that_misses_another_one_is_not_taken_for_missing(workshop: Path) -> None:
    (workshop / "missing.py").write_text(BROKEN["missing.py"])
    with pytest.raises(FunctionRaisedError, match="No module named 'no_such_package_anywhere'"):
        load_function("missing:build")


def test_what_the_user_s_code_prints_does_not_touch_the_answer(workshop: Path) -> None:
    (workshop / "chatty.py").write_text(f"print('hello')\n{APP}\nprint('there')\n")
    code, stdout, stderr = run("export", "chatty.py:build", "--no-verify", "--json")
    assert code == 0
    assert json.loads(stdout)["command"] == "export"
    assert "hello" in stderr


@pytest.mark.parametrize("text", ["x", "x:", "x:a", ":1", "x:1;2"])
def test_dimensions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not ARG:DIMS, as in x:0,2"):
        dimensions([text], "--static")


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=3", "=1:2", "batch=a:b"])
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not SYMBOL=LOW:HIGH, as in batch=1:64"):
        ranges([text])


def test_dimensions_and_ranges_are_read() -> None:
    assert dimensions(["x:0,2", "a.b[0]:1", "x:3"], "--static") == {"x": [0, 2, 3], "a.b[0]": [1]}
    assert ranges(["batch=1:64", "sequence=2:"]) == {"batch": (1, 64), "sequence": (2, None)}
    assert ranges(["observed"]) == "observed"
    assert ranges(["batch=observed", "sequence=:9"]) == {"batch": "observed", "sequence": (None, 9)}
    assert ranges(["batch=1:64", "observed"]) == {"batch": (1, 64), "*": "observed"}


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(onlooker.cli, "main", interrupted)
    assert program_start.main() == 130
    assert capsys.readouterr().err == "onlooker: interrupted. Files and folders are as they were.\n"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    source = str(Path(onlooker.__file__).parent.parent)
    command = [sys.executable, "-m", "onlooker", "show", "calls.json"]
    environment = {**os.environ, "PYTHONPATH": source}
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, env=environment)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


def comparable(text: str) -> list[str]:
    """The lines of an answer, without times and the padding of tables."""
    return [re.sub(r"\d+\.\d+", "#", line).rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("command", "output"), SESSION, ids=[command for command, _ in SESSION])
def test_the_document_shows_what_the_commands_print(command: str, output: str) -> None:
    argv = [word for word in shlex.split(command.partition(" > ")[0]) if word != "||"]
    code, stdout, stderr = run(*argv)
    assert code in (0, 2), stderr
    if "..." not in output.splitlines():
        assert comparable(stdout) == comparable(output)


def test_a_plan_saves_the_calls_that_it_watched() -> None:
    code, _, stderr = run("plan", "app.py:build", "--no-probe", "--save-recording", "planned.json")
    assert code == 0, stderr
    assert [call.inputs for call in Recording.load("planned.json").calls] == [
        call.inputs for call in Recording.load("calls.json").calls
    ]
    for words in (["planned.json"], ["planned.json", "--build", "app.py:build"]):
        code, _, stderr = run("plan", *words, "--save-recording", "again.json")
        assert (code, "[bad-command-line]" in stderr) == (1, True)
    assert not Path("again.json").exists()


def test_the_document_has_every_command() -> None:
    elsewhere = {"demo", "run", "report", "combine", "html", "mcp", "tune"}  # pages of their own, test_tune.py
    assert {command.partition(" ")[0] for command, _ in SESSION} >= {c.name for c in COMMANDS} - elsewhere
    text = DOCUMENT.read_text(encoding="utf-8")
    assert not [command.name for command in COMMANDS if f"onlooker {command.name}" not in text]


def test_an_export_into_one_file_and_its_repair_are_printed() -> None:
    pytest.importorskip("onnxruntime")
    assert "wrong-suffix" in run("export", "app.py:build", "--out", "scorer.onnx")[2]
    assert "folder-only" in run("export", "app.py:build", "--to", "onnx", "--values", "--out", "scorer.onnx")[2]
    assert not Path("scorer.onnx").exists()
    code, stdout, stderr = run("export", "app.py:build", "--to", "onnx", "--no-verify", "--out", "scorer.onnx")
    assert code == 0, stderr
    assert Path("scorer.onnx").is_file()
    assert "wrote scorer.onnx" in stdout
    assert "next: onlooker verify scorer.onnx --build app.py:build" in stdout
    assert "next: onlooker verify scorer.onnx --build app.py:build" in stdout + stderr
    onlooker.onnx_export(load_function("app.py:build").model, (torch.randn(2, 5, 4), torch.ones(2, 5)), "wrong.onnx")
    code, stdout, _ = run("verify", "wrong.onnx", "--build", "app.py:build")
    assert code == 2
    assert "# the export that would be right" in stdout
    assert "def main_dynamic_shapes():" in stdout
