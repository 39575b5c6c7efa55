"""Sees the calls of modules in this process: one wrapper around ``Module.__call__``.

Modules that are called inside of another one's call pass at once. Nothing here raises into the
program, nor installs a handler of signals, nor changes how processes are made.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any

import torch

from ..observing import call_recorder
from ..observing.wrapped_model import model_inside
from .entry_point import entry_point, real_class
from .places import caller_of, place_of
from .process import Process
from .recorder import EntryRecorder
from .settings import Settings

__all__ = ["install"]


class _Inside(threading.local):
    """Says of this thread whether it is inside of a call that is recorded."""

    busy = False


_inside = _Inside()


def install(settings: Settings) -> Process:
    """Records the calls of this process from now on."""
    process = Process(settings)
    hook = _Hook(process, settings)
    hook.wrap_calls()
    if settings.entries:
        hook.wrap_construction()
    process.begin()
    return process


class _Hook:
    def __init__(self, process: Process, settings: Settings) -> None:
        self._process = process
        self._settings = settings
        self._patterns = tuple(
            (pattern.rpartition(".")[0] or pattern, pattern.rpartition(".")[2] or "forward")
            if "." in pattern
            else (pattern, "forward")
            for pattern in settings.entries
        )
        self._seen: set[type] = set()
        self._wrappers: set[type] = set()
        self._call: Any = torch.nn.Module.__call__

    def wrap_calls(self) -> None:
        """Puts the wrapper around the call of every module."""
        original = self._call
        is_compiling, record = torch.compiler.is_compiling, self._record

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _inside.busy or is_compiling():
                return original(self, *args, **kwargs)
            return record(original, "forward", (self, *args), kwargs)

        __call__.__qualname__ = original.__qualname__
        __call__.__module__ = original.__module__
        torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def wrap_construction(self) -> None:
        """Looks at the class of every module that is made, for methods that were asked for."""
        original, look = torch.nn.Module.__init__, self._look_at

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not torch.compiler.is_compiling():
                with contextlib.suppress(Exception):  # what cannot be looked at is not recorded
                    look(type(self))

        torch.nn.Module.__init__ = __init__  # type: ignore[method-assign]

    def _look_at(self, cls: type) -> None:
        if cls in self._seen:
            return
        self._seen.add(cls)
        for pattern, method in self._patterns:
            names = (cls.__name__, f"{cls.__module__}.{cls.__qualname__}")
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                with contextlib.suppress(Exception):  # what cannot be wrapped is not recorded
                    self._wrap_method(cls, method)

    def _wrap_method(self, cls: type, name: str) -> None:
        original = getattr(cls, name)
        if not isinstance(original, FunctionType) or hasattr(original, "__onlooker_run__"):
            return
        record = self._record

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            return record(original, name, (self, *args), kwargs)

        method.__onlooker_run__ = True  # type: ignore[attr-defined]
        setattr(cls, name, method)

    def _record(
        self,
        original: Callable[..., Any],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        recorder = None
        with contextlib.suppress(Exception):  # a class without a forward to look at, for one
            is_method_recorded = original is self._call and _has_recorded_forward(args[0])
            recorder = None if is_method_recorded else self._recorder(args[0], method)
        if recorder is None:
            return original(*args, **kwargs)
        was_busy, _inside.busy = _inside.busy, True
        try:
            return recorder.watch(original, args, kwargs)
        except BaseException as error:
            with contextlib.suppress(Exception):
                _without_our_frames(error.__traceback__)
            raise
        finally:
            _inside.busy = was_busy
            with contextlib.suppress(Exception):
                self._process.wake()

    def _recorder(self, model: Any, method: str) -> EntryRecorder:
        known = self._process.by_class
        found = known.get((type(model), method))
        if found is None and type(model) in self._wrappers:  # it may hold another one each time
            found = known.get((real_class(model), method))
        return found or self._new_recorder(model, method)

    def _new_recorder(self, model: Any, method: str) -> EntryRecorder:
        cls, process = real_class(model), self._process
        if cls is not type(model):
            self._wrappers.add(type(model))
        entry, signature = entry_point(model, method)
        with process.lock:
            recorder = process.recorder_of(entry, signature)
            process.by_class[cls, method] = recorder
        inner = model_inside(model)
        with contextlib.suppress(Exception):
            frame = sys._getframe(4)  # that of the program
            place, caller = place_of(inner, frame), caller_of(inner, frame)
            recorder.places.update([place] if place else [])
            recorder.callers.update([caller] if caller else [])
        if self._settings.at_exit and not recorder.models:
            recorder.models.append(inner)
        return recorder


def _has_recorded_forward(module: Any) -> bool:
    """True for a module whose ``forward`` records its own calls. The class of a scripted module has
    none that can be read.
    """
    forward = getattr(type(module), "forward", None)
    return hasattr(forward, "__onlooker_run__")


_OURS = (os.path.dirname(os.path.abspath(__file__)), os.path.abspath(call_recorder.__file__))


def _without_our_frames(traceback: TracebackType | None) -> None:
    """Takes the frames of what records out of a traceback, but for the first one."""
    while traceback is not None:
        following = traceback.tb_next
        while following is not None and following.tb_frame.f_code.co_filename.startswith(_OURS):
            following = following.tb_next
        traceback.tb_next = following
        traceback = following
