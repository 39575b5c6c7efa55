"""The task of a model, and the class that builds it, as the tables of transformers have it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from ..core.errors import UnsupportedError, UsageError
from .model import load_transformers

__all__ = ["TASKS", "model_class", "task_of"]

#: task -> the tables of ``transformers.models.auto.modeling_auto`` that list its classes, the
#: special ones first
TASKS: dict[str, tuple[str, ...]] = {
    "mask-generation": ("MASK_GENERATION",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "automatic-speech-recognition": ("SPEECH_SEQ_2_SEQ", "CTC"),
    "image-text-to-text": ("IMAGE_TEXT_TO_TEXT",),
    "text2text-generation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "text-generation": ("CAUSAL_LM",),
    "fill-mask": ("MASKED_LM",),
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "object-detection": ("OBJECT_DETECTION",),
    "image-segmentation": ("SEMANTIC_SEGMENTATION",),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "feature-extraction": ("PRETRAINING", "MODEL"),
}


def task_of(config: Any) -> str:
    """The task of the architecture that a configuration names, or of the first table that knows its
    type.

    :raises UnsupportedError: ``no-task`` when no table does
    """
    named = tuple(config.architectures or ())
    rows = list(_rows())
    for task, _, classes in rows:
        if any(name in classes for name in named):
            return task
    for task, model_type, _ in rows:
        if model_type == config.model_type:
            return task
    raise UnsupportedError(
        f"The task of a {type(config).__name__} is not known.",
        slug="no-task",
        hint=f"Give task=, one of: {', '.join(TASKS)}.",
    )


def model_class(config: Any, task: str) -> Any:
    """The class named by the configuration where it is one of transformers, else the one of the
    task.

    :raises UsageError: ``no-such-task`` for a task that is not in ``TASKS``
    :raises UnsupportedError: ``no-task`` when the task has no class for this configuration
    """
    transformers = load_transformers()
    rows = [row for row in _rows() if row[0] == task]
    if not rows:
        raise UsageError(
            f"There is no task {task!r}.",
            slug="no-such-task",
            hint=f"Give one of: {', '.join(TASKS)}, or none.",
        )
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if found is not None and any(name in classes for _, _, classes in rows):
            return found
    for _, model_type, classes in rows:
        if model_type == config.model_type:
            return getattr(transformers, classes[0])
    raise UnsupportedError(
        f"transformers has no class for {task} with a {type(config).__name__}.",
        slug="no-task",
        hint="Give another task=, or none.",
    )


def _rows() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """``(task, model type, classes)`` of all tables, in the order of ``TASKS``."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for task, tables in TASKS.items():
        for table in tables:
            name = "MODEL_MAPPING_NAMES" if table == "MODEL" else f"MODEL_FOR_{table}_MAPPING_NAMES"
            for model_type, classes in getattr(auto, name, {}).items():
                yield task, model_type, (classes,) if isinstance(classes, str) else tuple(classes)
