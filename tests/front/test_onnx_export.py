"""onlooker.onnx_export: the arguments of torch.onnx.export, and one verified file."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.export import Dim

import onlooker
from onlooker.front.onnx import _ACCEPTED, _REFUSED

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CALL = (torch.randn(1, 5, 8), torch.ones(1, 5))


class Encoder(torch.nn.Module):
    """Two inputs, something nested, and a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, extra: dict[str, Any] | None = None) -> dict[str, Any]:
        hidden = self.dropout(self.linear(ids)) * mask.unsqueeze(-1)
        if extra is not None:
            hidden = hidden + extra["a"][0].sum()
        return {"hidden": hidden, "pooled": hidden.sum(1)}


class Sided(torch.nn.Module):
    """Other operators for many rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4 and x.shape[0] % 2 == 0:
            return x * 2
        return x - x.shape[0]


class Channels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 3:
            raise ValueError("3 channels")
        return x * 2


class Reshaped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(1, 12)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder()


def axes(file: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shapes of the inputs and of the outputs of a file, in its order."""
    session = onnxruntime.InferenceSession(file if isinstance(file, bytes) else str(file))
    pairs = session.get_inputs(), session.get_outputs()
    inputs, outputs = ({value.name: value.shape for value in values} for values in pairs)
    return inputs, outputs


def test_names_of_inputs_outputs_and_axes_are_those_of_the_user(encoder: Encoder, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    encoder.train()
    program = onlooker.onnx_export(
        encoder,
        CALL,
        file,
        input_names=["a", "b"],
        output_names=["h", "p"],
        dynamic_axes={"a": {0: "batch-size", 1: "n"}, "b": {0: "batch-size", 1: "n"}, "h": {0: "batch-size", 1: "n"}},
        opset_version=18,
        do_constant_folding=True,
        export_params=True,
        dynamo=True,
        verbose=False,
    )
    assert encoder.training
    assert encoder.dropout.training
    assert program.report.verified
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert axes(file) == (
        {"a": ["batch-size", "n", 8], "b": ["batch-size", "n"]},
        {"h": ["batch-size", "n", 8], "p": ["batch-size", 8]},
    )
    encoder.eval()
    session = onnxruntime.InferenceSession(str(file))
    for rows, length in ((3, 7), (1, 1), (2, 30)):
        ids, mask = torch.randn(rows, length, 8), torch.ones(rows, length)
        hidden, pooled = session.run(None, {"a": ids.numpy(), "b": mask.numpy()})
        wanted = encoder(ids, mask)
        numpy.testing.assert_allclose(hidden, wanted["hidden"].detach().numpy(), atol=1e-5)
        numpy.testing.assert_allclose(pooled, wanted["pooled"].detach().numpy(), atol=1e-5)


def test_the_folder_of_such_a_program_keeps_the_names(encoder: Encoder, tmp_path: Path) -> None:
    program = onlooker.onnx_export(encoder.eval(), CALL, input_names=["a"], dynamic_axes={"a": [0], "mask": [0]})
    program.save(tmp_path / "kept")
    again = onlooker.load(tmp_path / "kept")
    assert again.graphs[0].labels == ("a", "mask")
    first = "a_dynamic_axes_1"
    assert axes(tmp_path / "kept" / "main.onnx")[0] == {"a": [first, 5, 8], "mask": ["mask_dynamic_axes_1", 5]}
    ids, mask = torch.randn(3, 5, 8), torch.ones(3, 5)
    torch.testing.assert_close(again(ids, mask)["hidden"], program(ids, mask)["hidden"])


B, N = Dim("b", min=1, max=64), Dim("n")
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dims": ({"ids": {0: B, 1: N}, "mask": {0: B, 1: N}}, {"ids": ["b", "n", 8], "mask": ["b", "n"]}),
    "strings": (({0: "b"}, {0: "b"}), {"ids": ["b", 5, 8], "mask": ["b", 5]}),
    "hints": (({0: Dim.DYNAMIC}, [Dim.DYNAMIC, None]), {"ids": ["batch", 5, 8], "mask": ["batch", 5]}),
    "auto": (
        ({0: Dim.AUTO, 2: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.STATIC}),
        {"ids": ["batch", 5, 8], "mask": ["batch", 5]},
    ),
    "none": ({"ids": None, "mask": None}, {"ids": [1, 5, 8], "mask": [1, 5]}),
}


