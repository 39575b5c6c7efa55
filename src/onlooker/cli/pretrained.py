"""``--model PATH_OR_ID``: a saved model of transformers, and a natural use of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._api import InputObserver
from ..core.errors import OnlookerError, UsageError
from ..observers import Observers, observe
from ..program import Program
from ..programs import Programs
from ..zoo.model import load_transformers
from ..zoo.tasks import model_class, task_of
from ..zoo.uses import OTHER, PADDED, NaturalUse, natural_use
from .progress import Say

__all__ = ["Pretrained", "how_to_run", "local_folder", "read_pretrained", "watch_pretrained"]


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A saved model, the folder that it was read from, and how it is used."""

    name: str
    folder: Path
    model: Any
    use: NaturalUse


def read_pretrained(name: str, dtype: str, say: Say) -> Pretrained:
    """The model in a local folder, or in the cache of the hub; nothing is downloaded.

    :param dtype: the name of the dtype of its weights: ``float32``
    :raises UsageError: ``no-saved-model``, ``bad-saved-model``
    :raises UnsupportedError: ``no-task``, ``no-natural-use``
    :raises MissingPackageError: ``missing-package``
    """
    load_transformers()
    folder = local_folder(name, "config.json")
    say(f"reading {folder}")
    model = _model(folder, dtype)
    say("looking for a natural use")
    return Pretrained(name, folder, model, natural_use(model))


def local_folder(name: str, listed: str) -> Path:
    """The folder of a saved model or pipeline: a local one, or the one in the cache of the hub.

    :param listed: the file that it has to have
    :raises UsageError: ``no-saved-model``
    """
    folder = Path(name)
    if not folder.is_dir():
        try:
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, local_files_only=True))
        except Exception as error:
            raise UsageError(
                f"{name} is no folder, and no model in the cache of the hub.",
                slug="no-saved-model",
                hint=f"Nothing is downloaded here. Load an id first, with a network: hf download {name}.",
            ) from error
    if not (folder / listed).is_file():
        raise UsageError(
            f"{folder} has no {listed}.",
            slug="no-saved-model",
            hint="Give the folder that save_pretrained wrote.",
        )
    return folder


def _model(folder: Path, dtype: str) -> Any:
    transformers = load_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        cls = _class_of(config, transformers)
        weights = getattr(torch, dtype)
        return cls.from_pretrained(folder, local_files_only=True, dtype=weights).eval()
    except OnlookerError:
        raise
    except Exception as error:
        raise UsageError(
            f"{folder} cannot be read by transformers: {type(error).__name__}: {str(error)[:500]}",
            slug="bad-saved-model",
            hint="Load it in Python, and export from a function: onlooker export app.py:build.",
        ) from error


def _class_of(config: Any, transformers: Any) -> Any:
    """The class that the configuration names, or the first one of transformers' tables that is for
    it.

    :raises UnsupportedError: ``no-task``
    """
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type):
            return found
    return model_class(config, task_of(config))


def watch_pretrained(pretrained: Pretrained, keep: int = 3) -> InputObserver | Observers:
    """The observer of two uses of a model: a padded one, and one of another size.

    A model that generates with an encoder runs this one by itself, before its own ``forward``: both
    are watched, as ``model`` and ``encoder``.
    """
    model, use = pretrained.model, pretrained.use

    def both() -> None:
        with torch.no_grad():
            for sizes in (PADDED, OTHER):
                use.run(model, sizes)

    if use.generates and model.config.is_encoder_decoder:
        with observe(model=model, encoder=model.get_encoder(), store_n_calls=keep) as observers:
            both()
        return observers
    observer = InputObserver()
    with observer(model, store_n_calls=keep):
        both()
    return observer


def how_to_run(program: Program | Programs, saved: Pretrained, target: str, out: str) -> list[str]:
    """Lines of Python that run what was written into the folder ``out``."""
    if target == "genai":
        tokens = "tokenizer.encode(text)" if _has_tokenizer(saved.folder) else "ids"
        lines = [f"model = onnxruntime_genai.Model({out!r})"]
        lines += ["tokenizer = onnxruntime_genai.Tokenizer(model)"] if tokens != "ids" else []
        return [
            "import onnxruntime_genai",
            *lines,
            "generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))",
            f"generator.append_tokens({tokens})",
            "while not generator.is_done():",
            "    generator.generate_next_token()",
            "generator.get_sequence(0)",
        ]
    if saved.use.generates:
        first = f"{out}/{next(iter(program))}" if isinstance(program, Programs) else out
        load = f"onlooker.generation({out!r}, {first!r}{_trusts(target)})"
        return ["import onlooker", f"model = {load}", "model.generate(**inputs)"]
    load = f"onlooker.load({out!r}{_trusts(target)})"
    return ["import onlooker", f"program = {load}", "program(**inputs)"]


def _trusts(target: str) -> str:
    """The argument without which no compiled code is loaded."""
    return ", machine_code=True" if target == "aoti" else ""


def _has_tokenizer(folder: Path) -> bool:
    return any(path.name.startswith("tokenizer") for path in folder.iterdir())
