"""Images of several sizes for a model of vision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sweep_measure import NotBuilt, Use, recorded, text_of

CHANNELS = 3


def image_use(model: torch.nn.Module, story: str, side: int) -> Use:
    """Two images are watched; three of the same side, one and two larger ones are not.

    :raises NotBuilt: when the model does not take the images in eager mode
    """
    runs = [_of_images(2, side, 0), _of_images(3, side, 1), _of_images(1, side, 2)]
    return checked(Use(story, model, runs[0], (*runs[1:], _of_images(2, side + side // 2, 3))))


def checked(use: Use) -> Use:
    """The use, if the model takes what is watched and one of the others.

    :raises NotBuilt: else
    """
    try:
        recorded(use.model, use.watch)
        recorded(use.model, use.unseen[0])
    except Exception as error:
        raise NotBuilt(text_of(error)) from error
    return use


def _of_images(batch: int, side: int, seed: int) -> Callable[[Any], object]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, CHANNELS, side, side, generator=generator)
    return lambda module: module(images.clone())
