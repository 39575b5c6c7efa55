"""The words of the command line: one meaning each, answered at once, with the nearest word for a mistyped one."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import onlooker
from onlooker.cli import COMMANDS, command_line, commands, main
from onlooker.core.messages import messages
from onlooker.emit.texts import EMITTERS
from onlooker.targets.onnx.served.variants import PROVIDERS
from onlooker.targets.targets import TARGETS
from onlooker.zoo import MODELS


def run(*argv: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    return main(argv, stdout, stderr), stdout.getvalue(), stderr.getvalue()


def options_of(command: commands.Command) -> list[argparse.Action]:
    """What the help of a command shows."""
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


#: what differs from command to command in what may be given, and not in what it means
OF_EACH = {"--to": "the targets", "--out": "a file or a folder", "--entry": "one or several"}


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for command in COMMANDS:
        for action in options_of(command):
            for name in action.option_strings:
                kind = type(action).__name__, action.metavar, action.type, action.dest
                meanings[name].add(kind if name not in OF_EACH else (action.dest,))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {"-o": meanings["-o"]}
    assert len(meanings) > 30


def test_an_argument_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS:
        for action in options_of(command):
            if not action.option_strings:
                meanings[str(action.metavar)].add(action.dest)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {"RUN": {"place", "places"}}


def test_the_choices_are_those_of_the_code() -> None:
    assert tuple(target.name for target in TARGETS) == commands.TARGETS
    assert tuple(EMITTERS) == commands.EMITTED
    assert tuple(MODELS) == commands.TINY_MODELS
    made = {precision for target in TARGETS for precision in target.precisions}
    assert (made, PROVIDERS) == (set(commands.PRECISION_NAMES), commands.PROVIDERS)


SAID_AT_ONCE = [
    ("--version", 0),
    ("--help", 0),
    ("export --help", 0),
    ("exprot app.py:build", 1),
    ("export --buidl app.py:build", 1),
    ("export absent.py:build", 1),
    ("verify absent --build app.py:build", 1),
    ("check absent calls.json", 1),
    ("explain call-refused", 0),
    ("explain call-refusd", 1),
]


def test_what_needs_no_torch_does_not_import_it() -> None:
    lines = [
        "import io, sys",
        "from onlooker.cli import main",
        f"for argv, code in {SAID_AT_ONCE!r}:",
        "    assert main(argv.split(), io.StringIO(), io.StringIO()) == code, argv",
        "    assert not {'torch', 'numpy', 'sympy', 'transformers'} & sys.modules.keys(), argv",
    ]
    source = str(Path(onlooker.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ("exprot app.py:build", "Did you mean export? See: onlooker --help."),
        ("export --buidl app.py:build", "Did you mean --build? See: onlooker export --help."),
        ("export app.py:build --too=onnx", "Did you mean --to? See: onlooker export --help."),
        ("export app.py:build --to onyx", "Did you mean onnx? See: onlooker export --help."),
        ("demo --traget torch", "Unrecognized arguments: --traget. See: onlooker demo --help."),
        ("export app.py:build --zzz", "--zzz. See: onlooker export --help."),
        ("explain call-refusd", "Did you mean call-refused"),
    ],
)
def test_a_mistyped_word_is_followed_by_the_nearest_one(argv: str, meant: str) -> None:
    code, stdout, stderr = run(*argv.split())
    assert (code, stdout) == (1, "")
    assert meant in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "now"),
    [
        ("verify absent app.py:build", "--build MODULE:FUNCTION"),
        ("code absent --model app.py:build", "--build"),
        ("emit buckets absent calls.json", "--recording RECORDING"),
        ("export absent.py:build --recording calls.json", "--save-recording"),
        ("combine absent --into all", "--out"),
        ("run --into calls absent.py", "--out"),
        ("run --entry Net absent.py", "--watch"),
        ("run --values first absent.py", "--keep-values"),
    ],
)
def test_a_former_spelling_warns_and_is_not_in_the_help(argv: str, now: str) -> None:
    _, _, stderr = run(*argv.split())
    warning, error = stderr.splitlines()
    assert warning.endswith(f" is a former spelling. Write {now}. [former-spelling]")
    assert "There is no" in error
    _, stdout, _ = run(argv.split()[0], "--help")
    option = next((word for word in argv.split() if word.startswith("--")), None)
    assert option is None or f" {option} " not in stdout


def test_a_former_spelling_does_what_it_did() -> None:
    parsed = command_line.parsed
    assert parsed(["run", "--entry", "A", "--watch", "B", "--into", "x", "--values", "first", "a.py"]).watch == [
        "A",
        "B",
    ]
    assert parsed(["verify", "p", "app.py:build"]).build == "app.py:build"
    assert parsed(["emit", "buckets", "p", "calls.json"]).recording == Path("calls.json")
    assert parsed(["demo", "--model", "vit"]).former_tiny == "vit"


def test_an_error_is_explained_by_its_word() -> None:
    code, stdout, _ = run("explain", "[call-refused]")
    assert code == 0
    assert stdout.startswith(f"call-refused\n\n{messages()['call-refused']}\n")
    assert json.loads(run("explain", "call-refused", "--json")[1])["text"] == messages()["call-refused"]


def test_an_error_in_a_terminal_is_followed_by_the_command_that_explains_it() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stderr = Terminal()
    assert main(["show", "absent"], io.StringIO(), stderr) == 1
    error, more = stderr.getvalue().splitlines()
    assert error.endswith("[file-missing]")
    assert more.endswith("onlooker explain file-missing")


def test_the_page_of_messages_is_what_is_installed() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "messages.md"
    installed = Path(onlooker.__file__).parent / "core" / "messages.md"
    assert installed.read_bytes() == page.read_bytes()


def test_an_error_without_a_hint_has_the_advice_of_its_entry() -> None:
    error = onlooker.UsageError("It is no opset.", slug="bad-opset")
    assert error.hint.startswith("Give a number in the range that the message names")
    assert error.hint in messages()["bad-opset"].replace("\n", " ")


def test_quiet_says_nothing_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = (
        "import torch\ndef build():\n    m = torch.nn.ReLU()\n    return m, lambda: [m(torch.ones(n)) for n in (2, 3)]"
    )
    Path("quiet_app.py").write_text(app)
    code, stdout, stderr = run("plan", "quiet_app.py:build", "--quiet")
    assert (code, stderr) == (0, "")
    assert "1 graph" in stdout
    assert "watching" in run("plan", "quiet_app.py:build")[2]


def test_a_shell_completes_words_where_argcomplete_is_installed() -> None:
    argcomplete = pytest.importorskip("argcomplete")
    finder = argcomplete.CompletionFinder(command_line._parser()[0])
    assert "export" in finder._get_completions(["onlooker"], "exp", "", None)
    assert "--build " in finder._get_completions(["onlooker", "export"], "--bu", "", None)
