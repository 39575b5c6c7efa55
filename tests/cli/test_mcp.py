"""The tools of `onlooker mcp` without the protocol: what they may run, and what they say. See tests/engines too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from onlooker import OnlookerError
from onlooker.cli.work.mcp import Tools


def answer(coroutine: Awaitable[str]) -> str:
    async def awaited() -> str:
        return await coroutine

    return asyncio.run(awaited())


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Tools that may run one function and one script."""
    monkeypatch.chdir(tmp_path)
    for name in ("app", "evil"):
        Path(f"{name}.py").write_text(f"open('{name} ran', 'w').close()\ndef build(): ...\n")
    Path("serve.py").write_text("import subprocess, sys\nsubprocess.run(['sleep', '60'])\n")
    return Tools(["app.py:build", "serve.py"], tmp_path / "out", 1.5)


def test_no_other_code_is_run(tools: Tools) -> None:
    asked = [
        tools.record("evil.py"),
        tools.record("evil.py:build"),
        tools.record("./serve.py"),
        tools.plan("evil.py:build"),
        tools.plan("evil:build"),
        tools.plan("serve.py", build="evil.py:build"),
        tools.export("evil.py:build"),
        tools.export("app.py:build", build="evil.py:build"),
        tools.verify("out", build="evil.py:build"),
        tools.verify("evil.pt2"),
        tools.verify("evil.onnx", build="app.py:build"),
    ]
    for coroutine in asked:
        with pytest.raises(OnlookerError) as raised:
            answer(coroutine)
        assert raised.value.slug == "code-not-named"
    assert not list(Path().glob("* ran"))


def test_a_word_is_never_an_option_or_a_folder_elsewhere(tools: Tools) -> None:
    Path("--machine-code").mkdir()
    asked = [
        tools.verify("--machine-code"),
        tools.explain("--operators=evil"),
        tools.explain("out", path="--full"),
        tools.plan("--machine-code"),
        tools.export("app.py:build", name="../elsewhere"),
        tools.record("serve.py", name="/tmp/elsewhere"),
        tools.record("app.py:build", name="."),
    ]
    for coroutine in asked:
        with pytest.raises(OnlookerError) as raised:
            answer(coroutine)
        assert raised.value.slug == "bad-command-line"


def test_an_answer_is_that_of_the_command(tools: Tools) -> None:
    assert "**What to do.**" in answer(tools.explain("call-refused"))
    with pytest.raises(OnlookerError, match=r"exit code 1:\n.*Did you mean call-refused.*\[unknown-error\]"):
        answer(tools.explain("call-refusd"))


def test_a_tool_that_takes_too_long_is_ended_with_its_processes(tools: Tools) -> None:
    begin = time.monotonic()
    with pytest.raises(OnlookerError, match=r"onlooker run was ended after 1.5 seconds. .*\[tool-failed\]"):
        answer(tools.record("serve.py"))
    assert time.monotonic() - begin < 30
