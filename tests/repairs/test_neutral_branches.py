"""Branches that change nothing where their test fails are taken for all sizes, and only those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.model_source.source_tests import branch_asked_at, has_positions

pytestmark = pytest.mark.skipif(not has_positions(), reason="Python 3.10 does not know the place of a test")


class Merger(nn.Module):
    """Halves the sides of images three times; odd sides get a line of zeros before."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = (2, 2)
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 2, stride=2) for _ in range(3))

    def padded(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if width % self.patch[1] != 0:
            pads = (0, self.patch[1] - width % self.patch[1])
            x = functional.pad(x, pads)
        if height % self.patch[0] != 0:
            pads = (0, 0, 0, self.patch[0] - height % self.patch[0])
            x = functional.pad(x, pads)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(self.padded(x, x.shape[2], x.shape[3])).relu()
        return x.mean((2, 3))


class UNet(nn.Module):
    """Pads to a multiple of 16, goes down and up again, and cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 4, stride=4)
        self.lower = nn.Conv2d(4, 4, 4, stride=4)
        self.up = nn.ConvTranspose2d(4, 3, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        below, right = (16 - height % 16) % 16, (16 - width % 16) % 16
        was_padded = below > 0 or right > 0
        if was_padded:
            x = functional.pad(x, [0, right, 0, below], mode="constant", value=0.5)
        high = self.down(x)
        wide = functional.interpolate(self.lower(high), scale_factor=4.0, mode="nearest")
        x = self.up(high + wide)
        return x[..., :height, :width] if was_padded else x


def padded_to(x: torch.Tensor, multiple: int, mode: str) -> torch.Tensor:
    height, width = x.shape[-2:]
    below, right = (multiple - height % multiple) % multiple, (multiple - width % multiple) % multiple
    if below or right:
        return functional.pad(x, (0, right, 0, below), mode, 0.0)
    return x


class PadsByAFunction(nn.Module):
    """Pads in a function that returns early, by rows of the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 8, stride=8)
        self.up = nn.ConvTranspose2d(4, 3, 8, stride=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        return self.up(self.down(padded_to(x, 8, "reflect")))[..., :height, :width]


class PadsByItsShape(nn.Module):
    """Asks the tensor for its sides where it needs them, without a name for them; a shape of its own is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = (2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            if x.shape[-1] % self.shape[1] or x.size(-2) % self.shape[0]:
                x = functional.pad(x, (0, x.shape[-1] % self.shape[1], 0, x.size()[-2] % 2))
            x = functional.avg_pool2d(x, 2)
        return x


class CutsWhatIsLarger(nn.Module):
    """Makes images of three times the sides, from sides that are multiples of 4, and cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(3, 3, 3, stride=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        tall, wide = ((height - 1) // 4 + 1) * 4, ((width - 1) // 4 + 1) * 4
        x = self.grow(functional.pad(x, (0, wide - width, 0, tall - height), mode="replicate"))
        if width != wide or height != tall:
            x = x[:, :, : height * 3, : width * 3]
        return x


class Frames(nn.Module):
    """Attention within windows of 8 frames, the last one padded."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, frames, width = x.shape
        pad = -frames % 8
        if pad:
            x = functional.pad(x, (0, 0, 0, pad))
        windows = x.reshape(batch, (frames + pad) // 8, 8, width)
        query, key, value = self.project(windows).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        x = (weights @ value).reshape(batch, frames + pad, width)
        if pad > 0:
            x = x[:, :frames].contiguous()
        return x


def exported(model: nn.Module, *shapes: tuple[int, ...]) -> Program:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for shape in shapes:
            model(torch.randn(*shape))
    return observer.export()


def is_exact(program: Program, model: nn.Module, *shape: int) -> bool:
    """True where program and model give the same for an image of this shape, and leave the same of it."""
    ours = torch.randn(*shape)
    theirs = ours.clone()
    with torch.no_grad():
        expected, got = model(ours), program(theirs)
    torch.testing.assert_close(got, expected)
    return torch.equal(ours, theirs)


class PadsRowsOfChannels(nn.Module):
    """Pads rows of an image whose channels come last, as an image of another shape and in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 3, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        rows = x.flatten(2).transpose(1, 2)
        right, below = -width % 4, -height % 4
        if right or below:
            image = rows.view(batch, height, width, channels)
            image = functional.pad(image, (0, 0, 0, right, 0, below))
            rows = image.view(batch, -1, channels)
        if right or below:
            rows = functional.pad(rows.transpose(1, -1), (0, 0)).permute(0, 2, 1).contiguous()
        images = rows.view(batch, height + below, width + right, channels).permute(0, 3, 1, 2)
        return self.down(images).mean((2, 3))


IMAGES = ((1, 3, 64, 64), (3, 3, 96, 96), (2, 3, 72, 72), (2, 3, 65, 50), (1, 3, 49, 64), (4, 3, 33, 47))


@pytest.mark.parametrize(
    "model",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Merger(), UNet())),
        *(PadsByAFunction(), PadsByItsShape(), CutsWhatIsLarger(), PadsRowsOfChannels()),
    ],
)
def test_images_of_all_sides_are_one_graph(model: nn.Module) -> None:
    program = exported(model, (2, 3, 64, 64))
    assert len(program.graphs) == 1
    assert program.verify().verified
    assert all(is_exact(program, model, *shape) for shape in IMAGES)


