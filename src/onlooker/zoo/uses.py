"""Natural uses of a model of transformers, by what its ``forward`` takes.

A model that generates is used by one ``generate()`` of two rows, the first of them padded; others
by one call. Where there are several ways to give an input (a spectrogram by frames or by bands, an
image alone or in a list), all of them are candidates, the most usual one first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.errors import UnsupportedError
from .draw import padding_mask
from .images import image_text_inputs
from .model import parameters_of
from .sizes import InputSizes, random_tokens

__all__ = ["OTHER", "PADDED", "NaturalUse", "Sizes", "candidates", "natural_use"]

Inputs = dict[str, Any]
NEW_TOKENS = 4
FEATURES = 80


@dataclass(frozen=True, slots=True)
class Sizes:
    """One run: as many rows as ``padding`` has items; ``scale`` makes media larger."""

    padding: tuple[int, ...]
    length: int
    scale: float = 1.0
    seed: int = 0

    @property
    def batch(self) -> int:
        """The number of rows."""
        return len(self.padding)


#: two rows, the first of them padded
PADDED = Sizes((3, 0), 10)
#: one row without padding, of another length
OTHER = Sizes((0,), 13, seed=2)

#: what a model reads, hears or sees, in the order in which one of them is the natural one
MAIN = (
    "input_ids",
    "pixel_values",
    "input_features",
    "input_values",
    "pixel_values_videos",
    "inputs_embeds",
    "hidden_states",
)


@dataclass(frozen=True, slots=True)
class NaturalUse:
    """One way to use a model: ``run`` takes the model and the sizes of its inputs. ``story`` says it
    in words; with ``generates`` it is the model's ``generate()``.
    """

    story: str
    inputs: Callable[[Any, Sizes], Inputs]
    generates: bool = False

    def run(self, model: Any, sizes: Sizes) -> object:
        """Uses the model once."""
        given = self.inputs(model, sizes)
        return _generate(model, given) if self.generates else model(**given)


def natural_use(model: Any) -> NaturalUse:
    """The most natural use that the model takes at two choices of sizes, which is tried.

    :raises UnsupportedError: ``no-natural-use`` with what the model says to the first one
    """
    refusals: list[str] = []
    for use in candidates(model):
        try:
            with torch.no_grad():
                for sizes in (PADDED, OTHER):
                    use.run(model, sizes)
        except Exception as error:
            refusals.append(f"{use.story}: {type(error).__name__}: {str(error)[:300]}")
        else:
            return use
    said = refusals[0] if refusals else "forward takes nothing that is known"
    raise UnsupportedError(
        f"No natural use of a {type(model).__name__} is known: {said}.",
        slug="no-natural-use",
        hint="Write a function that gives the model and a use of it: onlooker export app.py:build.",
    )


def candidates(model: Any) -> Iterator[NaturalUse]:
    """Uses of a model, the most natural one first; which of them it takes is not known."""
    taken = parameters_of(model)
    if _generates(model):
        yield from _generations(model)
    if "input_ids" in taken and "pixel_values" in taken and hasattr(model, "get_image_features"):
        yield NaturalUse("call with text and image", _image_prompt)
    yield from _calls(model)


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())


# ---------------------------------------------------------------------------- generation


def _generate(module: Any, inputs: Inputs) -> object:
    known = getattr(module.generation_config, "decoder_start_token_id", None)
    start = (
        {"decoder_start_token_id": 1} if module.config.is_encoder_decoder and known is None else {}
    )
    return module.generate(
        **inputs,
        **start,
        do_sample=False,
        num_beams=1,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        eos_token_id=None,
    )


def _generations(model: Any) -> Iterator[NaturalUse]:
    taken, encoder = parameters_of(model), bool(model.config.is_encoder_decoder)
    if "input_ids" in taken and not encoder:
        if "pixel_values" in taken and hasattr(model, "get_image_features"):
            yield NaturalUse("generate from text and image", _image_prompt, True)
        yield NaturalUse("generate from text", partial(_prompt, True), True)
    if encoder:
        for name in ("input_features", "input_values", "pixel_values"):
            for variant in _variants(model, name) if name in taken else ():
                inputs = partial(_named, {name: variant})
                yield NaturalUse(f"generate from {name}", inputs, True)
        if "input_ids" in taken:
            yield NaturalUse("generate from text", partial(_prompt, False), True)
        for boxes in _BY_NAME["bbox"] if "input_ids" in taken and "bbox" in taken else ():
            inputs = partial(_page_prompt, boxes)
            yield NaturalUse("generate from words on a page", inputs, True)


def _prompt(left: bool, model: Any, sizes: Sizes) -> Inputs:
    """``input_ids`` and ``attention_mask``: (batch, length), padded at one side."""
    mask = padding_mask(sizes.padding, sizes.length, left=left)
    ids = random_tokens(model.config, _generator(sizes), sizes.batch, sizes.length)
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def _page_prompt(boxes: Maker, model: Any, sizes: Sizes) -> Inputs:
    """Returns a prompt, padded at the right, and where each word stands: (batch, length, 4)."""
    return {**_prompt(False, model, sizes), "bbox": boxes(model, sizes)}


def _image_prompt(model: Any, sizes: Sizes) -> Inputs:
    """A text with one image in each row; pads stand at its left."""
    wanted = InputSizes(batch_size=sizes.batch, sequence_length=sizes.length)
    given, _ = image_text_inputs(model, wanted, _generator(sizes))
    most = max(sizes.padding)
    if not most:
        return given
    ids = random_tokens(model.config, _generator(sizes), sizes.batch, most)
    mask = padding_mask(sizes.padding, most, left=True)
    first = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    for name, value in given.items():
        if name in first:
            given[name] = torch.cat([first[name], value], dim=1)
        elif name == "mm_token_type_ids":
            given[name] = torch.cat([torch.zeros_like(ids, dtype=value.dtype), value], dim=1)
    return given


# ---------------------------------------------------------------------------------- calls

Maker = Callable[[Any, Sizes], Any]

#: inputs that a signature calls optional though no model takes the main input without them
COMPANIONS = {
    "input_ids": ("bbox",),
    "pixel_values": (
        "input_ids",
        "pixel_attention_mask",
        "spatial_shapes",
        "image_embeds_position_mask",
    ),
    "states": ("actions", "rewards", "returns_to_go", "timesteps", "attention_mask"),
    "query_embeds": ("encoder_hidden_states",),
}


def _calls(model: Any) -> Iterator[NaturalUse]:
    """One call: the main input with what must be given; then all media together; then each alone."""
    taken = parameters_of(model)
    required = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    main = getattr(model, "main_input_name", "")
    media = [name for name in MAIN[:4] if name in taken]
    decoder = [name for name in ("decoder_input_ids",) if name in taken]
    sets = [[main, *required], [main, *required, *decoder], [*media, *required, *decoder]]
    sets += [[name, *required] for name in MAIN if name in taken]
    sets += [required]
    for name, companions in COMPANIONS.items():
        if name in taken and any(companion in taken for companion in companions):
            sets += [[name, *companions, *required], [name, *companions, *required, *decoder]]
    for names in dict.fromkeys(tuple(dict.fromkeys(n for n in s if n in taken)) for s in sets):
        if not names:
            continue
        for variants in itertools.islice(
            itertools.product(*(_variants(model, n) for n in names)), 12
        ):
            chosen = dict(zip(names, variants, strict=True))
            yield NaturalUse(f"call with {', '.join(names)}", partial(_with_mask, chosen))


def _named(makers: Mapping[str, Maker], model: Any, sizes: Sizes) -> Inputs:
    return {name: make(model, sizes) for name, make in makers.items()}


def _with_mask(makers: Mapping[str, Maker], model: Any, sizes: Sizes) -> Inputs:
    """The inputs, with what a tokenizer gives beside ``input_ids``."""
    inputs, taken = _named(makers, model, sizes), parameters_of(model)
    if "input_ids" in inputs and inputs["input_ids"].dim() == 2:
        mask = padding_mask(sizes.padding, sizes.length, left=False)
        if "attention_mask" in taken:
            inputs["attention_mask"] = mask
        if "token_type_ids" in taken and getattr(model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.zeros_like(mask)
    return inputs


def _variants(model: Any, name: str) -> list[Maker]:
    """The ways to make an input of this name."""
    if name in _BY_NAME:
        return list(_BY_NAME[name])
    for ending, makers in _BY_ENDING.items():
        if name.endswith(ending):
            return list(makers)
    return [_hidden]


def _generator(sizes: Sizes) -> torch.Generator:
    return torch.Generator().manual_seed(sizes.seed)


def _setting(model: Any, *names: str, default: Any) -> Any:
    """The first of the settings that the configuration, or a part of it, has."""
    settings = [model.config, *(v for k, v in vars(model.config).items() if k.endswith("_config"))]
    for name, config in itertools.product(names, settings):
        found = getattr(config, name, None)
        if isinstance(found, int | float | list | tuple) and found not in (None, [], ()):
            return found
    return default


def _randn(sizes: Sizes, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator(sizes))


def _ids(model: Any, sizes: Sizes) -> torch.Tensor:
    return random_tokens(model.config, _generator(sizes), sizes.batch, sizes.length)


def _shorter_ids(model: Any, sizes: Sizes) -> torch.Tensor:
    ids: torch.Tensor = random_tokens(
        model.config, _generator(sizes), sizes.batch, sizes.length - 3
    )
    return ids


def _steps(model: Any, sizes: Sizes) -> torch.Tensor:
    """The number of each step: (batch, length)."""
    return torch.arange(sizes.length).expand(sizes.batch, -1).clone()


def _of_width(name: str, model: Any, sizes: Sizes) -> torch.Tensor:
    """(batch, length, width): the width is a setting."""
    return _randn(sizes, sizes.batch, sizes.length, _setting(model, name, default=1))


def _state(model: Any, sizes: Sizes) -> torch.Tensor:
    """The state of a machine: (batch, width)."""
    return _randn(sizes, sizes.batch, _setting(model, "max_state_dim", "state_dim", default=1))


def _small_ids(model: Any, sizes: Sizes) -> torch.Tensor:
    """Numbers that every table has."""
    return torch.randint(0, 2, (sizes.batch, sizes.length), generator=_generator(sizes))


def _coded_ids(model: Any, sizes: Sizes) -> torch.Tensor:
    """One row of tokens per codebook: (batch, codebooks, length)."""
    books = _setting(model, "num_codebooks", "num_quantizers", "n_codes_total", default=4)
    return torch.randint(0, 8, (sizes.batch, books, sizes.length), generator=_generator(sizes))


def _ids_of_books(model: Any, sizes: Sizes) -> torch.Tensor:
    """A token of text and one per codebook at each place: (batch, length, 1 + codebooks)."""
    books = _setting(model, "num_codebooks", default=4)
    shape = (sizes.batch, sizes.length, 1 + books)
    return torch.randint(0, 8, shape, generator=_generator(sizes))


def _hidden(model: Any, sizes: Sizes) -> torch.Tensor:
    width = _setting(model, "hidden_size", "d_model", "embed_dim", "hidden_dim", default=64)
    return _randn(sizes, sizes.batch, sizes.length, width)


def _hidden_alone(model: Any, sizes: Sizes) -> torch.Tensor:
    return _hidden(model, sizes)[0]


def _sides(model: Any, sizes: Sizes) -> tuple[int, int]:
    side = _setting(model, "image_size", "img_size", default=64)
    patch = _setting(model, "patch_size", default=16)
    patch = patch if isinstance(patch, int) else max(patch)
    sides = (side, side) if isinstance(side, int) else tuple(side)[:2]
    if isinstance(side, dict) or len(sides) < 2:
        sides = (64, 64)
    height, width = (int(one) for one in sides)
    more = round(4 * (sizes.scale - 1)) * patch
    return height + more, width + more


def _image(model: Any, sizes: Sizes) -> torch.Tensor:
    """(batch, channels, height, width)."""
    channels = _setting(model, "num_channels", "in_channels", "in_chans", default=3)
    return _randn(sizes, sizes.batch, channels, *_sides(model, sizes))


def _colour_image(model: Any, sizes: Sizes) -> torch.Tensor:
    return _randn(sizes, sizes.batch, 3, *_sides(model, sizes))


def _large_image(model: Any, sizes: Sizes) -> torch.Tensor:
    side = 224 + round(64 * (sizes.scale - 1))
    return _randn(sizes, sizes.batch, 3, side, side)


def _images(model: Any, sizes: Sizes) -> torch.Tensor:
    """One image in each row: (batch, 1, channels, height, width)."""
    return _image(model, sizes).unsqueeze(1)


def _video(model: Any, sizes: Sizes) -> torch.Tensor:
    """(batch, frames, channels, height, width)."""
    frames = _setting(model, "num_frames", "frames_per_clip", default=4)
    return _randn(sizes, sizes.batch, frames, 3, *_sides(model, replace(sizes, scale=1.0)))


def _patches(model: Any, sizes: Sizes) -> torch.Tensor:
    """Flat patches: (batch, patches, channels * patch * patch)."""
    patch = _setting(model, "patch_size", default=16)
    return _randn(sizes, sizes.batch, 16, 3 * patch * patch)


def _numbered_patches(model: Any, sizes: Sizes) -> torch.Tensor:
    """Flat patches with their row and column before them, from 1: (batch, patches, 2 + features)."""
    width = _setting(model, "patch_embed_hidden_size", default=256)
    places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5)).float()
    return torch.cat(
        [places.expand(sizes.batch, -1, -1), _randn(sizes, sizes.batch, 16, width)], dim=-1
    )


def _patch_mask(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.ones(sizes.batch, 16, dtype=torch.int64)


def _patch_grid(model: Any, sizes: Sizes) -> torch.Tensor:
    """The rows and columns of the patches of each image: (batch, 2)."""
    return torch.tensor([[4, 4]] * sizes.batch)


def _image_places(model: Any, sizes: Sizes) -> torch.Tensor:
    """True where a text has the tokens of its image: (batch, length)."""
    tokens = int(_setting(model, "latent_query_num", default=4))
    place = torch.arange(sizes.length)
    return torch.logical_and(place > 0, place <= tokens).expand(sizes.batch, -1).clone()


def _bands(model: Any) -> int:
    names = (
        "num_mel_bins",
        "feature_size",
        "input_feat_per_channel",
        "n_mels",
        "mel_bins",
        "input_dim",
    )
    return int(_setting(model, *names, default=FEATURES))


def _frames(model: Any, sizes: Sizes) -> int:
    longest = _setting(model, "max_source_positions", default=0)
    return 2 * longest if longest else 16 * sizes.length


def _by_bands(model: Any, sizes: Sizes) -> torch.Tensor:
    """A spectrogram: (batch, bands, frames)."""
    return _randn(sizes, sizes.batch, _bands(model), _frames(model, sizes))


def _by_frames(model: Any, sizes: Sizes) -> torch.Tensor:
    """A spectrogram: (batch, frames, bands)."""
    return _randn(sizes, sizes.batch, 16 * sizes.length, _bands(model))


def _fixed_frames(model: Any, sizes: Sizes) -> torch.Tensor:
    frames = _setting(model, "max_length", "spec_size", "num_frames", default=1024)
    return _randn(sizes, sizes.batch, frames, _bands(model))


def _by_entry(model: Any, sizes: Sizes) -> torch.Tensor:
    """A spectrogram of which each frame has the width of the first layer: (batch, frames, width)."""
    entry = next(
        (layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.LayerNorm)), None
    )
    width = entry.weight.shape[-1] if entry is not None else _bands(model)
    return _randn(sizes, sizes.batch, 16 * sizes.length, width)


def _as_image(model: Any, sizes: Sizes) -> torch.Tensor:
    """A spectrogram as an image of one colour: (batch, 1, frames, bands)."""
    return _fixed_frames(model, sizes).unsqueeze(1)


def _samples(model: Any, sizes: Sizes) -> torch.Tensor:
    """Sound: (batch, samples)."""
    return _randn(sizes, sizes.batch, 400 * sizes.length)


def _channel_samples(model: Any, sizes: Sizes) -> torch.Tensor:
    """Sound: (batch, 1, samples)."""
    return _samples(model, sizes).unsqueeze(1)


def _boxes(model: Any, sizes: Sizes) -> torch.Tensor:
    """(batch, length, 4): left, top, right, bottom of words on a page."""
    corners = torch.randint(0, 100, (sizes.batch, sizes.length, 2), generator=_generator(sizes))
    return torch.cat([corners, corners + 20], dim=-1)


def _box_shares(model: Any, sizes: Sizes) -> torch.Tensor:
    """Returns the boxes as shares of the page."""
    shares: torch.Tensor = _boxes(model, sizes) / 128
    return shares


def _past(model: Any, sizes: Sizes) -> torch.Tensor:
    """A time series with its lags: (batch, steps) or (batch, steps, channels)."""
    steps = _setting(model, "context_length", "seq_length", default=32)
    lags = _setting(model, "lags_sequence", default=[0])
    channels = _setting(model, "num_input_channels", "input_size", default=1)
    length = steps + max(lags)
    return _randn(sizes, sizes.batch, length, *(() if channels == 1 else (channels,)))


def _past_channels(model: Any, sizes: Sizes) -> torch.Tensor:
    past = _past(model, sizes)
    return past.unsqueeze(-1) if past.dim() == 2 else past


def _past_ones(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.ones_like(_past(model, sizes))


def _past_zeros(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.zeros_like(_past(model, sizes))


def _category(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.zeros(sizes.batch, 1, dtype=torch.int64)


def _past_times(model: Any, sizes: Sizes) -> torch.Tensor:
    features = _setting(model, "num_time_features", default=1)
    return _randn(sizes, sizes.batch, _past(model, sizes).shape[1], features)


def _grid(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.tensor([[1, 4, 4]] * sizes.batch)


def _grid_patches(model: Any, sizes: Sizes) -> torch.Tensor:
    """The patches of all images in one list: (batch * 16, features)."""
    patch = _setting(model, "patch_size", default=14)
    times = _setting(model, "temporal_patch_size", default=1)
    channels = _setting(model, "in_channels", "in_chans", "num_channels", default=3)
    return _randn(sizes, sizes.batch * 16, channels * times * patch * patch)


def _grid_pairs(model: Any, sizes: Sizes) -> torch.Tensor:
    """Returns the patches of images of which each stands for two moments."""
    return _grid_patches(model, sizes).repeat(1, 2)


def _mask(model: Any, sizes: Sizes) -> torch.Tensor:
    return padding_mask(sizes.padding, sizes.length, left=False)


def _step(model: Any, sizes: Sizes) -> torch.Tensor:
    return torch.full((sizes.batch,), 5)


_BY_NAME: dict[str, tuple[Maker, ...]] = {
    "input_ids": (_ids, _coded_ids, _small_ids, _ids_of_books),
    "decoder_input_ids": (_shorter_ids,),
    "pixel_values": (
        _image,
        _colour_image,
        _images,
        _video,
        _grid_patches,
        _grid_pairs,
        _patches,
        _large_image,
    ),
    "pixel_values_videos": (_video,),
    "input_features": (_by_bands, _by_frames, _fixed_frames, _by_entry, _as_image),
    "input_values": (_samples, _channel_samples, _fixed_frames, _by_frames, _by_bands),
    "flattened_patches": (_patches, _numbered_patches),
    "pixel_attention_mask": (_patch_mask,),
    "spatial_shapes": (_patch_grid,),
    "image_embeds_position_mask": (_image_places,),
    "encoder_hidden_states": (_hidden, partial(_of_width, "encoder_hidden_size")),
    "states": (partial(_of_width, "state_dim"),),
    "actions": (partial(_of_width, "act_dim"),),
    "rewards": (partial(_of_width, ""),),
    "returns_to_go": (partial(_of_width, ""),),
    "state": (_state,),
    "bbox": (_boxes, _box_shares),
    "past_values": (_past, _past_channels),
    "past_observed_mask": (_past_ones,),
    "past_values_padding": (_past_zeros,),
    "freq": (_category,),
    "past_time_features": (_past_times,),
    "image_grid_thw": (_grid,),
    "grid_thw": (_grid,),
    "hidden_states": (_hidden, _hidden_alone, _grid_patches, _grid_pairs),
    "timestep": (_step,),
    "timesteps": (_step, _steps),
    "audio_codes": (_coded_ids,),
}
_BY_ENDING: dict[str, tuple[Maker, ...]] = {
    "_mask": (_mask,),
    "input_ids": (_ids, _small_ids),
    "pixel_values": (_image, _video),
    "_ids": (_small_ids,),
    "_values": (_samples, _channel_samples),
    "_features": (_by_bands, _by_frames, _hidden),
}
