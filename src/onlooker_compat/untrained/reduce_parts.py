"""What each kind of hyper-parameter becomes: layers, heads, rotary embeddings, experts,
positions, images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "FACTORED",
    "HEADS",
    "LAYERS",
    "SINGLE_LAYERS",
    "STAGE_WIDTHS",
    "TOKENS_PER_IMAGE",
    "WIDTHS",
    "chosen_layers",
    "head_size",
    "image_sides",
    "reduced_experts",
    "reduced_filters",
    "reduced_heads",
    "reduced_image",
    "reduced_inner_heads",
    "reduced_layers",
    "reduced_positions",
    "reduced_rope",
    "reduced_sides",
    "reduced_stages",
]

Part = Mapping[str, Any]
Update = dict[str, Any]

#: numbers of layers
LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
)
#: the kinds of all layers
KINDS = ("layer_types", "layers_block_type")

#: widths, which all follow one factor
# fmt: off
WIDTHS = frozenset(
    {
        "hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
        "d_model", "d_ff", "d_kv", "dim", "hidden_dim", "n_embd", "n_inner", "embed_dim", "embedding_size",
        "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "block_ff_dim", "block_dim", "conv_dim",
        "projection_dim", "projection_size", "word_embed_proj_dim", "encoder_hidden_size",
        "image_text_hidden_size", "pooler_output_size", "classifier_proj_size", "tdnn_dim",
        "xvector_output_dim", "proj_codevector_dim", "codevector_dim", "num_pos_feats", "output_hidden_size",
        "output_channels", "fusion_hidden_size", "iou_head_hidden_dim", "time_step_rank", "q_lora_rank",
        "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim", "ffn_hidden_size",
        "upsample_groups", "expert_ffn_hidden_size", "fpn_hidden_size", "vit_dim", "o_lora_rank",
        "upsample_initial_channel", "mamba_d_ssm",
    }
)
# fmt: on
#: lists of widths that follow the common factor
FACTORED = frozenset({"conv_dim", "embed_dim_per_stage", "backbone_channel_list"})
#: widths of stages
STAGE_WIDTHS = frozenset({"hidden_sizes", "neck_hidden_sizes"})
STAGE_WIDTH = frozenset({"decoder_hidden_size"})

#: the widest stage of a codec of sounds, whose widths double from stage to stage, and what it becomes
WIDEST_STAGE, STAGE = 1024, 256

TOKENS_PER_IMAGE = frozenset(
    {"mm_tokens_per_image", "image_seq_length", "image_seq_len", "num_image_tokens"}
)

#: a list of as many values as there are layers says something of each layer, by chance only in
#: models of few layers
LONG = 12
#: indices of layers
LAYER_INDICES = (
    "global_attn_indexes",
    "backbone_out_indices",
    "fullatt_block_indexes",
    "mlp_only_layers",
    "full_attn_idxs",
    "attn_layer_indices",
)
#: layers of linear attention, and those that have attention as well: beside linear layers, they share
#: its weights, so that there must be two of them
LINEAR, SHARED = "linear_attention", "hybrid"
HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
#: heads inside of linear attention, and of an indexer, whose heads have a rotary part as well; heads
#: and states of state-space layers; rounds of a normalization that is repeated
INNER_HEADS = {
    **dict.fromkeys(("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16),
    "index_n_heads": 4,
    "index_head_dim": 32,
    "mamba_n_heads": 4,
    "hc_sinkhorn_iters": 4,
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 16),
}
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
WIDTH_OF_HEADS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")

#: what the numbers of blocks of all stages are multiplied by
COEFFICIENT = "depth_coefficient"
#: settings of single layers, by their number
SINGLE_LAYERS = "per_layer_config"
#: how many layers use the keys and values of layers before them
SHARING = "num_kv_shared_layers"

PATCHES = 8
PIXELS = 64


def chosen_layers(part: Part) -> list[int] | None:
    """The layers that are kept: the first of each kind, two or as many as are read; None without
    layers.

    >>> chosen_layers({"num_hidden_layers": 4, "layer_types": ["sliding", "sliding", "full", "sliding"]})
    [0, 2]
    >>> chosen_layers({"num_hidden_layers": 1})
    [0]
    >>> chosen_layers({"layers_block_type": ["mamba", "moe", "mamba", "attention", "moe"]})
    [0, 1, 3]
    >>> chosen_layers({"num_hidden_layers": 4, "kv_source_layers": [0, 1, 2, 2]})
    [0, 3]
    """
    depth = _depth_of(part)
    if not depth:
        return None
    columns = [_kinds_of_layers(value) for value in _layer_lists(part, depth).values()]
    rows = list(zip(*columns, strict=True)) or [()] * depth
    shared = any(LINEAR in row for row in rows)
    kept = [
        index
        for index, row in enumerate(rows)
        if rows[:index].count(row) < (2 if shared and SHARED in row else 1)
    ]
    others = [index for index in range(depth) if index not in kept]
    wanted = max(2, len(part.get("backbone_out_indices") or ()))
    return sorted(kept + others[: max(0, wanted - len(kept))])


def _depth_of(part: Part) -> int:
    """The number of layers, which the list of their kinds says where no number does."""
    numbers = [part[key] for key in LAYERS if isinstance(part.get(key), int)]
    kinds = [part[key] for key in KINDS if isinstance(part.get(key), (list, tuple))]
    return max(numbers or map(len, kinds), default=0)


def _layer_lists(part: Part, depth: int) -> dict[str, Sequence[Any]]:
    """The lists that say something of each layer."""
    return {
        key: value
        for key, value in part.items()
        if isinstance(value, (list, tuple))
        and len(value) == depth
        and ("layer" in key or key.endswith("_types") or depth >= LONG)
        and key not in LAYER_INDICES
    }


def _are_sources(values: Sequence[Any]) -> bool:
    """True for a list that names a layer for each layer, itself or one before it: whose keys and
    values it takes.

    >>> _are_sources([0, 1, 2, 2]), _are_sources([1, 1, 1, 0]), _are_sources([0, 1, 1, 1])
    (True, False, False)
    """
    are_layers = all(type(value) is int and 0 <= value <= i for i, value in enumerate(values))
    return are_layers and max(values) > 1


def _kinds_of_layers(values: Sequence[Any]) -> Sequence[Any]:
    """Returns what a list says of each layer: of a list of layers whether a layer has its own."""
    if not _are_sources(values):
        return values
    return ["own" if value == i else "shared" for i, value in enumerate(values)]


def _of_kept_layers(values: Sequence[Any], kept: Sequence[int]) -> list[Any]:
    """Returns the items of a list that are about the layers that are kept; layers are those that are
    left, or the last one before.

    >>> _of_kept_layers(["dense", "sparse", "sparse"], [0, 2]), _of_kept_layers([0, 1, 2, 2], [0, 3])
    (['dense', 'sparse'], [0, 0])
    """
    found = [values[index] for index in kept]
    if not _are_sources(values):
        return found
    return [sum(index <= source for index in kept) - 1 for source in found]


def reduced_layers(part: Part, kept: list[int] | None) -> Update:
    """Numbers, lists and indices of the layers that are kept.

    >>> reduced_layers({"depth_coefficient": 3.1}, None)
    {'depth_coefficient': 1.0}
    """
    update: Update = {}
    if isinstance(part.get(COEFFICIENT), float):
        update[COEFFICIENT] = min(part[COEFFICIENT], 1.0)
    if kept is None:
        return update
    depth = _depth_of(part)
    update |= {key: min(part[key], len(kept)) for key in LAYERS if isinstance(part.get(key), int)}
    update.update(
        {k: _of_kept_layers(value, kept) for k, value in _layer_lists(part, depth).items()}
    )
    update.update(_of_single_layers(part, depth, kept))
    last = len(kept) - 1
    for key in LAYER_INDICES:
        if isinstance(part.get(key), (list, tuple)) and depth > 1:
            update[key] = [
                index if index < 0 else index * last // (depth - 1) for index in part[key]
            ]
    update.update(_reduced_patterns(part, depth, len(kept)))
    if isinstance(part.get(SHARING), int):
        update[SHARING] = part[SHARING] * len(kept) // depth
    if isinstance(part.get("first_k_dense_replace"), int):
        update["first_k_dense_replace"] = min(part["first_k_dense_replace"], last)
    if part.get("attention_types"):  # [[kinds, repeats]]: each kind once
        kinds = list(dict.fromkeys(kind for names, _ in part["attention_types"] for kind in names))
        update["attention_types"] = [[kinds, 1]]
        update.update({key: len(kinds) for key in LAYERS if key in update})
        update["attention_layers"] = kinds
    return update


def _of_single_layers(part: Part, depth: int, kept: list[int]) -> Update:
    """Settings of single layers, by their number: those of the layers that are kept.

    >>> _of_single_layers({"per_layer_config": {"02": {"width": 8}, "3": {}}}, 4, [0, 2])
    {'per_layer_config': {'1': {'width': 8}}}
    """
    settings = part.get(SINGLE_LAYERS)
    if not isinstance(settings, Mapping) or depth <= len(kept):
        return {}
    by_number = {int(number): value for number, value in settings.items()}
    found = {str(new): by_number[old] for new, old in enumerate(kept) if old in by_number}
    return {SINGLE_LAYERS: found}


def _reduced_patterns(part: Part, depth: int, kept: int) -> Update:
    """Patterns that are repeated over the layers: each kind of layer is still there.

    >>> _reduced_patterns({"moe_layer_period": 8, "moe_layer_offset": 4}, 32, 2)
    {'moe_layer_period': 2, 'moe_layer_offset': 1}
    >>> _reduced_patterns({"block_types": ["rnn", "rnn", "attention"]}, 26, 2)
    {'block_types': ['rnn', 'attention']}
    """
    update: Update = {}
    for key, period in part.items():
        offset = part.get(key.removesuffix("_period") + "_offset")
        if key.endswith("_layer_period") and isinstance(period, int) and isinstance(offset, int):
            update[key] = max(1, min(period, kept))
            update[key.removesuffix("_period") + "_offset"] = min(offset, update[key] - 1)
        repeated = isinstance(period, list) and 1 < len(period) < depth
        if key.endswith("_types") and repeated and all(isinstance(kind, str) for kind in period):
            update[key] = list(dict.fromkeys(period))
    return update


def reduced_stages(part: Part) -> Update:
    """At most two blocks per stage; windows keep their share of the image."""
    if not isinstance(part.get("depths"), (list, tuple)):
        return {}
    wide = {key: max(16, part[key] // 4) for key in STAGE_WIDTH if isinstance(part.get(key), int)}
    update = {"depths": [min(depth, 2) for depth in part["depths"]], **wide}
    if isinstance(part.get("window_size"), int) and image_sides(part):
        before, after = image_sides(part), image_sides({"image_size": reduced_image(part)})
        update["window_size"] = max(1, part["window_size"] * after[0] // before[0])
    return update


def reduced_filters(part: Part) -> Update:
    """Fewer filters in the first stage of a codec whose widths double from stage to stage.

    >>> reduced_filters({"num_filters": 32, "downsampling_ratios": [2, 2, 4, 5, 5, 8]})
    {'num_filters': 4}
    """
    filters, ratios = part.get("num_filters"), part.get("downsampling_ratios")
    if not isinstance(filters, int) or not isinstance(ratios, (list, tuple)):
        return {}
    stages = 2 ** len(ratios)
    return {"num_filters": max(4, STAGE // stages)} if filters * stages > WIDEST_STAGE else {}


def head_size(part: Part) -> int | None:
    """The size of a head, given or computed."""
    given = part.get("qk_rope_head_dim") or part.get("head_dim")
    if isinstance(given, int):
        return given
    heads = next((part[key] for key in HEADS if isinstance(part.get(key), int)), None)
    width = next((part[key] for key in WIDTH_OF_HEADS if isinstance(part.get(key), int)), None)
    return width // heads if heads and width else None


def reduced_heads(before: Part, after: Part) -> Update:
    """Heads that divide the reduced width.

    >>> reduced_heads({"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}, {"hidden_size": 64})
    {'num_attention_heads': 4, 'num_key_value_heads': 2}
    """
    update: Update = {}
    for key in HEADS:
        if isinstance(before.get(key), int):
            update[key] = next(count for count in (4, 2, 1) if count <= before[key])
    heads = next((key for key in HEADS if key in update), None)
    if heads is None:
        return update
    for key in KEY_VALUE_HEADS:
        if isinstance(before.get(key), int):
            between = 1 if before[key] == 1 else min(2, update[heads])
            update[key] = update[heads] if before[key] == before[heads] else between
    width = next((key for key in WIDTH_OF_HEADS if isinstance(before.get(key), int)), None)
    if isinstance(before.get("head_dim"), int) and width is not None:
        update["head_dim"] = min(before["head_dim"], max(16, after[width] // update[heads]))
        if before.get("qk_rope_head_dim"):  # latent attention: the head is its rotary part
            update["head_dim"] = after["qk_rope_head_dim"]
    return update


def reduced_inner_heads(part: Part) -> Update:
    """Heads of linear attention, fewer of keys where there are, and of what chooses tokens.

    >>> reduced_inner_heads({"linear_num_key_heads": 16, "linear_num_value_heads": 32, "index_head_dim": 128})
    {'linear_num_key_heads': 2, 'linear_num_value_heads': 4, 'index_head_dim': 32}
    """
    update: Update = {
        key: min(part[key], most)
        for key, most in INNER_HEADS.items()
        if isinstance(part.get(key), int)
    }
    keys, values = part.get("linear_num_key_heads"), part.get("linear_num_value_heads")
    if isinstance(keys, int) and isinstance(values, int) and keys < values:
        update["linear_num_key_heads"] = min(keys, 2)
    return update


def reduced_rope(part: Part, before: int | None, after: int | None) -> Update:
    """Returns the settings of a rotary embedding about the size of a head, at another size."""
    if not before or not after or before == after:
        return {}
    update: Update = {}
    if isinstance(part.get("rotary_dim"), int):
        update["rotary_dim"] = max(2, part["rotary_dim"] * after // before // 2 * 2)
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(part.get(key), Mapping):
            update[key] = {
                name: _rope_value(name, v, before, after) for name, v in part[key].items()
            }
    return update


def _rope_value(name: str, value: Any, before: int, after: int) -> Any:
    if isinstance(value, Mapping):
        return {inner: _rope_value(inner, v, before, after) for inner, v in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if name.endswith("section"):
        return [max(1, size * after // before) for size in value]
    return list(value[: len(value) * after // before])


def reduced_experts(part: Part) -> Update:
    """Few experts; as many groups as have two of them."""
    update: Update = {}
    for keys, most in (
        (("num_local_experts", "num_experts", "n_routed_experts"), 4),
        (("zero_expert_num",), 4),
        (("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk"), 2),
        (("n_group", "num_expert_group"), 2),
        (("topk_group",), 1),
    ):
        update.update({key: min(part[key], most) for key in keys if isinstance(part.get(key), int)})
    return update


def reduced_positions(part: Part) -> Update:
    """Tables of learned positions, and of the queries that stand for an image."""
    limits = {"max_source_positions": 64, "latent_query_num": 4}
    if not part.get("rope_parameters"):
        limits |= {
            "max_position_embeddings": 512,
            "n_positions": 512,
            "n_ctx": 512,
            "max_target_positions": 512,
        }
    return {
        key: min(part[key], limit)
        for key, limit in limits.items()
        if isinstance(part.get(key), int)
    }


def image_sides(part: Part) -> list[int]:
    """``[height, width]``, or nothing."""
    size = part.get("image_size")
    if isinstance(size, int):
        return [size, size]
    return [int(side) for side in size] if isinstance(size, (list, tuple)) else []


def reduced_sides(images: Sequence[Part]) -> dict[int, int]:
    """Returns sides of images and what they become, the same for all parts that have one.

    >>> reduced_sides([{"image_size": 1024, "patch_size": 16}, {"image_size": [1024, 1024]}])
    {1024: 128}
    """
    found: dict[int, int] = {}
    for part in images:
        for before, after in zip(
            image_sides(part), image_sides({"image_size": reduced_image(part)}), strict=True
        ):
            found[before] = max(after, found.get(before, 0))
    return found


def reduced_image(part: Part) -> int | list[int]:
    """Sides of few patches.

    >>> reduced_image({"image_size": 224, "patch_size": 16}), reduced_image({"image_size": 224, "patch_size": 4})
    (128, 64)
    """
    patch = part.get("patch_size") or 1
    patch = patch if isinstance(patch, int) else max(patch)
    most = max(PATCHES, -(-PIXELS // patch)) * patch
    sides = [min(side, most) for side in image_sides(part)]
    return sides[0] if isinstance(part["image_size"], int) else sides
