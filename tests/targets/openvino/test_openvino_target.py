"""Programs as models of OpenVINO: names, ranges and weights in files, what they give, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, MissingPackageError, RejectedCallError, SavedFileError, UsageError
from onlooker.core.path import Name
from onlooker.core.path import Path as LeafPath
from onlooker.core.spec import Axis
from onlooker.targets.openvino.target import OpenVino
from onlooker.zoo import tiny_model
from target_models import AWKWARD, GROWING, SIDED, Awkward, Growing, Sided, call, exported, rand

openvino = pytest.importorskip("openvino")

#: else a processor with instructions for bfloat16 computes in these
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def loaded(program: Program, folder: Path) -> Program:
    """The program with graphs that are read from a folder."""
    bare = [replace(graph, run=None, artifact=None, exported_sizes={}) for graph in program.graphs]  # type: ignore[arg-type]
    graphs = OpenVino().read(bare, folder)
    return Program(program._program.with_graphs(graphs))


@pytest.fixture(scope="module")
def growing_torch() -> Program:
    torch.manual_seed(0)
    return exported(Growing(), GROWING)


@pytest.fixture(scope="module")
def growing(growing_torch: Program) -> Program:
    return growing_torch.to("openvino")


@pytest.fixture(scope="module")
def sided() -> Program:
    torch.manual_seed(0)
    return exported(Sided(), SIDED).to("openvino")


@pytest.fixture(scope="module")
def sided_folder(sided: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("openvino") / "program"
    sided.save(folder, values=True)
    return folder


def ports(values: Any) -> dict[str, str]:
    return {port.get_any_name(): str(port.get_partial_shape()) for port in values}


def test_ints_aliases_scalars_and_unused_inputs_come_out_as_the_model_gives_them(tmp_path: Path) -> None:
    model = Awkward()
    program = exported(model, AWKWARD).to("openvino")
    assert program.verify().verified, program.report
    OpenVino().write(program.graphs, tmp_path)
    args = (rand(7, 4), 11, rand(2), torch.tensor(2.5))
    expected = model(*args)
    for one in (program, loaded(program, tmp_path)):
        got = one(*args)
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert type(got[key]) is type(value), key
            assert torch.equal(got[key], value) if isinstance(value, torch.Tensor) else got[key] == value


def test_the_model_has_the_names_and_ranges_of_the_plan(growing_torch: Program) -> None:
    (graph,) = growing_torch.to("openvino").graphs
    assert ports(graph.artifact.inputs) == {"x": "[1..,1..,32]", "past": "[1..,?,32]"}
    assert [port.get_names() for port in graph.artifact.outputs] == [{name} for name in graph.outputs.names]
    assert str(graph.exported_sizes[Axis(LeafPath((Name("x"),)), 0)]) == "batch"
    assert str(graph.exported_sizes[Axis(LeafPath((Name("x"),)), 2)]) == "32"


def test_a_range_of_the_user_stands_in_the_model() -> None:
    model, observer = torch.nn.Linear(4, 2), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 3):
            model(rand(rows, 4))
    (graph,) = observer.export(to="openvino", ranges={"batch": (2, 8)}).graphs
    assert ports(graph.artifact.inputs) == {"input": "[2..8,4]"}
    compiled = openvino.Core().compile_model(graph.artifact, "CPU")
    assert compiled(numpy.zeros((8, 4), numpy.float32))[0].shape == (8, 2)
    with pytest.raises(RuntimeError, match="shape"):
        compiled(numpy.zeros((9, 4), numpy.float32))


def test_a_cache_that_is_empty_and_sizes_never_seen(growing: Program) -> None:
    tally = growing.verify()
    assert tally.verified, growing.report
    assert tally.difference < 1e-5
    model = growing._program.watched.model
    for batch, steps, past in ((7, 20, 60), (1, 1, 0), (5, 1, 33)):
        args = (rand(batch, steps, 32), rand(batch, past, 32))
        for got, expected in zip(growing(*args), model(*args), strict=True):
            torch.testing.assert_close(got, expected)


def test_sizes_that_do_not_belong_together_are_refused(growing: Program) -> None:
    with pytest.raises(RejectedCallError, match=r"past.shape\[0\] has to be batch"):
        growing(rand(2, 3, 32), rand(3, 4, 32))


def test_several_graphs_are_saved_with_equal_weights_once(sided: Program, sided_folder: Path) -> None:
    names = sorted(path.name for path in sided_folder.iterdir() if path.suffix in (".xml", ".bin"))
    assert names == sorted([*(f"{graph.name}.xml" for graph in sided.graphs), "weights.bin"])
    assert 64 * 64 * 4 <= (sided_folder / "weights.bin").stat().st_size < 64 * 64 * 4 + 2 * 4096
    read = onlooker.load(sided_folder)
    model = sided._program.watched.model
    assert read.verify(model=model).verified, read.report
    for sizes in ((2, 6), (2, 7), (1, 1), (4, 30)):
        x = rand(*sizes, 64)
        torch.testing.assert_close(read(x), model(x), atol=1e-5, rtol=1e-5)


def test_openvino_alone_runs_each_file(growing: Program, sided: Program, tmp_path: Path) -> None:
    assert OpenVino().write(growing.graphs, tmp_path) == ["main.xml", "main.bin"]
    core = openvino.Core()
    x, past = rand(3, 2, 32), rand(3, 5, 32)
    (first, second) = growing(x, past)
    results = core.compile_model(tmp_path / "main.xml", "CPU", EXACT)({"x": x.numpy(), "past": past.numpy()})
    numpy.testing.assert_allclose(results[0], first, atol=1e-6)
    numpy.testing.assert_allclose(results[1], second, atol=1e-6)
    folder = tmp_path / "several"
    folder.mkdir()
    OpenVino().write(sided.graphs, folder)
    for graph in sided.graphs:
        y = rand(2, graph.sizes["x_dim_1"], 64)
        model = core.read_model(folder / f"{graph.name}.xml", folder / "weights.bin")
        numpy.testing.assert_allclose(core.compile_model(model, "CPU", EXACT)(y.numpy())[0], graph([y])[0], atol=1e-6)


def test_the_file_says_what_it_is(growing: Program, tmp_path: Path) -> None:
    OpenVino().write(growing.graphs, tmp_path)
    model = openvino.Core().read_model(tmp_path / "main.xml")
    about = {key: json.loads(text.value) for key, text in model.get_rt_info("onlooker").astype(dict).items()}
    assert about["inputs"] == {"x": "x", "past": "past"}
    assert about["symbols"]["batch"] == [1, None]
    assert about["plan"]["onlooker"] == "plan"
    assert "past.shape[0] == x.shape[0]" in about["conditions"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "another name": lambda path: path.write_text(path.read_text().replace('names="x"', 'names="y"')),
    "another output": lambda path: path.write_text(path.read_text().replace('output_names="', 'output_names="a')),
    "weights elsewhere": lambda path: path.write_text(path.read_text().replace('offset="0"', 'offset="9999999"')),
    "no weights": lambda path: (path.parent / "weights.bin").write_bytes(b""),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_one_clear_error(sided: Program, tmp_path: Path, name: str) -> None:
    OpenVino().write(sided.graphs, tmp_path)
    DAMAGES[name](tmp_path / f"{sided.graphs[0].name}.xml")
    with pytest.raises(SavedFileError, match=r"\[file-damaged\]"):
        loaded(sided, tmp_path)


def test_a_file_that_was_changed_is_refused_before_it_is_read(sided_folder: Path, tmp_path: Path) -> None:
    for path in sided_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "weights.bin").read_bytes())
    content[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(content)
    with pytest.raises(SavedFileError, match=r"weights.bin"):
        onlooker.load(tmp_path)


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.amax() > 100:
            raise ValueError("too large")
        return x * 2 if x.sum() > 0 else x * 3


def test_the_other_side_of_a_branch_on_values_is_refused(tmp_path: Path) -> None:
    program = exported(Branch(), [call(torch.ones(3)), call(torch.ones(4))]).to("openvino")
    OpenVino().write(program.graphs, tmp_path)
    for one in (program, loaded(program, tmp_path)):
        torch.testing.assert_close(one(torch.ones(9)), torch.full((9,), 2.0))
        for refused in (-torch.ones(3), torch.full((2,), 101.0)):
            with pytest.raises(
                RejectedCallError,
                match="another way than the watched calls where the model decides by values",
            ):
                one(refused)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.slow
def test_a_model_of_half_the_precision_is_verified(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    calls = [call(rand(rows, 16, dtype=dtype)) for rows in (2, 3)]
    program = exported(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).to(dtype), calls).to("openvino")
    assert program.verify(atol=2e-2).verified, program.report
    assert program(rand(5, 16, dtype=dtype)).dtype == dtype


class Unknown(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x + 1).R


def test_an_operator_that_openvino_lacks_is_named_with_its_line() -> None:
    program = exported(Unknown(), [call(rand(3, 3)), call(rand(4, 4))])
    with pytest.raises(ExportError, match=r"no operators for aten.linalg_qr.default \(at .*test_openvino_target.py"):
        program.to("openvino")


def test_a_missing_package_is_named(growing_torch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingPackageError, match=r"needs openvino. .*onlooker\[openvino\]"):
        growing_torch.to("openvino")


@pytest.mark.parametrize("options", [{"device": "TOASTER"}, {"device": 3}, {"config": {"NO_SUCH": 1}}, {"config": [1]}])
def test_options_that_openvino_does_not_take_are_refused(growing_torch: Program, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"\[bad-openvino-options\]"):
        growing_torch.to("openvino", **options)


def test_a_config_is_used_and_not_saved(growing: Program, tmp_path: Path) -> None:
    other = growing.to("openvino", config={"INFERENCE_NUM_THREADS": 1})
    args = (rand(2, 3, 32), rand(2, 4, 32))
    torch.testing.assert_close(other(*args)[0], growing(*args)[0])
    other.save(tmp_path / "p")
    assert "INFERENCE_NUM_THREADS" not in (tmp_path / "p" / "main.xml").read_text()


@pytest.mark.slow
def test_a_llama_generates_the_same_tokens_from_the_saved_program(tmp_path: Path) -> None:
    tiny = tiny_model("llama")
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    program = observer.export(to="openvino")
    assert program.verify().verified, program.report
    program.save(tmp_path / "llama")
    read = onlooker.load(tmp_path / "llama")
    ids = torch.randint(3, 100, (3, 9), generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = tiny.model.generate(ids, **options)
    with read.installed(tiny.model):
        assert torch.equal(tiny.model.generate(ids, **options), expected)


def test_a_model_that_would_grow_when_it_is_compiled_is_refused(growing: Program, tmp_path: Path) -> None:
    from openvino import opset13

    OpenVino().write(growing.graphs, tmp_path)
    core = openvino.Core()
    model = core.read_model(tmp_path / "main.xml")
    bomb = opset13.broadcast(
        opset13.constant(1.0, dtype="float32"), opset13.constant([1 << 20, 1 << 20], dtype="int64")
    )
    result = model.get_results()[0]
    whole = opset13.add(result.input_value(0), opset13.reduce_sum(bomb, opset13.constant([0, 1])))
    result.input(0).replace_source_output(whole.output(0))
    names = [port.get_names() for port in model.outputs]
    (tmp_path / "bomb").mkdir()
    openvino.save_model(model, tmp_path / "bomb" / "main.xml", compress_to_fp16=False)
    assert names
    with pytest.raises(SavedFileError, match=r"its constants alone make \d+ bytes"):
        loaded(growing, tmp_path / "bomb")


@pytest.mark.slow
def test_a_vision_model_takes_its_program_in_its_place() -> None:
    tiny = tiny_model("vit")
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    program = observer.export(to="openvino")
    assert program.verify().verified, program.report
    images = rand(5, 3, 32, 32)
    with torch.no_grad():
        expected = tiny.model(images).logits
        with program.installed(tiny.model):
            torch.testing.assert_close(tiny.model(images).logits, expected, atol=1e-5, rtol=1e-5)


class Summary(torch.nn.Module):
    """An encoder whose result each step of a decoder reads, beside a cache of the steps before."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(
        self, step: torch.Tensor, past: torch.Tensor, text: torch.Tensor | None = None, read: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if read is None:
            read = self.encoder(text)
        past = torch.cat([past, step], 1)
        seen = torch.cat([past, read], 1)
        return self.attention(step, seen, seen)[0], past, read


