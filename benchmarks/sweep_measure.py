"""One architecture: it is used, watched and exported, and its program answers calls that nobody
watched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

import onlooker

#: what a row says of an architecture, the best first
STATUSES = (
    "ok",
    "not-verified",
    "rejects",
    "crash",
    "wrong",
    "wrong-but-verified",
    "export-error",
    "observe-error",
    "timeout",
    "not-built",
)
#: the largest difference that is exact, of ``1 + max|expected|``
TOLERANCE = 1e-4
#: the unseen calls that are asked of a program, of those that differ in their shapes
MOST_CALLS = 8
_DEEPEST = 12


class NotBuilt(Exception):
    """There is no tiny model of an architecture, or no use of it; the text says why, ``slug`` in
    one word.
    """

    def __init__(self, text: str, slug: str = "no-use") -> None:
        self.slug = slug
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Use:
    """A model, the run of it that is watched, and runs that are not.

    A run takes the model to run, since expected results come from a copy of it. ``passed_over`` are
    the uses that would have been more natural, and what the model said to them. The last unseen run
    has larger media than the watched one, where there is a run with media ``between`` them.
    """

    story: str
    model: torch.nn.Module
    watch: Callable[[Any], object]
    unseen: tuple[Callable[[Any], object], ...]
    passed_over: tuple[str, ...] = ()
    between: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a model was given, and what it returned: copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any


def measure(build: Callable[[], Use], row: dict[str, Any], send: Callable[[Any], None]) -> None:
    """Fills the row of one architecture; ``send`` is given the row before each stage."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(_Ended):
            _stages(build, row, send)
    row["seconds"] = round(time.perf_counter() - begin, 1)
    row.pop("stage", None)


class _Ended(Exception):
    """A stage failed; the row says how."""


def _stages(build: Callable[[], Use], row: dict[str, Any], send: Callable[[Any], None]) -> None:
    with _stage(row, send, "build", "not-built"):
        use = build()
        row["use"] = use.story
        row["passed_over"] = list(use.passed_over)
        row["parameters"] = sum(weight.numel() for weight in use.model.parameters())
    with _stage(row, send, "expect", "not-built"):
        runs = unseen_runs(use)
        calls = different_calls(runs)
        row["random"] = is_random(use, calls)
    with _stage(row, send, "observe", "observe-error"):
        observer = watched(use)
    with _stage(row, send, "export", "export-error"):
        program = exported(observer, build)
        if program.state:
            row["state"] = True
        row["graphs"] = len(program.graphs)
    with _stage(row, send, "verify", "not-verified"):
        tally = program.verify()
        row["verified"] = bool(tally.verified)
        row["verify"] = f"{tally.passed}/{tally.total}"
        failed = [check for check in tally.checks if not check.passed]
    with _stage(row, send, "ask", "crash"):
        outcomes = answers(program, runs)
    kinds = [kind for kind, _ in outcomes]
    row["unseen"] = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    row["status"] = status_of(kinds, row["verified"])
    notes = [f"{kind}: {note}" for kind, note in outcomes if note]
    notes += [
        f"verify: {check.kind} {check.label}: {check.outcome}: {check.note}" for check in failed
    ]
    row["message"] = " | ".join(dict.fromkeys(notes[:3]))[:2000]
    row["slug"] = slug_of(row["message"])
    if row["status"] == "rejects" and use.between is not None:
        with _stage(row, send, "again", "rejects"):
            row["watched_twice"] = status_of_two_watched(build)


@contextlib.contextmanager
def _stage(
    row: dict[str, Any], send: Callable[[Any], None], name: str, failed: str
) -> Iterator[None]:
    """One stage; an error in it ends the row with the status ``failed``."""
    row["stage"] = name
    send(row)
    begin = time.process_time()
    try:
        yield
    except Exception as error:
        if not isinstance(error, NotBuilt):
            traceback.print_exc()
        row["status"], row["message"] = failed, text_of(error)
        row["slug"] = getattr(error, "slug", "") or type(error).__name__
        raise _Ended from error
    finally:
        row.setdefault("times", {})[name] = round(time.process_time() - begin, 1)


