"""What the source of a model says of a ``for`` loop: which names are seen after a step of it."""

from __future__ import annotations

import ast
import dis
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from .frames import is_code_of_model
from .source_tests import (
    called_name,
    expressions_around,
    has_positions,
    parents_in,
    position_of,
    tree_of,
    tree_of_code,
)

__all__ = [
    "MADE_TENSORS",
    "counted_names",
    "ends_step",
    "first_test",
    "is_copied",
    "is_sliced",
    "list_extended_by",
    "lists_extended",
    "lists_only_joined",
    "loop_over",
    "may_leave",
    "name_of_items",
    "names_added_to",
    "names_given",
    "names_of",
    "names_read_after",
    "names_read_outside",
    "names_set",
    "read_before_set",
    "readers_of_list",
    "skips_step",
    "while_asked_at",
    "whiles_in",
    "within",
]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: what a body must not have: it leaves the loop, or what it sets is seen by other functions
_LEAVES = (
    *(ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom),
    *(ast.Delete, ast.Try, ast.Match),
)
#: the functions whose result a loop goes over as over their arguments
_OF_LOOPS = frozenset({"zip", "enumerate", "reversed"})
#: what makes another list of the items of one
_COPIES = frozenset({"tuple", "list"})
#: slices that have all items
_WHOLE_SLICES = frozenset({":", "::-1"})
#: functions of torch that make a tensor of a list of numbers
MADE_TENSORS = frozenset({"tensor", "as_tensor", "pack_padded_sequence"})
#: the call of what a loop goes over, and what begins the loop
_BEGINS = ("GET_ITER", "CALL", "PRECALL")


def loop_over(code: CodeType, instruction: int) -> ast.For | None:
    """The ``for`` loop that an instruction begins, with what it goes over, or the call of what it goes
    over; None elsewhere.
    """
    tree = tree_of_code(code) if has_positions() else None
    if tree is None:
        return None
    # a frame that calls may be at the place after its instruction that is kept for the interpreter
    before = [one for one in dis.get_instructions(code) if one.offset <= instruction]
    if not before or before[-1].opname not in _BEGINS:
        return None
    place = getattr(before[-1], "positions", None)
    for node in ast.walk(tree):
        # the place is that of the loop in Python 3.11, and that of what it goes over later
        if isinstance(node, ast.For) and place in (position_of(node), position_of(node.iter)):
            return None if node.orelse else node
    return None


def ends_step(loop: ast.For, test: ast.expr, number: ast.expr) -> bool:
    """True where a loop has ``if number == 0: continue``, which goes on with its own next step."""
    if not isinstance(test, ast.Compare) or test.left is not number:
        return False
    if ast.unparse(test) != f"{ast.unparse(number)} == 0":
        return False
    return any(
        isinstance(node, ast.If)
        and node.test is test
        and not node.orelse
        and len(node.body) == 1
        and isinstance(node.body[0], ast.Continue)
        for node in _of_own_steps(loop.body)
    )


def names_read_after(file: str, loop: ast.For) -> frozenset[str] | None:
    """The names that a loop sets and that the function reads after the step that sets them; None
    where the body may leave the loop, or sets what other functions read.

    ``with`` blocks are read as the statements in them.
    """
    function = _function_with(file, loop)
    if function is None or may_leave(loop.body):
        return None
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
        return None
    inside = {id(node) for node in (*within(loop.body), *ast.walk(loop.target))}
    outside = [node for node in ast.walk(function) if id(node) not in inside]
    names = names_of([*within(loop.body), *ast.walk(loop.target)], ast.Store)
    read_outside = names_of(outside, ast.Load) & names
    given = names_of(ast.walk(loop.target), ast.Store)
    return frozenset(read_outside | _read_before_set(loop.body, names, set(given)))


def may_leave(body: Sequence[ast.stmt]) -> bool:
    """True for statements that may leave a loop or a function, or set what other functions read."""
    return any(isinstance(node, _LEAVES) for node in within(body))


