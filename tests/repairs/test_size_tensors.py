"""Sizes that go through tensors and ``int()``, and branches on values: one graph for other sizes all the same."""

from __future__ import annotations

import argparse
import builtins
import importlib
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anchors_of_sizes
import numpy as np
import pytest
import torch

from onlooker import InputObserver, OnlookerError
from onlooker.repairs.numbers.size_ints import ints_stay_sizes
from onlooker.repairs.numbers.size_tensors import _EXACT, _MOST_ADDED, SizeTensors
from onlooker.repairs.trace_mode import reading
from unreached import Unreached

HERE = sys.modules[__name__]


def options(arguments: list[str]) -> argparse.Namespace:
    """Options of a program beside a model: a parser takes a type by its name, and makes no dtype of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int)
    parser.add_argument("--factor", type=float)
    return parser.parse_args(arguments)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def quotient(x: torch.Tensor) -> torch.Tensor:
    n = torch.div(x.size(1), 2, rounding_mode="trunc")
    return x[:, : 2 * (x.size(1) // 2)].reshape(x.size(0), n, 2)


def minus_one(x: torch.Tensor) -> torch.Tensor:
    n = torch.div(x.size(1), 2, rounding_mode="floor") - 1
    return x[:, : n + 1] * 2


def rest(x: torch.Tensor) -> torch.Tensor:
    missing: Any = torch.fmod(torch.tensor(x.size(1)), torch.tensor(4)).item()
    return torch.cat([x, x[:, :1].repeat(1, missing)], 1)


def whole_blocks(x: torch.Tensor) -> torch.Tensor:
    n = torch.as_tensor(x.shape[1]) // 2 * 2
    return x[:, :n].reshape(x.shape[0], -1, 2)


def reflected(x: torch.Tensor) -> torch.Tensor:
    n = 1 + torch.tensor(x.shape[1]).to(torch.int32)
    return torch.cat([x, x.new_zeros(x.shape[0], 1)], dim=1).reshape(-1, n)


def levels(x: torch.Tensor) -> torch.Tensor:
    """A level and its half, of which a tensor has the sizes."""
    batch, height, width = x.shape[0], x.shape[1] // 2, 2
    shapes = torch.as_tensor([(height, width), (height, 1)], dtype=torch.long)
    rows = torch.cat([x[:, : 2 * height], x[:, :height]], 1)
    parts = rows.split([int(h * w) for h, w in shapes], 1)
    first, second = (part.view(batch, int(h), int(w)) for part, (h, w) in zip(parts, shapes, strict=True))
    return first + second


def halves(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (torch.tensor(x.shape) // 2).tolist()
    return x.reshape(-1)[: 4 * rows * columns].reshape(rows, columns, 4)


def blocks(x: torch.Tensor) -> torch.Tensor:
    shape = torch.as_tensor([[1, x.shape[0]], [x.shape[1], 1]])
    return x.reshape(*(shape.prod(1) * 2 - shape.prod(dim=1)), 1)


def last_one(x: torch.Tensor) -> torch.Tensor:
    shape = torch.tensor(x.shape)
    return x[: shape[0].item(), : shape[1:][0].item() - 1].reshape(x.shape[0], -1, 1)


class Sized(torch.nn.Module):
    """Cuts by a number that it computes of its sizes in some way."""

    def __init__(self, cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x)


def exported(model: torch.nn.Module, *calls: Any) -> Any:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export()


def put_in_places(x: torch.Tensor) -> torch.Tensor:
    shapes = torch.empty((2, 2), dtype=torch.long)
    for level in range(2):
        shapes[level, 0], shapes[level, 1] = x.shape[1] // (level + 1), 2
    begins = torch.cat((shapes.new_zeros((1,)), shapes.prod(1).cumsum(0)))
    rows = torch.cat([x, x, x[:, : 2 * (x.shape[1] // 2)]], 1)
    parts = rows.split([begins[1] - begins[0], begins[2] - begins[1]], 1)
    return parts[0].view(x.shape[0], shapes[0, 1], shapes[0][0]) + parts[1].mean()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.new_tensor([[x.shape[1], 1]]).amax()


def stacked(x: torch.Tensor) -> torch.Tensor:
    shape = torch.stack([torch.tensor(x.shape[1]) - 1, torch.tensor(2)])
    return x[:, : shape[0].item()].reshape(x.shape[0], shape[0], 1)


CUTS = [
    quotient,
    minus_one,
    rest,
    whole_blocks,
    reflected,
    levels,
    halves,
    blocks,
    last_one,
    put_in_places,
    scaled,
    stacked,
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_a_size_goes_through_a_tensor(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Sized(cut)
    program = exported(model, (rand(2, 7),), (rand(3, 9),))
    for shape in ((2, 11), (4, 19), (1, 23)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape))), shape
    assert len(program.graphs) == 1


class Rewritten(torch.nn.Module):
    """Changes a tensor of sizes before it takes one out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = torch.tensor(x.shape)
        rows = shape[:1]
        shape[0], shape[1:] = 2, x.argmax()
        rows[0] += 0
        return x[: int(rows[0])] + x[: int(shape[0])]


