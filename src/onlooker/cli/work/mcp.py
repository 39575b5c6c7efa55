"""``onlooker mcp``: commands as tools of an agent, over the Model Context Protocol.

A tool is the command of its name, run in a process of its own: code that was edited since the last
call is read anew, and code that ends its process, or writes to the standard output, leaves the server
as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import OnlookerError, UsageError
from ...core.support.packages import require_packages
from ...core.versions import __version__
from ..command import Answer, ExitCode, to_type

__all__ = ["Tools", "run", "server"]

#: lines of the standard error of a command that failed, from the end, which a tool gives
_MOST_LINES = 40
#: how recordings and programs may be called
_NAME = re.compile(r"\w[\w.-]*")
_INSTRUCTIONS = (
    "onlooker watches a PyTorch model while it is used, exports it with the right dynamic shapes, and"
    " proves the program on calls that it never saw. Begin with plan or record, then export, then read"
    " the report: a program is proven only where it says verified. explain has the reason of each axis,"
    " and what to do about an error that ends with [word]."
)


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Serves until the standard input ends.

    :raises MissingPackageError: ``missing-package``
    """
    tools = Tools(options.code, options.out, options.seconds)
    found = server(tools)
    # a command's standard output is replaced while it runs, and here it is that of the protocol
    with contextlib.redirect_stdout(sys.__stdout__):
        asyncio.run(found.run_stdio_async())
    return Answer(
        ExitCode.VERIFIED,
        lambda console: None,
        lambda: {"tools": list(tools.by_name)},
        to_type("show", str(options.out)),
        pure=True,
    )