def skips_step(body: Sequence[ast.stmt]) -> bool:
    """True for statements with a ``continue`` that is about a loop around them."""
    return any(isinstance(node, ast.Continue) for node in _of_own_steps(body))


def names_set(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements assign."""
    return names_of(list(within(body)), ast.Store)


def read_before_set(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements set, and whose values from before they may read."""
    return _read_before_set(body, names_set(body), set())


def lists_only_joined(function: ast.AST) -> frozenset[str]:
    """The names that a function gives to empty lists alone, to which it adds items, which it gives to
    ``torch.cat(name, 0)``, and of which it asks whether they are empty.
    """
    parents, made, other = parents_in(function), set(), set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            other.update(node.names)
        if not isinstance(node, ast.Name):
            continue
        above = parents[node]
        is_alone = isinstance(above, ast.AnnAssign) or (
            isinstance(above, ast.Assign) and above.targets == [node]
        )
        if is_alone and ast.unparse(getattr(above, "value", None) or node) == "[]":
            made.add(node.id)
        elif not _is_joining(node, above, parents):
            other.add(node.id)
    return frozenset(made - other)


def _is_joining(node: ast.Name, above: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    name, around = node.id, parents.get(above)
    if isinstance(above, ast.Attribute) and above.attr == "append":
        return isinstance(around, ast.Call) and isinstance(parents.get(around), ast.Expr)
    if isinstance(above, ast.Call) and ast.unparse(above) in {
        f"torch.cat({name}{dim})" for dim in ("", ", 0", ", dim=0", ", axis=0")
    }:
        return True
    asked = above if ast.unparse(above) == f"len({name})" else node
    test = parents.get(asked)
    if isinstance(test, (ast.UnaryOp, ast.Compare)):
        is_test = ast.unparse(test) in {
            f"not {ast.unparse(asked)}",
            f"len({name}) > 0",
            f"len({name}) == 0",
        }
        asked, test = (test, parents.get(test)) if is_test else (asked, test)
    return isinstance(test, (ast.If, ast.IfExp)) and test.test is asked


def _read_before_set(body: Sequence[ast.stmt], names: set[str], known: set[str]) -> set[str]:
    """The names that statements may read before they set them; those they set become ``known``."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.With):
            for item in statement.items:
                found |= names_of(ast.walk(item), ast.Load) - known
            found |= _read_before_set(statement.body, names, known)
            continue
        if isinstance(statement, ast.If):  # one side runs, and sets its names
            found |= names_of(ast.walk(statement.test), ast.Load) - known
            sides = [set(known), set(known)]
            found |= _read_before_set(statement.body, names, sides[0])
            found |= _read_before_set(statement.orelse, names, sides[1])
            known |= sides[0] & sides[1]
            continue
        reads = names_of(ast.walk(statement), ast.Load)
        if isinstance(statement, ast.AugAssign):
            reads |= names_of(ast.walk(statement.target), ast.Store)
        found |= reads - known
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                known |= names_of(ast.walk(target), ast.Store)
    return found & names


def within(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of some statements."""
    for statement in body:
        yield from ast.walk(statement)


def _of_own_steps(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, without those of loops in it."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            for block in ("body", "orelse"):
                yield from _of_own_steps(getattr(statement, block, []))


def names_of(
    nodes: Iterator[ast.AST] | Sequence[ast.AST], context: type[ast.expr_context]
) -> set[str]:
    """The names among some nodes that are read, or that are set."""
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def _function_with(file: str, loop: ast.For) -> _Function | None:
    """The innermost function that has a loop."""
    tree = tree_of(file)
    found: _Function | None = None
    for node in ast.walk(tree) if tree is not None else ():  # the innermost comes last
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and loop in ast.walk(node):
            found = node
    return found


def names_added_to(file: str, line: int) -> set[str]:
    """The names to which the loop at a line adds: ``n += size``, or ``n = n + size``."""
    found: set[str] = set()
    for node in _steps_of_loops(file, line):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            found |= {node.target.id} if isinstance(node.target, ast.Name) else set()
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            (target, *_), left = node.targets, node.value.left
            if isinstance(target, ast.Name) and ast.unparse(target) == ast.unparse(left):
                found.add(target.id)
    return found


def _steps_of_loops(file: str, line: int) -> Iterator[ast.AST]:
    """All nodes in the bodies of the loops that begin at a line of a file."""
    for loop in _loops_at(tree_of(file), line):
        yield from within(loop.body)


@functools.lru_cache(maxsize=1024)
def _loops_at(tree: ast.AST | None, line: int) -> Sequence[ast.For | ast.While]:
    nodes = () if tree is None else ast.walk(tree)
    loops = (node for node in nodes if isinstance(node, (ast.For, ast.While)))
    return [loop for loop in loops if loop.lineno == line]


@functools.lru_cache(maxsize=4096)
def while_asked_at(code: CodeType, instruction: int) -> ast.While | None:
    """The ``while`` loop without ``else`` whose first test an instruction asks for; None elsewhere."""
    if not has_positions() or instruction < 0 or tree_of_code(code) is None:
        return None
    positions = getattr(code, "co_positions")()  # noqa: B009  # not known to Python 3.10
    return _whiles_of(code.co_filename).get(tuple(list(positions)[instruction // 2]))


@functools.lru_cache(maxsize=256)
def _whiles_of(file: str) -> Mapping[tuple[object, ...], ast.While]:
    """The ``while`` loops of a file that compare numbers, by the places of their first tests."""
    return {
        tuple(position_of(first_test(node))): node
        for node in ast.walk(tree_of(file) or ast.Module([], []))
        if isinstance(node, ast.While)
        and not node.orelse
        and isinstance(test := first_test(node), ast.Compare)
        and len(test.ops) == 1
    }


@functools.lru_cache(maxsize=4096)
def whiles_in(file: str) -> Mapping[int, ast.While]:
    """The ``while`` loops that compare numbers in a file, by their lines; none where the file is not of a model."""
    loops = _whiles_of(file).values() if is_code_of_model(file) else ()
    return {loop.lineno: loop for loop in loops}


def first_test(loop: ast.While) -> ast.expr:
    """The expression that a ``while`` loop asks first: its test, or the part of it before the first ``and``."""
    test = loop.test
    is_all = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    return test.values[0] if is_all else test  # type: ignore[attr-defined]


def counted_names(
    file: str, line: int, known: Collection[str] = ()
) -> Mapping[str, ast.Expression]:
    """The names to which each step of the loop at a line adds the same, with what it adds: ``1`` of ``t`` for
    ``row = x[:, t]; t += 1``, and ``n`` of ``start`` for ``end = start + n; part = x[start:end]; start = end``.

    The ``known`` names are those to which the loop gives the same in each step: ``n`` in ``for n in [size] * count``.
    """
    return _counted_names(tree_of(file), line, frozenset(known))


@functools.lru_cache(maxsize=1024)
def _counted_names(
    tree: ast.AST | None, line: int, known: frozenset[str]
) -> Mapping[str, ast.Expression]:
    loops = _loops_at(tree, line)
    if len(loops) != 1:
        return {}
    changing = names_set(loops) - (known - names_set(loops[0].body))
    now: dict[str, ast.expr | None] = {name: ast.Name(name, ast.Load()) for name in changing}
    for statement in _statements_of(loops[0].body):
        name, value = _simply_set(statement)
        if name is None or value is None:
            now |= dict.fromkeys(names_of(ast.walk(statement), ast.Store))
            continue
        now[name] = _with_values(value, now)
    added = {name: _added_to(name, value) for name, value in now.items()}
    return {
        name: ast.fix_missing_locations(ast.Expression(growth))
        for name, growth in added.items()
        if growth is not None and names_of(ast.walk(growth), ast.Load).isdisjoint(changing)
    }


def names_given(file: str, line: int, item: Any) -> Mapping[str, Any]:
    """The names that the loop at a line gives an item, or its parts: ``h`` and ``w`` of ``for h, w in sizes``."""
    loops = [loop for loop in _loops_at(tree_of(file), line) if isinstance(loop, ast.For)]
    if len(loops) != 1:
        return {}
    (loop,) = loops
    if isinstance(loop.iter, ast.Call) and called_name(loop.iter) == "enumerate":
        item = (None, item)
    return dict(_given(loop.target, item))


def _given(target: ast.expr, item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(target, ast.Name):
        yield target.id, item
    elif (
        isinstance(target, ast.Tuple) and isinstance(item, tuple) and len(item) == len(target.elts)
    ):
        for one, part in zip(target.elts, item, strict=True):
            yield from _given(one, part)


def _statements_of(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in their order, and those in ``with`` blocks."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _statements_of(statement.body)
        else:
            yield statement


def _simply_set(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """The name that a statement sets, and what it is then: for ``n = value``, ``n += value`` and ``n -= value``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return (target.id, statement.value) if isinstance(target, ast.Name) else (None, None)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        value = ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
        return name, value
    return None, None


#: what a number that a step adds may be made of
_OF_COUNTS = (
    *(ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript),
    *(ast.expr_context, ast.operator, ast.unaryop),
)


def _with_values(value: ast.expr, now: Mapping[str, ast.expr | None]) -> ast.expr | None:
    """A sum, or a number, in what names were at the begin of the step; None for anything else."""
    if isinstance(value, ast.Name):
        return now.get(value.id, value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        left, right = _with_values(value.left, now), _with_values(value.right, now)
        return None if left is None or right is None else ast.BinOp(left, value.op, right)
    nodes = list(ast.walk(value))
    is_plain = all(isinstance(node, _OF_COUNTS) for node in nodes)
    return value if is_plain and names_of(nodes, ast.Load).isdisjoint(now) else None


def _added_to(name: str, value: ast.expr | None) -> ast.expr | None:
    """What a sum has beside a name that it has once; None for other values."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Add, ast.Sub)):
        return None
    left, right = value.left, value.right
    if isinstance(right, ast.Name) and right.id == name and isinstance(value.op, ast.Add):
        return left
    if isinstance(left, ast.Name) and left.id == name:
        return right if isinstance(value.op, ast.Add) else ast.UnaryOp(ast.USub(), right)
    beside = _added_to(name, left)
    return None if beside is None else ast.BinOp(beside, value.op, right)


def names_read_outside(file: str, line: int) -> set[str]:
    """The names that a file reads outside of the body of the loop at a line.

    A loop that stands in another one runs again, and reads its names then: its body counts as outside.
    """
    tree = tree_of(file)
    nodes = [] if tree is None else list(ast.walk(tree))
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    in_loops = {id(node) for loop in loops for node in within(loop.body)}
    outermost = [loop for loop in loops if loop.lineno == line and id(loop) not in in_loops]
    inside = {id(node) for loop in outermost for node in within(loop.body)}
    outside = [node for node in nodes if id(node) not in inside]
    return names_of(outside, ast.Load)


def readers_of_list(code: CodeType, instruction: int) -> frozenset[str]:
    """What reads the value of a call: ``for`` of ``for n in x.tolist()``, also within ``zip`` and
    ``enumerate``, or a function of torch such as ``split`` of ``torch.split(y, x.tolist())``; also where the
    value has a name that is read so alone. Nothing where anything else reads it.
    """
    tree = tree_of_code(code) if has_positions() else None
    around = expressions_around(code, instruction)
    if tree is None or not around or not isinstance(around[0], ast.Call):
        return frozenset()
    parents = parents_in(tree)
    above = parents.get(around[0])
    if not isinstance(above, ast.Assign):
        return frozenset({_reader_of_list(around[0], parents)} - {""})
    (target, *more) = above.targets
    function = _around(above, parents)
    if more or not isinstance(target, ast.Name) or function is None:
        return frozenset()
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
        return frozenset()
    named = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id]
    readers = frozenset(_reader_of_list(node, parents) for node in named if node is not target)
    return frozenset() if "" in readers else readers


@functools.lru_cache(maxsize=4096)
def is_sliced(code: CodeType, instruction: int) -> bool:
    """True where the function slices the list that a call gives, or a copy of it: ``parts[-2:]`` after
    ``parts = list(x)``. Such a slice may be the whole list.
    """
    tree = tree_of_code(code) if has_positions() else None
    around = expressions_around(code, instruction)
    if tree is None or not around:
        return False
    parents = parents_in(tree)
    function = _around(around[0], parents) or tree
    names, lists = set[str](), [around[0]]
    while lists:
        node: ast.AST = lists.pop()
        above = parents.get(node)
        while isinstance(above, ast.Call) and called_name(above) in _COPIES:
            node, above = above, parents.get(above)
        is_item = isinstance(above, ast.Subscript) and above.value is node
        key = above.slice if is_item else None  # type: ignore[union-attr]
        if isinstance(key, ast.Slice) and ast.unparse(key) not in _WHOLE_SLICES:
            return True
        if isinstance(above, (ast.Assign, ast.AnnAssign)) and above.value is node:
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            new = {target.id for target in targets if isinstance(target, ast.Name)} - names
            names |= new
            reads = (n for n in ast.walk(function) if isinstance(n, ast.Name))
            lists += [n for n in reads if n.id in new and isinstance(n.ctx, ast.Load)]
    return False


def is_copied(frame: FrameType) -> bool:
    """True where a frame calls ``tuple`` or ``list`` at the moment."""
    around = expressions_around(frame.f_code, frame.f_lasti)
    return bool(around) and isinstance(around[0], ast.Call) and called_name(around[0]) in _COPIES


@functools.lru_cache(maxsize=4096)
def name_of_items(code: CodeType, instruction: int) -> str:
    """The name of which an instruction reads one item: ``values`` of ``values[i]``; empty elsewhere."""
    around = expressions_around(code, instruction) if has_positions() else ()
    read = around[0] if around and isinstance(around[0], ast.Subscript) else None
    if read is None or not isinstance(read.ctx, ast.Load) or not isinstance(read.value, ast.Name):
        return ""
    return "" if isinstance(read.slice, (ast.Slice, ast.Tuple)) else read.value.id


def list_extended_by(code: CodeType, instruction: int) -> str:
    """The name whose list the value of a call extends, where nothing else reads that value: ``numbers`` of
    ``numbers.extend(x.tolist())``; empty elsewhere.
    """
    tree = tree_of_code(code) if has_positions() else None
    around = expressions_around(code, instruction)
    above = parents_in(tree).get(around[0]) if tree is not None and around else None
    is_argument = isinstance(above, ast.Call) and above.args == [around[0]]
    return _extended_by(above) if is_argument else ""


def lists_extended(file: str, line: int) -> set[str]:
    """The names whose lists the ``for`` loop at a line of a file extends."""
    return {_extended_by(node) for node in _steps_of_loops(file, line)} - {""}


def _extended_by(call: ast.AST | None) -> str:
    """The name whose list a call of ``extend`` is of; empty for anything else."""
    function = call.func if isinstance(call, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != "extend":
        return ""
    return function.value.id if isinstance(function.value, ast.Name) else ""


def _around(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> ast.AST | None:
    """The function that a node is in."""
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return node
    return None


def _reader_of_list(node: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> str:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return ""
    above = parents.get(node)
    if isinstance(above, (ast.For, ast.comprehension)):
        return "for" if above.iter is node else ""
    if not isinstance(above, ast.Call) or node is above.func:
        return ""
    name = called_name(above)
    if name in _OF_LOOPS:
        return _reader_of_list(above, parents)
    return name if name == "split" or name in MADE_TENSORS else ""
