"""The places of what the source of a model asks for are named as one would name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker.trace.identity_tests import marks_in_source


class Attributes(torch.nn.Module):
    """Looks through the attributes of its input, and asks whether it is another one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * len(vars(x)), x is y


def test_a_place_is_named_from_the_current_directory_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    lines = marks_in_source(Attributes(), "forward")
    assert set(lines) == {"identity", "attributes"}
    for line in lines.values():
        assert line.startswith(f"{Path(__file__).name}:")
