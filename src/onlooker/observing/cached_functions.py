"""Functions of a model's source that remember their results (``functools.lru_cache``).

A run on tensors without values leaves such tensors in the cache, or symbolic sizes as keys, and the
next call of the user would get them. They are forgotten when the run ends; a function that remembers
values alone keeps them, since it may be what makes an object unique. How much a function remembers
is state of the model, where its source asks (``cache_info``).

Source of what a cache shows to the garbage collector (its dictionary, or each key and result):
https://github.com/python/cpython/blob/v3.11.7/Modules/_functoolsmodule.c
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch

from ..patches.swap import swapped
from ..torch_internals.fake_tensors import FakeTensor
from ..torch_internals.trees import tree_leaves

__all__ = ["Cache", "cache_reads_are_told", "named_caches", "without_remembered_fakes"]

Cache: TypeAlias = "functools._lru_cache_wrapper[Any]"
#: asks a cache also where another function stands in its place
_INFO = functools._lru_cache_wrapper.cache_info
#: packages whose functions remember no tensor of a model
_LIBRARIES = frozenset({"numpy", "torch", __name__.partition(".")[0]})


@contextlib.contextmanager
def without_remembered_fakes(model: Any) -> Iterator[None]:
    """On exit no function of the model's source remembers a tensor without values that it did not
    remember before.
    """
    caches = _caches(model)
    before = [_INFO(cache).misses for cache in caches]
    try:
        yield
    finally:
        for cache, misses in zip(caches, before, strict=True):
            if _INFO(cache).misses != misses and _holds_fakes(cache):
                cache.cache_clear()


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
    """The names of the Python modules of the classes of a model, and of those that they have functions and
    classes from.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    classes = {cls for module in modules for cls in type(module).__mro__}
    return _sources_behind(tuple(sorted({cls.__module__ for cls in classes})))


@functools.lru_cache(maxsize=64)
def _sources_behind(names: tuple[str, ...]) -> tuple[str, ...]:
    own = [vars(sys.modules[name]) for name in filter(_is_open, names) if name in sys.modules]
    named = {value.__module__ for space in own for value in space.values() if _is_source(value)}
    return tuple(sorted(filter(_is_open, {*names, *named})))


def _is_open(name: str) -> bool:
    """True for a Python module that may have functions of a model: none of torch, NumPy or Python."""
    root = name.partition(".")[0]
    return root not in _LIBRARIES and root not in sys.stdlib_module_names


def _is_cache(value: Any) -> bool:
    """True for a function that remembers its results, and may be one of a model."""
    return isinstance(value, functools._lru_cache_wrapper) and _is_open(str(value.__module__))


def _is_source(value: Any) -> bool:
    is_source = isinstance(value, (type, FunctionType, functools._lru_cache_wrapper))
    return is_source and isinstance(value.__module__, str)


@functools.lru_cache(maxsize=64)
def _caches_of(names: tuple[str, ...]) -> tuple[Cache, ...]:
    """The functions of some Python modules, and of the classes in them, that remember results."""
    spaces = [vars(sys.modules[name]) for name in names if name in sys.modules]
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


def _holds_fakes(cache: Cache) -> bool:
    leaves = tree_leaves(_keys_and_results(cache))
    return any(isinstance(leaf, (FakeTensor, torch.SymInt)) for leaf in leaves)


def _keys_and_results(cache: Cache) -> Iterable[Any]:
    held = [value for value in gc.get_referents(cache) if value is not vars(cache)]
    return [list(value.items()) if type(value) is dict else value for value in held]
