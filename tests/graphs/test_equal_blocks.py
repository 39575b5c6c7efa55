"""One program for equal blocks: which are equal, what tells them apart, and how it is served and saved."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import EntriesError, Observers, Programs, UnsupportedError, UsageError
from onlooker.core.verdict import Focus
from onlooker.verify.trials import chosen_trials

SCALES: weakref.WeakKeyDictionary[torch.nn.Module, float] = weakref.WeakKeyDictionary()


class Block(torch.nn.Module):
    """A block with a number of its own, as those of transformers have, and a flag."""

    def __init__(self, number: int, *, is_gated: bool = False, width: int = 8) -> None:
        super().__init__()
        self.number, self.is_gated = number, is_gated
        self.norm = torch.nn.LayerNorm(4)
        self.up, self.down = torch.nn.Linear(4, width), torch.nn.Linear(width, 4)
        self.register_buffer("shift", torch.full((4,), float(number)), persistent=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(torch.relu(self.up(self.norm(x)))) + self.shift
        if self.is_gated:
            y = y.sigmoid()
        return x + (y if scale is None else y * scale)


class Numbered(Block):
    """Computes with its number."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) * self.number


class Listed(Block):
    """Computes with what a table outside of it has for it."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) * SCALES.get(self, 1.0)


class Model(torch.nn.Module):
    """Runs blocks one after the other."""

    def __init__(self, *blocks: torch.nn.Module) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=x.mean())
        return x


def equal_blocks(count: int = 4) -> Model:
    torch.manual_seed(0)
    return Model(*(Block(number) for number in range(count))).eval()


def watched(model: Model, **entries: Any) -> Observers:
    with torch.no_grad(), onlooker.observe(**(entries or {"block": model.blocks})) as observers:
        for rows, length in ((2, 5), (3, 7), (1, 4)):
            model(torch.randn(rows, length, 4))
    return observers


@pytest.fixture(scope="module")
def exported() -> tuple[Model, Programs]:
    model = equal_blocks()
    return model, watched(model).export()


def test_equal_blocks_are_one_program_with_their_weights_as_an_argument(
    exported: tuple[Model, Programs],
) -> None:
    model, programs = exported
    assert list(programs) == ["block"]
    program = programs["block"]
    assert len(program.graphs) == 1
    assert list(program.weights) == ["0", "1", "2", "3"]
    assert {*program.weights["0"]} == {*dict(model.blocks[0].named_parameters()), "shift"}
    artifact = program.graphs[0].artifact
    assert not artifact.state_dict
    assert not artifact.constants
    assert programs.verify().verdict == "verified"
    symbols = {symbol.name for symbol in program.plans[0].symbols}
    assert symbols == {"batch", "x_dim_1"}, "no axis of a weight is a size"
    x = torch.randn(5, 2, 4)
    for name, block in enumerate(model.blocks):
        got = program(x, scale=torch.tensor(2.0), weights=program.weights[str(name)])
        assert torch.equal(got, block(x, scale=torch.tensor(2.0)))


def test_watching_leaves_the_blocks_as_they_are() -> None:
    model = equal_blocks()
    before = [dict(vars(block)) for block in model.blocks], dict(vars(Block))
    with onlooker.observe(block=model.blocks) as observers:
        model(torch.randn(2, 5, 4)).sum().backward()
    assert ([dict(vars(block)) for block in model.blocks], dict(vars(Block))) == before
    assert all(weight.grad is not None for weight in model.parameters())
    assert len(observers["block"].recording()) == 4
    assert observers["block"].recording().model.endswith(".Block")


def test_values_are_kept_of_one_block_in_each_run() -> None:
    model = equal_blocks()
    calls = watched(model)["block"].kept_calls()
    assert [call["x"].shape[0] for call in calls] == [2, 3, 1]
    assert [call["weights"]["shift"][0].item() for call in calls] == [0, 1, 2]


def test_a_program_runs_in_each_block(exported: tuple[Model, Programs]) -> None:
    model, programs = exported
    x = torch.randn(4, 6, 4)
    with torch.no_grad():
        want = model(x)
        with programs.installed() as served:
            got = model(x)
        assert torch.equal(got, want)
        assert served["block"].calls["main"] == 4
        with programs["block"].installed(list(model.blocks)) as one:
            assert torch.equal(model(x), want)
        assert one.calls["main"] == 4
        assert torch.equal(model(x), want)
    with pytest.raises(UsageError, match="weights for block 3") as refused, one_of(programs, model):
        pass
    assert refused.value.slug == "no-such-block"


def one_of(programs: Programs, model: Model) -> Any:
    return programs.installed({"block": model.blocks[:3]})


def test_weights_are_those_of_the_blocks_at_each_call(exported: tuple[Model, Programs]) -> None:
    model, programs = exported
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        model.blocks[1].down.weight.mul_(2.0)
        want = model(x)
        with programs.installed():
            assert torch.equal(model(x), want)
        model.blocks[1].down.weight.div_(2.0)


def test_a_saved_program_has_the_weights_of_all_blocks_beside_one_graph(
    exported: tuple[Model, Programs], tmp_path: Path
) -> None:
    model, programs = exported
    program = programs["block"]
    program.save(tmp_path / "program", values=True)
    files = {file.name for file in (tmp_path / "program").iterdir()}
    assert {file for file in files if file.endswith(".pt2")} == {"main.pt2"}
    assert "blocks.safetensors" in files
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, onlooker.Program)
    x = torch.randn(4, 6, 4)
    with torch.no_grad():
        want = model(x)
        empty = equal_blocks()
        for weight in empty.parameters():
            weight.zero_()
        with loaded.installed(empty.blocks):
            assert torch.equal(empty(x), want)
    assert loaded.verify(model=model.blocks).verdict == "verified"
    with pytest.raises(UsageError, match="no model"), loaded.installed():
        pass


def test_a_damaged_folder_is_refused(exported: tuple[Model, Programs], tmp_path: Path) -> None:
    _, programs = exported
    programs["block"].save(tmp_path / "program")
    (tmp_path / "program" / "blocks.safetensors").unlink()
    with pytest.raises(onlooker.SavedFileError):
        onlooker.load(tmp_path / "program")


def test_no_script_is_written(exported: tuple[Model, Programs]) -> None:
    with pytest.raises(UnsupportedError) as refused:
        exported[1]["block"].code()
    assert refused.value.slug == "no-code-for-blocks"


@pytest.mark.slow
def test_blocks_that_differ_have_programs_of_their_own() -> None:
    torch.manual_seed(0)
    blocks = [Block(0), Block(1, is_gated=True), Block(2, width=6), Block(3), Block(4, is_gated=True)]
    model = Model(*blocks).eval()
    programs = watched(model).export()
    assert {name: list(program.weights) for name, program in programs.items()} == {
        "block_0": ["0", "3"],
        "block_1": ["1", "4"],
        "block_2": ["2"],
    }
    x = torch.randn(4, 6, 4)
    with torch.no_grad():
        want = model(x)
        with programs.installed() as served:
            assert torch.equal(model(x), want)
    assert [one.calls["main"] for one in served.values()] == [2, 2, 1]


@pytest.mark.parametrize("change", ["tensor", "hook", "training", "method"])
def test_whatever_a_block_holds_tells_it_apart(change: str) -> None:
    model = equal_blocks(3)
    block = model.blocks[1]
    if change == "tensor":
        for number, one in enumerate(model.blocks):
            one.table = torch.full((4,), 0.0 if number == 1 else 1.0)
    elif change == "hook":
        block.register_forward_hook(lambda module, inputs, output: output * 2)
    elif change == "training":
        block.norm.train()
    else:
        block.up.forward = lambda x: x
    with onlooker.observe(block=model.blocks) as observers:
        pass
    assert list(observers) == ["block_0", "block_1"]


def test_a_number_that_is_read_is_not_lifted() -> None:
    model = Model(*(Numbered(number) for number in range(1, 4))).eval()
    with pytest.raises(EntriesError) as refused:
        watched(model).export()
    error = refused.value.refusals["block"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "blocks-differ"
    assert "number is read" in str(error)


class Asking(Block):
    """Asks for the class of its number, which a stand-in has not, for long texts alone."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x, scale)
        return y * 2 if x.shape[1] > 5 and isinstance(self.number, int) and self.number == 2 else y


