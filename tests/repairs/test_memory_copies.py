"""A tensor that sizes make contiguous or not is copied in a trace, unless something writes to either of the two."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.nn import functional
from transformers import VitDetConfig, VitDetModel

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.memory_copies import may_write_to_copies
from onlooker.repairs.numbers.sized_operators import SizedOperators
from onlooker.repairs.trace_mode import reading


class Windows(torch.nn.Module):
    """Pads to windows of 4, and cuts again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[1:]
        x = functional.pad(x, (0, -columns % 4, 0, -rows % 4)).softmax(1)
        return x[:, :rows, :columns].contiguous() * 2


class WritesToCopy(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + 1
        part = x[:, : y.shape[1]].contiguous()
        part.view(-1)[:1].add_(5)
        return x, part


class WritesToSource(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + 1
        part = x[:, : y.shape[1]].contiguous()
        x.t()[0].mul_(7)
        return x, part


class WritesToCopyOfCopy(torch.nn.Module):
    """The first of three names is written to, the last one is read."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + 1
        part = x[:, : y.shape[1]].contiguous()
        last = part.t()[: y.shape[1]].t().contiguous()
        x.t()[0].mul_(7)
        return last


class WritesToArgument(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, : y.shape[1]].contiguous().mul_(7)


class WritesBefore(torch.nn.Module):
    """What is written before the copy is in both."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = (x + 1).relu_()
        return x, x[:, : y.shape[1]].contiguous()


class ReadsNoMore(torch.nn.Module):
    """Nothing reads the other one of the two after the write."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + 1
        total = x.sum()
        return x[:, : y.shape[1]].contiguous().relu_() * total


def watched(model: torch.nn.Module, *shapes: tuple[tuple[int, ...], ...]) -> InputObserver:
    observer = InputObserver()
    with observer(model):
        for each in shapes:
            model(*(torch.randn(*shape) for shape in each))
    return observer


def test_windows_of_all_sizes_are_one_graph() -> None:
    model = Windows()
    program = watched(model, ((2, 8, 6),), ((3, 5, 11),)).export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for shape in ((1, 8, 8), (2, 7, 12), (4, 12, 9), (1, 1, 1)):
        x = torch.randn(*shape)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.slow
def test_windows_of_attention_are_cut_for_all_sizes() -> None:
    """Without copies there are six regions, with conditions on the windows: each cut decides by its own sizes."""
    config = VitDetConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=64, patch_size=8)
    config.window_size, config.window_block_indices = 3, [0]
    model, observer = VitDetModel(config).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for shape in ((2, 3, 64, 64), (1, 3, 48, 72)):
            model(pixel_values=torch.randn(*shape))
    (graph,) = observer.export().graphs
    assert len(graph.contract.regions) == 1


class OnlyReads(torch.nn.Module):
    """Writes to a result that shares no memory with either of the two."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + 1
        part = x[:, : y.shape[1]].contiguous()
        return x, part, (part * 2).add_(1)


WRITES = (
    (OnlyReads, False),
    (WritesBefore, False),
    (ReadsNoMore, False),
    (WritesToCopy, True),
    (WritesToSource, True),
    (WritesToCopyOfCopy, True),
    (WritesToArgument, True),
)


@pytest.mark.parametrize(("kind", "writes"), WRITES)
def test_a_graph_that_writes_to_a_copy_or_to_its_source_is_found(kind: type[torch.nn.Module], writes: bool) -> None:
    class Copying(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = kind()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with reading(SizedOperators(copies=True)):
                return self.model(x, y)

    dynamic = ({1: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC})
    args = (torch.randn(3, 9), torch.randn(2, 5))
    program = torch.export.export(Copying(), args, dynamic_shapes=dynamic, strict=False)
    clones = program.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert clones
    assert may_write_to_copies(program) is writes


class Scan(torch.nn.Module):
    """A state in place: ``scan`` begins with a copy of what is written to afterwards."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        def step(before: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
            after = before * 0.5 + row
            return [after, after * 2]

        begun = state.clone(memory_format=torch.contiguous_format)
        last, rows = scan(step, begun, x)
        state.copy_(last)
        return rows


def test_a_copy_that_a_scan_begins_with_may_be_written_to_afterwards() -> None:
    args = (torch.randn(5, 3), torch.randn(3))
    program = torch.export.export(Scan(), args, strict=False)
    clones = [n for n in program.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert clones
    assert not may_write_to_copies(program)


@pytest.mark.parametrize("kind", [kind for kind, _ in WRITES])
def test_what_is_written_to_one_of_them_is_in_the_other_where_the_model_has_one(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model, ((2, 9), (2, 4)), ((3, 7), (3, 5))).export()
    for columns, part in ((9, 9), (9, 4), (5, 8), (6, 6)):
        x, y = torch.randn(2, columns), torch.randn(2, part)
        try:
            found = program(x, y)
        except RejectedCallError:
            continue  # a refusal is right, other numbers are not
        torch.testing.assert_close(found, model(x, y))
