"""Programs of ExecuTorch: right on sizes never seen, and never run on sizes that no memory is planned for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import (
    ExportError,
    MissingPackageError,
    RejectedCallError,
    SavedFileError,
    UsageError,
)
from onlooker.disk.manifest import write_manifest
from onlooker.targets.executorch.run import Pte
from onlooker.targets.executorch.target import Executorch

Calls = list[tuple[Any, ...]]


def _missing() -> str:
    try:
        Executorch().require()
    except MissingPackageError as error:
        return error.message
    return ""


needs_executorch = pytest.mark.skipif(bool(_missing()), reason=_missing())


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def exported(model: torch.nn.Module, calls: Calls, **options: Any) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for args in calls:
            model(*args)
    return observer.export(**options)


class Mixed(torch.nn.Module):
    """A cache that grows, an int, a float, and outputs of every kind; longer calls take another path."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("table", torch.arange(64.0))

    def forward(self, x: torch.Tensor, n: int, past: torch.Tensor, t: float) -> dict[str, Any]:
        y = torch.relu(self.linear(x)) * n + self.table * t
        present = torch.cat([past, y if x.shape[1] <= 6 else -y], dim=1)
        return {
            "present": present,
            "n": n + 1,
            "t": t * 2,
            "rows": x.shape[0],
            "same": x,
            "on": y > 0,
            "nothing": None,
        }


MIXED: Calls = [
    (rand(b, s, 64), n, rand(b, p, 64), t)
    for b, s, n, p, t in (
        (2, 3, 3, 0, 0.5),
        (4, 5, 4, 2, 0.25),
        (3, 2, 9, 6, 0.75),
        (2, 9, 5, 4, 0.5),
        (1, 12, 5, 3, 1.5),
    )
]


@pytest.fixture(scope="module")
def torch_program() -> Program:
    torch.manual_seed(0)
    return exported(Mixed(), MIXED)


@pytest.fixture(scope="module")
def program(torch_program: Program) -> Program:
    ranges = {"batch": (1, 4), "x_dim_1": (1, 16), "n": (1, 16), "past_dim_1": (0, 8)}
    return torch_program.to("executorch", ranges=ranges)


@needs_executorch
def test_a_program_is_verified_and_the_program_of_torch_stays_as_it_was(
    torch_program: Program, program: Program
) -> None:
    assert [graph.target for graph in program.graphs] == ["executorch"] * 2
    tally = program.verify()
    assert tally.verified, [check for check in tally.checks if not check.passed]
    sizes = [dict(check.sizes) for check in tally.checks if check.sizes]
    limits = {symbol.name: symbol.high for symbol in program.plans[0].symbols}
    assert sizes
    assert all(size <= limits[name] for choice in sizes for name, size in choice.items())
    artifact = torch_program.graphs[0].artifact
    assert all(limit.upper > 10**6 for limit in artifact.range_constraints.values())
    assert torch_program(rand(30, 2, 64), 3, rand(30, 40, 64), 0.5)["rows"] == 30
    assert torch_program.verify().verified


@needs_executorch
def test_every_kind_of_output_comes_as_the_model_gives_it(program: Program) -> None:
    model = program._program.watched.model
    for args in (
        (rand(3, 4, 64), 7, rand(3, 3, 64), 0.1),
        (rand(1, 1, 64), 2, rand(1, 0, 64), -3.0),
        (rand(2, 16, 64), 3, rand(2, 1, 64), 0.0),
    ):
        got, expected = program(*args), model(*args)
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert type(got[key]) is type(value), key
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-4)
            else:
                assert got[key] == value


@needs_executorch
def test_a_result_stays_what_it_is_when_the_program_is_called_again(program: Program) -> None:
    x = rand(2, 4, 64)
    first = program(x, 3, rand(2, 2, 64), 0.5)
    kept = {key: value.clone() for key, value in first.items() if isinstance(value, torch.Tensor)}
    program(-x, 5, -rand(2, 2, 64), 0.25)
    program(rand(2, 9, 64), 5, rand(2, 2, 64), 0.25)
    assert all(torch.equal(first[key], value) for key, value in kept.items())
    first["same"].zero_()
    assert not torch.equal(x, torch.zeros_like(x))