@pytest.mark.parametrize("spelling", SHAPES)
@pytest.mark.one_in(2)
def test_dynamic_shapes_are_taken_as_torch_takes_them(encoder: Encoder, spelling: str) -> None:
    shapes, wanted = SHAPES[spelling]
    file = io.BytesIO()
    program = onlooker.onnx_export(encoder.eval(), CALL, file, dynamic_shapes=shapes)
    assert program.report.verified
    assert axes(file.getvalue())[0] == wanted
    if spelling == "dims":
        assert program.plans[0].symbol("b").high == 64


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_nested_arguments_by_name_in_the_order_of_torch(encoder: Encoder, tmp_path: Path) -> None:
    kwargs = {"extra": {"a": [torch.randn(2, 3)]}, "mask": torch.ones(1, 5)}
    ours, theirs = tmp_path / "ours.onnx", tmp_path / "theirs.onnx"
    names = ["first", "second", "third"]
    onlooker.onnx_export(
        encoder.eval(), CALL[:1], ours, kwargs=kwargs, input_names=names, dynamic_axes={"second": {0: "k"}}
    )
    torch.onnx.export(encoder, CALL[:1], theirs, kwargs=kwargs, input_names=names, dynamo=True, verbose=False)
    inputs, outputs = axes(ours)
    assert inputs == {"first": [1, 5, 8], "second": ["k", 3], "third": [1, 5]}
    assert list(inputs) == names
    assert axes(theirs)[0] == {**inputs, "second": [2, 3]}
    assert len(outputs) == len(axes(theirs)[1])


def test_graphs_of_several_sizes_are_one_file_that_chooses(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    program = onlooker.onnx_export(Sided(), torch.ones(1, 3), file, dynamic_axes={"x": {0: "rows"}})
    assert len(program.graphs) > 1
    assert program.report.verified
    session = onnxruntime.InferenceSession(str(file))
    assert [value.name for value in session.get_inputs()] == ["x"]
    for rows in (1, 3, 4, 5, 6, 7, 8):
        x = torch.randn(rows, 3)
        numpy.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], Sided()(x).numpy())


@pytest.mark.parametrize(
    ("model", "x", "dim", "reason"),
    [
        (Channels(), torch.ones(1, 3, 4), 1, "The model decides by .*if x.shape.1. != 3"),
        (Reshaped(), torch.ones(1, 12), 0, "With another size it raises RuntimeError: .*return x.reshape"),
    ],
)
def test_an_axis_that_cannot_change_is_an_error_with_its_line(
    model: Any, x: torch.Tensor, dim: int, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.onnx"
    with pytest.raises(onlooker.ExportError, match=rf"x.shape.{dim}. \('c'\) cannot change: .*{reason}") as caught:
        onlooker.onnx_export(model, (x,), file, dynamic_axes={"x": {dim: "c"}})
    assert caught.value.slug == "axis-not-dynamic"
    assert not file.exists()


@pytest.mark.slow
def test_a_program_that_is_not_right_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"as it was")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Softmax(-1)).eval()
    with pytest.raises(onlooker.ExportError, match="not-verified") as caught:
        onlooker.onnx_export(model, torch.randn(2, 64), file, dynamic_axes={"input": [0]}, atol=1e-15)
    assert str(file) in caught.value.message
    assert not caught.value.program.report.verified
    assert file.read_bytes() == b"as it was"


def test_more_calls_are_tried_and_say_which_axes_change(encoder: Encoder) -> None:
    other = (torch.randn(3, 6, 8), torch.ones(3, 6))
    program = onlooker.onnx_export(encoder.eval(), CALL, more_calls=[other])
    assert program.tally.counts["observed"] == 2
    assert program(torch.randn(2, 9, 8), torch.ones(2, 9))["pooled"].shape == (2, 8)
    with pytest.raises(onlooker.UsageError, match=r"ids.shape\[1\] has the sizes 5, 6 .*\[axis-not-named\]"):
        onlooker.onnx_export(encoder, CALL, more_calls=other, dynamic_axes={"ids": [0], "mask": [0]})


@pytest.mark.slow
def test_a_file_of_another_precision_says_what_accepts_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path, args = torch.nn.Linear(64, 8).eval(), tmp_path / "m.onnx", (torch.randn(2, 3, 64),)
    given: dict[str, Any] = {"precision": "int8", "dynamic_axes": {"input": [0]}}
    assert onlooker.onnx_export(model, args, **given).report.verdict.endswith("verified as int8")
    with pytest.raises(onlooker.ExportError, match=r"Give atol=.* to accept these differences\.") as caught:
        onlooker.onnx_export(model, args, path, **given, atol=1e-5)
    assert not path.exists()
    accepting = caught.value.program.tally.accepting
    assert onlooker.onnx_export(model, args, path, **given, **accepting).report.verified
    assert path.exists()


class Negated(torch.nn.Module):
    def forward(self, x: torch.Tensor, negate: bool = False) -> torch.Tensor:
        return -x if negate else x * 2