def status_of_two_watched(build: Callable[[], Use]) -> str:
    """The status where the larger media are watched too, as the refusal asks: then media between
    them, and other batches, are asked.
    """

    def watched_twice() -> Use:
        use = build()
        *others, larger = use.unseen
        assert use.between is not None

        def watch(module: Any) -> None:
            use.watch(module)
            larger(module)

        return replace(use, watch=watch, unseen=(*others, use.between))

    use = watched_twice()
    runs = unseen_runs(use)
    try:
        program = exported(watched(use), watched_twice)
    except onlooker.ExportError:
        traceback.print_exc()
        return "export-error"
    verified = program.verify().verified
    return status_of([kind for kind, _ in answers(program, runs)], verified)


def status_of(kinds: list[str], verified: bool) -> str:
    """The worst of what unseen calls got, then whether ``verify()`` agrees.

    >>> status_of(["ok", "ok"], True), status_of(["ok", "rejects"], True), status_of(["wrong"], True)
    ('ok', 'rejects', 'wrong-but-verified')
    """
    if "wrong" in kinds:
        return "wrong-but-verified" if verified else "wrong"
    for kind in ("crash", "rejects"):
        if kind in kinds:
            return kind
    return "ok" if verified else "not-verified"


def seed_all() -> None:
    """The random state before every run, so that models that draw numbers draw the same."""
    torch.manual_seed(7)


def watched(use: Use, *, state: bool = False) -> onlooker.InputObserver:
    """An observer that has watched the run that is to be watched."""
    observer = onlooker.InputObserver(state=state)
    seed_all()
    with observer(use.model), torch.no_grad():
        use.watch(use.model)
    return observer


def exported(observer: onlooker.InputObserver, anew: Callable[[], Use]) -> Any:
    """The program of an observer. Where the error asks for it, the model keeps state: then it is
    that of a new use, since the watched model has changed.
    """
    try:
        return observer.export()
    except onlooker.ExportError as error:
        if error.slug != "model-keeps-state":
            raise
        return watched(anew(), state=True).export()


def unseen_calls(use: Use) -> list[Call]:
    """Those calls of the unseen runs that are asked of a program, one of each kind.

    :raises NotBuilt: when the model takes none of these runs
    """
    return different_calls(unseen_runs(use))


def unseen_runs(use: Use) -> list[list[Call]]:
    """The calls of the unseen runs, each recorded on a copy of the model in eager mode.

    :raises NotBuilt: when the model takes none of these runs
    """
    found, errors = [], []
    for run in use.unseen:
        model = copy.deepcopy(use.model)
        try:
            found.append(recorded(model, run))
        except Exception as error:
            errors.append(text_of(error))
    if not any(found):
        raise NotBuilt("no unseen run: " + (errors[0] if errors else "the model is not called"))
    return found


def different_calls(runs: list[list[Call]]) -> list[Call]:
    """One call of each kind, as many as are asked."""
    different: dict[Any, Call] = {}
    for call in (call for calls in runs for call in calls):
        different.setdefault(shapes_of((call.args, call.kwargs)), call)
    kept = list(different.values())
    step = max(1.0, len(kept) / MOST_CALLS)
    return [kept[int(index * step)] for index in range(min(MOST_CALLS, len(kept)))]


def recorded(model: torch.nn.Module, run: Callable[[Any], object]) -> list[Call]:
    """The outermost calls of ``forward`` in a run."""
    calls: list[Call] = []
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given, named = copied((args, kwargs))
        result = original(*args, **kwargs)
        calls.append(Call(given, named, copied(result)))
        return result

    object.__setattr__(model, "forward", forward)
    try:
        with torch.no_grad():
            seed_all()
            run(model)
    finally:
        object.__delattr__(model, "forward")
    return calls


def is_random(use: Use, calls: list[Call]) -> bool:
    """True where the model itself answers a call otherwise after another seed."""
    model = copy.deepcopy(use.model)
    args, kwargs = copied((calls[0].args, calls[0].kwargs))
    torch.manual_seed(8)
    with torch.no_grad():
        result = model(*args, **kwargs)
    gap = difference(result, calls[0].expected)
    return isinstance(gap, str) or gap > TOLERANCE