@needs_executorch
def test_sizes_beyond_the_bounds_are_refused_by_us_and_the_runtime_says_nothing(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RejectedCallError, match=r"1 to 4, the call has 5"):
        program(rand(5, 4, 64), 3, rand(5, 2, 64), 0.5)
    with pytest.raises(RejectedCallError, match=r"past.*0 to 8.*9"):
        program(rand(2, 4, 64), 3, rand(2, 9, 64), 0.5)
    assert capfd.readouterr() == ("", "")


@needs_executorch
def test_inputs_of_another_layout_are_taken(program: Program) -> None:
    model = program._program.watched.model
    x, past = rand(64, 4, 3).permute(2, 1, 0), rand(3, 10, 128)[:, ::2, 32:96]
    for given in (x, x.clone().requires_grad_(), torch.ones(3, 1, 64).expand(3, 4, 64)):
        expected = model(given, 3, past, 0.5)["present"].detach()
        torch.testing.assert_close(program(given, 3, past, 0.5)["present"], expected, rtol=1e-5, atol=1e-4)


NEEDS_RANGES = (
    r"nothing limits batch, x_dim_1, n, past_dim_1\. Give the greatest sizes that calls will have\."
    r" The watched calls need ranges=(\{.*?\});"
    r" ranges='observed' stands for the least and the greatest sizes of these calls\. \[bounds-needed\]"
)


def test_without_bounds_the_refusal_has_the_ranges_to_write(torch_program: Program) -> None:
    with pytest.raises(UsageError, match=NEEDS_RANGES):
        Executorch().convert(torch_program.graphs)


@needs_executorch
def test_without_bounds_an_export_is_refused_before_the_trace() -> None:
    observer = InputObserver()
    model = Mixed().eval()
    with observer(model), torch.no_grad():
        for args in MIXED:
            model(*args)
    with pytest.raises(UsageError, match=NEEDS_RANGES) as refusal:
        observer.export(to="executorch")
    found = re.search(NEEDS_RANGES, str(refusal.value))
    assert found is not None
    ranges = json.loads(found[1].replace("'", '"').replace("(", "[").replace(")", "]"))
    assert ranges == {"batch": [1, 4], "x_dim_1": [1, 12], "past_dim_1": [0, 6], "n": [1, 9]}


@needs_executorch
def test_the_report_has_bounds_and_planned_memory(torch_program: Program, program: Program) -> None:
    text = program.report.text(full=True)
    assert "1 to 16" in text
    note = program.graphs[0].notes[-1]
    assert re.fullmatch(r"[\d,]+ bytes of memory are planned for batch up to 4, x_dim_1 up to 16, .*", note)
    wide = torch_program.to(
        "executorch", ranges={"batch": (1, 8), "x_dim_1": (1, 32), "past_dim_1": (0, 64), "n": (1, 9)}
    )
    assert _bytes(wide) > 2 * _bytes(program)
    assert wide(rand(8, 32, 64), 9, rand(8, 64, 64), 0.5)["present"].shape == (8, 96, 64)


def _bytes(program: Program) -> int:
    return int(program.graphs[0].notes[-1].partition(" ")[0].replace(",", ""))


