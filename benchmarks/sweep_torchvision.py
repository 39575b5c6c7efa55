"""Builders of torchvision: for classification one of each file, the smallest; for segmentation,
detection and video all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torchvision
from sweep_measure import NotBuilt, Use, text_of
from sweep_transformers import MOST_WEIGHTS
from sweep_vision import checked, image_use

#: sides of images that are tried
SIDES = (64, 96, 128, 224, 299)
#: for videos: (frames, side)
CLIPS = ((4, 32), (8, 64), (16, 64), (16, 224))
LEFT_OUT = ("quantization", "optical_flow")


def architectures() -> Iterator[tuple[str, str, Callable[[], Use]]]:
    """``(builder, family, build)``."""
    files: dict[tuple[str, str], list[str]] = {}
    for name in torchvision.models.list_models():
        module = torchvision.models.get_model_builder(name).__module__.split(".")
        family = module[-2] if module[-2] != "models" else "classification"
        if family not in LEFT_OUT:
            alone = module[-1] if family == "classification" else name
            files.setdefault((family, alone), []).append(name)
    for (family, alone), names in files.items():
        yield alone, f"torchvision {family}", functools.partial(build, family, names)


def build(family: str, names: list[str]) -> Use:
    """The smallest of the models, and what its family takes.

    :raises NotBuilt: with the reason
    """
    weights = {name: _weights(_meta(name)) for name in names}
    name = min(weights, key=lambda name: weights[name])
    if weights[name] > MOST_WEIGHTS:
        raise NotBuilt(f"{name}: {weights[name] / 1e6:.0f} million weights", "no-tiny-model")
    torch.manual_seed(0)
    errors = []
    for make in _USES.get(family, _images)(name):
        try:
            return make()
        except Exception as error:
            errors.append(text_of(error)[:150])
    raise NotBuilt(f"{name}: " + " | ".join(dict.fromkeys(errors)))


def _model(name: str, **settings: Any) -> Any:
    known = {"weights": None}
    if name.split("_")[0].endswith(("rcnn", "fcos", "retinanet", "ssd300", "ssdlite320")):
        known["weights_backbone"] = None
    if any(part in name for part in ("deeplab", "fcn", "lraspp")):
        known["weights_backbone"] = None
    return torchvision.models.get_model(name, **known, **settings).eval()


def _meta(name: str) -> Any:
    with torch.device("meta"):
        return _model(name)


def _weights(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _images(name: str) -> Iterator[Callable[[], Use]]:
    for side in SIDES:
        yield lambda side=side: image_use(_model(name), f"{name}: images of side {side}", side)
    yield lambda: image_use(_model(name, image_size=64), f"{name}: images of side 64", 64)


def _clips(name: str) -> Iterator[Callable[[], Use]]:
    for frames, side in CLIPS:

        def make(frames: int = frames, side: int = side) -> Use:
            runs = [
                _run(torch.randn(batch, 3, length, side, side))
                for batch, length in (
                    (2, frames),
                    (3, frames),
                    (1, 2 * frames),
                    (2, 3 * frames // 2),
                )
            ]
            story = f"{name}: clips of {frames} frames"
            watched, *unseen, between = runs
            return checked(Use(story, _model(name), watched, tuple(unseen), between=between))

        yield make


def _run(images: torch.Tensor) -> Callable[[Any], object]:
    return lambda module: module(images.clone())


def _pictures(name: str) -> Iterator[Callable[[], Use]]:
    """Lists of images, as detectors take them: two of them, and one alone."""

    def run(*lists: Sequence[tuple[int, int]]) -> Callable[[Any], object]:
        images = [[torch.rand(3, height, width) for height, width in sides] for sides in lists]
        return lambda module: [module([image.clone() for image in given]) for given in images]

    def make() -> Use:
        runs = [
            run([(64, 80), (72, 96)], [(80, 64)]),
            run([(80, 64), (64, 112)], [(100, 76)]),
            run([(96, 96), (70, 83)]),
            run([(75, 101)]),
        ]
        model = _model(name, **_few_detections(name))
        return checked(Use(f"{name}: lists of images", model, runs[0], tuple(runs[1:])))

    yield make


def _few_detections(name: str) -> dict[str, Any]:
    """Settings by which untrained weights detect something, in small pictures: no threshold for
    scores.
    """
    settings: dict[str, Any] = {"num_classes": 4}
    if "rcnn" in name:
        settings |= {"box_score_thresh": 0.0, "box_detections_per_img": 10}
        settings |= {"rpn_pre_nms_top_n_test": 40, "rpn_post_nms_top_n_test": 20}
    else:
        settings |= {"score_thresh": 0.0, "detections_per_img": 10, "topk_candidates": 40}
    return settings if "ssd" in name else {**settings, "min_size": 64, "max_size": 128}


_USES: dict[str, Callable[[str], Iterator[Callable[[], Use]]]] = {
    "classification": _images,
    "segmentation": _images,
    "video": _clips,
    "detection": _pictures,
}
