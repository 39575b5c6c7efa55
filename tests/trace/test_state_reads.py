"""Models that keep something in Python: never verified and wrong, whatever the hundredth call reads."""

from __future__ import annotations

import array
import collections
import functools
import io
import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from onlooker import ExportError, InputObserver, RejectedCallError

CALLS = {"n": 0}
TOTAL = 0


class Kept:
    def __init__(self) -> None:
        self.is_warm, self.calls = False, 0


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.seen, self.by_call, self.kept = 0, [], {}, Kept()  # type: ignore[var-annotated]
        self.warm, self.counts, self.total = True, [0], 0.0

    def later(self, x: torch.Tensor, is_late: Any) -> torch.Tensor:
        return x * 2 if is_late else x


class CounterAtCall100(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.later(x, self.n >= 100)


class WarmUpFlag(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.warm:
            self.n += 1
            if self.n == 6:
                self.warm = False
            return x
        return x * 2


class LengthOfAList(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.shape[1])
        return self.later(x, len(self.seen) > 5)


class DictKeyedByCall(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.by_call[len(self.by_call)] = 1
        return self.later(x, 7 in self.by_call)


class CounterInAList(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts[0] += 1
        return self.later(x, self.counts[0] % 8 == 0)


class BoolInAnObject(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.calls += 1
        if self.kept.calls > 6:
            self.kept.is_warm = True
        return self.later(x, self.kept.is_warm)


class FloatThatGrows(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += 0.25
        return x + int(self.total)


class GlobalDict(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["n"] += 1
        return self.later(x, CALLS["n"] > 6)


class GlobalNumber(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global TOTAL
        TOTAL += 1
        return self.later(x, TOTAL > 6)


class NumberInAnOperator(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x + torch.full((1,), float(self.n // 50))


class BeyondWatchedSizes(Base):
    """Only long calls count, and only long calls read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 64:
            self.n += 1
        return self.later(x, self.n > 0)


class AttributeOfAWeight(Base):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.weight
        weight.calls = getattr(weight, "calls", 0) + 1
        return self.later(x * weight, weight.calls >= 100)


class AttributeOfAModule(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        math.calls = getattr(math, "calls", 0) + 1  # type: ignore[attr-defined]
        return self.later(x, math.calls % 100 == 0)  # type: ignore[attr-defined]


class AttributeOfAClass(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        setattr(nn.Linear, "calls", getattr(nn.Linear, "calls", 0) + 1)  # noqa: B010
        return self.later(x, nn.Linear.calls % 100 == 0)


class FileInMemory(Base):
    def __init__(self) -> None:
        super().__init__()
        self.file = io.StringIO()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.file.write("a")
        return self.later(x, self.file.tell() >= 100)


class NumbersInMemory(Base):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = array.array("i", [0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.numbers[0] += 1
        return self.later(x, self.numbers[0] >= 100)


class GeneratorOfNumPy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.later(x, self.drawn.random() > 0.99)


def in_a_closure() -> nn.Module:
    n = 0

    class InAClosure(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal n
            n += 1
            return self.later(x, n > 6)

    return InAClosure()


FOOLING: dict[str, Any] = {
    **{c.__name__: c for c in (CounterAtCall100, WarmUpFlag, LengthOfAList, DictKeyedByCall)},
    **{c.__name__: c for c in (CounterInAList, BoolInAnObject, FloatThatGrows, GlobalDict)},
    **{c.__name__: c for c in (GlobalNumber, NumberInAnOperator, BeyondWatchedSizes)},
    **{c.__name__: c for c in (AttributeOfAWeight, AttributeOfAModule, AttributeOfAClass)},
    **{c.__name__: c for c in (FileInMemory, NumbersInMemory, GeneratorOfNumPy)},
    "InAClosure": in_a_closure,
}


def watched(model: nn.Module, **options: Any) -> InputObserver:
    observer = InputObserver(**options)
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 5), (3, 9), (4, 7)):
            model(torch.randn(batch, length, 4))
    return observer


@pytest.fixture(autouse=True)
def _begins_anew() -> None:
    global TOTAL
    TOTAL, CALLS["n"] = 0, 0


@pytest.mark.parametrize("make", FOOLING.values(), ids=FOOLING)
@pytest.mark.one_in(2)
def test_what_a_later_call_reads_is_refused_or_right(make: Any) -> None:
    model = make().eval()
    observer = watched(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = observer.export()
        except ExportError as error:
            slug = error.slug
        else:
            slug = ""
    if slug:
        assert slug == "model-keeps-state"
        return
    if not program.verify().verified:
        return
    for length in (6, 80, 6, *[6] * 110):
        x = torch.randn(2, length, 4)
        try:
            got = program(x)
        except RejectedCallError:
            break  # the model would go on from a state that no call of the program has made
        torch.testing.assert_close(got, model(x))


@functools.lru_cache
def remembered(n: int) -> int:
    return n


@functools.lru_cache(4)
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@functools.lru_cache(4)
def length_of(x: torch.Tensor) -> int:
    return x.shape[1]


class MarksItsArgument(Base):
    def forward(self, x: Any) -> torch.Tensor:
        if not hasattr(x, "doubled"):
            x.doubled = x * 2
        return x.doubled  # type: ignore[no-any-return]


class RemembersByObject(Base):
    def __init__(self) -> None:
        super().__init__()
        self.known = WeakTensorKeyDictionary()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x not in self.known:
            self.known[x] = x * 2
        return self.known[x]  # type: ignore[no-any-return]


class CallsWhatRemembers(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x)


class CallsWhatRemembersALength(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * length_of(x) + doubled(x * 1)


@pytest.mark.parametrize("make", [MarksItsArgument, RemembersByObject, CallsWhatRemembers])
def test_what_is_kept_for_the_tensor_of_a_caller_is_state(make: Any) -> None:
    """The caller may pass the same tensor once more, with other values in it."""
    observer = watched(make())
    with pytest.raises(ExportError, match="model-keeps-state"):
        observer.export()


def test_what_is_the_same_for_the_same_tensor_is_no_state() -> None:
    model = CallsWhatRemembersALength()
    program = watched(model).export()
    assert program.verify().verified
    x = torch.randn(2, 6, 4)
    for _ in range(2):
        torch.testing.assert_close(program(x), model(x))
        x.add_(1)


class SizeOfACache(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = remembered(x.shape[1])
        return x * n if remembered.cache_info().currsize > 50 else x


def test_a_question_about_what_a_function_remembers_is_refused_with_its_line() -> None:
    with pytest.raises(ExportError, match=r"remembered\.cache_info\(\) \(at .*currsize > 50") as caught:
        watched(SizeOfACache().eval()).export()
    assert caught.value.slug == "model-keeps-state"
    assert "cache_info" not in vars(remembered)


def test_the_refusal_names_the_attribute_and_the_line() -> None:
    with pytest.raises(ExportError, match=r"kept\.calls \(at .*if self\.kept\.calls > 6") as caught:
        watched(BoolInAnObject().eval()).export()
    assert caught.value.slug == "model-keeps-state"


class Unread(Base):
    """Counts and collects, and reads none of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.seen.append(x.shape[0])
        self.counts[0] += 1
        self.kept.calls = self.kept.calls + 2
        self.total += 0.5
        CALLS["n"] += 1
        return x * 2


class Written(Base):
    """Writes an attribute from the sizes before it reads it."""

    window = 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window = min(x.shape[1], 8)
        return x[:, : self.window]


class Table(Base):
    """Makes a table anew where a call is longer than all before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.table.shape[0]:
            self.table = torch.arange(x.shape[1]).float()[:, None].repeat(1, 4)
        return x + self.table[: x.shape[1]]


@pytest.mark.parametrize("make", [Unread, Written, Table])
def test_what_nothing_reads_is_exported(make: Any) -> None:
    model = make().eval()
    program = watched(model).export(ranges={"x_dim_1": (2, 40)})
    assert program.verify().verified
    for length in (6, 9, 30):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


class Stretched(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 64:
            self.table = torch.ones(x.shape[1], 4)
        return super().forward(x)


class StretchedAttribute(Base):
    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.zeros(64, 4)
        if x.shape[1] > 64:
            self.table = torch.ones(x.shape[1], 4)
        return x + self.table[: x.shape[1]]


@pytest.mark.parametrize("make", [Stretched, pytest.param(StretchedAttribute, marks=pytest.mark.slow)])
def test_a_table_that_is_another_one_after_long_calls_is_not_verified(make: Any) -> None:
    program = watched(make().eval()).export(ranges={"x_dim_1": (2, 90)})
    assert not program.verify(sizes={"x_dim_1": [80]}).verified


class CalledBefore(nn.Module):
    """Does something else with long rows from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.called = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x[:, -9:] if self.called is not None and x.shape[1] > 20 else x * 1.0
        self.called = True  # type: ignore[assignment]
        return out


class FirstCallIsShort(CalledBefore):
    """Hides the end of long rows in the first call, by a comparison of positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x * (torch.arange(x.shape[1]) < 23) if self.called is None else x * 1
        self.called = out
        return out


class Appends(Base):
    """Appends to a list that nothing reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return x.clamp(-50, 50) if x.shape[1] > 10 else x * 1.0


class RemembersLength(CalledBefore):
    """Keeps a number of the last call, by which nothing decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.called = True  # type: ignore[assignment]
        return x * 2


class KeepsItsWindow(CalledBefore):
    """Takes the smallest side that a call had for the step of all calls after it."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window = min(self.window, x.shape[1])
        return x.roll(self.window, 0)


@pytest.mark.parametrize(
    ("make", "lengths"),
    [(CalledBefore, (20, 12, 9)), (KeepsItsWindow, (4, 10, 4))],
)
def test_a_program_of_a_model_that_differs_after_its_first_call_is_not_verified(
    make: Any, lengths: tuple[int, ...]
) -> None:
    model = make().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for rows, columns in zip((5, 7, 9), lengths, strict=True):
            model(torch.rand(rows, columns))
    program = observer.export()
    assert not program.verify().verified
    x = torch.rand(5, lengths[0])
    assert torch.equal(program(x), make().eval()(x))
    attribute = "window" if make is KeepsItsWindow else "called"
    (check,) = (c for c in program.report.tally.checks if "while the graphs" in c.label)
    assert f"it reads {attribute}" in check.note


def test_a_result_of_the_last_call_that_decides_is_state() -> None:
    for state in (False, True):
        observer = InputObserver(state=state)
        model = FirstCallIsShort().eval()
        with observer(model), torch.no_grad():
            for rows, columns in ((4, 20), (2, 12), (3, 9), (5, 7), (2, 8)):
                model(torch.rand(rows, columns))
        if not state:
            with pytest.raises(ExportError, match=r"changes what it reads, called"):
                observer.export()
    program, fresh = observer.export(), FirstCallIsShort().eval()
    assert program.verify().verified
    model.called = None
    with program.installed(model), torch.no_grad():
        for rows, columns in ((3, 30), (2, 40), (5, 6)):
            x = torch.rand(rows, columns)
            torch.testing.assert_close(model(x), fresh(x))


def test_what_the_first_call_sets_and_nothing_reads_is_no_reason_to_refuse() -> None:
    model = RemembersLength().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for rows, columns in ((4, 20), (2, 12), (3, 9)):
            model(torch.rand(rows, columns))
    assert observer.export().verify().verified


def test_what_cannot_be_an_input_is_refused_with_state_too() -> None:
    for make in (WarmUpFlag, LengthOfAList):
        with pytest.raises(ExportError) as caught:
            watched(make().eval(), state=True).export()
        assert caught.value.slug == "model-keeps-state"


class GrowsItsTable(nn.Module):
    """A longer call makes another table, which shorter calls read from then on."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("table", torch.arange(64.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > len(self.table):
            self.table = torch.arange(2.0 * x.shape[1]) * self.scale
        return x + self.table[: x.shape[1]]


@pytest.mark.parametrize(("scale", "verified"), [(1.5, False), (1.0, True)])
def test_a_state_that_refused_calls_write_is_tried_before_a_served_one(scale: float, verified: bool) -> None:
    model, observer = GrowsItsTable(scale).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 5), (3, 9), (4, 7)):
            model(torch.randn(rows, length))
    program = observer.export()
    assert program.verify().verified is verified
    assert ("the model keeps state" in program.report.text()) is not verified
    assert len(model.table) == 64


#: what beartype makes of ``def forward(self, parts: list[torch.Tensor])``, in short
_CHECKED = """
def forward(self, parts):
    if not isinstance(parts[draw(32) % len(parts)], Tensor):
        raise TypeError
    return unchecked(self, parts)
"""


class ChecksItems(nn.Module):
    """Joins the tensors of a list, of which a checker of types looks at one that it draws."""

    def unchecked(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts, 1).cumsum(1)


class ReadsDrawn(ChecksItems):
    """Draws an item itself, beside the checker."""

    def unchecked(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return parts[random.getrandbits(8) % len(parts)].cumsum(1)


@pytest.mark.filterwarnings("ignore:Outputs depend on earlier calls")
@pytest.mark.parametrize(("kind", "serves"), [(ChecksItems, True), (ReadsDrawn, False)])
def test_an_item_that_a_checker_of_types_draws_is_no_reading(kind: type[ChecksItems], serves: bool) -> None:
    space = {"draw": random.getrandbits, "Tensor": torch.Tensor, "unchecked": kind.unchecked}
    exec(compile(_CHECKED, f"<@beartype({kind.__qualname__}.forward) at 0x7f>", "exec"), space)
    model, observer = type(kind.__name__, (kind,), {"forward": space["forward"]})(), InputObserver()
    with observer(model), torch.no_grad():
        for length in (5, 7):
            model([torch.randn(2, length), torch.randn(2, length)])
    if not serves:
        with pytest.raises(ExportError, match="changes what it reads, random"):
            observer.export()
        return
    program = observer.export()
    assert program.verify().verified
    parts = [torch.randn(3, 9), torch.randn(3, 9)]
    torch.testing.assert_close(program(parts), model(parts))


class Draws(nn.Module):
    """Decides by a random number of Python in each step."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw, self.layer = draw, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, rows = x[:, 0] * 0, []
        for row in x.unbind(1):
            state = torch.tanh(self.layer(row if self.draw() else state + row))
            rows.append(state)
        return torch.stack(rows, 1)


#: a number that decides nothing, since all that could be drawn answer alike
ALIKE = {
    "never less than 0": lambda: random.random() < 0.0,
    "always less than 1": lambda: random.random() < 1,
    "more than 1": lambda: random.random() > 1.0,
    "a share of numpy": lambda: np.float64(0.0) > random.random(),
    "a number of numpy": lambda: np.random.rand() >= 0,
    "between two numbers": lambda: random.uniform(2, 3) > 1.5,
    "one of one": lambda: random.randrange(1) or random.randint(0, 0),
}
#: a number that may decide
DECIDING = {
    "half": lambda: random.random() < 0.5,
    "rarely": lambda: random.random() < 1e-12,
    "not quite always": lambda: random.random() <= 1 - 2**-40,
    "at an end": lambda: random.uniform(2, 3) > 2,
    "one of two": lambda: random.randrange(2),
    "equal": lambda: random.random() == 0.0,
    "computed": lambda: random.random() + 1 < 1.5,
    "of numpy": lambda: np.random.randint(0, 2),
}


def _watched_drawing(model: Draws) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for length in (5, 7):
            model(torch.randn(2, length, 4))
    return observer


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", ALIKE)
def test_a_random_number_is_no_state_where_all_that_could_be_drawn_answer_alike(name: str) -> None:
    model = Draws(ALIKE[name]).eval()
    program = _watched_drawing(model).export()
    assert program.verify().verified
    x = torch.randn(3, 12, 4)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.filterwarnings("ignore:Outputs depend on earlier calls")
@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", DECIDING)
@pytest.mark.slow
def test_a_random_number_that_may_decide_is_state(name: str) -> None:
    with pytest.raises(ExportError, match=r"changes what it reads,.*random"):
        _watched_drawing(Draws(DECIDING[name]).eval()).export()


class AsksAValueAfterItsState(nn.Module):
    """Asks for what its last call has left before a branch on a value, for which a trace is made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is None or x.shape[1] > 1:
            self.last = x.mean()
        shown = x + self.last
        return shown * 2 if bool(x.sum() > 0) else shown - 1


def test_a_model_that_asks_for_what_calls_leave_is_refused_after_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model, observer = AsksAValueAfterItsState(), InputObserver()
    with observer(model), torch.no_grad():
        for size in (2, 3, 5):
            model(torch.rand(size, 4))
    traces, export = [], torch.export.export

    def counted(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    with pytest.raises(ExportError, match=r"last \(at .*if self\.last is None") as caught:
        observer.export()
    assert caught.value.slug == "model-keeps-state"
    assert len(traces) == 1


class Smooths(nn.Module):
    """Keeps its last two means in an object that no argument can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.last: collections.deque[torch.Tensor] = collections.deque(maxlen=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(x.mean(1))
        return torch.stack(list(self.last)).sum(0)


def test_what_no_state_takes_over_is_named_as_the_model_has_it() -> None:
    model, observer = Smooths(), InputObserver(state=True)
    with observer(model), torch.no_grad():
        for size in (5, 3, 7, 2):
            model(torch.rand(2, size, 4))
    said = r"changes what it reads, last\[\d\] \(at .*self\.last.*or a list, tuple or dict"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first call had less to add up
        with pytest.raises(ExportError, match=said):
            observer.export()