class AskingWithout(Block):
    """Asks for the class of its number where an argument is left out, which no watched call does."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x, scale)
        return y * 2 if scale is None and isinstance(self.number, int) and self.number == 2 else y


class Looking(Block):
    """Looks its number up."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) * {0: 1.0, 1: 1.0, 2: 3.0}[self.number]


class Typed(Block):
    """Asks for the very class of its number, of the first block and for long texts alone."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x, scale)
        return y * 2 if x.shape[1] > 5 and type(self.number) is int and self.number == 0 else y


@pytest.mark.parametrize("kind", [Asking, Looking, Typed])
def test_a_number_that_is_read_in_another_way_is_not_lifted(kind: type[Block]) -> None:
    model = Model(*(kind(number) for number in range(3))).eval()
    with pytest.raises(EntriesError) as refused:
        watched(model).export()
    error = refused.value.refusals["block"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "blocks-differ"


def test_a_call_that_reads_the_number_is_refused() -> None:
    model = Model(*(AskingWithout(number) for number in range(3))).eval()
    programs = watched(model).export()
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        want = model(x)
        with programs.installed():
            assert torch.equal(model(x), want)
            with pytest.raises(onlooker.RejectedCallError, match="scale"):
                model.blocks[2](x)


@pytest.mark.slow
def test_a_block_that_a_table_outside_knows_is_found() -> None:
    model = Model(*(Listed(number) for number in range(4))).eval()
    SCALES[model.blocks[3]] = 3.0
    with pytest.raises(EntriesError) as refused:
        watched(model).export()
    error = refused.value.refusals["block"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "blocks-differ"
    assert "block 3" in str(error)


def test_blocks_without_a_copy_are_refused() -> None:
    locked = Block(0)
    locked.lock = threading.Lock()
    for block in (locked, torch.nn.LazyLinear(4)):
        with pytest.raises(UnsupportedError) as refused:
            onlooker.observe(block=[block, block])
        assert refused.value.slug == "not-copied"


def test_a_block_that_stands_twice_in_the_list_is_one() -> None:
    model = equal_blocks(2)
    model.blocks.insert(1, model.blocks[0])
    programs = watched(model).export()
    assert list(programs["block"].weights) == ["0", "2"]
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        want = model(x)
        with programs.installed() as served:
            assert torch.equal(model(x), want)
    assert served["block"].calls["main"] == 3


def test_a_list_of_anything_else_is_no_entry() -> None:
    for entry in ([], torch.nn.ModuleList(), [torch.nn.Linear(2, 2), 3]):
        with pytest.raises(UsageError) as refused:
            onlooker.observe(block=entry)
        assert refused.value.slug == "bad-entry"


def test_trials_of_extreme_values_leave_the_weights(exported: tuple[Model, Programs]) -> None:
    program = exported[1]["block"]._program
    trials = chosen_trials(program.contents.graphs, program.samples, program.kept, weights=program.argument_of_weights)
    extreme = [trial for trial in trials if trial.focus is Focus.EXTREME]
    assert any(trial.arguments["x"].abs().max() == 1e3 for trial in extreme)
    own = [weights["up.weight"] for weights in exported[1]["block"].weights.values()]
    for trial in extreme:
        assert any(torch.equal(trial.arguments["weights"]["up.weight"], weight) for weight in own)
