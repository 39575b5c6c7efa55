"""Sizes to trace a plan with, near to those that no graph holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...infer.sizes import alignment, is_general
from ..fixed_sizes import at_sizes
from .proven_graphs import ProvenGraphs

__all__ = ["NearbySizes"]

#: sizes above this one stay as even as they were seen
_SMALL = 24
#: so many choices of sizes are tried for one trace
_MOST_CHOICES = 2
#: so many steps are made from some sizes on
_MOST_STEPS = 8
#: sizes in the place of 0 and 1, which torch keeps
_GENERAL = (3, 2)


class NearbySizes:
    """Finds sizes that leave each trace at the same condition as other ones, which the model takes."""

    def __init__(self, plan: Plan, proven: ProvenGraphs, takes: Callable[[Sizes], bool]) -> None:
        self._plan, self._proven, self._takes = plan, proven, takes

    def general_near(self, seed: Sizes) -> Iterator[Sizes]:
        """Yields sizes that stand for those of a call: they leave each trace at the same condition, are
        general, and small if possible. The sizes themselves come last.
        """
        violated = self._proven.first_violated(seed)

        def are_beside(sizes: Sizes) -> bool:
            return self._proven.first_violated(sizes) == violated

        small = dict(seed)
        for name in seed:
            nearer = {**small, name: self._base(name, seed)}
            if are_beside(nearer):
                small = nearer
        own = dict(seed)
        for name, size in seed.items():
            base = self._base(name, seed)
            # a small size may pad to one window alone, and torch keeps the number of windows then
            for general in (base, base + 1, *_GENERAL) if size in (0, 1) else ():
                if are_beside({**own, name: general}):
                    own[name] = general
                    break
        is_taken, is_general_own = own != seed and self._takes(own), self._is_general(own)
        if is_taken and is_general_own:
            yield own
        n_found = 0
        steps: list[Sizes] = []
        if self._proven.have_known_numbers(seed) and not self._proven.are_beyond_steps(seed):
            steps = [*self._steps_from(small), *self._steps_from(seed)]
        for choice in steps:
            if self._is_general(choice) and are_beside(choice) and self._takes(choice):
                n_found += 1
                yield choice
            if n_found == _MOST_CHOICES:
                break
        if is_taken and not is_general_own:  # as where only squares are on the side
            yield own
        if self._takes(seed):
            yield seed

    def _base(self, name: str, seed: Sizes) -> int:
        """Returns the size that a symbol has in the first trace."""
        return self._proven.graphs[0].regions[0].sizes.get(name, seed[name])

    def _is_general(self, sizes: Sizes) -> bool:
        fixed = {name: size for name, size in sizes.items() if size in (0, 1)}
        free = {name: size for name, size in sizes.items() if name not in fixed}
        return is_general(at_sizes(self._plan, fixed) if fixed else self._plan, free)

    def _steps_from(self, seed: Sizes) -> Iterator[Sizes]:
        """Yields sizes from those of a call on. Large sizes stay as even as they were seen."""
        units = {
            s.name: alignment(s) if seed[s.name] > _SMALL else s.step for s in self._plan.symbols
        }
        for step in range(_MOST_STEPS):
            yield {
                name: (
                    seed[name]
                    if seed[name] in (0, 1)
                    else seed[name] + step * unit * (1 + position)
                )
                for position, (name, unit) in enumerate(units.items())
            }
