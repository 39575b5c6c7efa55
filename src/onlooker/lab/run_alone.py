"""Models that are neither run in private nor exported.

One that is spread over processes: a call of it talks to the other processes, which may ask other
questions, and both would wait for ever. Besides, the methods of its modules see whole weights only inside
hooks of torch, and the older FSDP does not work again after a trace of torch.export has met it.

One whose weights keep a part of themselves in attributes of Python: a weight of bitsandbytes is a tensor of
bytes, and its scales are attributes of the object, of which a trace reads nothing. Besides, some of its
kernels end the process for a batch without rows.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..core.errors import UnsupportedError
from ..torch_internals.fake_tensors import is_tensor_of_tensors

__all__ = ["check_runs_alone"]

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SHARDING = ("FSDPModule", "FullyShardedDataParallel")
_GATHER = (
    "Gather the weights in all processes, with get_model_state_dict(model,"
    " options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict,"
    " load them into a copy of the model that is not wrapped, and watch and export that one."
)


def check_runs_alone(model: Any) -> None:
    """Passes for a model that has all its weights, and talks to no other process.

    :raises UnsupportedError: ``sharded-weights``, ``distributed-wrapper``; ``packed-weights`` for
        integers in a class of tensors that torch does not take apart
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
    for path, weight in (*model.named_parameters(), *model.named_buffers()):
        if _is_partly_in_python(weight):
            raise _packed(path, weight)
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


def _is_partly_in_python(weight: torch.Tensor) -> bool:
    """True for integers whose class has attributes of its own, such as scales."""
    is_whole = type(weight) in _PLAIN or is_tensor_of_tensors(weight)
    is_number = weight.is_floating_point() or weight.is_complex()
    return not is_whole and not is_number and bool(_attributes_of(weight))


def _packed(path: str, weight: torch.Tensor) -> UnsupportedError:
    package = type(weight).__module__.partition(".")[0]
    return UnsupportedError(
        f"{path} is a {package}.{type(weight).__name__}: {weight.dtype}, with attributes of Python"
        f" that no trace reads ({', '.join(_attributes_of(weight)[:3])}).",
        slug="packed-weights",
        hint=(
            "Load the checkpoint without its quantisation, or make floats of it"
            " (model.dequantize() of transformers), and watch that model. program.to(target,"
            ' precision="int4") makes integers of it again.'
        ),
    )


def _attributes_of(weight: torch.Tensor) -> list[str]:
    """The names of what the object of a weight has beside its numbers."""
    return [name for name, value in vars(weight).items() if value is not None]
