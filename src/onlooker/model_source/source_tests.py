"""The ``if`` in the source of a model that a value decides, by the instruction that asks for it.

Python 3.11 and later know the place in the source of each instruction. The source is compiled
again, and counts only where that gives the code that runs: a file may have changed since.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, MappingProxyType
from typing import TypeGuard

from .frames import codes_in

__all__ = [
    "SourceTest",
    "branch_asked_at",
    "called_name",
    "expressions_around",
    "has_positions",
    "parents_in",
    "position_of",
    "tree_of",
    "tree_of_code",
]

_JUMPS = ("POP_JUMP", "JUMP_IF", "TO_BOOL")
#: from Python 3.13 on it asks by itself whether its result is true, where a jump follows
_COMPARISON = "COMPARE_OP"
#: instructions between the one that makes a value and the one that asks whether it is true
_BETWEEN = ("COPY", "EXTENDED_ARG", "CACHE", "TO_BOOL")
#: a function that calls one of them may read its local names without naming them
_READS_NAMES = frozenset({"locals", "vars", "eval", "exec", "_getframe"})
#: a larger expression is not read
_MOST_NODES = 64
_Position = tuple[int | None, int | None, int | None, int | None]
_Branch = ast.If | ast.IfExp | ast.Assign


@dataclass(frozen=True, eq=False)
class SourceTest:
    """One operand of a test that is asked for; ``others`` are those that ``or`` has after it. The test
    ``is_negated`` where it is ``not`` of what is asked for.

    ``branch`` is an ``if`` without ``else``, an expression with ``if``, or the assignment of ``a or
    b`` to a name that only such tests read.
    """

    function: ast.AST
    branch: _Branch
    others: Sequence[ast.expr]
    is_negated: bool = False

    @property
    def lines(self) -> range:
        """The lines of the branch."""
        return range(self.branch.lineno, (self.branch.end_lineno or self.branch.lineno) + 1)

    @property
    def results(self) -> tuple[ast.expr, ast.expr] | None:
        """What ``a if test else b``, or ``if test: return a`` right before ``return b``, gives on each
        side.
        """
        if isinstance(self.branch, ast.IfExp):
            return self.branch.body, self.branch.orelse
        if not isinstance(self.branch, ast.If) or len(self.branch.body) != 1:
            return None
        returns = [*self.branch.body, *_statements_after(self.branch, self.function)[:1]]
        values = [one.value for one in returns if isinstance(one, ast.Return) and one.value]
        return (values[0], values[1]) if len(values) == 2 else None

    def keeps(self, name: str) -> bool:
        """True for a name whose value no other part of the function reads: each of them assigns it
        before.
        """
        return self.is_read_by([self.branch], name)

    def is_read_by(self, statements: Iterable[ast.stmt | ast.expr], name: str) -> bool:
        """True where these statements alone read the value that a name has after the branch."""
        known = {id(node) for statement in statements for node in ast.walk(statement)}
        known.update(id(node) for node in self._reads_of_others(name))
        return all(id(node) in known for node in _reads(self.function, name))

    def _reads_of_others(self, name: str) -> Iterator[ast.AST]:
        """The reads of a name that come after an assignment to it in the same block, without the
        branch between the two.
        """
        for node in ast.walk(self.function):
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(node, block, None)
                assigned = False
                for statement in statements if isinstance(statements, list) else ():
                    if any(inner is self.branch for inner in ast.walk(statement)):
                        assigned = False
                    if assigned:
                        yield from _reads(statement, name)
                    assigned = assigned or _assigns(statement, name)

    def is_plain(self, names: Collection[str], code: CodeType) -> bool:
        """True where these names are local, and the function asks of none which object it is."""
        if not set(names) <= set(code.co_varnames) - set(code.co_cellvars):
            return False
        return _READS_NAMES.isdisjoint(code.co_names) and not any(
            isinstance(node, ast.Compare)
            and any(isinstance(kind, (ast.Is, ast.IsNot)) for kind in node.ops)
            and any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
            and not any(map(_is_none, (node.left, *node.comparators)))
            for node in ast.walk(self.function)
        )


def has_positions() -> bool:
    """True where Python knows the places of instructions."""
    return hasattr(CodeType, "co_positions")


@functools.lru_cache(maxsize=4096)
def branch_asked_at(code: CodeType, instruction: int) -> SourceTest | None:
    """The test that an instruction asks for; None where it is no test of a branch."""
    before = [one for one in dis.get_instructions(code) if one.offset <= instruction]
    if not before or not before[-1].opname.startswith((_COMPARISON, *_JUMPS)):
        return None
    if before[-1].opname != _COMPARISON:
        before.pop()
    while before and before[-1].opname in _BETWEEN:
        before.pop()
    places = getattr(before[-1], "positions", None) if before else None
    test = _tests_of(code.co_filename).get(tuple(places)) if places is not None else None
    return test if test is not None and code in _codes_of(code.co_filename) else None


@functools.lru_cache(maxsize=256)
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file; None where its source is not there."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def tree_of_code(code: CodeType) -> ast.Module | None:
    """The syntax tree of the file that code comes from; None where its source is not there, or has
    changed since the code was imported.
    """
    tree = tree_of(code.co_filename)
    return tree if tree is not None and code in _codes_of(code.co_filename) else None


@functools.lru_cache(maxsize=256)
def _tests_of(file: str) -> dict[_Position, SourceTest]:
    tree = tree_of(file)
    if tree is None:
        return {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found: dict[_Position, SourceTest] = {}
    for function in ast.walk(tree):  # the innermost function comes last
        if isinstance(function, functions):
            for node in ast.walk(function):
                found.update(_tests_in(node, function))
    return found


def _tests_in(node: ast.AST, function: ast.AST) -> Iterator[tuple[_Position, SourceTest]]:
    if _is_test(node):
        operands = _operands(node.test)
        for place, operand in enumerate(operands):
            is_negated = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not)
            asked = operand.operand if isinstance(operand, ast.UnaryOp) and is_negated else operand
            if not _is_chain(asked):
                others = operands[place + 1 :]
                yield position_of(asked), SourceTest(function, node, others, is_negated)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,), operands = node.targets, _operands(node.value)
        compares = all(isinstance(one, ast.Compare) and not _is_chain(one) for one in operands)
        if isinstance(target, ast.Name) and compares and _is_read_by_tests(function, target.id):
            for place, operand in enumerate(operands[:-1]):
                yield position_of(operand), SourceTest(function, node, operands[place + 1 :])


def _is_test(node: ast.AST) -> TypeGuard[ast.If | ast.IfExp]:
    """True for a branch without ``else``, and for a choice between two values."""
    return isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and not node.orelse)


def _is_read_by_tests(function: ast.AST, name: str) -> bool:
    """True for a name that decides branches without ``else``, and is read by nothing else."""
    tests = {id(node.test) for node in ast.walk(function) if _is_test(node)}
    return all(id(node) in tests for node in _reads(function, name))


def _reads(function: ast.AST, name: str) -> Iterator[ast.AST]:
    """The places where a function reads a name, or says that it belongs to another one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id == name:
                yield node
        elif isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            yield node


