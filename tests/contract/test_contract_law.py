"""A call is served if and only if ``check`` says so, and the script of ``code`` serves the same sizes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import InputObserver, Program, RejectedCallError


class Branches(torch.nn.Module):
    """Two inputs, an optional mask, an int and a flag; the size of one input decides."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self.kind, self.number = kind, number

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        mask: torch.Tensor | None = None,
        n: int = 3,
        flag: bool = False,
    ) -> torch.Tensor:
        out = torch.cat([x, y], dim=1)
        if mask is not None:
            out = out * mask
        rows, length = x.shape
        decided = {
            "above": length > self.number,
            "equal": length == self.number,
            "multiple": length % self.number == 0,
            "product": rows * length <= 5 * self.number,
            "sum": length + y.shape[1] >= self.number,
            "int": n > self.number,
            "rows": rows == 1,
        }[self.kind]
        return out.clamp(-1, 1) * n if decided else out * n


KINDS = ("above", "equal", "multiple", "product", "sum", "int", "rows")
NUMBERS = (2, 3, 6, 12)


def program_of(kind: str, number: int) -> Program:
    model, observer = Branches(kind, number).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length, other, n in ((2, 5, 4, 4), (3, 8, 7, 9)):
            total = length + other
            model(torch.randn(rows, length), torch.randn(rows, other), torch.ones(rows, total), n=n)
    return observer.export()


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, int], Program]:
    return {}


def calls() -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.integers(0, 26)
    return st.fixed_dictionaries(
        {
            "rows": st.integers(1, 5),
            "length": sizes,
            "other": sizes,
            "off": st.sampled_from([0, 0, 0, 0, 1, -1]),
            "n": st.one_of(st.integers(-3, 30), st.sampled_from([None, True, 2.5])),
            "wrong": st.sampled_from(["", "", "", "", "", "rank", "dtype", "missing", "extra", "flag", "mask"]),
        }
    )


def arguments(call: dict[str, Any]) -> dict[str, Any]:
    rows, length, other = call["rows"], call["length"], call["other"]
    given = {
        "x": torch.randn(rows, length),
        "y": torch.randn(rows, other),
        "mask": torch.ones(rows, max(0, length + other + call["off"])),
        "n": call["n"],
    }
    if call["wrong"] == "rank":
        given["x"] = given["x"][0]
    elif call["wrong"] == "dtype":
        given["y"] = given["y"].double()
    elif call["wrong"] == "missing":
        del given["y"]
    elif call["wrong"] == "extra":
        given["other"] = 1
    elif call["wrong"] == "flag":
        given["flag"] = True
    elif call["wrong"] == "mask":
        del given["mask"]
    return given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", NUMBERS)
def test_check_holds_exactly_for_the_calls_that_are_served(kind: str, number: int) -> None:
    program = program_of(kind, number)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(call=calls())
    def law(call: dict[str, Any]) -> None:
        values = arguments(call)
        try:
            got = program(**values)
        except RejectedCallError:
            got = None
        holds = program.check([values]).holds
        assert holds == (got is not None), (call, str(program.check([values])))
        if got is not None:
            with torch.no_grad():
                expected = Branches(kind, number)(**values)
            torch.testing.assert_close(got, expected)

    law()


@pytest.mark.parametrize(("kind", "number"), [(kind, 6) for kind in KINDS if kind != "int"])
def test_the_script_serves_the_same_sizes(kind: str, number: int, tmp_path: Path) -> None:
    program = program_of(kind, number)
    source = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from {Path(__file__).stem} import Branches\nreturn Branches({kind!r}, {number}).eval()"
    )
    path = tmp_path / "script.py"
    path.write_text(program.code(source=source))
    names = runpy.run_path(str(path))
    sys.modules.pop(Path(__file__).stem, None)
    model = names["make_model"]()
    modules = {graph.name: names[f"export_{graph.name}"](model).module() for graph in program.graphs}
    for graph in program.graphs:
        for rows in (1, 2, 3):
            for length in (1, 2, 4, 5, 6, 7, 12, 13):
                for other in (1, 5, 9):
                    sizes = {"rows": rows, "length": length, "other": other, "off": 0, "n": 4, "wrong": ""}
                    values = arguments(sizes)
                    served = not program._dispatcher.breaches(graph, opened(values))
                    try:
                        modules[graph.name](**{k: v for k, v in values.items() if v is not None})
                        taken = True
                    except (AssertionError, RuntimeError):
                        taken = False
                    assert taken == served, (graph.name, sizes)


def opened(values: dict[str, Any]) -> Any:
    from onlooker.pytrees.open import open_arguments

    return open_arguments(values)
