"""Objects that only others know are no condition of a program whose model does not read them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, RejectedCallError
from onlooker.core.call import Join
from onlooker.core.path import Attr, Name, Path
from onlooker.pytrees.unread import Unread


def unknown() -> Any:
    """An object without readable state."""
    return iter(())


class Encoded:
    """A tensor, and objects of which nobody knows anything, one for each row."""

    def __init__(self, ids: torch.Tensor, objects: Any = None) -> None:
        self.ids = ids
        self.objects = [unknown() for _ in ids] if objects is None else objects


class Reads(torch.nn.Module):
    """``read`` says what becomes of the objects."""

    def __init__(self, read: Callable[[Encoded], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, encoded: Encoded) -> torch.Tensor:
        number = self.read(encoded)
        return encoded.ids * (2.0 if number is None else float(number))


def rows(batch: int) -> torch.Tensor:
    return torch.arange(batch * 3.0).reshape(batch, 3)


def watched(model: torch.nn.Module, objects: Callable[[int], Any] = lambda batch: None) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3, 5):
            model(Encoded(rows(batch), objects(batch)))
    return observer


UNREAD: dict[str, Callable[[Encoded], Any]] = {
    "passed by": lambda encoded: None,
    "is None": lambda encoded: 1 if encoded.objects is None else 2,
    "isinstance": lambda encoded: 3 if isinstance(encoded.objects, list) else 4,
}


@pytest.mark.parametrize("read", UNREAD.values(), ids=UNREAD)
def test_any_number_of_unread_objects_goes_through_one_graph(read: Callable[[Encoded], Any]) -> None:
    model = Reads(read).eval()
    program = watched(model).export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for batch in (1, 7):
        call = Encoded(rows(batch))
        assert torch.equal(program(call), model(call))
        assert program.check([((call,), {})]).holds


def test_one_unread_object_may_be_another() -> None:
    model = Reads(lambda encoded: None).eval()
    program = watched(model, lambda batch: unknown()).export()
    for _ in range(2):
        assert torch.equal(program(Encoded(rows(4), unknown())), model(Encoded(rows(4))))


READ: dict[str, Callable[[Encoded], Any]] = {
    "length": lambda encoded: len(encoded.objects),
    "truth": lambda encoded: 1 if encoded.objects else 2,
    "item": lambda encoded: id(encoded.objects[0]) % 7,
    "iterated": lambda encoded: sum(1 for _ in encoded.objects),
    "copied": lambda encoded: len(list(encoded.objects)),
    "compared": lambda encoded: 1 if encoded.objects == [] else 2,
    "printed": lambda encoded: len(str(encoded.objects)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_objects_that_are_read_stay_conditions(read: Callable[[Encoded], Any]) -> None:
    program = watched(Reads(read).eval()).export()
    with pytest.raises(RejectedCallError, match=r"encoded\.objects"):
        program(Encoded(rows(7)))


def test_a_reading_whose_error_is_caught_counts() -> None:
    def read(encoded: Encoded) -> Any:
        with contextlib.suppress(RuntimeError):
            len(encoded.objects)
        return None

    with pytest.raises(RejectedCallError, match=r"encoded\.objects"):
        watched(Reads(read).eval()).export()(Encoded(rows(7)))


def test_a_size_at_which_the_objects_are_read_is_not_served_with_a_wrong_result() -> None:
    model = Reads(lambda encoded: len(encoded.objects) if encoded.ids.shape[0] > 8 else None).eval()
    program = watched(model).export()
    program.verify()
    call = Encoded(rows(12))
    with contextlib.suppress(RejectedCallError):
        assert torch.equal(program(call), model(call))


def test_a_tensor_among_the_objects_is_refused() -> None:
    program = watched(Reads(lambda encoded: None).eval()).export()
    with pytest.raises(RejectedCallError):
        program(Encoded(rows(2), [torch.zeros(1), unknown()]))


def test_a_saved_program_takes_any_objects(tmp_path: FilePath) -> None:
    watched(Reads(lambda encoded: None).eval()).export().save(tmp_path / "out")
    program: Any = onlooker.load(tmp_path / "out")
    assert torch.equal(program(Encoded(rows(6))), rows(6) * 2)


class GivesBack(torch.nn.Module):
    """The result is the argument, with one tensor more."""

    def forward(self, encoded: Encoded) -> Encoded:
        encoded.scaled = encoded.ids * 2  # type: ignore[attr-defined]
        return encoded


def test_unread_objects_that_are_given_back_are_those_of_the_call(tmp_path: FilePath) -> None:
    program = watched(GivesBack().eval()).export()
    assert program.verify().verified
    program.save(tmp_path / "out")
    loaded: Any = onlooker.load(tmp_path / "out")
    for served in (program, loaded):
        call = Encoded(rows(4))
        result = served(call)
        assert torch.equal(result.scaled, rows(4) * 2)
        assert result.objects is call.objects


def test_how_it_is_said() -> None:
    join = Join(Path((Name("encoded"), Attr("objects"))), None)
    assert str(join) == "encoded.objects is not read"
    assert isinstance(Unread(), list)


class ReadsTexts(torch.nn.Module):
    """A batch with the names of its files, of which ``read`` makes a number."""

    def __init__(self, read: Callable[[list[str]], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, batch: dict[str, Any]) -> Any:
        found = self.read(batch["names"])
        if isinstance(found, list):
            return {"x": batch["x"] * 2.0, "names": found}
        return batch["x"] * float(found)


def named(batch: int) -> dict[str, Any]:
    return {"x": rows(batch), "names": [f"image {batch} {number}.png" for number in range(batch)]}


def watched_texts(read: Callable[[list[str]], Any]) -> tuple[Any, torch.nn.Module]:
    model, observer = ReadsTexts(read).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for batch in (2, 3, 5):
            model(named(batch))
    return observer.export(), model


@pytest.mark.parametrize("read", [lambda names: 2, lambda names: names], ids=["passed by", "given back"])
def test_texts_that_change_and_are_not_read_are_no_condition(
    read: Callable[[list[str]], Any], tmp_path: FilePath
) -> None:
    program, model = watched_texts(read)
    assert len(program.graphs) == 1
    assert program.verify().verified
    program.save(tmp_path)
    for one in (program, onlooker.load(tmp_path)):
        got, expected = one(named(7)), model(named(7))
        if isinstance(expected, dict):
            assert got.pop("names") == expected.pop("names")
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


TEXTS_READ: dict[str, Callable[[list[str]], Any]] = {
    "number": lambda names: len(names) % 3,
    "equal": lambda names: 2 if "image 7 0.png" in names else 3,
    "first": lambda names: 2 if names[0].startswith("image 7") else 3,
    "joined": lambda names: 2 if "7" in ", ".join(names) else 3,
    "none at all": lambda names: 3 if names else 2,
    "a list": lambda names: 2 if isinstance(names[0], str) and names[-1] == "image 7 6.png" else 3,
}


@pytest.mark.parametrize("read", TEXTS_READ.values(), ids=TEXTS_READ)
def test_texts_that_are_read_are_right_or_refused(read: Callable[[list[str]], Any]) -> None:
    program, model = watched_texts(read)
    with contextlib.suppress(RejectedCallError):
        torch.testing.assert_close(program(named(7)), model(named(7)), rtol=0, atol=0)
