"""A model that is spread over processes is neither run in private nor exported.

A call of it talks to the other processes, which may ask other questions, and both would wait for
ever. Besides, the methods of its modules see whole weights only inside hooks of torch, and the
older FSDP does not work again after a trace of torch.export has met it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..core.errors import UnsupportedError

__all__ = ["check_one_process"]

_SHARDING = ("FSDPModule", "FullyShardedDataParallel")
_GATHER = (
    "Gather the weights in all processes, with get_model_state_dict(model,"
    " options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict,"
    " load them into a copy of the model that is not wrapped, and watch and export that one."
)


def check_one_process(model: Any) -> None:
    """Passes for a model that has all its weights, and talks to no other process.

    :raises UnsupportedError: ``sharded-weights``, ``distributed-wrapper``
    """
    if not isinstance(model, torch.nn.Module):
        return
    place = _sharded_weight(model) or _sharding_module(model)
    if place:
        raise UnsupportedError(
            f"The weights of {type(model).__name__} are sharded over processes: {place}.",
            slug="sharded-weights",
            hint=_GATHER,
        )
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            name = f"model.{path}" if path else "model"
            raise UnsupportedError(
                f"{name} is a DistributedDataParallel, whose forward talks to other processes, and"
                " no graph can.",
                slug="distributed-wrapper",
                hint=(
                    f"Watch and export {name}.module, and call {name} as before: its calls go"
                    " through that one."
                    if not path
                    else f"Put {name}.module in its place before watching."
                ),
            )


def _sharded_weight(model: torch.nn.Module) -> str:
    """The first weight of which a process has a part only."""
    distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    for path, weight in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(weight, distributed):
            return f"{path} is a DTensor"
        if getattr(weight, "_fsdp_flattened", False):
            return f"{path} belongs to FullyShardedDataParallel"
    return ""


def _sharding_module(model: torch.nn.Module) -> str:
    """The first module whose weights come and go: between the calls they may stand there as if
    they were whole.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    classes = tuple(getattr(fsdp, name) for name in _SHARDING if hasattr(fsdp, name))
    for path, module in model.named_modules() if classes else ():
        if isinstance(module, classes):
            return f"{path or 'the model'} is a {type(module).__name__} of torch.distributed.fsdp"
    return ""
