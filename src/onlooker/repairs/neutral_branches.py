"""Branches on sizes that change nothing on their other side: ``if pad > 0: x = F.pad(x, (0, pad))``.

A model that pads to windows, and cuts again, asks in each layer whether there is something to pad.
Each answer is a condition of the trace, and ten of them are a thousand graphs. But a pad of 0 gives
the tensor that is there, and so does a slice of everything. Where that is proven of the body of an
``if`` for all sizes at which its test fails, the trace runs the body whatever the sizes are, and
keeps no condition: the graph is right on both sides.

The proof reads the source of the body (:mod:`onlooker.model_source.source_tests`). It may only pad and cut
tensors, view them in another shape or order, compute with sizes, and assign local names, or return a
tensor where the next line returns one.
Wherever the test fails, each tensor that the body leaves must be the one from before, and so must each
number, unless nothing reads it after the body. Of a pad that is not 0 there, ``8 - n % 8`` under
``if n % 8``, the remainder by 8 is taken: that is the same pad where the test holds.

A pad of 0 is a copy, as in :mod:`onlooker.repairs.memory_copies`: a graph that writes to memory that
it may share is traced again without. So is a model that asks for the memory of a tensor.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from torch.overrides import handle_torch_function

from ..model_source.frames import attribute_at_rest, is_code_of_model, is_own_code, looked_up
from ..model_source.lines import line_of
from ..model_source.source_tests import SourceTest, branch_asked_at, has_positions
from ..proofs.decisions import taken_by
from ..proofs.size_proofs import SizeProofs
from ..torch_internals.modes import WithoutFunctions, without_dispatch_modes
from ..torch_internals.sizes import Mod, PythonMod, SymNode
from .repair import Attempt, Repair, Retry
from .trace_mode import InVainError, Reader

__all__ = ["NEUTRAL_BRANCHES", "NeutralBranches", "NotNeutralError"]

#: what tells a copy of a tensor from the tensor itself
_TELLS = frozenset(
    {
        torch.Tensor.is_contiguous,
        torch.Tensor.stride,
        torch.Tensor.storage_offset,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
    }
)
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
#: the modes in which a pad of 0 is the tensor itself
_MODES = ("constant", "reflect", "replicate")
#: methods of a tensor that give its elements in another shape or order
_METHODS = ("contiguous", "permute", "reshape", "swapaxes", "transpose", "view")
#: code of torch between a function that is called and a mode
_BETWEEN = (torch.nn.functional.pad.__code__, handle_torch_function.__code__)
_MISSING = object()
#: a model with more branches that were taken in vain decides all of them
_MOST_DECIDED = 2


class NotNeutralError(InVainError):
    """A branch was taken that is another graph on its other side; one of all where there is no line."""

    words = "a branch is another graph on its other side: {line}"


class _UnknownError(Exception):
    """A body of which nothing is proven."""


@dataclass(slots=True)
class _Pads:
    """Pads of a body that runs next: per call, and per amount, the divisor whose remainder is
    taken, None for the amount as it is.
    """

    frame: FrameType
    lines: range
    divisors: list[list[int | None]]


class NeutralBranches(Reader):
    """Inside the block such branches are taken without a condition; ``taken`` has their lines.

    ``decided`` are the lines of branches that Python decides, None for all branches.
    """

    functions = _TELLS | {torch.nn.functional.pad}

    def __init__(self, decided: Iterable[str] | None = ()) -> None:
        self.taken: list[str] = []
        self._decided = None if decided is None else frozenset(decided)
        #: the value of a test that has a name: itself, its conditions, and the line that made it
        self._named: dict[int, tuple[SymNode, list[Any], str]] = {}
        self._pads: list[_Pads] = []
        self._hook = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._decided is not None and has_positions():
            self._hook.enter_context(taken_by(self._takes))
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.close()

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Pads with remainders where a body that was taken pads."""
        kwargs = dict(kwargs)
        if func is torch.nn.functional.pad and self._pads:
            args = self._with_remainders(args, kwargs)
        if func in _TELLS and self.taken and is_code_of_model(_caller().f_code.co_filename):
            raise self.failed(NotNeutralError(""))
        return func(*args, **kwargs)

    def _takes(self, value: SymNode, frame: FrameType | None) -> bool | None:
        """True where the value decides a branch that is taken without a condition, else None."""
        if frame is None or not is_code_of_model(frame.f_code.co_filename):
            return None
        if not value.expr.free_symbols:
            return None
        known = self._named.get(id(value))
        line = line_of(frame) if known is None else known[2]
        if known is None and line in (self._decided or ()):
            return None
        try:
            test = branch_asked_at(frame.f_code, frame.f_lasti)
            if test is None or test.is_negated:
                raise _UnknownError
            # a proof computes with tensors of its own, out of sight of the trace
            with without_dispatch_modes(), WithoutFunctions():
                self._take(value, test, frame, line)
        except _UnknownError:
            if known is not None:  # it was taken where it got its name
                raise self.failed(NotNeutralError(line)) from None
            return None
        self.taken.append(line)
        return True

    def _take(self, value: SymNode, test: SourceTest, frame: FrameType, line: str) -> None:
        """Passes where the branch may be taken.

        :raises _UnknownError: where nothing is proven of its body
        """
        body = _Body(frame, test, _lows_of(value))
        known = self._named.get(id(value))
        conditions = known[1] if known is not None else _conditions(value, test, body)
        if isinstance(test.branch, ast.Assign):
            self._named[id(value)] = value, conditions, line
            return
        body.prove(conditions)
        if any(divisor is not None for one in body.divisors for divisor in one):
            self._pads.append(_Pads(frame, test.lines, body.divisors))

    def _with_remainders(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a pad; one that a body makes has the remainders of its amounts."""
        frame, pads = _caller(), self._pads[-1]
        if frame is not pads.frame or frame.f_lineno not in pads.lines:
            return args
        divisors = pads.divisors.pop(0)
        if not pads.divisors:
            self._pads.pop()
        amounts = kwargs.pop("pad") if "pad" in kwargs else args[1]
        pairs = zip(amounts, divisors, strict=True)
        remainders = [amount if by is None else amount % by for amount, by in pairs]
        tensor = kwargs.pop("input") if "input" in kwargs else args[0]
        return (tensor, remainders, *args[2:])


def _caller() -> FrameType:
    """The frame that called a function of torch."""
    frame = sys._getframe(2)
    while is_own_code(frame.f_code.co_filename) or frame.f_code in _BETWEEN:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def _conditions(value: SymNode, test: SourceTest, body: _Body) -> list[Any]:
    """Returns the conditions of which one holds where a test does: the value, and what an ``or``
    asks after it.
    """
    others = [body.number(operand) for operand in test.others]
    if not all(isinstance(other, (torch.SymBool, torch.SymInt)) or not other for other in others):
        raise _UnknownError
    symbolic = [other for other in others if isinstance(other, (torch.SymBool, torch.SymInt))]
    tests = [one != 0 if isinstance(one, torch.SymInt) else one for one in symbolic]
    found = [value.expr, *(one.node.expr for one in tests if isinstance(one, torch.SymBool))]
    if not all(isinstance(one, Relational) for one in found):
        raise _UnknownError
    return found


def _lows_of(value: SymNode) -> dict[str, int]:
    """The least size of each symbol in the trace of a value, at most 1: a trace leaves out sizes of
    0, which are tried by themselves.
    """
    ranges = value.shape_env.var_to_range if value.shape_env is not None else {}
    return {symbol.name: int(bool(found.lower >= 1)) for symbol, found in ranges.items()}


class _Sizes:
    """Proofs for all sizes at which none of some conditions holds. ``lows`` are the least sizes
    that the trace is for.
    """

    def __init__(self, conditions: Sequence[Any], lows: Mapping[str, int]) -> None:
        self._conditions, self._lows = conditions, lows
        fails = [sympy.Not(condition) for condition in conditions]
        self._proofs = SizeProofs(lows, fails)
        self._equal = [fact.lhs - fact.rhs for fact in fails if isinstance(fact, sympy.Eq)]
        self._zeros = {fact.lhs: sympy.S.Zero for fact in fails if self._makes_zero(fact)}

    def _makes_zero(self, fact: Any) -> bool:
        """True for ``n == 0``, and for ``n <= 0`` of what is never negative."""
        if fact.rhs != 0 or fact.lhs.is_number:
            return False
        never_negative = self._proofs.always(sympy.Ge(fact.lhs, 0, evaluate=False))
        return isinstance(fact, sympy.Eq) or (isinstance(fact, sympy.Le) and never_negative)

    def are_equal(self, first: Any, second: Any) -> bool:
        """True where two numbers, or tuples of them, are proven equal."""
        if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
            same = type(first) is type(second) and len(first) == len(second)
            return same and all(map(self.are_equal, first, second))
        if not all(type(one) in (int, torch.SymInt) for one in (first, second)):
            return type(first) is type(second) and bool(first == second)
        return self._is_zero(_expression(first) - _expression(second))

    def _is_zero(self, value: Any) -> bool:
        value = sympy.expand(value.xreplace(self._zeros))
        if value == 0 or any(_is_multiple(value, equal) for equal in self._equal):
            return True
        return self._proofs.always(sympy.Eq(value, 0))

    def divisor(self, amount: Any) -> int | None:
        """None for a pad of 0; else the divisor by which it leaves 0, and itself wherever one of
        the conditions holds.
        """
        value = _expression(amount)
        if self._is_zero(value):
            return None
        remainders = (m for c in self._conditions for m in c.atoms(Mod, PythonMod))
        for divisor in {int(m.args[1]) for m in remainders if m.args[1].is_Integer}:
            rest = PythonMod(value, divisor)
            if self._is_zero(rest) and all(
                SizeProofs(self._lows, [condition]).always(sympy.Eq(rest, value))
                for condition in self._conditions
            ):
                return divisor
        raise _UnknownError


@dataclass(frozen=True, slots=True)
class _Seen:
    """A tensor that is there, seen through views: ``shapes`` are its shape and the one after each of the
    ``views``, of which each is the order of its dimensions, or empty where it is another shape alone.
    """

    tensor: torch.Tensor
    shapes: tuple[tuple[Any, ...], ...]
    views: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Seen:
        return cls(tensor, (tuple(tensor.shape),))

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.shapes[-1]

    def ordered(self, order: Sequence[int]) -> _Seen:
        """With its dimensions in another order; two orders that cancel each other leave none."""
        order = tuple(dim % len(self.shape) for dim in order)
        if sorted(order) != list(range(len(self.shape))):
            raise _UnknownError
        below = self
        if self.views and self.views[-1]:
            order = tuple(self.views[-1][dim] for dim in order)
            below = _Seen(self.tensor, self.shapes[:-1], self.views[:-1])
        if order == tuple(range(len(order))):
            return below
        return below._with(tuple(below.shape[dim] for dim in order), order)

    def shaped(self, shape: Sequence[Any], sizes: _Sizes) -> _Seen:
        """With another shape of as many elements; the shape from before it is no other one."""
        below = self
        if self.views and not self.views[-1]:
            below = _Seen(self.tensor, self.shapes[:-1], self.views[:-1])
        known = [size for size in shape if not (type(size) is int and size == -1)]
        if len(shape) == len(below.shape) and len(known) >= len(shape) - 1:
            pairs = zip(shape, below.shape, strict=True)
            if all(
                (type(one) is int and one == -1) or sizes.are_equal(one, other)
                for one, other in pairs
            ):
                return below
        if len(known) < len(shape) or not sizes.are_equal(_product(shape), _product(below.shape)):
            raise _UnknownError
        return below._with(tuple(shape), ())

    def _with(self, shape: tuple[Any, ...], view: tuple[int, ...]) -> _Seen:
        return _Seen(self.tensor, (*self.shapes, shape), (*self.views, view))


def _product(sizes: Iterable[Any]) -> Any:
    return functools.reduce(operator.mul, sizes, 1)


@dataclass(slots=True)
class _Body:
    """The body of a branch, read with what its names are; tensors stand for those that they are
    where the test fails.
    """

    frame: FrameType
    test: SourceTest
    lows: Mapping[str, int]
    divisors: list[list[int | None]] = field(default_factory=list)
    _before: dict[str, Any] = field(init=False)
    _names: dict[str, Any] = field(init=False)
    _read: set[str] = field(default_factory=set)
    _sizes: _Sizes = field(init=False)

    def __post_init__(self) -> None:
        self._before = dict(self.frame.f_locals)
        self._names = dict(self._before)

    def prove(self, conditions: Sequence[Any]) -> None:
        """Passes when the body changes nothing where none of the conditions holds.

        :raises _UnknownError: where that is not proven
        """
        self._sizes = _Sizes(conditions, self.lows)
        results = self.test.results
        if results is not None:
            readers = [one.f_code for one in (self.frame, self.frame.f_back) if one is not None]
            if any(map(_asks_which, readers)):
                raise _UnknownError
            if not _are_one(self._result(results[0]), self._tensor(results[1])):
                raise _UnknownError
            return
        assert isinstance(self.test.branch, ast.If)
        stored: set[str] = set()
        early: set[str] = set()
        for statement in self.test.branch.body:
            name, value = _assigned(statement)
            self._read = set()
            self._names[name] = self._result(value)
            early |= self._read - stored
            stored.add(name)
        for name in stored:
            is_dead = name not in early and self.test.keeps(name)
            if not is_dead and not self._is_as_before(name):
                raise _UnknownError
        if not self.test.is_plain(stored, self.frame.f_code):
            raise _UnknownError

    def _is_as_before(self, name: str) -> bool:
        before, after = self._before.get(name, _MISSING), self._names[name]
        if isinstance(before, torch.Tensor) or isinstance(after, (torch.Tensor, _Seen)):
            return _are_one(before, after)
        return self._sizes.are_equal(before, after)

    def _result(self, node: ast.expr) -> Any:
        try:
            return self.number(node)
        except _UnknownError:
            return self._tensor(node)

    # -- numbers

    def number(self, node: ast.expr) -> Any:
        """A number, or a tuple of numbers, computed without a decision.

        :raises _UnknownError: for any other expression
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return _plain(self._named(node.id))
        if isinstance(node, ast.Attribute):
            return _plain(self._attribute(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._size_asked(node, node.func)
        if isinstance(node, (ast.Tuple, ast.List)):
            items = [self.number(item) for item in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.Subscript):
            return _item(self.number(node.value), self.number(node.slice))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -_size(self.number(node.operand))
        if isinstance(node, ast.BinOp):
            return self._computed(node.op, node.left, node.right)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._computed(node.ops[0], node.left, node.comparators[0])
        raise _UnknownError

    def _size_asked(self, call: ast.Call, method: ast.Attribute) -> Any:
        """``x.size()`` and ``x.size(1)``."""
        if method.attr != "size" or len(call.args) > 1 or call.keywords:
            raise _UnknownError
        shape = self._tensor(method.value).shape
        return _item(shape, self.number(call.args[0])) if call.args else shape

    def _computed(self, kind: ast.AST, left: ast.expr, right: ast.expr) -> Any:
        function = _ARITHMETIC.get(type(kind))
        first, second = _size(self.number(left)), _size(self.number(right))
        divides = isinstance(kind, (ast.FloorDiv, ast.Mod))
        if function is None or (divides and not (type(second) is int and second > 0)):
            raise _UnknownError
        return function(first, second)

    def _named(self, name: str) -> Any:
        self._read.add(name)
        if name in self._names:
            return self._names[name]
        try:
            return looked_up(name, self.frame)
        except LookupError:
            raise _UnknownError from None

    def _attribute(self, node: ast.Attribute) -> Any:
        """An attribute that is a value where it stands, and the shape of a tensor."""
        if isinstance(node.value, ast.Attribute):
            owner = self._attribute(node.value)
        elif isinstance(node.value, ast.Name):
            owner = self._named(node.value.id)
        else:
            raise _UnknownError
        if node.attr == "shape" and isinstance(owner, (_Seen, torch.Tensor)):
            return self._tensor(node.value).shape
        try:
            return attribute_at_rest(owner, node.attr)
        except LookupError:
            raise _UnknownError from None

    # -- tensors

    def _tensor(self, node: ast.expr) -> _Seen:
        """The tensor that an expression is where the test fails.

        :raises _UnknownError: for what may be another tensor than one that is there
        """
        if isinstance(node, ast.Name):
            found = self._named(node.id)
            if isinstance(found, _Seen):
                return found
            if isinstance(found, torch.Tensor) and _is_usual(found):
                return _Seen.of(found)
        if isinstance(node, ast.Subscript):
            return self._cut(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise _UnknownError

    def _called(self, node: ast.Call) -> _Seen:
        """``x.contiguous()``, a view, and a pad with numbers that stand in the call."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            return self._viewed(node.func.attr, self._tensor(node.func.value), node)
        if self._function(node.func) is not torch.nn.functional.pad:
            raise _UnknownError
        given = dict(zip(("input", "pad", "mode", "value"), node.args, strict=False))
        given |= {word.arg or "": word.value for word in node.keywords}
        if not {"input", "pad"} <= set(given) <= {"input", "pad", "mode", "value"}:
            raise _UnknownError
        tensor, amounts = self._tensor(given["input"]), self.number(given["pad"])
        mode = self.number(given["mode"]) if "mode" in given else "constant"
        if "value" in given:
            self.number(given["value"])
        if mode not in _MODES or not isinstance(amounts, (tuple, list)):
            raise _UnknownError
        self.divisors.append([self._sizes.divisor(_size(amount)) for amount in amounts])
        return tensor

    def _viewed(self, method: str, tensor: _Seen, node: ast.Call) -> _Seen:
        given = [self.number(one) for one in node.args]
        if node.keywords:
            raise _UnknownError
        if method == "contiguous" and not given:
            return tensor
        if len(given) == 1 and isinstance(given[0], (tuple, list)):
            given = list(given[0])
        if method in ("view", "reshape"):
            return tensor.shaped([_size(one) for one in given], self._sizes)
        if not all(type(one) is int for one in given):
            raise _UnknownError
        if method == "permute":
            return tensor.ordered(given)
        if method in ("transpose", "swapaxes") and len(given) == 2 and tensor.shape:
            first, second = (dim % len(tensor.shape) for dim in given)
            dims = {first: second, second: first}
            return tensor.ordered([dims.get(dim, dim) for dim in range(len(tensor.shape))])
        raise _UnknownError

    def _function(self, node: ast.expr) -> Any:
        """Returns the value of a name, or of a name in modules."""
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._function(node.value)
            if isinstance(owner, ModuleType):
                return getattr(owner, node.attr, None)
        raise _UnknownError

    def _cut(self, node: ast.Subscript) -> _Seen:
        tensor = self._tensor(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        shape = list(tensor.shape)
        for place, part in enumerate(parts):
            if isinstance(part, ast.Constant) and part.value is Ellipsis:
                shape = shape[len(shape) - (len(parts) - place - 1) :]
                continue
            if not isinstance(part, ast.Slice) or part.step is not None or not shape:
                raise _UnknownError
            size, *shape = shape
            first = 0 if part.lower is None else self.number(part.lower)
            last = size if part.upper is None else self.number(part.upper)
            same = self._sizes.are_equal
            if not same(_size(first), 0) or not same(_size(last), size):
                raise _UnknownError
        return tensor


def _are_one(one: Any, other: Any) -> bool:
    """True for one tensor, seen through no view that is left."""
    first, second = (
        _Seen.of(each) if isinstance(each, torch.Tensor) else each for each in (one, other)
    )
    if not isinstance(first, _Seen) or not isinstance(second, _Seen):
        return first is second
    return first.tensor is second.tensor and not first.views and not second.views


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr]:
    """The name and the value of an assignment to one name."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets
        if isinstance(target, ast.Name):
            return target.id, statement.value
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = ast.Name(statement.target.id, ast.Load())
        return name.id, ast.BinOp(name, statement.op, statement.value)
    raise _UnknownError


def _plain(value: Any) -> Any:
    """The value, where it is a number, a word, or a tuple of them."""
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list, torch.Size):
        for item in value:
            _plain(item)
    elif value is not None and type(value) not in (int, float, bool, str, torch.SymInt):
        raise _UnknownError
    return value


def _item(items: Any, place: Any) -> Any:
    """The item at a place of a tuple or a list."""
    is_place = isinstance(items, (tuple, list)) and type(place) is int
    if not is_place or not -len(items) <= place < len(items):
        raise _UnknownError
    return items[place]


def _size(value: Any) -> Any:
    if type(value) not in (int, torch.SymInt):
        raise _UnknownError
    return value


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value)


@functools.lru_cache(maxsize=4096)
def _asks_which(code: CodeType) -> bool:
    """True where code asks whether two objects are one, of which none is None."""
    last = None
    for one in dis.get_instructions(code):
        if one.opname == "IS_OP" and not (last is not None and last.argval is None):
            return True
        last = one
    return False


def _is_multiple(value: Any, of: Any) -> bool:
    """True where a sum is a number times another sum."""
    terms = sympy.expand(value).as_coefficients_dict()
    others = sympy.expand(of).as_coefficients_dict()
    if set(terms) != set(others):
        return False
    factors = {terms[term] / others[term] for term in terms}
    return len(factors) == 1


def _is_usual(tensor: torch.Tensor) -> bool:
    """True for a tensor that is cut and copied as all are."""
    kind = type(tensor)
    names = ("__getitem__", "shape", "size", *_METHODS)
    return all(getattr(kind, name) is getattr(torch.Tensor, name) for name in names)


def _decided_by_python(attempt: Attempt) -> Retry | None:
    """The next attempt has the branch that was taken in vain decided by Python; after a few of them
    all branches.
    """
    branches = attempt.reader(NeutralBranches)
    if branches is None or branches.failure is None:
        return None
    line = branches.failure.line
    request = attempt.request.deciding(line)
    if not line or len(request.decided) > _MOST_DECIDED:
        request = attempt.request.without_repair(NEUTRAL_BRANCHES)
    return Retry(request)


def _may_be_the_cause(attempt: Attempt) -> Retry | None:
    """The next attempt takes no branch, where this one took some and failed for another reason."""
    branches = attempt.reader(NeutralBranches)
    if attempt.error is None or branches is None or not branches.taken:
        return None
    return Retry(attempt.request.without_repair(NEUTRAL_BRANCHES))


NEUTRAL_BRANCHES = Repair(
    "neutral branches",
    "``if pad > 0: x = F.pad(x, (0, pad))`` changes nothing on its other side, and yet each such test is"
    " a condition of the trace. Where the source proves that the body is the identity there, the trace"
    " runs it for all sizes.",
    until="tests/repairs/test_neutral_branches.py::test_frames_of_all_lengths_are_served",
    always=True,
    failed=_decided_by_python,
    retry=_may_be_the_cause,
)
