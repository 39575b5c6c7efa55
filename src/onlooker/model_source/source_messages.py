"""Parameters of a function that are nothing but the message of an error:
``check(n == m, f"{n} of {m}")``.

The source of the function is read, as far as its file gives the code that runs. A message may be
raised, asked whether it is a text or a function, returned by a function inside that only makes
messages, and given to the checks of torch (``torch._check``). Whatever else is done with it could
decide what the function does.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch

from .frames import Owner, owner_of
from .source_tests import parents_in, tree_of_code

__all__ = ["is_message"]

_ASKS_FOR_KIND = frozenset({"callable", "isinstance"})
#: the checks of torch, which only raise
_CHECKS = [value for name, value in vars(torch).items() if name.startswith(("_check", "_assert"))]
#: what leaves a block before its end
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)
_Function = ast.FunctionDef | ast.Lambda
#: each node of a syntax tree, and the node that it stands in
_Parents = Mapping[ast.AST, ast.AST]


def is_message(called: Any, call: ast.Call, argument: ast.expr) -> bool:
    """True for an argument that a function only uses as the message of an error."""
    if _is_check(called):
        return True
    offset = isinstance(called, MethodType)
    function = called.__func__ if isinstance(called, MethodType) else called
    if not isinstance(function, FunctionType):
        return False
    named = [keyword.arg for keyword in call.keywords if keyword.value is argument]
    if named:
        return named[0] is not None and named[0] in _messages_of(function)
    place = call.args.index(argument)
    if any(isinstance(item, ast.Starred) for item in call.args[: place + 1]):
        return False
    code = function.__code__
    names = code.co_varnames[: code.co_argcount][offset:]
    return place < len(names) and names[place] in _messages_of(function)


@functools.lru_cache(maxsize=1024)
def _messages_of(function: FunctionType) -> frozenset[str]:
    """The parameters of a function that only are messages."""
    code = function.__code__
    tree = tree_of_code(code)
    if tree is None:
        return frozenset()
    is_plain = function.__globals__.get("torch", torch) is torch and not any(
        _has_own(name, function) for name in _ASKS_FOR_KIND
    )
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == code.co_name
        and code.co_firstlineno in (node.lineno, *(one.lineno for one in node.decorator_list))
    ]
    if len(found) != 1 or not is_plain:
        return frozenset()
    count = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[:count]
    definition = found[0]
    parents = parents_in(definition)
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in parents):
        return frozenset()
    return frozenset(name for name in parameters if _is_message(name, parents, definition))


def _has_own(name: str, function: FunctionType) -> bool:
    """True where the file of a function has a function of its own in the place of one of Python; what
    stands for it in a trace is that of Python.
    """
    code = getattr(function.__globals__.get(name), "__code__", None)
    is_known = name in function.__globals__
    return is_known and (code is None or owner_of(code.co_filename) is not Owner.MADE)


def _is_message(name: str, parents: _Parents, function: ast.FunctionDef) -> bool:
    """True where each use of a name, and of the names that are assigned from it, is that of a
    message.
    """
    names, n_known = {name}, 0
    uses: list[ast.Name] = []
    while n_known < len(names):
        n_known = len(names)
        uses = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        ]
        for use in uses:
            names.update(_names_made(use, parents, function))
    return all(_is_harmless(use, parents, function) for use in uses)


def _names_made(use: ast.Name, parents: _Parents, function: ast.FunctionDef) -> Iterator[str]:
    """The names that stand for a message, or for a function that makes it, because of one use."""
    parent = parents[use]
    if isinstance(parent, ast.Assign) and parent.value is use:
        yield from (target.id for target in parent.targets if isinstance(target, ast.Name))
    inner = _function_around(use, parents)
    if isinstance(inner, ast.FunctionDef) and inner is not function:
        yield inner.name


def _is_harmless(use: ast.Name, parents: _Parents, function: ast.FunctionDef) -> bool:
    """True for one use of a message that cannot decide what the function does."""
    parent = parents[use]
    if isinstance(parent, ast.Call) and use in parent.args:
        if isinstance(parent.func, ast.Name) and parent.func.id in _ASKS_FOR_KIND:
            return True
        if _is_check_of_torch(parent.func):
            return use is not parent.args[0]
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, ast.Name) for target in parent.targets)
    inner = _function_around(use, parents)
    if isinstance(inner, ast.Lambda):
        call = parents[inner]
        return isinstance(call, ast.Call) and _is_check_of_torch(call.func)
    if inner is not function:  # its name is a message as well
        is_returned = len(inner.body) == 1 and isinstance(inner.body[0], ast.Return)
        return is_returned and any(node is use for node in ast.walk(inner.body[0]))
    return _is_raised(use, parents)


def _is_raised(node: ast.AST, parents: _Parents) -> bool:
    """True inside a ``raise``, a block that ends in one, or the message of an ``assert``, that no ``try`` of
    the function is around.
    """
    is_raised = False
    while node in parents:
        child, node = node, parents[node]
        is_message = isinstance(node, ast.Assert) and node.msg is child
        is_raised = is_raised or is_message or isinstance(node, ast.Raise) or _raises(child, node)
        if isinstance(node, ast.Try):
            return False
    return is_raised


def _raises(statement: ast.AST, around: ast.AST) -> bool:
    """True for a statement of an ``if`` whose block always ends in an error."""
    blocks = (around.body, around.orelse) if isinstance(around, ast.If) else ()
    for block in blocks:
        inside = [node for one in block for node in ast.walk(one)]
        if statement in block and not any(isinstance(node, _LEAVES) for node in inside):
            return isinstance(block[-1], ast.Raise)
    return False


def _function_around(node: ast.AST, parents: _Parents) -> _Function:
    while not isinstance(node, _Function):
        node = parents[node]
    return node


def _is_check_of_torch(called: ast.expr) -> bool:
    """True for ``torch._check`` and its kin, which only raise."""
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id == "torch"
        and _is_check(getattr(torch, called.attr, None))
    )


def _is_check(function: Any) -> bool:
    return any(function is check for check in _CHECKS)
