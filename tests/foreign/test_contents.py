"""Every row of a table, and the sizes around the numbers of a file, are tried."""

from __future__ import annotations

import copy
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker.foreign.findings import Kind
from onlooker.foreign.open import open_exported
from onlooker.foreign.torch_contents import contents_of_program

ROWS = 100
WRONG_ROW = 37


class Looked(torch.nn.Module):
    """Rows of a table, and a line after them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, 8)
        self.line = torch.nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.line(self.table(ids))


class Columns(torch.nn.Module):
    """Two columns of ids with tables of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = torch.nn.Embedding(10, 8), torch.nn.Embedding(ROWS, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.few(ids[:, 0]) + self.many(ids[:, 1] - 5)


class Shifted(torch.nn.Module):
    """Adds a number; a file may add more where a sequence is long."""

    def __init__(self, beyond: int = 0) -> None:
        super().__init__()
        self.beyond = beyond

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.beyond:
            return x + 1
        late = torch.arange(x.shape[1]) >= self.beyond
        return x + 1 + 0.5 * late.to(x.dtype)


class Counted(torch.nn.Module):
    """Adds the place; a file may count up to a number alone."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        return x + (places.clamp(max=self.most) if self.most else places)


DIMS = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
MAKERS = ("pt2", "onnx", "openvino")


def watched(model: torch.nn.Module, calls: list[torch.Tensor]) -> onlooker.Program:
    observer = onlooker.InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for call in calls:
            model(call)
    return observer.export()


@functools.cache
def looked() -> tuple[Looked, onlooker.Program]:
    torch.manual_seed(0)
    model = Looked()
    sizes = ((2, 5), (3, 9), (4, 7))
    return model, watched(model, [torch.randint(0, ROWS, size).clamp(max=30) for size in sizes])


def made(model: torch.nn.Module, example: torch.Tensor, maker: str, dims: Any, folder: Path) -> Any:
    """An export of one maker, in which the dims are dynamic."""
    if maker == "pt2":
        return torch.export.export(model.eval(), (example,), dynamic_shapes=(dims,))
    importlib.import_module("onnx")
    program = torch.onnx.export(model.eval(), (example,), dynamic_shapes=(dims,), dynamo=True, verbose=False)
    path = folder / "model.onnx"
    program.save(path)
    if maker == "onnx":
        return path
    openvino = pytest.importorskip("openvino")
    openvino.save_model(openvino.convert_model(path), folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("maker", MAKERS)
def test_a_wrong_row_that_no_call_reads_is_found(maker: str, tmp_path: Path) -> None:
    model, program = looked()
    example = torch.zeros(3, 9, dtype=torch.int64)
    right = onlooker.verify_export(program, made(model, example, maker, DIMS, tmp_path))
    assert right.holds, str(right)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.table.weight[WRONG_ROW] *= 1.5
    report = onlooker.verify_export(program, made(other, example, maker, DIMS, tmp_path))
    assert [(one.kind, one.where) for one in report.failures] == [(Kind.VALUES, "ids")], str(report)
    assert f"id {WRONG_ROW}, of {ROWS} rows" in report.failures[0].text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("cls", [Shifted, Counted])
@pytest.mark.one_in(4)
@pytest.mark.slow
def test_a_number_that_sizes_are_compared_with_is_tried(cls: Any, maker: str, tmp_path: Path) -> None:
    program = watched(cls(), [torch.rand(size) for size in ((2, 5), (3, 9), (4, 7))])
    file = made(cls(64), torch.rand(3, 70), maker, DIMS, tmp_path)
    contents = open_exported(file).contents
    assert contents is not None
    assert 64 in contents.numbers
    report = onlooker.verify_export(program, file)
    assert not report.holds
    assert re.search("= (65|66)", str(report.failures[0]))


@pytest.mark.filterwarnings("ignore")
def test_columns_have_ids_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Columns()
    calls = [torch.stack([torch.randint(0, 10, (n,)), torch.randint(5, 30, (n,))], 1) for n in (4, 9)]
    program, dims = watched(model, calls), {0: torch.export.Dim("batch")}
    assert onlooker.verify_export(program, made(model, calls[0], "pt2", dims, tmp_path)).holds
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.many.weight[80] += 1
    report = onlooker.verify_export(program, made(other, calls[0], "pt2", dims, tmp_path))
    assert "id 85" in report.failures[0].text


@pytest.mark.filterwarnings("ignore")
def test_a_table_that_is_longer_in_the_file_holds(tmp_path: Path) -> None:
    model, program = looked()
    padded = copy.deepcopy(model)
    padded.table = torch.nn.Embedding(128, 8)
    with torch.no_grad():
        padded.table.weight[:ROWS] = model.table.weight
    example = torch.zeros(3, 9, dtype=torch.int64)
    report = onlooker.verify_export(program, made(padded, example, "pt2", DIMS, tmp_path))
    assert report.holds, str(report)


@pytest.mark.filterwarnings("ignore")
def test_the_tables_and_numbers_of_inner_graphs_are_read() -> None:
    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(50, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            def long(ids: torch.Tensor) -> torch.Tensor:
                return self.table(ids.clamp(0, 40))

            def short(ids: torch.Tensor) -> torch.Tensor:
                return self.table(ids)

            return torch.cond(ids.sum() > 7, long, short, (ids,))

    program = torch.export.export(Inner(), (torch.zeros(3, 9, dtype=torch.int64),), dynamic_shapes=(DIMS,))
    contents = contents_of_program(program)
    assert contents.rows == {"ids": 50}
    assert contents.numbers == (7, 40)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_hides_its_graph_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Looked()
    program = watched(model, [torch.arange(n) for n in (5, 9, 7)])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.table.weight[WRONG_ROW] *= 1.5
    for one, holds in ((model, True), (other, False)):
        dims = {0: torch.export.Dim("count")}
        exported = made(one, torch.zeros(9, dtype=torch.int64), "pt2", dims, tmp_path)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
        report = onlooker.verify_export(program, package, machine_code=True)
        assert report.holds == holds, str(report)
        assert not holds or report.verdict == "holds, though the graph of this file cannot be read"
