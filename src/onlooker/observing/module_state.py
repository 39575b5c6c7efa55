"""The attributes of the modules of a model beside its parameters: read and written by path,
compared by value.

A path is written as Python has it, ``encoder.layers.0.conv.last_frames``: the name of the module,
and the name of the attribute or buffer. A dict of a file of the model is ``package.layers:MASKS``.
"""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..pytrees.comparisons.agree import leaf_difference
from ..pytrees.deepcopy import torch_deepcopy
from ..pytrees.layers import is_cache
from ..pytrees.nodes import ATOMS
from ..pytrees.open import open_tree
from .cached_functions import spaces_of_source

__all__ = [
    "Contents",
    "are_equal",
    "changed_paths",
    "contents_at",
    "copied_values",
    "former_values",
    "held_values",
    "later_values",
    "own_values",
    "owners_of",
    "plain_values",
    "put_values",
    "values_at",
]

#: what every module has, flags and hooks, and the mode, which is the user's own choice
_COMMON = frozenset(vars(torch.nn.Module()))
_DEEPEST = 4
_PLAIN = (bool, int, float, str, type(None), tuple, torch.Tensor)
#: containers whose contents are kept, up to so many items
_CONTAINERS = (list, dict, collections.OrderedDict, collections.defaultdict)
_MOST_ITEMS = 10_000
#: packages whose objects are no helpers of a model
_LIBRARIES = frozenset({"torch", "numpy", "builtins", __name__.partition(".")[0]})


@dataclass(frozen=True, slots=True)
class Contents:
    """A list or a dict, and the ``items`` that it had when it was looked at; ``later`` are those that it had
    when the watching ended.
    """

    container: Any
    items: Any
    later: Any = None

    def is_other(self) -> bool:
        """True where the container had other objects later, and all of then and later can be state."""
        return not _is_of_same_objects(self.later, self.items) and all(
            map(_can_be_state, (*_values_of(self.later), *_values_of(self.items)))
        )

    def until_now(self) -> Contents:
        """Returns these contents, with what the container holds now."""
        return Contents(self.container, self.items, _items_of(self.container))

    def put(self, table: dict[str, Any], name: str) -> None:
        """Gives the container of an attribute, this one or that of a copy of the model, these items."""
        container: Any = table.get(name)
        if type(container) is not type(self.container):
            return
        container.clear()
        if isinstance(container, list):
            container.extend(self.items)
        else:
            container.update(self.items)


def held_values(model: Any) -> dict[str, Any]:
    """The attributes and buffers of a model and of its submodules that can be state, by path.

    These are numbers, flags, text, None, tensors, caches of transformers, and lists, tuples and
    dicts of these. The values are the objects themselves.

    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    >>> [path for path in held_values(model) if "0.running" in path]
    ['0.running_mean', '0.running_var']
    """
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, module in _modules(model)
        for name, value in own_values(module)
        if _can_be_state(value)
    }


def plain_values(model: Any) -> dict[str, Any]:
    """The plain attributes of a model, of its submodules and of their helpers, by path: numbers, flags, text, tuples,
    tensors and buffers, and the contents of lists and dicts. So are the dicts that the model's files name. The mode
    is the user's own choice, and may change after watching.
    """
    in_files = {
        f"{file}:{name}": Contents(value, _items_of(value))
        for file, space in spaces_of_source(model).items()
        for name, value in space.items()
        if type(value) is dict and len(value) <= _MOST_ITEMS and not name.startswith("__")
    }
    return in_files | {
        f"{prefix}.{name}" if prefix else name: (
            value if isinstance(value, _PLAIN) else Contents(value, _items_of(value))
        )
        for prefix, owner in owners_of(model)
        for name, value in own_values(owner)
        if isinstance(value, _PLAIN) or (type(value) in _CONTAINERS and len(value) <= _MOST_ITEMS)
    }


def former_values(model: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes that were other plain values ``before``, or a list or dict with other contents; other
    tensors are others.
    """
    now, found = plain_values(model), dict[str, Any]()
    for path, value in before.items():
        if isinstance(value, Contents):
            contents = value.until_now()
            if contents.is_other():
                found[path] = contents
        elif path not in now or not _is_same_plain(value, now[path]):
            found[path] = value
    return found


def later_values(model: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes that were other plain values ``before``, and the lists with other contents, as they
    are now.
    """
    now = plain_values(model)
    found = {path: now[path] for path in former_values(model, before) if path in now}
    return {
        path: value
        for path, value in found.items()
        if not isinstance(value, Contents) or isinstance(value.container, list)
    }


def _items_of(container: Any) -> Any:
    """A copy of what a list or a dict holds, as a tuple or as a dict."""
    return tuple(container) if isinstance(container, list) else dict(container)


def _values_of(items: Any) -> Iterable[Any]:
    return items if isinstance(items, tuple) else items.values()


def _is_of_same_objects(left: Any, right: Any) -> bool:
    """True for the same keys with the very same objects."""
    if len(left) != len(right) or (isinstance(left, dict) and [*left] != [*right]):
        return False
    return all(map(operator.is_, _values_of(left), _values_of(right)))


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, torch.nn.Module):
        yield from model.named_modules()
    else:
        yield "", model


