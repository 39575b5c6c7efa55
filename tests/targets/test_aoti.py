"""Programs compiled by AOTInductor: right on sizes never seen, and never run on what they were not compiled for."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.cpp_builder

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, MissingPackageError, RejectedCallError, SavedFileError
from onlooker.targets.aoti.compile import CONDITIONS, LAYOUTS, Package
from onlooker.targets.aoti.target import Aoti, open_package
from onlooker.targets.inputs import as_tensor, laid
from onlooker.zoo import tiny_model

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def _compiler() -> str:
    try:
        Aoti().require()
    except MissingPackageError as error:
        return error.message
    return ""


needs_compiler = pytest.mark.skipif(bool(_compiler()), reason=f"no C++ compiler: {_compiler()}")


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def exported(model: torch.nn.Module, calls: Calls) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for args, kwargs in calls:
            model(*args, **kwargs)
    return observer.export()


class Mixed(torch.nn.Module):
    """A cache that grows, an int, a constant tensor, and outputs of every kind; longer calls take another path."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: torch.Tensor, n: int, past: torch.Tensor) -> dict[str, Any]:
        y = torch.relu(self.linear(x)) * n + self.table - torch.tensor([1.0] * 8)
        present = torch.cat([past, y if x.shape[1] <= 6 else -y], dim=1)
        return {"present": present, "n": n + 1, "rows": x.shape[0], "same": x, "on": y > 0, "nothing": None}


MIXED: Calls = [
    ((rand(b, s, 8), n, rand(b, p, 8)), {})
    for b, s, n, p in ((2, 3, 3, 0), (4, 5, 4, 2), (3, 2, 9, 6), (2, 9, 5, 4), (1, 12, 5, 3))
]


@pytest.fixture(scope="module")
def torch_program() -> Program:
    torch.manual_seed(0)
    return exported(Mixed(), MIXED)


@pytest.fixture(scope="module")
def program(torch_program: Program) -> Program:
    return torch_program.to("aoti")


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aoti")
    names = Aoti().write(program.graphs, path)
    assert names == ["main.aoti.pt2", "main_2.aoti.pt2", "weights.safetensors"]
    return path


def loaded(program: Program, folder: Path) -> Program:
    """The program with graphs that are read from a folder."""
    bare = [replace(graph, run=None, artifact=None) for graph in program.graphs]  # type: ignore[arg-type]
    graphs = Aoti().read(bare, folder)
    return Program(program._program.with_graphs(graphs))


@needs_compiler
def test_a_compiled_program_is_verified_and_so_is_what_is_read_back(program: Program, folder: Path) -> None:
    for one in (program, loaded(program, folder)):
        assert one.verify(atol=1e-5).verified, one.report
        assert {graph.target for graph in one.graphs} == {"aoti"}


