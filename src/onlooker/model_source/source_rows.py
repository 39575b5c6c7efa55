"""What the source of a loop says of the rows of tensors that its steps read and write."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from .source_loops import names_of, names_set, within
from .source_tests import called_name, expressions_around, has_positions, parents_in, tree_of_code

__all__ = [
    "has_other_rows_read",
    "has_rows_written",
    "is_added_to",
    "is_set_by_its_loop",
    "is_written_to",
    "items_written",
]

_LOOPS = (ast.For, ast.While)
_Loop = ast.For | ast.While
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@functools.lru_cache(maxsize=4096)
def is_set_by_its_loop(code: CodeType, instruction: int) -> bool:
    """True for ``x[i]`` of a name that the body of the loop around it sets."""
    name, loop = _indexed(code, instruction)
    return loop is not None and name in names_set(loop.body)


@functools.lru_cache(maxsize=4096)
def has_other_rows_read(code: CodeType, instruction: int) -> bool:
    """True for ``x[i]`` where the body of the loop around it writes to ``x[i]``, and reads ``x[i - 1]`` or
    another row. Of ``x[i, :2]`` and ``x[i, 5]`` the row is the same.
    """
    rows = _rows_in_loop(code, instruction)
    return bool(rows[ast.Store]) and not rows[ast.Load] <= rows[ast.Store]


@functools.lru_cache(maxsize=4096)
def has_rows_written(code: CodeType, instruction: int) -> bool:
    """True for ``x[i : j]`` where the body of the loop around it writes to rows of ``x``."""
    return any(_rows_in_loop(code, instruction)[ast.Store])


def _rows_in_loop(code: CodeType, instruction: int) -> dict[type, set[Any]]:
    """The rows of the name of which an instruction reads or writes an item, in the loop around it: those that are
    read and those that are written, each by the entries of its key that hang on the loop.
    """
    name, loop = _indexed(code, instruction)
    rows: dict[type, set[Any]] = {ast.Load: set(), ast.Store: set()}
    body = [] if loop is None else list(within(loop.body))
    parents = parents_in(loop) if loop is not None else {}
    for node in body:
        if isinstance(node, ast.Subscript) and _is_named(node.value, name):
            row = _row_of(node.slice, loop)  # type: ignore[arg-type]
            rows.setdefault(type(node.ctx), set()).add(row)
            if _is_written(node, body, parents):
                rows[ast.Store].add(row)
    return rows


def is_added_to(code: CodeType, instruction: int) -> bool:
    """True for the reading of ``x[i : j]`` in ``x[i : j] += y``, which is written back at once."""
    around = expressions_around(code, instruction) if has_positions() else ()
    read = around[0] if around else None
    return isinstance(read, ast.Subscript) and isinstance(read.ctx, ast.Store)


@functools.lru_cache(maxsize=4096)
def is_written_to(code: CodeType, instruction: int) -> bool:
    """True for the reading of ``x[i]`` in a loop that writes to it: by ``x[i] += y``, ``x[i][j] = y``,
    ``x[i].fill_(y)``, or by a name that it gives to ``x[i]``.
    """
    name, loop = _indexed(code, instruction)
    if loop is None:
        return is_added_to(code, instruction)
    read = ast.unparse(expressions_around(code, instruction)[0])
    parents = parents_in(tree_of_code(code))
    body = list(_within_all_loops(loop, parents))
    for node in body:
        if not isinstance(node, ast.Subscript) or not _is_named(node.value, name):
            continue
        if ast.unparse(node) == read and _is_written(node, body, parents):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def items_written(code: CodeType, line: int) -> frozenset[str]:
    """The names of what the ``for`` loops at a line go over, to whose items they write: ``rows`` of ``for row in
    rows: row[0] = 1``, also within ``zip`` and ``enumerate``.
    """
    tree, found = tree_of_code(code), set[str]()
    for loop in () if tree is None else ast.walk(tree):
        if isinstance(loop, ast.For) and loop.lineno == line:
            body, parents = list(within(loop.body)), parents_in(loop)
            for target, values in _items_of(loop.target, loop.iter):
                if isinstance(target, ast.Name) and isinstance(values, ast.Name):
                    found |= {values.id} if _is_name_written(target.id, body, parents) else set()
    return frozenset(found)


def _items_of(target: ast.expr, values: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a loop gives a value, each with what it goes over for it."""
    name = called_name(values) if isinstance(values, ast.Call) else ""
    parts = target.elts if isinstance(target, ast.Tuple) else []
    if name == "zip" and len(parts) == len(values.args):  # type: ignore[attr-defined]
        for part, value in zip(parts, values.args, strict=True):  # type: ignore[attr-defined]
            yield from _items_of(part, value)
    elif name == "enumerate" and len(parts) == 2:
        yield from _items_of(parts[1], values.args[0])  # type: ignore[attr-defined]
    elif not name:
        yield target, values


def _is_written(node: ast.AST, body: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]) -> bool:
    """True where what an expression stands for is written to, or a part of it."""
    above = parents.get(node)
    while isinstance(above, ast.Subscript) and above.value is node:
        if isinstance(above.ctx, ast.Store):
            return True
        node, above = above, parents.get(above)
    if isinstance(above, ast.AugAssign):
        return above.target is node
    if isinstance(above, ast.Attribute):
        return above.attr.endswith("_") and isinstance(parents.get(above), ast.Call)
    names = above.targets if isinstance(above, ast.Assign) else []
    is_named = len(names) == 1 and isinstance(names[0], ast.Name)
    return is_named and _is_name_written(names[0].id, body, parents)  # type: ignore[attr-defined]


def _is_name_written(
    name: str, body: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]
) -> bool:
    """True where a body writes to what a name stands for."""
    return any(
        _is_written(node, (), parents)
        for node in body
        if _is_named(node, name) and not isinstance(parents.get(node), ast.Assign)
    )


def _within_all_loops(loop: _Loop, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """The nodes in the body of the outermost loop around one in the same function."""
    node: ast.AST = loop
    outermost = loop
    while node in parents and not isinstance(node, _FUNCTIONS):
        node = parents[node]
        outermost = node if isinstance(node, _LOOPS) else outermost
    return within(outermost.body)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _row_of(key: ast.expr, loop: _Loop) -> tuple[tuple[int, str], ...]:
    """The entries of a key that hang on what a loop sets, each with its place."""
    names = names_set([loop])
    entries = key.elts if isinstance(key, ast.Tuple) else [key]
    return tuple(
        (place, ast.unparse(entry))
        for place, entry in enumerate(entries)
        if not names.isdisjoint(names_of(ast.walk(entry), ast.Load))
    )


def _indexed(code: CodeType, instruction: int) -> tuple[str, _Loop | None]:
    """The name of which an instruction reads or writes an item, and the loop around it."""
    tree = tree_of_code(code) if has_positions() else None
    around = expressions_around(code, instruction)
    if tree is None or not around or not isinstance(around[0], ast.Subscript):
        return "", None
    node: ast.AST = around[0]
    parents = parents_in(tree)
    while node in parents and not isinstance(node, _LOOPS):
        node = parents[node]
    name = around[0].value
    return (
        (name.id, node) if isinstance(node, _LOOPS) and isinstance(name, ast.Name) else ("", None)
    )
