"""What Python keeps from one step of a loop to the next: numbers, and what objects hold.

A rolled loop runs some steps only, so whatever counts them would be another number in a call. What the
names of the frames stand for is compared after each step with what it was after the first one, and what
the model and these values hold after the second, the third and the last step. An int that grows by the
same number in each step is known for any number of steps: it is set after the loop::

    n = 0
    for row in x.unbind(1):                after step 0: n is 1, after step k: 1 + k
        h, n = cell(row, h), n + 1
    return h / n                           n is 1 + (x.shape[1] - 1)

For a step that reads such an int for something else, as in ``h + table[n]``, the int is an index
(:mod:`.step_indices`). The source says by how much the index grows.
"""

from __future__ import annotations

import ast
import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import sympy
import torch

from ...model_source.frames import is_code_of_model, is_own_code, set_local
from ...model_source.source_loops import (
    counted_names,
    names_added_to,
    names_given,
    names_read_outside,
)
from ...model_source.source_tests import tree_of
from ...observing.effects import Effect
from ...observing.reach import Snapshot
from ...pytrees.identity import slots_of
from ...pytrees.nodes import is_size
from ...torch_internals.sizes import expression_of, statically_known_true
from ...torch_internals.tensor_marks import attributes_given_to
from .lists_of_numbers import NumberList, number_lists_of
from .loop_lists import Reading, counted_by, gone_over, readings_to_come
from .step_indices import StepFloat, StepIndex
from .step_numbers import NumberOrigin, StepSize, Total
from .steps import Constant, Loop, leaves_of, mapped

__all__ = ["COUNTS", "KeptBetweenSteps", "frames_of_model", "may_hold", "number_of"]

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), torch.SymInt, torch.SymFloat)
#: values that are told by their identity
_WHOLE = (torch.nn.Module, ModuleType, type)
#: steps after which objects are compared already: what goes in a circle may be after the last step what it
#: was after the first one
_EARLY_STEPS = (1, 2)
#: why a loop is no scan whose results somebody counts
COUNTS = "its results are a list that is read in another way than by torch.stack, torch.cat or [-1]"
#: so many objects deep a value is looked into
_DEEPEST = 8


def frames_of_model(frame: FrameType | None) -> list[FrameType]:
    """The frame of the loop and those that called it, as far as they run code of the model."""
    found = []
    while frame is not None:
        if is_code_of_model(frame.f_code.co_filename):
            found.append(frame)
        elif found and is_own_code(frame.f_code.co_filename):
            break  # that is where the model was called
        frame = frame.f_back
    return found


def may_hold(value: Any) -> bool:
    """True for a local value in which Python may keep a count; the model is looked at already."""
    if isinstance(value, GeneratorType) and is_own_code(value.gi_code.co_filename):
        return False  # it gives the steps
    if isinstance(value, tuple):
        # the parts of a tensor that was taken apart, and not the steps of a loop over them
        return any(map(may_hold, tuple.__iter__(value)))
    if isinstance(value, torch.Tensor):
        return bool(attributes_given_to(value))
    return not isinstance(value, (Loop, StepIndex, StepFloat, *_WHOLE, *_NUMBERS))


