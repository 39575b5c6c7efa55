"""What a model remembers of a call is told by a run after another one; a large model runs without floats."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, Program, RejectedCallError
from onlooker.graphs.sides import side_runs
from onlooker.graphs.sides.way_runs import SizesOfModel
from onlooker.lab.lab import Lab
from onlooker.proofs.path_condition import symbol_of


class Remembers(torch.nn.Module):
    """Notes the length of a call, and that there was one, and computes without either."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.is_warm, self.window = False, 0
        self.last: torch.Tensor | None = None
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_warm, self.window = self.is_warm or True, min(x.shape[1], 4)
        return self.computed(self.layer(x)[:, : self.window])

    def computed(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class Warm(Remembers):
    """A later call of more than 6 rows is another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was_warm, self.is_warm = self.is_warm, True
        rows = self.layer(x)
        return rows.relu() if was_warm and x.shape[1] > 6 else rows


class Reads(Remembers):
    """Reads the values of floats in the first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was_warm, self.is_warm = self.is_warm, self.is_warm or bool(x.sum() < 1e9)
        return self.layer(x).relu() if was_warm else self.layer(x)


class Tables(Remembers):
    """The first call leaves a tensor behind, which later ones add."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.layer(x)
        if self.last is None:
            self.last = self.layer.weight.sum(0)
            return rows
        return rows + self.last


class Cuts(Remembers):
    """Later calls give a number of rows at most that no trial reaches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was_warm, self.is_warm = self.is_warm, True
        rows = self.layer(x)
        return rows[:, :50_000] if was_warm else rows


class Compares(Remembers):
    """Later calls have a threshold that no value of a trial reaches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was_warm, self.is_warm = self.is_warm, True
        rows = self.layer(x)
        return torch.where(rows > 1e30, rows * 2, rows) if was_warm else rows


class Position(Remembers):
    """A table that the first call makes, and a longer one makes anew."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is None or self.last.shape[0] < x.shape[1]:
            self.last = torch.arange(x.shape[1])[:, None] * torch.ones(4)
        return self.layer(x) + self.last[: x.shape[1]]


class BySize(Remembers):
    """A table for each number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tables is None:
            self.tables = {}
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1])[:, None] * torch.ones(4)
        return self.layer(x) + self.tables[x.shape[1]]


class Writes(Remembers):
    """Each call writes what stands in a buffer, and multiplies by it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_warm = self.is_warm or True
        return self.layer(x) * self.scale.fill_(1)


class InSteps(Remembers):
    """Takes multiples of 4 rows alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.layer(x)
        few = torch.nn.functional.max_pool1d(rows.mT, 4, ceil_mode=True).repeat_interleave(4, -1).mT
        self.is_warm = True
        return rows + few


class WarmInSteps(InSteps):
    """A later call is another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu() if self.is_warm else super().forward(x)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "onlooker")
    return caplog


def exported(model: torch.nn.Module) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        model(torch.randn(3, 5, 4))
    return observer.export()


def is_proven(log: pytest.LogCaptureFixture) -> bool:
    of_side = "after another call, without floats: main runs the same operators: True"
    return of_side in log.text


def test_numbers_that_do_not_matter_are_proven_without_values(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Lab, "is_dear", lambda *_: True)
    monkeypatch.setattr(side_runs._Way, "_compare_values", None)
    program = exported(Remembers())
    assert is_proven(log)
    assert program.verify().verified


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("model", [Warm, Reads, Tables, Cuts, Compares])
@pytest.mark.one_in(2)
def test_what_matters_is_found(
    model: type[torch.nn.Module],
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Lab, "is_dear", lambda *_: is_large)
    program = exported(model())
    assert "after another call: " in log.text
    assert not program.verify().verified


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("model", [Position, BySize])
@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_table_that_the_first_call_makes_is_compared_by_values(
    model: type[torch.nn.Module], is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "is_dear", lambda *_: is_large)
    watched = model()
    observer = InputObserver()
    with observer(watched.eval()), torch.no_grad():
        for length in (5, 7):
            watched(torch.randn(3, length, 4))
    assert observer.export().verify().verified


@pytest.mark.parametrize(("model", "is_same"), [(InSteps, True), (WarmInSteps, False)])
def test_a_call_after_one_whose_sizes_have_steps(model: type[torch.nn.Module], is_same: bool) -> None:
    watched = model()
    observer = InputObserver()
    with observer(watched.eval()), torch.no_grad():
        for length in (8, 12, 20):
            watched.is_warm = False
            watched(torch.randn(3, length, 4))
    program = observer.export()
    assert program.graphs[0].plan.symbol("x_dim_1").step == 4
    assert program.verify().verified == is_same


