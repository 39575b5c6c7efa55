"""What a model may read of a call beside values, sizes and structure. A graph names each kind that
its model reads, with the line that reads it, and serves only calls that are as in its trace.

>>> said_of(IDENTITY)
'tensors that are no argument twice'
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "FINITE",
    "GRADIENTS",
    "IDENTITY",
    "MEMORY",
    "NUMBERS",
    "ORDER",
    "PARAMETERS",
    "UNRECORDED",
    "WRITES",
    "said_of",
]

#: whether gradients are recorded
GRADIENTS: Final = "gradients"
#: strides, the place in memory, whose view a tensor is
MEMORY: Final = "memory"
#: how often a tensor was written in place
WRITES: Final = "writes"
#: whether two arguments are one object
IDENTITY: Final = "identity"
#: the order of the items of dicts, and of arguments that ``**kwargs`` takes
ORDER: Final = "order"
#: whether a tensor is a torch.nn.Parameter
PARAMETERS: Final = "parameters"
#: whether the block around a call records gradients, where watched calls stood in one that does not
UNRECORDED: Final = "unrecorded"
#: whether a number is NaN, which other runtimes than torch do not carry through
NUMBERS: Final = "numbers"
#: whether a number is infinite, where another runtime was seen to compute otherwise with such
FINITE: Final = "finite"

_SAID = {
    GRADIENTS: "tensors that record no gradients",
    MEMORY: "contiguous tensors that are no part of another one",
    WRITES: "tensors that were never written in place",
    IDENTITY: "tensors that are no argument twice",
    NUMBERS: "numbers, and no NaN",
    FINITE: "finite numbers",
    PARAMETERS: "tensors that are no torch.nn.Parameter",
    UNRECORDED: "a call inside torch.no_grad()",
    ORDER: "the items in the order of the watched calls",
}


def said_of(mark: str) -> str:
    """What a graph that reads a mark needs of a call, in words."""
    return _SAID.get(mark, mark)
