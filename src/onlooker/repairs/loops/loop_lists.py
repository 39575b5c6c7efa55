"""Lists to which a loop adds a result in each step: who reads how many there are.

A rolled loop runs some steps, and no more, so that such a list is shorter or longer than in a call.
``torch.stack(results)``, ``pad_sequence(results)``, ``len(results)``, ``zip(results, others)`` and an item,
such as ``results[-1]`` or ``results[t]`` in another loop, are given the results of all steps. Any other
reading may count them: ``for _ in results``, ``if results[60:]``. So the source of the function is looked at,
and a loop stays as it is where the list is read in another way, or returned to a function that may do so.

>>> import ast
>>> source = "def f(x):\\n results = []\\n for t in x:\\n  results.append(t)\\n return stack(results)"
>>> counted_by(ast.parse(source), {"results"}, 3)
''
>>> counted_by(ast.parse(source + ", sum(1 for _ in results)"), {"results"}, 3)
'results is read in line 5'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence

from ...model_source.source_tests import called_name, parents_in

__all__ = ["counted_by"]

_JOINS = frozenset({"stack", "cat", "concat", "concatenate", "pad_sequence"})
#: what makes a tensor of the numbers of a list (:mod:`.lists_of_numbers`)
_OF_NUMBERS = frozenset({"torch.tensor", "torch.as_tensor"})
#: those that are told how many steps a loop has
_READERS = _JOINS | {"len", "zip", "enumerate", "sum"}
#: slices that leave out the same number of items at an end, however long the list is
_PARTS = re.compile(r"(::-1|\d?:(-\d)?)")
#: what adds each result of a generator to the sum of those before, in the step that gives it
_IN_STEPS = frozenset({"sum"})
_COPIES = frozenset({"tuple", "list", "reversed"})
_METHODS = frozenset({"append", "extend", "insert", "reverse"})
_Comprehension = ast.ListComp | ast.GeneratorExp


def counted_by(tree: ast.AST, names: Collection[str], line: int) -> str:
    """Finds where the lists of these names, or the value of the comprehension at a line, are read
    in a way that may count them: returns that line; empty where they are not.
    """
    function = _function_at(tree, line)
    if function is None:
        return "its source is not there"
    parents = parents_in(function)
    known = set(names)
    for node in ast.walk(function):
        if isinstance(node, _Comprehension) and any(
            one.iter.lineno == line for one in node.generators
        ):
            reading = _reading_of(node, parents, known)
            if reading is not None:
                return f"the list is read in line {reading}"
    for node in ast.walk(function):
        is_read = isinstance(node, ast.Name) and node.id in known and isinstance(node.ctx, ast.Load)
        if is_read and _is_of_something_else(function, node, line):  # type: ignore[arg-type]
            continue
        if is_read and (reading := _reading_of(node, parents, known)) is not None:
            return f"{node.id} is read in line {reading}"  # type: ignore[attr-defined]
    return ""


def _is_of_something_else(function: ast.AST, read: ast.Name, line: int) -> bool:
    """True where a name is read before it is given to the list, in no loop, or after
    ``found = torch.stack(found)`` among the statements of the function itself: the list has that name no
    longer.
    """
    if any(read.lineno < given.lineno for given in _given_before(function, read.id, line)):
        return True
    return any(
        isinstance(target, ast.Name) and target.id == read.id
        for statement in getattr(function, "body", [])
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and (called_name(statement.value) in _JOINS or _is_of_numbers(statement.value))
        and line < statement.lineno
        and (statement.end_lineno or statement.lineno) < read.lineno
        for target in statement.targets
    )


def _given_before(function: ast.AST, name: str, line: int) -> Sequence[ast.stmt]:
    """The last statement of the function itself that gives a name a value before a line."""
    given = [
        one
        for one in getattr(function, "body", [])
        if isinstance(one, (ast.Assign, ast.AnnAssign))
        and one.lineno < line
        and [ast.unparse(target) for target in _targets_of(one)] == [name]
    ]
    return given[-1:]


def _targets_of(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_of_numbers(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _OF_NUMBERS


def _function_at(tree: ast.AST, line: int) -> ast.AST | None:
    """The innermost function with a line."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found: ast.AST | None = None
    for node in ast.walk(tree):
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node if found is None or node.lineno >= found.lineno else found  # type: ignore[attr-defined]
    return found


def _reading_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST], known: set[str]) -> int | None:
    """The line of a reading that may count the items of a list; None where this one does not."""
    parent = parents.get(node)
    here = getattr(node, "lineno", 0)
    if isinstance(parent, ast.Assign):
        target = parent.targets[0]
        if len(parent.targets) == 1 and isinstance(target, ast.Name):
            known.add(target.id)
            return None
        return here
    if isinstance(parent, ast.Attribute):
        is_called = isinstance(parents.get(parent), ast.Call)
        return None if is_called and parent.attr in _METHODS else here
    if isinstance(parent, ast.Subscript) and parent.value is node:
        index = ast.unparse(parent.slice)
        if not isinstance(parent.slice, ast.Slice):
            # a step reads it at its index, or the first or the last one is read: others are refused
            return None if isinstance(parent.ctx, ast.Load) else here
        return _reading_of(parent, parents, known) if _PARTS.fullmatch(index) else here
    if isinstance(parent, ast.Call) and node in parent.args:
        name = called_name(parent)
        if (
            name in _READERS
            or _is_of_numbers(parent)
            or (isinstance(node, ast.GeneratorExp) and name in _IN_STEPS)
        ):
            return None
        return _reading_of(parent, parents, known) if name in _COPIES else here
    return here