def test_runs_without_floats_say_nothing_of_a_buffer_that_is_written(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Lab, "is_dear", lambda *_: True)
    exported(Writes())
    assert "the call before leaves more than numbers behind" in log.text
    assert not is_proven(log)


class Upsamples(Remembers):
    """Each number of a call becomes many; the first call makes a table that all add."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is None:
            self.last = self.layer.weight.sum(0)
        rows = self.layer(x) + self.last
        return rows.repeat_interleave(1000, -1).cumsum(-1)[..., ::1000]


def test_a_run_that_would_keep_too_many_numbers_is_not_made(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(side_runs, "_MOST_NUMBERS", 3 * 5 * 4 * 1000)
    exported(Upsamples())
    assert "takes too much memory" in log.text


def test_what_is_computed_from_a_size_of_1_is_no_size_of_its_own() -> None:
    """A state of 4 rows and a step of 1 are 5 rows, whatever the batch of 5 is."""
    observer = InputObserver()
    model = torch.nn.Linear(4, 4)
    with observer(model):
        for rows, length in ((2, 5), (3, 7)):
            model(torch.randn(rows, length, 4))
    (plan,) = observer.plans()
    batch, sequence = plan.symbols
    known = SizesOfModel(frozenset({9}), (symbol_of(batch), symbol_of(sequence), 4 + symbol_of(sequence)), ())
    assert known.constants_at(plan, {batch.name: 5, sequence.name: 1}) == {9, 1, 5}
    assert known.constants_at(plan, {batch.name: 5, sequence.name: 2}) == {9}


class KeepsScores(torch.nn.Module):
    """Keeps its last scores, which nothing reads; its first two numbers of a row are indices."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.rows(self.indices(x[:, :2])) + x[:, 2:3, None]
        self.scores = (rows @ rows.mT).softmax(-1)
        return self.scores @ rows

    def indices(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()


class StrictLater(KeepsScores):
    """A later call refuses indices that the first one takes."""

    def indices(self, x: torch.Tensor) -> torch.Tensor:
        return x.long() if hasattr(self, "scores") else x.long().clamp(0, 6)


class KeepsSizes(torch.nn.Module):
    """Keeps the sizes of a call for another method, which computes a float of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.height, self.width = x.shape[1:]
        return self.scaled(x)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.height / 2.0) + self.width**0.5


def _rows_of(count: int) -> torch.Tensor:
    return torch.cat([torch.randint(0, 7, (count, 2)).float(), torch.rand(count, 2)], 1)


@pytest.mark.parametrize("model", [KeepsScores, KeepsSizes])
@pytest.mark.slow
def test_a_call_after_one_with_values_that_a_model_refuses(model: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    watched, observer = model(), InputObserver()
    with torch.no_grad(), observer(watched.eval()):
        for count in (4, 7):
            watched(torch.randn(2, count, 4) if model is KeepsSizes else _rows_of(count))
    assert observer.export().verify().verified


def test_a_later_call_that_refuses_what_the_first_one_takes() -> None:
    watched, observer = StrictLater().eval(), InputObserver()
    with torch.no_grad(), observer(watched):
        for count in (4, 7):
            watched(_rows_of(count))
            del watched.scores
    with pytest.raises(ExportError, match="keeps state"):
        observer.export()


class Policy(Remembers):
    """Keeps the distribution of a call, which checks its numbers, as the policies of stable-baselines3 do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = torch.distributions.Normal(self.layer(x), self.layer(x).exp())
        return self.last.mean + self.last.stddev


class PolicyOfSigns(Policy):
    """A later call looks at the signs of its answers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was_warm, self.is_warm = self.is_warm, True
        found = super().forward(x)
        return torch.where(found != 0, found, 1.0) if was_warm else found


@pytest.mark.parametrize(("model", "is_same"), [(Policy, True), (PolicyOfSigns, False)])
def test_a_check_of_numbers_is_the_same_in_a_trace_and_outside(model: type[torch.nn.Module], is_same: bool) -> None:
    assert exported(model()).verify().verified == is_same


class NormedWeights(Remembers):
    """A hook writes a weight before each call, an integer stands in a tensor of Python, and a length is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.utils.weight_norm(self.layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = torch.IntTensor([2])
        rows = self.layer(x)
        longest = (x[:, 0] < 1e9).sum()
        length = int(longest) + int(longest)
        return torch.clip(rows[:, : number[0]], max=1.0) + torch.zeros(length).sum()


class NormedByValues(NormedWeights):
    """A later call reads a value that the first one left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last, self.last = self.last, torch.IntTensor([x.shape[0]])
        return super().forward(x) if last is None else super().forward(x) * int(last[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("model", "is_same"), [(NormedWeights, True), (NormedByValues, False)])
def test_an_integer_that_python_puts_into_a_tensor_is_no_value(model: type[torch.nn.Module], is_same: bool) -> None:
    if is_same:
        assert exported(model()).verify().verified
    else:
        with pytest.raises(ExportError, match="keeps state"):
            exported(model())


class KeepsValues(Remembers):
    """A table for sizes that holds values of the call that made it: a later call of these sizes reads them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is None or self.last.shape[:2] != x.shape[:2]:
            self.last = self.made_of(x)
        return self.layer(self.rows_of(x)) + self.last

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def made_of(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class KeepsRows(KeepsValues):
    """A table of sizes alone."""

    def made_of(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[1]).expand(x.shape[:2]).unsqueeze(-1) / 10


class KeepsWords(KeepsValues):
    """The same for ids."""

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x, 4).float()

    def made_of(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows_of(x)


class KeepsFactor(KeepsValues):
    def forward(self, x: torch.Tensor, factor: Any = 1) -> torch.Tensor:
        if self.last is None or self.last.shape != x.shape:
            self.last = torch.ones(x.shape) * (factor if not factor_has_rows(factor) else factor[:, None, None])
        return self.layer(x) * self.last


def factor_has_rows(factor: Any) -> bool:
    return isinstance(factor, torch.Tensor) and factor.ndim == 1


@pytest.mark.parametrize(
    ("model", "calls", "is_same"),
    [
        (KeepsRows, [(torch.randn(2, 5, 4),)], True),
        (KeepsValues, [(torch.randn(2, 5, 4),)], False),
        (KeepsValues, [(torch.randn(2, 5, 4),), (torch.randn(3, 7, 4),)], False),
        (KeepsWords, [(torch.tensor([[1, 2, 3], [0, 1, 3]]),)], False),
        (KeepsFactor, [(torch.randn(2, 5, 4), torch.tensor([1.0, 3.0]))], False),
        (KeepsFactor, [(torch.randn(2, 5, 4), torch.tensor([1, 3]))], False),
        (KeepsFactor, [(torch.randn(2, 5, 4), torch.tensor(3))], False),
        (KeepsFactor, [(torch.randn(2, 5, 4), 3.0), (torch.randn(3, 6, 4), 2.0)], False),
    ],
)
@pytest.mark.one_in(2)
def test_a_table_for_sizes_that_holds_values_of_a_call(
    model: type[torch.nn.Module], calls: list[tuple[Any, ...]], is_same: bool
) -> None:
    observer, watched = InputObserver(), model().eval()
    with observer(watched), torch.no_grad():
        for arguments in calls:
            watched(*arguments)
    assert observer.export().verify().verified is is_same


class KeepsRowsInPlaces(Remembers):
    """Tables for sizes in a list and in a dict."""

    def __init__(self, by_name: bool) -> None:
        super().__init__()
        self.tables: Any = {"rows": torch.zeros(1)} if by_name else [torch.zeros(1)]
        self.place = "rows" if by_name else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tables[self.place].shape[:1] != x.shape[1:2]:
            self.tables[self.place] = torch.arange(x.shape[1]).unsqueeze(-1) / 10
        return self.layer(x) + self.tables[self.place]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("length", [None, 6])
@pytest.mark.one_in(2)
def test_a_table_for_sizes_in_a_container(by_name: bool, length: int | None) -> None:
    observer, model = InputObserver(), KeepsRowsInPlaces(by_name).eval()
    if length is not None:
        model(torch.randn(1, length, 4))
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5, 4))
    program = observer.export()
    assert model.tables[model.place].shape == (5, 1)
    assert program.verify().verified
    x = torch.randn(3, 7, 4)
    assert torch.equal(program(x), model(x))


class KeepsLast(Remembers):
    """What was made for the last size: as a pair, by the helper of another class, for ``int(size)``."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.pair = kind, None
        self.helper = Helper()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(x.shape[1]) if self.kind == "int" else x.shape[1]
        if self.kind == "helper":
            return self.layer(x) + self.helper.rows(n)
        if self.pair is None or self.pair[0] != n:
            self.pair: Any = (n, torch.arange(n).unsqueeze(-1) / 10)
        return self.layer(x) + self.pair[1]


class Helper:
    def __init__(self) -> None:
        self.size, self.held = 0, torch.zeros(1)

    def rows(self, n: int) -> torch.Tensor:
        if self.size != n:
            self.size, self.held = n, torch.arange(n).unsqueeze(-1) / 10
        return self.held


@pytest.mark.parametrize("kind", ["pair", "helper", "int"])
@pytest.mark.parametrize("before", [None, 5, 8])
@pytest.mark.one_in(4)
def test_a_model_that_was_used_before_it_was_watched_holds_for_the_sizes_of_that_use(
    kind: str, before: int | None
) -> None:
    observer, model = InputObserver(), KeepsLast(kind).eval()
    if before is not None:
        model(torch.randn(2, before, 4))
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5, 4))
    program = observer.export()
    assert program.verify().verified
    for batch, length in ((2, 5), (2, 8), (3, 7), (1, 1)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))


class OfFrames(torch.nn.Module):
    """Keeps what it made for a number of frames, by the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 8, 4, 2)
        self.size: Any = -1
        self.kept = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = self.conv(x[:, None]).transpose(1, 2)
        if frames.shape[1] != self.size:
            self.size = frames.shape[1]
            self.kept = torch.arange(self.size).unsqueeze(-1) / x.shape[1]
        return frames + self.kept


