"""Models on a CUDA device: probes, export, proof and saved programs stay on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.pytrees.comparisons.agree import agreement
from onlooker.pytrees.open import open_tree
from onlooker.zoo import tiny_model

SEEN: set[str] = set()


class Notes(torch.nn.Module):
    """A path over what came before, which notes on which devices it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        SEEN.update(str(tensor.device) for tensor in (x, past, self.linear.weight))
        total = torch.cat([past, self.linear(x) * self.scale], dim=1)
        return torch.relu(total), total


@pytest.fixture(scope="module")
def notes(device: torch.device) -> tuple[torch.nn.Module, Program]:
    torch.manual_seed(0)
    model = Notes().to(device).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for batch, steps, past in ((2, 4, 0), (2, 1, 4)):
            model(torch.randn(batch, steps, 16, device=device), torch.randn(batch, past, 16, device=device))
    SEEN.clear()
    return model, observer.export()


@pytest.fixture(scope="module")
def llama(device: torch.device) -> tuple[Any, Program]:
    model: Any = tiny_model("llama").model.to(device)
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        generated(model, device)
    return model, observer.export()


def generated(model: Any, device: torch.device, batch: int = 2, steps: int = 10, new: int = 4) -> torch.Tensor:
    """Tokens of a batch whose first row is padded on the left."""
    ids = torch.randint(1, 256, (batch, steps), generator=torch.Generator().manual_seed(batch * steps)).to(device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    ids[0, :3] = 0
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        tokens: torch.Tensor = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, **options)
    return tokens


def compared(program: Program, model: Any, *args: Any, **kwargs: Any) -> float:
    """The largest difference of one call, whose results are on the device of the model's."""
    with torch.no_grad():
        expected, got = open_tree(model(*args, **kwargs)), open_tree(program(*args, **kwargs))
    devices = [[leaf.device for leaf in tree.leaves if isinstance(leaf, torch.Tensor)] for tree in (expected, got)]
    assert devices[0] == devices[1]
    found = agreement(list(expected.structure.paths()), expected.leaves, got.leaves)
    assert found.holds, found.note
    return found.difference


def test_probes_and_export_run_on_the_device(notes: tuple[Any, Program], device: torch.device) -> None:
    _, program = notes
    print(f"{program._program.lab.runs if program._program.lab else 0} runs of the model, on {sorted(SEEN)}")
    assert {str(device)} == SEEN
    for graph in program.graphs:
        held = {str(tensor.device) for tensor in graph.artifact.state_dict.values()}
        assert held == {str(device)}
        assert {leaf.device for leaf in graph.plan.inputs if leaf.is_tensor} == {str(device)}


def test_unseen_calls_are_exact_on_the_device(notes: tuple[Any, Program], device: torch.device) -> None:
    model, program = notes
    tally = program.verify()
    print(f"verified: {tally.verified}, {tally.summary}, largest difference {tally.difference:.1e}")
    assert tally.verified, program.report
    worst = 0.0
    for batch, steps, past in ((1, 1, 1), (5, 3, 0), (3, 17, 40)):
        args = torch.randn(batch, steps, 16, device=device), torch.randn(batch, past, 16, device=device)
        worst = max(worst, compared(program, model, *args))
    print(f"three unseen calls: largest difference {worst:.1e}")


def test_a_call_of_a_program_does_not_wait_for_the_device(
    notes: tuple[Any, Program], device: torch.device, no_waiting: Any
) -> None:
    _, program = notes
    args = torch.randn(3, 2, 16, device=device), torch.randn(3, 5, 16, device=device)
    program(*args)
    with no_waiting:
        result = program(*args)
    print(f"a call of the program: no wait, result on {result[0].device}")
    assert result[0].device == device


def test_a_llama_is_exact_on_the_device(llama: tuple[Any, Program], device: torch.device) -> None:
    model, program = llama
    tally = program.verify()
    print(f"verified: {tally.verified}, {tally.summary}, largest difference {tally.difference:.1e}")
    assert tally.verified, program.report
    expected = generated(model, device, batch=3, steps=15, new=8)
    with program.installed(model) as served:
        got = generated(model, device, batch=3, steps=15, new=8)
    print(f"8 tokens for 3 prompts: {int((expected == got).sum())} of {expected.numel()} equal, served by {served}")
    assert torch.equal(expected, got)


def test_a_program_that_was_saved_on_the_device_loads_there(
    llama: tuple[Any, Program], device: torch.device, tmp_path: Path
) -> None:
    model, program = llama
    program.save(tmp_path / "out", values=True)
    loaded = onlooker.load(tmp_path / "out")
    held = {str(t.device) for graph in loaded.graphs for t in graph.artifact.state_dict.values()}
    again = loaded.verify_saved()
    print(f"loaded: weights on {held}, {again.passed} of {again.total} saved calls, difference {again.difference:.1e}")
    assert held == {str(device)}
    assert again.total > 0
    assert again.failed == 0
    expected = generated(model, device, batch=4, steps=6, new=5)
    with loaded.installed(model):
        assert torch.equal(generated(model, device, batch=4, steps=6, new=5), expected)


ANOTHER_PROCESS = """
import sys, torch, onlooker
program = onlooker.load(sys.argv[1])
tally = program.verify_saved()
print(f"{tally.passed} of {tally.total}, {tally.difference:.1e}")
sys.exit(tally.failed or not tally.total)
"""


def test_it_loads_in_another_process(notes: tuple[Any, Program], tmp_path: Path) -> None:
    _, program = notes
    program.save(tmp_path / "out", values=True)
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"in another process: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_the_device_a_saved_program_is_an_error_of_ours(notes: tuple[Any, Program], tmp_path: Path) -> None:
    _, program = notes
    program.save(tmp_path / "out")
    code = "import sys, onlooker\ntry: onlooker.load(sys.argv[1])\nexcept onlooker.OnlookerError as e: print(e.slug)"
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=hidden)
    print(f"without the device: {done.stdout.strip()}")
    assert done.stdout.strip() == "device-missing", done.stdout + done.stderr


def test_the_program_of_onnx_gives_results_on_the_device(notes: tuple[Any, Program], device: torch.device) -> None:
    """ONNX Runtime computes on the CPU by default; what goes in and comes out is where the model has it."""
    pytest.importorskip("onnxruntime")
    model, program = notes
    converted = program.to("onnx")
    tally = converted.verify()
    args = torch.randn(3, 2, 16, device=device), torch.randn(3, 5, 16, device=device)
    difference = compared(converted, model, *args)
    print(f"verified: {tally.verified}, {tally.summary}; an unseen call differs by {difference:.1e}")
    assert tally.verified, converted.report


def test_bfloat16_is_verified_by_the_provider_of_the_device(device: torch.device) -> None:
    """The same program is not verified on the CPU, where ONNX Runtime has no such kernels."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDAExecutionProvider: it comes with onnxruntime-gpu")
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16).to(device, torch.bfloat16).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for rows in (2, 3):
            model(torch.randn(rows, 16, device=device, dtype=torch.bfloat16))
    with pytest.warns(onlooker.OnlookerWarning, match="no-kernels"):
        converted = observer.export().to("onnx")
    assert not converted.verify().verified
    tally = converted.verify(providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    print(f"verified: {tally.verified}, {tally.summary}, largest difference {tally.difference:.1e}")
    assert tally.verified, converted.report