@needs_executorch
def test_a_saved_program_is_one_file_with_each_weight_once(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p", values=True)
    assert [graph.file for graph in program.graphs] == ["program.pte"] * 2
    size = (tmp_path / "p" / "program.pte").stat().st_size
    assert 64 * 64 * 4 < size < 1.8 * 64 * 64 * 4
    read = onlooker.load(tmp_path / "p")
    assert read.verify(model=program._program.watched.model).verified
    assert read.report.to_dict()["graphs"][0]["notes"] == program.report.to_dict()["graphs"][0]["notes"]
    args = (rand(3, 4, 64), 7, rand(3, 3, 64), 0.5)
    assert torch.equal(read(*args)["present"], program(*args)["present"])
    read.save(tmp_path / "again")
    assert (tmp_path / "again" / "program.pte").read_bytes() == (tmp_path / "p" / "program.pte").read_bytes()


@needs_executorch
def test_damaged_files_are_refused(program: Program, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    program.save(folder)
    path = folder / "program.pte"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SavedFileError, match="file-damaged"):
        onlooker.load(folder)
    path.unlink()
    with pytest.raises(SavedFileError, match=r"folder-incomplete|file-missing"):
        onlooker.load(folder)
    names = ["plan.json", "report.json", "recording.json", "program.pte"]
    for other in (b"", b"no program of ExecuTorch" * 40, content[: len(content) // 2]):
        path.write_bytes(other)
        write_manifest(folder, "executorch", names, {})
        with pytest.raises(SavedFileError, match="file-damaged"):
            onlooker.load(folder)
    assert capfd.readouterr() == ("", "")


@needs_executorch
def test_a_program_with_other_methods_is_refused(program: Program, tmp_path: Path) -> None:
    torch.manual_seed(0)
    other = exported(torch.nn.Linear(4, 2), [(rand(2, 4),), (rand(3, 4),)]).to("executorch", ranges="observed")
    other.save_graphs(tmp_path)
    with pytest.raises(SavedFileError, match=r"not those of the plan of main.*file-damaged"):
        Executorch().read(program.graphs, tmp_path)
    assert isinstance(other.graphs[0].artifact, Pte)


@needs_executorch
@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"batch": (1, 2)}, r"batch is pinned to 1 to 2, and was 3 in a call.*pin-contradicts-calls"),
        ({"length": (1, 2)}, "no-such-symbol"),
        ({"batch": 4}, "bad-pin"),
        ("seen", "bad-pin"),
        (
            {"batch": (1, 8)},
            r"nothing limits input_dim_1.*\{'batch': \(1, 8\), 'input_dim_1': \(1, 4\)\}.*bounds-needed",
        ),
    ],
)
def test_ranges_that_cannot_be_obeyed(ranges: Any, message: str) -> None:
    linear = exported(torch.nn.Linear(4, 2), [(rand(2, 3, 4),), (rand(3, 4, 4),)])
    with pytest.raises(UsageError, match=message):
        linear.to("executorch", ranges=ranges)


@needs_executorch
def test_bounds_of_the_export_are_taken_and_the_rest_is_observed() -> None:
    model = torch.nn.Linear(4, 2)
    program = exported(model, [(rand(2, 3, 4),), (rand(3, 4, 4),)], ranges={"batch": (1, 33)})
    bounded = program.to("executorch", ranges={"input_dim_1": "observed"})
    assert [(s.name, s.range) for s in bounded.plans[0].symbols] == [("batch", "1 to 33"), ("input_dim_1", "3 to 4")]
    assert bounded(rand(33, 4, 4)).shape == (33, 4, 2)
    assert program.plans[0].symbol("input_dim_1").high is None


class Convolved(torch.nn.Module):
    """A convolution, whose kernel torch chooses by the batch, and a mean, whose memory is planned by it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)).mean(2)


@needs_executorch
def test_memory_is_planned_for_batches_beyond_those_of_another_kernel() -> None:
    program = exported(Convolved(), [(rand(2, 8, 5),), (rand(3, 8, 9),)])
    made = program.to("executorch", ranges={"batch": (1, 32), "x_dim_2": (1, 32)})
    assert made.verify().verified, made.report.text()
    assert made(rand(32, 8, 3)).shape == (32, 64)


@needs_executorch
def test_an_unknown_backend_is_refused() -> None:
    linear = exported(torch.nn.Linear(4, 2), [(rand(2, 4),), (rand(3, 4),)])
    with pytest.raises(UsageError, match=r"portable, xnnpack.*\[bad-backend\]"):
        linear.to("executorch", ranges="observed", backend="vulkan")


@needs_executorch
def test_rounded_activations_are_refused_for_xnnpack() -> None:
    """Its kernels give something else where the result of a product stays float."""
    linear = exported(torch.nn.Linear(4, 2), [(rand(2, 4),), (rand(3, 4),)])
    with pytest.raises(UsageError, match=r"no precision 'int8-static'.*has int8, int4.*\[bad-variant\]"):
        linear.to("executorch", ranges="observed", backend="xnnpack", precision="int8-static")


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if bool((x > 0).all()) else x - 1


@needs_executorch
def test_a_program_that_asserts_something_of_values_is_refused_with_the_line() -> None:
    program = exported(Branches(), [(rand(2, 4).abs(),), (rand(3, 4).abs(),)])
    with pytest.raises(ExportError, match=r"return x \+ 1 if.*drops assertions.*\[executorch-refused\]"):
        program.to("executorch", ranges="observed")


class Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x.mT @ x).real


@needs_executorch
def test_an_operator_without_a_kernel_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    program = exported(Unsupported(), [(rand(2, 4, 4),), (rand(3, 4, 4),)])
    with pytest.raises(ExportError, match=r"linalg_eig.*\[executorch-refused\]"):
        program.to("executorch", ranges="observed")
    assert capfd.readouterr() == ("", "")


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.split(4, 2)
        return left * right


@needs_executorch
def test_the_batch_of_a_tensor_that_is_split_stays_open() -> None:
    """The converter's own check takes the length of the first part, and torch made the batch of the example of it."""
    program = exported(Halves(), [(rand(2, 3, 8),), (rand(3, 5, 8),)])
    (graph,) = program.graphs
    environment = next(n.meta["val"] for n in graph.artifact.graph.nodes if n.name == "x").fake_mode.shape_env
    before = dict(environment.var_to_range), dict(environment.replacements)
    bounded = program.to("executorch", ranges={"batch": (1, 40), "x_dim_1": (1, 50)})
    for batch in (1, 2, 40):
        x = rand(batch, 50, 8)
        assert torch.equal(bounded(x), Halves()(x))
    assert (dict(environment.var_to_range), dict(environment.replacements)) == before
    assert program(rand(99, 99, 8)).shape == (99, 99, 4)


