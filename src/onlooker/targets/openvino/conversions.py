"""Operators of torch that OpenVINO has, and that its front end knows only taken apart.

Why: torch takes a product apart by asking which sizes are 1, and the answer holds for the example
alone. So a program that is right for any size would become a model that is right for some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .recurrent import recurrent_results

__all__ = ["CONVERSIONS", "RESULTS", "extensions"]


def _matmul(context: Any) -> list[Any]:
    from openvino import opset13

    product = opset13.matmul(context.get_input(0), context.get_input(1), False, False)
    return [product.output(0)]


def _einsum(context: Any) -> list[Any]:
    from openvino import opset13

    text = context.get_input(0).get_node().get_data().tobytes().decode()
    tensors = context.get_input(1).get_node().input_values()
    return [opset13.einsum(tensors, _with_result(text)).output(0)]


def _with_result(equation: str) -> str:
    """The equation with its right side: without one the result has the letters that stand once.

    >>> _with_result("ij, jk")
    'ij,jk->ik'
    """
    equation = equation.replace(" ", "")
    if "->" in equation:
        return equation
    letters = sorted(set(equation) - set(",."))
    dots = "..." if "..." in equation else ""
    return f"{equation}->{dots}{''.join(one for one in letters if equation.count(one) == 1)}"


#: operator of torch -> the function that makes nodes of OpenVINO
CONVERSIONS: dict[Any, Callable[[Any], list[Any]]] = {
    torch.ops.aten.matmul.default: _matmul,
    torch.ops.aten.einsum.default: _einsum,
}


#: recurrent operator of torch -> each of its results as an operator that has a function here
RESULTS = recurrent_results()


def extensions() -> list[Any]:
    """The functions, for the front end."""
    from openvino.frontend.pytorch import ConversionExtension

    results = [result for of_one in RESULTS.values() for result in of_one]
    return [
        *(ConversionExtension(str(operator), made) for operator, made in CONVERSIONS.items()),
        *(ConversionExtension(str(result), result.convert) for result in results),
    ]
