"""A file that ends the process which opens it is an error, and is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from onlooker import ExportError, InputObserver, Program
from onlooker.targets.first_run import opened_elsewhere
from onlooker.targets.onnx import target

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_a_script_that_ends_or_raises_passes(tmp_path: Path) -> None:
    opened_elsewhere("pass", [tmp_path / "a"], "a runtime")
    opened_elsewhere("raise ValueError", [tmp_path / "a"], "a runtime")


def test_a_death_is_an_error_and_the_files_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(b"content")
    with pytest.raises(ExportError, match=r"signal 11, SIGSEGV") as caught:
        opened_elsewhere(DIES, [file], "a runtime")
    assert caught.value.slug == "runtime-died"
    found = re.search(r"kept in (\S+),", str(caught.value))
    assert found is not None
    assert Path(found[1], "a.onnx").read_bytes() == b"content"


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(ids)).mean(1)


def exported() -> tuple[torch.nn.Module, Program]:
    model, observer = Encoder().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in ((2, 5), (3, 9), (4, 7)):
            model(torch.randint(0, 50, size))
    return model, observer.export()


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_of_halves_opens_and_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the runtime that died")
    model, program = exported()
    half, ids = program.to("onnx", precision="fp16"), torch.randint(0, 50, (5, 20))
    with torch.no_grad():
        torch.testing.assert_close(half(ids), model(ids), atol=1e-2, rtol=1e-2)
    monkeypatch.setattr(target, "_OPENS", DIES)
    with pytest.raises(ExportError, match="ONNX Runtime ended the process"):
        program.to("onnx", precision="fp16")
