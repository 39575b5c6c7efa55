"""The Lab: every run of the model that is not the user's own, under one budget, with one memo
and one record.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..core.call import Arguments, Signature, Values
from ..core.experiment import Finding, FindingKind
from ..core.path import Path
from ..core.spec import AxisSizes
from ..core.structure import Result
from ..materialise.arguments import leaf_values
from ..observing.store import Sample
from ..pytrees.open import open_arguments
from .budget import Budget, CountedRuns, SpentError
from .kept import Kept
from .memo import Memo, key_of
from .memory import is_out_of_memory
from .record import Record
from .repeated_blocks import EqualBlocks, equal_blocks_of
from .runner import ModelRunner, opened
from .stages import Stages
from .work import MOST_WORK, CountedWork, MeasuredWork, rows_of

__all__ = ["Lab", "SpentError"]

logger = logging.getLogger(__name__)

#: of the text of an error of the model so much is written down
_LONGEST = 300


class Lab(CountedRuns, Record):
    """Runs the model for experiments, under a budget (:class:`CountedRuns`), and writes down what each
    one found (:class:`Record`).

    ``written`` are the arguments of kept calls in which a call wrote to a tensor, as far as calls were
    run again, ``kept`` what they left behind in Python. ``stages`` are the seconds of each stage, for
    the report.
    """

    def __init__(
        self, subject: ModelRunner, budget: Budget | None = None, *, most_work: int = MOST_WORK
    ) -> None:
        CountedRuns.__init__(self, budget or Budget())
        Record.__init__(self)
        self.subject: ModelRunner = subject
        self.most_work = most_work
        #: sizes of large symbols that are too small to stand for what was seen
        self.too_small: list[dict[str, int]] = []
        #: the repeated blocks of the model that experiments were made without
        self.left_out_blocks: EqualBlocks = EqualBlocks()
        self.written: set[str] = set()
        self.kept: Kept = Kept()
        self.stages: Stages = Stages()
        #: True where loops whose steps read numbers may be operators of a graph
        self.rolls_numbers = True
        #: True after a trace in which one is
        self.rolled_numbers = False
        #: True once it was tried to let the model begin after another call than those before the watching
        self.begins_elsewhere = False
        #: the lists of tensors that are one tensor for graphs: no trace may read more of them
        self.joined_lists: tuple[Path, ...] = ()
        self._memo = Memo()
        self._work = MeasuredWork()

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

    def untouched(self, *, traced: bool = False) -> contextlib.AbstractContextManager[None]:
        """See :meth:`ModelRunner.untouched`."""
        return self.subject.untouched(traced=traced)

    def __call__(self, arguments: Arguments) -> Any:
        """The method itself, on the arguments themselves: a trace runs it, and counts as no run."""
        return self.subject(arguments)

    def work_of(self, values: Values) -> int:
        """The multiply-adds of a run of the model, estimated."""
        return self._work.of(self.model, values)

    def numbers_of(self, values: Values) -> int:
        """The numbers that the operators of a run of the model give, estimated; 0 before the first run."""
        return self._work.numbers_of(values)

    def numbers_without_values(self, arguments: Arguments, *, why: str) -> int:
        """The numbers that operators give in a run on tensors without values, as far as there is one: what memory a
        run would want.
        """
        with CountedWork() as work, contextlib.suppress(Exception):
            self.run_fake_within(arguments, contextlib.nullcontext(), why=why)
        return int(work.numbers)

    def is_dear(self, values: Values) -> bool:
        """True for a run of the model that takes longer than one without floats."""
        return self._work.is_dear(self.model, values)

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
            self.count(f"call {smallest.call.index} without repeated blocks", necessary=True)
            try:
                with self.stages.experiment(), repeats.watched() as unfit:
                    result = subject.try_out(dict(smallest.arguments()))
                if not unfit:
                    self.subject, self.left_out_blocks = subject, repeats
                    self.remember(dict(smallest.arguments()), result)
            except Exception as error:
                logger.debug("the model needs all blocks: %s: %s", type(error).__name__, error)
        try:
            yield
        finally:
            self.subject = replace(self.subject, repeats=EqualBlocks())

    @contextlib.contextmanager
    def again_without_repeats(self) -> Iterator[None]:
        """Inside the block runs are made without the blocks that experiments left out: for a choice, of
        which the whole model is the proof.
        """
        before = self.subject
        self.subject = replace(before, repeats=self.left_out_blocks)
        try:
            yield
        finally:
            self.subject = before

    def expected(self, sample: Sample) -> Result | None:
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
        arguments: Arguments,
        *,
        why: str,
        memo: bool = False,
        necessary: bool = False,
        about: AxisSizes | None = None,
    ) -> Result:
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
                self._try_out, arguments, "real", why, memo=memo, necessary=necessary
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

    def _try_out(self, arguments: Arguments) -> Result:
        with self._work.counted(_values_of(arguments)):
            return self.subject.try_out(arguments)

    def _note(self, about: AxisSizes | None, why: str, finding: Finding) -> None:
        if about is not None:
            self.record(tuple(about), tuple(about.values()), finding=finding, claim=why)

    def run_fake(self, arguments: Arguments, *, why: str) -> Result:
        """The result for tensors without values: shapes only, at next to no cost. It counts as a
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        return self._run(self.subject.try_fake, arguments, "fake", why)

    def run_for_shapes(
        self,
        arguments: Arguments,
        *,
        why: str,
        necessary: bool = False,
        about: AxisSizes | None = None,
    ) -> Result:
        """As :meth:`run` with ``memo``, where the shapes of the result are all that matters: its
        floats have no values where a run with values would take longer, and none is read.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        is_known = self._memo.has(self._key("real", arguments))
        if not is_known and self.is_dear(_values_of(arguments)):
            try:
                way = self.subject.try_without_floats
                result = self._run(way, arguments, "floatless", why, necessary=necessary)
            except SpentError:
                raise
            except Exception as error:  # it reads floats, or refuses the sizes
                logger.debug("%s is not run without floats: %s", why, error)
            else:
                self._note(about, why, Finding(FindingKind.ACCEPTED))
                return result
        return self.run(arguments, why=why, memo=True, necessary=necessary, about=about)

    def takes(self, arguments: Arguments, *, why: str) -> bool:
        """True when the model takes the arguments; as :meth:`run_for_shapes`.

        :raises SpentError: when the budget has ended
        """
        return self._is_taken(functools.partial(self.run_for_shapes, arguments, why=why), why)

    def run_fake_within(
        self, arguments: Arguments, within: contextlib.AbstractContextManager[Any], *, why: str
    ) -> Result:
        """As :meth:`run_fake`, inside a block that looks at the run, which nothing remembers.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = functools.partial(self.subject.try_fake, within=within)
        return self._run(way, arguments, "fake", why, memo=False)

    def takes_shapes(self, arguments: Arguments, *, why: str) -> bool:
        """True when the model runs on tensors without values. It counts as a run.

        :raises SpentError: when the budget has ended
        """
        return self._is_taken(functools.partial(self.run_fake, arguments, why=why), why)

    def _is_taken(self, run: Callable[[], Result], why: str) -> bool:
        """True where a run of the model ends without an error."""
        try:
            run()
        except SpentError:
            raise
        except Exception as error:
            logger.debug("%s is refused: %s: %s", why, type(error).__name__, error)
            return False
        return True

    def shapes_of_run(self, arguments: Arguments, *, why: str) -> tuple[Any, ...]:
        """The operators of a run on tensors without values, each with its shapes. It counts as a
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = self.subject.try_shapes
        steps: tuple[Any, ...] = self._run(way, arguments, "shapes", why).leaves[0]
        return steps

    def operators_of_run(self, arguments: Arguments, *, why: str) -> tuple[tuple[Any, ...], Result]:
        """The operators of a run, each with the shapes that it was given, and the result. It counts
        as a run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        way = self.subject.try_operators
        found: tuple[tuple[Any, ...], Result]
        (found,) = self._run(way, arguments, "operators", why).leaves
        return found

    def try_run(
        self, arguments: Arguments, *, why: str, memo: bool = False, necessary: bool = False
    ) -> Result | None:
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

    def try_out(self, arguments: Arguments) -> Result:
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
        self, arguments: Arguments, within: contextlib.AbstractContextManager[Any], *, why: str
    ) -> Result:
        """The result of the model for the arguments themselves, inside a block that looks at the
        run.

        :raises SpentError: when the budget has ended
        :raises Exception: what the model raises
        """
        self.count(why, necessary=False)
        with self.stages.experiment(), self.untouched():
            with within:
                result = self.subject(arguments)
            return opened(result)

    @contextlib.contextmanager
    def private_run(self, *, why: str) -> Iterator[None]:
        """A necessary run that the block makes itself, in another way than :meth:`run` does."""
        self.count(why, necessary=True)
        with self.stages.experiment(), self.untouched():
            yield

    def _run(
        self,
        way: Callable[[Arguments], Result],
        arguments: Arguments,
        kind: str,
        why: str,
        *,
        memo: bool = True,
        necessary: bool = False,
    ) -> Result:
        key = self._key(kind, arguments) if memo else None
        if key is not None and self._memo.has(key):
            return self._memo.result(key)
        self.count(why, necessary=necessary)
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

    def _key(self, kind: str, arguments: Arguments) -> str | None:
        """The name of a run in the memo; None where the arguments have no digest."""
        digest = key_of(arguments)
        return f"{kind} {bool(self.subject.repeats)} {digest}" if digest is not None else None

    def remember(self, arguments: Arguments, result: Result) -> None:
        """Keeps the result of a private run: :meth:`run` gives it again for equal arguments."""
        self._memo.keep(self._key("real", arguments), result)

    def forget(self) -> None:
        """Frees the results that are remembered: a program keeps its Lab, and needs none of
        them.
        """
        self._memo.forget()
        self.subject.keeper.forget()

    def check_budget(self) -> None:
        """Passes when another run is allowed.

        :raises SpentError: when the budget has ended, or runs have changed the model for good
        """
        if self.subject.keeper.lost:
            change = self.subject.keeper.lost[0]
            raise SpentError(f"runs that leave the model as it is ({change})")
        super().check_budget()


def _values_of(arguments: Arguments) -> Values:
    """The leaves of the arguments of a call."""
    return dict(open_arguments(dict(arguments)).items())
