"""Who reads what calls count: stand-ins for counters and containers, for the time of a trace.

A stand-in of a number may be added to, subtracted from, multiplied and put back, which nobody can tell
from another number. One of a list may be appended to. Whatever else is done with it is a reading, with
the line of the model: a comparison, a length, an operator of torch, a text. Without a reading nothing
depends on what stands there, at any number of calls.

>>> reads = StateReads()
>>> n = _Number(reads, "n", 3)
>>> n += 1
>>> reads.found
{}
>>> n > 3
True
>>> list(reads.found)
['n']
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from ..model_source.frames import frame_of_model
from ..model_source.lines import is_of_python, line_of, place_of_node
from ..observing.attribute_reads import reads_are_told
from ..observing.effects import MISSING, Effect
from ..observing.reach import Holder, ObjectState, Snapshot
from ..patches.swap import swapped
from ..torch_internals.graph_modules import placeholders_of
from ..torch_internals.tensor_marks import memories_in, memory_of
from ..torch_internals.trees import tree_leaves

__all__ = ["StateReads", "tensors_read"]

_aten = torch.ops.aten
_NUMBERS = (int, float)
#: what is done with a number without telling one from another
_FOLLOWED = ("add", "sub", "mul", "neg", "pos")
_REFLECTED = ("add", "sub", "mul")
_OTHERS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "index", "int", "float", "complex"),
    *("str", "repr", "format", "round", "trunc", "floor", "ceil", "abs", "invert", "divmod"),
    *("truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"),
    *("rtruediv", "rfloordiv", "rmod", "rpow", "rand", "ror", "rxor", "rlshift", "rrshift"),
    *("rmatmul", "rdivmod"),
)
#: methods that change a container, and tell nothing of it
_CHANGING: dict[type, frozenset[str]] = {
    list: frozenset({"append", "extend", "insert", "clear"}),
    collections.deque: frozenset({"append", "appendleft", "extend", "extendleft", "clear"}),
    set: frozenset({"add", "update", "clear", "discard"}),
    dict: frozenset({"__setitem__", "update", "clear"}),
}
_OF_CONTAINERS = (
    *("len", "iter", "contains", "getitem", "setitem", "delitem", "reversed", "eq", "ne", "lt"),
    *("le", "gt", "ge", "hash", "bool", "str", "repr", "format", "add", "radd", "mul", "rmul"),
    *("or", "ror", "and", "rand", "sub", "rsub", "xor", "rxor", "iadd", "ior", "isub", "imul"),
)


def tensors_read(
    program: torch.export.ExportedProgram, written: Mapping[str, Effect]
) -> dict[str, str]:
    """Which of the tensors that each call writes, by path, results of a graph hang on, and the lines
    that read them. A graph holds them as they stood before the call.

    An attribute that each call sets to another tensor may begin in the memory of a parameter, as ``weight`` of
    ``spectral_norm`` begins as ``weight_orig.data``: a node that reads the parameter does not read the attribute.
    """
    places = {
        memory: path for path, change in written.items() for memory in memories_in(change.before)
    }
    found: dict[str, str] = {}
    nodes = placeholders_of(program)
    for spec in program.graph_signature.input_specs if places else ():
        name = spec.target or ""
        value = program.state_dict.get(name, program.constants.get(name))
        path = places.get(memory_of(value)) if isinstance(value, torch.Tensor) else None
        if path is not None and spec.kind is InputKind.PARAMETER and not name.endswith(path):
            change = written[path]
            if type(change.before) is torch.Tensor and not change.is_write:
                continue
        node = nodes[spec.arg.name]
        readers = [] if path is None else [one for one in node.users if not _overwrites(one, node)]
        if path is not None and readers:
            found[path] = place_of_node(readers[0])
    return found


def _overwrites(user: Node, node: Node) -> bool:
    """True for a node that puts other values into a tensor, and reads none of it."""
    is_whole = user.target in (_aten.copy_.default, _aten.fill_.Scalar, _aten.zero_.default)
    return is_whole and user.args[0] is node and node not in user.args[1:]


#: functions of ``random`` and ``numpy.random`` that draw
_DRAWING = (
    *("random", "uniform", "rand", "random_sample", "gauss", "normalvariate", "expovariate"),
    *("betavariate", "triangular", "randint", "randrange", "getrandbits", "choice", "choices"),
    *("sample", "shuffle", "randn", "normal", "binomial", "permutation", "standard_normal"),
)
#: the code that beartype makes around a function
_CHECKER = "<@beartype("


class StateReads:
    """The readings of what calls count: path -> line of the model. ``first_read`` has the other attributes that
    calls set: for each one whether it was read before it was set.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.first_read: dict[str, bool] = {}
        #: paths that have stand-ins
        self.placed: dict[str, Any] = {}

    def read(self, path: str) -> None:
        """Notes a reading by the code of the model that runs now."""
        if path not in self.found:
            frame = frame_of_model()
            is_named = frame is not None and not is_of_python(frame.f_code.co_filename)
            self.found[path] = line_of(frame) if frame is not None and is_named else ""

    @property
    def unread(self) -> frozenset[str]:
        """The attributes that the run set before it read them: an earlier call may have left any value there."""
        return frozenset(path for path, is_read in self.first_read.items() if not is_read)

    @contextlib.contextmanager
    def of(
        self, snapshot: Snapshot, counted: Mapping[str, Effect], others: Mapping[str, Effect]
    ) -> Iterator[None]:
        """Inside the block stand-ins are in the places of what calls count, and ``first_read`` is noted for the
        attributes among the changes ``others``. The caller puts back what stood there.
        """
        with contextlib.ExitStack() as stack:
            for change in list(counted.values()):
                if change.place not in self.placed and change.holder is not None:
                    known = snapshot.holder_like(change.holder)
                    if known is None or not self._place(stack, snapshot, known, change):
                        self.found.setdefault(change.place, "")
            for change in list(others.values()):
                known = None if change.holder is None else snapshot.holder_like(change.holder)
                if known is not None:
                    self._watch_setting(stack, known, change)
            yield

    def stands_for(self, change: Effect) -> bool:
        """True for a change by a stand-in, and for one of what has stand-ins."""
        return change.place in self.placed or change.place in self.found

    def tells(self, change: Effect) -> bool:
        """True for a change of random numbers whose draws are watched: all but those that a call draws after
        it has set where they begin.
        """
        holder = self.placed.get(change.place)
        return holder is not None and change.holder is not None and change.holder.is_about(holder)

    def check(self, result: Any) -> None:
        """Notes stand-ins that come back as a result."""
        for leaf in tree_leaves(result):
            if _is_stand_in(leaf):
                self.read(_path_of(leaf))

    def stand_in(self, path: str, value: Any) -> Any:
        """Returns a stand-in for a value; the value itself where there is nothing for its kind."""
        if type(value) in _NUMBERS:
            return _Number(self, path, value)
        kind = _kind_of_container(value)
        return None if kind is None else _STAND_INS[kind](self, path, value)

    def _place(
        self, stack: contextlib.ExitStack, snapshot: Snapshot, holder: Holder, change: Effect
    ) -> bool:
        """Puts a stand-in where calls change something; False where there is none for it."""
        if isinstance(holder, ObjectState) and isinstance(holder.value, ModuleType):
            stack.enter_context(self._watched_draws(holder))
            self.placed[change.place] = holder
            return True
        if change.key is None or _is_key_added(change):
            container = holder.value
            stand_in = self.stand_in(change.place, container)
            places = [
                (one, key)
                for one in snapshot.holders
                for key, item in one.items().items()
                if item is container
            ]
            if stand_in is None or not places:
                return False
            for one, key in places:
                one.put(key, stand_in)
            self.placed[change.place] = stand_in
            return True
        if isinstance(getattr(holder, "owner", None), torch.Tensor):
            return False  # the model has another tensor in a trace
        value = holder.items().get(change.key, MISSING)
        kind = _kind_of_container(value)
        if type(value) in _NUMBERS or (kind is not None and isinstance(change.after, kind)):
            self.placed[change.place] = stand_in = self.stand_in(change.place, value)
            holder.put(change.key, stand_in)
            return True
        return self._watch_attribute(stack, holder, change)

    @contextlib.contextmanager
    def _watched_draws(self, holder: ObjectState) -> Iterator[None]:
        """Inside the block a float that a function of ``random`` or ``numpy.random`` draws is a
        stand-in: many models draw a number for their training, and ask for it there alone, or compare
        it with 0. Whatever else is drawn is a reading, but for a draw among one number, and for the draws of
        beartype, which checks the type of one item of a list, and raises or does nothing.
        """
        path, module = holder.path, holder.value
        known = [holder.read()]

        def watching(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
            def drawn(*args: Any, **kwargs: Any) -> Any:
                if not holder.equal(known[0], holder.read()):  # drawn by another name
                    self.read(path)
                value = draw(*args, **kwargs)
                known[0] = holder.read()
                if type(value) is float:
                    return _Drawn(self, path, value, _ends_of_draw(name, args, kwargs))
                if module is not random or not _has_one_number(name, args, kwargs):
                    self.read(path)
                return value

            return drawn

        def told(frame: FrameType, event: str, function: Any) -> None:
            if event not in ("c_call", "c_return"):
                return
            is_drawn = isinstance(getattr(function, "__self__", None), random.Random)
            if not is_drawn or not frame.f_code.co_filename.startswith(_CHECKER):
                return
            if event == "c_call" and not holder.equal(known[0], holder.read()):
                self.read(path)
            known[0] = holder.read()

        with contextlib.ExitStack() as stack:
            for name in _DRAWING:
                if hasattr(module, name):
                    watched = watching(name, getattr(module, name))
                    stack.enter_context(swapped(module, name, watched))
            stack.callback(sys.setprofile, sys.getprofile())
            sys.setprofile(told)
            yield
        if not holder.equal(known[0], holder.read()):
            self.read(path)

    def _watch_attribute(self, stack: contextlib.ExitStack, holder: Holder, change: Effect) -> bool:
        """Lets the class of an object tell when an attribute is read that no stand-in stands for, as
        a flag or None: ``is`` asks no object.
        """
        owner = getattr(holder, "owner", None)
        name, path = change.key, change.place
        if owner is None or not isinstance(name, str):
            return False
        if not stack.enter_context(reads_are_told(owner, name, lambda: self.read(path))):
            return False
        self.placed[path] = name
        return True

    def _watch_setting(self, stack: contextlib.ExitStack, holder: Holder, change: Effect) -> None:
        """Lets the class of an object tell when an attribute is read before it is set."""
        owner, name, path = getattr(holder, "owner", None), change.key, change.place
        if isinstance(owner, torch.Tensor):
            self.first_read.setdefault(path, True)  # the model has another tensor in a trace
        elif owner is not None and isinstance(name, str):
            is_told = stack.enter_context(
                reads_are_told(owner, name, lambda: self.first_read.update({path: True}))
            )
            self.first_read.setdefault(path, not is_told)


def _is_key_added(change: Effect) -> bool:
    """True for a key of a container that comes or goes: who asks for its length reads that."""
    comes_or_goes = change.before is MISSING or change.after is MISSING
    return comes_or_goes and not getattr(change.holder, "attributes", True)


def _kind_of_container(value: Any) -> type | None:
    return next((kind for kind in _CHANGING if isinstance(value, kind)), None)


def _is_stand_in(value: Any) -> bool:
    """True for a stand-in, which says that it is what it stands for."""
    return issubclass(type(value), _StandIn)


def _path_of(stand_in: Any) -> str:
    return str(object.__getattribute__(stand_in, "_path"))


def _real(value: Any) -> Any:
    """The value that a stand-in stands for; anything else as it is."""
    return object.__getattribute__(value, "_value") if _is_stand_in(value) else value


def _read(stand_in: Any) -> Any:
    """Notes a reading, and gives the value: a container that was cleared has nothing of an earlier call."""
    if not object.__getattribute__(stand_in, "_is_cleared"):
        reads = object.__getattribute__(stand_in, "_reads")
        reads.read(_path_of(stand_in))
    return _real(stand_in)


class _StandIn:
    """Stands for a value: it is noted when anything is asked of it, but of a container that the run has cleared."""

    __slots__ = ("_is_cleared", "_path", "_reads", "_value")

    def __init__(self, reads: StateReads, path: str, value: Any) -> None:
        self._reads, self._path, self._value = reads, path, value
        self._is_cleared = False

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return type(_real(self))
        if name in ("__deepcopy__", "__copy__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        changing = _CHANGING.get(_kind_of_container(_real(self)) or object, frozenset())
        if name in changing:
            return _changing_method(_real(self), name)
        return getattr(_read(self), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator of torch reads the value."""
        args, kwargs = _read_all(args), _read_all(kwargs or {})
        return func(*args, **kwargs)


def _read_all(value: Any) -> Any:
    if _is_stand_in(value):
        return _read(value)
    if type(value) in (list, tuple):
        return type(value)(map(_read_all, value))
    if type(value) is dict:
        return {key: _read_all(item) for key, item in value.items()}
    return value


def _changing_method(container: Any, name: str) -> Callable[..., None]:
    def change(*args: Any, **kwargs: Any) -> None:
        getattr(container, name)(*args, **kwargs)

    return change


def _asking(name: str) -> Callable[..., Any]:
    def ask(self: Any, *others: Any) -> Any:
        if name == "__bool__":
            return bool(_read(self))
        found = getattr(_read(self), name, None)
        if found is None:
            raise TypeError(f"{name} of a {type(_real(self)).__name__}")
        return found(*map(_read_all, others))

    return ask


def _following(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(operator, name)

    def follow(self: Any, *others: Any) -> Any:
        values = [_real(one) for one in (self, *others)]
        plain = all(isinstance(one, (*_NUMBERS, torch.SymInt, torch.SymFloat)) for one in values)
        ordered = values[::-1] if reflected else values
        if not plain:
            _read(self)
            return function(*ordered)
        reads = object.__getattribute__(self, "_reads")
        return _Number(reads, _path_of(self), function(*ordered))

    return follow


class _Number(_StandIn):
    """Stands for an int or a float."""

    __slots__ = ()
    __array_ufunc__ = None  # numbers of NumPy leave an operator to this one


for _name in _FOLLOWED:
    setattr(_Number, f"__{_name}__", _following(_name))
for _name in _REFLECTED:
    setattr(_Number, f"__r{_name}__", _following(_name, reflected=True))
for _name in _OTHERS:
    setattr(_Number, f"__{_name}__", _asking(f"__{_name}__"))


class _Drawn(_Number):
    """Stands for a float that was drawn. A comparison with a number outside of ``ends`` is no reading: all floats
    that could be drawn are on one side of that number.
    """

    __slots__ = ("_ends",)

    def __init__(
        self, reads: StateReads, path: str, value: float, ends: tuple[float, float]
    ) -> None:
        super().__init__(reads, path, value)
        self._ends = ends


def _comparing(name: str) -> Callable[[Any, Any], Any]:
    compare: Callable[[Any, Any], Any] = getattr(operator, name)
    ask = _asking(f"__{name}__")

    def compared(self: Any, other: Any) -> Any:
        ends = object.__getattribute__(self, "_ends")
        if isinstance(other, (int, float)) and not _is_stand_in(other):
            least, greatest = (compare(end, other) for end in ends)
            if least == greatest:
                return least
        return ask(self, other)

    return compared


for _name in ("lt", "le", "gt", "ge"):
    setattr(_Drawn, f"__{_name}__", _comparing(_name))


def _ends_of_draw(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[float, float]:
    """The least and the greatest float that a function of ``random`` or ``numpy.random`` may draw."""
    if name in ("random", "rand", "random_sample") and not args and not kwargs:
        return 0.0, math.nextafter(1.0, 0.0)
    if name == "uniform" and len(args) == 2 and all(type(one) in (int, float) for one in args):
        return min(args), max(args)
    return -math.inf, math.inf


def _has_one_number(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a draw of ``random`` among one int alone: ``random.randrange(1)``."""
    if kwargs or not args or not all(type(one) is int for one in args):
        return False
    if name == "randint":
        return bool(args[0] == args[-1])
    return name == "randrange" and len(range(*args)) == 1


class _Container(_StandIn):
    """Stands for a list, a set, a deque or a dict."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return (
            functools.partial(_clear, self) if name == "clear" else super().__getattribute__(name)
        )


def _clear(container: Any) -> None:
    _real(container).clear()
    object.__setattr__(container, "_is_cleared", True)


for _name in _OF_CONTAINERS:
    setattr(_Container, f"__{_name}__", _asking(f"__{_name}__"))


class _Dict(_Container):
    """Stands for a dict. To read a key that the run has set itself is no reading of state: an extractor keeps features
    by their layers, and reads them behind the last one.
    """

    __slots__ = ("_own",)

    def __init__(self, reads: StateReads, path: str, value: Any) -> None:
        super().__init__(reads, path, value)
        self._own: dict[Any, None] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _is_stand_in(key):  # nobody reads it, or a reading is noted
            _real(self)[key] = value
            object.__getattribute__(self, "_own")[key] = None

    def __getitem__(self, key: Any) -> Any:
        return _holding(self, key)[_read_all(key)]

    def __getattribute__(self, name: str) -> Any:
        if name == "get":
            return lambda key, default=None: _holding(self, key).get(_read_all(key), default)
        if name == "update":
            return functools.partial(_update, self)
        return super().__getattribute__(name)


def _holding(stand_in: Any, key: Any) -> dict[Any, Any]:
    """The dict that a stand-in stands for; a key of an earlier call is a reading."""
    is_own = _read_all(key) in object.__getattribute__(stand_in, "_own")
    found: dict[Any, Any] = _real(stand_in) if is_own else _read(stand_in)
    return found


def _update(stand_in: Any, *others: Any, **items: Any) -> None:
    for key, value in dict(*others, **items).items():
        stand_in[key] = value


class _List(_Container):
    __slots__ = ()

    def __iadd__(self, others: Iterable[Any]) -> Any:
        _real(self).extend(others)
        return self


_STAND_INS: dict[type, Any] = {
    list: _List,
    collections.deque: _List,
    set: _Container,
    dict: _Dict,
}
