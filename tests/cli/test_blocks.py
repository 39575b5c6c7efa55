"""Equal blocks from the shell: exported, and verified with the model in another process."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from onlooker.cli import main

APP = """
import torch


class Block(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(number) for number in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def model():
    torch.manual_seed(0)
    return Model().eval().requires_grad_(False)


def build():
    own = model()

    def use():
        for rows, length in ((2, 5), (3, 7), (1, 4)):
            own(torch.randn(rows, length, 4))

    return own, use


def other():
    own, use = build()
    own.blocks[2].forward = lambda x: x
    return own, use
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repeats.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def run(*argv: str) -> tuple[int, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(argv, stdout, stderr)
    return code, stdout.getvalue() + stderr.getvalue()


def test_a_program_of_blocks_is_verified_with_the_function_that_was_exported() -> None:
    code, text = run("export", "repeats.py:build", "--entry", "blocks", "--out", "program")
    assert code == 0, text
    for place in ("program", "program/blocks"):
        code, text = run("verify", place, "--build", "repeats.py:build", "--entry", "blocks")
        assert code == 0, text
        assert "\nverified, " in text
    code, text = run("verify", "program", "--build", "repeats.py:model", "--entry", "blocks")
    assert code == 1
    assert "bad-function" in text
    assert "the model and a callable" in text


@pytest.mark.slow
def test_another_model_is_not_verified() -> None:
    assert run("export", "repeats.py:build", "--entry", "blocks", "--out", "program")[0] == 0
    code, text = run("verify", "program", "--build", "repeats.py:other", "--entry", "blocks")
    assert code != 0
    assert "\nverified, " not in text
