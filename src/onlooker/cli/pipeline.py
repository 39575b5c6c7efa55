"""``--diffusers PATH``: a saved pipeline of diffusers, of which every part gets a program."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import MissingPackageError, UnsupportedError, UsageError
from ..observers import Observers, observe
from ..program import Program
from ..programs import Programs
from ..targets.side_files import side_files
from .pretrained import local_folder
from .progress import Say

__all__ = ["Pipeline", "read_pipeline", "watch_pipeline", "write_pipeline"]

_INDEX = "model_index.json"
_STEPS = 2
_PROMPT = "a photograph of a house"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A saved pipeline: the folder it was read from, the object, and what is watched of it by the
    name of its folder.
    """

    name: str
    folder: Path
    pipe: Any
    entries: Mapping[str, Any]


def read_pipeline(name: str, dtype: str, say: Say) -> Pipeline:
    """The pipeline in a local folder, or in the cache of the hub; nothing is downloaded.

    A part that encodes and decodes has two programs, as diffusers lays them out for ONNX: those of
    ``vae`` are ``vae_encoder`` and ``vae_decoder``.

    :raises UsageError: ``no-saved-model``, ``bad-saved-model``
    :raises MissingPackageError: ``missing-package``
    """
    try:
        import diffusers
    except ImportError as error:
        raise MissingPackageError(
            f"A pipeline is read by diffusers, which cannot be imported ({error}).",
            slug="missing-package",
            hint="Install it with: pip install diffusers.",
        ) from error
    folder = local_folder(name, _INDEX)
    say(f"reading {folder}")
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(folder, local_files_only=True)
        pipe.to(getattr(torch, dtype))
    except Exception as error:
        raise UsageError(
            f"{folder} cannot be read by diffusers: {type(error).__name__}: {str(error)[:500]}",
            slug="bad-saved-model",
            hint="Load it in Python, and export from a function: onlooker export app.py:build.",
        ) from error
    pipe.set_progress_bar_config(disable=True)
    entries: dict[str, Any] = {}
    for part, module in pipe.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        if callable(getattr(module, "encode", None)) and callable(getattr(module, "decode", None)):
            entries[f"{part}_encoder"] = (module.eval(), "encode")
            entries[f"{part}_decoder"] = (module, "decode")
        else:
            entries[part] = module.eval()
    return Pipeline(name, folder, pipe, entries)


def watch_pipeline(pipeline: Pipeline, keep: int) -> Observers:
    """The observers of two runs of a pipeline: one prompt, then two, with a larger picture.

    A part that encodes is also given the pictures, where the pipeline itself encodes none.

    :raises UnsupportedError: ``no-natural-use``
    """
    pipe = pipeline.pipe
    with observe(store_n_calls=keep, **pipeline.entries) as observers, torch.no_grad():
        height = None
        for batch in (1, 2):
            try:
                pictures = pipe(**_arguments(pipe, batch, height)).images
            except Exception as error:
                raise UnsupportedError(
                    f"No natural use of a {type(pipe).__name__} is known:"
                    f" {type(error).__name__}: {str(error)[:300]}.",
                    slug="no-natural-use",
                    hint="Write a function: onlooker export app.py:build --entry unet.",
                ) from error
            height = pictures.shape[-2] * 3 // 2
            for module in [entry[0] for entry in pipeline.entries.values() if _encodes(entry)]:
                module.encode(pictures.to(module.dtype) * 2 - 1)
    return observers


def _encodes(entry: Any) -> bool:
    return isinstance(entry, tuple) and entry[1] == "encode"


def _arguments(pipe: Any, batch: int, height: int | None) -> dict[str, Any]:
    """The arguments of one run, among those that the pipeline takes; None leaves the height to it."""
    wanted = {
        "prompt": [_PROMPT] * batch,
        "num_inference_steps": _STEPS,
        "output_type": "pt",
        "generator": torch.Generator().manual_seed(batch),
        "height": height,
    }
    taken = inspect.signature(pipe.__call__).parameters
    return {name: value for name, value in wanted.items() if name in taken}


def write_pipeline(programs: Programs, pipeline: Pipeline, out: Path, prefix: str) -> list[Path]:
    """Writes ``unet/model.onnx`` and the like, each beside the configuration of its part, and what
    the pipeline has beside its modules; gives the paths of the models.

    Of several graphs, the one that serves most of the calls that were made is ``model.onnx``.

    :param prefix: what the model of a part is called: ``model``
    :raises UsageError: ``not-a-directory``
    :raises SavedFileError: ``not-written``
    """
    components = pipeline.pipe.components
    modules = [name for name, each in components.items() if isinstance(each, torch.nn.Module)]
    written: list[Path] = []
    for entry, program in programs.items():
        folder = out / entry
        names = _names(program, prefix)
        for path in program.save_graphs(folder):
            graph, dot, ending = path.name.partition(".")
            written.append(path.replace(folder / f"{names.get(graph, graph)}{dot}{ending}"))
        source = pipeline.folder / entry
        if not source.is_dir():
            source = pipeline.folder / entry.rpartition("_")[0]
        _copy(side_files(source), folder)
    _copy(side_files(pipeline.folder), out)
    for inner in pipeline.folder.iterdir():
        if inner.is_dir() and inner.name in components and inner.name not in modules:
            shutil.copytree(inner, out / inner.name, dirs_exist_ok=True)
    return written


def _names(program: Program, prefix: str) -> dict[str, str]:
    """The names of the files by those of the graphs, in the order of the calls that they serve."""
    calls = dict(program.check(program.recording).served)
    ordered = sorted((graph.name for graph in program.graphs), key=lambda name: -calls.get(name, 0))
    return {
        name: prefix if number == 1 else f"{prefix}_{number}"
        for number, name in enumerate(ordered, start=1)
    }


def _copy(files: list[Path], folder: Path) -> None:
    for path in files:
        shutil.copyfile(path, folder / path.name)
