"""Comparisons of sizes that are plain bools at once, for functions of torch that take no symbolic one.

``is_causal=x.shape[1] > 1`` is a symbolic bool in a trace. Where Python asks for it, as ``if`` does, torch
decides it for the example and keeps a guard. A function of C++ that takes a bool does not ask: ``argument
'is_causal' must be bool, not SymBool``. With the repair a comparison that the model makes is decided where
it is made, so that its guard has the line of the comparison. A model has to have met the error before,
since a comparison that nobody reads would be a guard too.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/utils/python_arg_parser.cpp, where
a parameter of the type bool takes no ``SymBool``, whereas one of the type int takes a ``SymInt``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...model_source.frames import Owner, owner_of
from ...patches.swap import swapped
from ..repair import Repair

__all__ = ["PLAIN_BOOLS", "comparisons_are_decided"]

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


@contextlib.contextmanager
def comparisons_are_decided() -> Iterator[None]:
    """Inside the block a comparison of sizes in the code of a model is a plain bool."""
    with contextlib.ExitStack() as stack:
        for number in (torch.SymInt, torch.SymFloat):
            for name in _COMPARISONS:
                stack.enter_context(swapped(number, name, _decided(getattr(number, name))))
        yield


def _decided(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def decided(left: Any, right: Any) -> Any:
        answer = compare(left, right)
        is_of_model = owner_of(sys._getframe(1).f_code.co_filename) is Owner.MODEL
        return bool(answer) if is_of_model and isinstance(answer, torch.SymBool) else answer

    return decided


PLAIN_BOOLS = Repair(
    "plain bools",
    "A function of C++ takes no symbolic bool, as ``is_causal=x.shape[1] > 1`` gives one. The comparisons"
    " of the model are decided where they are made.",
    until="tests/repairs/test_plain_bools.py::test_torch_takes_no_symbolic_bool",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/utils/python_arg_parser.cpp",
    refusal="SymBool",
    block=lambda _: comparisons_are_decided(),
)
