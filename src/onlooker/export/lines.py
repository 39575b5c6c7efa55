"""The lines of the model that ask about sizes, heard while torch traces them.

torch.export says at the end which sizes it could not keep open, and not which line made it so. Its logger tells of
every guard at the moment when it is made: the stack then holds the line. Nothing of torch is replaced; nothing is
written, and the level of the logger is put back.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py, where
``ShapeEnv._log_guard`` has the guard as ``g``.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import FrameType
from typing import Any

import sympy
import torch

from ..core.path import Path
from ..core.plan import Plan

__all__ = ["Guard", "listening", "place_of_error", "place_of_node", "reasons"]

_LOGGER = "torch.fx.experimental.symbolic_shapes"
_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, str(FilePath(__file__).parents[1]) + os.sep)
_SOURCE = re.compile(r"L\['(\w+)'\](?:\.size\(\)\[(\d+)\])?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_MOST_PLACES = 2


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on sizes, the sizes in it by their source in torch, and the line of the model that asked."""

    condition: Any
    sources: Mapping[Any, str]
    place: str

    @property
    def is_number(self) -> bool:
        """True for a size, or what is computed from sizes, that has to be one number."""
        return isinstance(self.condition, sympy.Eq) and any(side.is_number for side in self.condition.args)

    def spelled(self, plan: Plan, names: Mapping[Path, str]) -> tuple[str, frozenset[str]]:
        """The condition in the expressions of a plan, and the expressions that are in it."""
        axes = {(names[leaf.path], axis.dim): str(e) for leaf in plan.inputs for axis, e in leaf.axes}
        found: dict[Any, str] = {}
        for symbol, source in self.sources.items():
            match = _SOURCE.fullmatch(source)
            if match is not None:
                dim = match.group(2)
                found[symbol] = axes.get((match.group(1), int(dim) if dim else None), source)
        texts = {symbol: sympy.Symbol(_as_term(text)) for symbol, text in found.items()}
        return _written(self.condition.xreplace(texts)), frozenset(found.values())


def _as_term(text: str) -> str:
    """A size that stands in a larger one: ``(past + sequence)``."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _written(condition: Any) -> str:
    """``batch == 3``, where sympy writes ``Eq(batch, 3)``."""
    if isinstance(condition, sympy.core.relational.Relational):
        return f"{_side(condition.lhs)} {condition.rel_op} {_side(condition.rhs)}"
    return str(condition)


def _side(side: Any) -> str:
    """One side of a comparison, without brackets around the whole."""
    return str(side)[1:-1] if isinstance(side, sympy.Symbol) and str(side).startswith("(") else str(side)


@contextlib.contextmanager
def listening() -> Iterator[list[Guard]]:
    """Inside the block every guard that torch makes is added to the list."""
    logger = logging.getLogger(_LOGGER)
    level, shown = logger.level, logger.getEffectiveLevel()
    heard: list[Guard] = []

    def hear(record: logging.LogRecord) -> bool:
        if "[guard added]" in str(record.msg):
            heard.extend(_guard(sys._getframe(1)))
        return record.levelno >= shown

    logger.addFilter(hear)
    logger.setLevel(min(shown, logging.INFO))
    try:
        yield heard
    finally:
        logger.setLevel(level)
        logger.removeFilter(hear)


def _guard(frame: FrameType | None) -> Iterator[Guard]:
    """The guard that the innermost ``_log_guard`` of the stack is about."""
    while frame is not None and frame.f_code.co_name != "_log_guard":
        frame = frame.f_back
    if frame is None:
        return
    condition, sources = frame.f_locals.get("g"), getattr(frame.f_locals.get("self"), "var_to_sources", {})
    place = _place(frame)
    if isinstance(condition, sympy.Basic) and place:
        known = {s: str(sources[s][0].name) for s in condition.free_symbols if sources.get(s)}
        yield Guard(condition, known, place)


def _place(frame: FrameType | None) -> str:
    """The innermost line that belongs to the model; empty where torch was called from here."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_LIBRARIES[1]):
            return ""
        if not name.startswith(_LIBRARIES[0]) and not name.startswith("<"):
            return _line(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return ""


def _line(file: str, number: int, function: str) -> str:
    text = linecache.getline(file, number).strip()
    return f"{_short(file)}:{number} in {function}: {text}"


def _short(file: str) -> str:
    """A file as one would name it: from the installed packages, or from the current directory, on."""
    _, found, rest = file.rpartition(f"site-packages{os.sep}")
    here = os.getcwd() + os.sep
    return rest if found else file.removeprefix(here)


def place_of_error(error: BaseException) -> str:
    """The innermost line of the model that an error came from; empty where there is none."""
    place, trace = "", error.__traceback__
    inside = False
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        inside = inside or name.startswith(_LIBRARIES)
        if inside and not name.startswith((*_LIBRARIES, "<")):
            place = _line(name, trace.tb_lineno, trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    cause = error.__cause__
    return place or (place_of_error(cause) if cause is not None else "")


def place_of_node(node: torch.fx.Node) -> str:
    """The innermost line of the model that called what the node calls; empty where the graph does not say."""
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in found if not frame[0].startswith((*_LIBRARIES, "<"))]
    return _line(own[-1][0], int(own[-1][1]), own[-1][2]) if own else ""


def reasons(guards: Iterable[Guard], plan: Plan, names: Mapping[Path, str], wanted: Iterable[str]) -> list[str]:
    """For each of these expressions of the plan the lines that ask about it: those about it alone before others."""
    spelled = [(*guard.spelled(plan, names), guard.place) for guard in guards]
    found: list[str] = []
    for text in wanted:
        about = sorted((item for item in spelled if text in item[1]), key=lambda item: len(item[1]))
        places = list(dict.fromkeys(f"{condition} is asked at {place}" for condition, _, place in about))
        found += [place for place in places[:_MOST_PLACES] if place not in found]
    return found
