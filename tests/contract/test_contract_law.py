"""A call is served if and only if ``check`` says so, and the script of ``code`` serves the same sizes."""

from __future__ import annotations

import random
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import InputObserver, OnlookerError, Program, RejectedCallError
from onlooker.pytrees.open import open_arguments
from planted import grid, watch
from planted_modules import Case, case_of, load_model, loaded
from planted_modules import arguments as planted_arguments


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
@pytest.mark.one_in(28)
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


@pytest.mark.parametrize("n", [2**31, 2**62, 2**63 - 1, 2**63, 2**70, -(2**70)])
@pytest.mark.one_in(3)
def test_an_int_of_more_than_64_bits_is_refused_as_check_says(n: int) -> None:
    program = program_of("rows", 6)
    values = arguments({"rows": 2, "length": 5, "other": 4, "off": 0, "n": n, "wrong": ""})
    served, text = disagreement(program, [], values)
    assert not text
    assert served == (1 <= n < 2**63)


@pytest.mark.parametrize(
    ("kind", "number"),
    [pytest.param(kind, 6, marks=pytest.mark.slow if kind == "above" else ()) for kind in KINDS if kind != "int"],
)
@pytest.mark.one_in(2)
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
                    served = not program._program.dispatcher.violations(graph, opened(values))
                    try:
                        modules[graph.name](**{k: v for k, v in values.items() if v is not None})
                        taken = True
                    except (AssertionError, RuntimeError, ValueError):  # ValueError: the arguments are others
                        taken = False
                    assert taken == served, (graph.name, sizes)


def opened(values: dict[str, Any]) -> Any:
    return open_arguments(values)


# many modules with planted branches

SEED = 77
#: what is done to a call, besides its sizes
CHANGES = ("", "", "", "dtype", "rank", "missing", "extra", "none", "number", "rows", "class", "empty")
NUMBERS_TRIED = (0, -1, 1, 2, 10**6, 2**70, True, False, 2.5, -0.0, float("nan"), None, "4", torch.tensor(4))


