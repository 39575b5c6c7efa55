"""``--low-memory``: a saved model of transformers that is larger than memory, as a program in a folder.

The model is built with stand-ins for its weights (``targets.stand_ins``), watched and exported as any other.
Then the weights go from the folder of the model into the files of the program, one at a time. Nothing runs
the program here: the proof is one of a twin, the same configuration with few layers and random weights.
"""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.contract import Contract
from ..core.errors import ExportError, OnlookerError
from ..input_observer import InputObserver
from ..low_memory import SMALLEST, model_of_folder, refused
from ..program import Program
from ..report.report import Report
from ..targets.safetensors_files import Checkpoint
from ..targets.side_files import side_files
from ..targets.stand_ins import StandIns, using, weights_computed
from ..zoo.model import load_transformers
from ..zoo.uses import natural_use
from .pretrained import Pretrained, class_of, local_folder, unread, watch_pretrained
from .progress import Say

__all__ = ["LowMemory", "Request", "convert"]

#: the fewest layers of a twin: the second one follows another
_FEWEST = 2
#: so many numbers lie between the beginnings of weights of a twin in one piece of memory
_STEP = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the program: the target with its options, the dtype of the weights, the options
    of the export, and what a verification allows.
    """

    to: str
    dtype: torch.dtype
    variant: Mapping[str, Any]
    export: Mapping[str, Any]
    thresholds: Mapping[str, Any]
    keep: int = 3


@dataclass(frozen=True, slots=True)
class _Twin:
    """What was proven of the twin."""

    layers: int
    report: Report
    contracts: tuple[Contract, ...]

    @property
    def sentence(self) -> str:
        """What the whole may say of itself."""
        said = "verified" if self.report.verified else "not verified"
        return (
            f"{said} on a twin of {self.layers} layers with random weights; the whole was not run"
        )


@dataclass(frozen=True, slots=True)
class LowMemory:
    """A program that was written, and what is known of it: ``checked`` weights of so many ``nbytes`` were
    read again from its files.
    """

    program: Program
    saved: Pretrained
    twin: _Twin
    checked: int
    nbytes: int

    @property
    def verified(self) -> bool:
        """True where the twin is verified."""
        return bool(self.twin.report.verified)

    def __str__(self) -> str:
        streamed = (
            f"{self.checked} weights, {self.nbytes / 2**30:.2f} GiB in the folder of the model, were read again from"
            " the files that were written, and are equal."
            if self.checked
            else f"Every weight is smaller than {SMALLEST >> 10} KiB and was in memory: none was streamed."
        )
        return f"{self.twin.sentence}. Its graphs serve the same sizes as those of the twin. {streamed}"


def convert(name: str, out: Path, request: Request, say: Say) -> LowMemory:
    """Writes the program of a saved model into the folder ``out``.

    :raises UsageError: ``no-saved-model``, ``bad-saved-model``
    :raises UnsupportedError: ``no-low-memory``
    :raises ExportError: ``weights-computed``, ``twin-differs``, and those of the target
    :raises SavedFileError: ``file-missing``, ``file-damaged``, ``weights-differ``, ``not-written``
    """
    folder = local_folder(name, "config.json")
    cls, config = _class_and_configuration(folder)
    layers = _count_of(_few_layers(config))
    checkpoint = Checkpoint(folder)
    say(f"exporting and verifying a twin of {layers} layers, in a process of its own")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        twin = process.submit(_proven, folder, request).result()
    say(f"exporting {_count_of(config)} layers, without weights")
    stand_ins = StandIns()
    model = model_of_folder(cls, config, checkpoint, request.dtype, stand_ins)
    saved = Pretrained(name, folder, model, natural_use(model))
    program = _watched(saved, request).export(**request.export)
    _check_alike(program, twin)
    with using(stand_ins):
        say("converting")
        made = _noted(program.to(request.to, **request.variant), twin.sentence)
        say(f"writing into {out}")
        made.save(out, beside=side_files(folder))
    checked = stand_ins.checked
    _check_complete(program, stand_ins)
    return LowMemory(made, saved, twin, len(checked), sum(map(checkpoint.nbytes, checked)))


def _class_and_configuration(folder: Path) -> tuple[Any, Any]:
    """The class of a saved model, and its configuration.

    :raises UsageError: ``bad-saved-model``
    """
    transformers = load_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        return class_of(config, transformers), config
    except OnlookerError:
        raise
    except Exception as error:
        raise unread(folder, "transformers", error) from error


def _proven(folder: Path, request: Request) -> _Twin:
    """Exports the twin to the target, and verifies it: its memory goes with the process."""
    cls, config = _class_and_configuration(folder)
    few = _few_layers(config)
    model = cls._from_config(few, dtype=request.dtype).eval()
    _overlap_weights(model)
    saved = Pretrained(folder.name, folder, model, natural_use(model))
    # without copies of the weights that are laid out for speed
    lean = {"session_options": {"session.disable_prepacking": "1"}} if request.to == "onnx" else {}
    options = {**request.variant, **lean, **request.export}
    program = _watched(saved, request).export(to=request.to, **options)
    program.verify(**request.thresholds)
    contracts = tuple(graph.contract for graph in program.graphs)
    return _Twin(_count_of(few), program.report, contracts)


def _overlap_weights(model: torch.nn.Module) -> None:
    """Lets the large weights lie in the memory of the largest one, each some numbers behind the one before
    it, where they are random numbers of the same spread: a runtime has copies of them all beside these.
    """
    large = [weight for weight in model.parameters() if weight.nbytes >= SMALLEST]
    if not large:
        return
    largest = max(large, key=torch.Tensor.numel)
    numbers = largest.data.reshape(-1)
    for at, weight in enumerate(large):
        part = numbers[_STEP * at : _STEP * at + weight.numel()]
        if (
            weight is not largest
            and weight.numel() == part.numel()
            and _are_alike(weight.detach(), part)
        ):
            weight.data = part.view(weight.shape)


def _are_alike(weight: torch.Tensor, other: torch.Tensor) -> bool:
    """True for numbers of one dtype around zero whose spreads differ by a tenth at most."""
    if weight.dtype != other.dtype or not weight.is_floating_point():
        return False
    spread, of_other = float(weight.std()), float(other.std())
    return abs(float(weight.mean())) < 0.1 * spread and 0.9 * spread < of_other < 1.1 * spread


def _watched(saved: Pretrained, request: Request) -> InputObserver:
    watched = watch_pretrained(saved, request.keep)
    if isinstance(watched, InputObserver):
        return watched
    raise refused(f"a {type(saved.model).__name__} has an encoder that runs by itself")


def _few_layers(config: Any) -> Any:
    """The configuration with as few layers as have every kind of layer.

    :raises UnsupportedError: ``no-low-memory``
    """
    few = copy.deepcopy(config)
    inner = few.get_text_config()
    count = getattr(inner, "num_hidden_layers", None)
    if not isinstance(count, int) or getattr(config, "is_encoder_decoder", False):
        raise refused("its configuration does not say how many equal layers it has")
    if getattr(config, "quantization_config", None) is not None:
        raise refused("its weights are quantised already")
    kinds = getattr(inner, "layer_types", None)
    firsts = [] if not kinds else [list(kinds).index(kind) + 1 for kind in set(kinds)]
    inner.num_hidden_layers = min(count, max(_FEWEST, *firsts, 0))
    if kinds:
        inner.layer_types = list(kinds)[: inner.num_hidden_layers]
    return few


def _count_of(config: Any) -> int:
    return int(config.get_text_config().num_hidden_layers)


def _check_alike(program: Program, twin: _Twin) -> None:
    """Passes where the graphs of the whole are proven for the sizes of those of the twin.

    :raises ExportError: ``twin-differs``
    """
    own = [_formulas_of(graph.contract) for graph in program.graphs]
    if own != [_formulas_of(contract) for contract in twin.contracts]:
        raise ExportError(
            f"The twin of {twin.layers} layers has graphs for other sizes than the whole model, so that"
            " its proof says nothing of the whole.",
            slug="twin-differs",
            hint="Convert the model on a machine with memory for its weights, without --low-memory.",
        )


def _formulas_of(contract: Contract) -> list[list[str]]:
    return [[str(one.formula) for one in region.constraints] for region in contract.regions]


def _noted(program: Program, note: str) -> Program:
    """The program with a note of each graph."""
    graphs = [replace(graph, notes=(*graph.notes, note)) for graph in program.graphs]
    return Program(program._program.with_graphs(graphs))


def _check_complete(program: Program, stand_ins: StandIns) -> None:
    """Passes where every weight that a graph has, and that stood for one of the folder, was written.

    :raises ExportError: ``weights-computed``
    """
    for graph in program.graphs:
        for name, weight in graph.artifact.state_dict.items():
            known = stand_ins.find(weight)
            if known is not None and known.name not in stand_ins.checked:
                raise weights_computed(f"{graph.name} was written without {name}")
