"""Models that differentiate in their forward: forces of an energy, scores, Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import onlooker


def net(wide: int, out: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(wide, 8), nn.SiLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, out))


class Forces(nn.Module):
    """The energy of particles, and the forces on them; ``pos`` records gradients from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.pairs = nn.Embedding(5, 4), net(5)

    def forward(self, kinds: torch.Tensor, pos: torch.Tensor) -> dict[str, torch.Tensor]:
        pos = pos.requires_grad_(True)
        distances = ((pos[:, None] - pos[None]).pow(2).sum(-1, keepdim=True) + 1).sqrt()
        given = self.kinds(kinds)[:, None].expand(-1, len(pos), -1)
        energy = self.pairs(torch.cat([distances, given], -1)).sum()
        [slope] = torch.autograd.grad(energy, pos, create_graph=self.training)
        return {"energy": energy, "forces": -slope}


class Score(nn.Module):
    """The derivative of an energy at the given points, whatever stands around the call."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = net(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            return torch.autograd.grad(self.energy(x).sum(), x)[0]


class Backward(Score):
    """The same by ``backward``, which leaves the derivative at the tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_(True)
            self.energy(x).sum().backward(inputs=[x])
        assert x.grad is not None
        return x.grad


class Residual(nn.Module):
    """A differential equation: first and second derivatives of one network."""

    def __init__(self) -> None:
        super().__init__()
        self.solution = net(2)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x, t = x.clone().requires_grad_(True), t.clone().requires_grad_(True)
        u = self.solution(torch.cat([x, t], -1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        [u_xx] = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return u_t + u * u_x - 0.01 * u_xx


class OfEach(nn.Module):
    """A derivative of each row, by the transforms of ``torch.func``."""

    def __init__(self, transform: Callable[..., Any], out: int = 1) -> None:
        super().__init__()
        self.net, self.transform, self.is_number = net(3, out), transform, out == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def of_row(row: torch.Tensor) -> torch.Tensor:
            return self.net(row).sum() if self.is_number else self.net(row)

        return torch.func.vmap(self.transform(of_row))(x)


class OfEachOfEach(nn.Module):
    """A function of each number of each row, by two maps, the inner one of which makes a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def of_row(row: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda one: self.weight @ one[None])(row) + row.sum()

        return torch.vmap(of_row)(x)


class Pulled(nn.Module):
    """A product with the Jacobian."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, pull = torch.func.vjp(self.net, x)
        return pull(torch.ones_like(x))[0]


def rows(count: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(count, 3),)


def particles(count: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 5, (count,)), torch.randn(count, 3)


def points(count: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(count, 1), torch.randn(count, 1)


MODELS = [
    (Forces, particles, True),
    (Score, rows, False),
    (Score, rows, True),
    (Backward, rows, False),
    (Residual, points, True),
    (lambda: OfEach(torch.func.grad), rows, False),
    (lambda: OfEach(torch.func.jacrev, 2), rows, True),
    (Pulled, rows, False),
    (OfEachOfEach, rows, False),
]


def watched(
    build: Callable[[], nn.Module], call: Callable[[int], Any], records: bool
) -> tuple[nn.Module, onlooker.InputObserver]:
    torch.manual_seed(0)
    model, observer = build().eval(), onlooker.InputObserver()
    with observer(model), torch.set_grad_enabled(records):
        model(*call(3))
        model(*call(5))
    return model, observer


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("build", "call", "records"), [pytest.param(*MODELS[0], marks=pytest.mark.slow), *MODELS[1:]])
def test_a_derivative_in_the_forward_is_exported(
    build: Callable[[], nn.Module], call: Callable[[int], Any], records: bool
) -> None:
    model, observer = watched(build, call, records)
    program = observer.export()
    assert program.verify().verified, program.report
    assert any("derivatives" in note for note in program.graphs[0].notes)
    for count in (1, 2, 9):
        given = call(count)
        result = program(*(one.clone() for one in given))
        torch.testing.assert_close(result, model(*given), check_stride=False)


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize(("build", "call", "records"), [MODELS[0], MODELS[1], MODELS[4]])
@pytest.mark.one_in(6)
def test_a_derivative_is_converted(
    build: Callable[[], nn.Module], call: Callable[[int], Any], records: bool, target: str
) -> None:
    _, observer = watched(build, call, records)
    assert observer.export(to=target).verify().verified


def test_a_step_that_changes_weights_for_one_call() -> None:
    """The derivative by a parameter, as where a model adapts to examples."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 1))

        def forward(self, x: torch.Tensor, y: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                loss = (x @ self.weight - y).pow(2).mean()
                [slope] = torch.autograd.grad(loss, self.weight)
            return asked @ (self.weight - 0.1 * slope)

    def call(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(count, 3), torch.randn(count, 1), torch.randn(count + 1, 3)

    model, observer = watched(Adapted, call, False)
    program = observer.export()
    assert program.verify().verified, program.report
    given = call(8)
    torch.testing.assert_close(program(*given), model(*given))


@pytest.mark.slow
def test_a_recurrent_layer_in_a_derivative_is_traced_step_by_step() -> None:
    """Autograd sees nothing of the steps of a loop of torch: the graph holds for the watched lengths."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                energy = self.head(self.layer(x)[0]).sum()
                return torch.autograd.grad(energy, x)[0]

    def call(count: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(count, 4, 3),)

    model, observer = watched(Recurrent, call, False)
    program = observer.export()
    assert program.verify().verified, program.report
    [given] = call(7)
    torch.testing.assert_close(program(given), model(given))


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize("activation", [nn.SiLU(), nn.Mish(), nn.GELU(), nn.Softplus()])
@pytest.mark.one_in(4)
def test_derivatives_of_activations_are_converted(activation: nn.Module, target: str) -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                return torch.autograd.grad(self.activation(x).sum(), x)[0]

    _, observer = watched(Slope, rows, False)
    program = observer.export(to=target)
    assert program.verify().verified, program.report


def test_what_backward_leaves_at_weights_is_the_users() -> None:
    """``backward`` adds to the derivatives of all weights: private runs neither add to them nor read them."""

    class Saliency(Score):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                self.energy(x).sum().backward()
            assert x.grad is not None
            return x.grad

    model, observer = watched(Saliency, rows, False)
    kept = {name: (one.grad, one.grad.clone()) for name, one in model.named_parameters() if one.grad is not None}
    assert kept
    program = observer.export()
    assert program.verify().verified, program.report
    for name, one in model.named_parameters():
        grad, values = kept[name]
        assert one.grad is grad
        assert torch.equal(grad, values)
    [given] = rows(6)
    recorded = given.clone().requires_grad_(True)
    torch.testing.assert_close(program(recorded), model(given))


def test_an_argument_that_recorded_gradients_is_named_with_what_to_do() -> None:
    class Outside(Score):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(self.energy(x).sum(), x)[0]

    model, observer = Outside().eval(), onlooker.InputObserver()
    with observer(model):
        model(torch.randn(3, 3).requires_grad_(True))
    with pytest.raises(onlooker.ExportError, match=r"x = x\.requires_grad_\(\)"):
        observer.export()


@pytest.mark.slow
def test_a_branch_on_a_derivative_stays_a_branch() -> None:
    class Clipped(Score):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            slope = super().forward(x)
            if slope.norm() > 1:
                slope = slope / slope.norm()
            return slope

    model, observer = watched(Clipped, rows, False)
    program = observer.export()
    assert program.verify().verified, program.report
    for given in (1e-3 * torch.randn(4, 3), 3 * torch.randn(20, 3)):
        torch.testing.assert_close(program(given), model(given))


class Straight(torch.autograd.Function):
    """Rounds, and passes derivatives as they are."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round() if x.sum() > 0 else x.floor()

    @staticmethod
    def backward(context: Any, *slopes: Any) -> Any:
        return slopes[0]


def test_a_function_with_a_backward_of_its_own_is_no_derivative() -> None:
    class Rounds(Score):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Straight.apply(self.energy(x).sigmoid())

    model, observer = watched(Rounds, rows, False)
    program = observer.export()
    [given] = rows(4)
    torch.testing.assert_close(program(given), model(given))
    assert not any("derivatives" in note for graph in program.graphs for note in graph.notes)


class RecordsInCalls(torch.nn.Module):
    """Asks for gradients of its argument in calls alone, and for an int of its number of graphs."""

    def forward(self, x: torch.Tensor, graph: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not torch.compiler.is_compiling():
            x = x.detach().requires_grad_()
        energies = torch.zeros(int(ends.numel() - 1)).index_add(0, graph, (x**3).sum(-1))
        (forces,) = torch.autograd.grad([energies.sum()], [x])
        return energies.detach(), -forces


def test_a_trace_that_is_made_as_a_call_reads_ints_of_sizes_as_sizes() -> None:
    def call(*sizes: int) -> tuple[torch.Tensor, ...]:
        counts = torch.tensor(sizes)
        return (
            torch.randn(sum(sizes), 3),
            torch.arange(len(sizes)).repeat_interleave(counts),
            torch.zeros(len(sizes) + 1),
        )

    model, observer = RecordsInCalls(), onlooker.InputObserver()
    with observer(model):
        for sizes in ((5, 4), (3, 6, 7)):
            model(*call(*sizes))
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    unseen = call(2, 2, 3, 4, 5)
    torch.testing.assert_close(program(*unseen), model(*unseen))