def owners_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The modules of a model, and the objects that are attributes of them, each once."""
    found: set[int] = set()
    for prefix, module in _modules(model):
        yield prefix, module
        for name, value in own_values(module):
            if _is_helper(value) and id(value) not in found:
                found.add(id(value))
                yield f"{prefix}.{name}" if prefix else name, value


def _is_helper(value: Any) -> bool:
    """True for an object of a class of the user's, or of another package than torch, with attributes in a dict."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    is_known = root in _LIBRARIES or root in sys.stdlib_module_names
    return (
        not is_known
        and not isinstance(value, (torch.nn.Module, type))
        and type(getattr(value, "__dict__", None)) is dict
    )


def own_values(module: Any) -> Iterator[tuple[str, Any]]:
    """The attributes and the buffers of a module or an object, but for those that every module has."""
    is_module = isinstance(module, torch.nn.Module)
    for name, value in vars(module).items():
        if not (is_module and name in _COMMON):
            yield name, value
    if is_module:
        yield from module._buffers.items()


def _can_be_state(value: Any, depth: int = 0) -> bool:
    kind = type(value)
    if kind in ATOMS:
        return True
    if isinstance(value, torch.Tensor):
        return not isinstance(value, torch.nn.Parameter)
    if depth >= _DEEPEST:
        return False
    if kind in (list, tuple):
        return all(_can_be_state(child, depth + 1) for child in value)
    if kind is dict:
        has_plain_keys = all(type(key) in (str, int) for key in value)
        return has_plain_keys and all(_can_be_state(v, depth + 1) for v in value.values())
    return is_cache(value)


def copied_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every tensor copied, and containers made again."""
    copies: dict[str, Any] = torch_deepcopy(dict(values))
    return copies


def values_at(model: Any, paths: Iterable[str]) -> dict[str, Any]:
    """The attributes at these paths, as far as they are there."""
    found: dict[str, Any] = {}
    for path in paths:
        table, name = _table(model, path)
        if name in table:
            found[path] = table[name]
    return found


def contents_at(model: Any, former: Mapping[str, Any]) -> dict[str, Contents]:
    """What the lists and dicts hold now of which ``former`` has other contents, by path."""
    paths = [path for path, value in former.items() if isinstance(value, Contents)]
    return {
        path: Contents(held, _items_of(held))
        for path, held in values_at(model, paths).items()
        if type(held) in _CONTAINERS
    }


def _table(model: Any, path: str) -> tuple[dict[str, Any], str]:
    """The dict that holds an attribute, and its name; an empty one where its module is gone."""
    file, _, named = path.rpartition(":")
    if file in sys.modules:
        return vars(sys.modules[file]), named
    prefix, _, name = path.rpartition(".")
    owner = model
    for part in prefix.split(".") if prefix else ():
        modules = owner._modules if isinstance(owner, torch.nn.Module) else {}
        owner = modules.get(part, vars(owner).get(part))
        if not hasattr(owner, "__dict__"):
            return {}, name
    is_buffer = isinstance(owner, torch.nn.Module) and name in owner._buffers
    return (owner._buffers if is_buffer else vars(owner)), name


def put_values(model: Any, paths: Iterable[str], values: Mapping[str, Any]) -> None:
    """Sets the attributes at these paths; one that ``values`` do not have is taken away."""
    for path in paths:
        table, name = _table(model, path)
        if isinstance(values.get(path), Contents):
            values[path].put(table, name)
        elif path in values:
            table[name] = values[path]
        else:
            table.pop(name, None)


def changed_paths(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths whose values differ, in the order of ``now``; those that are gone are the last.

    >>> changed_paths({"n": 1, "x": torch.ones(2)}, {"x": torch.ones(2), "n": 2, "new": None})
    ('n', 'new')
    """
    found: list[str] = []
    for path, value in now.items():
        if path not in before or not are_equal(before[path], value):
            found.append(path)
    gone = [path for path in before if path not in now]
    return (*found, *gone)


def are_equal(left: Any, right: Any) -> bool:
    """True for the same containers with the same values; NaN is NaN."""
    if left is right:
        return True
    first, second = open_tree(left), open_tree(right)
    if first.structure != second.structure:
        return False
    return all(map(_is_same_leaf, first.leaves, second.leaves))


def _is_same_plain(left: Any, right: Any) -> bool:
    """True for equal numbers and texts, and for one tensor, whatever its values."""
    if left is right or isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return left is right
    return type(left) is type(right) and repr(left) == repr(right)


def _is_same_leaf(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return leaf_difference(left, right) == 0
    return _is_same_plain(left, right)
