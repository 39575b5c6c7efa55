"""What a model's source remembers beside the model: results of functions (``functools.lru_cache``), and
tables of objects that stand in its files.

A run on tensors without values leaves such tensors in the cache, or symbolic sizes as keys, and the
next call of the user would get them. They are forgotten when the run ends; a function that remembers
values alone keeps them, since it may be what makes an object unique. A table (``MEMO[length] = angles``) and an
attribute of such an object have again what they had. How much a function remembers
is state of the model, where its source asks (``cache_info``).

Source of what a cache shows to the garbage collector (its dictionary, or each key and result):
https://github.com/python/cpython/blob/v3.11.7/Modules/_functoolsmodule.c
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch

from ..patches.swap import swapped
from ..torch_internals.fake_tensors import FakeTensor
from ..torch_internals.trees import tree_leaves

__all__ = [
    "Cache",
    "cache_reads_are_told",
    "named_caches",
    "spaces_of_source",
    "without_remembered_fakes",
]

Cache: TypeAlias = "functools._lru_cache_wrapper[Any]"
Table: TypeAlias = "dict[Any, Any] | list[Any]"
#: asks a cache also where another function stands in its place
_INFO = functools._lru_cache_wrapper.cache_info
#: so many tables, so deep in each other, are looked at
_MOST_TABLES, _DEEPEST = 4096, 2
#: the types of values that hold no tensors
_PLAIN = frozenset({int, float, bool, str, bytes, type(None), FunctionType, type, ModuleType})
#: packages whose functions remember no tensor of a model
_LIBRARIES = frozenset({"numpy", "torch", __name__.partition(".")[0]})


@contextlib.contextmanager
def without_remembered_fakes(model: Any) -> Iterator[None]:
    """On exit no function of the model's source, and no object beside its functions, remembers a tensor without
    values that it did not remember before.
    """
    names = _sources_of(model)
    caches, tables = _caches_of(names), list(_tables_of(names))
    before = [_INFO(cache).misses for cache in caches]
    try:
        yield
    finally:
        for cache, misses in zip(caches, before, strict=True):
            if _INFO(cache).misses != misses and any(map(_is_fake, _keys_and_results(cache))):
                cache.cache_clear()
        for table, held in tables:
            _forget_fakes(table, held)


@contextlib.contextmanager
def cache_reads_are_told(model: Any, read: Callable[[str], None]) -> Iterator[None]:
    """Inside the block ``read(name)`` is called when the model asks how much a function of its source
    remembers: every call may change that.
    """

    def telling(cache: Cache) -> Callable[[], Any]:
        def cache_info() -> Any:
            read(f"{cache.__module__}.{cache.__name__}.cache_info()")
            return _INFO(cache)

        return cache_info

    with contextlib.ExitStack() as stack:
        for cache in _caches(model):
            stack.enter_context(swapped(cache, "cache_info", telling(cache)))
        yield


@contextlib.contextmanager
def named_caches(model: Any, instead: Callable[[Cache], Callable[..., Any]]) -> Iterator[None]:
    """Inside the block ``instead(cache)`` stands where modules and classes of the model's source name a
    function that remembers.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, cache in _named(_sources_of(model)):
            stack.enter_context(swapped(owner, name, instead(cache)))
        yield


def spaces_of_source(model: Any) -> dict[str, dict[str, Any]]:
    """Returns what each file of a model has, by name: those of its classes, and of the functions that they use."""
    return {name: vars(sys.modules[name]) for name in _sources_of(model) if name in sys.modules}


@functools.lru_cache(maxsize=64)
def _named(names: tuple[str, ...]) -> list[tuple[Any, str, Cache]]:
    modules = [sys.modules[name] for name in names if name in sys.modules]
    classes = [value for one in modules for value in vars(one).values() if isinstance(value, type)]
    return [
        (owner, name, value)
        for owner in dict.fromkeys((*modules, *classes))
        for name, value in list(vars(owner).items())
        if _is_cache(value)
    ]


def _caches(model: Any) -> tuple[Cache, ...]:
    return _caches_of(_sources_of(model))


