"""Images of several sizes for a model of vision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sweep_measure import NotBuilt, Use, recorded, text_of

CHANNELS = 3
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def image_use(model: torch.nn.Module, story: str, side: int) -> Use:
    """Two images are watched; three of the same side, one and two larger ones are not. Images between
    them are for a program that was watched with the larger ones too.

    :raises NotBuilt: when the model does not take the images in eager mode
    """
    _let_images_matter(model, side)
    runs = [_of_images(2, side, 0), _of_images(3, side, 1), _of_images(1, side, 2)]
    larger, between = side + side // 2, side + side // 4
    unseen = (*runs[1:], _of_images(2, larger, 3))
    return checked(Use(story, model, runs[0], unseen, between=_of_images(1, between, 4)))


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


def _let_images_matter(model: torch.nn.Module, side: int) -> None:
    """Gives batch norms the statistics of random images where the result hangs on no image: without
    them, the signal of random weights is rounded away layer by layer, and no size can be told.
    """
    norms = [module for module in model.modules() if isinstance(module, _NORMS)]
    images = torch.randn(4, CHANNELS, side, side, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        if not norms or not _is_same_for_all(model, images):
            return
        model.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        model(images)
        model.eval()


def _is_same_for_all(model: torch.nn.Module, images: torch.Tensor) -> bool:
    try:
        first, other = model(images[:1]), model(images[1:2])
    except Exception:  # it may take another size only
        return False
    return isinstance(first, torch.Tensor) and torch.allclose(first, other, atol=1e-5)


def _of_images(batch: int, side: int, seed: int) -> Callable[[Any], object]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, CHANNELS, side, side, generator=generator)
    return lambda module: module(images.clone())
