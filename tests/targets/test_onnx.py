"""Programs as models of ONNX: names, opsets, dtypes, weights in files, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir
import onnxruntime
import pytest
import torch

from onlooker import Program
from onlooker.core.errors import ExportError, OnlookerWarning, RejectedCallError, SavedFileError, UsageError
from onlooker.core.spec import Axis
from onlooker.targets.names import names_of
from onlooker.targets.onnx import target as onnx_target
from onlooker.targets.onnx import weights as onnx_weights
from onlooker.targets.onnx.merge import merged_model
from onlooker.targets.onnx.target import Onnx
from target_models import (
    AWKWARD,
    GROWING,
    SIDED,
    Attention,
    Awkward,
    Growing,
    Sided,
    call,
    exported,
    masked_calls,
    rand,
)


def saved(program: Program, folder: Path) -> list[str]:
    return Onnx().write(program.graphs, folder)


def loaded(program: Program, folder: Path) -> Program:
    """The program with graphs that are read from a folder."""
    bare = [replace(graph, run=None, artifact=None, exported_sizes={}) for graph in program.graphs]  # type: ignore[arg-type]
    graphs = Onnx().read(bare, folder)
    return Program(program._program.with_graphs(graphs))


@pytest.fixture(scope="module")
def growing() -> Program:
    torch.manual_seed(0)
    return exported(Growing(), GROWING)


@pytest.fixture(scope="module")
def sided() -> Program:
    torch.manual_seed(0)
    return exported(Sided(), SIDED)


@pytest.fixture(scope="module")
def growing_onnx(growing: Program) -> Program:
    return growing.to("onnx")


@pytest.fixture(scope="module")
def sided_onnx(sided: Program) -> Program:
    return sided.to("onnx")


def file_axes(path: Path) -> dict[str, list[Any]]:
    model = onnx.load(str(path), load_external_data=False)
    values = [*model.graph.input, *model.graph.output]
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def test_ints_aliases_scalars_and_unused_inputs_come_out_as_the_model_gives_them(tmp_path: Path) -> None:
    model = Awkward()
    program = exported(model, AWKWARD).to("onnx")
    assert program.verify().verified, program.report
    saved(program, tmp_path)
    args = (rand(7, 4), 11, rand(2), torch.tensor(2.5))
    expected = model(*args)
    for one in (program, loaded(program, tmp_path)):
        got = one(*args)
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert type(got[key]) is type(value), key
            assert torch.equal(got[key], value) if isinstance(value, torch.Tensor) else got[key] == value


def test_names_are_readable_and_the_same_for_two_exports(growing_onnx: Program, tmp_path: Path) -> None:
    torch.manual_seed(0)
    texts = []
    for number, program in enumerate((growing_onnx, exported(Growing(), GROWING).to("onnx"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        saved(program, folder)
        texts.append((folder / "main.onnx").read_bytes())
        names = file_axes(folder / "main.onnx")
        assert names["x"] == ["batch", "x_dim_1", 32]
        assert list(names)[:2] == ["x", "past"]
    weights = {weight.name for weight in onnx.load_from_string(texts[0]).graph.initializer}
    assert {"first.bias", "second.bias"} <= weights
    assert texts[0] == texts[1]


class Clashing(torch.nn.Module):
    def forward(self, linear: torch.Tensor, val_0: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        mul = linear * val_0 + more["add"]
        return {"relu": mul + 1, "mul": torch.relu(mul), "add": mul - 1, "val_0": mul * 3}


def test_a_name_that_the_converter_gives_inside_may_be_the_name_of_an_input_or_output(tmp_path: Path) -> None:
    calls = [call(rand(b, 3), rand(b, 3), add=rand(b, 3)) for b in (2, 4)]
    program = exported(Clashing(), calls).to("onnx")
    assert program.verify().verified
    saved(program, tmp_path)
    onnx.checker.check_model(str(tmp_path / "main.onnx"), full_check=True)
    assert {"linear", "val_0", "relu", "mul"} <= set(file_axes(tmp_path / "main.onnx"))


def test_what_was_obtained_is_what_the_file_says(growing_onnx: Program, tmp_path: Path) -> None:
    program = growing_onnx
    saved(program, tmp_path)
    (graph,) = program.graphs
    in_file = file_axes(tmp_path / "main.onnx")
    for leaf, name in zip(graph.plan.inputs, names_of(graph).inputs, strict=True):
        for dim, size in enumerate(in_file[name]):
            assert str(graph.exported_sizes[Axis(leaf.path, dim)]) == str(size)
    assert loaded(program, tmp_path).graphs[0].exported_sizes == graph.exported_sizes


def test_an_axis_that_is_a_number_in_the_file_fails_the_report(
    growing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_model = onnx_target.name_model

    def narrow(model: Any, *others: Any) -> None:
        name_model(model, *others)
        model.graph.inputs[0].shape[0] = 2

    monkeypatch.setattr(onnx_target, "name_model", narrow)
    with pytest.warns(OnlookerWarning, match=r"Got invalid dimensions for input: x .*\[serves-less\]"):
        program = growing.to("onnx")
    assert program.report.narrowed == ("x.shape[0]",)
    program.verify()
    assert not program.report.verified


@pytest.mark.parametrize("name", ["growing_onnx", "sided_onnx"])
@pytest.mark.slow
def test_files_pass_the_checker_and_run_in_plain_onnx_runtime(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    program: Program = request.getfixturevalue(name)
    model = program._program.watched.model
    for file in saved(program, tmp_path):
        if file.endswith(".onnx"):
            onnx.checker.check_model(str(tmp_path / file), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "main.onnx"), providers=["CPUExecutionProvider"])
    inputs = GROWING[2][0] if name == "growing_onnx" else SIDED[0][0]
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    expected = model(*inputs)
    first = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), first.detach(), atol=1e-5, rtol=1e-5)
    assert loaded(program, tmp_path).verify().verified


@pytest.mark.parametrize("opset", [18, 23])
def test_the_opset_that_was_asked_for_is_in_the_file(growing: Program, opset: int, tmp_path: Path) -> None:
    program = growing.to("onnx", opset=opset)
    saved(program, tmp_path)
    (plain,) = [o for o in onnx.load(str(tmp_path / "main.onnx")).opset_import if o.domain == ""]
    assert plain.version == opset
    assert program.verify().verified


@pytest.mark.parametrize("opset", [17, 0, -1, 10_000, "20", 20.0, True])
def test_an_opset_that_does_not_exist_is_one_clear_error(growing: Program, opset: Any) -> None:
    with pytest.raises(UsageError, match=r"opset=.* is not supported\. Give a number from 18 to"):
        growing.to("onnx", opset=opset)


def test_unknown_targets_and_options_name_the_known_ones(growing: Program, growing_onnx: Program) -> None:
    with pytest.raises(UsageError, match=r"There is no target 'onxx'.* torch, onnx, aoti"):
        growing.to("onxx")
    with pytest.raises(UsageError, match=r"'onnx' has no option ospet. Did you mean opset\? It takes .*opset"):
        growing.to("onnx", ospet=20)
    with pytest.raises(UsageError, match=r"'onnx' has no option range\. Did you mean ranges\?"):
        growing.to("onnx", range={})
    with pytest.raises(UsageError, match=r"'torch' has no option opset\. It takes .*\. opset is an option of 'onnx'"):
        growing.to("torch", opset=20)
    assert growing_onnx.to("onnx") is growing_onnx
    with pytest.raises(UsageError, match="A program of onnx cannot be turned into 'torch'"):
        growing_onnx.to("torch")


def test_a_call_of_another_region_goes_to_its_own_graph(sided: Program, sided_onnx: Program) -> None:
    """ONNX Runtime has no guards: without conditions the first graph would answer, and be wrong."""
    program = sided_onnx
    assert len(program.graphs) == 2
    for sizes in ((2, 6), (2, 7), (1, 1), (4, 30)):
        x = rand(*sizes, 64)
        torch.testing.assert_close(program(x), sided._program.watched.model(x), atol=1e-5, rtol=1e-5)


def test_sizes_that_do_not_belong_together_are_refused_with_both(growing_onnx: Program) -> None:
    with pytest.raises(
        RejectedCallError, match=r"past.shape\[0\] has to be batch, .* 3 with batch = 2 in x.shape\[0\]"
    ):
        growing_onnx(rand(2, 3, 32), rand(3, 4, 32))


def test_weights_of_several_graphs_are_stored_once_and_held_once(sided_onnx: Program, tmp_path: Path) -> None:
    program = sided_onnx
    assert sorted(saved(program, tmp_path)) == sorted([*(f"{g.name}.onnx" for g in program.graphs), "weights.bin"])
    assert (tmp_path / "weights.bin").stat().st_size == 64 * 64 * 4
    for graph in loaded(program, tmp_path).graphs:
        (weight,) = onnx_weights.large_tensors(graph.artifact.model).values()
        assert weight.raw.base is not None
        assert not weight.raw.flags.owndata
    first, second = (onnx_weights.large_tensors(g.artifact.model) for g in loaded(program, tmp_path).graphs)
    (one,), (other,) = first.values(), second.values()
    assert one.raw.ctypes.data == other.raw.ctypes.data


def test_a_model_above_the_limit_keeps_its_weights_outside(
    growing_onnx: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = growing_onnx
    assert saved(program, tmp_path) == ["main.onnx"]
    monkeypatch.setattr(onnx_target, "MOST_INSIDE", 4000)
    (tmp_path / "large").mkdir()
    assert saved(program, tmp_path / "large") == ["main.onnx", "weights.bin"]
    assert (tmp_path / "large" / "main.onnx").stat().st_size < (tmp_path / "main.onnx").stat().st_size - 8000
    onnx.checker.check_model(str(tmp_path / "large" / "main.onnx"), full_check=True)
    assert loaded(program, tmp_path / "large").verify().verified


def test_the_file_says_what_it_is(growing_onnx: Program, tmp_path: Path) -> None:
    saved(growing_onnx, tmp_path)
    model = onnx.load(str(tmp_path / "main.onnx"))
    about = {p.key: json.loads(p.value) for p in model.metadata_props if p.key.startswith("onlooker.")}
    assert torch.__version__.startswith(about["onlooker.versions"]["torch"])
    assert about["onlooker.inputs"] == {"x": "x", "past": "past"}
    assert about["onlooker.symbols"]["batch"] == [1, None]
    assert about["onlooker.plan"]["onlooker"] == "plan"
    assert "past.shape[0] == x.shape[0]" in about["onlooker.conditions"]
    assert model.producer_name == "onlooker"


@pytest.mark.parametrize("kind", ["bool", pytest.param("minus infinity", marks=pytest.mark.slow)])
def test_a_query_that_may_look_at_nothing_gives_zeros_as_in_torch(kind: str) -> None:
    program = exported(Attention(kind), masked_calls()).to("onnx")
    assert program.verify().verified, program.report


class Typed(torch.nn.Module):
    """Computes in one dtype, or in float32 on inputs of it; also ints and bools."""

    def __init__(self, dtype: torch.dtype, within: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.within = dtype, within
        self.linear, self.norm = torch.nn.Linear(8, 16, dtype=within), torch.nn.LayerNorm(16, dtype=within)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, on: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.silu(self.norm(self.linear(x.to(self.within))))
        return y.to(self.dtype), torch.where(on, x.to(self.within), 0), ids + 1, ~on


def typed(dtype: torch.dtype, within: torch.dtype) -> Program:
    calls = [call(rand(b, 8, dtype=dtype), torch.arange(b), torch.arange(8).repeat(b, 1) > b) for b in (2, 3)]
    return exported(Typed(dtype, within), calls)


@pytest.mark.parametrize(
    ("dtype", "within"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float16), (torch.float64, torch.float64)],
    ids=str,
)
@pytest.mark.one_in(3)
def test_dtypes_that_onnx_runtime_computes_are_verified(
    dtype: torch.dtype, within: torch.dtype, tmp_path: Path
) -> None:
    program = typed(dtype, within).to("onnx")
    assert program.verify().verified, program.report
    saved(program, tmp_path)
    assert loaded(program, tmp_path).verify().verified


def damage_bytes(folder: Path) -> None:
    path = folder / "main.onnx"
    path.write_bytes(path.read_bytes()[:300])


def _edit(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "main.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def _external(key: str, value: str) -> Callable[[Path], None]:
    def change(model: Any) -> None:
        for weight in model.graph.initializer:
            for entry in weight.external_data:
                if entry.key == key:
                    entry.value = value

    return lambda folder: _edit(folder, change)


def _metadata(value: str | None) -> Callable[[Path], None]:
    def change(model: Any) -> None:
        for entry in model.metadata_props:
            if entry.key == "onlooker.conditions":
                entry.key, entry.value = ("other", "") if value is None else (entry.key, value)

    return lambda folder: _edit(folder, change)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": damage_bytes,
    "offset": _external("offset", "99999999"),
    "negative offset": _external("offset", "-64"),
    "no number": _external("offset", "many"),
    "length": _external("length", "1"),
    "location": _external("location", "../weights.bin"),
    "absolute location": _external("location", "/etc/passwd"),
    "no weights": lambda folder: (folder / "weights.bin").unlink(),
    "cut weights": lambda folder: (folder / "weights.bin").write_bytes(b"\0" * 64),
}


@pytest.fixture(scope="module")
def large(growing_onnx: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[str, bytes]]:
    """A program, and its files with the weights outside."""
    folder, program = tmp_path_factory.mktemp("large"), growing_onnx
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_target, "MOST_INSIDE", 4000)
        return program, {name: (folder / name).read_bytes() for name in saved(program, folder)}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_one_clear_error(large: tuple[Program, dict[str, bytes]], name: str, tmp_path: Path) -> None:
    program, files = large
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    DAMAGES[name](tmp_path)
    with pytest.raises(SavedFileError) as caught:
        loaded(program, tmp_path)
    assert caught.value.slug == "file-damaged"


@pytest.mark.parametrize(
    "conditions",
    [None, "[", '{"a": 1}', "[\"__import__('os').mkdir('made')\"]", '["z.shape[0] == 1"]', '["x.shape[0] == 77"]'],
)
def test_the_conditions_in_a_file_are_told_and_never_read(
    large: tuple[Program, dict[str, bytes]], conditions: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for people: a program that is read takes what its contract says, whatever stands there."""
    program, files = large
    monkeypatch.chdir(tmp_path)
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    _metadata(conditions)(tmp_path)
    read = loaded(program, tmp_path)
    for got, expected in zip(
        read(rand(2, 3, 32), rand(2, 4, 32)), program(rand(2, 3, 32), rand(2, 4, 32)), strict=True
    ):
        torch.testing.assert_close(got, expected)
    with pytest.raises(RejectedCallError, match=r"past.shape\[0\] has to be batch"):
        read(rand(2, 3, 32), rand(3, 4, 32))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


