"""Tiny models with random weights that generate text, and what a user runs on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers

from onlooker.zoo.draw import padding_mask, random_ids, randomised

VOCABULARY = 256
IMAGE_TOKEN = 250
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,  # a tied model of random weights repeats its last token
}


@dataclass(frozen=True)
class Generator:
    """A model whose ``generate`` is used, and the object in it that is watched and replaced.

    ``inputs(padding, length, seed)`` are the arguments of ``generate``, one row per item of
    ``padding``.
    """

    name: str
    model: Any
    watched: Any
    inputs: Callable[[tuple[int, ...], int, int], dict[str, Any]]

    def generate(
        self, padding: tuple[int, ...], length: int, seed: int = 0, **options: Any
    ) -> torch.Tensor:
        """The tokens that ``generate`` gives."""
        settings = {
            "do_sample": False,
            "max_new_tokens": 4,
            "pad_token_id": 0,
            "eos_token_id": None,
            **options,
        }
        with torch.no_grad():
            tokens: torch.Tensor = self.model.generate(
                **self.inputs(padding, length, seed), **settings
            )
        return tokens

    def observe(self) -> None:
        """What the user does once: a plain generate of two rows, the first one padded."""
        self.generate((3, 0), 10)


def _prompt(left: bool, padding: tuple[int, ...], length: int, seed: int) -> dict[str, Any]:
    mask = padding_mask(padding, length, left=left)
    ids = random_ids(len(padding), length, IMAGE_TOKEN - 1, seed).masked_fill(mask == 0, 0)
    return {"input_ids": ids, "attention_mask": mask}


def _decoder(name: str, **changes: Any) -> Generator:
    config = transformers.AutoConfig.for_model(name, **{**_TEXT, **changes})
    model: Any = randomised(partial(transformers.AutoModelForCausalLM.from_config, config))
    return Generator(name, model, model, partial(_prompt, True))


def _gpt2() -> Generator:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        bos_token_id=1,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model: Any = randomised(partial(transformers.GPT2LMHeadModel, config))
    return Generator("gpt2", model, model, partial(_prompt, True))


def _mamba2() -> Generator:
    config = transformers.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=8,
        state_size=8,
        expand=2,
        n_groups=2,
        chunk_size=8,
        conv_kernel=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model: Any = randomised(partial(transformers.Mamba2ForCausalLM, config))
    return Generator("mamba2", model, model, partial(_prompt, True))


def _t5(layers: int = 2) -> Generator:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=layers,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    model: Any = randomised(partial(transformers.T5ForConditionalGeneration, config))
    return Generator("t5", model, model, partial(_prompt, False))


def _whisper() -> Generator:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=30,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        suppress_tokens=None,
        tie_word_embeddings=False,
    )
    model: Any = randomised(partial(transformers.WhisperForConditionalGeneration, config))
    model.generation_config.forced_decoder_ids = None

    def inputs(padding: tuple[int, ...], length: int, seed: int) -> dict[str, Any]:
        features = torch.randn(len(padding), 8, 60, generator=torch.Generator().manual_seed(seed))
        return {"input_features": features}

    return Generator("whisper", model, model, inputs)


def _llava() -> Generator:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 32,
    }
    config = transformers.LlavaConfig(
        text_config={**_TEXT, "model_type": "llama"},
        vision_config=vision,
        image_token_id=IMAGE_TOKEN,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        pad_token_id=0,
    )
    model: Any = randomised(partial(transformers.LlavaForConditionalGeneration, config))

    def inputs(padding: tuple[int, ...], length: int, seed: int) -> dict[str, Any]:
        given = _prompt(True, padding, length, seed)
        image = torch.full((len(padding), 16), IMAGE_TOKEN)
        pixels = torch.randn(len(padding), 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        ids = torch.cat([given["input_ids"][:, :-2], image, given["input_ids"][:, -2:]], dim=1)
        mask = torch.cat([given["attention_mask"], torch.ones_like(image)], dim=1)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}

    return Generator("llava", model, model.model.language_model, inputs)


#: name -> builder; the window of gemma3 is shorter than every prompt
GENERATORS: dict[str, Callable[..., Generator]] = {
    "llama": partial(_decoder, "llama"),
    "gpt2": _gpt2,
    "gemma3": partial(
        _decoder,
        "gemma3_text",
        head_dim=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
    ),
    "mamba2": _mamba2,
    "t5": _t5,
    "whisper": _whisper,
    "llava": _llava,
}
