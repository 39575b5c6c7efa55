"""An example with the sizes of a watched call, in place of general ones.

What a model keeps in Python may be right at the sizes that calls had, and not at others. So where a
trace reads what calls change, it is made once more at such sizes.
"""

from __future__ import annotations

from .repair import Repair

__all__ = ["WATCHED_SIZES"]

WATCHED_SIZES = Repair(
    "watched sizes",
    "A trace at general sizes may leave behind in Python what no watched call does. Where it reads what"
    " calls count, the next one has the sizes of a call.",
    until="tests/trace/test_state_reads.py",
)
