"""Classes that torch's pytrees know for a while: registered on entry, taken back exactly on exit."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError
from ..core.support.kinds import check_kind
from ..core.support.locks import lock_of
from ..torch_internals.trees import fx_pytree, torch_pytree
from .caches import flatten_cache, flatten_cache_with_keys, unflatten_cache
from .context import dump_context, load_context

__all__ = [
    "register_class_flattening",
    "register_flattening_functions",
    "unregister_class_flattening",
]

Flatten = Callable[[Any], tuple[list[Any], Any]]
FlattenWithKeys = Callable[[Any], tuple[list[tuple[Any, Any]], Any]]
Unflatten = Callable[..., Any]


@dataclass(slots=True)
class _Ours:
    """A registration of this module: what it added, and what it covered."""

    node: Any
    covered: type | None
    holders: int = 1


_lock = lock_of(sys.modules[__name__])
_ours: dict[type, _Ours] = {}


def register_class_flattening(
    cls: type,
    f_flatten: Flatten,
    f_unflatten: Unflatten,
    f_flatten_with_keys: FlattenWithKeys,
    f_check: Callable[[], Any] | None = None,
) -> bool:
    """Registers a class with the pytrees of torch, so that ``torch.export`` takes it as an
    argument.

    :param cls: the class
    :param f_flatten: ``object -> (children, context)``
    :param f_unflatten: ``(children, context) -> object``
    :param f_flatten_with_keys: ``object -> ([(key, child), ...], context)``
    :param f_check: gives an object to take apart and build again at once
    :return: False when the class is registered already, which changes nothing
    :raises UsageError: ``flattening-check`` when the object of ``f_check`` does not come back;
        nothing is registered then

    >>> import torch
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> keys = [torch.utils._pytree.GetAttrKey(name) for name in "ab"]
    >>> register_class_flattening(
    ...     Pair,
    ...     lambda pair: ([pair.a, pair.b], None),
    ...     lambda children, context: Pair(*children),
    ...     lambda pair: (list(zip(keys, [pair.a, pair.b])), None),
    ... )
    True
    >>> torch.utils._pytree.tree_leaves(Pair(1, [2, 3]))
    [1, 2, 3]
    >>> unregister_class_flattening(Pair)
    """
    check_kind(cls, type, "cls", "a class")
    with _lock:
        if cls in torch_pytree.SUPPORTED_NODES:
            return False
        _add(cls, f_flatten, f_unflatten, f_flatten_with_keys)
        if f_check is not None:
            try:
                _check(cls, f_check())
            except BaseException:
                _remove(cls)
                raise
        return True


def unregister_class_flattening(cls: type) -> None:
    """Takes a class out of the pytrees of torch, whoever registered it.

    :raises UsageError: ``class-not-registered``, ``wrong-kind``
    """
    check_kind(cls, type, "cls", "a class")
    with _lock:
        if cls not in torch_pytree.SUPPORTED_NODES:
            raise UsageError(
                f"{cls.__module__}.{cls.__qualname__} is not registered with the pytrees of torch.",
                slug="class-not-registered",
            )
        _remove(cls)


@contextmanager
def register_flattening_functions(patch_transformers: Any = True) -> Iterator[Callable[[Any], Any]]:
    """Registers the caches of transformers with the pytrees of torch for the time of a ``with``
    block.

    A cache is flattened into ``[key_0, value_0, key_1, value_1, ...]``, an ``EncoderDecoderCache``
    into two caches. Sliding and static layers have their counter as a third leaf, linear attention
    layers their states; a dynamic layer that waits for its first tokens has no leaf. Blocks may be
    nested, and take back only what they added, also when the body raises.

    :param patch_transformers: False, or a text or flag that says none, registers nothing
    :return: gives a function that returns the inputs of a model as they are

    >>> import torch
    >>> from onlooker_compat.trees.make import make_dynamic_cache
    >>> cache = make_dynamic_cache([(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))])
    >>> with register_flattening_functions():
    ...     len(torch.utils._pytree.tree_leaves(cache))
    2
    >>> len(torch.utils._pytree.tree_leaves(cache))
    1
    """
    held: list[type] = []
    try:
        for cls, functions in _wanted(patch_transformers):
            if _hold(cls, functions):
                held.append(cls)
        yield _unchanged
    finally:
        for cls in reversed(held):
            _let_go(cls)


def _unchanged(inputs: Any) -> Any:
    return inputs


def _wanted(patch_transformers: Any) -> Iterator[tuple[type, tuple[Any, ...]]]:
    """The classes of transformers to register, with their functions; none when it is not
    installed.
    """
    asked = (
        patch_transformers.upper() if isinstance(patch_transformers, str) else patch_transformers
    )
    if not asked or asked in ("NONE", "FALSE", "0"):
        return
    try:
        utils = importlib.import_module("transformers.cache_utils")
        generic = importlib.import_module("transformers.utils.generic")
    except ImportError:  # then there is no cache either
        return
    for cls in dict.fromkeys([utils.Cache, *_derived(utils.Cache)]):
        unflatten = functools.partial(unflatten_cache, output_type=cls)
        yield cls, (flatten_cache, unflatten, flatten_cache_with_keys, dump_context, load_context)
    # transformers registers its outputs by itself, once; these were taken out by somebody else
    # since
    for cls in sorted(getattr(generic, "_registered_model_output_types", ()), key=str):
        if cls not in torch_pytree.SUPPORTED_NODES:
            yield (
                cls,
                (
                    _flatten_output,
                    functools.partial(_unflatten_output, cls),
                    _flatten_output_with_keys,
                ),
            )


def _derived(cls: Any) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from _derived(child)


def _flatten_output(output: Any) -> tuple[list[Any], list[str]]:
    return list(output.values()), list(output.keys())


def _flatten_output_with_keys(output: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
    return [(torch_pytree.MappingKey(k), v) for k, v in output.items()], list(output.keys())


def _unflatten_output(cls: type, values: Any, context: list[str]) -> Any:
    return cls(**dict(zip(context, values, strict=True)))


def _hold(cls: type, functions: tuple[Any, ...]) -> bool:
    """Registers the class, or counts one block more; False when somebody else registered it."""
    with _lock:
        if cls not in torch_pytree.SUPPORTED_NODES:
            _add(cls, *functions)
            return True
        if not _is_ours(cls):
            return False
        _ours[cls].holders += 1
        return True


def _let_go(cls: type) -> None:
    with _lock:
        if not _is_ours(cls):  # taken out, or replaced, inside the block
            return
        _ours[cls].holders -= 1
        if not _ours[cls].holders:
            _remove(cls)


def _is_ours(cls: type) -> bool:
    return cls in _ours and torch_pytree.SUPPORTED_NODES.get(cls) is _ours[cls].node


def _add(
    cls: type,
    flatten: Flatten,
    unflatten: Unflatten,
    flatten_with_keys: FlattenWithKeys,
    dump: Callable[[Any], Any] | None = None,
    load: Callable[[Any], Any] | None = None,
) -> None:
    # torch.fx has a table of its own: it compares structures exactly for a class that is not in
    # there
    name = f"{cls.__module__}.{cls.__qualname__}"
    covered = torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    torch_pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=dump,
        from_dumpable_context=load,
        flatten_with_keys_fn=flatten_with_keys,
    )
    _ours[cls] = _Ours(torch_pytree.SUPPORTED_NODES[cls], covered)


def _remove(cls: type) -> None:
    """Takes the class out of every table that torch keeps."""
    ours = _ours.pop(cls, None)
    with torch_pytree._NODE_REGISTRY_LOCK:
        del torch_pytree.SUPPORTED_NODES[cls]
        written = torch_pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
        names = torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
        if written is not None and names.get(written.serialized_type_name) is cls:
            del names[written.serialized_type_name]
            if ours is not None and ours.covered is not None:
                names[written.serialized_type_name] = ours.covered
        torch_pytree.CONSTANT_NODES.discard(cls)
    fx_pytree.SUPPORTED_NODES.pop(cls, None)
    fx_pytree.SUPPORTED_NODES_EXACT_MATCH.pop(cls, None)
    _remove_from_optree(cls)


def _remove_from_optree(cls: type) -> None:
    """Removes a class from the C++ pytrees, which torch fills when the package optree is installed."""
    pending = torch_pytree._cxx_pytree_pending_imports
    pending[:] = [(args, kwargs) for args, kwargs in pending if args[0] is not cls]
    if torch_pytree._cxx_pytree_imported:
        optree: Any = importlib.import_module("optree")
        with suppress(ValueError):
            optree.unregister_pytree_node(cls, namespace="torch")


def _check(cls: type, value: Any) -> None:
    """Takes an object apart and builds it again: same class, same leaves, same structure."""
    leaves, structure = torch_pytree.tree_flatten(value)
    again = torch_pytree.tree_unflatten(leaves, structure)
    leaves_again, structure_again = torch_pytree.tree_flatten(again)
    same = len(leaves) == len(leaves_again) and all(
        a is b for a, b in zip(leaves, leaves_again, strict=True)
    )
    if type(again) is not type(value) or not same or structure != structure_again:
        raise UsageError(
            f"A {cls.__qualname__} is not the same after it was taken apart and built again.",
            slug="flattening-check",
            hint=(
                "Look at f_flatten and f_unflatten: every child has to come back, in the same"
                " order."
            ),
        )
