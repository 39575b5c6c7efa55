"""Models whose weights stay in a folder: they are watched and exported without memory for their weights.

Each large weight is a stand-in (:mod:`onlooker.targets.stand_ins`), so that Python and experiments run as with
any weights. A file of the program then gets the weights of the folder, one at a time.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .core.errors import UnsupportedError
from .targets.safetensors_files import Checkpoint
from .targets.stand_ins import StandIns, using

__all__ = ["model_of_folder", "refused", "weights_from"]

#: weights of fewer bytes are read as they are: a converter may compute with them
SMALLEST = 2**18


@contextlib.contextmanager
def weights_from(
    model: torch.nn.Module, folder: str | Path, *, dtype: torch.dtype | None = None
) -> Iterator[Any]:
    """Gives a copy of a model of the device meta that is watched and exported inside of the block, while
    its weights stay in a folder::

        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        with onlooker.weights_from(model, "folder") as model:
            observer = onlooker.InputObserver()
            with observer(model):
                model.generate(ids)  # of the CPU
            observer.export(to="onnx").save("program")

    ``folder`` has ``model.safetensors``, or several files with their index. What is saved inside of the
    block has its weights, in ``dtype``, each of which is read again and compared. Nothing is computed with
    them: results of the model are those of random weights, and a program cannot be run or verified before it
    is loaded.

    :raises SavedFileError: ``file-missing``, ``file-damaged``
    :raises UnsupportedError: ``no-low-memory`` where a weight of the model is none of the folder
    """
    kinds = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    chosen = dtype or next(kinds, torch.float32)
    checkpoint, stand_ins = Checkpoint(Path(folder)), StandIns()
    cls: Any = type(model)
    if hasattr(cls, "from_pretrained") and hasattr(model, "config"):
        made = model_of_folder(cls, model.config, checkpoint, chosen, stand_ins)
    else:
        made = _with_weights(model, _given(checkpoint, chosen, stand_ins))
    with using(stand_ins):
        yield made.train(model.training)


def _with_weights(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A copy of the model with these tensors, of which each stands wherever it is shared."""
    made = copy.deepcopy(model)
    tensors = [
        *made.named_parameters(remove_duplicate=False),
        *made.named_buffers(remove_duplicate=False),
    ]
    shared = {id(tensor): given[name] for name, tensor in tensors if name in given}
    found = {name: shared[id(tensor)] for name, tensor in tensors if id(tensor) in shared}
    left = [name for name, tensor in tensors if tensor.is_meta and name not in found]
    if left:
        raise refused(f"{left[0]} and {len(left) - 1} more of its tensors are not in the folder")
    try:
        made.load_state_dict(found, strict=False, assign=True)
    except RuntimeError as error:
        raise refused(str(error).splitlines()[-1].strip()) from error
    return made


def model_of_folder(
    cls: Any, config: Any, checkpoint: Checkpoint, dtype: torch.dtype, stand_ins: StandIns
) -> Any:
    """The model of transformers with stand-ins for large weights, and small ones as they are.

    :raises UnsupportedError: ``no-low-memory`` where a weight of the model is none of the checkpoint
    """
    given = _given(checkpoint, dtype, stand_ins)
    known = {tensor.data_ptr(): name for name, tensor in given.items()}
    model = cls.from_pretrained(None, config=config, state_dict=dict(given), dtype=dtype).eval()
    missing = [name for name, weight in model.named_parameters() if weight.data_ptr() not in known]
    if missing:
        raise refused(
            f"{missing[0]} and {len(missing) - 1} more of its weights are not in the folder as they are in"
            " the model"
        )
    return model


def _given(
    checkpoint: Checkpoint, dtype: torch.dtype, stand_ins: StandIns
) -> dict[str, torch.Tensor]:
    """Stand-ins for the large weights of a checkpoint, and the small ones as they are."""
    specs = {name: checkpoint.spec(name) for name in checkpoint}
    large = {
        name: shape
        for name, (known, shape) in specs.items()
        if known.is_floating_point and math.prod(shape) * dtype.itemsize >= SMALLEST
    }
    given = {name: _as(dtype, checkpoint[name]) for name in specs if name not in large}
    sizes = [math.prod(shape) for shape in large.values()]
    for (name, shape), memory in zip(large.items(), stand_ins.pool(sizes, dtype), strict=True):
        given[name] = memory.view(shape)
        stand_ins.add(given[name], partial(_read, checkpoint, name, dtype), name)
    return given


def _read(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    return _as(dtype, checkpoint[name])


def _as(dtype: torch.dtype, weight: torch.Tensor) -> torch.Tensor:
    return weight.to(dtype) if weight.is_floating_point() else weight


def refused(reason: str) -> UnsupportedError:
    """The error of a model that needs its weights in memory."""
    return UnsupportedError(
        f"The model cannot be converted with low memory: {reason}.",
        slug="no-low-memory",
        hint="Convert it on a machine with memory for its weights, with all of them there.",
    )
