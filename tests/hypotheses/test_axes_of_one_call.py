"""From one call of batch 1, the axes that may change: batch, sequence, sides of an image where the net allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from onlooker import InputObserver, Plan

TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": 32, "patch_size": 8}
TEXT = {**TOWER, "vocab_size": 64, "max_position_embeddings": 64}


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**TEXT))


def vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**VISION))


def clip() -> Any:
    text = {**TEXT, "bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 0}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))


def wav2vec2() -> Any:
    config = transformers.Wav2Vec2Config(
        **TOWER,
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 2, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
    )
    return transformers.Wav2Vec2Model(config)


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 4, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


IDS = torch.arange(7).reshape(1, 7) * 5 + 3
ONES, ZEROS = torch.ones(1, 7, dtype=torch.int64), torch.zeros(1, 7, dtype=torch.int64)
IMAGE = random(1, 3, 32, 32)

#: a model, its one call, and per argument a word per axis: ``*`` may change, a number may not
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, str]]] = {
    "bert": (
        bert,
        {"input_ids": IDS, "attention_mask": ONES, "token_type_ids": ZEROS},
        {"input_ids": "* *", "attention_mask": "* *", "token_type_ids": "* *"},
    ),
    "bert without a mask": (bert, {"input_ids": IDS}, {"input_ids": "* *", "attention_mask": "* *"}),
    "vit": (vit, {"pixel_values": IMAGE}, {"pixel_values": "* 3 32 32"}),
    "vit of any size": (
        vit,
        {"pixel_values": IMAGE, "interpolate_pos_encoding": True},
        {"pixel_values": "* 3 * *"},
    ),
    "clip": (
        clip,
        {"input_ids": IDS, "attention_mask": ONES, "pixel_values": IMAGE},
        {"input_ids": "* *", "attention_mask": "* *", "pixel_values": "* 3 32 32"},
    ),
    "wav2vec2": (wav2vec2, {"input_values": random(1, 800)}, {"input_values": "* *", "attention_mask": "* *"}),
    "convolutions": (convolutions, {"input": IMAGE}, {"input": "* 3 * *"}),
    "perceptron": (perceptron, {"input": random(1, 6)}, {"input": "* 6"}),
}


def watched(name: str) -> tuple[InputObserver, Any]:
    make, call, _ = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(**call)
    return observer, model


def words(plan: Plan) -> dict[str, str]:
    return {
        leaf.path.code(): " ".join(str(size) if size.is_constant else "*" for size in leaf.shape)
        for leaf in plan.inputs
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_one_call_of_batch_one_gives_the_right_axes(name: str) -> None:
    observer, _ = watched(name)
    (plan,) = observer.plans()
    assert words(plan) == CASES[name][2]


@pytest.mark.parametrize("name", ["bert", "bert without a mask", "clip"])
def test_what_belongs_together_has_one_symbol(name: str) -> None:
    observer, _ = watched(name)
    (plan,) = observer.plans()
    for dim in (0, 1):
        assert plan.leaf("input_ids").shape[dim] == plan.leaf("attention_mask").shape[dim]


def test_as_many_images_as_texts_was_chance() -> None:
    observer, model = watched("clip")
    (plan,) = observer.plans()
    assert plan.leaf("pixel_values").shape[0] != plan.leaf("input_ids").shape[0]
    ids = IDS.repeat(3, 1)
    with torch.no_grad():
        got = model(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=random(2, 3, 32, 32))
    assert got.logits_per_text.shape == (3, 2)


@pytest.mark.parametrize("name", ["convolutions", "vit of any size"])
def test_the_sides_of_a_square_image_are_two_symbols(name: str) -> None:
    observer, _ = watched(name)
    (plan,) = observer.plans()
    (image,) = plan.inputs
    assert len({str(size) for size in image.shape}) == 4


@pytest.mark.parametrize(
    ("name", "unseen"),
    [("perceptron", [(5, 6), (1, 6)]), ("convolutions", [(2, 3, 11, 40), (3, 3, 64, 17), (1, 3, 12, 11)])],
)
def test_the_program_of_one_call_is_exact_on_sizes_it_never_saw(name: str, unseen: list[tuple[int, ...]]) -> None:
    observer, model = watched(name)
    program = observer.export()
    assert program.verify().verified, program.report
    for shape in unseen:
        with torch.no_grad():
            torch.testing.assert_close(program(random(*shape)), model(random(*shape)), atol=1e-5, rtol=1e-5)


def test_the_least_size_is_found_and_no_smaller_one_is_served() -> None:
    observer, model = watched("convolutions")
    (plan,) = observer.plans()
    assert [symbol.low for symbol in plan.symbols] == [0, 11, 11]
    assert "10 is refused and 11 accepted" in plan.explain("input", 2)
    with pytest.raises(RuntimeError):
        model(random(1, 3, 10, 32))


class Faint(torch.nn.Module):
    """Layers that round what an image adds to their biases away, as those of untrained models may."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        torch.nn.init.constant_(self.convolution.weight, 1e-12)
        torch.nn.init.ones_(self.convolution.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns (batch, 4)."""
        return torch.relu(self.convolution(images)).amax((2, 3))


def test_sides_may_change_where_rounding_hides_the_image() -> None:
    torch.manual_seed(0)
    model, observer = Faint().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, 16, 16))
    program = observer.export()
    larger = torch.randn(3, 3, 24, 20)
    with torch.no_grad():
        torch.testing.assert_close(program(larger), model(larger))


class TwoLayers(torch.nn.Module):
    """Has a state for each of two layers: the first dimension of the state is as large as a batch of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(4, 6, 2, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, state = self.layers(x, (h, c))
        return found, *state


def test_as_many_layers_as_rows_of_the_batch_was_chance() -> None:
    torch.manual_seed(0)
    model, observer = TwoLayers(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 5, 4), torch.zeros(2, 2, 6), torch.zeros(2, 2, 6))
    program = observer.export()
    assert [str(size) for size in program.plans[0].inputs[1].shape] == ["2", "batch", "6"]
    for batch, length in ((1, 7), (3, 5)):
        given = torch.randn(batch, length, 4), torch.randn(2, batch, 6), torch.randn(2, batch, 6)
        with torch.no_grad():
            torch.testing.assert_close(program(*given), model(*given))