@pytest.mark.slow
def test_frames_of_all_lengths_are_served() -> None:
    """Frames of one window and of several are two graphs, since torch makes other views of one."""
    model = Frames()
    program = exported(model, (2, 40, 6))
    assert len(program.graphs) <= 2
    assert program.verify().verified
    assert all(is_exact(program, model, *shape) for shape in ((1, 48, 6), (3, 41, 6), (2, 7, 6), (2, 23, 6)))


@pytest.mark.slow
def test_the_report_names_the_branch() -> None:
    graph, *_ = exported(Frames(), (2, 40, 6)).graphs
    assert any("if pad:" in note and "taken for all sizes" in note for note in graph.notes)


class _Other(nn.Module):
    """Something in the branch is not as it was where the test fails."""


class PadsMore(_Other):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 2 != 0:
            x = functional.pad(x, (0, 0, 0, 2))
        return x.cumsum(1)


class PadsOneOfTwo(nn.Module):
    """An even width gets two columns where the height is odd: the branch is neutral for even heights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[1:]
        if height % 2 == 1 or width % 2 == 1:
            x = functional.pad(x, (0, 2 - width % 2))
        return x.cumsum(2)


class SetsFlag(_Other):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1
        pad = -x.shape[1] % 4
        if pad > 0:
            scale = 3
            x = functional.pad(x, (0, 0, 0, pad))
        return x * scale


class CountsPads(_Other):
    """The attribute is another one after a call that pads."""

    scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        self.scale = 1
        if pad > 0:
            self.scale = 5
            x = functional.pad(x, (0, 0, 0, pad))
        return x * self.scale


class Writes(_Other):
    """Without a pad the model writes to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        if pad > 0:
            x = functional.pad(x, (0, 0, 0, pad))
        x.mul_(2)
        return x + 1


class Asks(_Other):
    """Without a pad the memory of the tensor is as it was given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        pad = -x.shape[1] % 4
        if pad > 0:
            x = functional.pad(x, (0, 0, 0, pad))
        return x * (2 if x.is_contiguous() else 3)


class AsksWhich(_Other):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x
        pad = -x.shape[1] % 4
        if pad > 0:
            x = functional.pad(x, (0, 0, 0, pad))
        return x * (2 if x is given else 3)


class CutsToo(_Other):
    """Where nothing is padded, the last two rows stay."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        pad = -rows % 4
        if pad > 0:
            x = functional.pad(x, (0, 0, 0, pad))[:, : rows - 2]
        return x * 2


class ReturnsMore(_Other):
    """Returns early what is another tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.doubled(x) + 1

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        if pad:
            return functional.pad(x, (0, 0, 0, pad))
        return x * 2


class AsksTheCaller(_Other):
    """The caller of a function that returns early asks which tensor it got."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.padded(x)
        return found * (2 if found is x else 3)

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        if pad:
            return functional.pad(x, (0, 0, 0, pad))
        return x


class ReadsName(_Other):
    """A name that has the value of a test is a number, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:]
        padded = rows % 2 == 1 or columns % 2 == 1
        if padded:
            x = functional.pad(x, (0, columns % 2, 0, rows % 2))
        return x * (2 if not padded else 3)


def _doubled(x: torch.Tensor, pads: Any) -> torch.Tensor:
    return functional.pad(x, pads) * 2


class CallsOwn(_Other):
    """The function is one of the model's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        if pad > 0:
            x = _doubled(x, (0, 0, 0, pad))
        return x