def _statements_after(statement: ast.stmt, function: ast.AST) -> Sequence[ast.stmt]:
    """The statements that come after one in the same block."""
    for node in ast.walk(function):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list) and statement in statements:
                return statements[statements.index(statement) + 1 :]
    return ()


def _assigns(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in statement.targets
    )


def _is_chain(node: ast.expr) -> bool:
    """True for ``a < b < c``, of which the first part is asked by itself."""
    return isinstance(node, ast.Compare) and len(node.ops) > 1


def _operands(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return test.values
    return [test]


def called_name(call: ast.Call) -> str:
    """The name of the function that is called, without what it is an attribute of; empty where it has none."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


@functools.lru_cache(maxsize=64)
def parents_in(tree: ast.AST) -> Mapping[ast.AST, ast.AST]:
    """The node around each node of a tree."""
    pairs = ((child, node) for node in ast.walk(tree) for child in ast.iter_child_nodes(node))
    return MappingProxyType(dict(pairs))


def position_of(node: ast.For | ast.expr) -> _Position:
    """Where a node begins and ends: lines, then columns."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@functools.lru_cache(maxsize=64)
def _codes_of(file: str) -> frozenset[CodeType]:
    """The code of all functions in the source of a file."""
    whole = compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)
    return frozenset(codes_in(whole))


@functools.lru_cache(maxsize=4096)
def expressions_around(code: CodeType, instruction: int) -> tuple[ast.expr, ...]:
    """The expressions around an instruction, the innermost first; none where the file has changed
    since the code was imported, or before Python 3.11.
    """
    if not has_positions() or instruction < 0:
        return ()
    tree = tree_of_code(code)
    if tree is None:
        return ()
    positions = getattr(code, "co_positions")()  # noqa: B009  # not known to Python 3.10
    line, last, column, end = list(positions)[instruction // 2]
    found: list[ast.expr] = []
    for node in ast.walk(tree):  # an expression comes after those around it
        if not isinstance(node, ast.expr) or line is None or column is None:
            continue
        begin = (node.lineno, node.col_offset)
        stop = (node.end_lineno, node.end_col_offset)
        if begin <= (line, column) and (last, end) <= stop:
            found.append(node)
    small = [node for node in found if sum(1 for _ in ast.walk(node)) <= _MOST_NODES]
    return tuple(reversed(small))