class KeptBetweenSteps:
    """What the frames of a loop, and the model, hold between its steps.

    ``held_by`` gives a snapshot of the model and of some frames. ``is_told`` is True for random numbers
    whose readings the trace tells, ``follows`` where a trace rolled the loop before.
    """

    def __init__(
        self,
        loop: Loop,
        held_by: Callable[[Sequence[FrameType]], Snapshot],
        is_told: Callable[[Effect], bool],
        *,
        follows: bool,
    ) -> None:
        self._loop, self._held_by, self._follows = loop, held_by, follows
        self._is_told = is_told
        self._names: Sequence[Mapping[str, Any]] = ()
        self._forms: dict[tuple[int, str], Any] = {}
        self._counts: dict[str, tuple[Any, Any]] = {}
        #: the names of numbers that steps read and add to, as indices of the step
        self._indices: dict[str, StepIndex] = {}
        self._held: Snapshot | None = None
        #: the names that stand for a number of the step itself
        self._own: dict[str, StepSize | None] = {}
        #: the names that stand for another tuple or list after each step, with a result of the step at its end
        self._joined: set[str] = set()
        #: the lists that get numbers of each step
        self._lists: list[NumberList] = []
        #: where another loop goes over the results: the names of their lists, and those that the list of a
        #: comprehension is to have
        self.named: frozenset[str] = frozenset()
        self.to_be_made: frozenset[str] = frozenset()
        #: the readings after the loop that count the items of a list of results, if it has its name by then
        self.readings: frozenset[Reading] = frozenset()

    def look_ahead(self, frames: Sequence[FrameType]) -> None:
        """Before the loop: keeps the last number of each list that it extends, and finds the numbers that its steps
        count.
        """
        loop, frame = self._loop, frames[0]
        if loop.is_of_numbers:
            self._lists = number_lists_of(frame)
            return
        place = frame.f_code.co_filename, frame.f_lineno
        given = {
            name: one for name, one in names_given(*place, loop.repeated).items() if is_size(one)
        }
        for name, added in counted_names(*place, given).items():
            begin, each = frame.f_locals.get(name), number_of(added, frame, **given)
            if is_size(begin) and is_size(each) and (type(each) is int or each >= 1) and each != 0:
                self._indices[name] = StepIndex.of(loop, begin, each)

    def begin_step(
        self, frames: Sequence[FrameType], number: Callable[[Loop, torch.Tensor], torch.SymInt]
    ) -> None:
        """Before a step: the last numbers of these lists are numbers of it, as ``number`` reads them, and what it
        counts are indices.
        """
        for one in self._lists:
            one.begin_step(lambda tensor: number(self._loop, tensor))
        for name, index in self._indices.items():
            set_local(frames[0], name, index)

    def end_lists(self) -> None:
        """After the last step: what these lists had before the loop is there again."""
        for one in self._lists:
            one.end()

    def begin(self, frames: Sequence[FrameType]) -> None:
        """Before the first step: names to which a loop over numbers adds are totals from here on."""
        numbers, frame = self._loop.numbers, frames[0]
        if numbers is None or not self._loop.is_of_numbers:
            return
        added = names_added_to(frame.f_code.co_filename, frame.f_lineno)
        for name, value in dict(frame.f_locals).items():
            if name in added and is_size(value):
                numbers.totals[name] = Total(value)
                set_local(frame, name, numbers.total(name, 0))

    def _grow(self, frame: FrameType) -> None:
        """Passes where each total grows by the same numbers in each step, and begins the next one.

        :raises NotRolledError: elsewhere
        """
        numbers, step = self._loop.numbers, len(self._loop.steps) - 1
        if numbers is None:
            return
        for name, total in list(numbers.totals.items()):
            now = frame.f_locals.get(name)
            if step == 0 and isinstance(now, torch.Tensor):
                self._begin_with(name, total.begin)  # a sum of tensors that begins with a number
                continue
            if not is_size(now):
                raise self._loop.refused(f"{name} is no size after a step")
            growth = self._formula(now - numbers.total(name, step), step)
            if growth is None or any(origin.total for origin in growth.origins):
                raise self._loop.refused(f"{name} grows by itself")
            if growth != (total.growth or growth):
                raise self._loop.refused(f"{name} grows by another number in some steps")
            total.growth = growth
            set_local(frame, name, numbers.total(name, step + 1))

    def _begin_with(self, name: str, begin: Any) -> None:
        """Notes the number that a name stood for in the first step, which is no total."""
        steps, numbers = self._loop.steps, self._loop.numbers
        total = NumberOrigin(total=name)

        def plain(one: Any) -> Any:
            is_alone = isinstance(one, StepSize) and one.formula == total.symbol
            return Constant(type(begin), begin) if is_alone else one

        steps[0] = [replace(one, arguments=mapped(one.arguments, plain)) for one in steps[0]]
        if numbers is not None:
            del numbers.totals[name]

    def _formula(self, value: Any, step: int) -> StepSize | None:
        """The formula of a size of a step."""
        expression = sympy.sympify(expression_of(value))
        return self._loop.formula_of(expression, step, plain=True)

    def _form(self, value: Any, step: int) -> Any:
        return _form(value, lambda one: self._formula(one, step) if self._is_number(one) else one)

    def settle(self, frames: Sequence[FrameType]) -> None:
        """After the scan: gives the names of indices what they are after the last step of a call; those of totals too,
        where the function reads them outside of the loop. Else a trial would read values that the graph does not.
        """
        numbers, frame = self._loop.numbers, frames[0]
        for name, value in dict(frame.f_locals).items():
            if isinstance(value, StepIndex) and value.loop is self._loop:
                set_local(frame, name, value.last)
        if numbers is None or not numbers.totals:
            return
        read = names_read_outside(frame.f_code.co_filename, frame.f_lineno)
        for name, total in numbers.totals.items():
            if name in read and total.end is not None:
                set_local(frame, name, total.end())

    def after_step(self, frames: Sequence[FrameType]) -> None:
        """Compares the names of the frames with those after the first step.

        :raises NotRolledError: where Python keeps something from step to step
        """
        names = [dict(frame.f_locals) for frame in frames]
        step = len(self._loop.steps) - 1
        if not all(one.is_extended(step) for one in self._lists):
            raise self._loop.refused("a list is not extended by one tolist() in each step")
        self._grow(frames[0])
        if step == 0:
            for name in self._indices:
                self._check_index(name, names[0].get(name))
            for name, value in names[0].items():
                if self._is_number(value):
                    self._own[name] = self._formula(value, 0)
            self._names, self._held = names, self._held_by(frames)
            return
        for depth, (before, now) in enumerate(zip(self._names, names, strict=True)):
            if before.keys() != now.keys():
                reason = "some of its steps give a name a value, others do not"
                raise self._loop.refused(reason, at_ends=True)
            for name in before:
                self._check_name(depth, name, before[name], now[name])
        if step in _EARLY_STEPS:
            self._grown_lists()

    def _check_name(self, depth: int, name: str, before: Any, now: Any) -> None:
        """Passes where a name stands for the same, for another tensor, or for a count."""
        if depth == 0 and self._loop.numbers is not None and name in self._loop.numbers.totals:
            return
        if depth == 0 and name in self._indices:
            self._check_index(name, now)
            return
        step = len(self._loop.steps) - 1
        if depth == 0 and (name in self._own or self._is_number(now)):
            if not is_size(now) or self._own.get(name) != self._formula(now, step):
                raise self._loop.refused(f"{name} is another number in some steps")
            return
        are_tensors = isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor)
        if (now is before and not are_tensors) or (are_tensors and not attributes_given_to(now)):
            return
        if depth == 0 and is_size(before) and is_size(now):
            _, growth = self._counts.setdefault(name, (before, now - before if step == 1 else 0))
            if not statically_known_true(now == before + growth * step):
                raise self._loop.refused(f"{name} grows by another number in some steps")
            return
        if depth == 0 and _is_longer(before, now, step):
            self._joined.add(name)
            return
        form = self._forms.setdefault((depth, name), self._form(before, 0))
        if form != self._form(now, step):
            raise self._loop.refused(f"{name} changes from step to step")

    def _check_index(self, name: str, now: Any) -> None:
        """Passes where a step has added to an index the number by which it grows."""
        index = self._indices[name]
        is_grown = isinstance(now, StepIndex) and now.loop is index.loop and now.goes_with(index)
        if not is_grown or not statically_known_true(now.first == index.first + index.each):
            raise self._loop.refused(f"{name} grows by another number in some steps")

    def _is_number(self, value: Any) -> bool:
        """True for a size that is computed from numbers of steps."""
        numbers = self._loop.numbers
        return numbers is not None and is_size(value) and numbers.has_numbers(expression_of(value))

    def _grown_lists(self) -> list[list[Any]]:
        """Returns the lists with one result of each step.

        :raises NotRolledError: where something else was changed in place
        """
        added = len(self._loop.steps) - 1
        grown: list[list[Any]] = []
        for change in () if self._held is None else self._held.effects():
            if _form(change.before, str) == _form(change.after, str):
                continue  # other tensors alone: they are what a name has that stands for another one
            is_drawn = isinstance(getattr(change.holder, "value", None), ModuleType)
            if is_drawn and self._is_told(change):
                continue  # random numbers, of which the trace tells whether they are read
            if any(change.after is one.values for one in self._lists):
                grown.append(change.after)
                continue
            new = change.after[len(change.before) :] if type(change.after) is list else []
            if len(new) != added or not _are_results(new):
                place = change.place or "a container"
                raise self._loop.refused(f"{place} changes from step to step")
            grown.append(change.after)
        return grown

    def after_last(self, frames: Sequence[FrameType]) -> None:
        """Passes where Python keeps nothing from the steps but results and counts, and gives the names of counts
        what they are after the last step of a call.

        :raises NotRolledError: where Python keeps something else
        """
        grown: list[Any] = [*self._grown_lists()]
        grown += [frames[0].f_locals[name] for name in sorted(self._joined)]
        self._check_lists(frames, grown)
        for name, (first, growth) in self._counts.items():
            set_local(frames[0], name, first + growth * (self._loop.count - 1))

    def _check_lists(self, frames: Sequence[FrameType], grown: Sequence[Any]) -> None:
        """Passes where each list with results has names in the frame of the loop alone, and where
        nobody counts them.
        """
        loop, own = self._loop, frames[0]
        known = dict(own.f_locals)
        names = {name for name, value in known.items() if any(value is values for values in grown)}
        tree = tree_of(own.f_code.co_filename)
        over, self.to_be_made = frozenset[str](), frozenset[str]()
        if tree is not None:
            over, self.to_be_made = gone_over(tree, names, own.f_lineno)
        self.named = frozenset(names if over else ())
        if self._follows:  # the trace has looked at the source
            return
        tables = dict(_tables_with(known, grown))
        held = [*known.values(), *(one for name in tables for one in known[name].values())]
        theirs = [value for other in frames[1:] for value in other.f_locals.values()]
        for values in (*grown, *(known[name] for name in tables)):
            if not any(value is values for value in held):
                raise loop.refused("a list that is no local name has a result of each step")
            if any(value is values for value in theirs):
                raise loop.refused("a list of its caller has a result of each step")
        counted = "its source is not there"
        if tree is not None:
            counted = counted_by(tree, names, own.f_lineno, tables)
            self.readings = readings_to_come(tree, names, own.f_lineno, tables)
        if counted:
            raise loop.refused(f"{COUNTS}: {counted}")


