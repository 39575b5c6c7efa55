"""Attention whose result is viewed as rows: it keeps the layout of the trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver
from onlooker.core.errors import MissingPackageError
from onlooker.targets.executorch.convert import layouts_kept
from onlooker.targets.executorch.target import Executorch


def missing() -> str:
    try:
        Executorch().require()
    except MissingPackageError as error:
        return error.message
    return ""


class Heads(torch.nn.Module):
    """The rows of the heads are viewed without a copy, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, _ = x.shape
        q, k, v = (part.view(batch, steps, 2, 4).transpose(1, 2) for part in self.linear(x).split(8, 2))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return found.transpose(1, 2).reshape(batch, steps, 8).view(-1, 8) * 2


class Plain(Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x) * 2


def exported(model: torch.nn.Module) -> Any:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        model(torch.randn(2, 3, 8)), model(torch.randn(3, 5, 8))
    return observer.export()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, which copies its trees
def test_a_copy_stands_behind_a_result_that_is_viewed() -> None:
    artifact = exported(Heads()).graphs[0].artifact
    text = artifact.graph_module.code
    kept = layouts_kept(artifact)
    added = [str(n.target) for n in kept.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert len(added) == 1
    assert artifact.graph_module.code == text
    x = torch.randn(3, 4, 8)
    assert torch.equal(kept.module()(x=x)[0], artifact.module()(x=x)[0])
    plain = exported(Plain()).graphs[0].artifact
    assert layouts_kept(plain) is plain


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torch_still_decomposes_attention_into_another_layout() -> None:
    """When this fails, torch gives the layout of the query: attention.py may go."""
    artifact = exported(Heads()).graphs[0].artifact
    with pytest.raises(ValueError, match="Cannot view a tensor"):
        artifact.run_decompositions({}).run_decompositions()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_viewed_attention_is_converted() -> None:
    torch.manual_seed(0)
    assert exported(Heads()).to("executorch", ranges="observed").verify().verified
