"""The models that whole pipelines are measured on: a module, and the one use of it that is
watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from generators import GENERATORS

from onlooker.zoo import MODELS, tiny_model
from onlooker_compat.untrained import get_untrained_model_with_inputs


@dataclass(frozen=True, slots=True)
class Subject:
    """A module and what is run while it is watched."""

    name: str
    module: torch.nn.Module
    watch: Callable[[], object]


class Perceptron(torch.nn.Sequential):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


class Convolutions(torch.nn.Sequential):
    """Two convolutions and a pool: images of any sides."""

    def __init__(self) -> None:
        layers = (
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3, stride=2, padding=1),
        )
        super().__init__(
            *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)
        )


#: beside those of the zoo: models that generate, and configurations made tiny by rule
GENERATING = ("gemma3", "mamba2", "t5", "whisper")
UNTRAINED = (
    "openai/clip-vit-base-patch16",
    "facebook/wav2vec2-base-960h",
    "facebook/convnext-tiny-224",
)


def of_zoo(name: str) -> Subject:
    """A model of :mod:`onlooker.zoo`."""
    model = tiny_model(name)
    return Subject(name, model.model, model.watch)


def of_generator(name: str) -> Subject:
    """One plain ``generate()`` of two rows."""
    generator = GENERATORS[name]()
    return Subject(name, generator.watched, generator.observe)


def of_module(made: Callable[[], torch.nn.Module], *shape: int) -> Subject:
    """A small module, called once."""
    torch.manual_seed(0)
    module = made().eval()

    def watch() -> None:
        with torch.no_grad():
            module(torch.randn(*shape))

    return Subject(type(module).__name__.lower(), module, watch)


def of_configuration(model_id: str) -> Subject:
    """An untrained model, called once with its inputs."""
    data: dict[str, Any] = get_untrained_model_with_inputs(model_id, add_second_input=0)

    def watch() -> None:
        with torch.no_grad():
            data["model"](**data["inputs"])

    return Subject(model_id.rpartition("/")[2], data["model"], watch)


def subjects(quick: bool) -> Iterator[Subject]:
    """One after the other, so that no two are in memory."""
    builders: list[Callable[[], Subject]] = [partial(of_module, Perceptron, 2, 8)]
    builders += [partial(of_zoo, name) for name in (("llama", "vit") if quick else MODELS)]
    if not quick:
        builders += [partial(of_module, Convolutions, 2, 3, 16, 16)]
        builders += [partial(of_generator, name) for name in GENERATING]
        builders += [partial(of_configuration, name) for name in UNTRAINED]
    for build in builders:
        yield build()
