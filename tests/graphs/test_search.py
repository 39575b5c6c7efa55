"""Which other sides of conditions are traced: those of sizes of interest, and what is free."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.patches.swap import swapped
from onlooker.trace import torch_export


class Halving(nn.Module):
    """Convolutions that halve the sides; how each is padded hangs on what is odd."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(1, 1, 3, stride=2) for _ in range(levels))

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(nn.functional.pad(x, self.pads(x.shape[2], x.shape[3])))
        return x.mean((2, 3))


class OnOtherSides(Halving):
    """An even side is padded behind, an odd one on both ends: no graph does both."""

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        left = 0 if width % 2 == 0 else 1
        above = 0 if height % 2 == 0 else 1
        return left, 1, above, 1


class OnOneSide(Halving):
    """An odd side is padded by one more at its end: a graph with that pad does both."""

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        if height % 2 == 1 or width % 2 == 1:
            return 1, 1 + width % 2, 1, 1 + height % 2
        return 1, 1, 1, 1


class Frames(nn.Module):
    """The energy of windows of six samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(-1, 6, 3).pow(2).sum(-1)


def test_the_graph_of_a_length_of_one_window_gives_way_to_that_of_any_length() -> None:
    observer, model = InputObserver(), Frames()
    with observer(model):
        for rows, length in ((2, 20), (3, 33)):
            model(torch.randn(rows, length))
    (graph,) = observer.export().graphs
    assert not graph.fixed_axes
    ((_, shape),) = graph.outputs.kinds
    assert shape[0] == "batch"
    assert "x_dim_1" in shape[1]


def places(x: torch.Tensor) -> torch.Tensor:
    sides = (torch.linspace(-1, 1, side // 2) for side in x.shape[2:])
    return torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)


def table_of_places(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(32.0).reshape(1, 2, 4, 4)
    return nn.functional.interpolate(table, size=(x.shape[2] // 4, x.shape[3] // 4)).flatten(2)


class OfSides(nn.Module):
    """Makes a tensor of the sides of an image alone."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) + 0 * x.mean()


@pytest.mark.parametrize("function", [places, table_of_places])
def test_converters_get_shapes_of_general_sides(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    # where a quarter of a side is 1, torch has it as a number; the graph of such a trace is right for all sides
    observer, model = InputObserver(), OfSides(function)
    with observer(model):
        for rows, height, width in ((2, 16, 16), (1, 24, 20)):
            model(torch.randn(rows, 3, height, width))
    program = observer.export()
    ((_, shape),) = program.graphs[0].outputs.kinds
    assert "x_dim_2" in "".join(shape)
    assert "x_dim_3" in "".join(shape)
    for one in (program, program.to("onnx"), program.to("openvino")):
        assert one.verify().verified, one.tally.summary


def traced(model: nn.Module, *sizes: tuple[int, int], **options: Any) -> tuple[Program, int]:
    found = 0
    export = torch_export._export

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        found += 1
        return export(*args, **kwargs)

    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for height, width in sizes:
            model(torch.randn(2, 1, height, width))
    with swapped(torch_export, "_export", counted):
        return observer.export(**options), found


def sides(low: int, high: int) -> dict[str, tuple[int, int]]:
    return {"x_dim_2": (low, high), "x_dim_3": (low, high)}


def test_sides_that_no_call_had_are_refused_unless_they_are_asked_for() -> None:
    model = OnOtherSides(3).eval()
    program, traces = traced(model, (64, 64))
    assert traces <= 3
    assert len(program.graphs) == 1
    x = torch.randn(3, 1, 96, 128)
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match="% 2"):
        program(torch.randn(3, 1, 63, 64))


def test_a_side_that_several_layers_halve_is_in_steps_of_all_of_them() -> None:
    program, _ = traced(OnOtherSides(3).eval(), (64, 64))
    (served,) = program.report.served
    steps = {found.term: found.words for found in served.sets}
    assert {"x_dim_2", "x_dim_3"} <= set(steps)
    assert all(steps[f"x_dim_{dim}"].endswith("in steps of 8") for dim in (2, 3)), steps
    assert not any("// 2" in term or "// 4" in term for term in served.limited)
    refused = str(program.report)[str(program.report).index("refused") :]
    for dim in (2, 3):  # what changes a refusal is never cut
        assert re.search(rf"ranges=\{{'x_dim_{dim}':\s+\(\d+,\s+None\)\}}\)", refused), refused


@pytest.mark.slow
def test_the_sides_that_are_asked_for_have_a_bounded_number_of_graphs() -> None:
    program, traces = traced(OnOtherSides(3).eval(), (64, 64), ranges=sides(32, 128))
    assert 4 <= len(program.graphs) <= traces <= 16
    assert any("not every side" in note for graph in program.graphs for note in graph.notes)


