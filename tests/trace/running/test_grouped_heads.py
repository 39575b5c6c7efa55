"""Attention reads shared heads as they are: the numbers of repeated heads, and nothing where heads are not repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from onlooker.trace.running.grouped_heads import share_heads

EXPAND = torch.ops.aten.expand.default
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


class Grouped(torch.nn.Module):
    """Six heads of queries for two of keys and values."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, self.wide(k), self.wide(v), mask, scale=0.2)

    def wide(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, length, size = states.shape
        states = states[:, :, None, :, :].expand(batch, heads, 3, length, size)
        return states.reshape(batch, heads * 3, length, size)


class Tiled(Grouped):
    """All heads in turn, three times: another order."""

    def wide(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, length, size = states.shape
        states = states[:, None].expand(batch, 3, heads, length, size)
        return states.reshape(batch, heads * 3, length, size)


class ValuesAlone(Grouped):
    """Keys of six heads, of which values have two."""

    def wide(self, states: torch.Tensor) -> torch.Tensor:
        return states if states.shape[1] == 6 else super().wide(states)


class Read(Grouped):
    """The repeated heads are a result too."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        return super().forward(q, k, v, mask), self.wide(k) * 2


def call(heads: int = 2, length: int = 7, new: int = 4) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(length)
    q = torch.randn(2, 6, new, 8, generator=made)
    k, v = (torch.randn(2, one, length, 8, generator=made) for one in (heads, 2))
    mask = torch.rand(2, 1, new, length, generator=made) > 0.4
    mask[..., 0] = True
    return {"q": q, "k": k, "v": v, "mask": mask}


def shared(model: Any, given: dict[str, torch.Tensor]) -> tuple[Any, Counter[Any]]:
    length, new = torch.export.Dim("length"), torch.export.Dim("new")
    shapes = {"q": {2: new}, "k": {2: length}, "v": {2: length}, "mask": {2: new, 3: length}}
    program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    module = program.module(check_guards=False)
    share_heads(module.graph)
    module.recompile()
    return module, Counter(node.target for node in module.graph.nodes)


@pytest.mark.parametrize("model", [Grouped, Read])
@pytest.mark.parametrize("sizes", [(7, 4), (1, 1), (90, 1), (40, 33)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.one_in(2)
def test_shared_heads_give_the_numbers_of_repeated_ones(model: Any, sizes: Any, dtype: Any) -> None:
    module, _ = shared(model(), call())
    given = {name: one if one.dtype is torch.bool else one.to(dtype) for name, one in call(2, *sizes).items()}
    torch.testing.assert_close(module(**given), model()(**given))


def test_the_copies_are_gone() -> None:
    module, counts = shared(Grouped(), call())
    assert counts[EXPAND] == 0
    assert [node.kwargs["enable_gqa"] for node in module.graph.nodes if node.target is ATTENTION] == [True]


def test_heads_that_something_else_reads_stay_there() -> None:
    assert shared(Read(), call())[1][EXPAND] == 1


@pytest.mark.parametrize(("model", "heads"), [(Tiled, 2), (ValuesAlone, 6)])
def test_other_orders_and_other_numbers_of_heads_are_left_as_they_are(model: Any, heads: int) -> None:
    module, counts = shared(model(), call(heads))
    assert counts[EXPAND] > 0
    given = call(heads, 9, 2)
    torch.testing.assert_close(module(**given), model()(**given))


def test_a_graph_without_sizes_is_left_as_it_is() -> None:
    program = torch.export.export(Grouped(), (), call(), strict=False)
    module = program.module(check_guards=False)
    for node in module.graph.nodes:
        node.meta.pop("val", None)
    share_heads(module.graph)
    assert any(node.target is EXPAND for node in module.graph.nodes)
