"""What is read quickly is what torch reads, and torch is as it was afterwards."""

from __future__ import annotations

import io
import typing

import pytest
import torch
from torch._export.serde import serialize

from onlooker.targets.torch.target import quick_reading


class Joined(torch.nn.Module):
    """Many sizes that are computed from two, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        z = torch.cat([x, y, y], 1)
        for _ in range(4):
            z = torch.cat([self.out(z), x], 1)
        return z.flip(1)[:, : 2 * x.shape[1] + 1], x.shape[1] * y.shape[1]


def written() -> io.BytesIO:
    dim = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        Joined(), (torch.randn(3, 5, 4), torch.randn(3, 7, 4)), dynamic_shapes=({0: dim, 1: dim}, {0: dim, 1: dim})
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return buffer


def test_the_program_is_the_same() -> None:
    usual = torch.export.load(written())
    with quick_reading():
        quick = torch.export.load(written())
    assert str(usual.graph) == str(quick.graph)
    assert str(usual.range_constraints) == str(quick.range_constraints)
    shapes = [
        [str(getattr(node.meta.get("val"), "shape", "")) for node in program.graph.nodes] for program in (usual, quick)
    ]
    assert shapes[0] == shapes[1]
    x, y = torch.randn(2, 9, 4), torch.randn(2, 3, 4)
    quick.module().load_state_dict(usual.state_dict)
    for one, other in zip(usual.module()(x, y), quick.module()(x, y), strict=True):
        assert one.shape == other.shape if isinstance(one, torch.Tensor) else one == other


def test_each_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    sympify = serialize.sympy.sympify

    def counting(text: object, *args: object, **options: object) -> object:
        if isinstance(text, str):
            parsed.append(text)
        return sympify(text, *args, **options)

    monkeypatch.setattr(serialize.sympy, "sympify", counting)
    torch.export.load(written())
    usual = len(parsed)
    parsed.clear()
    with quick_reading():
        torch.export.load(written())
    assert len(parsed) < usual / 2


def test_torch_is_as_it_was_also_after_an_error() -> None:
    before = serialize.GraphModuleDeserializer._parse_sym_expr
    with pytest.raises(RuntimeError), quick_reading():
        raise RuntimeError
    assert serialize.GraphModuleDeserializer._parse_sym_expr is before
    assert serialize.typing is typing
