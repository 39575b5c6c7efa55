"""Casts around operators on bools and ints for which ONNX Runtime has no kernel on the CPU.

ONNX Runtime computes most operators for some dtypes only: it has no ``Where`` of bools, no ``Max`` or ``Pad`` of 16-bit
ints. Where such an operator has a kernel for a wider dtype, which holds each number of the narrow one, its inputs are
cast to that, and its results back::

    Where(c, a, b) of bools   ->   Cast(Where(c, Cast(a, uint8), Cast(b, uint8)), bool)

The installed runtime says which kernels there are (``get_all_opkernel_def``). Floats in half precision stay as they
are: other devices have kernels for them, and on the CPU the runtime itself casts float16.

Upstream: https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from operator import ne
from typing import Any

__all__ = ["cast_for_kernels"]

#: by dtype of ONNX the wider ones that hold all of its numbers, the nearest first
_WIDER = {
    "tensor(bool)": ("tensor(uint8)", "tensor(int32)", "tensor(float)"),
    "tensor(uint8)": ("tensor(int32)", "tensor(int64)", "tensor(float)"),
    "tensor(int8)": ("tensor(int32)", "tensor(int64)", "tensor(float)"),
    "tensor(int16)": ("tensor(int32)", "tensor(int64)", "tensor(float)"),
    "tensor(int32)": ("tensor(int64)", "tensor(double)"),
}
#: what changes the dtype of a tensor, or reads its bits
_OF_DTYPES = frozenset(
    {"Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
)
_Dtypes = dict[str, str]


def cast_for_kernels(model: Any) -> None:
    """Puts casts around the operators of a model that lack a kernel of their dtype and have one of a wider dtype, in
    place; models stay as they are where ONNX Runtime is not installed.
    """
    for node in list(model.graph.all_nodes()) if _kernels() else ():
        schema = None if node.domain or node.op_type in _OF_DTYPES else _schema(node, model)
        dtypes = {} if schema is None else _dtypes(node, schema)
        wanted = _with_kernel(node.op_type, schema, dtypes) if dtypes else None
        if wanted is not None and wanted != dtypes:
            changed = {
                name: (dtypes[name], wanted[name])
                for name in dtypes
                if wanted[name] != dtypes[name]
            }
            _cast(node, schema, changed)


@cache
def _kernels() -> Mapping[str, list[tuple[tuple[int, int], Mapping[str, Sequence[str]]]]]:
    """The kernels of the CPU by operator: the first and the last version, and the dtypes of the type parameters."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
    except ImportError:
        return {}
    found: dict[str, list[tuple[tuple[int, int], Mapping[str, Sequence[str]]]]] = {}
    for one in get_all_opkernel_def():
        if one.provider == "CPUExecutionProvider" and one.domain in ("", "ai.onnx"):
            found.setdefault(one.op_name, []).append((one.version_range, one.type_constraints))
    return found


def _schema(node: Any, model: Any) -> Any:
    """The schema of a plain operator; None for an operator that ONNX does not know."""
    import onnx

    asked = (node.op_type, model.opset_imports.get("", 0), "")
    return onnx.defs.get_schema(*asked) if onnx.defs.has(*asked) else None


def _with_parameters(formal: Sequence[Any], values: Sequence[Any]) -> list[tuple[str, Any]]:
    """The values, each with the name of its type parameter: that of the last one stands for all that follow."""
    last = len(formal) - 1
    return [
        ("" if value is None else formal[min(place, last)].type_str, value)
        for place, value in enumerate(values)
    ]


def _dtypes(node: Any, schema: Any) -> _Dtypes:
    """The dtypes of the type parameters of an operator, as far as they are known."""
    names = {one.type_param_str for one in schema.type_constraints}
    found: _Dtypes = {}
    for formal, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for name, value in _with_parameters(formal, values):
            if name in names and value.dtype is not None:
                found.setdefault(name, f"tensor({value.dtype.name.lower()})")
    return found


def _with_kernel(operator: str, schema: Any, dtypes: _Dtypes) -> _Dtypes | None:
    """The nearest dtypes for which there is a kernel; None where there is none."""
    version = schema.since_version
    kernels = [
        known for (first, last), known in _kernels().get(operator, ()) if first <= version <= last
    ]
    choices = [(dtype, *_WIDER.get(dtype, ())) for dtype in dtypes.values()]
    for choice in sorted(product(*choices), key=lambda each: sum(map(ne, each, dtypes.values()))):
        chosen = dict(zip(dtypes, choice, strict=True))
        if any(_takes(known, chosen) for known in kernels):
            return chosen
    return None


def _takes(kernel: Mapping[str, Sequence[str]], dtypes: _Dtypes) -> bool:
    return all(
        dtypes.get(name, allowed[0]) in allowed for name, allowed in kernel.items() if allowed
    )


def _cast(node: Any, schema: Any, changed: Mapping[str, tuple[str, str]]) -> None:
    """Writes an operator anew between casts; ``changed`` are the narrow and the wide dtype by type parameter."""
    import onnx_ir

    made: list[Any] = []

    def cast(value: Any, dtype: str, name: str) -> Any:
        to = _of_name(dtype)
        made.append(onnx_ir.node("Cast", [value], {"to": int(to)}, outputs=[_value(name, to)]))
        return made[-1].outputs[0]

    inputs = [
        cast(value, changed[name][1], f"{node.outputs[0].name}_wide_{place}")
        if name in changed
        else value
        for place, (name, value) in enumerate(_with_parameters(schema.inputs, node.inputs))
    ]
    results = _with_parameters(schema.outputs, node.outputs)
    wide = [
        _value(f"{value.name}_wide", _of_name(changed[name][1]) if name in changed else value.dtype)
        for name, value in results
    ]
    again = onnx_ir.Node(
        "", node.op_type, inputs, node.attributes.values(), outputs=wide, name=node.name
    )
    again.metadata_props.update(node.metadata_props)
    made.append(again)
    narrow = [
        cast(one, changed[name][0], f"{value.name}_narrow") if name in changed else one
        for (name, value), one in zip(results, wide, strict=True)
    ]
    for value, one in zip(node.outputs, narrow, strict=True):
        one.shape = value.shape
    onnx_ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], made, list(node.outputs), narrow
    )


def _of_name(dtype: str) -> Any:
    import onnx_ir

    return onnx_ir.DataType[dtype.removeprefix("tensor(").removesuffix(")").upper()]


def _value(name: str, dtype: Any) -> Any:
    import onnx_ir

    return onnx_ir.Value(name=name, type=None if dtype is None else onnx_ir.TensorType(dtype))
