"""A generator of random numbers as an argument: unused ones may be any, used ones are refused."""

from __future__ import annotations

import pytest
import torch

from onlooker import ExportError, InputObserver, RejectedCallError, load


class Decoder(torch.nn.Module):
    """Takes a generator, as pipelines pass it to all of their parts, and uses it as told."""

    def __init__(self, use: str = "") -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        if self.use == "drawn":
            return x + torch.rand(2, 3, generator=generator)
        if self.use == "drawn in the memory of a tensor":
            return x + torch.empty(2, 3).uniform_(generator=generator)
        if self.use == "its seed":
            assert generator is not None
            return x * (generator.initial_seed() % 7)
        if self.use == "its state":
            assert generator is not None
            return x * generator.get_state().sum()
        return x * (2 if generator is None else 3)


def watched(model: Decoder, *lengths: int) -> InputObserver:
    observer = InputObserver()
    with observer(model.eval()):
        for length in lengths:
            model(torch.randn(2, length), generator=torch.Generator().manual_seed(length))
    return observer


def test_a_generator_that_is_not_used_may_be_any() -> None:
    model = Decoder()
    program = watched(model, 3, 4).export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    x = torch.randn(5, 6)
    assert torch.equal(program(x, generator=torch.Generator().manual_seed(9)), x * 3)


def test_a_call_without_the_generator_does_not_get_the_same_graph() -> None:
    program = watched(Decoder(), 3, 4).export()
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 3))


def test_a_saved_program_takes_any_generator(tmp_path: object) -> None:
    watched(Decoder(), 3, 4).export().save(f"{tmp_path}/program")
    x = torch.randn(5, 6)
    assert torch.equal(load(f"{tmp_path}/program")(x, generator=torch.Generator()), x * 3)


@pytest.mark.filterwarnings("ignore:The model draws random numbers", "ignore:Outputs depend on earlier calls")
@pytest.mark.parametrize("use", ["drawn", "drawn in the memory of a tensor", "its seed", "its state"])
def test_a_generator_that_is_used_is_refused(use: str) -> None:
    with pytest.raises(ExportError, match="generator"):
        watched(Decoder(use), 3).export()


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return x + torch.randn(x.shape, generator=generator)


@pytest.mark.filterwarnings("ignore:The model draws random numbers", "ignore:Outputs depend on earlier calls")
def test_noise_of_any_size_by_a_generator_is_refused_in_our_words() -> None:
    """torch takes no symbol for a size there, and says nothing of the generator."""
    model, observer = Noisy().eval(), InputObserver()
    with observer(model):
        for rows in (3, 4):
            model(torch.zeros(rows, 2), generator=torch.Generator().manual_seed(3))
    with pytest.raises(ExportError, match=r"a torch.Generator that a call passes .* is used"):
        observer.export()


class Derivative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: (y**2).sum())(x)


def test_a_derivative_whose_tensor_becomes_a_constant_is_traced_below_autograd() -> None:
    observer = InputObserver()
    with observer(model := Derivative()):
        model(torch.rand(2, 3))
        model(torch.rand(3, 5))
    program = observer.export()
    assert program.verify().verified
    x = torch.rand(4, 7)
    torch.testing.assert_close(program(x), model(x))
