"""Finds the smallest program that holds a bound: a precision, with the layers in floats that hurt most.

One run over the calls of the calibration tells how far the result of each layer is from that in floats where
this layer alone is rounded. Each precision is tried with none of its layers in floats first, then with the
worst one, two, four and so on, until the bound holds, and then with fewer again. A step is a conversion, its
proof, its size and its speed; what steps found is kept in a file, and not done again.

With 8 layers, of which two hurt, and ``agreement=0.99``::

    int4                          0.91   fails
    int4, 1 layer in floats       0.97   fails
    int4, 2 layers in floats      0.995  holds
    int8                          0.998  holds, and is larger
"""

from __future__ import annotations

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ExportError, UsageError
from ..core.precision import PRECISIONS, is_calibrated, is_integer, precision_named
from ..core.support.progress import tell
from ..core.verdict import Tally
from ..disk.codec import document_at, write_document
from ..disk.files import write_file
from ..disk.text import write_json
from ..serve.runnable import RunnableProgram
from ..targets.integers.damage import damage_of_layers
from ..targets.target import check_precision
from ..targets.targets import target_of
from ..verify.calibration import calibration_calls
from ..verify.conversion import converted
from ..verify.distances import CALIBRATED
from ..verify.request import request_of
from ..verify.verification import Verification
from .worker import digest_of_weights

__all__ = ["TuneStep", "Tuned", "tuned"]

_KIND = "tuning"
#: how often a call is timed on a program and on the one in floats
_TIMED = 7
#: layers are left in floats up to this share of all
_MOST_IN_FLOATS = 0.5


@dataclass(frozen=True, slots=True)
class TuneStep:
    """One program that was tried.

    ``bytes`` are those of its files, ``time`` that of a call over that of the program in floats of the same
    target, ``error`` the largest mean error of an output relative to its spread, on calls that nothing was
    calibrated on; ``agreement`` the share of rows whose largest number stands at the same place. What was
    not measured is None. ``asked`` tells steps of another question apart.
    """

    precision: str
    float_layers: tuple[str, ...]
    bytes: int | None
    time: float | None
    error: float | None
    agreement: float | None
    holds: bool
    verdict: str
    asked: str = ""

    @property
    def title(self) -> str:
        """The precision, and how many layers are in floats.

        >>> TuneStep("int4", ("head",), 10, 1.0, 0.1, None, True, "verified as int4").title
        'int4, 1 layer in floats'
        """
        count = len(self.float_layers)
        layers = f", {count} layer{'s' * (count > 1)} in floats" if count else ""
        return f"{self.precision or 'floats'}{layers}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The smallest program that holds the bound, the step that it is, and all steps in their order.

    ``step`` is None, and the program that in floats, where no step holds. ``left_out`` counts the steps that
    were wanted when no run was left. It prints as a table.
    """

    program: Any
    step: TuneStep | None
    steps: tuple[TuneStep, ...]
    left_out: int = 0

    def __str__(self) -> str:
        rows = [_HEAD, *(_cells(one, is_best=one == self.step) for one in self.steps)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD) - 1)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
            )
            for row in rows
        ]
        left = [one for one in [self.step] if one is not None and one.float_layers]
        lines += [f"in floats: {', '.join(one.float_layers)}" for one in left]
        if self.left_out:
            lines.append("no run is left: runs= allows more steps")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The steps for JSON; ``best`` is the number of the one that was chosen."""
        steps = [asdict(one) for one in self.steps]
        best = None if self.step is None else self.steps.index(self.step)
        return {"steps": steps, "best": best, "left_out": self.left_out}


_HEAD = ("", "step", "KiB", "time", "mean error", "agreement", "verdict")


def _cells(step: TuneStep, *, is_best: bool) -> tuple[str, ...]:
    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    size = None if step.bytes is None else step.bytes / 1024
    return (
        "*" if is_best else "",
        step.title,
        shown(size, ".0f"),
        shown(step.time, ".2f"),
        shown(step.error, ".2g"),
        shown(step.agreement, ".4f"),
        step.verdict,
    )


def tuned(
    program: RunnableProgram,
    target: str,
    bound: Mapping[str, Any],
    *,
    error: float | None,
    precisions: Sequence[str] | None,
    calibration: Any,
    seed: int,
    runs: int,
    trials: int | None,
    into: Path | None,
) -> Tuned:
    """The smallest program for a target that holds a bound, of at most so many ``runs``.

    :raises UsageError: ``no-bound``, ``bad-runs``, ``bad-variant``, and those of a conversion
    """
    search = _Search(program, target, dict(bound), error, calibration, seed, runs, trials, into)
    names = search.precisions(precisions)
    search.step("")
    for name in names:
        if search.is_hopeless(name):
            continue
        search.search(name)
    return search.finished()


