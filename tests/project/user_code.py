"""A project of a user, as type checkers see it: ``mypy --strict`` and ``pyright`` find nothing here.

It is checked and never run. Each ``assert_type`` is the type that a user may rely on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from typing_extensions import assert_type

import onlooker
from onlooker import InputObserver, OnlookerError, Plan, Program, Programs, Recording, Tally


def export(model: torch.nn.Module, folder: Path) -> Program:
    observer = InputObserver(max_bytes=1 << 20)
    with observer(model) as watched:
        model(torch.ones(2, 3))
    assert_type(watched, InputObserver)
    assert_type(observer.recording(), Recording)
    assert_type(observer.num_obs(), int)
    program = observer.export(to="onnx", static={"x": [1]}, ranges={"batch": (1, 64)})
    assert_type(program, Program)
    assert_type(program.plans, tuple[Plan, ...])
    tally = program.verify(seed=1)
    assert_type(tally, Tally)
    assert_type(tally.verified, bool)
    for row in program.experiments:
        assert_type(row.changed, tuple[str, ...])
    program.save(folder)
    with program.installed(model):
        model(torch.ones(4, 3))
    return program


def pipeline(unet: torch.nn.Module, vae: torch.nn.Module) -> Programs:
    with onlooker.observe(unet=unet, vae=(vae, "decode")) as observers:
        unet(torch.ones(1))
    programs = observers.export(only=["unet"])
    assert_type(programs["unet"], Program)
    return programs


def load(folder: str) -> dict[str, Any]:
    try:
        loaded = onlooker.load(folder)
    except OnlookerError as error:
        assert_type(error.slug, str)
        raise
    assert_type(loaded, Program | Programs)
    assert_type(onlooker.__version__, str)
    return {"loaded": loaded}
