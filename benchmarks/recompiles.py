"""How often torch.compile compiles the calls of 30 models: as they are, with dynamic=True, with the marks of onlooker.

    python benchmarks/recompiles.py [--quick] [--json FILE]

Each model is watched while it is used, in a handful of calls of several sizes; the calls are then compiled by a
backend that generates no code. A way fails where torch refuses a call, or where a result is another than that of
the model. `ideal` counts the graphs that a program of onlooker needs for the same calls. No way that fails is
recommended, and none that compiles more often.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from frame import Figure, main
from generators import GENERATORS

import onlooker
from onlooker.compiling.marks import Marking
from onlooker.compiling.recompiles import AS_IT_IS, DYNAMIC, Recompiles

#: what is watched: a module, and the calls
Watched = tuple[torch.nn.Module, Callable[[], object]]
_TINY = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
DECODERS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi",
    "gemma",
    "olmo2",
    "stablelm",
    "starcoder2",
    "opt",
)
ENCODERS = ("bert", "roberta", "electra", "distilbert", "albert", "mpnet")
_SIZES = ((2, 7), (1, 4), (3, 12), (2, 1), (5, 9))
_IMAGES = ((2, 64), (1, 64), (3, 96), (4, 64))


def decoder(name: str) -> Watched:
    """A decoder of transformers in generate()."""
    options: dict[str, Any] = (
        {**_TINY, "word_embed_proj_dim": 32, "ffn_dim": 64} if name == "opt" else _TINY
    )
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(name, **options)
    ).eval()

    def watch() -> None:
        with torch.no_grad():
            for batch, length in ((2, 7), (1, 4), (3, 9)):
                ids = torch.randint(2, 250, (batch, length))
                model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False
                )

    return model, watch


def encoder(name: str) -> Watched:
    """An encoder of transformers on texts of several lengths."""
    options = {
        **_TINY,
        "dim": 32,
        "hidden_dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "embedding_size": 32,
    }
    torch.manual_seed(0)
    model: Any = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(name, **options)
    ).eval()

    def watch() -> None:
        with torch.no_grad():
            for batch, length in _SIZES:
                ids = torch.randint(2, 250, (batch, length))
                model(input_ids=ids, attention_mask=torch.ones_like(ids))

    return model, watch


def of_images(build: Callable[[], torch.nn.Module], *, sides: bool = True) -> Watched:
    """A model of images, of several sides where it takes them."""
    torch.manual_seed(0)
    model = build().eval()

    def watch() -> None:
        with torch.no_grad():
            for batch, side in _IMAGES:
                model(torch.rand(batch, 3, side if sides else 64, side if sides else 64))

    return model, watch


def of_transformers(name: str, **options: Any) -> torch.nn.Module:
    config = getattr(transformers, f"{name}Config")(**options)
    model: torch.nn.Module = getattr(transformers, f"{name}Model")(config)
    return model


def unet() -> Watched:
    """A UNet of diffusion, at several resolutions and batches."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    model = UNet2DConditionModel(
        block_out_channels=(32, 64), cross_attention_dim=32, layers_per_block=1, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip

    def watch() -> None:
        with torch.no_grad():
            for batch, side in ((2, 16), (1, 16), (2, 24)):
                model(torch.rand(batch, 4, side, side), torch.tensor(10), torch.rand(batch, 7, 32))

    return model, watch


def training() -> Watched:
    """Steps of training with batches of several sizes, the last one smaller."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(16, 4),
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def watch() -> None:
        for batch in (8, 8, 6, 3):
            model(torch.randn(batch, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, watch


def of_generator(name: str) -> Watched:
    generator = GENERATORS[name]()

    def watch() -> None:
        generator.observe()
        generator.generate((0,), 6)

    return generator.watched, watch


def vision(name: str, **options: Any) -> Callable[[], torch.nn.Module]:
    """Builds a transformer of patches of one side."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return partial(of_transformers, name, image_size=64, patch_size=16, **sizes, **options)


_WIDTHS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_CONVOLUTIONS: dict[str, Callable[[], torch.nn.Module]] = {
    "convnext": partial(of_transformers, "ConvNext", **_WIDTHS),
    "segformer": partial(of_transformers, "Segformer", **_WIDTHS, num_attention_heads=[1, 2, 3, 4]),
    "resnet": partial(
        of_transformers, "ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]
    ),
    "mobilenet_v2": partial(of_transformers, "MobileNetV2"),
}
_OTHERS = ("gpt2", "gemma3", "mamba2", "t5", "whisper", "llava")
MODELS: dict[str, Callable[[], Watched]] = {
    **{f"{name}, generate()": partial(decoder, name) for name in DECODERS},
    **{f"{name}, generate()": partial(of_generator, name) for name in _OTHERS},
    **{name: partial(encoder, name) for name in ENCODERS},
    "vit": partial(of_images, vision("ViT", intermediate_size=64), sides=False),
    "dinov2": partial(of_images, vision("Dinov2"), sides=False),
    **{name: partial(of_images, build) for name, build in _CONVOLUTIONS.items()},
    "UNet of diffusion": unet,
    "training steps": training,
}


def graphs_of(found: Recompiles, way: str) -> str:
    """The number of graphs of a way, or that it fails."""
    count = dict(found.counts).get(way)
    if count is None:
        return "-"
    return "fails" if count.failure else str(count.graphs)


def measured(name: str, build: Callable[[], Watched]) -> Figure:
    """The compilations of one model with marks, beside those without."""
    model, watch = build()
    observer = onlooker.InputObserver()
    with observer(model):
        watch()
    found = observer.recompiles()
    try:
        ideal = str(len(observer.export().graphs))
    except onlooker.OnlookerError as error:
        ideal = f"no program: {error.slug}"
    marks = " or ".join(f"{graphs_of(found, kind.value)} by {kind.value}" for kind in Marking)
    note = (
        f"{found.calls} kinds of calls; as it is {graphs_of(found, AS_IT_IS)}, dynamic=True"
        f" {graphs_of(found, DYNAMIC)}, {marks}; ideal {ideal}"
    )
    return Figure(
        f"{name}: graphs with marks / without",
        found.after.graphs / found.before.graphs,
        "x",
        1.0,
        note,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """One figure a model."""
    warnings.filterwarnings("ignore", category=onlooker.OnlookerWarning)
    chosen = list(MODELS)[:: 10 if quick else 1]
    for name in chosen:
        yield measured(name, MODELS[name])


if __name__ == "__main__":
    sys.exit(main(__doc__, figures))
