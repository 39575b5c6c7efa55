"""The memory that conversions, saves and loads take beside the weights, by the kernel's high-water mark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: a process that converts, saves and loads a small model first, so that imports are left out
SCRIPT = """
import ctypes, gc, json, sys
from pathlib import Path
import torch
import onlooker

target, folder = sys.argv[1], Path(sys.argv[2])
torch.set_num_threads(1)


class Layers(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def program(size):
    model, observer = Layers(size).eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, size))
        model(torch.randn(4, 5, size))
    return observer.export()


def read(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def above(run):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    base = read("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    made = run()
    return (read("VmHWM") - base) / weights, made


small = program(8)
small = small if target == "torch" else small.to(target)
small.save(folder / "small")
onlooker.load(folder / "small")
size = 2048
weights = 12 * 4 * size * (size + 1)
found, whole = {}, program(size)
if target != "torch":
    found["convert"], whole = above(lambda: whole.to(target))
found["save"], _ = above(lambda: whole.save(folder / "whole"))
del whole
found["load"], _ = above(lambda: onlooker.load(folder / "whole"))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets its high-water mark back")
@pytest.mark.parametrize(
    ("target", "most"),
    [
        pytest.param("torch", {"save": 0.1, "load": 1.2}, marks=pytest.mark.slow),
        ("onnx", {"convert": 0.5, "save": 0.1, "load": 1.2}),
        pytest.param("openvino", {"convert": 0.5, "save": 0.2, "load": 1.2}, marks=pytest.mark.slow),
    ],
)
def test_weights_are_in_memory_once(target: str, most: dict[str, float], tmp_path: Path) -> None:
    if target != "torch":
        pytest.importorskip(target)
    command = [sys.executable, "-c", SCRIPT, target, str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(most)
    assert all(found[stage] <= limit for stage, limit in most.items()), found
