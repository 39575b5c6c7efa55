"""Loops over sizes in the runs of a model, rolled where the graphs have them rolled.

In a run with symbols for sizes ``for t in range(x.shape[1])`` would decide the number of its steps, so
that the run stood for one length alone. A graph whose trace rolled the loop holds for all lengths, up to
the number of steps that were compared. The run rolls it in the same way: its steps are compared anew, and
so is all that Python keeps between them, since the run may take another path than the trace.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...lab.lab import Lab
from ...lab.recorder import Recorder
from ...repairs.loops.rolled_loops import RolledLoops, Rolling
from ...repairs.loops.steps import Loop
from .symbolic_sizes import SymbolicSizes

__all__ = ["LoopsOfRuns"]


class LoopsOfRuns(RolledLoops):
    """Rolls the loops of one run at the lines where traces did: those of the ``rollings``."""

    def __init__(
        self, rollings: Iterable[Rolling], lab: Lab, recorder: Recorder, symbols: SymbolicSizes
    ) -> None:
        found = [rolling for rolling in rollings if rolling.lines]
        lines = dict.fromkeys(line for rolling in found for line in rolling.lines)
        ends = max((rolling.ends for rolling in found), key=len, default=())
        super().__init__(
            like=Rolling(tuple(lines), max((one.n_steps for one in found), default=1), ends=ends),
            unseen=recorder.paused,
            reach=lambda: lab.subject.keeper.begun.now(),
            ranges=symbols.ranges,
        )
        self._symbols = symbols

    @property
    def follows(self) -> bool:
        """False: the run may take another path than the trace did."""
        return False

    def roll(self, loop: Loop) -> None:
        """Makes the scan, which runs as many steps as the sizes of the run say.

        :raises NotRolledError: where the steps differ
        """
        with self._symbols.as_numbers():
            super().roll(loop)
