"""One program for the blocks of published architectures: a decoder, and transformers of diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import onlooker

#: rows, and two lengths: of tokens or of a side of a picture, and of a text, which is filled up
Sizes = tuple[int, int, int]
Model = tuple[torch.nn.Module, dict[str, Any], Callable[..., torch.Tensor]]


def llama() -> Model:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaModel(LlamaConfig(num_hidden_layers=3, **sizes, **heads)).eval()

    def call(rows: int, length: int, _: int) -> torch.Tensor:
        ids = torch.randint(50, (rows, length))
        states: torch.Tensor = model(ids, use_cache=False).last_hidden_state
        return states

    return model, {"block": model.layers}, call


def flux() -> Model:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()

    def call(rows: int, length: int, words: int) -> torch.Tensor:
        given = {
            "hidden_states": torch.randn(rows, length, 4),
            "encoder_hidden_states": torch.randn(rows, words, 32),
            "pooled_projections": torch.randn(rows, 32),
            "timestep": torch.rand(rows),
            "img_ids": torch.randn(length, 3),
            "txt_ids": torch.zeros(words, 3),
        }
        noise: torch.Tensor = model(**given, return_dict=False)[0]
        return noise

    blocks = {"block": model.transformer_blocks, "single": model.single_transformer_blocks}
    return model, blocks, call


def qwen_image() -> Model:
    pytest.importorskip("diffusers", reason="diffusers is not installed, whose transformer is watched here")
    from diffusers import QwenImageTransformer2DModel

    model = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    ).eval()

    def call(rows: int, side: int, words: int) -> torch.Tensor:
        given = {
            "hidden_states": torch.randn(rows, side * side, 16),
            "encoder_hidden_states": torch.randn(rows, words, 16),
            "encoder_hidden_states_mask": torch.ones(rows, words, dtype=torch.long),
            "timestep": torch.rand(rows),
            "img_shapes": [(1, side, side)] * rows,
        }
        noise: torch.Tensor = model(**given, return_dict=False)[0]
        return noise

    return model, {"block": model.transformer_blocks}, call


@pytest.mark.parametrize(
    ("make", "target"),
    [
        pytest.param(llama, "torch", marks=pytest.mark.slow),
        pytest.param(llama, "aoti", marks=pytest.mark.slow),
        pytest.param(flux, "torch", marks=pytest.mark.slow),
        pytest.param(flux, "aoti", marks=pytest.mark.slow),
        pytest.param(qwen_image, "torch"),
        pytest.param(qwen_image, "aoti", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::onlooker.OnlookerWarning")
def test_all_blocks_run_on_one_program(make: Callable[[], Model], target: str) -> None:
    torch.manual_seed(0)
    _, entries, call = make()
    unseen: Sizes = (3, 7, 8)
    with torch.no_grad():
        with onlooker.observe(**entries) as observers:
            for sizes in ((1, 4, 8), (2, 6, 8)):
                call(*sizes)
        programs = observers.export()
        assert list(programs) == list(entries)
        if target != "torch":
            programs = programs.to(target)
        tallies = programs.verify()
        assert tallies.verified, tallies
        torch.manual_seed(1)
        want = call(*unseen)
        with programs.installed() as served:
            torch.manual_seed(1)
            got = call(*unseen)
    assert torch.allclose(got, want, atol=1e-5)
    n_blocks = {name: len(blocks) for name, blocks in entries.items()}
    assert {name: sum(one.calls.values()) for name, one in served.items()} == n_blocks
