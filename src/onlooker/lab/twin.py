"""A twin of a model: a deep copy that shares its tensors, for experiments and traces.

What a model keeps in Python, whatever it is made of, is then never spoiled by experiments: the twin
has objects of its own. Weights and buffers are those of the model, so that a twin costs little memory
(15 ms for a Llama of 8 layers), and graphs that are traced with it own the weights of the model.

What a twin cannot isolate (tensors, closures, globals) is compared before and after each run, and put
back: see :mod:`onlooker.observing.state`. A model that cannot be copied, or whose copy would call the
model itself (a function with a closure), is run itself, and put back in the same way.
"""

from __future__ import annotations

import copy
import logging
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from ..observing.reach import Snapshot, values_of_function
from ..observing.wrapping.deepcopy_hook import unnoted_copies
from ..pytrees.unread import Unread

__all__ = ["twin_of"]

logger = logging.getLogger(__name__)


def twin_of(model: Any) -> Any:
    """A copy of the model that shares its tensors; the model itself where there is no such copy.

    >>> model = torch.nn.Linear(2, 2)
    >>> model.seen = [1]
    >>> twin = twin_of(model)
    >>> twin.weight is model.weight, twin.seen is model.seen
    (True, False)
    """
    try:
        reach = Snapshot.of(model, copies=False)
        shared = _held_by_code(reach)
        if not reach.is_whole or id(model) in shared:
            logger.debug("a copy of the %s would call the model itself", type(model).__name__)
            return model
        memo: dict[int, Any] = {**reach.tensors, **shared}
        memo.update((id(one), one) for one in reach.objects.values() if _is_shared(one))
        # a generator has no copy, and a step of it could not be taken back: who reads it raises
        memo.update(
            (id(one), Unread()) for one in reach.objects.values() if isinstance(one, GeneratorType)
        )
        with unnoted_copies():
            twin = copy.deepcopy(model, memo)
        return twin if type(twin) is type(model) else model
    except Exception as error:  # whatever a class of the user's raises when it is copied
        logger.debug("a %s has no copy: %s: %s", type(model).__name__, type(error).__name__, error)
        return model


def _held_by_code(reach: Snapshot) -> dict[int, Any]:
    """The objects that functions and classes hold themselves, in closures, globals and attributes: a
    copy of one would be another object than the one that they read. Of functions of installed packages these
    are the objects of the model, such as the dict that a hook writes to.
    """
    code = [one for one in reach.objects.values() if isinstance(one, (FunctionType, type))]
    functions = (one for one in code if isinstance(one, FunctionType))
    held = {id(value): value for function in functions for value in values_of_function(function)}
    own = [value for key, value in held.items() if key in reach.objects and not _is_code(value)]
    return Snapshot.of([*code, *own], copies=False).objects


def _is_code(value: Any) -> bool:
    return isinstance(value, (FunctionType, type, ModuleType, torch.nn.Module))


def _is_shared(value: Any) -> bool:
    """True for objects that a twin has in common with the model: a module of TorchScript holds its
    weights where no copy finds them, the state of a torch.Generator is put back, and a plain object
    is nothing but its identity.
    """
    kinds = (torch.jit.ScriptModule, torch.ScriptObject, torch.Generator)
    return isinstance(value, kinds) or type(value) is object
