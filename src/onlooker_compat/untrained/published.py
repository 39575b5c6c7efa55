"""Configurations by name: data files of this package, a local folder, or the cache of the hub."""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from onlooker.core.errors import UsageError
from onlooker.zoo.model import load_transformers

__all__ = [
    "find_configuration",
    "full_name",
    "local_configuration",
    "preinstalled",
    "published_configuration",
]


@cache
def _data() -> dict[str, dict[str, Any]]:
    """Model id -> published hyper-parameters, from all files."""
    folder = resources.files(__package__) / "configs"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".json")),
        key=lambda file: file.name,
    )
    return {
        name: values
        for file in files
        for name, values in json.loads(file.read_text("utf-8")).items()
    }


def preinstalled() -> tuple[str, ...]:
    """The ids of the models whose configurations come with this package.

    >>> "arnir0/Tiny-LLM" in preinstalled()
    True
    """
    return tuple(_data())


def full_name(model_id: str) -> str | None:
    """The id of a preinstalled configuration; the owner may be left out where one model has that
    name.

    >>> full_name("Tiny-LLM"), full_name("nothing")
    ('arnir0/Tiny-LLM', None)
    """
    if model_id in _data():
        return model_id
    found = [name for name in _data() if name.partition("/")[2] == model_id]
    return found[0] if len(found) == 1 else None


def published_configuration(model_id: str) -> Any:
    """The configuration of transformers with the published hyper-parameters, or None when it is
    not here.
    """
    name = full_name(model_id)
    if name is None:
        return None
    load_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = json.loads(json.dumps(_data()[name]))  # a copy: transformers changes what it is given
    config = CONFIG_MAPPING[values.pop("model_type")](**values)
    config.name_or_path = name
    return config


def local_configuration(model_id: str, subfolder: str | None = None) -> Any:
    """The configuration in a local folder or in the cache of the hub, or None; nothing is
    downloaded.

    :raises MissingPackageError: ``missing-package`` when transformers is not installed
    """
    transformers = load_transformers()
    folder = Path(model_id, subfolder or "")
    is_file = (folder / "config.json").is_file()
    if not is_file and Path(model_id).is_dir():
        return None
    options = {} if is_file or subfolder is None else {"subfolder": subfolder}
    try:
        return transformers.AutoConfig.from_pretrained(
            str(folder) if is_file else model_id, local_files_only=True, **options
        )
    except (OSError, ValueError):  # not in the cache, or no name that a model can have
        return None


def find_configuration(
    model_id: str,
    subfolder: str | None = None,
    *,
    use_preinstalled: bool = True,
    only_preinstalled: bool = False,
) -> Any:
    """The configuration of a model, from the first place that has it.

    :param use_preinstalled: look at the data files of this package first
    :param only_preinstalled: look nowhere else
    :raises UsageError: ``unknown-untrained-model`` with the names that are close to it
    :raises MissingPackageError: ``missing-package`` when transformers is not installed
    """
    preinstalled_first = use_preinstalled or only_preinstalled
    config = published_configuration(model_id) if preinstalled_first and not subfolder else None
    if config is None and not only_preinstalled:
        config = local_configuration(model_id, subfolder)
    if config is None:
        raise _unknown(model_id)
    return config


def _unknown(model_id: str) -> UsageError:
    lower = {name.lower(): name for name in preinstalled()}
    lower |= {name.lower().partition("/")[2]: name for name in preinstalled()}
    close = dict.fromkeys(
        lower[name] for name in difflib.get_close_matches(model_id.lower(), list(lower), 5, 0.5)
    )
    return UsageError(
        f"The configuration of {model_id!r} is not known here.",
        slug="unknown-untrained-model",
        hint=(f"Close names: {', '.join(close)}. " if close else "")
        + "Give config=, the path of a folder with a config.json, or a model in the local cache of"
        " the hub.",
    )
