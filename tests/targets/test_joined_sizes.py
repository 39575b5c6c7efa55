"""A graph that a few sizes share, as two lengths of one entry in a table, serves each of them on every target."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import onlooker
from onlooker import InputObserver, RejectedCallError

LENGTHS = (6, 9, 12)


class Entries(torch.nn.Module):
    TABLE: ClassVar = {6: 2.0, 9: 2.0, 12: 3.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * self.TABLE[x.shape[1]], x.flip(1)], 1)


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.softmax(1) if x.shape[1] in (6, 9, 33) else x.cumsum(1)
        return rows.reshape(x.shape[0], -1)


class Divisors(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous() / math.gcd(x.shape[1], 2)


class Digits(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 0, len(str(x.shape[1])), 0)).mean(1)


@pytest.mark.parametrize("target", ["onnx", "openvino", "torch", pytest.param("aoti", marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [Entries, Chosen, Divisors, Digits])
@pytest.mark.one_in(8)
def test_each_size_of_a_shared_graph_is_served(build: Callable[[], Any], target: str, tmp_path: Path) -> None:
    model, observer = build().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for length in LENGTHS:
            model(torch.randn(2, length, 4))
    program = observer.export(to=target)
    assert program.verify().verified, program.report
    assert any(
        sum(graph.contract.holds({"batch": 2, "x_dim_1": length, "x_dim_2": 4}) for length in LENGTHS) > 1
        for graph in program.graphs
    )
    program.save(tmp_path / "p")
    loaded = onlooker.load(tmp_path / "p", machine_code=True)
    for rows, length in [*((3, length) for length in LENGTHS), (1, 9)]:
        x = torch.randn(rows, length, 4)
        for one in (program, loaded):
            torch.testing.assert_close(one(x), model(x))
    if build is Entries:
        with pytest.raises(RejectedCallError):
            program(torch.randn(2, 7, 4))
