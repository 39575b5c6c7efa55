"""Reads tables and numbers of a model of OpenVINO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from .contents import Act, Contents, OperatorStep, contents_of, numbers_in

__all__ = ["contents_of_openvino"]

#: constants of more elements are tables or weights, and no numbers to compare with
_MOST_ELEMENTS = 16
_COUNTING = frozenset({"ShapeOf", "Range", "NonZero"})
#: operators that give elements of their inputs, or numbers made of each one by itself
_HANDING_ON = frozenset(
    {
        *("Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast", "Slice"),
        *("StridedSlice", "Concat", "Split", "VariadicSplit", "Tile", "Add", "Subtract"),
        *("Multiply", "Divide", "Mod", "FloorMod", "Negative", "Abs", "Minimum", "Maximum"),
        *("Clamp", "Select", "Result"),
    }
)
#: operators that compare, bound, divide or cut: their numbers are those at which something changes
_COMPARING = frozenset(
    {
        *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "Minimum"),
        *("Maximum", "Mod", "FloorMod", "Divide", "Slice", "StridedSlice", "Range"),
    }
)
_LOOKUPS = frozenset({"Gather", "GatherElements"})


def contents_of_openvino(model: Any, inputs: Sequence[str]) -> Contents:
    """The tables that inputs of a model index, by the names that ``inputs`` gives them in their order,
    and the numbers that it compares sizes with.
    """
    given = [port.get_node().get_friendly_name() for port in model.inputs]
    found = contents_of(_steps(model, ""), given)
    names = dict(zip(given, inputs, strict=True))
    rows = {names[name]: count for name, count in found.rows.items()}
    return Contents(rows, found.numbers)


def _steps(model: Any, prefix: str) -> Iterator[OperatorStep]:
    """The operators of a model, and of the models that its branches and loops run."""
    for node in model.get_ordered_ops():
        sources = [value.get_node() for value in node.input_values()]
        names = tuple(
            prefix + one.get_friendly_name() for one in sources if one.get_type_name() != "Constant"
        )
        kind, own = node.get_type_name(), (prefix + node.get_friendly_name(),)
        for number, inner in enumerate(_inner(node)):
            within = f"{own[0]}.{number}."
            entries = tuple(within + one.get_friendly_name() for one in inner.get_parameters())
            yield OperatorStep(Act.HAND_ON, names, entries)
            yield from _steps(inner, within)
        if kind in _LOOKUPS and sources[1].get_type_name() != "Constant":
            yield from _lookup(node, prefix + sources[1].get_friendly_name())
        act = Act.HAND_ON if kind in _HANDING_ON else Act.OTHER
        numbers, are_ints = _clamped(node) if kind == "Clamp" else _numbers(kind, sources)
        yield OperatorStep(Act.COUNT if kind in _COUNTING else act, names, own, numbers, are_ints)


def _inner(node: Any) -> list[Any]:
    """The models that an operator runs."""
    makers = ("get_then_body", "get_else_body", "get_function", "get_body")
    return [getattr(node, maker)() for maker in makers if hasattr(node, maker)]


def _lookup(node: Any, index: str) -> Iterator[OperatorStep]:
    axis = 0
    if node.get_type_name() == "Gather":
        last = node.input_value(2).get_node()
        axis = int(last.get_data().reshape(-1)[0]) if last.get_type_name() == "Constant" else 0
    elif "axis" in (attributes := node.get_attributes()):
        axis = int(attributes["axis"])
    shape = node.input_value(0).get_partial_shape()
    is_known = shape.rank.is_static and -len(shape) <= axis < len(shape)
    if is_known and shape[axis].is_static:
        yield OperatorStep(Act.LOOK_UP, (index,), (), rows=shape[axis].get_length())


def _clamped(node: Any) -> tuple[tuple[float, ...], bool]:
    """The least and the greatest number of a clamp, and whether it clamps ints."""
    found = node.get_attributes()
    is_int = not node.get_output_element_type(0).is_real()
    return tuple(found[end] for end in ("min", "max") if math.isfinite(found[end])), is_int


def _numbers(kind: str, sources: Sequence[Any]) -> tuple[tuple[float, ...], bool]:
    """The numbers of the small constants among the inputs, and whether they are ints."""
    if kind not in _COMPARING:
        return (), False
    chosen = sources[1:3] if kind in ("Slice", "StridedSlice") else sources
    arrays = [
        one.get_data()
        for one in chosen
        if one.get_type_name() == "Constant" and one.get_output_size() == 1
    ]
    return numbers_in(array for array in arrays if array.size <= _MOST_ELEMENTS)
