"""`onlooker mcp` with the client of the protocol's own package: `make test-engines`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from onlooker.cli.work.mcp import Tools, server

mcp = pytest.importorskip("mcp")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(500)]

PAGE = Path(__file__).parent.parent.parent / "docs" / "command_line.md"
#: a script that prints to the standard output, which is that of the protocol
SCRIPT = "from app import build\nmodel, use = build()\nprint('{', flush=True)\nuse()\n"


@pytest.fixture(autouse=True)
def _in_a_folder_with_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert app is not None
    Path("app.py").write_text(app[1], encoding="utf-8")
    Path("serve.py").write_text(SCRIPT, encoding="utf-8")


async def said(client: Any, tool: str, **arguments: Any) -> str:
    """What a tool answers, with its fault where it is one."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    return f"ERROR {content.text}" if result.is_error else content.text


def test_five_tools_answer_with_the_reports() -> None:
    async def session() -> None:
        tools = Tools(["app.py:build", "serve.py"], Path("out"), 300)
        async with mcp.Client(server(tools)) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == ["record", "plan", "export", "verify", "explain"]
            assert all(len(tool.description) > 100 for tool in listed)

            assert "recorded in out/app-build.json" in await said(client, "record", code="app.py:build")
            plan = await said(client, "plan", source="out/app-build.json", build="app.py:build")
            assert "the model refuses another size" in plan
            export = await said(client, "export", source="app.py:build", ranges=["batch=1:64"])
            assert export.startswith("verdict: verified\n")
            assert "batch 1 to 64" in export
            assert await said(client, "verify", program="out/app-build-torch", build="app.py:build") != export
            explain = await said(client, "explain", what="out/app-build-torch", path="x", dim=1)
            assert "x.shape[1] is sequence." in explain
            assert all(len(text) < 4000 for text in (plan, export, explain))

            refused = await said(client, "export", source="other.py:build")
            assert refused.startswith("ERROR ")
            assert "[code-not-named]" in refused
            assert (await said(client, "export", source="app.py:build", to="onyx")).endswith("[tool-failed]")

    asyncio.run(session())


def test_the_command_serves_on_its_standard_streams() -> None:
    """A script that prints, and a client that goes, leave the protocol whole."""

    async def session() -> None:
        path = os.pathsep.join(place for place in sys.path if place)
        started = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-m", "onlooker", "mcp", "serve.py", "--out", "seen"],
            env={**os.environ, "PYTHONPATH": path},
        )
        async with mcp.Client(started) as client:
            assert "2 calls in 1 process" in await said(client, "record", code="serve.py")
            assert "What to do" in await said(client, "explain", what="no-calls")

    asyncio.run(session())
    assert list(Path("seen/serve").glob("*.jsonl"))