def answers(program: Any, runs: list[list[Call]]) -> list[tuple[str, str]]:
    """What a program answers to one call of each kind of these runs; one that keeps state to all of
    them, in their order.
    """
    if not program.state:
        return [answer(program, call) for call in different_calls(runs)]
    outcomes = []
    for run in runs:
        program.reset_state()
        outcomes += [answer(program, call) for call in run]
    return outcomes


def answer(program: Any, call: Call) -> tuple[str, str]:
    """``ok``, ``rejects``, ``wrong`` or ``crash``, and what there is to say."""
    args, kwargs = copied((call.args, call.kwargs))
    seed_all()
    try:
        with torch.no_grad():
            got = program(*args, **kwargs)
    except onlooker.RejectedCallError as error:
        return "rejects", text_of(error)
    except Exception as error:
        traceback.print_exc()
        return "crash", text_of(error)
    gap = difference(got, call.expected)
    if isinstance(gap, str) or gap > TOLERANCE:
        shown = gap if isinstance(gap, str) else f"{gap:.2g} of 1 + max|expected|"
        return "wrong", shown
    return "ok", ""


def text_of(error: BaseException) -> str:
    """An error on one line, its slug at the end however long it is."""
    text, slug = " ".join(f"{type(error).__name__}: {error}".split()), getattr(error, "slug", "")
    return text[:600] + (f"... [{slug}]" if len(text) > 600 and slug else "")


def slug_of(message: str) -> str:
    """The slug of the first error of onlooker in a message, or nothing.

    >>> slug_of("rejects: RejectedCallError: No graph takes it. [rejected-call] | verify: ...")
    'rejected-call'
    """
    found = [part.rpartition("[")[2] for part in message.split("]")[:-1]]
    return next((part for part in found if part and set(part) <= set(_SLUG)), "")


_SLUG = "abcdefghijklmnopqrstuvwxyz-"


# ------------------------------------------------------------------- copies and comparison


def copied(value: Any) -> Any:
    """A deep copy; tensors that are no leaves of autograd are detached first."""
    memo: dict[int, Any] = {id(t): t.detach().clone() for _, t in tensors_of(value)}
    return copy.deepcopy(value, memo)


def tensors_of(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a value with the place where it stands; objects are opened by attributes."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth > _DEEPEST or isinstance(value, torch.nn.Module | type):
        return
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif hasattr(value, "__dict__") and not callable(value):
        items = sorted(vars(value).items())
    else:
        return
    for key, item in items:
        yield from tensors_of(item, f"{path}.{key}", depth + 1)


def shapes_of(value: Any) -> tuple[Any, ...]:
    """What tells one kind of call from another: where tensors stand, dtypes and shapes."""
    return tuple((path, str(t.dtype), tuple(t.shape)) for path, t in tensors_of(value))


def difference(got: Any, expected: Any) -> float | str:
    """The largest difference of two tensors, of ``1 + max|expected|``, or why there is none."""
    left, right = list(tensors_of(got)), list(tensors_of(expected))
    if len(left) != len(right):
        return f"{len(left)} tensors instead of {len(right)}"
    largest = 0.0
    for (_, one), (path, other) in zip(left, right, strict=True):
        gap = _gap(one, other)
        if isinstance(gap, str):
            return f"{path}: {gap}"
        largest = max(largest, gap)
    return largest


def _gap(got: torch.Tensor, expected: torch.Tensor) -> float | str:
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{got.dtype} instead of {expected.dtype}"
    if not got.numel():
        return 0.0
    if got.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    one, other = got.double(), expected.double()
    same = (one == other) | (one.isnan() & other.isnan())
    gap = float(torch.where(same, torch.zeros_like(one), (one - other).abs()).max())
    if math.isnan(gap):
        return "NaN against a number"
    return gap / (1 + float(other.nan_to_num(0, 0, 0).abs().max()))
