"""Lists to which a loop adds a result in each step: who reads how many there are.

A rolled loop runs some steps, and no more, so that such a list is shorter or longer than in a call.
``torch.stack(results)``, ``pad_sequence(results)``, ``len(results)``, ``zip(results, others)`` and an item,
such as ``results[-1]`` or ``results[t]`` in another loop, are given the results of all steps, and
``for result in results`` is a loop over all of them. Any other reading may count them: ``if results[60:]``.
So the source of the function is looked at, also for the lists of a dict, as in
``outputs["mel"].append(mel)``, and a loop stays as it is where the list is read in another way in
the loop itself, or where a function is given the list and may do so. A statement after the loop that may count
the items is another matter: its name may stand for something else by then, which is asked before its line runs.

>>> import ast
>>> source = "def f(x):\\n results = []\\n for t in x:\\n  results.append(t)\\n return stack(results)"
>>> counted_by(ast.parse(source), {"results"}, 3)
''
>>> readings_to_come(ast.parse(source + ", bool(results)"), {"results"}, 3)
frozenset({Reading(name='results', first=5, last=5)})
>>> sorted(gone_over(ast.parse(source + " + sum(f(r) for r in results)"), {"results"}, 3)[0])
['results']
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model_source.source_loops import names_set
from ...model_source.source_tests import called_name, parents_in

__all__ = ["Reading", "counted_by", "gone_over", "readings_to_come"]

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
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Reading:
    """The lines of a statement, or of its head, that may count the items of the list that a name stands for."""

    name: str
    first: int
    last: int


@dataclass
class _Lists:
    """The readings of lists in a function of a file: ``known`` are their names, ``tables`` those of dicts that have
    such lists, with their keys, as in ``outputs["mel"].append(mel)``, ``gone_over`` those over which a loop
    goes, ``made`` those of what a comprehension makes, and ``copied`` those of other lists with the same items.
    ``to_come`` are readings that may count the items, if the name stands for the list by then.

    Of a function that is given a list, what it returns may be the list: then it is ``returned``.
    """

    tree: ast.AST
    function: ast.AST
    line: int
    known: set[str]
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_given: bool = False
    returned: bool = False
    gone_over: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)
    to_come: set[Reading] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parents = parents_in(self.function)
        n_known = -1
        while n_known != len(self.known):  # a name for a list of another name may stand anywhere
            n_known = len(self.known)
            self.counted = self._counted()
        for name in sorted(self.gone_over & self.copied) if not self.counted else ():
            self.counted = f"a loop goes over {name}, which is another list of its items"

    def _counted(self) -> str:
        before, self.is_made = set(self.known), False
        for node in ast.walk(self.function):
            if isinstance(node, _Comprehension) and any(
                one.iter.lineno == self.line for one in node.generators
            ):
                self.is_made = True
                reading = self.reading_of(node)
                if reading is not None:
                    return f"the list is read in line {reading}"
        self.made |= self.known - before - self.copied
        for node in ast.walk(self.function):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            line = self._reading_of_table(node) if node.id in self.tables else None
            if node.id in self.known:
                line = self.reading_of(node)
            if line is None:
                continue
            to_come = None if self.is_given else self._to_come(node)
            if to_come is None:
                return f"{node.id} is read in line {line}"
            self.to_come.add(to_come)
        return ""

    def _to_come(self, name: ast.Name) -> Reading | None:
        """The reading of a name by a statement that runs after the loop, which may be of another value then; None in
        the loop itself, in a function that may be called anywhere, and after another statement of its line.
        """
        node: ast.AST = name
        around = [node]
        while node in self.parents and node is not self.function:
            node = self.parents[node]
            around.append(node)
        place = next(n for n, one in enumerate(around) if isinstance(one, ast.stmt))
        for inner, outer in itertools.pairwise(around):
            is_step = (
                isinstance(outer, (ast.For, ast.While))
                and outer.lineno == self.line
                and inner in outer.body
            )
            is_function = isinstance(outer, _FUNCTIONS) and outer is not self.function
            if is_step or is_function:
                return None
        read: Any = around[place - 1 if hasattr(around[place], "body") else place]
        if any(_ends_at(one, read.lineno) for one in ast.walk(self.function) if one not in around):
            return None
        return Reading(name.id, read.lineno, read.end_lineno or read.lineno)

    def reading_of(self, node: ast.AST, *, copied: bool = False) -> int | None:
        """The line of a reading that may count the items of a list, or of a ``copied`` one; None where this one does
        not.
        """
        parent = self.parents.get(node)
        here: int = getattr(node, "lineno", 0)
        if isinstance(parent, ast.Assign):
            return None if self._is_named(parent, node, copied=copied) else here
        if isinstance(parent, ast.Attribute):
            is_called = isinstance(self.parents.get(parent), ast.Call)
            return None if is_called and parent.attr in _METHODS else here
        if isinstance(parent, ast.IfExp) and node is not parent.test:
            return self.reading_of(parent, copied=copied)
        if isinstance(parent, ast.Return) and self.is_given:
            self.returned = True
            return None
        if isinstance(parent, ast.Subscript) and parent.value is node:
            index = ast.unparse(parent.slice)
            if not isinstance(parent.slice, ast.Slice):
                # a step reads it at its index, or the first or the last one is read: others are refused
                return None if isinstance(parent.ctx, ast.Load) else here
            return self.reading_of(parent, copied=True) if _PARTS.fullmatch(index) else here
        places = self.parents.get(parent) if isinstance(parent, ast.Tuple) else parent
        if isinstance(places, ast.Subscript) and places.slice in (node, parent):
            return None if isinstance(places.ctx, ast.Load) else here  # rows of a tensor
        if isinstance(parent, ast.For) and parent.iter is node:
            gone_over = _name_gone_over(node)
            return here if gone_over is None else self._gone_over(gone_over)
        if isinstance(parent, ast.comprehension) and parent.iter is node:
            return self._reading_of_items(node, parent)
        if isinstance(parent, ast.Starred) and _is_zip(call := self.parents.get(parent)):
            return here if call is None else self.reading_of(call, copied=True)
        if isinstance(parent, ast.Call) and node in parent.args:
            name = called_name(parent)
            if name == "map" and len(parent.args) == 2 and parent.args[1] is node:
                return self._reading_of_map(parent, node, here)
            if (
                name in _READERS
                or _is_of_numbers(parent)
                or (isinstance(node, ast.GeneratorExp) and name in _IN_STEPS)
            ):
                return None
            if name in _COPIES:
                return self.reading_of(parent, copied=True)
            return None if self._is_read_by_function(parent, node) else here
        is_asked = not copied and _is_tested(parent, node)
        return None if is_asked or self._is_extended(parent, node) else here

    def _reading_of_table(self, name: ast.Name) -> int | None:
        """The line of a reading of a dict that may count the items of its lists; None where this one does not."""
        parent: Any = self.parents.get(name)
        is_asked = isinstance(parent, ast.Compare) and parent.left is not name
        if is_asked and all(isinstance(one, (ast.In, ast.NotIn)) for one in parent.ops):
            return None  # for a key
        if _is_gone_over(name, parent):  # over the keys
            return None
        if isinstance(parent, ast.Subscript) and parent.value is name:
            key = parent.slice.value if isinstance(parent.slice, ast.Constant) else None
            is_other = isinstance(key, str) and key not in self.tables[name.id]
            is_read = isinstance(parent.ctx, ast.Load) and not is_other
            return self.reading_of(parent) if is_read else None
        call = self.parents.get(parent) if isinstance(parent, ast.Attribute) else None
        around: Any = self.parents.get(call) if isinstance(call, ast.Call) else None
        if call is None or not _is_gone_over(call, around):
            return name.lineno
        if parent.attr == "keys":
            return None
        target = around.target
        if parent.attr == "items" and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        if parent.attr not in ("items", "values") or not isinstance(target, ast.Name):
            return name.lineno
        inner = around if isinstance(around, ast.For) else self.parents[around]
        values = (one for one in ast.walk(inner) if isinstance(one, ast.Name))
        read = (
            self.reading_of(one)
            for one in values
            if one.id == target.id and isinstance(one.ctx, ast.Load)
        )
        return next((line for line in read if line is not None), None)

    def _is_extended(self, added: ast.AST | None, node: ast.AST) -> bool:
        """True for ``results = results + (result,)``."""
        if not isinstance(added, ast.BinOp) or not isinstance(added.op, ast.Add):
            return False
        given = self.parents.get(added)
        is_one_more = added.left is node and isinstance(added.right, (ast.Tuple, ast.List))
        if not is_one_more or not isinstance(given, ast.Assign) or len(given.targets) > 1:
            return False
        return ast.unparse(given.targets[0]) == ast.unparse(node)

    def _is_read_by_function(self, call: ast.Call, node: ast.AST) -> bool:
        """True where a function of the same file is given the list, which does not count its items either."""
        called = [
            one
            for one in getattr(self.tree, "body", ())
            if isinstance(one, ast.FunctionDef) and one.name == ast.unparse(call.func)
        ]
        is_plain = len(called) == 1 and not called[0].decorator_list and not call.keywords
        if (
            self.is_given
            or not is_plain
            or called[0].name in names_set(getattr(self.function, "body", []))
        ):
            return False
        names, place = [one.arg for one in called[0].args.args], call.args.index(node)  # type: ignore[arg-type]
        if place >= len(names) or any(isinstance(one, ast.Starred) for one in call.args):
            return False
        lists = _Lists(self.tree, called[0], -1, {names[place]}, is_given=True)
        if lists.counted or lists.gone_over:
            return False
        return not lists.returned or self.reading_of(call, copied=True) is None

    def _gone_over(self, name: ast.Name) -> int | None:
        """Notes that a loop goes over the list of a name; its line where the comprehension stands there that makes the
        list, which has no other iterator yet.
        """
        if name.lineno == self.line and self.is_made:
            return name.lineno
        self.gone_over.add(name.id)
        return None

    def _is_named(self, given: ast.Assign, value: ast.AST, *, copied: bool) -> bool:
        """True for ``name = list``, and for ``name, other = zip(*list)``: the names are those of lists."""
        target, names = given.targets[0], list[ast.expr]()
        if len(given.targets) == 1:
            is_tuple = isinstance(target, ast.Tuple) and _is_zip(value)
            names = target.elts if is_tuple else [target]  # type: ignore[attr-defined]
        found = {one.id for one in names if isinstance(one, ast.Name)}
        self.known |= found
        self.copied |= found if copied else set()
        return bool(names) and len(found) == len(names)

    def _reading_of_map(self, call: ast.Call, node: ast.AST, here: int) -> int | None:
        """The line of a reading by ``map(function, list)`` that may count the items; None where this one does not."""
        if _is_zip(node):
            is_join = ast.unparse(call.args[0]).rpartition(".")[2] in _JOINS
            return None if is_join else here
        if not isinstance(node, ast.Name):
            return here
        return here if self._gone_over(node) else self.reading_of(call, copied=True)

    def _reading_of_items(self, node: ast.AST, goes_over: ast.comprehension) -> int | None:
        """The line of a reading by a comprehension that may count the items; None where this one does not."""
        made = self.parents[goes_over]
        if not isinstance(made, _Comprehension) or len(made.generators) > 1 or goes_over.ifs:
            return getattr(node, "lineno", 0)
        if _is_zip(node):
            is_join = isinstance(made.elt, ast.Call) and called_name(made.elt) in _JOINS
            return None if is_join else getattr(node, "lineno", 0)
        if not isinstance(node, ast.Name):
            return getattr(node, "lineno", 0)
        return self._gone_over(node)


def _is_gone_over(node: ast.AST, around: ast.AST | None) -> bool:
    """True for what a loop, or a comprehension, goes over."""
    return isinstance(around, (ast.For, ast.comprehension)) and around.iter is node


def _is_tested(parent: ast.AST | None, node: ast.AST) -> bool:
    """True where a list is asked for whether it has an item: ``if results:``, ``x if results else y``. A loop that is
    rolled has a step, and where its first one alone finds an empty list, that one differs from the others.
    """
    is_test = isinstance(parent, (ast.If, ast.IfExp, ast.Assert)) and parent.test is node
    return is_test or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not))


def _name_gone_over(node: ast.AST) -> ast.Name | None:
    """The name of the list that a loop goes over: ``results``, ``reversed(results)`` or ``results[::-1]``."""
    if isinstance(node, ast.Call) and called_name(node) == "reversed":
        node = node.args[0]
    if isinstance(node, ast.Subscript):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _is_zip(node: ast.AST | None) -> bool:
    """True for ``zip(*items)``: as many lists as an item has parts."""
    is_call = isinstance(node, ast.Call) and called_name(node) == "zip"
    return is_call and len(node.args) == 1 and isinstance(node.args[0], ast.Starred)  # type: ignore[union-attr]


@functools.lru_cache(maxsize=1024)
def _lists_of(
    tree: ast.AST,
    names: frozenset[str],
    line: int,
    tables: tuple[tuple[str, frozenset[str]], ...] = (),
) -> _Lists | None:
    function = _function_at(tree, line)
    return None if function is None else _Lists(tree, function, line, set(names), dict(tables))


def counted_by(
    tree: ast.AST,
    names: Collection[str],
    line: int,
    tables: Mapping[str, frozenset[str]] | None = None,
) -> str:
    """Finds where the lists of these names, those at some keys of dicts that are ``tables``, or the value of the
    comprehension at a line, are read in a way that may count them: returns that line; empty where they are not.
    """
    lists = _lists_of(tree, frozenset(names), line, tuple((tables or {}).items()))
    return "its source is not there" if lists is None else lists.counted


def readings_to_come(
    tree: ast.AST,
    names: Collection[str],
    line: int,
    tables: Mapping[str, frozenset[str]] | None = None,
) -> frozenset[Reading]:
    """The readings after the loop at a line that may count the items of these lists, where a name still stands for one
    by then: ``std = std + 1`` after ``if has_rows: std = torch.stack(std)``.
    """
    lists = _lists_of(tree, frozenset(names), line, tuple((tables or {}).items()))
    return frozenset() if lists is None else frozenset(lists.to_come)


def gone_over(
    tree: ast.AST, names: Collection[str], line: int
) -> tuple[frozenset[str], frozenset[str]]:
    """The names of such lists over which another loop goes, and which of them are made by the comprehension."""
    lists = _lists_of(tree, frozenset(names), line)
    if lists is None:
        return frozenset(), frozenset()
    return frozenset(lists.gone_over), frozenset(lists.gone_over & lists.made)


def _ends_at(node: ast.AST, line: int) -> bool:
    """True for a statement that has nothing after this line."""
    return isinstance(node, ast.stmt) and node.end_lineno == line


def _is_of_numbers(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _OF_NUMBERS


def _function_at(tree: ast.AST, line: int) -> ast.AST | None:
    """The innermost function with a line."""
    found: ast.AST | None = None
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node if found is None or node.lineno >= found.lineno else found  # type: ignore[attr-defined]
    return found
