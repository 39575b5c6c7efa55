"""Natural uses of models, by what their ``forward`` takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onlooker import UnsupportedError
from onlooker.zoo.uses import OTHER, PADDED, natural_use


class Reader(torch.nn.Module):
    """Reads texts and nothing else."""

    config = SimpleNamespace(vocab_size=50, get_text_config=lambda: SimpleNamespace(vocab_size=50))

    def __init__(self, longest: int = 100) -> None:
        super().__init__()
        self.longest = longest
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        if input_ids.shape[1] > self.longest:
            raise ValueError("the text is too long")
        self.shapes.append(tuple(input_ids.shape))
        return input_ids * attention_mask


def test_two_uses_differ_in_every_size_and_one_is_padded() -> None:
    model = Reader()
    use = natural_use(model)
    assert (use.story, use.generates) == ("call with input_ids", False)
    assert model.shapes == [(2, 10), (1, 13)]
    assert use.inputs(model, PADDED)["attention_mask"].sum(1).tolist() == [7, 10]
    assert use.inputs(model, OTHER)["attention_mask"].all()


def test_a_use_must_be_taken_in_every_size() -> None:
    with pytest.raises(UnsupportedError, match="call with input_ids: ValueError: the text is too long") as refused:
        natural_use(Reader(longest=12))
    assert refused.value.slug == "no-natural-use"


class Listener(torch.nn.Module):
    """Hears frames of a width that no setting says."""

    config = SimpleNamespace()

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(160, 8)

    def forward(self, input_features: torch.Tensor) -> Any:
        return self.projection(input_features)


def test_a_spectrogram_has_the_width_of_the_first_layer() -> None:
    model = Listener()
    use = natural_use(model)
    assert tuple(use.inputs(model, PADDED)["input_features"].shape) == (2, 160, 160)
    assert tuple(use.run(model, OTHER).shape) == (1, 208, 8)


class PageReader(Reader):
    """Wants to know where words stand, though its signature says that it need not."""

    def forward(self, input_ids: torch.Tensor, bbox: Any = None, attention_mask: Any = None) -> torch.Tensor:
        if bbox is None:
            raise ValueError("You have to specify bbox")
        return input_ids + bbox.float().mean(-1)


def test_words_on_a_page_have_boxes_where_the_model_wants_them() -> None:
    model = PageReader()
    use = natural_use(model)
    assert use.story == "call with input_ids, bbox"
    given = use.inputs(model, OTHER)
    assert given["bbox"].shape == (1, 13, 4)
    assert (given["bbox"][..., 2:] > given["bbox"][..., :2]).all()


class Seer(torch.nn.Module):
    """Takes the patches of images with their grid and a mask."""

    config = SimpleNamespace(patch_size=8)
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Any = None, pixel_attention_mask: Any = None, spatial_shapes: Any = None) -> Any:
        assert pixel_values.shape[-1] == 3 * 8 * 8
        assert (spatial_shapes.prod(-1) == pixel_attention_mask.sum(-1)).all()
        return pixel_values * pixel_attention_mask[..., None]


def test_patches_have_their_mask_and_their_grid() -> None:
    assert natural_use(Seer()).story == "call with pixel_values, pixel_attention_mask, spatial_shapes"