@needs_compiler
def test_a_saved_program_runs_its_machine_code_only_when_that_is_allowed(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p", values=True)
    with pytest.raises(SavedFileError, match=r"holds machine code.*\[machine-code\]"):
        onlooker.load(tmp_path / "p")
    read = onlooker.load(tmp_path / "p", machine_code=True)
    assert [graph.target for graph in read.graphs] == [graph.target for graph in program.graphs]
    assert read.verify(model=program._program.watched.model, atol=1e-5).verified
    args = (rand(5, 4, 8), 7, rand(5, 3, 8))
    assert torch.equal(read(*args)["present"], program(*args)["present"])


@needs_compiler
def test_every_kind_of_output_comes_as_the_model_gives_it(program: Program) -> None:
    model = program._program.watched.model
    for args in (
        (rand(5, 4, 8), 7, rand(5, 3, 8)),
        (rand(1, 1, 8), 2, rand(1, 0, 8)),
        (rand(2, 20, 8), 3, rand(2, 1, 8)),
    ):
        got, expected = program(*args), model(*args)
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert type(got[key]) is type(value), key
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(got[key], value)
            else:
                assert got[key] == value


@needs_compiler
def test_inputs_of_another_layout_are_brought_into_the_one_of_the_export(program: Program) -> None:
    model = program._program.watched.model
    x, past = rand(8, 4, 3).permute(2, 1, 0), rand(3, 10, 16)[:, ::2, 4:12]
    leaf = x.clone().requires_grad_()
    for given in (x, leaf, torch.empty(3, 4, 8).fill_(1)):
        expected = model(given, 3, past)["present"].detach()
        torch.testing.assert_close(program(given, 3, past)["present"], expected)


@needs_compiler
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((rand(5, 4, 8), 3, rand(4, 1, 8)), r"past.shape\[0\] has to be batch, the call has 4 with batch = 5 in x"),
        ((rand(5, 4, 8), -3, rand(5, 1, 8)), "n"),
        ((rand(5, 4, 8).double(), 3, rand(5, 1, 8)), "x is a float32"),
        ((rand(5, 4, 7), 3, rand(5, 1, 8)), r"x.shape\[2\]"),
        ((rand(5, 4), 3, rand(5, 1, 8)), "x is a float32"),
        ((torch.empty(5, 4, 8, device="meta"), 3, rand(5, 1, 8)), "a tensor lies on meta"),
    ],
)
def test_what_the_code_was_not_compiled_for_is_refused_before_it_runs(
    program: Program, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(RejectedCallError, match=message):
        program(*args)


@needs_compiler
def test_weights_are_those_of_the_torch_program_and_stored_once(
    program: Program, torch_program: Program, folder: Path
) -> None:
    own = torch_program.graphs[0].artifact.state_dict["watched.linear.weight"]
    for graph in program.graphs:
        assert graph.artifact.weights["watched.linear.weight"].data_ptr() == own.data_ptr()
    first, second = (graph.artifact.weights for graph in loaded(program, folder).graphs)
    assert first["watched.linear.weight"].data_ptr() == second["watched.linear.weight"].data_ptr()
    content = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
    header = (folder / "weights.safetensors").stat().st_size - content
    assert header < 6000  # one copy, the constants of the second graph, and names


def _without(archive: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the metadata of a package."""
    with zipfile.ZipFile(archive) as old:
        members = {item: old.read(item) for item in old.namelist()}
    (name,) = [item for item in members if item.endswith("wrapper_metadata.json")]
    about = json.loads(members[name])
    change(about)
    members[name] = json.dumps(about).encode()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as new:
        for item, content in members.items():
            new.writestr(item, content)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (lambda p: p.write_bytes(p.read_bytes()[:2000]) and None, "file-damaged"),
    "empty": (lambda p: p.write_bytes(b"") and None, "file-damaged"),
    "another machine": (lambda p: _without(p, lambda a: a.update(AOTI_CPU_ISA="AVX9000")), "another-machine"),
    "another system": (lambda p: _without(p, lambda a: a.update(AOTI_PLATFORM="plan9")), "another-machine"),
    "no layouts": (lambda p: _without(p, lambda a: a.update({LAYOUTS: "[[0]]"})), "file-damaged"),
}


@needs_compiler
@pytest.mark.parametrize("name", DAMAGES)
def test_a_package_that_does_not_belong_here_is_one_clear_error(
    program: Program, folder: Path, tmp_path: Path, name: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage, slug = DAMAGES[name]
    damage(tmp_path / "main.aoti.pt2")
    with pytest.raises(SavedFileError) as caught:
        loaded(program, tmp_path)
    assert caught.value.slug == slug


@needs_compiler
@pytest.mark.parametrize("conditions", [None, "[", '["exit()"]', '["x.shape[0] == 77"]'])
def test_the_conditions_in_a_package_are_told_and_never_read(
    program: Program, folder: Path, tmp_path: Path, conditions: str | None
) -> None:
    """They are for people: a program that is read takes what its contract says, whatever stands there."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def change(about: dict[str, Any]) -> None:
        del about[CONDITIONS]
        about.update({} if conditions is None else {CONDITIONS: conditions})

    _without(tmp_path / "main.aoti.pt2", change)
    read, args = loaded(program, tmp_path), (rand(5, 4, 8), 7, rand(5, 3, 8))
    assert torch.equal(read(*args)["present"], program(*args)["present"])
    with pytest.raises(RejectedCallError, match=r"past.shape\[0\] has to be batch"):
        read(rand(5, 4, 8), 3, rand(4, 1, 8))


@needs_compiler
def test_missing_weights_are_one_clear_error(program: Program, folder: Path) -> None:
    graph = program.graphs[0]
    with pytest.raises(SavedFileError, match="there are no weights for"):
        open_package(graph, Package(graph.artifact.content, {}), folder / "main.aoti.pt2")


def test_a_machine_without_a_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch, torch_program: Program) -> None:
    def none() -> str:
        raise RuntimeError("no g++")

    monkeypatch.setattr("onlooker.torch_internals.compiled.get_cpp_compiler", none)
    with pytest.raises(
        MissingPackageError, match=r"no compiler works here \(no g\+\+\). Install g\+\+.* \[no-compiler\]"
    ):
        torch_program.to("aoti")


def test_what_the_compiler_refuses_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch, torch_program: Program
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> str:
        raise RuntimeError("no lowering for aten.mystery\n" * 50)

    monkeypatch.setattr("onlooker.torch_internals.compiled.aoti_compile_and_package", refuse)
    monkeypatch.setattr(Aoti, "require", lambda self: None)
    with pytest.raises(
        ExportError, match=r"main \(x_dim_1 <= 6\) cannot be compiled .*no lowering for aten.mystery .*\[aoti-refused\]"
    ):
        torch_program.to("aoti")


def test_an_input_is_laid_out_as_the_export_had_it() -> None:
    assert as_tensor(5).shape == (5, 0)
    value = rand(2, 3, 4)
    moved = laid(value, "cpu", (0, 2, 1))
    assert torch.equal(moved, value)
    assert moved.stride() == (12, 1, 3)
    assert laid(value, "cpu", None) is value
    scalar = torch.tensor(2.0)
    assert torch.equal(laid(scalar, "cpu", ()), scalar), "a tensor without dimensions has no order"
    with pytest.raises(RuntimeError, match="cannot be negative"):
        laid(-1, "", None)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_language_models_are_exact_on_calls_never_seen(name: str) -> None:
    tiny = tiny_model(name)
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    tally = observer.export(to="aoti").verify(atol=1e-4, sizes=tiny.sizes)
    assert tally.verified
    assert tally.difference < 1e-4


class TwoLoops(torch.nn.Module):
    """One that leaves a state alone, and one that joins the results of its steps: each is a ``scan``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, rows = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            total = torch.tanh(total + self.linear(x[:, t]))
        for t in range(x.shape[1]):
            rows.append(x[:, t] * total)
        return torch.stack(rows, 1)


@pytest.mark.slow
@needs_compiler
def test_loops_are_compiled_for_any_number_of_steps() -> None:
    calls: Calls = [((rand(2, 3, 4),), {}), ((rand(3, 5, 4),), {})]
    program = exported(model := TwoLoops(), calls).to("aoti")
    assert len(program.graphs) == 1
    for size in ((4, 9, 4), (1, 20, 4), (5, 1, 4)):
        torch.testing.assert_close(program(rand(*size)), model(rand(*size)), atol=1e-5, rtol=1e-5)