def test_a_tensor_of_sizes_that_is_written_to_has_its_new_sizes() -> None:
    program = exported(Rewritten(), (rand(4, 7),), (rand(5, 9),))
    for shape in ((6, 7), (3, 19)):
        assert torch.equal(program(rand(*shape)), Rewritten()(rand(*shape))), shape


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
@pytest.mark.one_in(2)
def test_no_number_of_a_trace_is_unknown(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}

    class Traced(Sized):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with reading(SizeTensors()):
                return super().forward(x)

    program = torch.export.export(Traced(cut), (rand(3, 7),), dynamic_shapes={"x": auto}, strict=False)
    assert all(str(symbol).startswith("s") for symbol in program.range_constraints)


@pytest.mark.parametrize("value", [-7, 7, 8])
def test_what_is_below_zero_is_left_to_torch(value: int) -> None:
    with reading(SizeTensors()):
        assert torch.fmod(torch.tensor(value), 4).item() == torch.tensor(value).fmod(4).item()
        assert torch.div(value, 4, rounding_mode="trunc").item() == int(value / 4)


class Halved(torch.nn.Module):
    """Makes ints of sizes, of floats and of texts, and asks what an int is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(x.shape[1] / 2)
        place = int(x.shape[1] + int("1")) * int(2.5)
        assert isinstance(n, int)
        return x[:, : n + 1] * place


def test_an_int_of_a_size() -> None:
    assert options(["--size", "3"]).size == 3
    program = exported(Halved(), (rand(2, 8),), (rand(3, 6),))
    for shape in ((2, 9), (4, 20), (1, 13)):
        assert torch.equal(program(rand(*shape)), Halved()(rand(*shape))), shape
    assert any(
        note.startswith("int(), len() and range() of a size are read as sizes") for note in program.graphs[0].notes
    )


class Padded(torch.nn.Module):
    """Pads to whole blocks by way of floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = float(x.shape[1])
        assert isinstance(width, float)
        whole = int(math.ceil(width / 4.0) * 4.0)
        return torch.nn.functional.pad(x, (0, whole - x.shape[1])).reshape(x.shape[0], -1, 4)


