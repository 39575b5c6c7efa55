"""The model and a graph run the same operators, or not: told by runs on tensors without values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onlooker import InputObserver
from onlooker.lab.lab import Lab
from onlooker.lab.runner import ModelRunner
from onlooker.materialise.arguments import Calls
from onlooker.trace.operators_alike import sizes_read_alike
from onlooker.trace.torch_export import export_graph


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


def attended(x: torch.Tensor) -> torch.Tensor:
    """A mask that hides nothing is left out, except in a trace."""
    mask = None
    if torch.compiler.is_exporting():
        mask = (torch.arange(x.shape[1]) >= 0).expand(x.shape[0], 1, x.shape[1], x.shape[1])
    heads = x[:, None]
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


def hidden(x: torch.Tensor) -> torch.Tensor:
    """A mask that hides the first token is left out, except in a trace."""
    mask = None
    if torch.compiler.is_exporting():
        mask = (torch.arange(x.shape[1]) >= 1).expand(x.shape[0], 1, x.shape[1], x.shape[1])
    heads = x[:, None]
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


def part_written(x: torch.Tensor) -> torch.Tensor:
    """What is written to a part is written to the whole; not in a trace."""
    whole = x * 2
    part = whole[:, 0].clone() if torch.compiler.is_exporting() else whole[:, 0]
    part.add_(1)
    return whole


def valued(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if not torch.compiler.is_exporting() and x.sum() > 1e6 else x.relu()


@pytest.mark.parametrize(
    ("function", "is_same"),
    [
        (lambda x: x.relu() + torch.arange(x.shape[1])[:, None], True),
        (lambda x: x.relu_().view(x.shape[0], -1), True),
        (attended, True),
        (hidden, False),
        (part_written, False),
        (valued, False),  # a run without values tells nothing of it
        (lambda x: x.relu() if torch.compiler.is_exporting() else x.sigmoid(), False),
        (lambda x: x.squeeze(0), True),
        (lambda x: x.relu() if x.squeeze(0).dim() == 2 else x.sigmoid(), False),
    ],
)
@pytest.mark.one_in(2)
def test_the_same_operators_are_told_without_values(
    function: Callable[[torch.Tensor], torch.Tensor], is_same: bool
) -> None:
    model, observer = Function(function).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in ((2, 5, 4), (3, 7, 4)):
            model(torch.rand(size))
    (plan,) = observer.plans()
    samples = observer._watcher.store(None).plain_samples
    lab = Lab(ModelRunner.of_twin(model, "forward", observer.recording().signature))
    graph = export_graph(plan, samples, lab).graph
    calls = Calls(plan, samples)
    values = calls.values({symbol.name: 1 for symbol in plan.symbols})
    assert (sizes_read_alike(graph, calls, lab, values, "one") is not None) is is_same
