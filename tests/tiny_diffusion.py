"""A tiny Stable Diffusion of diffusers, from configurations, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

#: tokens of a prompt, with what it is filled up with
PROMPT_TOKENS = 77


def tokenizer(folder: Path) -> tuple[Any, int]:
    """A CLIP tokenizer over bytes, whose files go into a folder, and the size of its vocabulary."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({word: index for index, word in enumerate(words)}))
    merges.write_text("#version: 0.2\n")
    return CLIPTokenizer(str(vocabulary), str(merges), model_max_length=PROMPT_TOKENS), len(words)


def text_encoder(words: int, width: int) -> Any:
    """A CLIP text encoder of two layers."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=2,
        num_hidden_layers=2,
        vocab_size=words,
        bos_token_id=words - 2,
        eos_token_id=words - 1,
        pad_token_id=words - 1,
        max_position_embeddings=PROMPT_TOKENS,
    )
    return CLIPTextModel(config)


def stable_diffusion(folder: Path, channels: tuple[int, ...] = (8,), width: int = 16) -> Any:
    """The pipeline: ``channels`` are those of the levels of its unet, of which the first has attention
    and the last has none where there are several; ``width`` is that of the states of its text encoder.
    """
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    torch.manual_seed(0)
    words, count = tokenizer(folder)
    with_attention = len(channels) - 1 or 1
    plain = len(channels) - with_attention
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",) * with_attention + ("DownBlock2D",) * plain,
        up_block_types=("UpBlock2D",) * plain + ("CrossAttnUpBlock2D",) * with_attention,
        cross_attention_dim=width,
        norm_num_groups=2,
        attention_head_dim=2,
    )
    vae = AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=2,
    )
    return StableDiffusionPipeline(
        unet=unet.eval(),
        vae=vae.eval(),
        text_encoder=text_encoder(count, width).eval(),
        tokenizer=words,
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
