"""``--model PATH_OR_ID``: a saved model of transformers, and a natural use of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import OnlookerError, UsageError
from ..core.runtimes import RUNTIMES
from ..core.support.packages import require_packages
from ..input_observer import InputObserver
from ..observers import Observers, observe
from ..program import Program
from ..programs import Programs
from ..zoo.model import load_transformers
from ..zoo.tasks import model_class, task_of
from ..zoo.uses import OTHER, PADDED, NaturalUse, Sizes, natural_use
from .commands import GENAI, SENTENCE_TRANSFORMERS, WEB
from .progress import Say

__all__ = [
    "Pretrained",
    "class_of",
    "how_to_run",
    "local_folder",
    "read_pretrained",
    "read_sentence_transformer",
    "unread",
    "watch_pretrained",
]

#: the package, and the extra that brings it
_SENTENCES = "sentence-transformers"
#: what texts are made of: any tokenizer takes them
_WORDS = ("a", "photograph", "of", "an", "old", "house", "by", "the", "sea", "in", "the", "rain")


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
    folder = local_folder(name, "config.json")
    load_transformers()
    say(f"reading {folder}")
    model = _model(folder, dtype)
    say("looking for a natural use")
    return Pretrained(name, folder, model, natural_use(model))


def read_sentence_transformer(name: str, dtype: str, say: Say) -> Pretrained:
    """The model of sentence-transformers in a local folder, or in the cache of the hub: nothing is
    downloaded. A folder without ``modules.json`` is read as sentence-transformers reads it, with the
    mean of the tokens.

    :raises UsageError: ``no-saved-model``, ``bad-saved-model``
    :raises MissingPackageError: ``missing-package``
    """
    require_packages(
        "sentence_transformers", purpose=f"An export to {_SENTENCES}", extra=_SENTENCES
    )
    from sentence_transformers import SentenceTransformer

    folder = local_folder(name, "config.json")
    say(f"reading {folder}")
    weights = {"dtype": getattr(torch, dtype)}
    try:
        model = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, model_kwargs=weights
        )
    except Exception as error:
        raise unread(folder, "sentence-transformers", error) from error
    return Pretrained(name, folder, model.eval(), _Encoding("encode of texts", _texts))


class _Encoding(NaturalUse):
    """``encode()`` of texts, in place of a call."""

    def run(self, model: Any, sizes: Sizes) -> object:
        """Uses the model once."""
        return model.encode(**self.inputs(model, sizes))


def _texts(model: Any, sizes: Sizes) -> dict[str, Any]:
    """One text a row, shorter where the row is padded."""
    counts = [max(1, sizes.length - padding) for padding in sizes.padding]
    texts = [" ".join(itertools.islice(itertools.cycle(_WORDS), count)) for count in counts]
    return {"sentences": texts, "show_progress_bar": False}


def unread(folder: Path, reader: str, error: Exception) -> UsageError:
    """The error of a folder that another package cannot read."""
    return UsageError(
        f"{folder} cannot be read by {reader}: {type(error).__name__}: {str(error)[:500]}",
        slug="bad-saved-model",
        hint="Load it in Python, and export from a function: onlooker export app.py:build.",
    )


def local_folder(name: str, listed: str) -> Path:
    """The folder of a saved model or pipeline: a local one, or the one in the cache of the hub.

    :param listed: the file that it has to have
    :raises UsageError: ``no-saved-model``
    """
    folder = Path(name)
    if not folder.is_dir():
        if name.startswith(("/", ".", "~")):
            raise UsageError(
                f"There is no folder {name}.",
                slug="no-saved-model",
                hint="Give the folder that save_pretrained() wrote, or an id of the hub.",
            )
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
        cls = class_of(config, transformers)
        weights = getattr(torch, dtype)
        return cls.from_pretrained(folder, local_files_only=True, dtype=weights).eval()
    except OnlookerError:
        raise
    except Exception as error:
        raise unread(folder, "transformers", error) from error


def class_of(config: Any, transformers: Any) -> Any:
    """The class that the configuration names, or the first one of transformers' tables that is for
    it.

    :raises UnsupportedError: ``no-task``
    """
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type):
            return found
    return model_class(config, task_of(config))


def watch_pretrained(pretrained: Pretrained, keep: int) -> InputObserver | Observers:
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
    """Lines that run what was written into the folder ``out``: of Python, or of JavaScript."""
    if target == SENTENCE_TRANSFORMERS:
        return [
            "from sentence_transformers import SentenceTransformer",
            f"model = SentenceTransformer({out!r}, backend='onnx')",
            "model.encode(texts)",
        ]
    if target == WEB:
        return _how_to_run_in_javascript(saved, Path(out))
    if target == GENAI:
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


def _how_to_run_in_javascript(saved: Pretrained, out: Path) -> list[str]:
    cls = type(saved.model).__name__
    reads = _has_tokenizer(saved.folder)
    tokenizer = f"const tokenizer = await AutoTokenizer.from_pretrained({out.name!r});"
    inputs = "await tokenizer(texts, { padding: true })" if reads else "inputs"
    call = f"model.generate({inputs})" if saved.use.generates else f"model({inputs})"
    return [
        f"import {{ {cls}, {'AutoTokenizer, ' if reads else ''}env }} from '@huggingface/transformers';",
        f"env.localModelPath = '{out.parent}/';",
        f"const model = await {cls}.from_pretrained({out.name!r}, {{ dtype: 'q8' }});",
        *([tokenizer] if reads else []),
        f"await {call};",
    ]


def _trusts(target: str) -> str:
    """The argument without which no compiled code is loaded."""
    return ", machine_code=True" if RUNTIMES[target].is_machine_code else ""


def _has_tokenizer(folder: Path) -> bool:
    return any(path.name.startswith("tokenizer") for path in folder.iterdir())
