"""A model with random weights by its name, with inputs that it takes.

Nothing is downloaded: the published hyper-parameters of about a hundred models come with this
package, any other configuration is taken from a local folder or from the cache of the hub. It is
made tiny by the rules of
:mod:`.reduce`. The global random state does not move, and the same arguments give the same weights
and inputs. What comes back:

=====================
================================================================================== ``model``
in eval mode, on the CPU; ``task`` is what it is for, ``configuration`` what it is made from
``n_weights``         how many numbers its parameters have, and ``size`` how many bytes ``inputs``
by name; a cache holds the keys and values that the model itself computed ``dynamic_shapes``    for
``inputs``: names where a size may change, a ``Dim`` for the batch. Names become ``Dim.DYNAMIC`` by
``use_dyn_not_str`` before ``torch.export`` takes them ``inputs2``           of larger sizes;
``inputs_batch1`` with a batch of 1; for a model with a cache, ``inputs_empty_cache`` with no tokens
in it ``model_kwargs``      what was changed in the configuration; ``input_kwargs`` the sizes of the
inputs; ``dump_info`` the configuration before its reduction =====================
==================================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.core.support.kinds import check_kind
from onlooker.zoo.model import parameters_of
from onlooker.zoo.sizes import InputSizes, sizes_from
from onlooker.zoo.tasks import model_class, task_of

from .completed import completed, completed_last
from .derived import without_stale
from .inputs import has_cache, make_inputs
from .published import find_configuration
from .reduce import reduced

__all__ = ["build_model", "get_untrained_model_with_inputs", "prepared_configuration"]

SEED = 0
Reduction = Callable[[Any, str], Mapping[str, Any]]


def get_untrained_model_with_inputs(
    model_id: str,
    config: Any = None,
    task: str = "",
    inputs_kwargs: dict[str, Any] | None = None,
    model_kwargs: dict[str, Any] | None = None,
    dynamic_rope: bool | None = None,
    use_pretrained: bool = False,
    same_as_pretrained: bool = False,
    use_preinstalled: bool = True,
    add_second_input: int = 1,
    subfolder: str | None = None,
    use_only_preinstalled: bool = False,
    config_reduction: Reduction | None = None,
    submodule: str | None = None,
    skip_inputs: bool = False,
) -> dict[str, Any]:
    """A tiny model of a known architecture, in eval mode, with random weights, inputs and dynamic
    shapes.

    :param model_id: an id of the hub, or the path of a folder; ``"name::part"`` means
        ``submodule="part"``
    :param config: a configuration of transformers to take instead; it is not changed
    :param task: such as ``"text-generation"``; by default the one of the architecture
    :param inputs_kwargs: sizes of the inputs and ``cls_cache``: see :class:`onlooker.zoo.sizes.InputSizes`
    :param model_kwargs: attributes of the configuration to set after its reduction
    :param dynamic_rope: True for a rotary embedding that follows the length of the sequence
    :param use_pretrained: with the trained weights, from a folder or the cache of the hub, and not
        reduced
    :param same_as_pretrained: not reduced
    :param use_preinstalled: look for the configuration in this package first
    :param add_second_input: how much larger ``inputs2`` is in every size; 0 for ``inputs`` alone
    :param subfolder: where the configuration stands in the folder or repository
    :param use_only_preinstalled: look for the configuration in this package only
    :param config_reduction: ``(configuration, task) -> attributes``, instead of the rules
    :param submodule: the dotted name of a part to give instead of the whole model
    :param skip_inputs: only the model
    :return: see the top of this module
    :raises OnlookerError: ``unknown-untrained-model``, ``no-task``, ``no-such-task``,
        ``no-such-input-size``, ``no-such-cache``, ``no-such-submodule``; ``missing-package`` when
        transformers is not installed

    >>> data = get_untrained_model_with_inputs("arnir0/Tiny-LLM")
    >>> data["n_weights"], list(data["inputs"])
    (12988992, ['input_ids', 'attention_mask', 'position_ids', 'past_key_values'])
    """
    check_kind(model_id, str, "model_id", "the id of a model, as text")
    name, _, part = model_id.partition("::")
    if config is None:
        only = use_only_preinstalled
        config = find_configuration(
            name, subfolder, use_preinstalled=use_preinstalled, only_preinstalled=only
        )
    task, sizes = task or task_of(config), sizes_from(inputs_kwargs)
    whole = same_as_pretrained or use_pretrained
    changes = {**_dynamic_rope(config, dynamic_rope), **(model_kwargs or {})}
    used = prepared_configuration(
        config, task, changes, whole=whole, config_reduction=config_reduction
    )
    model = build_model(
        used, task, pretrained=name if use_pretrained else None, subfolder=subfolder
    )
    kept = _submodule(model, submodule or part)
    data = {} if skip_inputs else _with_inputs(model, kept, task, sizes, add_second_input)
    about = {
        "model_id": name,
        "submodule": submodule or part,
        "config": config.to_dict(),
        "reduced": not whole,
    }
    given = {"model_kwargs": changes, "input_kwargs": dataclasses.asdict(sizes), "dump_info": about}
    return {"model": kept, "configuration": used, "task": task, **_weights(kept), **given, **data}


def _weights(model: torch.nn.Module) -> dict[str, int]:
    weights = list(model.parameters())
    return {
        "size": sum(weight.numel() * weight.element_size() for weight in weights),
        "n_weights": sum(weight.numel() for weight in weights),
    }


def prepared_configuration(
    config: Any,
    task: str,
    changes: Mapping[str, Any],
    *,
    whole: bool = False,
    config_reduction: Reduction | None = None,
) -> Any:
    """A copy of the configuration, reduced unless it is to stay ``whole``, with the changes of a
    caller.
    """
    values = config.to_dict()
    if config_reduction is not None:
        changes = {**config_reduction(config, task), **changes}
    elif not whole:
        values = completed_last(without_stale(config, reduced(completed(values))))
    values.pop("model_type", None)
    if not whole:
        values["dtype"] = "float32"
        if task == "text-generation" and values.get("is_decoder") is False:
            values["is_decoder"] = True  # an encoder that writes: each token sees those before it
    return type(config)(**_merged(values, changes))


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the changes; a configuration inside is changed, not replaced."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        inside = isinstance(value, Mapping) and isinstance(old, Mapping) and key.endswith("_config")
        merged[key] = _merged(old, value) if inside and isinstance(old, Mapping) else value
    return merged


def build_model(
    config: Any, task: str, *, pretrained: str | None = None, subfolder: str | None = None
) -> Any:
    """The model in eval mode; its weights are drawn from the same seed, and the global random state
    stays.

    :param pretrained: where its trained weights are, in a local folder or the cache of the hub
    """
    cls = model_class(config, task)
    if pretrained is not None:
        where = {} if subfolder is None else {"subfolder": subfolder}
        return cls.from_pretrained(pretrained, config=config, local_files_only=True, **where).eval()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        return cls(config).eval()


def _dynamic_rope(config: Any, asked: bool | None) -> dict[str, Any]:
    if not asked:
        return {}
    known = getattr(config, "rope_parameters", None) or {}
    return {
        "rope_parameters": {
            "rope_theta": known.get("rope_theta", 10000.0),
            "rope_type": "dynamic",
            "factor": 10.0,
        }
    }


def _submodule(model: Any, name: str) -> Any:
    if not name:
        return model
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        parts = ", ".join(child for child, _ in model.named_children())
        raise UsageError(
            f"{type(model).__name__} has no part {name!r}.",
            slug="no-such-submodule",
            hint=f"Its parts are: {parts}.",
        ) from error


def _with_inputs(model: Any, part: Any, task: str, sizes: InputSizes, more: int) -> dict[str, Any]:
    """The inputs of all sizes; those that the part does not take are left out."""
    inputs, shapes = make_inputs(model, task, sizes, SEED)
    taken = parameters_of(part) if part is not model else dict.fromkeys(inputs)
    data: dict[str, Any] = {
        "inputs": {name: value for name, value in inputs.items() if name in taken},
        "dynamic_shapes": {name: shape for name, shape in shapes.items() if name in taken},
    }
    if not more:
        return data
    others = {"inputs2": sizes.larger(more), "inputs_batch1": sizes.of(batch_size=1)}
    if has_cache(model, task):
        others["inputs_empty_cache"] = sizes.of(sequence_length=0)
    for key, other in others.items():
        made, _ = make_inputs(model, task, other, SEED + 1)
        data[key] = {name: value for name, value in made.items() if name in taken}
    return data
