"""The precisions that a program may be converted to: one vocabulary for all targets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRECISIONS", "Precision", "is_calibrated", "is_integer", "precision_named"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Numbers of ``bits`` bits in the place of float32.

    Where ``is_integer``, a number is an integer times a scale, which a block of them shares. Where
    ``is_calibrated``, activations are such integers as well, between bounds measured on calls.

    >>> print(precision_named("int8-static"))
    int8-static: weights and activations in 8 bits, between bounds that calls had
    """

    name: str
    bits: int
    what: str
    is_integer: bool = False
    is_calibrated: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


#: each target lists those that it has, by name
PRECISIONS: tuple[Precision, ...] = (
    Precision("fp16", 16, "float16"),
    Precision("bf16", 16, "weights in bfloat16"),
    Precision("int8", 8, "weights in 8 bits", is_integer=True),
    Precision("int4", 4, "weights in 4 bits", is_integer=True),
    Precision(
        "int8-static",
        8,
        "weights and activations in 8 bits, between bounds that calls had",
        is_integer=True,
        is_calibrated=True,
    ),
)


def precision_named(name: str) -> Precision:
    """The precision of this name.

    >>> precision_named("int4").bits
    4

    :raises KeyError: for a name that there is not
    """
    return {one.name: one for one in PRECISIONS}[name]


def is_calibrated(name: object) -> bool:
    """True for the name of a precision that is made with the values of calls."""
    return any(one.name == name and one.is_calibrated for one in PRECISIONS)


def is_integer(name: object) -> bool:
    """True for the name of a precision that makes integers of weights."""
    return any(one.name == name and one.is_integer for one in PRECISIONS)