def number_of(added: ast.Expression, frame: FrameType, **names: Any) -> Any:
    """What an expression of plain numbers, sizes and attributes is in a frame, with other values for some ``names``;
    None where it is nothing.
    """
    code = compile(added, frame.f_code.co_filename, "eval")
    try:
        return eval(code, frame.f_globals, {**frame.f_locals, **names})
    except Exception:  # a name that is not set yet
        return None


def _is_longer(before: Any, now: Any, step: int) -> bool:
    """True for a tuple or a list after a step that has the items of the one after the first step, then a result of
    each step.
    """
    if type(now) not in (tuple, list) or type(before) is not type(now):
        return False
    rest = now[len(before) :]
    is_begun = all(one is other for one, other in zip(before, now, strict=False))
    return is_begun and len(rest) == step and _are_results(rest)


def _tables_with(
    known: Mapping[str, Any], lists: Sequence[Any]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yields the names of dicts that have some of these lists, with their keys."""
    for name, table in known.items():
        if type(table) in (dict, collections.OrderedDict, collections.defaultdict):
            keys = [key for key, one in table.items() if any(one is values for values in lists)]
            if keys and all(isinstance(key, str) for key in keys):
                yield name, frozenset(keys)


def _are_results(items: Sequence[Any]) -> bool:
    """True for tensors, and for containers of tensors that are alike; also for nothing but None."""
    form = _form(items[0], str) if items else None
    return all(item is None for item in items) or (
        all(isinstance(leaf, torch.Tensor) for item in items for leaf in leaves_of(item, object))
        and all(_form(item, str) == form for item in items)
    )


def _form(value: Any, numbers: Callable[[Any], Any], known: frozenset[int] = frozenset()) -> Any:
    """A value without the tensors in it: equal for two values that differ in tensors alone, and in the
    symbols of the same ``numbers`` of steps.
    """
    if isinstance(value, torch.Tensor) and id(value) not in known:
        given = attributes_given_to(value)
        return (torch.Tensor, _form(given, numbers, known | {id(value)})) if given else torch.Tensor
    if isinstance(value, (torch.Tensor, StepFloat)):
        return torch.Tensor
    if isinstance(value, StepIndex):
        return StepIndex, str(value.first), str(value.each)
    if isinstance(value, _NUMBERS):
        return type(value), str(numbers(value))
    parts = {} if isinstance(value, _WHOLE) else dict(_parts_of(value))
    if not parts and type(value) not in (dict, list, tuple, torch.Size):
        return type(value), id(value)
    if id(value) in known or len(known) >= _DEEPEST:
        return type(value), len(known)
    known |= {id(value)}
    return type(value), {name: _form(part, numbers, known) for name, part in parts.items()}


def _parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the values of which an object is made, with their names."""
    if isinstance(value, FunctionType):
        yield "code", id(value.__code__)
        yield "defaults", (value.__defaults__, value.__kwdefaults__)
        for number, cell in enumerate(value.__closure__ or ()):
            with contextlib.suppress(ValueError):  # of an empty one
                yield ("cell", number), cell.cell_contents
    if isinstance(value, MethodType):
        yield "object", value.__self__
        yield "function", value.__func__
    if isinstance(value, dict):
        yield from ((("item", repr(key)), item) for key, item in dict.items(value))
    if isinstance(value, (list, tuple)):
        # of what was taken apart the parts themselves, not the steps of a loop over it
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        yield from enumerate(items)
    cls: Any = type(value)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from attributes.items()
    for name in slots_of(cls):
        yield name, getattr(value, name, None)
