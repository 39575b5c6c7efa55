"""Models for the tests of targets: what is awkward to convert, one graph, and two graphs on the same weights."""

from __future__ import annotations

from typing import Any

import torch

from onlooker import InputObserver, Program

__all__ = [
    "AWKWARD",
    "GROWING",
    "SIDED",
    "Attention",
    "Awkward",
    "Calls",
    "Growing",
    "Sided",
    "call",
    "exported",
    "masked_calls",
    "rand",
]

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def exported(model: torch.nn.Module, calls: Calls) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for args, kwargs in calls:
            model(*args, **kwargs)
    return observer.export()


class Awkward(torch.nn.Module):
    """Outputs that are inputs, stand twice, are ints, have no dimension, or do not change; an unused input."""

    def forward(self, x: torch.Tensor, n: int, unused: torch.Tensor, scalar: torch.Tensor) -> dict[str, Any]:
        y = x * n
        return {
            "same": x,
            "y": y,
            "again": y,
            "rows": x.shape[0],
            "twice": 2 * x.shape[0],
            "n": n,
            "scalar": scalar,
            "sum": scalar.sum(),
            "flags": x > 0,
            "nothing": None,
            "seven": 7,
            "half": 0.5,
        }


AWKWARD = [call(rand(b, 4), n, rand(2), torch.tensor(float(n))) for b, n in ((2, 3), (3, 5), (5, 4))]


class Growing(torch.nn.Module):
    """Two linear layers over what came before: one graph, whatever the sizes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.cat([past, self.first(x)], dim=1)
        return self.second(torch.relu(total)), total


GROWING = [call(rand(b, s, 32), rand(b, p, 32)) for b, s, p in ((1, 4, 0), (2, 1, 4), (3, 2, 7))]


class Sided(torch.nn.Module):
    """The path, not the form of the call, depends on a size: two graphs on the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y + 1 if x.shape[1] > 6 else y * 2


SIDED = [call(rand(2, 3, 64)), call(rand(3, 9, 64)), call(rand(1, 4, 64)), call(rand(2, 12, 64))]


class Attention(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        chosen = mask if self.kind == "bool" else added
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=chosen)


def masked_calls() -> Calls:
    """Calls of an attention whose first row may look at nothing."""
    calls = []
    for rows, length in ((2, 3), (3, 5)):
        mask = torch.ones(rows, 1, length, length).tril() > 0
        mask[0, :, 0] = False
        calls.append(call(rand(rows, 4, length, 8), mask))
    return calls