class Mapped(torch.nn.Module):
    """Makes ints of all sizes at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = map(int, x.shape)
        return x.reshape(batch * length).cumsum(0)


class WholeFrames(torch.nn.Module):
    """Pads a signal to the length that its layers give back, which is the greatest of three sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = torch.nn.Conv1d(1, 2, 8, 4), torch.nn.ConvTranspose1d(2, 1, 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = math.ceil(x.shape[1] * 1)
        for _ in range(2):
            length = max(math.ceil((length - 8) / 4) + 1, 1)
        for _ in range(2):
            length = (length - 1) * 4 + 8
        length = math.floor(length / 1)
        padded = torch.nn.functional.pad(x[:, None], (0, int(length) - x.shape[1]))
        return self.back(self.there(padded))


class MovedThere(torch.nn.Module):
    """Has a layer follow its input, which is there already."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = int(x.shape[1] * 2 / 3)
        return self.layer.to(x.device)(x[:, :kept, None])


@pytest.mark.parametrize("model", [Mapped, WholeFrames, MovedThere])
def test_ints_of_sizes_beside_what_torch_refuses(model: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    forward = model().eval()
    program = exported(forward, (rand(2, 80),), (rand(3, 101),))
    assert len(program.graphs) == 1
    for shape in ((2, 90), (4, 230), (1, 3)):
        x = rand(*shape)
        torch.testing.assert_close(program(x), forward(x))
    assert program.verify().verified


class OfHelper(torch.nn.Module):
    """Calls an object of a class in another file."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = anchors_of_sizes.Anchors()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held(x) + x[:, : int(x.shape[1] * 2 / 3)]


class OfTable(OfHelper):
    """Calls a function of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.held = anchors_of_sizes.TABLE

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held["sum"](x)


class OfValue(OfHelper):
    """The other file makes a size of a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held.counts((x[0] * 5).abs().long())


@pytest.mark.parametrize("model", [OfHelper, OfTable, OfValue])
def test_ints_of_sizes_in_files_that_no_module_is_of(model: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    forward = model()
    program = exported(forward, (rand(2, 9),), (rand(3, 14),))
    assert len(program.graphs) == 1
    assert program.verify().verified
    for shape in ((5, 30), (1, 4)):
        x = rand(*shape)
        torch.testing.assert_close(program(x), forward(x))
    assert "int" not in vars(anchors_of_sizes)


def test_a_float_of_a_size() -> None:
    program = exported(Padded(), (rand(2, 8),), (rand(3, 6),))
    for shape in ((2, 9), (4, 20), (1, 13)):
        assert torch.equal(program(rand(*shape)), Padded()(rand(*shape))), shape
    assert len(program.graphs) == 1
    assert program.verify().verified


class SmallerScale(torch.nn.Module):
    """Resizes by the smaller of two floats of sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        scale = min(8 / min(height, width), 16 / max(height, width))
        return x[:, :, : int(scale * height), : int(scale * width)]


@pytest.mark.slow
def test_the_smaller_of_two_floats_is_no_branch() -> None:
    def images(height: int, width: int) -> torch.Tensor:
        return rand(2, 3, height, width)

    model = SmallerScale()
    program = exported(model, (images(20, 24),), (images(12, 17),))
    for sides in ((21, 30), (10, 90), (64, 12)):
        assert torch.equal(program(images(*sides)), model(images(*sides))), sides


KINDS = """
import torch
from torch import Tensor, nn

class Kinds(nn.Module):
    # uses int and float for dtypes, in the file in which it calls them
    def forward(self, x: Tensor) -> Tensor:
        half = int(float(x.shape[1]) / 2.0)
        zeros = torch.zeros(half, dtype=float).sum().to(int)
        known = [type(2) is int, type(2.0) in (int, float), isinstance(half, (int, float))]
        assert all(known)
        return x.to(float)[:, : half + 1] + zeros
"""


def test_types_stay_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes ``int`` and ``float`` for dtypes, and no class that stands for them."""
    (tmp_path / "kinds_of_numbers.py").write_text(KINDS)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("kinds_of_numbers").Kinds()
    with ints_stay_sizes(model):
        assert torch.equal(model(rand(2, 6)), rand(2, 6).to(torch.float64)[:, :4])
    program = exported(model, (rand(2, 8),), (rand(3, 6),))
    for shape in ((4, 8), (5, 6)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape)))


def test_a_file_that_only_calls_types_has_what_stands_for_them() -> None:
    with ints_stay_sizes(Padded()):
        assert {"int", "float", "min", "max"} <= set(vars(HERE))
        assert (float("2.5"), float(2), isinstance(2, float), isinstance(2.0, float)) == (2.5, 2.0, False, True)
        assert (min(2, 1.5), max([3, 4]), min(3, 4, key=lambda n: -n)) == (1.5, 4, 4)