def test_calls_of_several_forms_are_no_file() -> None:
    x = torch.randn(2, 3)
    with pytest.raises(onlooker.UnsupportedError, match="several-graphs"):
        onlooker.onnx_export(Negated(), (x, True), more_calls=[(x, False)])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"size": 3}, "unknown-option"),
    "no weights": ({"export_params": False}, "not-in-file"),
    "weights as inputs": ({"keep_initializers_as_inputs": True}, "not-in-file"),
    "training": ({"training": torch.onnx.TrainingMode.TRAINING}, "not-in-file"),
    "aten": ({"operator_export_type": torch.onnx.OperatorExportTypes.ONNX_ATEN}, "not-in-file"),
    "own opsets": ({"custom_opsets": {"mine": 1}}, "not-in-file"),
    "own operators": ({"custom_translation_table": {torch.relu: len}}, "not-in-file"),
    "functions": ({"export_modules_as_functions": True}, "not-in-file"),
    "a report": ({"report": True}, "not-in-file"),
    "a profile": ({"profile": True}, "not-in-file"),
    "a dump": ({"dump_exported_program": True}, "not-in-file"),
    "not optimised": ({"optimize": False}, "not-in-file"),
    "opset": ({"opset_version": 99}, "bad-opset"),
    "opset of text": ({"opset_version": "18"}, "bad-opset"),
    "one name for two": ({"input_names": ["a", "a"]}, "bad-names"),
    "a text for names": ({"input_names": "ab"}, "bad-names"),
    "too many names": ({"input_names": ["a", "b", "c"]}, "bad-names"),
    "too many outputs": ({"output_names": ["a", "b", "c"]}, "bad-names"),
    "an output called as an input": ({"output_names": ["ids"]}, "bad-names"),
    "no such input": ({"dynamic_axes": {"z": [0]}}, "no-such-name"),
    "no such dimension": ({"dynamic_axes": {"ids": [7]}}, "no-such-dimension"),
    "no axes": ({"dynamic_axes": {"ids": "batch"}}, "bad-dynamic-axes"),
    "no dict of axes": ({"dynamic_axes": [0]}, "bad-dynamic-axes"),
    "a number as a name": ({"dynamic_axes": {"ids": {0: 3}}}, "bad-dynamic-axes"),
    "both": ({"dynamic_axes": {"ids": [0]}, "dynamic_shapes": {"ids": {0: "b"}}}, "bad-dynamic-axes"),
    "shapes of nothing": ({"dynamic_shapes": {"z": {0: "b"}}}, "bad-dynamic-shapes"),
    "too many shapes": ({"dynamic_shapes": ({}, {}, {}, {})}, "bad-dynamic-shapes"),
    "a shape of text": ({"dynamic_shapes": {"ids": "b"}}, "bad-dynamic-shapes"),
    "another size": ({"dynamic_shapes": {"ids": {0: 4}}}, "bad-dynamic-shapes"),
    "no such dimension of a shape": ({"dynamic_shapes": {"ids": {9: "b"}}}, "no-such-dimension"),
    "a range of nothing": (
        {"dynamic_axes": {"ids": {0: "b"}, "mask": {0: "b"}}, "ranges": {"c": (1, 2)}},
        "no-such-symbol",
    ),
    "a folder": ({"f": "/"}, "not-a-file"),
    "no path": ({"f": 3}, "wrong-kind"),
    "no model": ({"model": len}, "wrong-kind"),
    "names of arguments": ({"kwargs": [3]}, "wrong-kind"),
    "no such argument": ({"kwargs": {"z": 3}}, "call-raised"),
}


@pytest.mark.parametrize("use", WRONG)
@pytest.mark.one_in(2)
def test_a_wrong_use_gets_its_error(encoder: Encoder, use: str) -> None:
    options, slug = WRONG[use]
    asked = {"model": encoder.eval(), "args": CALL, "f": None, **options}
    with pytest.raises(onlooker.OnlookerError) as caught:
        onlooker.onnx_export(asked.pop("model"), asked.pop("args"), asked.pop("f"), **asked)
    assert caught.value.slug == slug


def test_every_argument_of_torch_is_known() -> None:
    theirs = set(inspect.signature(torch.onnx.export).parameters)
    ours = set(inspect.signature(onlooker.onnx_export).parameters)
    assert theirs <= ours | {*_ACCEPTED, *_REFUSED}


@pytest.mark.slow
def test_defaults_of_torch_pass(encoder: Encoder) -> None:
    theirs = inspect.signature(torch.onnx.export).parameters.values()
    given = {one.name: one.default for one in theirs if one.name in (*_ACCEPTED, *_REFUSED)}
    assert onlooker.onnx_export(encoder.eval(), CALL, **given).report.verified


def test_an_old_opset_is_raised_with_a_warning(encoder: Encoder) -> None:
    with pytest.warns(onlooker.OnlookerWarning, match="opset-raised"):
        program = onlooker.onnx_export(encoder.eval(), CALL, opset_version=14)
    assert program.graphs[0].artifact.model.opset_imports[""] == 18


@pytest.mark.slow
def test_one_model_of_openvino(encoder: Encoder, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    file = tmp_path / "m.xml"
    program = onlooker.openvino_export(
        encoder.eval(),
        CALL,
        file,
        input_names=["a", "b"],
        output_names=["h", "p"],
        dynamic_axes={"a": {0: "rows"}, "b": {0: "rows"}},
    )
    assert program.report.verified
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.xml"]
    model = openvino.Core().read_model(file)
    assert [port.any_name for port in (*model.inputs, *model.outputs)] == ["a", "b", "h", "p"]
    with pytest.raises(onlooker.UsageError, match="wrong-suffix"):
        onlooker.openvino_export(encoder, CALL, tmp_path / "m.onnx")