def _sources_of(model: Any) -> tuple[str, ...]:
    """The names of the Python modules of the classes of a model, of methods that a script has put in their
    place, and of those that they have functions and classes from.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else [model]
    classes = {cls for module in modules for cls in type(module).__mro__}
    names = {cls.__module__ for cls in classes}
    own = [getattr(module, "__dict__", {}).get("forward") for module in modules]
    methods = (one for cls in classes if _is_open(cls.__module__) for one in vars(cls).values())
    names.update(one.__module__ for one in (*own, *methods) if _is_source(one))
    return _sources_behind(tuple(sorted(names)))


@functools.lru_cache(maxsize=64)
def _sources_behind(names: tuple[str, ...]) -> tuple[str, ...]:
    found = set(names)
    for space in _spaces_of(filter(_is_open, names)):
        found.update(value.__module__ for value in space.values() if _is_source(value))
    return tuple(sorted(filter(_is_open, found)))


def _spaces_of(names: Iterable[str]) -> list[dict[str, Any]]:
    """What Python modules of these names have, by name."""
    return [vars(sys.modules[name]) for name in names if name in sys.modules]


def _is_open(name: str) -> bool:
    """True for a Python module that may have functions of a model: none of torch, NumPy or Python."""
    root = name.partition(".")[0]
    return root not in _LIBRARIES and root not in sys.stdlib_module_names


def _is_cache(value: Any) -> bool:
    """True for a function that remembers its results, and may be one of a model."""
    return isinstance(value, functools._lru_cache_wrapper) and _is_open(str(value.__module__))


def _is_source(value: Any) -> bool:
    kinds = (type, FunctionType, MethodType, functools._lru_cache_wrapper)
    is_source = isinstance(value, kinds)
    return is_source and isinstance(value.__module__, str)


@functools.lru_cache(maxsize=64)
def _caches_of(names: tuple[str, ...]) -> tuple[Cache, ...]:
    """The functions of some Python modules, and of the classes in them, that remember results."""
    spaces = _spaces_of(names)
    classes = [value for space in spaces for value in space.values() if isinstance(value, type)]
    found = [
        cache
        for space in (*spaces, *map(vars, classes))
        for value in list(space.values())
        for cache in _behind(value)
    ]
    return tuple({id(cache): cache for cache in found}.values())


def _behind(value: Any, depth: int = 3) -> Iterator[Cache]:
    """The cache that a value is, or that it calls: a decorator keeps it in its closure."""
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if _is_cache(value):
        yield value
    elif isinstance(value, FunctionType) and depth:
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _behind(cell.cell_contents, depth - 1)


def _tables_of(names: tuple[str, ...]) -> Iterator[tuple[Table, Table]]:
    """The tables in reach of some Python modules, each with what it holds: the names of the modules, dicts and
    lists, and attributes of objects that are no modules of torch.
    """
    spaces, roots = _roots_of(names)
    yield from ((space, space.copy()) for space in spaces)
    known: set[int] = set()
    waiting = [(root, 1) for root in roots]
    while waiting and len(known) < _MOST_TABLES:
        value, depth = waiting.pop()
        table = value if type(value) in (dict, list) else _attributes_of(value)
        if table is None or id(table) in known:
            continue
        known.add(id(table))
        yield table, table.copy()
        if depth < _DEEPEST:
            items = table.values() if isinstance(table, dict) else table
            waiting += [(one, depth + 1) for one in items if type(one) not in _PLAIN]


@functools.lru_cache(maxsize=64)
def _roots_of(names: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The names of some Python modules, and the objects that they had when this was asked first."""
    spaces = _spaces_of(names)
    roots: dict[int, Any] = {}
    for value in (one for space in spaces for one in space.values()):
        if type(value) in (dict, list) or _attributes_of(value) is not None:
            roots[id(value)] = value
    return spaces, list(roots.values())


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of a model's source, without any code of its class."""
    if isinstance(value, (type, torch.nn.Module, ModuleType)) or callable(
        getattr(type(value), "__get__", None)
    ):
        return None
    if not _is_open(str(getattr(type(value), "__module__", "torch"))):
        return None
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return table if type(table) is dict else None


def _forget_fakes(table: Table, held: Table) -> None:
    """Puts back what a table held in the place of tensors without values."""
    now, before = (one.values() if isinstance(one, dict) else one for one in (table, held))
    if len(table) == len(held) and all(map(operator.is_, now, before)):
        return
    if isinstance(table, list):
        fresh = [one for one in table if not any(one is other for other in held)]
        if any(map(_is_fake, fresh)):
            table[:] = held
        return
    assert isinstance(held, dict)
    for key, value in list(table.items()):
        if held.get(key, table) is value or not (_is_fake(value) or _is_fake(key)):
            continue
        if key in held:
            table[key] = held[key]
        else:
            del table[key]


def _is_fake(value: Any) -> bool:
    """True for a value with tensors without values, or with symbolic sizes."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, (FakeTensor, torch.SymInt)):
            return True
        tensors = [*leaf.buffers(), *leaf.parameters()] if isinstance(leaf, torch.nn.Module) else ()
        own = tensors or (_attributes_of(leaf) or {}).values()
        if any(isinstance(one, (FakeTensor, torch.SymInt)) for one in own):
            return True
    return False


def _keys_and_results(cache: Cache) -> Iterable[Any]:
    held = [value for value in gc.get_referents(cache) if value is not vars(cache)]
    return [list(value.items()) if type(value) is dict else value for value in held]