class Optional(torch.nn.Module):
    """Another form of call is another graph: with ``extra``, without, and with a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None, negate: bool = False) -> torch.Tensor:
        y = self.linear(x)
        y = -y if negate else y
        return y if extra is None else y + extra.sum() + 1


@pytest.mark.slow
def test_graphs_of_one_program_may_be_one_model_that_is_told_which(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Optional()
    calls = [call(rand(b, 32), **k) for b in (2, 3) for k in ({}, {"extra": rand(b, 4)}, {"negate": True})]
    program = exported(model, calls).to("onnx", merged=True)
    assert len(program.graphs) == 3
    assert program.verify().verified, program.report
    assert saved(program, tmp_path) == ["merged.onnx"]
    onnx.checker.check_model(str(tmp_path / "merged.onnx"), full_check=True)
    axes = file_axes(tmp_path / "merged.onnx")
    assert set(axes) == {"x", "extra", "onlooker_graph", "output"}
    merged = onnx.load(str(tmp_path / "merged.onnx"))
    assert len(merged.graph.initializer) == 1  # the weight of the linear layer, once for three graphs
    again = loaded(program, tmp_path)
    for args, kwargs in (call(rand(5, 32)), call(rand(4, 32), rand(4, 9)), call(rand(1, 32), negate=True)):
        torch.testing.assert_close(again(*args, **kwargs), model(*args, **kwargs), atol=1e-5, rtol=1e-5)


def identity(dtype: int, shape: list[Any], output: str = "y") -> Any:
    """A model that gives its input ``x``."""
    x, y = (onnx.helper.make_tensor_value_info(name, dtype, shape) for name in ("x", output))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], [output])], "g", [x], [y])
    return onnx_ir.serde.deserialize_model(onnx.helper.make_model(graph))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (identity(1, ["a", "b", 3]), "main and other take x in another dtype or number of dimensions"),
        (identity(7, ["a", "b"]), "main and other take x in another dtype or number of dimensions"),
        (identity(1, ["a", "b"], "z"), "main and other give other outputs"),
    ],
)
def test_graphs_of_other_types_cannot_be_one_model(other: Any, reason: str) -> None:
    graphs: Any = [SimpleNamespace(name="main"), SimpleNamespace(name="other")]
    with pytest.raises(ExportError, match=rf"{reason}.* \[not-mergeable\]"):
        merged_model([identity(1, ["a", "b"]), other], graphs)


class Beside(torch.nn.Module):
    """A large weight stands beside a transposed value."""

    def __init__(self, operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operator, self.weight = operator, torch.nn.Parameter(torch.rand(1, 16, 16, channels) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x.permute(0, 2, 3, 1), self.weight).permute(0, 3, 1, 2)


BESIDE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "pow": lambda x, weight: x.abs() ** weight,
    "where": lambda x, weight: torch.where(x > 0, x, weight),
    "cat": lambda x, weight: torch.cat([x, weight.expand(x.shape[0], -1, -1, -1)], dim=1),
    "matmul": lambda x, weight: x @ weight.transpose(2, 3),
}


@pytest.mark.parametrize("channels", [16, 24], ids=["square", "not square"])
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.one_in(8)
def test_a_weight_beside_a_transposed_value_is_the_one_that_was_saved(
    name: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_target, "_SMALL", 0)  # all weights stand outside, as those of a larger model do
    program = exported(
        Beside(BESIDE[name], channels), [call(rand(2, channels, 16, 16)), call(rand(3, channels, 16, 16))]
    )
    tally = program.to("onnx").verify()
    assert tally.verified, [check for check in tally.checks if not check.passed]
