"""Generation on exported programs, without the weights of the model: a class of transformers whose
methods run on graphs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from types import FrameType
from typing import Any

import torch

from .core.errors import MissingPackageError, UsageError
from .core.spec import TensorSpec
from .core.support.kinds import check_kind
from .program import Program
from .programs import Programs, load
from .pytrees.nodes import qualified_name

__all__ = ["generation"]

_WHOLE = "model"


def generation(
    source: str | FilePath | Program | Programs,
    config: Any,
    *,
    parts: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """A model of transformers without weights, whose ``forward`` is a program: it has
    ``generate()``, and pipelines take it.

    ``source`` is the folder of a saved program, or a program. ``config`` is the configuration of
    the model, or a local folder that has its ``config.json``, and its ``generation_config.json``
    where there is one. ``options`` are those of :func:`onlooker.load`, for a folder.

    The class is that of the watched model, from transformers. It is built without memory for its
    weights, so that everything that ``generate()`` computes must be in the programs. A model with
    an encoder needs a program of it beside its own::

        with onlooker.observe(model=model, encoder=model.get_encoder()) as observers:
            model.generate(**inputs)
        observers.export().save("out")
        onlooker.generation("out", "folder of the configuration").generate(**inputs)

    The entry called ``model`` is the whole, or the one that was watched in a class that generates.
    Each other entry is the part of its class; where several parts have this class, the encoder, or
    the one that ``parts`` names: ``{"vision": "model.visual"}``.

    :returns: an object of a class that is made of the watched one; on the CPU, in the dtype of the
        results of the program
    :raises MissingPackageError: ``missing-package`` without transformers
    :raises UsageError: ``no-generation`` where no class of transformers that generates was watched,
        ``no-encoder``, ``which-part``, ``no-such-entry``, ``bad-config``, ``another-signature``;
        when it generates, ``no-part``
    :raises SavedFileError: as :func:`onlooker.load`

    >>> onlooker.generation("out", "configuration").generate(ids)  # doctest: +SKIP
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            "Generation needs transformers.",
            slug="missing-package",
            hint="Install it with: pip install 'onlooker[transformers]'.",
        ) from error
    check_kind(source, (str, FilePath, Program, Programs), "source", "a folder, or a program")
    found = load(source, **options) if isinstance(source, (str, FilePath)) else source
    programs = {_WHOLE: found} if isinstance(found, Program) else dict(found)
    whole = _whole(programs, transformers)
    cls = getattr(transformers, programs[whole].recording.model.rpartition(".")[2])
    configuration, generates = _configuration(config, transformers)
    try:
        with torch.device("meta"):
            shell = cls(configuration).eval()
    except Exception as error:
        raise _bad_config(config, f"{cls.__name__} refuses it: {error}") from error
    if generates is not None:
        shell.generation_config = generates
    if configuration.is_encoder_decoder and len(programs) == 1:
        raise UsageError(
            f"A {cls.__name__} runs its encoder before its own forward, and there is no program of it.",
            slug="no-encoder",
            hint=(
                "Watch both: onlooker.observe(model=model, encoder=model.get_encoder()), and give"
                " the folder of what it exports."
            ),
        )
    places = {
        name: shell if name == whole else _part(shell, name, program, parts or {})
        for name, program in programs.items()
    }
    held = contextlib.ExitStack()
    shell.__class__ = _without_weights(cls, _dtype_of(programs[whole]), held)
    for name, program in programs.items():
        held.enter_context(program.installed(places[name]))
    _refuse_others(shell, list(places.values()))
    return shell


def _refuse_others(shell: Any, served: Sequence[Any]) -> None:
    """Parts that have no program are refused when they are called: they have no weights."""
    for path, module in shell.named_modules():
        if all(module is not one for one in served):
            module.register_forward_pre_hook(functools.partial(_refused, shell, path))


def _refused(shell: Any, path: str, module: Any, args: Any) -> None:
    called, hint = _called_part(shell) or (path, f"model.{path}")
    raise UsageError(
        f"generate() runs {called} of the {type(shell).__name__} by itself, and there is no program"
        f" of it: {path}, a {type(module).__name__}, has no weights here.",
        slug="no-part",
        hint=f"Watch this part as well: onlooker.observe(model=model, part={hint}).",
    )