def first_size(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(4).expand(len(x), 4) + x + ids[: len(ids)].sum()


def greatest_id(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(int(ids.max()) + 1, x.shape[1]).index_add(0, ids, x)


def mask_of_lengths(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (torch.arange(int(ids.max()))[None] < ids[:, None]).sum(1, keepdim=True) * x


def float_made_a_size(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x * torch.ones(int(ids.sum() / 2.0)).sum()


@pytest.mark.parametrize(
    "form", [first_size, greatest_id, mask_of_lengths, float_made_a_size], ids=lambda f: f.__name__
)
@pytest.mark.one_in(2)
def test_sizes_made_from_values_and_from_len(form: Callable[..., torch.Tensor]) -> None:
    """One graph serves every value, not one graph a value."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return form(x, ids)

    def call(*ids: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(len(ids), 4), torch.tensor(ids)

    program = exported(Net(), call(0, 2), call(3, 1, 4))
    assert len(program.graphs) == 1 or form is float_made_a_size  # such graphs are not compared
    assert program.verify().verified
    for values in (call(5, 1, 0, 2), call(6), call(1, 1, 1, 9, 2)):
        assert torch.equal(program(*values), form(*values)), values


def test_a_number_of_a_value_is_the_same_number_in_two_graphs_only_for_the_same_value() -> None:
    """Graphs are compared by the value that was read: ``item()`` of another value is another number."""

    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            greatest = ids.max() if x.shape[0] > 6 else ids.sum()
            return x * torch.ones(int(greatest)).sum()

    def call(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linspace(0, 1, 4 * rows).reshape(rows, 4), torch.arange(rows) + 1

    program = exported(Other(), call(3), call(9))
    for rows in (3, 5, 6, 7, 9):
        assert torch.equal(program(*call(rows)), Other()(*call(rows))), rows


class Blocks(torch.nn.Module):
    """Goes over blocks of eight, and over what is no size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        starts = range(0, x.shape[1], 8)
        sums = [x[:, start : start + 8].sum(1) for start in starts]
        assert isinstance(range(3), range)
        return torch.stack(sums, 1) * sum(range(2, 4))


def test_a_range_over_a_size_is_free_within_its_steps() -> None:
    program = exported(Blocks(), (rand(2, 5),), (rand(3, 6),))
    for shape in ((2, 7), (4, 8), (1, 3)):
        torch.testing.assert_close(program(rand(*shape)), Blocks()(rand(*shape)))


def test_int_is_put_back() -> None:
    def raises() -> None:
        with ints_stay_sizes(Halved()):
            assert vars(HERE)["int"] is not builtins.int
            assert (int("7"), int(2.9), int("ff", 16), isinstance(3, int)) == (7, 2, 255, True)
            raise KeyError

    before = dict(vars(HERE))
    with pytest.raises(KeyError):
        raises()
    assert dict(vars(HERE)) == before
    assert "int" not in vars(HERE)


class Masked(torch.nn.Module):
    """Takes another path where a mask has a zero."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if (mask == 0).any().item():
            return x * mask
        return x + 1.0


def test_a_branch_on_values_is_checked_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    model, ones = Masked(), torch.ones
    with caplog.at_level(logging.WARNING):
        program = exported(model, (rand(2, 7), ones(2, 7)), (rand(3, 5), ones(3, 5)))
    assert not [record for record in caplog.records if "propagate_real_tensors" in record.getMessage()]
    assert any("branch" in note for note in program.graphs[0].notes)
    for shape in ((4, 9), (1, 11)):
        assert torch.equal(program(rand(*shape), ones(*shape)), rand(*shape) + 1.0)
    mask = ones(4, 9)
    mask[0, 0] = 0.0
    with pytest.raises(OnlookerError, match="No graph of this program takes the call"):
        program(rand(4, 9), mask)


def test_both_sides_of_a_branch_on_values_get_a_graph() -> None:
    model, mask = Masked(), torch.ones(3, 5)
    mask[1, 2] = 0.0
    program = exported(model, (rand(2, 7), torch.ones(2, 7)), (rand(3, 5), mask))
    other = torch.ones(4, 9)
    other[3, 0] = 0.0
    for x, given in ((rand(4, 9), other), (rand(4, 9), torch.ones(4, 9))):
        assert torch.equal(program(x, given), model(x, given))


@torch.library.custom_op("onlooker_test_sizes::scaled", mutates_args=())
def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """An operator of a library, of which torch makes the float a number."""
    return x * scale


@scaled.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


class Scaled(torch.nn.Module):
    """Resizes a picture by floats, pads it to whole blocks, reads a scale from a tensor, and keeps some rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        scale = min(8 / min(height, width), 16 / max(height, width))
        small = torch.nn.functional.interpolate(
            x[None], scale_factor=scale, mode="bilinear", recompute_scale_factor=True
        )
        sides = [int(math.ceil(float(side) / 4) * 4) for side in small.shape[-2:]]
        padded = x.new_zeros(1, 3, *sides)
        padded[:, :, : small.shape[2], : small.shape[3]].copy_(small)
        pooled = torch.nn.functional.avg_pool2d(padded, 2)
        level = 2 ** float(torch.tensor(float(pooled.shape[2]) / float(sides[0])).log2().round())
        rows = pooled[0].flatten(1).T
        kept = rows[rows.sum(1) != 7]
        if kept.numel() == 0:
            return kept
        return scaled(kept, level)


@pytest.mark.slow
def test_sizes_that_floats_decide_and_branches_on_values() -> None:
    """What floats of sizes give is one value, and what an operator wants of a float is checked at run time."""

    def image(height: int, width: int) -> tuple[torch.Tensor]:
        return (rand(3, height, width),)

    model = Scaled()
    program = exported(model, image(24, 32), image(30, 20))
    for sides in ((21, 30), (10, 90), (64, 12), (33, 33)):
        torch.testing.assert_close(program(*image(*sides)), model(*image(*sides)), rtol=0, atol=0)
    assert program.verify().verified
    notes = [note for note in program.graphs[0].notes if note.startswith("a float that is computed of sizes")]
    assert len(notes) == 1


class Stepping(torch.nn.Module):
    """Makes a number of a size before everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended = Unreached(), Unreached()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            self.begun.append(1)
        half = int(x.shape[1] / 2)
        if torch.compiler.is_exporting():
            self.ended.append(1)
        return x[:, :half].tanh() + 1


def test_a_trace_that_makes_a_number_of_a_size_ends_there() -> None:
    model = Stepping().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 8))
        model(torch.randn(3, 14))
    program = observer.export()
    torch.testing.assert_close(program(torch.ones(4, 9)), model(torch.ones(4, 9)))
    assert len(model.begun) == len(model.ended) + 1


_CENTRES = """
def centre(width):
    return float(width - 1) / 2
"""


class Centred(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - centres_of_a_test.functions.centre(x.shape[1])  # type: ignore[name-defined]  # noqa: F821


def made_in_a_function() -> torch.nn.Module:
    import centres_of_a_test as centres  # type: ignore[import-not-found]

    class Within(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - centres.functions.centre(x.shape[1])

    return Within()


@pytest.mark.parametrize("make", [Centred, made_in_a_function])
def test_a_float_of_a_size_in_a_function_of_a_module_that_is_called_by_its_names(
    make: Callable[[], torch.nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``geometry.transform.centre(size)``, where the file of the model, or the function in which its class
    is made, has the package alone.
    """
    package = tmp_path / "centres_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("from . import functions\n")
    (package / "functions.py").write_text(_CENTRES)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("centres_of_a_test", "centres_of_a_test.functions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("centres_of_a_test")
    monkeypatch.setitem(globals(), "centres_of_a_test", module)
    model, observer = make(), InputObserver()
    with observer(model):
        model(torch.randn(2, 16))
        model(torch.randn(3, 20))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(4, 9)
    torch.testing.assert_close(program(x), model(x))


def test_sizes_that_tensors_remember_are_no_attributes_that_a_caller_gave() -> None:
    """What is remembered with a tensor of the trace is not asked of the inputs as the model would ask."""

    class Masks(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x.sum() * mask.sum()

    model, observer = Masks(), InputObserver()
    with observer(model):
        for rows in (2, 4):
            model(torch.randn(rows, 3), torch.ones(rows, 3, dtype=torch.long))
    (graph,) = observer.export().graphs
    assert "attributes" not in graph.marks


class PaddedByStep(torch.nn.Module):
    """A convolution whose padding follows from the length, by numbers in buffers."""

    def __init__(self, channels: int = 1, kernel: int = 8, stride: int = 4) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(channels, 4, kernel, stride)
        self.register_buffer("kernel", torch.tensor(kernel), persistent=False)
        self.register_buffer("stride", torch.tensor(stride), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, padding = x.shape[-1], self.kernel - self.stride
        frames = torch.ceil((length - self.kernel + padding) / self.stride + 1).to(torch.int64) - 1
        whole = frames * self.stride + self.kernel - padding
        result = self.conv(torch.nn.functional.pad(x, (padding, whole - length)))
        return result.relu() if result.shape[-1] > 1 else result


@pytest.mark.slow
def test_the_padding_of_a_step_in_a_buffer_follows_the_length() -> None:
    model = torch.nn.Sequential(PaddedByStep(), PaddedByStep(4, 7, 5))
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 1, 401))
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    for length in (21, 33, 64, 65, 1001):
        x = torch.randn(3, 1, length)
        torch.testing.assert_close(program(x), model(x))
    # floats of 32 bits round the quotient otherwise from some size on
    assert " to 8388" in str(program.report)


def test_a_buffer_that_counts_as_a_number_is_checked() -> None:
    """The graph holds its buffers, so another number in them is refused and never computed with."""
    model = Rounded(torch.tensor(4))
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 41))
    program = observer.export()
    x = torch.randn(2, 43)
    torch.testing.assert_close(program(x), model(x))
    model.step.fill_(5)
    with pytest.raises(OnlookerError):
        program(x)


class Rounded(torch.nn.Module):
    def __init__(self, step: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("step", step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.ceil((x.shape[1] - self.step) / self.step).long().item()
        return x[:, :count] if count > 2 else x * 2


def quotients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    size = torch.tensor(x.shape[1])
    changed, shifted = size / 4, size / 7
    changed.mul_(2)
    added = torch.ceil(size / 4)
    added += 2
    counts = (
        ((size - 9) / 2).long(),  # towards zero, also below it
        torch.round(size / 4).long(),
        torch.ceil(changed).long(),
        torch.ceil(size / 7 + 0.5).long(),
        torch.ceil(shifted + 8 + 8 + 8 - 8 - 8 - 8).long(),
        torch.ceil(torch.div(size, -3)).long(),
        torch.floor(size / 3 + 2).int(),
        added.long(),
    )
    return tuple(x[:, :count] for count in counts) if counts[1] > -9 else (x,)


def test_quotients_of_sizes_that_are_rounded_otherwise_are_left_to_torch() -> None:
    model, observer = Uses(quotients), InputObserver()
    with observer(model):
        model(torch.randn(2, 41))
    program = observer.export()
    for length in (9, 10, 11, 33, 64, 130, 1001):
        x = torch.randn(2, length)
        for got, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(got, expected)


class Uses(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("under", [1, 2, 3, 7, 96, 255, 320, 1023, 32767])
@pytest.mark.parametrize("added", [-8, 0, 1, 8])
def test_floats_round_quotients_as_ints_up_to_the_bound(under: int, added: int) -> None:
    most = _EXACT[torch.float32] - (_MOST_ADDED + added) * under - 1
    count = most // under
    near = torch.arange(max(count - 2000, 0), count) * under
    sizes = torch.cat([torch.arange(most - 4000, most), near, near + 1, near - 1, torch.arange(-3000, 3000)])
    sizes = sizes[sizes <= most]
    for divisor in (under, torch.tensor(under)):
        quotient = sizes / divisor + added
        assert torch.equal(torch.ceil(quotient).long(), -(-(sizes + added * under) // under))
        assert torch.equal(torch.floor(quotient).long(), (sizes + added * under) // under)


def lengths_of(layers: Any, length: int) -> int:
    """The length after some convolutions, as their documentation says."""
    for layer in layers:
        length = int((length + 2 * layer.padding[0] - (layer.kernel_size[0] - 1) - 1) / layer.stride[0] + 1)
    return length


class ManyLengths(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv1d(1, 1, 3, stride=1 + (number % 8 == 0), padding=1) for number in range(24)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = lengths_of(self.layers, x.shape[-1])
        for layer in self.layers:
            x = layer(x)
        return x if x.shape[-1] == length else torch.nn.functional.pad(x, (1, 1))


def test_a_length_that_follows_from_others_is_written_without_floats() -> None:
    model, observer = ManyLengths(), InputObserver()
    with observer(model):
        model(torch.randn(2, 1, 40))
    program = observer.export()
    assert program.verify().verified
    for length in (3, 7, 33, 64, 129):
        x = torch.randn(2, 1, length)
        torch.testing.assert_close(program(x), model(x))


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rounded towards zero, down and up, below zero too."""
    size = x.shape[1]
    cuts = (int((size - 9) / 2 + 1), math.floor((size - 9) / 2), math.ceil((size - 9) / 4 - 3), int((size - 9) / 2.5))
    cuts = (*cuts, int((size - 9) / (64 / 4 / 8)), math.floor(1 + (size - 9) / 4.0))
    cuts = (*cuts, int(math.floor(math.ceil((size - 9) / 4.0) * 4.0) / 2.0), math.floor(float(size) - 9.0 + 0.5))
    return tuple(x[:, cut:] for cut in cuts)


@pytest.mark.slow
def test_quotients_below_zero_are_rounded_as_python_does() -> None:
    model, observer = Uses(halves), InputObserver()
    with observer(model):
        model(torch.randn(2, 41))
    program = observer.export(ranges={"x_dim_1": (2, None)})
    for length in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 30, 77):
        x = torch.randn(2, length)
        for got, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(got, expected)


def chunks(x: torch.Tensor) -> torch.Tensor:
    """One chunk, as long as the whole."""
    length = x.shape[1]
    parts = []
    for start in range(0, length, length):
        parts.append(x[:, start : start + length] * 2)
    return torch.stack(parts).sum(0)


def test_a_range_whose_step_is_its_length_has_one_step() -> None:
    model, observer = Uses(chunks), InputObserver()
    with observer(model):
        model(torch.randn(2, 41))
    program = observer.export()
    assert program.verify().verified
    for length in (1, 7, 64):
        x = torch.randn(3, length)
        torch.testing.assert_close(program(x), model(x))


KINDS_ASKED = """
import torch
from torch import Tensor, nn

FACTORS = {int: 2, float: 3}

class Kinds(nn.Module):
    # asks for the types of numbers in the file in which it calls them
    def forward(self, x: Tensor) -> Tensor:
        known = [type(2) is int, type(2.0) in (int, float), type(x.shape[0]) == int, type(True) is not int]
        known += [type(x.shape[0]).__name__ == "int", str(type(2.0)) == "<class 'float'>"]
        assert all(known), known
        windows = x.repeat(16, 1)
        rows = int(windows.shape[0] / (16 * 16 / 4 / 4))
        return windows.view(rows, 16, -1).sum(1) * FACTORS[type(rows)] * FACTORS[type(rows / 2)]
"""


def test_a_file_that_asks_for_types_has_what_stands_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kinds_that_are_asked.py").write_text(KINDS_ASKED)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("kinds_that_are_asked").Kinds()
    program = exported(model, (rand(2, 8),), (rand(3, 6),))
    for shape in ((4, 8), (5, 6), (1, 3)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape)))
    assert "int" not in vars(sys.modules["kinds_that_are_asked"])


def counts_of(ids: torch.Tensor) -> np.ndarray:
    return ids.bincount(minlength=8).topk(3).indices.detach().cpu().numpy()


class ByArrays(torch.nn.Module):
    """Takes columns by an array of NumPy, and makes tensors of one."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns = counts_of(ids)
        x = x.clone()
        x[:, columns[:1]] = 0
        return x[:, columns], torch.as_tensor(columns) + 1, torch.tensor(columns) * torch.from_numpy(np.arange(3))


def test_an_array_of_numbers_of_a_trace_is_an_index() -> None:
    model = ByArrays()
    program = exported(
        model,
        (rand(2, 8), torch.tensor([1, 1, 1, 5, 5, 2])),
        (rand(3, 8), torch.tensor([7, 7, 7, 0, 0, 3, 3, 3, 3, 7])),
    )
    for ids in ([6, 6, 6, 2, 2, 1], [0, 0, 0, 0, 4, 4, 4, 7, 7]):
        call = rand(5, 8), torch.tensor(ids)
        for found, expected in zip(program(*call), model(*call), strict=True):
            assert torch.equal(found, expected)


class InInference(torch.nn.Module):
    """An integer in a tensor that is made in inference mode."""

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = torch.IntTensor([2])[0]
        return torch.tanh(x[:, :half]) * torch.sigmoid(x[:, half:4])


def test_an_integer_of_a_tensor_in_inference_mode() -> None:
    model = InInference()
    program = exported(model, (rand(2, 8),), (rand(3, 6),))
    for shape in ((4, 8), (5, 6), (1, 5)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape)))
