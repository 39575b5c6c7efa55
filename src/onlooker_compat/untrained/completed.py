"""Settings that a default configuration leaves open and its model wants.

A published configuration has all of them, and stays as it is. Each rule takes one part of a
configuration (see :mod:`.reduce`) and returns the settings to add; ``RULES`` are applied before the
reduction, ``LAST_RULES`` after it, because they depend on the reduced widths.

- the experts: a router needs to know how many of them a token takes;
- the kinds of layers: a list of them, with attention in one of the layers, because the cache of a
  model that generates counts its tokens there; a window for those that have one;
- the rotary embeddings: one for each kind of attention, where they are kept by the kind, and the
  shares of time, height and width where a text has images;
- the words: the size of the vocabulary, the tokens that stand for images and sounds, the language;
- the heads: as many key-value heads as heads, and heads that share the width;
- the images: their features have the width of the text, their patches divide by what is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .reduce_parts import HEADS, LAYERS, SINGLE_LAYERS, head_size

__all__ = ["completed", "completed_last"]

Part = Mapping[str, Any]
Update = dict[str, Any]

#: as many as a reduction leaves
VOCABULARY = 1024
#: more than a reduced part keeps
EXPERTS = 4
#: of a layer that sees few tokens before its own
WINDOW = 512
#: how many codes of images there are in a vocabulary
IMAGE_WORDS = 256
MEDIA_TOKENS = ("image_token_id", "image_token_index", "audio_token_id", "video_token_id")
#: the borders of an image in a text that has borders of sounds
SEEN = ("vision_start_token_id", "vision_end_token_id")
#: of the heads that choose tokens, in a reduced model
INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": WINDOW,
    "indexer_compress_ratio": 4,
}
#: the usual bound of queries, keys and values
BOUND = 8.0
#: the usual base of a rotary embedding
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def completed(tree: Part) -> Update:
    """The configuration with what is left open in it and in its parts.

    >>> completed({"num_attention_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": None})
    {'num_attention_heads': 4, 'n_routed_experts': 8, 'num_experts_per_tok': 2}
    """
    return _applied(tree, RULES)


def completed_last(tree: Part) -> Update:
    """The reduced configuration with what depends on its widths.

    >>> completed_last({"hidden_size": 64, "num_attention_heads": 4, "head_dim": None})
    {'hidden_size': 64, 'num_attention_heads': 4, 'head_dim': 16}
    """
    return _applied(tree, LAST_RULES)


def _applied(tree: Part, rules: tuple[Callable[[Part], Update], ...]) -> Update:
    found = dict(tree)
    for rule in rules:
        found.update(rule(found))
    for key, value in found.items():
        if isinstance(value, Mapping) and key.endswith("_config") and key != SINGLE_LAYERS:
            found[key] = _applied(value, rules)
    return found


# ------------------------------------------------------------------------- before reduction


def experts(part: Part) -> Update:
    """Experts where a token may take some, and how many it takes."""
    update: Update = {}
    if "num_experts_per_tok" not in part or not _has_experts(part):
        return update
    if part.get("n_routed_experts", 0) is None:
        update["n_routed_experts"] = EXPERTS
        if part.get("n_shared_experts", 0) is None:
            update["n_shared_experts"] = 1
    if part["num_experts_per_tok"] is None:
        update["num_experts_per_tok"] = 2
    return update


def _has_experts(part: Part) -> bool:
    return isinstance(part.get("n_routed_experts"), int) or "moe_intermediate_size" in part


def kinds_of_layers(part: Part) -> Update:
    """A list of the kinds of layers where there is none.

    >>> kinds_of_layers({"num_hidden_layers": 2, "layer_types": None, "num_attention_heads": 4})
    {'layer_types': ['full_attention', 'full_attention']}
    """
    depth, update = _depth(part), {}
    if not depth:
        return {}
    if part.get("layer_types", 0) is None and _heads(part):
        convolves = any(key.startswith("conv_") for key in part)
        kinds = ["conv", "full_attention"] if convolves else ["full_attention"]
        update["layer_types"] = [kinds[index % len(kinds)] for index in range(depth)]
    if part.get("mlp_layer_types", 0) is None and _has_experts(part):
        update["mlp_layer_types"] = ["dense", *["sparse"] * (depth - 1)]
    return update


def attention_somewhere(part: Part) -> Update:
    """Attention in the last of the layers, where all of them are linear though there are heads.

    >>> attention_somewhere({"num_attention_heads": 4, "layer_types": ["linear_attention"] * 2})
    {'layer_types': ['linear_attention', 'full_attention']}
    """
    depth = _depth(part)
    if not _heads(part):
        return {}
    kinds = part.get("layer_types")
    if isinstance(kinds, list) and kinds and set(kinds) == {"linear_attention"}:
        return {"layer_types": [*kinds[:-1], "full_attention"]}
    if part.get("attn_layer_indices", 0) is None and depth:
        return {"attn_layer_indices": [depth - 1]}
    return {}


def rotary_of_kinds(part: Part) -> Update:
    """One rotary embedding for each kind of attention, where there is none at all.

    >>> rotary_of_kinds({"rope_parameters": {}, "layer_types": ["full_attention"]})
    {'rope_parameters': {'full_attention': {'rope_type': 'default', 'rope_theta': 10000.0}}}
    """
    kinds = part.get("layer_types")
    if part.get("rope_parameters") == {} and isinstance(kinds, list):
        return {"rope_parameters": {kind: dict(ROPE) for kind in dict.fromkeys(kinds)}}
    return {}


def attention_apart(part: Part) -> Update:
    """The base of the rotary embedding, and the bound of the projections, in the settings of the
    attention, where these stand apart.

    >>> attention_apart({"rope_parameters": {"rope_theta": 5.0}, "attn_config": {"clip_qkv": None}})
    {'attn_config': {'clip_qkv': 8.0, 'rope_theta': 5.0}}
    """
    rope, attention = part.get("rope_parameters"), part.get("attn_config")
    if not isinstance(attention, Mapping) or not isinstance(rope, Mapping):
        return {}
    bound = {"clip_qkv": BOUND} if _open(attention, "clip_qkv") else {}
    base = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    return {"attn_config": {**attention, **bound, **base}}


def media_tokens(part: Part) -> Update:
    """Tokens that stand for media: none of those that a model writes.

    >>> media_tokens({"vision_config": {}, "image_token_id": None})
    {'image_token_id': 4}
    """
    update: Update = {}
    for number, key in enumerate(MEDIA_TOKENS, 4):
        if _open(part, key):
            update[key] = number
    if isinstance(part.get("audio_start_token_id"), int) and "vision_config" in part:
        update.update({key: number for number, key in enumerate(SEEN, 8) if key not in part})
    return update


def windows(part: Part) -> Update:
    """A window where a kind of layer has one, or heads of its own.

    >>> windows({"layer_types": ["sliding_attention"], "sliding_window": None})
    {'sliding_window': 512}
    """
    kinds = part.get("layer_types") or ()
    wanted = "sliding_attention" in kinds or "num_sliding_attention_heads" in part
    return {"sliding_window": WINDOW} if wanted and _open(part, "sliding_window") else {}


def vocabulary(part: Part) -> Update:
    """The size of a vocabulary."""
    return {"vocab_size": VOCABULARY} if _open(part, "vocab_size") else {}


def chosen_by_default(part: Part) -> Update:
    """The first of several, where none of them is the default.

    >>> chosen_by_default({"languages": ["en", "de"], "default_language": None})
    {'default_language': 'en'}
    """
    return {
        f"default_{key.removesuffix('s')}": several[0]
        for key, several in part.items()
        if isinstance(several, list) and several and _open(part, f"default_{key.removesuffix('s')}")
    }


def image_words(part: Part) -> Update:
    """The words that codes of images are, where a model writes them as text, and their place."""
    codes = part.get("vq_config")
    if not (_open(part, "vocabulary_map") and isinstance(codes, Mapping)):
        return {}
    letters = "ABCDEFGHIJ"
    count = min(IMAGE_WORDS, codes.get("num_embeddings", IMAGE_WORDS))
    names = ("".join(letters[int(digit)] for digit in str(number)) for number in range(count))
    words = {f"IMGIMG{name}Z": number for number, name in enumerate(names, 16)}
    return {
        "vocabulary_map": {"<image>": 4, **words},
        "vq_config": {**codes, "num_embeddings": count},
    }


# -------------------------------------------------------------------------- after reduction


def heads_of_keys(part: Part) -> Update:
    """As many key-value heads as heads."""
    heads, encoder = _heads(part), part.get("encoder_config")
    wanted = _open(part, "num_key_value_heads") or (
        isinstance(encoder, Mapping)
        and "num_key_value_heads" in encoder
        and "num_key_value_heads" not in part
    )
    return {"num_key_value_heads": heads} if heads and wanted else {}


def size_of_heads(part: Part) -> Update:
    """The heads share the width."""
    size = head_size(part)
    return {"head_dim": size} if size and _open(part, "head_dim") else {}


def indexers(part: Part) -> Update:
    """The heads that choose which tokens the attention sees, and how many tokens they choose.

    >>> indexers({"indexer_n_heads": None, "indexer_budget": None})
    {'indexer_n_heads': 2, 'indexer_budget': 512}
    """
    return {key: value for key, value in INDEXER.items() if _open(part, key)}


def sections_of_places(part: Part) -> Update:
    """The shares of time, height and width in the rotary embedding of a text with images that are
    lists of patches: what a class takes by itself fits heads that are not reduced.

    >>> vision, text = {"spatial_merge_size": 2}, {"head_dim": 16, "rope_parameters": {}}
    >>> sections_of_places({"vision_config": vision, "text_config": text})["text_config"]
    {'head_dim': 16, 'rope_parameters': {'mrope_section': [3, 3, 2]}}
    """
    text, vision = part.get("text_config"), part.get("vision_config")
    if not (isinstance(text, Mapping) and isinstance(vision, Mapping)):
        return {}
    rope, size = text.get("rope_parameters"), head_size(text)
    if "spatial_merge_size" not in vision or not isinstance(rope, Mapping) or not size:
        return {}
    if "mrope_section" in rope or any(isinstance(value, Mapping) for value in rope.values()):
        return {}
    angles = int(size * rope.get("partial_rotary_factor", 1)) // 2
    share = max(1, round(angles / 3))
    sections = [share, share, angles - 2 * share]
    return {"text_config": {**text, "rope_parameters": {**rope, "mrope_section": sections}}}


def widths_of_features(part: Part) -> Update:
    """The features of an image have the width of the text.

    >>> vision, text = {"out_hidden_size": 3584}, {"hidden_size": 64}
    >>> widths_of_features({"vision_config": vision, "text_config": text})["vision_config"]
    {'out_hidden_size': 64}
    """
    text, vision = part.get("text_config"), part.get("vision_config")
    if not (isinstance(text, Mapping) and isinstance(vision, Mapping)):
        return {}
    if "hidden_size" not in text:
        return {}
    if "out_hidden_size" in vision:
        return {"vision_config": {**vision, "out_hidden_size": text["hidden_size"]}}
    if "embed_dim" in vision and "hidden_size" in vision:
        return {"vision_config": {**vision, "hidden_size": text["hidden_size"]}}
    return {}


def merged_patches(part: Part) -> Update:
    """The patches of an image divide by how many are merged.

    >>> vision = {"image_size": 112, "patch_size": 14}
    >>> merged_patches({"text_config": {}, "vision_config": vision, "scale_factor": 3})["vision_config"]
    {'image_size': 84, 'patch_size': 14}
    """
    vision, merged = part.get("vision_config"), part.get("scale_factor")
    if not (isinstance(part.get("text_config"), Mapping) and isinstance(vision, Mapping)):
        return {}
    side, patch = vision.get("image_size"), vision.get("patch_size")
    if not (isinstance(merged, int) and isinstance(side, int) and isinstance(patch, int)):
        return {}
    sides = patch * merged
    return {"vision_config": {**vision, "image_size": sides * max(1, side // sides)}}


def channels_of_encoders(part: Part) -> Update:
    """The channels of the first of two encoders end in the width of the second."""
    first, second = part.get("sam_config"), part.get("encoder_config")
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return {}
    channels = first.get("downsample_channels")
    if not isinstance(channels, list):
        return {}
    return {"sam_config": {**first, "downsample_channels": [*channels[:-1], second["hidden_size"]]}}


def _open(part: Part, key: str) -> bool:
    """True for a setting that is there, without a value."""
    return key in part and part[key] is None


def _heads(part: Part) -> int | None:
    return next((part[key] for key in HEADS if isinstance(part.get(key), int)), None)


def _depth(part: Part) -> int:
    return max((part[key] for key in LAYERS if isinstance(part.get(key), int)), default=0)


RULES = (
    experts,
    kinds_of_layers,
    attention_somewhere,
    rotary_of_kinds,
    attention_apart,
    media_tokens,
    windows,
    vocabulary,
    chosen_by_default,
    image_words,
)
LAST_RULES = (
    heads_of_keys,
    size_of_heads,
    indexers,
    sections_of_places,
    widths_of_features,
    merged_patches,
    channels_of_encoders,
)
