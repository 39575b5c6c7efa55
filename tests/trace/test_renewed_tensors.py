"""Tensors that each call puts in the place of others: a model that reads them keeps state, whatever the values were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, Program, RejectedCallError


class Keeps(torch.nn.Module):
    """Has places for tensors: a buffer, an attribute, a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.tensor(0.0))
        self.register_buffer("table", torch.arange(16.0), persistent=False)
        self.peaks, self.by_name = [torch.tensor(0.0)], {"peak": torch.tensor(0.0)}


class GreatestInABuffer(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peak = torch.maximum(self.peak, x.max())
        return x - self.peak


class LastMean(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x - self.peak
        self.peak = x.mean()
        return result


class GreatestInAList(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peaks[0] = torch.maximum(self.peaks[0], x.max())
        return x - self.peaks[0]


class GreatestInANewList(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peaks = [torch.maximum(self.peaks[0], x.max())]
        return x - self.peaks[0]


class GreatestInANewDict(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.by_name = {"peak": torch.maximum(self.by_name["peak"], x.max())}
        return x - self.by_name["peak"]


class GreaterTable(Keeps):
    """Makes another table where the one that it has is too short."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.table.shape[0]:
            self.table = torch.arange(float(x.shape[1]))
        return x + self.table[: x.shape[1]]


class TableOfADtype(Keeps):
    """Puts the same table back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x.device).to(x.dtype)
        return x + self.table[: x.shape[1]]


class ViewOfATable(Keeps):
    """Puts another tensor of the same memory back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.contiguous().view(-1)
        return x + self.table[: x.shape[1]]


class OnlyWrites(Keeps):
    """Leaves its last result behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peak = x.max()
        return x - self.peak


class CutsAfterACall(torch.nn.Module):
    """Cuts a long input where a call came before, which no watched call is long enough for."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * 1.0
        if self.last is not None:
            result = result[:, :17]
        self.last = result
        return result


class MakesATable(torch.nn.Module):
    """Makes a table in its first call, and keeps its last result, which it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(64.0)
        self.last = x + self.table[: x.shape[1]]
        return self.last * 2


def exported(model: torch.nn.Module, *, greatest_first: bool) -> Program:
    torch.manual_seed(0)
    first, second = torch.randn(2, 4), torch.randn(2, 6)
    first[0, 0] = 9.0 if greatest_first else 0.0
    second[0, 0] = 0.0 if greatest_first else 9.0
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(first)
        model(second)
    return observer.export()


@pytest.mark.filterwarnings("ignore:Outputs depend on earlier calls")
@pytest.mark.parametrize("greatest_first", [True, False])
@pytest.mark.parametrize("kind", [GreatestInABuffer, LastMean, GreatestInAList, GreatestInANewList, GreatestInANewDict])
@pytest.mark.one_in(2)
def test_a_model_that_reads_what_it_renews_is_refused(kind: type[Keeps], greatest_first: bool) -> None:
    with pytest.raises(ExportError, match=r"keeps state.*(peak|peaks|by_name)") as caught:
        exported(kind(), greatest_first=greatest_first)
    assert caught.value.slug == "model-keeps-state"


@pytest.mark.parametrize("kind", [GreaterTable, TableOfADtype, ViewOfATable, OnlyWrites])
@pytest.mark.one_in(2)
def test_tables_and_last_results_are_no_state(kind: type[Keeps]) -> None:
    model = kind()
    program = exported(model, greatest_first=True)
    assert program.verify().verified
    for fill in (1.0, 20.0, 1.0):
        x = torch.full((2, 5), fill)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.filterwarnings("ignore:Outputs depend on earlier calls")
def test_a_model_that_asks_whether_a_call_came_before_keeps_state() -> None:
    with pytest.raises(ExportError, match=r"keeps state.*last .*is not None") as caught:
        exported(CutsAfterACall(), greatest_first=True)
    assert caught.value.slug == "model-keeps-state"


@pytest.mark.parametrize("kind", [CutsAfterACall, MakesATable])
def test_whether_a_call_came_before_is_state(kind: type[torch.nn.Module]) -> None:
    model, observer = kind(), InputObserver(state=True)
    with observer(model):
        for shape in ((2, 4), (3, 7), (5, 9), (2, 6), (4, 5)):
            model(torch.randn(shape))
    program, fresh = observer.export(), kind()
    assert program.verify().verified
    assert any("last" in str(leaf.path) for graph in program.graphs for leaf in graph.plan.inputs) == (
        kind is CutsAfterACall
    )
    with program.installed(model), torch.no_grad():
        vars(model).update(vars(kind()) if kind is MakesATable else {"last": None})
        for shape in ((2, 4), (3, 18), (5, 20)):
            x = torch.randn(shape)
            torch.testing.assert_close(model(x), fresh(x))


class ThroughData(torch.nn.Module):
    """A queue that is read far back, and that torch does not see written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(30, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.queue.data = torch.cat([x[:1], self.queue.data[:-1]])
        return x + self.queue[20]


def test_a_buffer_that_is_written_through_its_data_is_state() -> None:
    model, observer = ThroughData(), InputObserver()
    with observer(model):
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    queue = model.queue.clone()
    with pytest.raises(ExportError, match="changes what it reads, queue"):
        observer.export()
    assert torch.equal(model.queue, queue)


def program_of(model: torch.nn.Module, *calls: torch.Tensor) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for x in calls:
            model(x)
    return observer.export()


class Features(torch.nn.Module):
    """Keeps the results of its layers by hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.found: dict[Any, torch.Tensor] = {}
        self.rows: list[torch.Tensor] = []
        for place, layer in enumerate(self.layers):
            layer.register_forward_hook(lambda _, args, result, place=place: self.found.update({place: result}))


class ByKeys(Features):
    def forward(self, x):
        self.layers(x)
        return self.found[0], self.found.get(1)


class AfterClearing(Features):
    def forward(self, x):
        self.found.clear()
        self.rows.clear()
        self.layers(x)
        self.rows += [x, 2 * x]
        return [2 * one for one in self.found.values()], torch.stack(self.rows), len(self.found)


class OfSomeSizes(Features):
    def forward(self, x):
        if x.shape[0] != 5:
            self.found[7] = x
        return self.found[7] + 1


class Unlike(Features):
    def forward(self, x):
        self.layers(x)
        return self.found[0] * len(self.found)


class OfTheLastCall(Features):
    def forward(self, x):
        last = self.found.get(0)
        self.layers(x)
        return self.found[0] if last is None else self.found[0] + last.mean() * 0


@pytest.mark.parametrize("kind", [ByKeys, AfterClearing])
@pytest.mark.one_in(2)
def test_what_a_call_puts_into_a_dict_and_reads_is_no_state(kind: type[Features]) -> None:
    model = kind().eval()
    program = program_of(model, *(torch.randn(n, 4) for n in (2, 3, 6)))
    assert program.verify().verified
    for n in (1, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.slow
def test_a_size_at_which_the_key_is_of_an_earlier_call_is_refused() -> None:
    program = program_of(OfSomeSizes().eval(), *(torch.randn(n, 4) for n in (2, 3, 6)))
    assert program.verify().verified
    with pytest.raises(RejectedCallError):
        program(torch.randn(5, 4))


@pytest.mark.parametrize("kind", [Unlike, OfTheLastCall])
@pytest.mark.one_in(2)
def test_keys_of_an_earlier_call_are_state(kind: type[Features]) -> None:
    with pytest.raises(ExportError) as caught:
        program_of(kind().eval(), *(torch.randn(n, 4) for n in (2, 3, 6)))
    assert caught.value.slug == "model-keeps-state"


def test_an_attribute_that_begins_as_the_data_of_a_parameter_is_no_parameter() -> None:
    """``spectral_norm`` sets ``weight`` in each call, which begins as ``weight_orig.data``."""
    layer = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 3))
    model = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    program = program_of(model, torch.randn(2, 4), torch.randn(3, 4))
    assert program.verify().verified
    x = torch.randn(7, 4)
    torch.testing.assert_close(program(x), model(x))
