"""Published hyper-parameters made tiny by rule: no number below belongs to one model.

A configuration is a tree of dictionaries, one per part of the model (text, vision, ...). What is
done to it:

- a tree whose widths are all at most 256, with at most 5 layers and images of at most 512 a side,
  stays as it is;
- layers: 32 -> 2; more when layers differ: one of each kind is kept, in their order, two of a kind
  whose layers share weights; a pattern that is repeated over the layers has each kind once, and its
  period and offset are those of the layers that are left;
- stages: depths ``[3, 3, 9, 3]`` -> ``[2, 2, 2, 2]``, the number of stages stays;
- widths: one factor for the whole tree, which makes its widest part 64 wide; multiples of 16, so
  that equal widths stay equal; stages get a quarter, in multiples of 8; a codec of sounds whose
  widths double from stage to stage ends at 256;
- heads: at most 4, a power of two; one key-value head stays one, as many as there are query heads
  stay as many, anything between becomes 2;
- heads of linear attention and of an indexer: at most 4, of 16 and of 32; heads of a state-space
  layer of a width of its own: at most 4, and states of 16; a normalization of rows and columns in turn is made 4 times;
- the size of a head: the width shared by the heads; if it is given by itself, it follows the common
  factor; a rotary part, factors and sections keep their share of the head;
- experts: at most 4, of which at most 2 are used at a time, in at most 2 groups;
- vocabularies: at most 1024; special tokens beyond it become its last ones, distinct ones distinct;
- learned positions: at most 512, of a source of sound at most 64; rotary positions have no weights
  and stay;
- images: at most 8 patches a side, but 64 pixels; the patch stays; tokens per image and the sides of
  features follow, and so does a part whose image has no patches.

Everything else (activations, kernels, windows, flags) is what was published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .reduce_parts import (
    FACTORED,
    LAYERS,
    SINGLE_LAYERS,
    STAGE_WIDTHS,
    TOKENS_PER_IMAGE,
    WIDTHS,
    chosen_layers,
    head_size,
    image_sides,
    reduced_experts,
    reduced_filters,
    reduced_heads,
    reduced_image,
    reduced_inner_heads,
    reduced_layers,
    reduced_positions,
    reduced_rope,
    reduced_sides,
    reduced_stages,
)

__all__ = ["is_tiny", "parts", "reduced"]

Tree = dict[str, Any]

#: what the widest part becomes
WIDTH = 64
VOCABULARY = 1024
#: a tree up to these sizes is tiny already
TINY_WIDTH = 256
TINY_DEPTH = 5
TINY_IMAGE = 512
#: names of layers by their number, and a size in patches
DERIVED = (
    "stage_names",
    "out_features",
    "_out_features",
    "out_indices",
    "_out_indices",
    "image_embedding_size",
)


def reduced(config: Mapping[str, Any]) -> Tree:
    """Returns the configuration at a tiny size; the argument is not changed.

    >>> published = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
    >>> reduced({**published, "intermediate_size": 14336, "vocab_size": 128256, "eos_token_id": 128001})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
     'intermediate_size': 224, 'vocab_size': 1024, 'eos_token_id': 1023}
    >>> reduced({"hidden_size": 192, "num_hidden_layers": 1, "vocab_size": 32000})
    {'hidden_size': 192, 'num_hidden_layers': 1, 'vocab_size': 32000}
    """
    if is_tiny(config):
        return dict(config)
    widest = max((width for part in parts(config) for width in _main_widths(part)), default=WIDTH)
    factor = min(1.0, WIDTH / widest)
    tokens, shrink = _special_tokens(config), _image_shrink(config)
    return _reduced_part(config, factor, tokens, shrink, reduced_sides(_images(config)))


def is_tiny(config: Mapping[str, Any]) -> bool:
    """True for a configuration that is not worth reducing.

    >>> is_tiny({"hidden_size": 192, "num_hidden_layers": 1}), is_tiny({"d_model": 512, "num_layers": 2})
    (True, False)
    """
    everything = list(parts(config))
    widths = [width for part in everything for width in _main_widths(part)]
    depths = [part[key] for part in everything for key in LAYERS if isinstance(part.get(key), int)]
    stages = any(part.get("depths") for part in everything)
    sides = [side for part in everything for side in image_sides(part)]
    return (
        bool(depths)
        and max(sides, default=0) <= TINY_IMAGE
        and max(widths, default=0) <= TINY_WIDTH
        and max(depths) <= TINY_DEPTH
        and not stages
    )


def parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration and those inside it."""
    yield config
    for key, value in config.items():
        if _is_part(key, value):
            yield from parts(value)


