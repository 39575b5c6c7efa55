"""The Triton model of the guide, run with a stand-in of what Triton gives to a model in Python, as documented."""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "serving.md"
#: the elements of a type of Triton, and their dtype
DTYPES = {"TYPE_FP32": torch.float32, "TYPE_INT64": torch.int64, "TYPE_BOOL": torch.bool, "TYPE_FP16": torch.float16}


class Tensor:
    """A named tensor, given and taken by DLPack."""

    def __init__(self, name: str, value: torch.Tensor) -> None:
        self._name, self.value = name, value

    def name(self) -> str:
        return self._name

    def to_dlpack(self) -> Any:
        return torch.utils.dlpack.to_dlpack(self.value)

    @staticmethod
    def from_dlpack(name: str, value: Any) -> Tensor:
        assert value.is_contiguous()  # Triton refuses others
        return Tensor(name, torch.from_dlpack(value))


class TritonError(Exception):
    INTERNAL, INVALID_ARG = "INTERNAL", "INVALID_ARG"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


@dataclass
class Metric:
    value: float = 0.0

    def increment(self, by: float) -> None:
        self.value += by


class MetricFamily:
    COUNTER = "counter"

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert re.fullmatch(r"[a-z_]+", name)
        assert description
        assert kind == self.COUNTER

    def Metric(self, labels: dict[str, str]) -> Metric:  # as it is called there
        assert labels == {"model": "scorer"}
        return Metric()


def stand_in() -> types.ModuleType:
    module = types.ModuleType("triton_python_backend_utils")
    for one in (Tensor, TritonError, InferenceResponse, MetricFamily):
        setattr(module, one.__name__, one)
    module.get_input_tensor_by_name = lambda request, name: next((t for t in request if t.name() == name), None)  # type: ignore[attr-defined]
    return module


def config_of(text: str) -> dict[str, Any]:
    """The parts of a config.pbtxt that a model reads."""
    assert text.startswith('backend: "python"\nmax_batch_size: 0\n')
    found: dict[str, Any] = {"input": [], "output": []}
    for line in text.splitlines()[2:]:
        kind, name, type_, dims, more = re.fullmatch(
            r'(input|output) \[ \{ name: "([^"]+)" data_type: (\w+) dims: \[ ([-\d, ]*) \](.*) \} \]', line
        ).groups()  # type: ignore[union-attr]
        one = {"name": name, "data_type": type_, "dims": [*map(int, dims.split(","))]}
        found[kind].append({**one, "optional": "optional: true" in more})
    return found


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The files of the guide, in a folder from which they are imported."""
    blocks = re.findall(
        r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in blocks] == ["app.py", "service.py", "model.py"]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "triton_app.py").write_text(blocks[0][1])
    (tmp_path / "triton_model.py").write_text(blocks[2][1])
    yield dict(blocks)
    for name in ("triton_app", "triton_model"):
        sys.modules.pop(name, None)


def started(program: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model of the guide in a folder of models, and its configuration."""
    config = config_of(str(program.emit("triton-python")))
    program.save(folder / "models" / "scorer" / "1" / "program")
    model = importlib.import_module("triton_model").TritonPythonModel()
    repository = str(folder / "models" / "scorer")
    given = {"model_name": "scorer", "model_repository": repository, "model_version": "1"}
    model.initialize({**given, "model_config": json.dumps(config)})
    return model, config


def test_requests_are_served_or_refused_one_by_one(modules: dict[str, str], tmp_path: Path) -> None:
    built, use = importlib.import_module("triton_app").build()
    observer = onlooker.InputObserver()
    with observer(built), torch.no_grad():
        use()
    program = observer.export(ranges={"sequence": (1, 64)})
    model, config = started(program, tmp_path)
    assert [(one["name"], one["dims"]) for one in config["input"]] == [("x", [-1, -1, 4]), ("mask", [-1, -1])]

    def request(batch: int, length: int) -> tuple[list[Tensor], torch.Tensor]:
        x, mask = torch.randn(batch, length, 4), torch.ones(batch, length)
        return [Tensor("x", x), Tensor("mask", mask)], built(x, mask)

    (first, expected), (long, _), (last, other) = request(4, 9), request(1, 65), request(1, 64)
    answers = model.execute([first, long, last[:1], last])
    assert [answer.error is None for answer in answers] == [True, False, False, True]
    for answer, result in ((answers[0], expected), (answers[3], other)):
        (tensor,) = answer.output_tensors
        assert tensor.name() == config["output"][0]["name"]
        torch.testing.assert_close(tensor.value, result)
    assert answers[1].error.code == answers[2].error.code == TritonError.INVALID_ARG
    assert "the call has 65" in str(answers[1].error)
    assert model.refused.value == 2


class Optional(torch.nn.Module):
    """Ids, a mask that some calls leave out, and two results."""

    def forward(self, ids: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        wide = ids.float() if scale is None else ids.cumsum(-1) * scale
        return {"wide": wide, "long": ids.sum(-1)}


def test_an_argument_that_some_graph_does_without_is_optional(modules: dict[str, str], tmp_path: Path) -> None:
    built, observer = Optional(), onlooker.InputObserver()
    calls = [{"ids": torch.arange(6).reshape(2, 3)}, {"ids": torch.arange(15).reshape(3, 5)}]
    calls += [{**call, "scale": torch.tensor(0.5)} for call in calls]
    with observer(built), torch.no_grad():
        for call in calls:
            built(**call)
    model, config = started(observer.export(), tmp_path)
    assert [(one["name"], one["optional"]) for one in config["input"]] == [("ids", False), ("scale", True)]
    answers = model.execute([[Tensor(name, value) for name, value in call.items()] for call in calls])
    for answer, call in zip(answers, calls, strict=True):
        assert answer.error is None, answer.error
        found = {tensor.name(): tensor.value for tensor in answer.output_tensors}
        torch.testing.assert_close(found, built(**call))


def test_an_argument_of_several_tensors_is_told() -> None:
    class Sum(torch.nn.Module):
        def forward(self, parts: list[torch.Tensor], times: int) -> torch.Tensor:
            return parts[0] + parts[1][:1] * times

    built, observer = Sum(), onlooker.InputObserver()
    with observer(built), torch.no_grad():
        for size, times in ((2, 5), (3, 7)):
            built([torch.ones(size, 4), torch.ones(size, 4)], times)
    found = observer.export().emit("triton-python")
    assert [note for note in found.notes if "is a part of parts" in note]
    assert [note for note in found.notes if "times is a number" in note]
