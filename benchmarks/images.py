"""Models of images, whose Python decides by sides: an export beside a bare one of the same dynamic
axes.

    python benchmarks/images.py [--quick] [--json FILE]

The bare export is what a user would write by hand who knew which axes change. Models have the sizes
of their published configurations and random weights; the UNet and the pyramid are small. Each was
watched at one or two sizes. The report is that of ``str(program.report)``. Models of torchvision and
ultralytics are left out where these are not installed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from frame import Figure, main

import onlooker

#: the most that an export may take: window transformers are dear with free sides by themselves
MOST, MOST_OF_WINDOWS = 5.0, 12.0
AUTO = torch.export.Dim.AUTO


@dataclass(frozen=True)
class Subject:
    """A model, the sizes of the images that it was watched with, and the axes that may change.

    ``before`` is what the export took, and what came of it, before programs were made for what is
    used alone.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    sizes: Sequence[tuple[int, ...]]
    dims: Sequence[int]
    most: float = MOST
    before: str = ""
    argument: str = "pixel_values"


class Pyramid(torch.nn.Module):
    """Three levels, each added to the next one, which is made as large."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64)
        self.downs = torch.nn.ModuleList(
            torch.nn.Conv2d(first, second, 3, 2, 1) for first, second in itertools.pairwise(widths)
        )
        self.sides = torch.nn.ModuleList(torch.nn.Conv2d(width, 16, 1) for width in widths[1:])

    def forward(self, pixel_values: torch.Tensor) -> list[torch.Tensor]:
        levels, x = [], pixel_values
        for down, side in zip(self.downs, self.sides, strict=True):
            x = down(x).relu()
            levels.append(side(x))
        for place in (1, 0):
            size = levels[place].shape[-2:]
            levels[place] = levels[place] + torch.nn.functional.interpolate(
                levels[place + 1], size=size
            )
        return levels


class Detector(torch.nn.Module):
    """A pyramid with a head that gives a score and a box for each place; of boxes that overlap, one
    is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = Pyramid()
        self.score, self.box = torch.nn.Conv2d(16, 1, 1), torch.nn.Conv2d(16, 4, 1)

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torchvision.ops import nms

        levels = self.pyramid(pixel_values)
        scores = torch.cat([self.score(level)[0].flatten() for level in levels]).sigmoid()
        sides = torch.cat([self.box(level)[0].flatten(1).T for level in levels]).exp()
        boxes = torch.cat([sides[:, :2], sides[:, :2] + sides[:, 2:]], 1)
        kept = nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept]


def of_torchvision(name: str) -> Callable[[], torch.nn.Module]:
    """Builds a model of torchvision with random weights."""

    def build() -> torch.nn.Module:
        import torchvision

        model: torch.nn.Module = getattr(torchvision.models, name)(weights=None)
        return model

    return build


def yolo() -> torch.nn.Module:
    from ultralytics.nn.tasks import DetectionModel

    model: torch.nn.Module = DetectionModel("yolo11n.yaml", verbose=False)
    return model