class PadsInAnotherOrder(_Other):
    """Back in the old shape, yet not in the old order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, columns = x.shape
        pad = -rows % 4
        if pad:
            x = functional.pad(x.transpose(1, 2), (0, pad)).reshape(batch, rows + pad, columns)
        return x.cumsum(1)


class PadsAnotherShape(_Other):
    """Back in the old shape by another order than the one that it has not left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, columns = x.shape
        pad = -rows % 4
        if pad:
            x = functional.pad(x.reshape(batch, columns, rows), (0, pad)).transpose(1, 2)
        return x.cumsum(1)


class KeepsTheOrder(_Other):
    """The other order stays."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = -x.shape[1] % 4
        if pad:
            x = functional.pad(x.transpose(1, 2), (0, pad))
        return x.cumsum(1)


class PadsByAnotherNumber(_Other):
    """By a number that is not 0 wherever the test fails."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 4:
            x = functional.pad(x, (0, 0, 0, x.shape[1] % 3))
        return x.cumsum(1)


class PadsByTheOtherSide(_Other):
    """The side that is asked for is not the one that is padded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(-2) % 2:
            x = functional.pad(x, (0, x.size(-1) % 2))
        return x.cumsum(1)


OTHERS = (
    PadsByAnotherNumber,
    PadsInAnotherOrder,
    PadsByTheOtherSide,
    PadsAnotherShape,
    KeepsTheOrder,
    PadsMore,
    SetsFlag,
    CountsPads,
    Writes,
    Asks,
    AsksWhich,
    CutsToo,
    ReturnsMore,
    AsksTheCaller,
    ReadsName,
    CallsOwn,
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cls", OTHERS)
def test_other_branches_are_decided(cls: type[nn.Module]) -> None:
    """The program is exact on both sides, or refuses one of them."""
    model = cls()
    program = exported(model, (2, 8, 6), (3, 12, 14))
    assert not any("taken for all sizes" in note for graph in program.graphs for note in graph.notes)
    assert served(program, model) >= 2


def test_a_branch_may_be_neutral_on_one_side_of_another_condition() -> None:
    model = PadsOneOfTwo()
    assert served(exported(model, (2, 8, 6), (3, 12, 14)), model) == 6


def served(program: Program, model: nn.Module) -> int:
    """How many calls are served, exactly; others are refused."""
    found = 0
    for shape in ((3, 8, 6), (2, 16, 6), (2, 9, 6), (2, 12, 7), (2, 7, 7), (2, 10, 6)):
        try:
            found += is_exact(program, model, *shape)
        except RejectedCallError:
            continue
    return found


SOURCE = """
def first(n, m):
    if n > 2 or m > 3:
        n = n + 1
    return n

def second(n, m):
    if n > 2:
        n = n + 1
    else:
        n = n - 1
    if 1 < m < n:
        m = m + 1
    return n
"""


def jumps(function: Any) -> list[int]:
    import dis

    names = ("POP_JUMP", "TO_BOOL")
    return [one.offset for one in dis.get_instructions(function) if one.opname.startswith(names)]


def made(source: str, file: Path) -> dict[str, Any]:
    file.write_text(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec", dont_inherit=True), names)
    return names


def test_the_test_of_an_instruction_is_found(tmp_path: Path) -> None:
    function = made(SOURCE, tmp_path / "model.py")["first"]
    found = [branch_asked_at(function.__code__, offset) for offset in jumps(function)]
    assert {len(test.others) for test in found if test is not None} == {0, 1}


def test_a_branch_with_another_side_is_none(tmp_path: Path) -> None:
    function = made(SOURCE, tmp_path / "model.py")["second"]
    assert jumps(function)
    assert not any(branch_asked_at(function.__code__, offset) for offset in jumps(function))


def test_a_source_that_changed_is_not_read(tmp_path: Path) -> None:
    function = made(SOURCE.replace("n = n + 1", "n = n + 7"), tmp_path / "model.py")["first"]
    assert jumps(function)
    assert not any(branch_asked_at(function.__code__, offset) for offset in jumps(function))
