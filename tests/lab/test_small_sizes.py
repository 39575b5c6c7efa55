"""Small sizes stand for large ones only where the model does the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker import InputObserver
from onlooker.lab.example import find_example
from onlooker.lab.lab import Lab
from onlooker.lab.runner import ModelRunner
from onlooker.lab.work import MOST_WORK
from onlooker.materialise.arguments import Calls
from unreached import Unreached


class Tokens(torch.nn.Module):
    """Runs the same operators at every length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 8)
        self.out = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = self.embed(ids)
        return self.out(y.softmax(1).cumsum(1))


class Branching(Tokens):
    """Another formula for long inputs: short ones do not stand for them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = super().forward(ids)
        return y.relu() if ids.shape[1] > 60 else y


class Deciding(Tokens):
    """Hangs on values, and cannot be run without them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = super().forward(ids)
        return y + 1 if ids.max().item() < 1000 else y


class Halving(torch.nn.Module):
    """Halves an image until few pixels are left."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(torch.nn.Conv2d(2, 2, 3, 2, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x).tanh()
        return x.mean((2, 3))


class Shrinking(torch.nn.Module):
    """Halves an image without padding: at the least even sizes one pixel is left."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(torch.nn.Conv2d(2, 2, 3, 2) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x).tanh()
        return x.mean((2, 3))


def ids_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(length))


def image_of(rows: int, side: int) -> torch.Tensor:
    return torch.randn(rows, 2, side, side, generator=torch.Generator().manual_seed(side))


Made = Callable[[int, int], torch.Tensor]


@pytest.mark.parametrize(
    ("made", "value", "least", "most"),
    [
        (Tokens, ids_of, 2, 80),
        (Branching, ids_of, 61, 400),
        (Deciding, ids_of, 61, 400),
        (Halving, image_of, 32, 160),
    ],
    ids=["the same at all lengths", "a branch", "values decide", "halved to 1"],
)
@pytest.mark.one_in(2)
def test_a_graph_is_traced_at_the_least_sizes_that_stand_for_what_was_seen(
    made: Callable[[], torch.nn.Module], value: Made, least: int, most: int
) -> None:
    torch.manual_seed(0)
    model, observer = made().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 128), (5, 192)):
            model(value(rows, length))
    program = observer.export()
    traced = max(program.graphs[0].sizes.values())
    assert least <= traced <= most
    assert program.verify().verified
    new = value(4, 160)
    torch.testing.assert_close(program(new), model(new))


def test_a_graph_of_large_images_is_traced_at_a_part_of_their_size() -> None:
    torch.manual_seed(0)
    model, observer = Shrinking().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(image_of(2, 600))
    program = observer.export()
    assert max(program.graphs[0].sizes.values()) <= 300
    torch.testing.assert_close(program(image_of(3, 520)), model(image_of(3, 520)))


def test_an_example_of_a_lot_of_work_is_no_larger_than_a_watched_call() -> None:
    torch.manual_seed(0)
    model, observer = torch.nn.Linear(8, 8), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 8))
    samples = observer._watcher.store().samples
    (plan,) = observer.plans()
    runner = ModelRunner(model, "forward", observer.recording().signature)
    sizes = [find_example(Calls(plan, samples), Lab(runner, most_work=most)).sizes for most in (1, MOST_WORK)]
    assert sizes == [{"batch": 2}, {"batch": 3}]


def test_few_experiments_are_as_large_as_the_largest_call() -> None:
    lengths = Unreached()

    class Noting(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if type(ids) is torch.Tensor:
                lengths.append(int(ids.numel()))
            return super().forward(ids)

    model, observer = Noting().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(ids_of(2, 500))
    lengths.clear()
    observer.export()
    # the call again, in which axes are changed then, and each of its two axes larger
    assert sum(n > 200 for n in lengths) <= 3, lengths
    assert max(lengths) <= 1500


def test_a_graph_of_images_is_traced_at_sides_as_even_as_those_that_were_seen() -> None:
    """A first trace at sides of 48 is another side of ``side % 32``: a second one would follow."""
    torch.manual_seed(0)
    model, observer = Halving().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, side in ((2, 224), (5, 192)):
            model(image_of(rows, side))
    program = observer.export()
    sides = [size for size in program.graphs[0].sizes.values() if size > 10]
    assert sides
    assert all(side % 32 == 0 and side < 192 for side in sides), sides


def test_few_runs_without_values_tell_whether_small_sizes_stand_for_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is made for sizes below others that are too small, for other batches of the same image, or
    for a watched call that is little work by itself.
    """
    known, shapes = Lab.shapes_of_run, []

    def noted(lab: Lab, arguments: dict[str, Any], *, why: str) -> Any:
        (image,) = arguments.values()
        shapes.append(tuple(image.shape[2:]))
        return known(lab, arguments, why=why)

    monkeypatch.setattr(Lab, "shapes_of_run", noted)
    torch.manual_seed(0)
    model, observer = Shrinking().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, side in ((2, 224), (5, 192)):
            model(image_of(rows, side))
    program = observer.export()
    assert program.verify().verified
    small = [shape for shape in shapes if max(shape) < 192]
    assert 0 < len(small) <= 4, shapes
    assert len([shape for shape in small if max(shape) < 24]) <= 1, shapes


class Table(torch.nn.Module):
    """Takes 90 columns at least: small sizes are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(90))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)[:, :90] + self.weight


@pytest.mark.slow
def test_sizes_that_are_refused_write_nothing_on_the_screen(tmp_path: Path) -> None:
    """In a process of its own: torch's logs go to the stderr that torch found when it was imported."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/tests']\n"
        "import torch\n"
        "from onlooker import InputObserver\n"
        "from tests.lab.test_small_sizes import Table\n"
        "model, observer = Table().eval(), InputObserver()\n"
        "with observer(model), torch.no_grad():\n"
        "    model(torch.randn(2, 96)), model(torch.randn(3, 190))\n"
        "print(observer.export().verify().verified)\n"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run([sys.executable, str(script), root], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
    assert "broadcast" not in run.stderr