class OfBlocks(OfFrames):
    """Keeps a mask of 5 of 8 rows for 6 of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (x.shape[1] + 7) // 8 * 8
        if size != self.size:
            self.size, self.kept = size, (torch.arange(size) < x.shape[1]).float()
        return torch.nn.functional.pad(x, (0, size - x.shape[1]), value=1.0) * self.kept


class OfNumel(OfFrames):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.size != x.numel():
            self.size, self.kept = x.numel(), torch.arange(x.shape[1]).float().sum()
        return x * self.kept


class OfNumber(OfFrames):
    """Keeps the mean of the first call with a number, or of numbers."""

    def forward(self, x: torch.Tensor, number: Any) -> torch.Tensor:
        if self.size != number:
            self.size, self.kept = number, x.mean()
        return x - self.kept


ROWS = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 9)


@pytest.mark.parametrize(
    ("model", "calls"),
    [
        (OfFrames, [(torch.randn(1, 20),), (torch.randn(2, 30),)]),
        (OfBlocks, [(torch.randn(2, 5),), (torch.randn(3, 12),)]),
        (OfNumel, [(torch.randn(2, 5),), (torch.randn(3, 9),)]),
        (OfNumber, list(zip(ROWS, (1, 2, 3), strict=True))),
        (OfNumber, list(zip(ROWS, (0.1, 0.2, 0.3), strict=True))),
        (OfNumber, list(zip(ROWS, ((1, 7), (2, 8), (3, 9)), strict=True))),
    ],
)
@pytest.mark.one_in(2)
def test_a_table_that_is_used_for_more_than_it_was_made_for(
    model: type[torch.nn.Module], calls: list[tuple[Any, ...]]
) -> None:
    observer, watched = InputObserver(), model().eval()
    with observer(watched), torch.no_grad():
        for arguments in calls:
            watched(*arguments)
    assert not observer.export().verify().verified


class WithoutAMask(torch.nn.Module):
    """Scales long calls without a mask, by a length that is as large as its rows at usual sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Linear(12, 12)

    def forward(self, x: torch.Tensor, mask: Any = None, past: Any = None) -> Any:
        rows = self.rows(x)
        if past is not None:
            rows = torch.cat([past, rows], 1)
        scores = x @ rows.transpose(1, 2)
        if mask is None:
            mask = torch.ones(x.shape[0], rows.shape[1])
            if rows.shape[1] > 20:
                scores = scores * 0.5
        return scores.masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ rows, rows


@pytest.mark.slow
def test_a_length_that_is_as_large_as_a_constant_of_the_model_is_no_constant() -> None:
    observer, model = InputObserver(), WithoutAMask().eval()
    with observer(model), torch.no_grad():
        for batch, length, past in ((2, 5, 0), (2, 1, 5), (2, 1, 6), (3, 4, 7)):
            state = {"past": torch.randn(batch, past, 12)} if past else {}
            model(torch.randn(batch, length, 12), mask=torch.ones(batch, length + past), **state)
    program = observer.export()
    x, past = torch.randn(2, 1, 12), torch.randn(2, 24, 12)
    with pytest.raises(RejectedCallError):
        program(x, past=past)