@pytest.mark.slow
def test_an_encoder_and_its_decoder_are_two_graphs_that_share_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, observer = Summary().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows, length in ((2, 7), (3, 9)):
            _, past, read = model(rand(rows, 1, 16), rand(rows, 0, 16), text=rand(rows, length, 16))
            for _ in range(3):
                _, past, read = model(rand(rows, 1, 16), past, read=read)
    program = observer.export(to="openvino")
    assert len(program.graphs) == 2
    assert program.verify().verified, program.report
    program.save(tmp_path / "p")
    read_again = onlooker.load(tmp_path / "p")
    args, text = (rand(4, 1, 16), rand(4, 0, 16)), rand(4, 11, 16)
    with torch.no_grad():
        expected, past, read = model(*args, text=text)
        got = read_again(*args, text=text)
        torch.testing.assert_close(got[0], expected)
        torch.testing.assert_close(read_again(args[0], got[1], read=got[2])[0], model(args[0], past, read=read)[0])


class Capitals(torch.nn.Module):
    """Arguments in capitals, and keys of a dict."""

    def forward(self, X: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return X * weights["lora_A"] + weights["lora_B"]


def test_inputs_may_have_capitals_in_their_names() -> None:
    model, observer = Capitals(), InputObserver()
    with observer(model):
        for rows in (2, 3):
            model(rand(rows, 4), {"lora_A": rand(4), "lora_B": rand(1, 4)})
    program = observer.export(to="openvino")
    assert program.verify().verdict == "verified"
