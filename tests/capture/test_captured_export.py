"""Programs from what was recorded elsewhere, with a model that is built here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onlooker import ObservationError, UsageError
from onlooker.capture.combine import read_captured
from onlooker.capture.export import observer_of
from onlooker.capture.recorded import find_entry
from onlooker.zoo import MODELS
from recorded import written
from tiny_pipeline import Pipeline


def recorded(into: Path, *, values: bool = False) -> None:
    pipe = Pipeline()
    written(into, pipe.unet, pipe.use, values=values)


@pytest.mark.parametrize("values", [False, True])
def test_a_model_built_here_is_exported_from_calls_that_were_made_elsewhere(tmp_path: Path, values: bool) -> None:
    recorded(tmp_path, values=values)
    assert bool([*tmp_path.glob("*.safetensors")]) == values, "no values unless they were asked for"
    seen = find_entry(read_captured(tmp_path), "Denoiser")
    unet = Pipeline().unet
    observer = observer_of(seen, unet, [tmp_path])
    assert len(observer.recording()) == 4
    program = observer.export()
    assert program.verify(trials=12).verified
    sample, states = torch.randn(5, 4, 6, 7), torch.randn(5, 9, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            program(sample, torch.tensor(3), states), unet(sample, torch.tensor(3), states), rtol=0, atol=1e-6
        )


@pytest.mark.slow
def test_a_decoder_with_a_cache_is_exported_without_its_values(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tiny = MODELS["llama"]()
    written(tmp_path, tiny.model, tiny.watch)
    seen = find_entry(read_captured(tmp_path), None)
    program = observer_of(seen, MODELS["llama"]().model).export()
    assert program.verify(trials=12).verified


def test_what_values_show_is_recorded_and_nothing_else_of_them(tmp_path: Path) -> None:
    model = torch.nn.Embedding(90, 3)
    path = written(tmp_path, model, lambda: model(torch.tensor([[17, 42], [63, 5]])))
    (found,) = read_captured(tmp_path).seen[0].ranges.values()
    assert (found.path, found.low, found.high) == ("input", 5, 63)
    assert "42" not in path.read_text().replace('"pid"', "").split('"ranges"')[1].split("\n")[0]
    observer = observer_of(read_captured(tmp_path).seen[0], torch.nn.Embedding(90, 3))
    assert observer.recording().calls[0].inputs.leaves[0].shape == (2, 2)


class Sampler(torch.nn.Module):
    """Takes a generator, as the methods of pipelines do, and draws where it is told to."""

    def forward(self, z: torch.Tensor, generator: torch.Generator | None = None, draws: bool = False) -> torch.Tensor:
        return z + torch.rand(z.shape, generator=generator) if draws else z * 2


def test_a_generator_among_the_arguments_is_made_anew(tmp_path: Path) -> None:
    model, generator = Sampler(), torch.Generator().manual_seed(7)
    written(tmp_path, model, lambda: [model(torch.zeros(size, 3), generator=generator) for size in (2, 4)])
    (seen,) = read_captured(tmp_path).seen
    program = observer_of(seen, Sampler()).export()
    assert program.verify(trials=12).verified
    given = torch.randn(5, 3)
    assert torch.equal(program(given, generator=torch.Generator().manual_seed(1)), given * 2)


def test_a_generator_moves_with_the_tensors_to_the_device_of_the_model(tmp_path: Path) -> None:
    model = Sampler()
    path = written(tmp_path, model, lambda: model(torch.zeros(2, 3), generator=torch.Generator()))
    path.write_text(path.read_text().replace('"cpu"', '"cuda:0"').replace('"on cpu"', '"on cuda:0"'))
    (seen,) = read_captured(tmp_path).seen
    assert str(seen.recording.calls[0].inputs.leaves[1]) == "<torch._C.Generator: on cuda:0>"
    (call,) = observer_of(seen, Sampler()).recording().calls
    assert str(call.inputs.leaves[1]) == "<torch._C.Generator: on cpu>"


def test_an_object_that_no_spec_describes_is_named(tmp_path: Path) -> None:
    model = Sampler()
    written(tmp_path, model, lambda: model(torch.zeros(2, 3), generator=object()))  # type: ignore[arg-type]
    with pytest.raises(ObservationError, match="No value was kept for generator") as caught:
        observer_of(read_captured(tmp_path).seen[0], Sampler())
    assert caught.value.slug == "values-not-grown"


def test_a_model_that_refuses_or_differs_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    written(tmp_path, model, lambda: model(torch.zeros(3, 4)))
    (seen,) = read_captured(tmp_path).seen
    with pytest.raises(ObservationError, match="refuses call 0") as caught:
        observer_of(seen, torch.nn.Linear(5, 2))
    assert caught.value.slug == "build-refuses"
    with pytest.raises(ObservationError, match=r"float32\[3, 7\], and was float32\[3, 2\]") as caught:
        observer_of(seen, torch.nn.Linear(4, 7))
    assert caught.value.slug == "build-differs"
    with pytest.raises(UsageError) as usage:
        observer_of(seen, torch.nn.MultiheadAttention(4, 1))
    assert usage.value.slug == "another-signature"


def test_entries_are_found_by_class_and_by_place(tmp_path: Path) -> None:
    recorded(tmp_path)
    captured = read_captured(tmp_path)
    for name in ("Denoiser", "tiny_pipeline.Denoiser", None):
        assert find_entry(captured, name).name == "Denoiser"
    with pytest.raises(UsageError, match="There is no vae") as caught:
        find_entry(captured, "vae")
    assert "Denoiser" in caught.value.hint