def server(tools: Tools) -> Any:
    """The tools as an ``MCPServer`` of the package mcp.

    :raises MissingPackageError: ``missing-package``
    """
    require_packages("mcp.server.mcpserver", purpose="onlooker mcp", extra="mcp")
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    def answering(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        @functools.wraps(tool)
        async def answer(*args: Any, **kwargs: Any) -> str:
            try:
                return await tool(*args, **kwargs)
            except OnlookerError as error:
                raise ToolError(str(error)) from error

        return answer

    found = MCPServer(
        "onlooker", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    for name, tool in tools.by_name.items():
        hints = ToolAnnotations(readOnlyHint=name in ("verify", "explain"), openWorldHint=False)
        found.tool(name, annotations=hints, structured_output=False)(answering(tool))
    return found


class Tools:
    """The five tools: the text of each answer is the report that the command prints.

    ``code`` are the functions and the scripts that may be run, ``out`` is the folder in which
    recordings and programs are written, ``seconds`` the time after which a command is ended.
    """

    def __init__(self, code: Sequence[str], out: Path, seconds: float) -> None:
        self._code, self._out, self._seconds = tuple(code), out, seconds
        self.by_name: dict[str, Callable[..., Awaitable[str]]] = {
            "record": self.record,
            "plan": self.plan,
            "export": self.export,
            "verify": self.verify,
            "explain": self.explain,
        }

    async def record(self, code: str, name: str = "") -> str:
        """Runs a function or a Python script, watches the models that it calls, and reports the calls:
        entry points, the sizes of each axis, relations between sizes. Values are not kept.

        code: one of the functions (app.py:build) or scripts (serve.py) that the server was started
        with. name: what the recording is called; the answer says where it is, and plan and export
        take that place as their source. Calls of a script are added to those of earlier runs.
        """
        self._check_code(code)
        place = self._place(name or _name_of(code))
        if Path(code).is_file():
            await self._run("run", f"--out={place}", code)
            report = await self._run("report", str(place))
        else:
            place = place.with_name(f"{place.name}.json")
            self._out.mkdir(parents=True, exist_ok=True)
            await self._run("plan", code, "--no-probe", f"--save-recording={place}", "--quiet")
            report = await self._run("show", str(place))
        return f"{report}\nrecorded in {place}"

    async def plan(
        self, source: str, build: str = "", entry: list[str] | None = None, to: str = "torch"
    ) -> str:
        """Says what an export would do, in seconds: how many graphs, for which sizes, what stays as
        it is and which option changes that, and how long it takes. Nothing is exported.

        source: one of the functions that the server was started with, or the place of a recording.
        build: the function that returns the model, for a recording. entry: parts of a pipeline, or
        entry points of a recording. to: torch, onnx, aoti, openvino or executorch.
        """
        words = self._of_source(source, build, entry, to)
        return await self._run("plan", *words, "--quiet")

    async def export(
        self,
        source: str,
        build: str = "",
        entry: list[str] | None = None,
        to: str = "torch",
        name: str = "",
        static: list[str] | None = None,
        dynamic: list[str] | None = None,
        ranges: list[str] | None = None,
    ) -> str:
        """Watches, exports and verifies; the report has the verdict, the sizes that the program takes,
        and where it was written.

        source, build, entry, to: as in plan. name: what the program is called. static and dynamic:
        dimensions that never change, that change, as x:0,2. ranges: least and greatest sizes, as
        batch=1:64.
        """
        words = self._of_source(source, build, entry, to)
        for option, texts in (("static", static), ("dynamic", dynamic), ("range", ranges)):
            words += [f"--{option}={text}" for text in texts or ()]
        place = self._place(name or f"{_name_of(source)}-{to}")
        return await self._run("export", *words, f"--out={place}", "--quiet")

    async def verify(
        self,
        program: str,
        build: str = "",
        entry: list[str] | None = None,
        atol: float | None = None,
    ) -> str:
        """Proves a program again: its files, and its results against those of the model.

        program: the folder of a program. build: the function of the model, one of those that the
        server was started with; without it the values that were saved are compared. entry: parts, for
        programs of several entries. atol: the largest difference allowed.
        """
        from ...foreign.open import is_foreign  # it needs torch

        if is_foreign(Path(program)):
            raise UsageError(
                f"{program} is the export of another maker, and to read it may run code.",
                slug="code-not-named",
                hint="Compare it yourself: onlooker verify FILE --build MODULE:FUNCTION.",
            )
        words = [_plain(program), *self._with_build(build), *_entries(entry)]
        words += [f"--atol={atol}"] if atol is not None else []
        return await self._run("verify", *words, "--quiet")

    async def explain(self, what: str, path: str = "", dim: int | None = None) -> str:
        """Says why an axis of a program changes or not, with the calls and experiments as evidence;
        or what an error means and what to do about it.

        what: the folder of a program, or the word in brackets at the end of an error. path: the
        argument, as the report has it: past_key_values.layers[0].keys. dim: its dimension, from 0.
        """
        words = [_plain(what), *([_plain(path)] if path else [])]
        words += [str(dim)] if dim is not None else []
        return await self._run("explain", *words)

    def _of_source(
        self, source: str, build: str, entry: Sequence[str] | None, to: str
    ) -> list[str]:
        """The words of a source, which is a function that may be run, or a place with calls."""
        if not Path(source).exists() or source in self._code:
            self._check_code(source)
        return [_plain(source), *self._with_build(build), *_entries(entry), f"--to={to}"]

    def _with_build(self, build: str) -> list[str]:
        if not build:
            return []
        self._check_code(build)
        return [f"--build={build}"]

    def _check_code(self, code: str) -> None:
        """Passes for code that the user has named.

        :raises UsageError: ``code-not-named``
        """
        if code not in self._code:
            raise UsageError(
                f"{code!r} is none of the code that may be run here.",
                slug="code-not-named",
                hint=f"There are {', '.join(self._code) or 'none'}; onlooker mcp is started with them.",
            )

    def _place(self, name: str) -> Path:
        """A place below the folder of results.

        :raises UsageError: ``bad-command-line``
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for a result.",
                slug="bad-command-line",
                hint="Give letters, digits, '.', '_' and '-', and no folder.",
            )
        return self._out / name

    async def _run(self, *words: str) -> str:
        """What a command prints; its program may be verified or not.

        :raises OnlookerError: ``tool-failed``
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "onlooker", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), self._seconds)
        except asyncio.TimeoutError:
            raise OnlookerError(
                f"onlooker {words[0]} was ended after {self._seconds:g} seconds.",
                slug="tool-failed",
                hint="Use smaller inputs, or start onlooker mcp with more --seconds.",
            ) from None
        finally:
            if process.returncode is None:
                _end(process.pid)
                await process.communicate()
        if process.returncode in (ExitCode.VERIFIED, ExitCode.NOT_VERIFIED):
            return output.decode("utf-8", "replace").rstrip()
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        said = "\n".join(lines[-_MOST_LINES:])
        raise OnlookerError(
            f"onlooker {words[0]} failed with exit code {process.returncode}:\n{said}\n",
            slug="tool-failed",
            hint="The lines above are those of the command.",
        )


def _end(pid: int) -> None:
    """Ends a process with those that it has started."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)


def _name_of(code: str) -> str:
    """``app-build`` for ``app.py:build``, ``calls`` for ``seen/calls.json``."""
    place, _, function = code.rpartition(":") if not Path(code).exists() else (code, "", "")
    stem = Path(place).stem or "result"
    return f"{stem}-{function}" if function else stem


def _entries(entry: Sequence[str] | None) -> list[str]:
    return [f"--entry={name}" for name in entry or ()]


def _plain(word: str) -> str:
    """A word that is no option of the command.

    :raises UsageError: ``bad-command-line``
    """
    if word.startswith("-") or not word:
        raise UsageError(
            f"{word!r} is no place and no name.",
            slug="bad-command-line",
            hint="Give the place of a file or a folder.",
        )
    return word
