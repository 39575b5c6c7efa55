"""A small model, and exports of it that are right, or wrong in a way that has a name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import onlooker

#: the line that decides by the batch
BRANCH = "return x * 2 if x.shape[0] == 1 else x.clamp(-50, 50) * 2"


class Pooled(torch.nn.Module):
    """Rows of a past and of new ones, and their mean where a mask does not hide them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(4, 3, generator=generator))

    def forward(
        self,
        x: torch.Tensor,
        past: torch.Tensor,
        mask: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        rows = torch.cat([past, x], 1) @ self.weight
        weights = mask.unsqueeze(2)
        mean = (rows * weights).sum(1) / (weights.sum(1) + 1)
        return {"rows": rows, "mean": mean * scale + shift}


class Branching(torch.nn.Module):
    """Does something else for a batch of one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 1 else x.clamp(-50, 50) * 2


def arguments(batch: int, sequence: int, past: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """One call of :class:`Pooled`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    mask = torch.ones(batch, past + sequence)
    mask[0, 0] = 0
    return {
        "x": draw(batch, sequence, 4),
        "past": draw(batch, past, 4),
        "mask": mask,
        "scale": draw(batch, 3),
        "shift": draw(batch, 3),
    }


def pooled_program() -> onlooker.Program:
    """What the model takes, from three calls."""
    model, observer = Pooled(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for sizes in ((2, 5, 3), (3, 2, 6), (2, 4, 7)):
            model(**arguments(*sizes, seed=sum(sizes)))
    return observer.export()


def branching_program() -> onlooker.Program:
    """The same of the model that decides by the batch."""
    model, observer = Branching(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for shape in ((3, 4), (5, 6)):
            model(torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 100)
    return observer.export()


_SHAPES = {
    "x": ["batch", "sequence", 4],
    "past": ["batch", "past", 4],
    "mask": ["batch", "past + sequence"],
    "scale": ["batch", 3],
    "shift": ["batch", 3],
}


def pooled_onnx(fault: str = "") -> Any:  # noqa: C901, PLR0915  # a list of faults
    """A ModelProto of :class:`Pooled` that somebody wrote by hand, with one fault."""
    onnx = importlib.import_module("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = Pooled().weight.detach().numpy().copy()
    shapes = {name: list(shape) for name, shape in _SHAPES.items()}
    types = dict.fromkeys(shapes, kinds.FLOAT)
    constants = {"weight": weight, "one": numpy.float32([1]), "at1": numpy.int64([1]), "at2": numpy.int64([2])}
    first, second, rows = "past", "x", "rows"
    before: list[Any] = []
    after: list[Any] = []
    outputs = ["rows", "mean"]
    scale, shift, mask = "scale", "shift", "mask"

    def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
        return helper.make_node(kind, list(inputs), [output], **attributes)

    if fault == "baked batch":
        for shape in shapes.values():
            shape[0] = 2
    if fault == "batch baked inside":
        constants["to"] = numpy.int64([2, -1, 3])
        rows = "rows_"
        after.append(node("Reshape", ["rows_", "to"], "rows"))
    if fault == "constant sequence":
        shapes["x"][1] = 5
    if fault == "constant length inside":
        constants["places"] = numpy.zeros((1, 8, 1), numpy.float32)
        rows = "rows_"
        after.append(node("Add", ["rows_", "places"], "rows"))
    if fault == "unrelated mask":
        shapes["mask"][1] = "length"
    if fault == "mask of other rows":  # the mask of the new rows alone, as if there were no past
        shapes["mask"][1] = "sequence"
        constants |= {"zero": numpy.int64([0])}
        before += [
            node("Shape", ["past"], "length", start=1, end=2),
            node("Shape", ["past"], "rows_of_batch", start=0, end=1),
            node("Concat", ["rows_of_batch", "length"], "of_past", axis=0),
            node("ConstantOfShape", ["of_past"], "hidden"),
            node("Concat", ["hidden", "mask"], "whole", axis=1),
        ]
        mask = "whole"
    if fault == "ignored mask":
        before += [
            node("Shape", ["mask"], "of_mask"),
            node("ConstantOfShape", ["of_mask"], "ones", value=helper.make_tensor("v", kinds.FLOAT, [1], [1.0])),
        ]
        mask = "ones"
    if fault == "transposed output":
        rows = "rows_"
        after.append(node("Transpose", ["rows_"], "rows", perm=[1, 0, 2]))
    if fault == "dropped output":
        outputs = ["mean"]
    if fault == "exchanged outputs":
        outputs = ["mean", "rows"]
    if fault == "wrong output dtype":
        rows = "rows_"
        after.append(node("Cast", ["rows_"], "rows", to=kinds.DOUBLE))
    if fault == "wrong input dtype":
        types["scale"] = kinds.DOUBLE
        before.append(node("Cast", ["scale"], "scale_", to=kinds.FLOAT))
        scale = "scale_"
    if fault == "swapped inputs":
        scale, shift = shift, scale
    if fault == "swapped parts":
        first, second = second, first
    if fault == "other weights":
        constants["weight"] = weight * 1.01
    if fault == "noise":
        rows = "rows_"
        after += [
            node("RandomNormalLike", ["rows_"], "noise", scale=0.5),
            node("Add", ["rows_", "noise"], "rows"),
        ]
    if fault == "baked argument":
        del shapes["shift"]
        constants["shift"] = numpy.zeros((1, 3), numpy.float32)
    if fault == "unknown input":
        shapes["positions"] = ["batch", "sequence"]
        types["positions"] = kinds.INT64
    nodes = [
        *before,
        node("Concat", [first, second], "all", axis=1),
        node("MatMul", ["all", "weight"], rows),
        *after,
        node("Unsqueeze", [mask, "at2"], "weights"),
        node("Mul", [rows if fault != "wrong output dtype" else "rows_", "weights"], "weighted"),
        node("ReduceSum", ["weighted", "at1"], "sum", keepdims=0),
        node("ReduceSum", ["weights", "at1"], "count_", keepdims=0),
        node("Add", ["count_", "one"], "count"),
        node("Div", ["sum", "count"], "plain"),
        node("Mul", ["plain", scale], "scaled"),
        node("Add", ["scaled", shift], "mean"),
    ]
    names = {"rows": "rows", "mean": "mean"}
    if fault in ("exchanged outputs",):  # the names do not help either
        names = {"rows": "output_1", "mean": "output_0"}
        nodes += [node("Identity", ["rows"], "output_1"), node("Identity", ["mean"], "output_0")]
    results = {
        "rows": (kinds.DOUBLE if fault == "wrong output dtype" else kinds.FLOAT, [None, None, 3]),
        "mean": (kinds.FLOAT, [None, 3]),
    }
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info(name, types[name], shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(names[name], *results[name]) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def branching_onnx() -> Any:
    """The side of the model for a batch of two and more."""
    onnx = importlib.import_module("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    constants = {"low": -50.0, "high": 50.0, "two": 2.0}
    graph = helper.make_graph(
        [
            helper.make_node("Clip", ["x", "low", "high"], ["kept"]),
            helper.make_node("Mul", ["kept", "two"], ["y"]),
        ],
        "branching",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, ["batch", "n"])],
        [onnx.numpy_helper.from_array(numpy.array(value, numpy.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def as_openvino(model: Any, folder: Path) -> Path:
    """A model of ONNX as an ``.xml`` of OpenVINO."""
    onnx, openvino = importlib.import_module("onnx"), importlib.import_module("openvino")
    onnx.save(model, folder / "model.onnx")
    read = openvino.Core().read_model(folder / "model.onnx")
    openvino.save_model(read, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


class Faulty(Pooled):
    """The model with one fault, for torch.export."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(
        self,
        x: torch.Tensor,
        past: torch.Tensor,
        mask: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> Any:
        fault = self.fault
        if fault == "swapped inputs":
            scale, shift = shift, scale
        if fault == "ignored mask":
            mask = torch.ones_like(mask)
        if fault == "other weights":
            past = past * 1.01
        found = super().forward(x, past, mask, scale, shift)
        rows, mean = found["rows"], found["mean"]
        if fault == "transposed output":
            rows = rows.transpose(1, 2)
        if fault == "wrong output dtype":
            rows = rows.double()
        if fault == "dropped output":
            return {"mean": mean}
        if fault == "exchanged outputs":
            return mean, rows
        return {"rows": rows, "mean": mean}


def pooled_pt2(fault: str = "") -> torch.export.ExportedProgram:
    """A program of torch.export with one fault."""
    batch: Any = torch.export.Dim("batch", max=2) if fault == "narrow batch" else torch.export.Dim.DYNAMIC
    sequence: Any = torch.export.Dim.DYNAMIC
    if fault == "baked batch":
        batch = torch.export.Dim.STATIC
    shapes = {
        "x": {0: batch, 1: torch.export.Dim.STATIC if fault == "constant sequence" else sequence},
        "past": {0: batch, 1: torch.export.Dim.STATIC if fault == "constant past" else sequence},
        "mask": {0: batch, 1: sequence},
        "scale": {0: batch},
        "shift": {0: batch},
    }
    if fault == "constant sequence":
        shapes["mask"][1] = torch.export.Dim.AUTO
    if fault == "constant past":
        shapes["mask"][1] = torch.export.Dim.AUTO
    return torch.export.export(Faulty(fault), (), kwargs=arguments(2, 5, 3), dynamic_shapes=shapes)


def branching_pt2() -> torch.export.ExportedProgram:
    """What torch.export makes of the model that decides by the batch."""
    x = torch.randn(3, 4)
    shapes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("n")}}
    return torch.export.export(Branching(), (x,), dynamic_shapes=shapes)
