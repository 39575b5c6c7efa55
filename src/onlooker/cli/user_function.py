"""``MODULE:FUNCTION``: a function of the user that gives a model, and a callable that uses it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import OnlookerError, UsageError
from ..report.code_layout import quoted

__all__ = [
    "FunctionRaisedError",
    "Used",
    "check_name",
    "load_function",
    "load_model",
    "names_a_function",
    "raised_by_the_user",
    "result_of",
    "source_of",
]

_HINT = (
    "Write for example app.py:build, where build() returns (model, use) and use() calls the model."
)


class FunctionRaisedError(OnlookerError):
    """The code of the user raised; ``traceback`` is the part of it that is theirs."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(
            message, slug="function-raised", hint="The traceback above is that of your code."
        )
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class Used:
    """A model and its use, and the text by which the function was named."""

    name: str
    model: Any
    use: Callable[[], object]


def load_function(name: str) -> Used:
    """The model and the callable that the function called ``name`` returns.

    The current directory is where modules are looked for first, as in ``python -m``.

    :raises UsageError: ``bad-function`` when there is no such function, or it returns something
        else
    :raises FunctionRaisedError: ``function-raised``
    """
    result = result_of(name)
    if _has_use(result) and callable(result[1]):
        return Used(name, *result)
    raise UsageError(
        f"{name} returned {_described(result)}, and not a model and a callable.",
        slug="bad-function",
        hint=_HINT,
    )


def load_model(name: str) -> Any:
    """The model that the function called ``name`` returns, alone or with a callable.

    :raises UsageError: ``bad-function``
    :raises FunctionRaisedError: ``function-raised``
    """
    result = result_of(name)
    return result[0] if _has_use(result) else result


def names_a_function(name: str) -> bool:
    """True for what is meant as MODULE:FUNCTION, and not as the place of a recording.

    >>> [names_a_function(name) for name in ("app.py:build", "app:build", "app.py", ".")]
    [True, True, True, False]
    """
    return name.endswith(".py") or not Path(name).exists()


def check_name(name: str) -> None:
    """Passes for a name of a function whose file, where it names one, is there; nothing is run.

    :raises UsageError: ``bad-function``
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not _is_module(place) or not attribute.isidentifier():
        nowhere = "" if colon or Path(name).exists() else f", and there is no file or folder {name}"
        raise UsageError(f"{name!r} names no function{nowhere}.", slug="bad-function", hint=_HINT)
    if _is_file(place) and not Path(place).is_file():
        raise UsageError(f"There is no file {place}.", slug="bad-function", hint=_HINT)


def result_of(name: str) -> Any:
    """What the function called ``name`` returns.

    :raises UsageError: ``bad-function``
    :raises FunctionRaisedError: ``function-raised``
    """
    check_name(name)
    place, _, attribute = name.rpartition(":")
    module = _module(place)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(
            f"{place} has no function {attribute!r}.",
            slug="bad-function",
            hint=f"It has {_functions(module)}.",
        )
    with raised_by_the_user(name):
        return function()


def _is_module(place: str) -> bool:
    """True for what can be the file or the name of a module."""
    if "\0" in place or not place:
        return False
    return _is_file(place) or all(part.isidentifier() for part in place.split("."))


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return f"a {type(result).__name__}"


def _functions(module: ModuleType) -> str:
    names = [
        n
        for n, v in vars(module).items()
        if callable(v) and getattr(v, "__module__", "") == module.__name__
    ]
    return ", ".join(names[:8]) or "none of its own"


def _module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    return _from_file(Path(place)) if _is_file(place) else _by_name(place)


def _from_file(file: Path) -> ModuleType:
    beside = str(file.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)  # as python does for a script
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is no Python file.", slug="bad-function", hint=_HINT)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # dataclasses and pickles look their module up
    try:
        with raised_by_the_user(str(file)):
            spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[file.stem]
        else:
            sys.modules[file.stem] = before
        raise
    return module


def _by_name(name: str) -> ModuleType:
    try:
        with raised_by_the_user(name, but=(ModuleNotFoundError,)):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"There is no module {error.name!r}.",
                slug="bad-function",
                hint=(
                    f"It was looked for in {Path.cwd()} and in the environment of {sys.executable}."
                ),
            ) from error
        raise _raised(name, error) from error


@contextmanager
def raised_by_the_user(what: str, *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Inside the block runs code of the user: what it raises is theirs, and is shown as theirs.

    :raises FunctionRaisedError: ``function-raised``; what onlooker raises on purpose, and ``but``,
        passes
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (OnlookerError, *but)):
            raise
        raise _raised(what, error) from error


def _raised(what: str, error: BaseException) -> FunctionRaisedError:
    return FunctionRaisedError(
        f"{what} raised {type(error).__name__}: {error}.", _their_traceback(error)
    )


def _their_traceback(error: BaseException) -> str:
    """The traceback without the frames of onlooker, of the import system and of torch's way into
    a module.
    """
    ours = str(Path(__file__).parent.parent)
    shown = traceback.TracebackException.from_exception(error)
    found: traceback.TracebackException | None = shown
    while found is not None:
        frames = [f for f in found.stack if not f.filename.startswith((ours, "<frozen "))]
        frames = [
            f
            for f in frames
            if not f.filename.endswith(("torch/nn/modules/module.py", "contextlib.py"))
        ]
        found.stack = traceback.StackSummary.from_list(frames)
        found = found.__cause__ or found.__context__
    return "".join(shown.format())


def source_of(name: str, result: Any = None) -> str:
    """The body of a function that gives the model, for a script which runs in the same directory.

    ``result`` is what the function returned: a model alone, or with a callable, which is the default.
    """
    place, _, attribute = name.rpartition(":")
    part = "[0]" if result is None or _has_use(result) else ""
    if _is_file(place):
        return (
            f"import runpy\n\nreturn runpy.run_path({quoted(place)})[{quoted(attribute)}](){part}"
        )
    return f"from {place} import {attribute}\n\nreturn {attribute}(){part}"


def _has_use(result: Any) -> bool:
    """True for a model with a callable that uses it."""
    return isinstance(result, tuple) and len(result) == 2
