"""One tiny model of each family of timm: the one with the fewest weights of those whose names say
that they are small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import timm
import torch
from sweep_measure import NotBuilt, Use, text_of
from sweep_transformers import MOST_WEIGHTS
from sweep_vision import image_use

SMALL = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "tiny",
    "xxs",
    "xs",
    "small",
    "s0",
    "b0",
    "18",
    "_s",
)
#: how many models of a family are compared
COMPARED = 6
#: sides that are tried, after which the one of the model itself is
SIDES = (64, 96, 128)


def architectures() -> Iterator[tuple[str, str, Callable[[], Use]]]:
    """``(module, family, build)`` for each module of timm."""
    for module in timm.list_modules():
        yield module, "timm", functools.partial(build, module)


def build(module: str) -> Use:
    """The smallest model, and images of the least side that it takes.

    :raises NotBuilt: with the reason
    """
    name = smallest(module)
    errors = []
    for side in (*SIDES, None):
        for settings in ({}, {"img_size": side}) if side else ({},):
            try:
                torch.manual_seed(0)
                model = timm.create_model(name, pretrained=False, **settings).eval()
                size = side or model.default_cfg["input_size"][-1]
                return image_use(model, f"{name}: images of side {size}", size)
            except Exception as error:
                errors.append(text_of(error)[:150])
    raise NotBuilt(f"{name}: " + " | ".join(dict.fromkeys(errors)))


def smallest(module: str) -> str:
    """The name of the model with the fewest weights."""
    names = timm.list_models(module=module)
    rank = {name: next((i for i, part in enumerate(SMALL) if part in name), 99) for name in names}
    compared = sorted(names, key=lambda name: (rank[name], len(name)))[:COMPARED]
    weights = {name: _weights(name) for name in compared}
    name = min(weights, key=lambda name: weights[name])
    if weights[name] > MOST_WEIGHTS:
        raise NotBuilt(f"{name}: {weights[name] / 1e6:.0f} million weights", "no-tiny-model")
    return name


def _weights(name: str) -> int:
    model: Any
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except Exception:  # some compute with values while they are built
        model = timm.create_model(name, pretrained=False)
    return sum(weight.numel() for weight in model.parameters())
