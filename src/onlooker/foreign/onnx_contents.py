"""Reads tables and numbers of a model of ONNX."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from ..targets.onnx.runtime.bounds import graphs_inside
from .contents import Act, Contents, OperatorStep, contents_of, numbers_in

__all__ = ["contents_of_onnx"]

#: constants of more elements are tables or weights, and no numbers to compare with
_MOST_ELEMENTS = 16
_COUNTING = frozenset({"Shape", "Size", "Range", "ConstantOfShape", "NonZero"})
#: operators that give elements of their inputs, or numbers made of each one by itself
_HANDING_ON = frozenset(
    {
        *("Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Expand", "Slice", "Concat", "Split", "Tile", "Identity", "Add", "Sub", "Mul", "Div"),
        *("Mod", "Neg", "Abs", "Min", "Max", "Clip", "Where", "BitwiseAnd", "BitwiseOr"),
        *("BitShift",),
    }
)
#: operators that compare, bound, divide or cut: their numbers are those at which something changes
_COMPARING = frozenset(
    {
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Min", "Max", "Clip"),
        *("Mod", "Div", "Slice", "Range", "BitShift"),
    }
)
_LOOKUPS = frozenset({"Gather", "GatherElements"})


def contents_of_onnx(source: Any) -> Contents | None:
    """The tables that inputs of a model index, and the numbers that it compares sizes with; None
    where the package onnx is not there to read them. ``source`` is a path or a ModelProto.
    """
    try:
        onnx = importlib.import_module("onnx")
        inliner = importlib.import_module("onnx.inliner")
    except ImportError:
        return None
    folder = Path()
    model = source
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source).parent
        model = onnx.load(source, load_external_data=False)
    if model.functions:
        model = inliner.inline_local_functions(model)
    steps = _OnnxReader(onnx, folder).steps(model.graph)
    return contents_of(steps, [value.name for value in model.graph.input])


class _OnnxReader:
    """Gives the nodes of a graph and of all graphs inside of it as steps: they share their names."""

    def __init__(self, onnx: Any, folder: Path) -> None:
        self._onnx, self._folder = onnx, folder
        self._shapes: dict[str, Sequence[int | None]] = {}
        self._constants: dict[str, Any] = {}

    def steps(self, graph: Any) -> Iterator[OperatorStep]:
        """The steps of one graph."""
        for tensor in graph.initializer:
            self._add(tensor.name, tensor)
        for value in (*graph.value_info, *graph.input):
            if value.type.HasField("tensor_type"):
                dims = value.type.tensor_type.shape.dim
                sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
                self._shapes.setdefault(value.name, sizes)
        for node in graph.node:
            yield from self._of_node(node)

    def _add(self, name: str, tensor: Any) -> None:
        """Notes the shape of a constant, and its values where they are few."""
        self._shapes[name] = list(tensor.dims)
        count = int(numpy.prod(tensor.dims)) if tensor.dims else 1
        self._constants[name] = None
        if count <= _MOST_ELEMENTS and tensor.data_type != self._onnx.TensorProto.STRING:
            array = self._onnx.numpy_helper.to_array(tensor, str(self._folder))
            self._constants[name] = numpy.asarray(array)

    def _of_node(self, node: Any) -> Iterator[OperatorStep]:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant":
            self._add_constant(node.output[0], attributes)
            return
        for graph in graphs_inside(node):
            names = [value.name for value in graph.input]
            if names:
                yield OperatorStep(Act.HAND_ON, tuple(node.input), tuple(names))
            yield from self.steps(graph)
        if node.op_type in _LOOKUPS:
            yield from self._lookup(node, attributes)
        inputs = tuple(name for name in node.input if name and name not in self._constants)
        if node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and not inputs:
            self._constants[node.output[0]] = self._constants[node.input[0]]
            return
        act = Act.HAND_ON if node.op_type in _HANDING_ON else Act.OTHER
        act = Act.COUNT if node.op_type in _COUNTING else act
        numbers, are_ints = self._numbers(node) if node.op_type in _COMPARING else ((), False)
        yield OperatorStep(act, inputs, tuple(node.output), numbers, are_ints)

    def _add_constant(self, name: str, attributes: Mapping[str, Any]) -> None:
        if "value" in attributes:
            self._add(name, attributes["value"].t)
            return
        for kind in ("value_int", "value_ints", "value_float", "value_floats"):
            if kind in attributes:
                self._constants[name] = numpy.asarray(
                    self._onnx.helper.get_attribute_value(attributes[kind])
                )

    def _lookup(self, node: Any, attributes: Mapping[str, Any]) -> Iterator[OperatorStep]:
        axis = attributes["axis"].i if "axis" in attributes else 0
        shape = self._shapes.get(node.input[0])
        if not shape or not -len(shape) <= axis < len(shape):
            return
        rows, index = shape[axis], node.input[1]
        if rows is not None and index not in self._constants:
            yield OperatorStep(Act.LOOK_UP, (index,), (), rows=rows)

    def _numbers(self, node: Any) -> tuple[tuple[float, ...], bool]:
        """The numbers of the small constants among the inputs, and whether they are ints."""
        first = 1 if node.op_type == "Slice" else 0
        last = 3 if node.op_type == "Slice" else len(node.input)
        found = [self._constants.get(name) for name in node.input[first:last] if name]
        return numbers_in(array for array in found if array is not None)
