"""Formulas of sizes as sums of products, and the least and the greatest value that they may have."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

__all__ = ["ANY", "Limits", "Sum", "added", "limits_of", "limits_of_sum", "sum_of", "text_of"]

#: the factor of each product of symbols, and that of ``()``, the constant
Sum = dict[tuple[str, ...], int]
#: the least and the greatest value, infinite where nothing limits it
Limits = tuple[float, float]

ANY: Limits = (-math.inf, math.inf)


def added(left: Sum, right: Sum, factor: int = 1) -> Sum:
    """Returns the sum of one sum and of another one times a factor."""
    found = dict(left)
    for product, count in right.items():
        found[product] = found.get(product, 0) + factor * count
    return {product: count for product, count in found.items() if count}


def sum_of(node: ast.expr) -> Sum:
    """Returns a formula as a sum of products; what is neither is a symbol of its own.

    >>> sum_of(ast.parse("2*(n + 1) - k*n + n//4", mode="eval").body)
    {('n',): 2, (): 2, ('k', 'n'): -1, ('(n // 4)',): 1}
    """
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return {(): number}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return added({}, sum_of(operand), -1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return added(sum_of(left), sum_of(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return added(sum_of(left), sum_of(right), -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            total: Sum = {}
            others = sum_of(right)
            for product, factor in sum_of(left).items():
                longer = {
                    tuple(sorted((*product, *other))): count for other, count in others.items()
                }
                total = added(total, longer, factor)
            return total
    return {(f"({ast.unparse(node)})",): 1}


def text_of(total: Sum) -> str:
    """Returns a sum as Python writes it."""
    text = ""
    for product, factor in sorted(total.items()):
        number = [str(abs(factor))] if abs(factor) != 1 else []
        words = "*".join([*number, *product])
        if text:
            text += f" {'-' if factor < 0 else '+'} {words}"
        else:
            text = f"-{words}" if factor < 0 else words
    return text


def limits_of_sum(total: Sum, limits: Mapping[str, Limits]) -> Limits:
    """Returns the limits of a sum of products: that ``n < n*k`` is known as soon as products are
    written out.

    Of ``2*n - k`` with n from 1 to 5 and k from 0 to 3 these are ``2*1 - 3`` and ``2*5 - 0``.
    """
    found: Limits = (0, 0)
    for product, factor in total.items():
        part: Limits = (factor, factor)
        for text in product:
            inner = limits_of(ast.parse(text, mode="eval").body, limits)
            part = _limits_of_two(part, ast.Mult(), inner)
        found = _limits_of_two(found, ast.Add(), part)
    return found


def limits_of(node: ast.expr, limits: Mapping[str, Limits]) -> Limits:
    """Returns the least and the greatest value of a formula, or something further apart.

    >>> limits_of(ast.parse("min(n, 7) - k//2", mode="eval").body, {"n": (1, math.inf), "k": (0, 4)})
    (-1, 7)
    """
    match node:
        case ast.Constant(value=int(number)):
            return (number, number)
        case ast.Name(id=name):
            return limits.get(name, ANY)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _limits_of_two((0, 0), ast.Sub(), limits_of(operand, limits))
        case ast.BinOp(left=left, op=op, right=right):
            return _limits_of_two(limits_of(left, limits), op, limits_of(right, limits))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=parts):
            choose = min if name == "min" else max
            lows, highs = zip(*(limits_of(part, limits) for part in parts), strict=True)
            return (choose(lows), choose(highs))
    return ANY


def _limits_of_two(left: Limits, op: ast.operator, right: Limits) -> Limits:
    match op:
        case ast.Add():
            return (left[0] + right[0], left[1] + right[1])
        case ast.Sub():
            return (left[0] - right[1], left[1] - right[0])
        case ast.Mult():
            # nothing times what has no end is nothing
            products = [one * other if one and other else 0 for one in left for other in right]
            return (min(products), max(products))
        case ast.FloorDiv() if right[0] == right[1] > 0:
            low, high = (end // right[0] if math.isfinite(end) else end for end in left)
            return (low, high)
        case ast.Mod() if left == (1, 1) and right[0] >= 2:
            return left
        case ast.Mod() if right[0] >= 1:
            return (0, right[1] - 1)
    return ANY