def _is_part(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and key.endswith("_config") and key != SINGLE_LAYERS


def _main_widths(part: Mapping[str, Any]) -> Iterator[int]:
    """The widths of what goes from layer to layer."""
    for key in ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"):
        if isinstance(part.get(key), int):
            yield part[key]


def _special_tokens(config: Mapping[str, Any]) -> dict[int, int]:
    """Ids that the reduced vocabulary does not have -> the ids at its end."""
    known: set[int] = set()
    for part in parts(config):
        for key, value in part.items():
            if _is_token(key):
                known.update(
                    id_
                    for id_ in (value if isinstance(value, list) else [value])
                    if isinstance(id_, int)
                )
    free = (id_ for id_ in range(VOCABULARY - 1, 0, -1) if id_ not in known)
    return {id_: next(free) for id_ in sorted(known, reverse=True) if id_ >= VOCABULARY}


def _is_token(key: str) -> bool:
    return key.endswith(("_token_id", "_token_index", "_token_ids"))


def _image_shrink(config: Mapping[str, Any]) -> float:
    """The share of the patches of an image that is left."""
    for part in parts(config):
        sides = image_sides(part)
        if sides and isinstance(part.get("patch_size"), int):
            return (image_sides({"image_size": reduced_image(part)})[0] / sides[0]) ** 2
    return 1.0


def _images(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts that have images."""
    return [part for part in parts(config) if image_sides(part)]


def _reduced_part(
    part: Mapping[str, Any],
    factor: float,
    tokens: Mapping[int, int],
    shrink: float,
    sides: Mapping[int, int],
) -> Tree:
    before = dict(part)
    after: Tree = {
        **before,
        **reduced_layers(before, chosen_layers(before)),
        **reduced_stages(before),
        **reduced_filters(before),
    }
    for key, value in before.items():
        if key in WIDTHS and isinstance(value, int) and not isinstance(value, bool):
            after[key] = scaled(value, factor)
        elif key in FACTORED and isinstance(value, (list, tuple)):
            after[key] = [scaled(width, factor) for width in value]
        elif key in WIDTHS and isinstance(value, list) and len(after[key]) < len(value):
            after[key] = [scaled(width, factor) for width in after[key]]  # of each layer
        elif key in STAGE_WIDTHS and isinstance(value, (list, tuple)):
            after[key] = [min(width, max(8, -(-width // 32) * 8)) for width in value]
        elif key in TOKENS_PER_IMAGE and isinstance(value, int):
            after[key] = max(1, round(value * shrink))
        elif _is_token(key):
            after[key] = _moved(value, tokens)
        elif "vocab_size" in key and isinstance(value, int):
            after[key] = min(value, VOCABULARY)
        elif _is_part(key, value):
            after[key] = _reduced_part(value, factor, tokens, shrink, sides)
    if before.get("depths") and isinstance(
        before.get("embed_dim"), int
    ):  # swin: the width of the first stage
        after["embed_dim"] = max(8, before["embed_dim"] // 4)
    elif before.get("depths") and isinstance(before.get("patch_embeds_hidden_size"), int):
        first = max(
            8, before["patch_embeds_hidden_size"] // 4
        )  # the same, with the width of the last
        after["patch_embeds_hidden_size"] = first
        after["hidden_size"] = first * 2 ** (len(before["depths"]) - 1)
    elif isinstance(before.get("head_dim"), int) or not any(
        key in before for key in ("hidden_sizes", "depths")
    ):
        after.update(reduced_heads(before, after))
    after.update(reduced_rope(before, head_size(before), head_size(after)))
    if isinstance(after.get(SINGLE_LAYERS), Mapping):
        after[SINGLE_LAYERS] = {
            number: _reduced_part(settings, factor, tokens, shrink, sides)
            for number, settings in after[SINGLE_LAYERS].items()
        }
    for key in DERIVED:  # the class of the configuration finds them again
        after.pop(key, None)
    return {
        **after,
        **reduced_experts(before),
        **reduced_inner_heads(before),
        **reduced_positions(before),
        **_image(before, sides),
    }


def _image(part: Mapping[str, Any], sides: Mapping[int, int]) -> Tree:
    """The image of a part, and the sides of its features; an image without patches is as large as
    those of other parts are.
    """
    features = [key for key in part if key.endswith("feature_sizes")] if sides else []
    update: Tree = {key: _reduced_features(part[key], sides) for key in features}
    if image_sides(part):
        found = [sides[side] for side in image_sides(part)]
        alike = found[0] if isinstance(part["image_size"], int) else found
        update["image_size"] = reduced_image(part) if "patch_size" in part else alike
    return update


def _reduced_features(value: Any, sides: Mapping[int, int]) -> Any:
    """The sides of features of the largest image, of its reduced size.

    >>> _reduced_features([[256, 256], [64, 64]], {1024: 128})
    [[32, 32], [8, 8]]
    """
    if isinstance(value, (list, tuple)):
        return [_reduced_features(item, sides) for item in value]
    if not isinstance(value, int):
        return value
    return max(1, value * sides[max(sides)] // max(sides))


def scaled(width: int, factor: float) -> int:
    """The width times the factor, as a multiple of 16, never larger than before.

    >>> scaled(11008, 64 / 4096), scaled(512, 64 / 768), scaled(8, 0.1)
    (176, 48, 8)
    """
    return min(width, max(16, -(-int(width * factor) // 16) * 16))


def _moved(value: Any, tokens: Mapping[int, int]) -> Any:
    if isinstance(value, list):
        return [_moved(id_, tokens) for id_ in value]
    return tokens.get(value, value) if isinstance(value, int) else value