def planted_program(number: int) -> tuple[Case, Program] | None:
    """The program of a random module; None where there is none."""
    case = case_of(SEED, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case, watch(case, load_model(case)).export()
        except OnlookerError:
            return None


def planted_programs(first: int, count: int) -> Iterator[tuple[Case, Program]]:
    """So many programs, from a number on; numbers a thousand apart do not meet."""
    found = 0
    for number in range(first, first + 1000):
        made = planted_program(number)
        if made is not None:
            yield made
            found += 1
            if found == count:
                return


def changed(names: list[str], values: list[Any], chooser: random.Random) -> tuple[list[Any], dict[str, Any], str]:
    """A call with one change, the first arguments by position and the others by name."""
    given: dict[str, Any] = dict(zip(names, values, strict=True))
    change, name = chooser.choice(CHANGES), chooser.choice(names)
    value = given[name]
    if change == "missing":
        del given[name]
    elif change == "extra":
        given["another"] = chooser.choice([1, torch.zeros(2), None])
    elif change == "none":
        given[name] = None
    elif change == "number" or not isinstance(value, torch.Tensor):
        given[name] = chooser.choice(NUMBERS_TRIED) if change else value
    elif change == "dtype":
        given[name] = value.to(chooser.choice([torch.float64, torch.int64, torch.float16, torch.bool]))
    elif change == "rank":
        given[name] = chooser.choice([value[None], value.reshape(-1), value.sum()])
    elif change == "rows":
        given[name] = torch.cat([value, value[:1]])
    elif change == "class":
        given[name] = chooser.choice([value.tolist(), [value], (value,), {"x": value}, torch.nn.Parameter(value)])
    elif change == "empty":
        given[name] = value[:, :0]
    n_first = chooser.randrange(len(given) + 1) if list(given)[: len(names)] == names else 0
    items = list(given.items())
    return [item for _, item in items[:n_first]], dict(items[n_first:]), change


def disagreement(program: Program, args: list[Any], kwargs: dict[str, Any]) -> tuple[bool, str]:
    """Whether a call is served, and how ``check`` disagrees; empty where it agrees."""
    told = program.check([(tuple(args), kwargs)])
    try:
        with torch.no_grad():
            program(*args, **kwargs)
        served, reason = True, ""
    except RejectedCallError as error:
        served, reason = False, error.message
    except Exception as error:
        return False, f"crashes: {type(error).__name__}: {error}"
    return served, "" if told.holds == served else f"check says {told.holds}, served is {served}: {reason}\n{told}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 1000))
def test_check_holds_exactly_for_the_calls_of_planted_modules(first: int) -> None:
    """10 programs and 1,100 calls each time."""
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    for case, program in planted_programs(first, 10):
        chooser = random.Random(case.source)
        points = [*case.watched, *grid(case)]
        for _ in range(110):
            sizes = chooser.choice(points)
            try:
                values = planted_arguments(case, sizes)
            except RuntimeError:  # a negative size
                continue
            names = list(program.recording.signature.names)
            args, kwargs, change = changed(names[: len(values)], list(values), chooser)
            served, text = disagreement(program, args, kwargs)
            counted["served" if served else "refused"] += 1
            if text:
                wrong.append(f"{case.source}\n# {dict(sizes)}, {change}: {text}")
    assert not wrong, f"{len(wrong)} of {counted}\n\n" + "\n\n".join(wrong[:3])
    assert counted["served"] > 150
    assert counted["refused"] > 150


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100_000, 110_000, 1000))
def test_the_scripts_of_planted_modules_serve_the_same_sizes(first: int, tmp_path: Path) -> None:
    """5 programs each time."""
    wrong: list[str] = []
    n_calls: Counter[bool] = Counter()
    for number, (case, program) in enumerate(planted_programs(first, 5)):
        module = loaded(case.source)
        sys.modules[module.__name__] = module
        path = tmp_path / f"script_{number}.py"
        path.write_text(program.code(source=f"import {module.__name__} as planted\nreturn planted.Planted().eval()"))
        script = runpy.run_path(str(path))
        model = script["make_model"]()
        names = program.recording.signature.names
        for graph in program.graphs:
            exported = script[f"export_{graph.name}"](model).module()
            wanted = list(script[f"{graph.name}_arguments"]())
            for sizes in [*case.watched, *grid(case)[:60]]:
                values = dict(zip(names, planted_arguments(case, sizes), strict=False))
                served = not program._program.dispatcher.violations(graph, opened(values))
                if set(wanted) - set(values):
                    assert not served
                    continue
                floats = {leaf.path.root for leaf in graph.plan.inputs if leaf.is_float}
                given = {n: torch.tensor(values[n], dtype=torch.float64) if n in floats else values[n] for n in wanted}
                n_calls[served] += 1
                taken = _takes(exported, given)
                if not taken and (graph.has_rolled_loops or _is_fixed(graph, values)):
                    continue
                if taken != served and not _is_constant(graph, values, wanted):
                    wrong.append(f"{case.source}\n# {graph.name} at {dict(sizes)}: served is {served}")
    assert not wrong, f"{len(wrong)} of {n_calls}\n\n" + "\n\n".join(wrong[:3])
    assert min(n_calls[True], n_calls[False]) > 30


def _takes(exported: Any, given: dict[str, Any]) -> bool:
    try:
        exported(**given)
    except (AssertionError, RuntimeError, IndexError, ZeroDivisionError):  # the guards of a program divide, too
        return False
    return True


def _is_fixed(graph: Any, values: dict[str, Any]) -> bool:
    """True for a size that torch made a number.

    A program of torch alone asks for that number, though other traces showed that the graph is right for others too.
    """
    pairs = ((leaf, axis, values[leaf.path.root]) for leaf in graph.plan.inputs for axis, _ in leaf.axes)
    sizes = ((axis, value.shape[axis.dim] if leaf.is_tensor else value) for leaf, axis, value in pairs)
    return any(graph.fixed_size(axis) not in (None, size) for axis, size in sizes)


def _is_constant(graph: Any, values: dict[str, Any], wanted: list[str]) -> bool:
    """True for a call whose constant is another one, which the script does not take as an argument."""
    constants = {leaf.path.root: leaf.constant.value for leaf in graph.plan.leaves if leaf.constant is not None}
    return any(name not in wanted and values.get(name) != value for name, value in constants.items())
