"""Tiny models of 24 architectures of transformers with random weights, and a natural use of each."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from sweep_measure import NotBuilt, Use, recorded, text_of
from sweep_transformers import SEED, drawn, natural_uses

VOCABULARY = 256
_IMAGE_TOKEN = 250
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_DECODER = {
    **_TOKENS,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_ENCODER = {key: value for key, value in _DECODER.items() if key != "num_key_value_heads"}
_SMALL = {**_TOKENS, "vocab_size": VOCABULARY}
_BOTH = {
    **_SMALL,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
_TEXT = {**_DECODER, "head_dim": 8}
_SECTIONS = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}

Configuration = tuple[str, dict[str, Any]]
#: name, which is the type of the configuration -> the Auto class, and what is set
MODELS: dict[str, Configuration] = {
    "llama": ("CausalLM", _DECODER),
    "mistral": ("CausalLM", {**_DECODER, "sliding_window": 64}),
    "qwen3": ("CausalLM", _TEXT),
    "gemma3_text": ("CausalLM", {**_TEXT, **_MIXED, "query_pre_attn_scalar": 8}),
    "phi3": ("CausalLM", {**_DECODER, "num_key_value_heads": 4}),
    "gpt2": ("CausalLM", {**_SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "bloom": ("CausalLM", {**_SMALL, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": (
        "CausalLM",
        {
            **_ENCODER,
            "ffn_hidden_size": 64,
            "alibi": False,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
        },
    ),
    "mixtral": ("CausalLM", {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "CausalLM",
        {**_TEXT, **_MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba2": (
        "CausalLM",
        {
            **_SMALL,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "expand": 2,
            "n_groups": 2,
            "chunk_size": 8,
            "conv_kernel": 4,
        },
    ),
    "lfm2": (
        "CausalLM",
        {**_DECODER, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    "t5": (
        "Seq2SeqLM",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": ("Seq2SeqLM", {**_BOTH, "max_position_embeddings": 128}),
    "whisper": (
        "SpeechSeq2Seq",
        {
            **_BOTH,
            "num_mel_bins": 8,
            "max_source_positions": 30,
            "max_target_positions": 64,
            "begin_suppress_tokens": None,
            "suppress_tokens": None,
        },
    ),
    "bert": ("", _ENCODER),
    "modernbert": ("", {**_ENCODER, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}),
    "vit": ("ImageClassification", _IMAGE),
    "swin": (
        "",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "clip": (
        "",
        {
            "text_config": {**_ENCODER, "max_position_embeddings": 32, "projection_size": 32},
            "vision_config": _IMAGE,
            "projection_dim": 32,
        },
    ),
    "wav2vec2": (
        "CTC",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "conv_dim": [16, 16],
            "conv_stride": [5, 4],
            "conv_kernel": [10, 4],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
    "llava": (
        "ImageTextToText",
        {
            "text_config": {**_TEXT, "model_type": "llama"},
            "vision_config": {**_IMAGE, "model_type": "clip_vision_model", "projection_dim": 32},
            "image_token_index": _IMAGE_TOKEN,
            "image_token_id": _IMAGE_TOKEN,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
        },
    ),
    "qwen2_vl": (
        "ImageTextToText",
        {
            "text_config": {**_TEXT, "rope_parameters": _SECTIONS, "rope_scaling": _SECTIONS},
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "num_heads": 4,
                "mlp_ratio": 2,
                "patch_size": 4,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "in_channels": 3,
            },
            "image_token_id": _IMAGE_TOKEN,
            "video_token_id": 251,
            "vision_start_token_id": 252,
            "vision_end_token_id": 253,
        },
    ),
    "gemma3": (
        "ImageTextToText",
        {
            "text_config": {
                **_TEXT,
                **_MIXED,
                "model_type": "gemma3_text",
                "query_pre_attn_scalar": 8,
            },
            "vision_config": {**_IMAGE, "model_type": "siglip_vision_model"},
            "mm_tokens_per_image": 4,
            "image_token_id": _IMAGE_TOKEN,
            "image_token_index": _IMAGE_TOKEN,
            "boi_token_index": 251,
            "eoi_token_index": 252,
        },
    ),
}


def model_of(name: str) -> Any:
    """The model, in eval mode; the same weights every time."""
    import transformers

    head, values = MODELS[name]
    values = copy.deepcopy(values)
    if head == "CausalLM":
        values = {**values, "eos_token_id": None}  # a random model must not end by chance
    config = transformers.AutoConfig.for_model(name, **values)
    torch.manual_seed(SEED)
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    return drawn(auto.from_config(config).eval())


def use_of(name: str) -> Use:
    """The first natural use that the model takes, also at a size that is not watched.

    :raises NotBuilt: with what it says to each use
    """
    model, errors = model_of(name), []
    for use in natural_uses(model):
        try:
            trial = copy.deepcopy(model)
            if recorded(trial, use.watch) and [recorded(trial, run) for run in use.unseen[:2]]:
                return replace(use, passed_over=tuple(errors))
        except Exception as error:
            errors.append(f"{use.story}: {text_of(error)[:160]}")
    raise NotBuilt(" | ".join(errors)[:900])
