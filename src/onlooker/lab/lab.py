"""The Lab: every run of the model that is not the user's own, under one budget, with one memo
and one record.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.call import Signature
from ..core.experiment import BlindKind, BlindSpot, Experiment, Finding, FindingKind
from ..core.progress import Step, tell_step
from ..core.spec import Axis
from ..core.structure import Tree
from ..materialise.arguments import leaf_values
from ..observing.store import Sample
from .budget import BUDGET, Budget
from .kept import Kept
from .memo import Memo, key_of
from .memory import is_out_of_memory
from .repeated_blocks import EqualBlocks, equal_blocks_of
from .runner import ModelRunner, opened
from .stages import Stages
from .work import MOST_WORK, rows_of

__all__ = ["Lab", "SpentError"]

logger = logging.getLogger(__name__)

#: of the text of an error of the model so much is written down
_LONGEST = 300


class SpentError(Exception):
    """The budget, or the memory, ended before an experiment; a user never sees it. ``limit`` says
    which end was reached.
    """

    def __init__(self, limit: str) -> None:
        super().__init__(f"the budget of {limit} has ended")
        self.limit = limit


class Lab:
    """Runs the model for experiments.

    ``runs`` counts all of them, ``necessary`` those which no budget forbids: recorded calls that
    are run again, the first try to serve several kinds of calls with one graph, the example of each
    trace. ``budget`` bounds the others. ``records`` has one value per experiment, ``unknown`` what
    was not tested since the budget ended. ``written`` are the arguments of kept calls in which a call
    wrote to a tensor, as far as calls were run again, ``kept`` what they left behind in Python.
    ``stages`` are the seconds of each stage, for the report.
    """

    def __init__(
        self, subject: ModelRunner, budget: Budget | None = None, *, most_work: int = MOST_WORK
    ) -> None:
        self.subject: ModelRunner = subject
        self.budget: Budget = budget or Budget()
        self.most_work = most_work
        #: sizes of large symbols that are too small to stand for what was seen
        self.too_small: list[dict[str, int]] = []
        #: whether experiments were made without the repeated blocks of the model
        self.left_out_blocks: bool = False
        self.runs: int = 0
        self.necessary: int = 0
        self.records: list[Experiment] = []
        self.unknown: list[BlindSpot] = []
        self.written: set[str] = set()
        self.kept: Kept = Kept()
        self.stages: Stages = Stages()
        self._memo = Memo()
        self._shares: list[tuple[int, str]] = []
        self._began = time.monotonic()

    # ------------------------------------------------------------------------------------ the model

    @property
    def model(self) -> Any:
        """The model that is run."""
        return self.subject.model

    @property
    def method(self) -> str:
        """The name of the method that was watched."""
        return self.subject.method

    @property
    def signature(self) -> Signature:
        """The signature of the method."""
        return self.subject.signature

    @property
    def ledger(self) -> Stages:
        """The seconds of each stage, under the name that the export knows."""
        return self.stages

    def untouched(self, *, traced: bool = False) -> contextlib.AbstractContextManager[None]:
        """See :meth:`ModelRunner.untouched`."""
        return self.subject.untouched(traced=traced)

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """The method itself, on the arguments themselves: a trace runs it, and counts as no run."""
        return self.subject(arguments)

    def record_gradients(self) -> None:
        """From here on every run records gradients, and so does a trace."""
        self.subject = replace(self.subject, gradients=True)

    @contextlib.contextmanager
    def without_repeats(self, samples: Sequence[Sample]) -> Iterator[None]:
        """Inside the block experiments run two of the equal blocks of a large model, where it can do
        without the others: in the smallest kept call these two give the shape that they are given.
        """
        repeats = equal_blocks_of(self.model)
        smallest = min(samples, key=lambda sample: rows_of(leaf_values(sample)), default=None)
        if repeats and smallest is not None:
            subject = replace(self.subject, repeats=repeats)
            self._count(f"call {smallest.call.index} without repeated blocks", necessary=True)
            try:
                with self.stages.experiment(), repeats.watched() as unfit:
                    subject.try_out(dict(smallest.arguments()))
                if not unfit:
                    self.subject, self.left_out_blocks = subject, True
            except Exception as error:
                logger.debug("the model needs all blocks: %s: %s", type(error).__name__, error)
        try:
            yield
        finally:
            self.subject = replace(self.subject, repeats=EqualBlocks())

    def expected(self, sample: Sample) -> Tree[Any] | None:
        """The result of a kept call for the model as experiments run it: what was seen, or a run
        without the repeated blocks; None where it refuses the call.

        :raises SpentError: when the budget has ended
        """
        if not self.subject.repeats:
            return sample.outputs
        why = f"call {sample.call.index} without repeated blocks"
        return self.try_run(dict(sample.arguments()), why=why, memo=True)

    # ----------------------------------------------------------------------------------------- runs

    def run(
        self,
        arguments: dict[str, Any],
        *,
        why: str,
        memo: bool = False,
        necessary: bool = False,
        about: Mapping[Axis, int] | None = None,
    ) -> Tree[Any]:
        """The result of the model for copies of the arguments. Others may have the same result: do
        not change it.

        With ``memo`` a result that is known is given again, and counts as no run. A ``necessary``
        run is made whatever the budget says. A run that is ``about`` sizes is an experiment, and
        written down: does the model take them?

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        try:
            result = self._run(
                self.subject.try_out, arguments, "real", why, memo=memo, necessary=necessary
            )
        except SpentError:
            raise
        except Exception as error:
            self._note(
                about,
                why,
                Finding(FindingKind.REFUSED, f"{type(error).__name__}: {error}"[:_LONGEST]),
            )
            raise
        self._note(about, why, Finding(FindingKind.ACCEPTED))
        return result

    def _note(self, about: Mapping[Axis, int] | None, why: str, finding: Finding) -> None:
        if about is not None:
            self.record(tuple(about), tuple(about.values()), finding=finding, claim=why)

    def run_fake(self, arguments: dict[str, Any], *, why: str) -> Tree[Any]:
        """The result for tensors without values: shapes only, at next to no cost. It counts as a
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        return self._run(self.subject.try_fake, arguments, "fake", why, memo=True, necessary=False)

    def run_fake_within(
        self, arguments: dict[str, Any], within: contextlib.AbstractContextManager[Any], *, why: str
    ) -> Tree[Any]:
        """As :meth:`run_fake`, inside a block that looks at the run, which nothing remembers.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = functools.partial(self.subject.try_fake, within=within)
        return self._run(way, arguments, "fake", why, memo=False, necessary=False)

    def takes_shapes(self, arguments: dict[str, Any], *, why: str) -> bool:
        """True when the model runs on tensors without values. It counts as a run.

        :raises SpentError: when the budget has ended
        """
        try:
            self.run_fake(arguments, why=why)
        except SpentError:
            raise
        except Exception as error:
            logger.debug("%s is refused: %s: %s", why, type(error).__name__, error)
            return False
        return True

    def shapes_of_run(self, arguments: dict[str, Any], *, why: str) -> tuple[Any, ...]:
        """The operators of a run on tensors without values, each with its shapes. It counts as a
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = self.subject.try_shapes
        steps: tuple[Any, ...] = self._run(
            way, arguments, "shapes", why, memo=True, necessary=False
        ).leaves[0]
        return steps

    def operators_of_run(
        self, arguments: dict[str, Any], *, why: str
    ) -> tuple[tuple[Any, ...], Tree[Any]]:
        """The operators of a run, each with the shapes that it was given, and the result. It counts
        as a run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = self.subject.try_operators
        found: tuple[tuple[Any, ...], Tree[Any]] = self._run(
            way, arguments, "operators", why, memo=True, necessary=False
        ).leaves[0]
        return found

    def try_run(
        self, arguments: dict[str, Any], *, why: str, memo: bool = False, necessary: bool = False
    ) -> Tree[Any] | None:
        """As :meth:`run`; None where the model refuses the arguments.

        :raises SpentError: when the budget has ended
        """
        try:
            return self.run(arguments, why=why, memo=memo, necessary=necessary)
        except SpentError:
            raise
        except Exception as error:
            logger.debug("%s is refused: %s: %s", why, type(error).__name__, error)
            return None

    def try_out(self, arguments: dict[str, Any]) -> Tree[Any]:
        """As :meth:`run`, for experiments with exported graphs.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        try:
            return self.run(arguments, why="an experiment with a graph")
        except SpentError as spent:
            self.note_unknown("every guard and every range of the graphs was tested", spent)
            raise

    def run_within(
        self, arguments: dict[str, Any], within: contextlib.AbstractContextManager[Any], *, why: str
    ) -> Tree[Any]:
        """The result of the model for the arguments themselves, inside a block that looks at the
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        self._count(why, necessary=False)
        with self.stages.experiment(), self.untouched():
            with within:
                result = self.subject(arguments)
            return opened(result)

    @contextlib.contextmanager
    def private_run(self, *, why: str) -> Iterator[None]:
        """A necessary run that the block makes itself, in another way than :meth:`run` does."""
        self._count(why, necessary=True)
        with self.stages.experiment(), self.untouched():
            yield

    def _run(
        self,
        way: Callable[[dict[str, Any]], Tree[Any]],
        arguments: dict[str, Any],
        kind: str,
        why: str,
        *,
        memo: bool,
        necessary: bool,
    ) -> Tree[Any]:
        key = self._key(kind, arguments) if memo else None
        if key is not None and self._memo.has(key):
            return self._memo.result(key)
        self._count(why, necessary=necessary)
        try:
            with self.stages.experiment():
                result = way(arguments)
        except Exception as error:
            if is_out_of_memory(error) and not necessary:
                raise SpentError("memory") from error
            self._memo.keep(key, error)
            raise
        self._memo.keep(key, result)
        return result

    def _key(self, kind: str, arguments: dict[str, Any]) -> str | None:
        """The name of a run in the memo; None where the arguments have no digest."""
        digest = key_of(arguments)
        return f"{kind} {bool(self.subject.repeats)} {digest}" if digest is not None else None

    def remember(self, arguments: dict[str, Any], result: Tree[Any]) -> None:
        """Keeps the result of a private run: :meth:`run` gives it again for equal arguments."""
        self._memo.keep(self._key("real", arguments), result)

    def forget(self) -> None:
        """Frees the results that are remembered: a program keeps its Lab, and needs none of
        them.
        """
        self._memo.forget()
        self.subject.keeper.forget()

    # ----------------------------------------------------------------------------------- the budget

    @contextlib.contextmanager
    def share(self, most: int) -> Iterator[None]:
        """Inside the block at most so many runs are made: no family of hypotheses takes the whole
        budget.

        The number is that of the default budget; with a larger one it is larger in proportion.
        """
        runs = self.in_proportion(most)
        self._shares.append((self._counted + runs, f"{runs} runs for one kind of question"))
        try:
            yield
        finally:
            self._shares.pop()

    def in_proportion(self, most: int) -> int:
        """The number of runs that is ``most`` under the default budget, or under a smaller one."""
        return most * max(self.budget.runs, BUDGET[0]) // BUDGET[0]

    @property
    def left(self) -> int:
        """The number of runs that the budget, and the share of the block, still allow."""
        ends = [end for end, _ in self._shares]
        return max(min([self.budget.runs, *ends]) - self._counted, 0)

    @property
    def _counted(self) -> int:
        """The runs that count against the budget."""
        return self.runs - self.necessary

    def check_budget(self) -> None:
        """Passes when another run is allowed.

        :raises SpentError: when the budget has ended
        """
        if self.subject.keeper.lost:
            change = self.subject.keeper.lost[0]
            raise SpentError(f"runs that leave the model as it is ({change})")
        seconds = self.budget.seconds
        if seconds is not None and time.monotonic() - self._began >= seconds:
            raise SpentError(f"{seconds:g} seconds")
        if self._counted >= self.budget.runs:
            raise SpentError(f"{self.budget.runs} runs")
        for end, limit in self._shares:
            if self._counted >= end:
                raise SpentError(limit)

    def _count(self, why: str, *, necessary: bool) -> None:
        if necessary:
            self.necessary += 1
        else:
            self.check_budget()
        self.runs += 1
        tell_step(Step("probing", self._counted, self.budget.runs, why, at_most=True))
        if necessary:
            logger.info("run %d: %s", self.runs, why)
        else:
            logger.info(
                "run %d, experiment %d of at most %d: %s",
                self.runs,
                self._counted,
                self.budget.runs,
                why,
            )

    # ----------------------------------------------------------------------------------- the record

    def record(
        self,
        axes: Sequence[Axis] = (),
        sizes: Sequence[int] = (),
        *,
        finding: Finding,
        label: str = "",
        claim: str = "",
        argument: str = "",
    ) -> Experiment:
        """Writes down one experiment, and gives the value that was written."""
        experiment = Experiment(tuple(axes), tuple(sizes), finding, label, claim, argument)
        self.records.append(experiment)
        return experiment

    def note_unknown(self, what: str, spent: SpentError) -> None:
        """Writes down, once, what was not tested since the budget ended."""
        spot = BlindSpot(BlindKind.BUDGET, detail=what, limit=spent.limit)
        if spot not in self.unknown:
            self.unknown.append(spot)