class OfTwoLengths(torch.nn.Module):
    def __init__(self, function: Callable[[int, int], int]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length = self.function(x.shape[1], y.shape[1])
        return torch.arange(length) + x.sum() * y.sum()


@needs_executorch
@pytest.mark.parametrize("function", [torch.sym_max, torch.sym_min])
def test_the_greater_and_the_smaller_of_two_sizes_are_computed(function: Callable[[int, int], int]) -> None:
    calls = [(rand(2, 5), rand(2, 7)), (rand(3, 9), rand(3, 4))]
    program = exported(OfTwoLengths(function), calls, to="executorch", ranges="observed")
    assert len(program.graphs) == 1
    assert program.verify().verified


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.gru(x)[0]


@needs_executorch
def test_a_conversion_that_makes_a_size_a_number_is_refused() -> None:
    """ExecuTorch unrolls the steps of a GRU: the program would serve the number of the example alone."""
    program = exported(Recurrent(), [(rand(2, 4, 4),), (rand(3, 8, 4),)])
    with pytest.raises(ExportError, match=r"makes a size a number: x_dim_1 = \d+.*\[executorch-refused\]"):
        program.to("executorch", ranges="observed")
    assert program(rand(2, 21, 4)).shape == (2, 21, 6)


class Writes(torch.nn.Module):
    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum(1))
        return x * 2


class Replaces(torch.nn.Module):
    def forward(self, x: torch.Tensor, table: dict[str, torch.Tensor]) -> torch.Tensor:
        table["rows"] = torch.cat([table["rows"], x], 1)
        return table["rows"].sum(1)


@needs_executorch
def test_a_tensor_of_the_call_that_is_written_in_place_is_refused_and_a_dict_is_given_back() -> None:
    program = exported(Writes(), [(rand(2, 4), rand(2)), (rand(3, 6), rand(3))])
    with pytest.raises(ExportError, match=r"writes to the tensors total of a call in place.*\[executorch-refused\]"):
        program.to("executorch", ranges="observed")
    program = exported(Replaces(), [(rand(b, n, 4), {"rows": rand(b, n + 1, 4)}) for b, n in ((2, 4), (3, 6))])
    converted = program.to("executorch", ranges="observed")
    assert converted.verify().verified, converted.report
    x, mine = rand(3, 5, 4), {"rows": rand(3, 6, 4)}
    theirs = dict(mine)
    torch.testing.assert_close(converted(x, mine), Replaces()(x, theirs), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine["rows"], theirs["rows"])


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


@needs_executorch
@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_images_of_both_layouts_are_taken(backend: str) -> None:
    torch.manual_seed(0)
    calls = [(rand(b, 3, s, s).to(memory_format=torch.channels_last),) for b, s in ((2, 8), (3, 12))]
    ranges = {"batch": (1, 4), "x_dim_2": (8, 16), "x_dim_3": (8, 16)}
    program = exported(Image(), calls).to("executorch", ranges=ranges, backend=backend)
    assert program.verify().verified, program.report
    model = program._program.watched.model
    for x in (rand(4, 3, 16, 16), rand(1, 3, 8, 10).to(memory_format=torch.channels_last)):
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'onlooker\[executorch\]'.*\[missing-package\]"):
        Executorch().require()
