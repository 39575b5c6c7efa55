"""Models that draw random numbers: a program of torch draws the same, and nothing that is drawn once is verified."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, OnlookerWarning, Program
from onlooker.core.verdict import Focus
from onlooker.verify.trials import Trial
from onlooker.verify.verify import run_trials


class Noise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape[0], 1)


class NoiseLike(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.randn_like(x) + torch.bernoulli(torch.full_like(x, 0.5))


class Dropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


class Multinomial(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.abs() + 1, 2)


class Shuffle(torch.nn.Module):
    """As masked autoencoders keep a random part of the patches."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.rand(x.shape[0], x.shape[1]).argsort(1)
        return torch.gather(x, 1, order[:, :2]), order


class Gumbel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gumbel_softmax(x, hard=True)


class PythonNumber(torch.nn.Module):
    """Draws outside of torch: the trace has one number for all calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + random.random()


class DrawnOnce(torch.nn.Module):
    """Draws a number of Python by torch, which the trace takes for a constant or refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if torch.is_grad_enabled() else 1.0) + random.gauss(0, 1)


def exported(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3, 5):
            model(torch.randn(batch, 4))
    with pytest.warns(OnlookerWarning) as caught:
        program = observer.export()
    slug = "outputs-depend-on-earlier-calls" if "random" in model.forward.__code__.co_names else "random-numbers"
    assert [warning.message.slug for warning in caught] == [slug]  # type: ignore[union-attr]
    return program


@pytest.mark.parametrize("cls", [Noise, NoiseLike, Dropout, Multinomial, Shuffle, Gumbel])
@pytest.mark.one_in(2)
def test_a_program_of_torch_draws_as_the_model_does(cls: Any) -> None:
    model, state = cls().eval(), torch.get_rng_state()
    program = exported(model)
    torch.set_rng_state(state)
    assert program.verify().verified, program.tally.summary
    assert torch.equal(torch.get_rng_state(), state), "a verification draws nothing of the user's"
    x = torch.randn(7, 4)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    torch.testing.assert_close(program(x), expected)


class DrawnForTraining(torch.nn.Module):
    """Draws a number of Python in each call, and asks for it in training alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = random.uniform(0, 1)
        return x * 2 if self.training and number < 0.5 else x * 3


@pytest.mark.parametrize("cls", [PythonNumber, DrawnOnce])
def test_what_is_drawn_outside_of_torch_and_read_is_refused(cls: Any) -> None:
    with pytest.raises(ExportError, match=r"reads, random \(at .*test_random_numbers\.py:\d+ in forward"):
        exported(cls().eval())


def test_what_is_drawn_outside_of_torch_and_not_read_is_free() -> None:
    model, observer = DrawnForTraining().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3, 5):
            model(torch.randn(batch, 4))
    assert observer.export().verify().verified


@pytest.mark.parametrize("cls", [Noise, Dropout])
def test_numbers_that_another_runtime_draws_are_not_verified(cls: Any) -> None:
    assert not exported(cls().eval()).to("onnx").verify().verified


class Voice(torch.nn.Module):
    """Adds as much noise as an argument says; a voice that is tried out has none."""

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return x * scales[1] + torch.randn_like(x) * scales[0]


@pytest.fixture(scope="module")
def silent() -> Program:
    """The program of a voice that was watched without noise."""
    model, observer = Voice().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3, 5):
            model(torch.randn(batch, 4), torch.tensor([0.0, 1.0, 0.0]))
    return observer.export()


def test_noise_that_an_argument_asks_for_is_drawn_by_the_runtime(silent: Program) -> None:
    """What a verdict calls verified is what was compared: numbers without noise."""
    assert (silent.verify().verdict, silent.tally.drawn) == ("verified", ())
    program = silent.to("onnx")
    tally = program.verify()
    assert tally.verdict == "verified but for random numbers"
    assert all("values" in label for label in tally.drawn)
    assert "shapes alone were compared" in " ".join(str(program.report).split())
    assert program.verify() == tally


SILENT, LOUD = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])


def own_noise(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """As a runtime does that has random numbers of its own."""
    noise = torch.tensor([random.gauss(0, 1) for _ in range(x.numel())])
    return x * scales[1] + noise.reshape(x.shape) * scales[0]


def baked_noise(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return x * scales[1] + torch.full_like(x, 0.25) * scales[0]


def noise_without_end(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return own_noise(x, torch.ones(3))


def noise_of_another_shape(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    answer = own_noise(x, scales)
    return answer[:-1] if scales[0] else answer


def noise_that_is_no_number(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return own_noise(x, scales) / (1 - scales[0])


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (own_noise, "verified but for random numbers"),
        (baked_noise, "not verified: 1 of 4 trials failed"),
        (noise_without_end, "not verified: 3 of 3 trials failed"),
        (noise_of_another_shape, "not verified: 1 of 4 trials failed"),
        (noise_that_is_no_number, "not verified: 1 of 4 trials failed"),
    ],
)
def test_only_noise_of_both_sides_is_no_failure(
    silent: Program, answer: Callable[..., torch.Tensor], verdict: str
) -> None:
    x = torch.randn(2, 4)
    trials = [
        Trial("observed", "call 0", {"x": x, "scales": SILENT}, focus=Focus.OBSERVED),
        Trial("unseen", "silent", {"x": x + 1, "scales": SILENT}),
        Trial("unseen", "loud", {"x": x + 1, "scales": LOUD}),
    ]
    tally, _ = run_trials(lambda arguments: answer(**arguments), silent._program.beside_model().subject, trials)
    assert tally.verdict == verdict
    assert tally.drawn == (("loud",) if answer in (own_noise, noise_without_end) else ())