def _called_part(shell: Any) -> tuple[str, str] | None:
    """The first method of a part that is running, and the entry that watches it."""
    paths = {id(module): path for path, module in shell.named_modules() if path}
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        owner, name = frame.f_locals.get("self"), frame.f_code.co_name
        if id(owner) in paths and not name.startswith("_") and hasattr(type(owner), name):
            path = f"model.{paths[id(owner)]}"
            found = (f"{path}.{name}", path if name == "forward" else f'({path}, "{name}")')
        frame = frame.f_back
    return found


def _whole(programs: Mapping[str, Program], transformers: Any) -> str:
    """The name of the program that is the whole model."""
    generating = [name for name, each in programs.items() if _generates(each, transformers)]
    if not generating:
        watched = ", ".join(f"{each.recording.model}" for each in programs.values())
        raise UsageError(
            f"No class of transformers that generates was watched: {watched}.",
            slug="no-generation",
            hint="Watch the model whose generate() is called: with observer(model): model.generate(...).",
        )
    return _WHOLE if _WHOLE in generating else generating[0]


def _generates(program: Program, transformers: Any) -> bool:
    cls = getattr(transformers, program.recording.model.rpartition(".")[2], None)
    is_watched = isinstance(cls, type) and qualified_name(cls) == program.recording.model
    return is_watched and callable(getattr(cls, "generate", None))


def _configuration(config: Any, transformers: Any) -> tuple[Any, Any]:
    """The configuration of the model, and that of its generation where a folder has one."""
    if isinstance(config, transformers.PreTrainedConfig):
        return config, None
    check_kind(config, (str, FilePath), "config", "a configuration of transformers, or its folder")
    folder = FilePath(config)
    if not (folder / "config.json").is_file():
        raise _bad_config(config, "there is no config.json")
    try:
        found = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        generates = (
            transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
            if (folder / "generation_config.json").is_file()
            else None
        )
    except Exception as error:
        raise _bad_config(config, f"{type(error).__name__}: {error}") from error
    return found, generates


def _bad_config(config: Any, why: str) -> UsageError:
    shown = config if isinstance(config, (str, FilePath)) else type(config).__name__
    return UsageError(
        f"The configuration {shown} cannot be used: {why}",
        slug="bad-config",
        hint="Give the model's own configuration, or the folder that model.save_pretrained wrote.",
    )


def _part(shell: Any, name: str, program: Program, parts: Mapping[str, str]) -> Any:
    """The part of the model that a program stands for."""
    modules = dict(shell.named_modules())
    if name in parts:
        if parts[name] not in modules:
            raise UsageError(
                f"parts names {parts[name]!r} for {name}, and {type(shell).__name__} has no such part.",
                slug="which-part",
                hint="Give the path of a submodule, as in model.named_modules().",
            )
        return modules[parts[name]]
    known = program.recording.model
    found = [module for module in modules.values() if qualified_name(type(module)) == known]
    encoder = shell.get_encoder() if shell.config.is_encoder_decoder else None
    if len(found) > 1 and any(module is encoder for module in found):
        return encoder
    if len(found) != 1:
        raise UsageError(
            f"{type(shell).__name__} has {len(found)} parts of the class {known}, which {name} is a"
            " program of.",
            slug="which-part",
            hint=f'Say which one: parts={{"{name}": "path.of.the.part"}}.',
        )
    return found[0]


def _dtype_of(program: Program) -> torch.dtype:
    """The dtype of the first floating result of a watched call."""
    leaves = (leaf for call in program.recording.calls for leaf in call.outputs.leaves)
    names = (leaf.dtype.removeprefix("torch.") for leaf in leaves if isinstance(leaf, TensorSpec))
    found = (getattr(torch, name) for name in names)
    return next((dtype for dtype in found if dtype.is_floating_point), torch.get_default_dtype())


def _without_weights(cls: type, dtype: torch.dtype, held: contextlib.ExitStack) -> type:
    """The class of a model without weights: it is on the CPU, and stays there."""

    class WithoutWeights(cls):  # type: ignore[misc]
        """Its methods run on programs, which ``_held`` keeps in their places."""

        _held = held

        @property
        def device(self) -> torch.device:
            return torch.device("cpu")

        @property
        def dtype(self) -> torch.dtype:
            return dtype

        def to(self, *args: Any, **kwargs: Any) -> Any:
            """The model itself: there are no weights to move."""
            return self

        def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
            raise UsageError(
                f"This {cls.__name__} has no weights to save.",
                slug="no-weights",
                hint="Its programs are saved with program.save().",
            )

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self

    WithoutWeights.__name__ = cls.__name__
    WithoutWeights.__qualname__ = cls.__qualname__
    WithoutWeights.__module__ = cls.__module__
    return WithoutWeights
