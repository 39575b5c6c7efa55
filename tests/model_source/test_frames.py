"""Whose code a frame runs is known by its file."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

from onlooker.model_source.frames import Owner, owner_of
from onlooker.repairs import repeated_operators
from onlooker.trace import flat


def test_a_repair_is_no_code_of_ours_for_a_decision() -> None:
    """A decision that ``int(n)`` of a model, or an operator that it calls, asks for is one of the line of the model."""
    folder = Path(inspect.getfile(repeated_operators)).parent
    assert {owner_of(str(file)) for file in folder.rglob("*.py")} == {Owner.MADE}
    assert owner_of(inspect.getfile(flat)) is Owner.OWN
    assert owner_of(inspect.getfile(torch.nn.functional)) is Owner.TORCH
