"""A project of a user, as type checkers see it: ``mypy --strict`` and ``pyright`` find nothing here.

It is checked and never run. Each ``assert_type`` is the type that a user may rely on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from typing_extensions import assert_type

import onlooker
from onlooker import (
    ExportReport,
    InputObserver,
    OnlookerError,
    Plan,
    Program,
    Programs,
    Recording,
    Step,
    Tallies,
    Tally,
)
from onlooker.testing import assert_export_holds
from onlooker.zoo import TinyModel, tiny_model


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


def prove(programs: Programs, model: torch.nn.Module, file: Path) -> list[str]:
    tallies = programs.verify()
    assert_type(tallies, Tallies)
    assert_type(tallies.summary, str)
    program = programs["unet"]
    assert_type(program.tally.difference, float)
    assert_type(program.report.verdict, str)
    assert_type(program.refusals, tuple[str, ...])
    assert_type([graph.name for graph in program.graphs], list[str])
    report = onlooker.verify_export(program, file)
    assert_type(report, ExportReport)
    assert_type(assert_export_holds(model, file, [(torch.ones(1),)]), ExportReport)
    assert_type(program.emit("trtexec").text, str)
    return [finding.text for finding in report.findings]


def follow(steps: list[Step]) -> TinyModel:
    tiny = tiny_model("llama")
    with onlooker.progress(steps.append), onlooker.observe(model=tiny.model) as observers:
        tiny.watch()
    assert_type(observers["model"], InputObserver)
    assert_type(observers["model"].plans(), tuple[Plan, ...])
    recording = observers["model"].recording()
    assert_type(recording | recording, Recording)
    return tiny


def load(folder: str) -> dict[str, Any]:
    try:
        loaded = onlooker.load(folder)
    except OnlookerError as error:
        assert_type(error.slug, str)
        raise
    assert_type(loaded, Program | Programs)
    assert_type(onlooker.__version__, str)
    return {"loaded": loaded}
