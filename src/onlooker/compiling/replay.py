"""Recorded calls, run again on a model that is compiled by a backend that only counts.

No code is generated: the graphs that torch.compile makes run as they are. The model is a twin of the
watched one, and torch's own memory of sizes is put back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Call
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.surroundings import Gradients
from ..lab.runner import ModelRunner, opened
from ..materialise.arguments import close_arguments, materialise
from ..materialise.counting import sizes_of, values_of_specs
from ..observing.bind import as_args_kwargs
from ..observing.state import kept_state
from ..observing.store import Sample
from ..observing.surroundings import inside_autocast, inside_gradients
from ..pytrees.agree import agreement_of_trees
from ..pytrees.open import copy_tensors
from ..torch_internals.dynamo import compilations, private_cache
from .marks import Mark, Marking, marked_call
from .reasons import FIRST, Reason, reason_of

__all__ = ["Compilation", "Count", "Replay", "Replayer", "replays_of"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replay:
    """The arguments of one recorded call: those that were kept, or grown to its sizes."""

    call: Call
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One function that torch.compile compiled while a call ran, and why."""

    call: int
    function: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Count:
    """What some calls compiled: the number of ``graphs``, each compilation with its reason, and the
    first error or wrong result, empty where there is none.
    """

    graphs: int
    compilations: tuple[Compilation, ...] = ()
    failure: str = ""

    @property
    def again(self) -> tuple[Compilation, ...]:
        """The compilations of functions that were compiled before."""
        return tuple(one for one in self.compilations if one.reason.kind != FIRST)


def replays_of(
    recording: Recording, samples: Sequence[Sample], plans: Sequence[Plan], most: int
) -> list[Replay]:
    """The recorded calls in their order, each kind of sizes once; of more than ``most`` calls those
    that are spread evenly over the recording.
    """
    kept = {sample.call.index: sample for sample in samples}
    calls = list(recording.calls)
    if len(calls) > most:
        step = (len(calls) - 1) / max(most - 1, 1)
        calls = [calls[round(number * step)] for number in range(most)]
    found = []
    for call in calls:
        sample = kept.get(call.index)
        if sample is not None:
            found.append(Replay(call, sample.arguments()))
            continue
        plan = next((plan for plan in plans if call.index in plan.calls), None)
        if plan is not None:
            sizes = sizes_of(plan, values_of_specs(call.inputs))
            values = materialise(plan, sizes, samples)
            passed = {name for name, _ in call.passed}
            arguments = close_arguments(plan, values)
            given = {name: value for name, value in arguments.items() if name in passed}
            found.append(Replay(call, given))
    return found


class Replayer:
    """Counts what calls of one method compile."""

    def __init__(self, runner: ModelRunner, replays: Sequence[Replay]) -> None:
        self._runner, self._replays = runner, replays
        with self._kept():
            self._expected = [self._outcome(self._method, replay) for replay in replays]

    @property
    def _method(self) -> Any:
        return getattr(self._runner.model, self._runner.method)

    def count(
        self,
        *,
        dynamic: bool | None = None,
        marks: Sequence[Mark] = (),
        kind: Marking = Marking.UNBACKED,
    ) -> Count:
        """Compiles the method and runs all calls; the count ends with the first call that fails."""
        graphs = 0

        def backend(module: torch.fx.GraphModule, _: Any) -> Any:
            nonlocal graphs
            graphs += 1
            return module.forward

        found: list[Compilation] = []
        failure = ""
        with private_cache(), self._kept():
            compiled = torch.compile(self._method, backend=backend, dynamic=dynamic)
            for replay, expected in zip(self._replays, self._expected, strict=True):
                failure, records = self._run(compiled, replay, expected, marks, kind)
                number = replay.call.index
                for record in records:
                    reason = reason_of(record.recompile_reason)
                    found.append(Compilation(number, str(record.co_name), reason))
                if failure:
                    break
        return Count(graphs, tuple(found), failure)

    def _run(
        self, compiled: Any, replay: Replay, expected: Any, marks: Sequence[Mark], kind: Marking
    ) -> tuple[str, list[Any]]:
        """Why the compiled method fails at a call, empty where it does not; and torch's records of
        what was compiled.
        """
        with compilations() as records:
            got = self._outcome(compiled, replay, marks, kind)
        if isinstance(expected, Exception):
            return "", records
        if isinstance(got, Exception):
            logger.debug("call %d fails: %s", replay.call.index, got)
            first = (str(got).strip().splitlines() or [""])[0]
            return f"call {replay.call.index} raises {type(got).__name__}: {first}", records
        agrees = agreement_of_trees(expected, got)
        if not agrees.holds:
            return f"call {replay.call.index} gives another result: {agrees.note}", records
        return "", records

    def _outcome(
        self,
        method: Any,
        replay: Replay,
        marks: Sequence[Mark] = (),
        kind: Marking = Marking.UNBACKED,
    ) -> Any:
        """The result of a call, or what it raises."""
        arguments = copy_tensors(replay.arguments)
        args, kwargs = as_args_kwargs(self._runner.signature, arguments)
        try:
            with (
                inside_gradients(_gradients_of(replay.call)),
                inside_autocast(self._runner.autocast, keeps_casts=False),
                torch.random.fork_rng(devices=()),
                marked_call(arguments, marks, kind),
            ):
                torch.manual_seed(0)
                return opened(method(*args, **kwargs))
        except Exception as error:
            return error

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Inside the block the calls may change the twin, which is as before on exit."""
        with kept_state(self._runner.model, self._runner.former, self._runner.keeper):
            yield


def _gradients_of(call: Call) -> Gradients:
    """How a call recorded gradients; as torch does by default where nobody noted that."""
    return call.surroundings.gradients if call.surroundings else Gradients.RECORDED
