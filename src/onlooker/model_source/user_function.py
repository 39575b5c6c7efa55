"""``MODULE:FUNCTION``: a function of the user that gives a model, and a callable that uses it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import OnlookerError, UsageError

__all__ = [
    "FunctionRaisedError",
    "Used",
    "check_name",
    "function_named",
    "has_use",
    "load_function",
    "load_model",
    "name_of_function",
    "names_a_file",
    "names_a_function",
    "raised_by_the_user",
    "result_of",
    "used_by",
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
    return used_by(name, result_of(name))


def used_by(name: str, result: Any) -> Used:
    """The model and the callable that the function called ``name`` returned.

    :raises UsageError: ``bad-function`` where it returned something else
    """
    if has_use(result) and callable(result[1]):
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
    return result[0] if has_use(result) else result


def names_a_function(name: str) -> bool:
    """True for what is meant as MODULE:FUNCTION, and not as the place of a recording.

    >>> [names_a_function(name) for name in ("app.py:build", "app:build", "app.py", ".")]
    [True, True, True, False]
    """
    return name.endswith(".py") or not Path(name).exists()


def name_of_function(value: Any) -> str:
    """The name by which another process finds a function; a text is one already.

    :raises UsageError: ``bad-function``
    """
    if isinstance(value, str):
        return value
    name, module = getattr(value, "__qualname__", ""), getattr(value, "__module__", "")
    if not callable(value) or not name.isidentifier() or not module:
        raise UsageError(
            f"Another process cannot find {value!r}.",
            slug="bad-function",
            hint="Give a function that stands at the top of a module, or its name: app.py:build.",
        )
    if module == "__main__":
        module = os.path.abspath(str(getattr(sys.modules["__main__"], "__file__", "")))
    return f"{module}:{name}"


def check_name(name: str) -> None:
    """Passes for a name of a function whose file, where it names one, is there; nothing is run.

    :raises UsageError: ``bad-function``
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not _is_module(place) or not attribute.isidentifier():
        nowhere = "" if colon or Path(name).exists() else f", and there is no file or folder {name}"
        raise UsageError(f"{name!r} names no function{nowhere}.", slug="bad-function", hint=_HINT)
    if names_a_file(place) and not Path(place).is_file():
        raise UsageError(f"There is no file {place}.", slug="bad-function", hint=_HINT)


def result_of(name: str) -> Any:
    """Calls the function ``name`` of the user, and returns its result.

    :raises UsageError: ``bad-function``
    :raises FunctionRaisedError: ``function-raised``
    """
    function = function_named(name)
    with raised_by_the_user(name):
        return function()


def function_named(name: str) -> Callable[..., Any]:
    """The function ``name`` of the user, whose module is imported for it.

    :raises UsageError: ``bad-function``
    :raises FunctionRaisedError: ``function-raised`` when the module raises
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
    named: Callable[..., Any] = function
    return named


def _is_module(place: str) -> bool:
    """True for what can be the file or the name of a module."""
    if "\0" in place or not place:
        return False
    return names_a_file(place) or all(part.isidentifier() for part in place.split("."))


def names_a_file(place: str) -> bool:
    """True for what is meant as the file of a module, and not as its name."""
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
    return _from_file(Path(place)) if names_a_file(place) else _by_name(place)


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


def has_use(result: Any) -> bool:
    """True for a model with a callable that uses it; a function may return the model alone where a
    recording has the calls.
    """
    return isinstance(result, tuple) and len(result) == 2