def test_all_sides_of_few_remainders_have_graphs_where_they_are_asked_for() -> None:
    model = OnOtherSides(1).eval()
    for options in ({"ranges": sides(16, 64)}, {"dynamic": {"x": [2, 3]}}):
        program, _ = traced(model, (64, 64), **options)
        for height, width in ((32, 48), (33, 48), (48, 35), (51, 35)):
            x = torch.randn(3, 1, height, width)
            torch.testing.assert_close(program(x), model(x))


def test_sides_that_one_graph_serves_are_looked_at_without_being_asked_for() -> None:
    model = OnOneSide(1).eval()
    program, _ = traced(model, (64, 64))
    assert len(program.graphs) == 1
    for height, width in ((96, 48), (63, 48), (51, 61)):
        x = torch.randn(3, 1, height, width)
        torch.testing.assert_close(program(x), model(x))


class Threshold(nn.Module):
    """Two ways, with a border at 40: each is a graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] < 40 else x.cumsum(1)


def test_the_graph_of_most_calls_is_main() -> None:
    model, observer = Threshold(), InputObserver()
    with observer(model):
        for length in (8, 50, 60, 70):
            model(torch.randn(2, length))
    program = observer.export()
    assert [graph.name for graph in program.graphs] == ["main", "main_2"]
    assert program.graphs[0].contract.holds({"batch": 2, "x_dim_1": 50})


def test_sizes_between_watched_ones_are_served() -> None:
    model, observer = Threshold(), InputObserver()
    with observer(model):
        model(torch.randn(2, 8)), model(torch.randn(3, 70))
    program = observer.export()
    for length in (9, 39, 40, 41, 69):
        x = torch.randn(4, length)
        torch.testing.assert_close(program(x), model(x))


class Windows(nn.Module):
    """Windows of 4 rows; what is missing in the last one is a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.filling = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        pad = -rows % 4
        if pad > 0:
            x = torch.cat([x, self.filling.expand(batch, pad, width)], dim=1)
        x = x.view(batch, (rows + pad) // 4, 4, width).softmax(2).view(batch, rows + pad, width)
        return x[:, :rows]


def test_the_graph_for_one_row_is_that_of_all_rows_that_fill_no_window() -> None:
    """Three rows are one window, which torch keeps: the rows of a trace are more than fill one."""
    model, observer = Windows().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 8, 6))
        model(torch.randn(3, 12, 6))
    program = observer.export()
    assert len(program.graphs) == 2
    for shape in ((2, 1, 6), (1, 3, 6), (2, 9, 6), (3, 15, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))


def test_a_first_trace_off_the_path_of_the_calls_is_left_out() -> None:
    """A general small example would be below the border: no watched call is there."""
    model, observer = Threshold(), InputObserver()
    with observer(model):
        model(torch.randn(2, 50)), model(torch.randn(3, 77))
    program = observer.export()
    assert [graph.name for graph in program.graphs] == ["main"]
    x = torch.randn(4, 61)
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match="40"):
        program(torch.randn(2, 39))


class Patches(nn.Module):
    """Patches of images with positions, which are stretched for all images but squares of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, 4, 8, 8), nn.Parameter(torch.randn(1, 4, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        height, width = x.shape[2:]
        if height * width == 16 and height == width:
            return (x + self.positions).flatten(1)
        return (x + nn.functional.interpolate(self.positions, size=(height, width))).flatten(1)


def test_the_batch_is_free_of_a_side_on_which_all_images_are_squares() -> None:
    """No other sizes are on the side, and no two of these differ."""
    model, observer = Patches().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    program = observer.export()
    for batch in (1, 4):
        images = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(program(images), model(images))


class Experts(nn.Module):
    """Loops over the experts that rows choose: a graph holds for the choices of its example."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number in sorted(set(chosen.flatten().tolist())):
            rows = torch.where(chosen == number)
            out[rows] = self.experts[number](x[rows])
        return out


@pytest.mark.slow
def test_few_traces_are_made_for_calls_that_no_graph_of_values_takes() -> None:
    torch.manual_seed(0)
    model, observer, traces = Experts(), InputObserver(), 0
    export = torch_export._export

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal traces
        traces += 1
        return export(*args, **kwargs)

    with observer(model, store_n_calls=6), torch.no_grad():
        for length in range(2, 8):
            model(torch.randn(1, length, 8))
    with swapped(torch_export, "_export", counted):
        program = observer.export()
    assert traces <= 30  # 62 with five attempts for each of four calls
    assert not program.verify().verified


class Inverses(torch.nn.Module):
    """Takes matrices of three rows alone, however their numbers come; other sizes have no inverse in a trial."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.reshape(-1, 3, 3)) @ torch.ones(3, 5)


@pytest.mark.slow
def test_axes_that_no_call_changed_keep_their_size_where_no_other_sizes_are_lawful() -> None:
    model, observer = Inverses(), InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3):  # which is the number of rows too
            model(torch.randn(batch, 3, 3))
    program = observer.export()
    for batch in (1, 5):
        x = torch.randn(batch, 3, 3)
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified
