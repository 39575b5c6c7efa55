"""``onlooker doctor``: what it shows of this machine, and of one that lacks something."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import onlooker
from onlooker.cli import main
from onlooker.cli.work import doctor
from onlooker.core.errors import UnsupportedError
from onlooker.targets.targets import TARGETS


def run(*argv: str) -> tuple[int, str]:
    stdout = io.StringIO()
    return main(["doctor", *argv], stdout, io.StringIO()), stdout.getvalue()


def test_it_shows_versions_targets_and_devices() -> None:
    code, text = run()
    assert code == 0
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert ["onlooker", onlooker.__version__] in lines
    assert ["torch", torch.__version__] in lines
    assert ["torch", "yes"] in lines
    assert all(f"\n{group}:\n" in f"\n{text}" for group in ("versions", "inside of torch", "targets", "devices"))


def test_it_says_nothing_personal() -> None:
    _, text = run()
    facts = text.partition("\nnext: ")[0]
    assert str(Path.home()) not in facts
    assert sys.prefix not in facts


def test_a_target_that_lacks_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    code, text = run("--json")
    assert code == 0, "a package that is not installed is no fault"
    rows = {row["name"]: row for row in json.loads(text)["facts"]["targets"]}
    assert list(rows) == [target.name for target in TARGETS]
    assert rows["openvino"]["works"] is False
    assert "pip install 'onlooker[openvino]'" in rows["openvino"]["text"]


def test_a_name_that_torch_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.importlib.import_module

    def refuse(name: str) -> object:
        if name.endswith("torch_internals.sizes"):
            raise UnsupportedError("torch 9 has no ShapeEnv.", slug="torch-changed")
        return real(name)

    monkeypatch.setattr(doctor.importlib, "import_module", refuse)
    code, text = run()
    assert code == 1
    assert "  sizes              no: torch 9 has no ShapeEnv.\n" in text


def test_a_torch_that_lacks_a_name_gives_one_message_and_no_traceback() -> None:
    script = (
        "import torch._export.serde.serialize as s; del s._SYM_OPS; import sys; sys.argv[1:] = ['show', '.'];"
        "from onlooker.__main__ import main; exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("onlooker: torch ")
    assert "_SYM_OPS" in done.stderr
    assert done.stderr.endswith("[torch-changed]\n")
