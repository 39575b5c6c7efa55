"""The text of a symbolic number: that of the number where a model may decide by it, free for people to read."""

from __future__ import annotations

import contextlib
import linecache
import logging
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import rand

from onlooker import ExportError, InputObserver, RejectedCallError

logger = logging.getLogger(__name__)


class Sizes(NamedTuple):
    batch: int


class Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(  # noqa: T201
            "rows",
            f"of {x.shape[0]:>3}",
        )
        print(x.shape)  # noqa: T201
        return x * 2


class Logs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.getLogger("model")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logger.warning(f"{x.shape[0]} rows")
        self.logger.warning("%s rows", x.shape[0])
        if x.ndim == 2:
            logging.info(f"{x.shape[0] * 2} rows")
        return x * 2


class Warns(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn(f"{list(x.shape)} and {float(x.shape[0])}", stacklevel=2)
        return x * 2


def check(holds: object, message: object, kind: type[Exception] = ValueError) -> None:
    if not callable(message):

        def written() -> object:
            return message

    else:
        written = message
    torch._check_with(kind, holds, written)


def raises(holds: bool, *, message: str) -> None:
    if not holds:
        raise ValueError(f"it does not hold: {message}")


def written_by(message: object) -> object:
    return message() if callable(message) else message


def explains(holds: bool, message: object = None, strict: bool = True) -> bool:
    if not holds:
        if strict:
            message = written_by(message)
            text = "a check failed" if message is None else f"a check failed: {message}"
            raise ValueError(text)
        return False
    return True


def returns_before(holds: object, message: str) -> None:
    if holds:
        Kept.text = message
        if message:
            return
        raise ValueError(message)


class Checks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check(x.shape[0] * 2 >= 2, f"{x.shape[0]} rows, {x.numel()} numbers")
        check(
            x.shape[0] >= 1,
            "rows: {}, all: {}".format(x.shape[0], ", ".join(map(str, x.shape))),
        )
        raises(x.shape[1] == 5, message=f"{x.shape[1]} columns")
        torch._assert(x.shape[0] >= 1, f"{x.shape[0]} rows")
        explains(x.shape[0] >= 1, f"{x.shape[0]} rows")
        return x * 2


class Kept:
    text = ""


def keeps(holds: object, message: str) -> None:
    Kept.text = message
    check(holds, message)


def hears(holds: object, message: str) -> None:
    if message == "3":
        Kept.text = "3"


def catches(holds: object, message: str) -> None:
    try:
        raise ValueError(message)
    except ValueError as error:
        Kept.text = str(error)


LAST = ""


def keeps_globally(holds: object, message: str) -> None:
    global LAST
    LAST = message
    Kept.text = LAST


def answers(function: Callable[[], str]) -> Callable[[], str]:
    Kept.text = function()
    return function


def decorates(holds: object, message: str) -> None:
    @answers
    def inner() -> str:
        return message

    check(holds, inner)


class Caught(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            raises(x.shape[1] == 7, message=f"{x.shape[0]}")
        except ValueError as error:
            return x * (3 if str(error).endswith(" 3") else 1)
        return x


class Told(torch.nn.Module):
    def __init__(self, tell: Callable[[object, str], None]) -> None:
        super().__init__()
        self.tell = tell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Kept.text = ""
        self.tell(x.shape[0] > 0, f"{x.shape[0]}")
        return x * (3 if Kept.text == "3" else 1)


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {"3": [3], "4": [1]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = [1]
        check(scale.extend(self.scales.get(f"{x.shape[0]}", [1])) is None, f"{x.shape[0]} rows")
        return x * scale[-1]


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_3 = torch.nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head = getattr(self, f"head_{x.shape[0]}", None)
        return x if head is None else head(x)


class Filled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (3 if f"{x.shape[0]:04d}" == "0003" else 1)


class OfTuple(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (3 if str(Sizes(x.shape[0])) == "Sizes(batch=3)" else 1)


class Keeps(torch.nn.Module):
    """It looks as if it printed: ``print`` is a method of its own, or a name is kept of what is printed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = ""
        print(found := f"{x.shape[0]}")  # noqa: T201
        return x * (3 if found == "3" else 1)


class Own(torch.nn.Module):
    def log(self, text: str) -> None:
        self.is_three = text == "3"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log(f"{x.shape[0]}")
        return x * (3 if self.is_three else 1)


class OneLine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = f"{x.shape[0]}"; print(n)  # fmt: skip # noqa: E702, T201
        return x * (3 if n == "3" else 1)


def watched(model: torch.nn.Module) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(rand(4, 5)), model(rand(6, 5))
    return observer


@pytest.mark.parametrize("kind", [Prints, Logs, Warns, Checks])
@pytest.mark.filterwarnings("default")
@pytest.mark.one_in(2)
def test_text_for_people_leaves_a_size_dynamic(kind: type[torch.nn.Module]) -> None:
    program = watched(kind()).export()
    assert program.verify().verified
    x = rand(9, 5)
    assert torch.equal(program(x), x * 2)


@pytest.mark.parametrize("kind", [Named, Filled, OfTuple, Keeps, Own, OneLine, Nested, Caught])
@pytest.mark.one_in(2)
def test_a_text_that_a_model_decides_by_is_that_of_the_number(kind: type[torch.nn.Module]) -> None:
    model = kind()
    program = watched(model).export()
    program.verify()
    refused = 0
    for rows in (1, 2, 3, 4, 5, 6, 33):
        x = rand(rows, 5)
        with torch.no_grad():
            expected = model(x)
        try:
            assert torch.allclose(program(x), expected), rows
        except RejectedCallError:
            refused += 1
            assert rows not in (4, 6)
    assert refused


ASSERTS = """
import torch

def asserts(holds, message=""):
    assert holds, message

class Model(torch.nn.Module):
    def forward(self, x):
        asserts(x.shape[0] > 0, f"{x.shape[0]} rows are too few")
        asserts(x.shape[1] == 5, message=f"{x.shape[1]} columns")
        return x * 2
"""


def test_a_message_of_an_assertion_leaves_a_size_dynamic(tmp_path: Path) -> None:
    file = tmp_path / "model_with_assertions.py"  # pytest rewrites the assertions of this file
    file.write_text(ASSERTS)
    program = watched(runpy.run_path(str(file))["Model"]()).export()
    assert program.verify().verified
    x = rand(9, 5)
    assert torch.equal(program(x), x * 2)


@pytest.mark.parametrize("tell", [keeps, keeps_globally, hears, catches, decorates, returns_before])
@pytest.mark.one_in(2)
def test_a_message_that_is_read_is_that_of_the_number(tell: Callable[[object, str], None]) -> None:
    model = Told(tell)
    program = watched(model).export()
    program.verify()
    refused = []
    for rows in (1, 3, 4, 6, 9):
        x = rand(rows, 5)
        expected = model(x)
        try:
            assert torch.equal(program(x), expected), rows
        except RejectedCallError:
            refused.append(rows)
    assert refused


def test_a_file_that_has_changed_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model_that_changes.py"
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {}\n        return x * {}\n"
    )
    file.write_text(source.format("n = f'{x.shape[0]}'", "(3 if n == '6' else 1)"))
    scope = runpy.run_path(str(file))
    file.write_text(source.format("print(f'{x.shape[0]}')", "2"))
    linecache.checkcache()
    model = scope["Model"]()
    program = watched(model).export()
    program.verify()
    x = rand(6, 5)
    assert torch.equal(program(x), x * 3)
    with contextlib.suppress(RejectedCallError):
        assert torch.equal(program(rand(9, 5) * 0 + 2), torch.full((9, 5), 2.0))


@pytest.mark.parametrize("text", [str, repr, "{}".format, "%s".__mod__])
@pytest.mark.one_in(2)
def test_the_text_of_a_value_is_refused(text: object) -> None:
    class Valued(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(text(float(x.sum())))

    with pytest.raises(ExportError, match="data-dependent"):
        watched(Valued()).export()


@pytest.mark.slow
def test_texts_are_as_before() -> None:
    before = [(kind.__repr__, kind.__format__) for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)]
    watched(Named()).export()
    assert before == [(kind.__repr__, kind.__format__) for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)]
