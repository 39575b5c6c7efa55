"""The least step of a size that takes v and 2*v but not v + 1: multiples of a patch, of 8, of 2."""

from __future__ import annotations

from collections.abc import Callable

import sympy

__all__ = ["least_step", "likely_steps"]

#: what models commonly divide a side by, tried where twice the size is refused
_COMMON = (32, 16, 14, 8)


def least_step(size: int, takes: Callable[[int], bool]) -> int:
    """The least divisor of ``size`` that may be added to it; ``takes`` says whether the model takes
    a size.

    The primes of the step are left out one by one: when sizes must be multiples of a step, another
    one is taken exactly when what is added is a multiple of it too. As many questions as the size
    has primes.

    >>> asked = []
    >>> least_step(224, lambda size: asked.append(size) or size % 14 == 0), asked
    (14, [336, 280, 252, 238, 231, 226])
    """
    step = size
    for prime in sympy.primefactors(size):
        while step % prime == 0 and step > prime and takes(size + step // prime):
            step //= prime
    return step


def likely_steps(size: int) -> tuple[int, ...]:
    """The common steps that ``size`` is a multiple of."""
    return tuple(step for step in _COMMON if size > step and size % step == 0)