def of_transformers(name: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """Builds a model of its default configuration, or of some other settings."""

    def build() -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        model: torch.nn.Module = getattr(transformers, f"{name}Model")(config)
        return model

    return build


def unet() -> torch.nn.Module:
    from diffusers import UNet2DConditionModel

    model: torch.nn.Module = UNet2DConditionModel(
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        layers_per_block=1,
        norm_num_groups=8,
    )
    return model


ONE, TWO = ((1, 3, 224, 224),), ((1, 3, 224, 224), (2, 3, 192, 256))
SUBJECTS = (
    Subject("pyramid of features", Pyramid, TWO, (0, 2, 3), before="11.7 x, 5 graphs"),
    Subject(
        "UNet of diffusion", unet, ((1, 4, 32, 32), (2, 4, 40, 48)), (0, 2, 3),
        before="19.9 x, 4 graphs, 434 lines",
    ),
    Subject("ViT-base, 4 layers", of_transformers("ViT", num_hidden_layers=4), ONE, (0,)),
    Subject("ConvNeXt-tiny", of_transformers("ConvNext"), TWO, (0, 2, 3), before="5.2 x"),
    Subject("MobileNetV2", of_transformers("MobileNetV2"), TWO, (0, 2, 3)),
    Subject(
        "EfficientNet-b0",
        of_transformers("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280),
        TWO, (0, 2, 3),
    ),
    Subject(
        "MobileNetV3-small of torchvision", of_torchvision("mobilenet_v3_small"), TWO, (0, 2, 3), argument="x"
    ),
    Subject("yolo11n of ultralytics", yolo, ((1, 3, 64, 64), (2, 3, 96, 128)), (0, 2, 3), argument="x"),
    Subject("detector with nms", Detector, ((1, 3, 64, 64), (1, 3, 96, 128)), (2, 3)),
    Subject(
        "Swin-tiny", of_transformers("Swin"), ONE, (0,), MOST_OF_WINDOWS,
        before="55 to 70 x, 3 graphs, 1,023 lines",
    ),
    Subject(
        "Swinv2-tiny", of_transformers("Swinv2", image_size=256, window_size=8),
        ((1, 3, 256, 256),), (0,), MOST_OF_WINDOWS,
    ),
    Subject("swin_t of torchvision", of_torchvision("swin_t"), ONE, (0,), MOST_OF_WINDOWS, argument="x"),
)  # fmt: skip


def call_of(subject: Subject, size: Sequence[int]) -> dict[str, torch.Tensor]:
    """The arguments of one call with images of a size."""
    image = torch.rand(*size, generator=torch.Generator().manual_seed(0))
    if subject.build is not unet:
        return {subject.argument: image}
    states = torch.rand(size[0], 7, 32)
    return {"sample": image, "timestep": torch.tensor(10), "encoder_hidden_states": states}


def bare(subject: Subject, model: torch.nn.Module) -> None:
    """The export by hand: sizes of the last call, and no size of 1."""
    size = tuple(max(2, side) for side in subject.sizes[-1])
    given = call_of(subject, size)
    shapes: dict[str, Any] = dict.fromkeys(given)
    shapes[next(iter(given))] = dict.fromkeys(subject.dims, AUTO)
    if subject.build is unet:
        shapes["encoder_hidden_states"] = {0: AUTO}
    torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)


def measured(subject: Subject) -> Figure:
    """The export of a model beside its bare one."""
    torch.manual_seed(0)
    model, observer = subject.build().eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for size in subject.sizes:
            model(**call_of(subject, size))
    seconds = []
    start = time.process_time()
    bare(subject, model)
    seconds.append(time.process_time() - start)
    start = time.process_time()
    program = observer.export()
    seconds.append(time.process_time() - start)
    start = time.process_time()
    verdict = program.verify().verdict
    seconds.append(time.process_time() - start)
    graphs, lines = len(program.graphs), len(str(program.report).splitlines())
    parts = [
        f"{seconds[0]:.1f} s bare",
        f"{graphs} graph{'s' if graphs > 1 else ''}, a report of {lines} lines",
        f"verify {seconds[2] / seconds[0]:.1f} x: {verdict}",
        *([f"before: {subject.before}"] if subject.before else []),
    ]
    name = f"{subject.name}, watched at {len(subject.sizes)} size{'s' * (len(subject.sizes) > 1)}"
    return Figure(
        f"{name}: export / bare", seconds[1] / seconds[0], "x", subject.most, "; ".join(parts)
    )


def figures(quick: bool) -> Iterator[Figure]:
    """One for each model."""
    with torch.no_grad():  # what torch keeps for the first export of a process
        torch.export.export(torch.nn.Linear(2, 2), (torch.ones(2, 2),))
    for subject in SUBJECTS[:2] if quick else SUBJECTS:
        try:
            yield measured(subject)
        except ModuleNotFoundError as error:
            print(f"left out: {subject.name} ({error})", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))
