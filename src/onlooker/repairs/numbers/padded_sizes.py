"""A size that a model fills up to whole windows, written as a multiple of the window.

A model with windows fills images up, from layer to layer. With the padding in them, the sizes of some
layers are remainders of quotients of remainders: conditions on them are too long to be read, and to
compute one for other sizes takes minutes. Without it they stay short, and a window divides them::

    h + (7 - h % 7) % 7                   7*((h + 6) // 7)
    h + -h % 4                            4*((h + 3) // 4)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sympy

from ...patches.swap import swapped
from ...torch_internals.sizes import FloorDiv, Mod, PythonMod, sym_node

__all__ = ["padded_sizes_are_multiples", "without_padding"]

_REMAINDERS = (Mod, PythonMod)


@contextlib.contextmanager
def padded_sizes_are_multiples() -> Iterator[None]:
    """Inside the block the sum of a size and its padding is a multiple."""
    add = sym_node._optimized_add

    def padded(*args: Any, **kwargs: Any) -> tuple[bool, Any]:
        is_sum_of_symbols, total = add(*args, **kwargs)
        multiple = without_padding(total)
        return (is_sum_of_symbols, total) if multiple is None else (False, multiple)

    with swapped(sym_node, "_optimized_add", padded):
        yield


def without_padding(value: Any) -> Any:
    """Returns a sum in which a multiple stands for a size beside the padding that fills it up;
    None where there is no such padding.

    >>> n = sympy.Symbol("n", integer=True, positive=True)
    >>> without_padding(n + PythonMod(4 - PythonMod(n, 4), 4) - 1)
    4*(((n + 3)//4)) - 1
    """
    terms = sympy.Add.make_args(value)
    for padding in terms:
        padded = _padded_by(padding)
        if padded is None:
            continue
        size, step = padded
        rest = value - padding - size
        if len(sympy.Add.make_args(rest)) < len(terms):
            return rest + step * FloorDiv(size + step - 1, step)
    return None


def _padded_by(value: Any) -> tuple[Any, Any] | None:
    """Returns ``n`` and ``k`` of ``(k - n % k) % k``, and of ``-n % k``; None of anything else."""
    if not isinstance(value, _REMAINDERS):
        return None
    missing, step = value.args
    if not (step.is_Integer and step > 0):
        return None
    rest = step - missing
    if isinstance(rest, _REMAINDERS) and rest.args[1] == step:
        return rest.args[0], step
    return (-missing, step) if missing.could_extract_minus_sign() else None
