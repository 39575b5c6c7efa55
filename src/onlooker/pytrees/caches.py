"""The caches of transformers as nodes of torch's pytrees: taken apart into leaves, and built again.

The leaves of a cache are the tensors of its layers (``key_0``, ``value_0``, ``conv_states_0_0``
...) and the counters that a call changes (``cumulative_length_0``: an int in a sliding layer, a
tensor in a static one). The context of a cache of plain layers is the list of these names; any
other has a :class:`CacheContext`.

Building a cache makes no tensor and calls nothing of the layers. ``lazy_initialization()`` and
``update()`` would leave constants in the program when they run while torch traces a model, and
these break its conversion to ONNX. So a layer is made by ``__new__`` and its attributes are set.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any

import torch

from ..core.errors import MissingPackageError
from ..core.path import Attr, Index, Key, Path
from ..torch_internals.modes import without_dispatch_modes
from ..torch_internals.trees import torch_pytree
from .context import CacheContext, Mark, Opaque
from .layers import is_cache, is_layer, set_by_methods
from .nodes import ATOMS, qualified_name

__all__ = [
    "CacheKey",
    "cache_leaves",
    "cache_utils",
    "flatten_cache",
    "flatten_cache_with_keys",
    "unflatten_cache",
]

Context = list[str] | CacheContext

_WINDOW = "_sliding_window_tensor"
#: what a call reads and changes in a layer beside its counters; of the rest, tensors are leaves
_STATES = frozenset(
    {
        "keys",
        "values",
        "conv_states",
        "recurrent_states",
        "indexer_keys",
        "indexer_position_ids",
    }
)
_SIZES = {
    "batch_size": ("keys", 0),
    "num_heads": ("keys", 1),
    "k_head_dim": ("keys", -1),
    "v_head_dim": ("values", -1),
    "max_cache_len": ("keys", -2),
}


@dataclasses.dataclass(frozen=True, slots=True)
class CacheKey(torch_pytree.MappingKey[str, Any]):
    """A step to a leaf of a cache: printed as ``['key_0']``, followed as ``.layers[0].keys``.

    A program names its inputs and writes its guards with these keys: it knows no other kind of key,
    and finds a name in a guard only between brackets (``.key_1`` would be found in ``.key_10``).
    """

    path: Path = dataclasses.field(default_factory=Path)

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """The leaf, from the cache."""
        return self.path.follow(mapping)


@dataclasses.dataclass(slots=True)
class _Leaves:
    """Collects the leaves of a cache while it is taken apart."""

    names: list[str] = dataclasses.field(default_factory=list)
    paths: list[Path] = dataclasses.field(default_factory=list)
    values: list[Any] = dataclasses.field(default_factory=list)

    def take(self, value: Any, name: str, path: Path, is_state: bool = False) -> Any:
        """``value`` for the context, its leaves replaced by marks."""
        is_leaf = isinstance(value, torch.Tensor) or is_cache(value)
        if is_leaf or (is_state and not isinstance(value, (bool, dict, NoneType))):
            self.names.append(name)
            self.paths.append(path)
            self.values.append(value)
            return Mark.LEAF
        if type(value) is dict:
            return {
                k: self.take(v, f"{name}_{k}", path / Key(k), is_state) for k, v in value.items()
            }
        if type(value) in (list, tuple):
            return type(value)(
                self.take(v, f"{name}_{i}", path / Index(i)) for i, v in enumerate(value)
            )
        if isinstance(value, (*ATOMS, type, torch.dtype, torch.device)):
            return value
        return Opaque(qualified_name(type(value)), value)


def cache_utils() -> Any:
    """The module ``transformers.cache_utils``.

    :raises MissingPackageError: ``missing-package`` when transformers is not installed
    """
    try:
        return importlib.import_module("transformers.cache_utils")
    except ImportError as error:
        raise MissingPackageError(
            "The caches need the package transformers, which cannot be imported.",
            slug="missing-package",
            hint="Install it: pip install 'onlooker[transformers]'.",
        ) from error


def flatten_cache(cache: Any) -> tuple[list[Any], Context]:
    """The leaves of a cache, and what is needed to build it again.

    >>> from onlooker_compat.trees.make import make_dynamic_cache
    >>> cache = make_dynamic_cache([(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))])
    >>> leaves, context = flatten_cache(cache)
    >>> [tuple(leaf.shape) for leaf in leaves], context
    ([(1, 2, 3, 4), (1, 2, 3, 4)], ['key_0', 'value_0'])
    """
    leaves, context = _taken_apart(cache)
    return leaves.values, context


def flatten_cache_with_keys(cache: Any) -> tuple[list[tuple[CacheKey, Any]], Context]:
    """As :func:`flatten_cache`, each leaf with the step that leads to it.

    >>> from onlooker_compat.trees.make import make_dynamic_cache
    >>> cache = make_dynamic_cache([(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))])
    >>> [str(key) for key, _ in flatten_cache_with_keys(cache)[0]]
    ["['key_0']", "['value_0']"]
    """
    leaves, context = _taken_apart(cache)
    keys = map(CacheKey, leaves.names, leaves.paths)
    return list(zip(keys, leaves.values, strict=True)), context


def cache_leaves(cache: Any) -> dict[str, Any]:
    """The leaves of a cache by name; a cache that holds two caches gives these."""
    leaves, _ = _taken_apart(cache)
    return dict(zip(leaves.names, leaves.values, strict=True))


def unflatten_cache(
    values: Iterable[Any], context: Context, output_type: type | None = None
) -> Any:
    """The cache again, from other leaves.

    :param values: as many leaves as there are names in the context
    :param context: what :func:`flatten_cache` gave
    :param output_type: the class of the cache, ``DynamicCache`` by default
    """
    cls = cache_utils().DynamicCache if output_type is None else output_type
    state = context.state if isinstance(context, CacheContext) else _plain_state(cls, context)
    children = iter(values)
    cache = object.__new__(cls)
    for name, content in state.items():
        if name == "layers":
            cache.layers = [
                _build_layer(layer, attributes, children) for layer, attributes in content
            ]
        elif content is not Mark.DERIVED:
            setattr(cache, name, _fill(content, children, {}))
    if state.get("is_updated") is Mark.DERIVED:
        cache.is_updated = _updated(cache)
    return cache


def _taken_apart(cache: Any) -> tuple[_Leaves, Context]:
    leaves = _Leaves()
    state: dict[str, Any] = {}
    for name, value in vars(cache).items():
        path = Path((Attr(name),))
        if name == "layers":
            state[name] = [_layer_state(v, i, path / Index(i), leaves) for i, v in enumerate(value)]
        elif name == "is_updated" and value == _updated(cache):
            state[name] = Mark.DERIVED
        else:
            state[name] = leaves.take(value, name, path)
    if _grows_plain_layers(state):
        state["layer_class_to_replicate"] = cache_utils().DynamicLayer
    if state == _plain_state(type(cache), leaves.names):
        return leaves, leaves.names
    return leaves, CacheContext(tuple(leaves.names), state)


def _layer_state(layer: Any, index: int, path: Path, leaves: _Leaves) -> tuple[type, Any]:
    if not hasattr(layer, "__dict__"):
        return type(layer), Opaque(qualified_name(type(layer)), layer)
    state: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if name == _WINDOW:
            state[name] = Mark.WINDOW
        elif _is_derived(name, layer):
            state[name] = Mark.DERIVED
        else:
            label = {"keys": "key", "values": "value"}.get(name, name.strip("_"))
            is_state = _is_state(name, value, layer)
            state[name] = leaves.take(value, f"{label}_{index}", path / Attr(name), is_state)
    if state.get("keys") is Mark.LEAF and is_layer(layer):
        state["dtype"] = state["device"] = Mark.DERIVED
    return type(layer), state


def _is_state(name: str, value: Any, layer: Any) -> bool:
    """True for what a call changes, whatever a mapping has put into the place of a tensor or an int;
    only a static layer counts in a tensor before its first tokens come.
    """
    waits = not getattr(layer, "is_initialized", True)
    counts_in_tensor = name == "cumulative_length" and "max_cache_len" in vars(layer)
    if waits and not counts_in_tensor:
        return False
    cls: type = type(layer)
    is_setting = isinstance(value, (bool, list, tuple, torch.dtype, torch.device))
    return name in _STATES or (name in set_by_methods(cls) and not is_setting)


def _is_derived(name: str, layer: Any) -> bool:
    """True when ``name`` can be read from the tensors of the layer again."""
    if name in _SIZES:
        source = vars(layer).get(_SIZES[name][0])
        if source is None or name != "max_cache_len":
            return source is not None
        size, length = layer.max_cache_len, _size(source, -2)
        symbolic = isinstance(size, torch.SymInt) or isinstance(length, torch.SymInt)
        return length is None or symbolic or bool(size == length)
    if name.rpartition("_")[2] in ("dtype", "device"):
        return _source(name, vars(layer)) is not None
    return False


def _source(name: str, attributes: dict[str, Any]) -> Any:
    """The tensor that tells the ``dtype``, ``indexer_device`` ... of a layer."""
    if name.startswith("indexer_"):
        return attributes.get("indexer_keys")
    if attributes.get("keys") is not None:
        return attributes["keys"]
    states = (attributes.get("conv_states") or {}).values()
    return next((state for state in states if state is not None), None)


def _size(tensor: Any, dim: int) -> Any:
    shape = getattr(tensor, "shape", ())
    return shape[dim] if len(shape) > (dim if dim >= 0 else -dim - 1) else None


def _build_layer(cls: type, state: Any, children: Iterator[Any]) -> Any:
    if isinstance(state, Opaque):
        return state.value
    layer: Any = object.__new__(cls)
    for name, content in state.items():
        if content is not Mark.DERIVED:
            setattr(layer, name, _fill(content, children, state))
    for name, content in state.items():
        if content is Mark.DERIVED and name in _SIZES:
            source, dim = _SIZES[name]
            setattr(layer, name, _size(getattr(layer, source), dim))
        elif content is Mark.DERIVED:
            source_tensor = _source(name, vars(layer))
            setattr(layer, name, getattr(source_tensor, name.rpartition("_")[2], None))
    return layer


def _fill(content: Any, children: Iterator[Any], state: dict[str, Any]) -> Any:
    if content is Mark.LEAF:
        return next(children)
    if content is Mark.WINDOW:
        return _window_tensor(state["sliding_window"])
    if isinstance(content, Opaque):
        return content.value
    if isinstance(content, dict):
        return {key: _fill(child, children, state) for key, child in content.items()}
    if type(content) in (list, tuple):
        return type(content)([_fill(child, children, state) for child in content])
    return content


_windows: dict[int, torch.Tensor] = {}


def _window_tensor(window: int) -> torch.Tensor:
    """The tensor that a sliding layer keeps of its window, made once and outside of any trace."""
    if window not in _windows:
        with without_dispatch_modes():
            _windows[window] = torch.tensor(window, dtype=torch.long)
    return _windows[window]


def _updated(cache: Any) -> dict[int, bool]:
    """The flags of an encoder-decoder cache, as its cross-attention layers tell them."""
    layers = getattr(cache.cross_attention_cache, "layers", ())
    return {i: bool(getattr(layer, "is_initialized", False)) for i, layer in enumerate(layers)}


def _grows_plain_layers(state: dict[str, Any]) -> bool:
    """True for layers which are what the cache would append by itself: whether it may makes no
    difference.
    """
    layers = state.get("layers", [])
    return bool(layers) and all(cls is cache_utils().DynamicLayer for cls, _ in layers)


def _plain_state(cls: type, names: list[str]) -> dict[str, Any]:
    """The state of a cache that its names alone tell."""
    utils = cache_utils()
    if issubclass(cls, utils.EncoderDecoderCache):
        caches = ("self_attention_cache", "cross_attention_cache")
        return {**dict.fromkeys(caches, Mark.LEAF), "is_updated": Mark.DERIVED}
    static = issubclass(cls, utils.StaticCache)
    count = sum(name.startswith("key_") for name in names)
    leaves = ("keys", "values", "cumulative_length") if static else ("keys", "values")
    derived = ("dtype", "device", *_SIZES) if static else ("dtype", "device")
    layer: dict[str, Any] = {
        **dict.fromkeys(leaves, Mark.LEAF),
        **dict.fromkeys(derived, Mark.DERIVED),
        "is_initialized": True,
    }
    return {
        "layers": [(utils.StaticLayer if static else utils.DynamicLayer, layer)] * count,
        "layer_class_to_replicate": None if static else utils.DynamicLayer,
        "offloading": False,
    }