class _Search:
    """The steps of one search."""

    def __init__(
        self,
        program: RunnableProgram,
        target: str,
        bound: dict[str, Any],
        error: float | None,
        calibration: Any,
        seed: int,
        runs: int,
        trials: int | None,
        into: Path | None,
    ) -> None:
        _check(bound, error, runs)
        self._program, self._target, self._bound, self._error = program, target, bound, error
        self._calibration, self._seed, self._trials = calibration, seed, trials
        self._left, self._left_out = runs, 0
        self._made: dict[tuple[str, tuple[str, ...]], RunnableProgram] = {}
        self._floats: RunnableProgram | None = None
        self._steps: list[TuneStep] = []
        self._file = None if into is None else into / "tuning.json"
        self._asked = self._question()
        self._known = self._read()

    def _question(self) -> str:
        """What is asked, as a digest: the program with its weights, the target, the bound."""
        numbers = {name: value for name, value in self._bound.items() if name != "metric"}
        metric = getattr(self._bound.get("metric"), "__qualname__", "")
        lab = self._program.lab
        weights = "" if lab is None else digest_of_weights(lab.model)
        given = self._calibration
        calls = str(given) if isinstance(given, (str, Path)) else type(given).__name__
        asked = [
            self._target,
            numbers,
            metric,
            self._error,
            calls,
            self._seed,
            self._trials,
            weights,
        ]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    def _read(self) -> dict[tuple[str, tuple[str, ...]], TuneStep]:
        """The steps of the same question that an earlier search has done."""
        if self._file is None or not self._file.exists():
            return {}
        steps = document_at(self._file, _KIND, tuple[TuneStep, ...])
        return {(one.precision, one.float_layers): one for one in steps if one.asked == self._asked}

    def precisions(self, given: Sequence[str] | None) -> list[str]:
        """The names of the precisions to try, the smallest first.

        :raises UsageError: ``bad-variant``
        """
        target = target_of(self._target)
        names = list(given) if given is not None else None
        if names is None:
            names = [name for name in target.precisions if not is_calibrated(name)]
        for name in names:
            check_precision(target, name)
        order = [one.name for one in PRECISIONS]
        return sorted(
            dict.fromkeys(names), key=lambda one: (precision_named(one).bits, order.index(one))
        )

    def is_hopeless(self, precision: str) -> bool:
        """True where a smaller precision holds with all of its layers."""
        bits = precision_named(precision).bits
        return any(
            one.holds and not one.float_layers and precision_named(one.precision).bits < bits
            for one in self._steps
            if one.precision
        )

    def search(self, precision: str) -> None:
        """Tries a precision, with as few layers in floats as hold the bound."""
        first = self.step(precision)
        if first is None or first.holds or first.bytes is None or not is_integer(precision):
            return
        layers = self._worst_first(precision)
        most = int(len(layers) * _MOST_IN_FLOATS)
        failed, count = 0, 1
        while count <= most:
            found = self.step(precision, layers[:count])
            if found is None or self._is_too_large(found):
                return
            if found.holds:
                break
            failed, count = count, 2 * count
        else:
            return
        while count - failed > 1:
            middle = (failed + count) // 2
            found = self.step(precision, layers[:middle])
            if found is None:
                return
            failed, count = (failed, middle) if found.holds else (middle, count)

    def _is_too_large(self, step: TuneStep) -> bool:
        """True where a step that holds is smaller already: more layers in floats are larger still."""
        known = [one.bytes for one in self._steps if one.holds and one is not step and one.bytes]
        return step.bytes is None or any(size <= step.bytes for size in known)

    def _worst_first(self, precision: str) -> list[str]:
        """The layers, those first whose results are farthest from those in floats."""
        program = self._program
        graphs = program.contents.graphs
        calls = calibration_calls(program, graphs, self._calibration, self._seed)
        damage: dict[str, float] = {}
        for graph in graphs:
            for layer, far in damage_of_layers(graph, precision, calls.inputs[graph.name]).items():
                damage[layer] = max(far, damage.get(layer, 0.0))
        return sorted(damage, key=lambda layer: -damage[layer])

    def step(self, precision: str, layers: Sequence[str] = ()) -> TuneStep | None:
        """Converts, proves and measures; None where no run is left."""
        key = (precision, tuple(layers))
        found = self._known.get(key)
        if found is None:
            if self._left <= 0:
                self._left_out += 1
                return None
            self._left -= 1
            tell("tuning", len(self._steps), 0, f"{precision or 'floats'} {len(layers)}")
            found = replace(self._measured(*key), asked=self._asked)
            self._known[key] = found
            self._write()
        self._steps.append(found)
        return found

    def _write(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            steps = tuple(self._known.values())
            document = write_document(_KIND, tuple[TuneStep, ...], steps)
            write_file(self._file, write_json(document))

    def _measured(self, precision: str, layers: tuple[str, ...]) -> TuneStep:
        try:
            made = self._converted(precision, layers)
        except ExportError as refusal:
            verdict = f"refused: {refusal.message} [{refusal.slug}]"
            return TuneStep(precision, layers, None, None, None, None, False, verdict)
        request = request_of(made.contents, trials=self._trials, **self._bound)
        tally = Verification().run(made, request)
        self._made[precision, layers] = made
        far, agreement = _distance_of(tally)
        is_near = self._error is None or not precision or (far is not None and far <= self._error)
        verdict = tally.verdict
        if tally.verified and not is_near:
            measured = "no distance was measured" if far is None else f"a mean error of {far:.2g}"
            verdict = f"not near enough: {measured}"
        holds = tally.verified and is_near
        speed = self._speed(made) if precision else 1.0
        size = _size_of(made)
        return TuneStep(precision, layers, size, speed, far, agreement, holds, verdict)

    def _converted(self, precision: str, layers: tuple[str, ...]) -> RunnableProgram:
        options: dict[str, Any] = {"precision": precision or None, "float_layers": layers or None}
        if is_calibrated(precision):
            options |= {"calibration": self._calibration, "seed": self._seed}
        given = {name: value for name, value in options.items() if value is not None}
        return converted(self._program, self._target, given)

    def _speed(self, made: RunnableProgram) -> float:
        """The time of a program over that in floats, on the largest kept call."""
        if self._floats is None:
            self._floats = self._made.get(("", ())) or self._converted("", ())
        floats = self._floats
        sample = max(self._program.samples, key=lambda one: _numbers_in(one.inputs.leaves))

        def seconds(one: RunnableProgram) -> float:
            arguments = sample.arguments()
            start = time.perf_counter()
            one.serve(arguments)
            return time.perf_counter() - start

        with torch.no_grad():
            seconds(made), seconds(floats)
            return statistics.median(seconds(made) / seconds(floats) for _ in range(_TIMED))

    def finished(self) -> Tuned:
        """The smallest step that holds, as a program."""
        holding = [one for one in self._steps if one.holds and one.bytes is not None]
        best = min(holding, key=lambda one: one.bytes or 0, default=None)
        key = ("", ()) if best is None else (best.precision, best.float_layers)
        program = self._made.get(key) or self._converted(*key)
        return Tuned(program, best, tuple(self._steps), self._left_out)


def _check(bound: Mapping[str, Any], error: Any, runs: Any) -> None:
    given = [name for name, value in bound.items() if value is not None]
    if not given and error is None:
        raise UsageError(
            "There is no bound that a program has to hold.",
            slug="no-bound",
            hint="Give agreement=0.99, error=0.05, atol=0.01, or metric= with at_least=.",
        )
    is_number = isinstance(error, (int, float)) and not isinstance(error, bool) and error >= 0
    if error is not None and not is_number:
        raise UsageError(
            f"error is {error!r}.",
            slug="bad-tolerance",
            hint="Give the largest mean error relative to the spread of an output, such as 0.05.",
        )
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise UsageError(
            f"runs is {runs!r}.", slug="bad-runs", hint="Give a number of conversions, 1 or more."
        )


def _distance_of(tally: Tally) -> tuple[float | None, float | None]:
    """The largest mean error of an output, and the least share of rows that agree; None where they were
    not measured.
    """
    judged = [one.program for one in tally.distances if one.kind != CALIBRATED]
    errors = [one.mean_error for one in judged]
    shares = [one.share for one in judged if one.rows]
    return max(errors, default=None), min(shares, default=None)


def _size_of(program: RunnableProgram) -> int:
    graphs = program.contents.graphs
    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        files = target_of(graphs[0].target).write(graphs, Path(folder))
        return sum(Path(folder, name).stat().st_size for name in files)


def _numbers_in(leaves: Sequence[Any]) -> int:
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
