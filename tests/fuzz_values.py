"""Random values for the laws: tensors of every kind, and trees and caches that hold them."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import cache_utils
from transformers.modeling_outputs import BaseModelOutput

__all__ = [
    "CACHES",
    "KINDS",
    "LAYERS",
    "Own",
    "caches",
    "end_group",
    "examples",
    "held",
    "layer_classes",
    "tensors",
    "trees",
]


def examples(count: int) -> settings:
    """So many examples of a law, and ten times as many in ``make fuzz``."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    quiet.append(HealthCheck.function_scoped_fixture)
    return settings(max_examples=count if settings().derandomize else 10 * count, suppress_health_check=quiet)


Pair = namedtuple("Pair", ["first", "second"])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


class Own(torch.Tensor):
    """A class of tensors of somebody else."""


@dataclasses.dataclass
class Plain:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    first: Any
    second: Any = None


class Thing:
    """A plain object: opened where it holds a tensor."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


def _numbers(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) - 2


def _quantised(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.quantize_per_tensor(_numbers(shape), 0.1, 2, torch.qint8)


def _per_channel(shape: tuple[int, ...]) -> torch.Tensor:
    values = _numbers((2, *shape))
    return torch.quantize_per_channel(values, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0, torch.quint8)


def _fake(shape: tuple[int, ...]) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape)


def _special(shape: tuple[int, ...]) -> torch.Tensor:
    """NaN and infinities beside numbers."""
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1.0])
    return values.repeat(torch.Size(shape).numel() // 5 + 1)[: torch.Size(shape).numel()].reshape(shape)


def _distributed(shape: tuple[int, ...], *, in_parts: bool) -> torch.Tensor:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Shard(0) if in_parts and shape else Replicate()
    return distribute_tensor(_numbers(shape), _one_process(), [placement])


def _one_process() -> Any:
    """The mesh of a group of this one process, which is made where there is none yet."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        atexit.register(end_group)
    return distributed.init_device_mesh("cpu", (1,))


def end_group() -> None:
    """Ends the group that distributed tensors have made in this process, so that another test can make its own."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _has_groups() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def _dense_dtypes() -> dict[str, torch.dtype]:
    """Every dtype of which torch makes and fills a plain tensor."""
    found = {}
    for dtype in vars(torch).values():
        if isinstance(dtype, torch.dtype):
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # complex32 is experimental
                torch.ones(2).to(dtype).clone()
                found[str(dtype).removeprefix("torch.")] = dtype
    return dict(sorted(found.items()))


DTYPES = _dense_dtypes()

#: the name of a kind, and what makes a tensor of it for a shape
KINDS: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    **{name: (lambda shape, dtype=dtype: _numbers(shape).to(dtype)) for name, dtype in DTYPES.items()},
    "special": _special,
    "packed": lambda shape: torch.ones((*shape, 2), dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "quantised": _quantised,
    "per channel": _per_channel,
    "sparse": lambda shape: _numbers((2, *shape)).to_sparse(),
    "not coalesced": lambda shape: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)),
    "csr": lambda shape: _numbers((3, 2)).to_sparse_csr(),
    "bsr": lambda shape: _numbers((4, 4)).to_sparse_bsr((2, 2)),
    "nested": lambda shape: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda shape: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "mkldnn": lambda shape: _numbers((2, 3)).to_mkldnn(),
    "meta": lambda shape: torch.empty(shape, device="meta"),
    "fake": _fake,
    "parameter": lambda shape: torch.nn.Parameter(_numbers(shape)),
    "frozen parameter": lambda shape: torch.nn.Parameter(_numbers(shape).int(), requires_grad=False),
    "buffer": lambda shape: torch.nn.Buffer(_numbers(shape)),
    "own": lambda shape: _numbers(shape).as_subclass(Own),
    "with gradient": lambda shape: _numbers(shape).requires_grad_() * 2,
    "expanded": lambda shape: torch.ones(1).expand(*shape, 3),
    "part": lambda shape: _numbers((4, 6))[1:3, ::2],
    "transposed": lambda shape: _numbers((2, *shape)).transpose(0, -1),
    "conjugate": lambda shape: _numbers(shape).to(torch.complex64).conj(),
    "negative": lambda shape: _numbers(shape).to(torch.complex64).conj().imag,
    "uninitialised parameter": lambda shape: torch.nn.UninitializedParameter(),
    "channels last": lambda shape: _numbers((1, 2, 3, 2)).to(memory_format=torch.channels_last),
    "far": lambda shape: torch.zeros(3, dtype=torch.int64) + 2**62,
}
if _has_groups():
    KINDS["distributed"] = functools.partial(_distributed, in_parts=True)
    KINDS["replicated"] = functools.partial(_distributed, in_parts=False)


def tensors(names: tuple[str, ...] = tuple(KINDS)) -> st.SearchStrategy[torch.Tensor]:
    """Tensors of these kinds, by default of all."""
    return st.builds(lambda name, shape: KINDS[name](shape), st.sampled_from(names), SHAPES)


NUMBERS = st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.complex_numbers(allow_nan=False)
ATOMS = st.none() | NUMBERS | st.text(max_size=4) | st.sampled_from([torch.float16, torch.device("meta"), b"x", Own])
KEYS = st.sampled_from(["a", "b", "a.b", "", "é\n"]) | st.integers(-1, 3)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(children, children)
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(KEYS, children, max_size=3),
        st.dictionaries(KEYS, children, max_size=3).map(OrderedDict),
        *(pairs.map(lambda pair, cls=cls: cls(*pair)) for cls in (Pair, Plain, Slotted, Thing)),
        children.map(lambda child: BaseModelOutput(torch.ones(2), hidden_states=(child,))),
        children.map(lambda child: [child, child]),
    )


def trees(leaves: st.SearchStrategy[Any] | None = None, max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Nested containers of tensors, numbers and texts; what is drawn once may stand at several places."""
    found = leaves if leaves is not None else tensors() | ATOMS
    return st.recursive(found, _containers, max_leaves=max_leaves)


#: the layer without tensors: transformers 5.20, the newest for Python 3.10, does not have it
DUMMIES: tuple[type, ...] = (cache_utils.DummyLayer,) if hasattr(cache_utils, "DummyLayer") else ()


def layer_classes() -> tuple[type, ...]:
    """The classes of the layers of caches that can be made without another package, as transformers has them."""
    bases = (cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin, *DUMMIES)
    found = [cls for cls in vars(cache_utils).values() if isinstance(cls, type) and issubclass(cls, bases)]
    return tuple(cls for cls in dict.fromkeys(found) if not inspect.isabstract(cls) and _is_made(cls))


def _is_made(cls: type) -> bool:
    try:
        _new_layer(cls, 4)
    except ImportError:
        return False
    return True


def _new_layer(cls: type, window: int) -> Any:
    return cls(sliding_window=window, max_cache_len=6, number_of_states=2) if _wants(cls) else cls()


def _wants(cls: type) -> bool:
    return any(p.kind is p.VAR_KEYWORD or p.name == "max_cache_len" for p in inspect.signature(cls).parameters.values())


LAYERS = layer_classes()
#: the classes of caches that are made of layers alone
CACHES = tuple(
    cls
    for cls in vars(cache_utils).values()
    if isinstance(cls, type) and issubclass(cls, cache_utils.Cache) and cls is not cache_utils.EncoderDecoderCache
)


@st.composite
def _layers(draw: st.DrawFn, cls: type, batch: int) -> Any:
    """A layer after some random calls, as a model would make them; an empty one where the layer refuses them."""
    layer = _new_layer(cls, draw(st.integers(2, 5)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    for operation in draw(st.lists(st.sampled_from(["update", "conv", "recurrent", "indexer", "reset"]), max_size=4)):
        tokens = draw(st.integers(1, 3))
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, IndexError, ValueError):
            _change(layer, operation, batch, tokens, dtype)
    return layer


def _change(layer: Any, operation: str, batch: int, tokens: int, dtype: torch.dtype) -> None:
    if operation == "update":
        layer.update(torch.rand(batch, 2, tokens, 4).to(dtype), torch.rand(batch, 2, tokens, 4).to(dtype))
    elif operation == "conv":
        layer.update_conv_state(torch.rand(batch, 3, 4).to(dtype), state_idx=tokens % 2)
    elif operation == "recurrent":
        layer.update_recurrent_state(torch.rand(batch, 2, 3, 4).to(dtype), state_idx=tokens % 2)
    elif operation == "indexer":
        layer.update_indexer(torch.rand(batch, tokens, 4).to(dtype))
    else:
        layer.reset()


@st.composite
def _flat_caches(draw: st.DrawFn, cls: type, batch: int) -> Any:
    cache = object.__new__(cls)
    classes = draw(st.lists(st.sampled_from(LAYERS), max_size=3))
    cache_utils.Cache.__init__(cache, layers=[draw(_layers(layer, batch)) for layer in classes])
    if cls is cache_utils.DFlashCache:
        cache._previous_number_of_accepted_tokens = draw(st.integers(0, 3))
    filled = [layer for layer in cache.layers if isinstance(getattr(layer, "keys", None), torch.Tensor)]
    alike = len({(type(layer), layer.dtype) for layer in filled[:2]}) == 1 < len(filled)
    if alike and draw(st.booleans()):  # layers that share what they hold
        filled[1].keys = filled[1].values = filled[0].keys
    return cache


@st.composite
def caches(draw: st.DrawFn) -> Any:
    """A cache of any class of transformers, of layers of any class."""
    batch = draw(st.integers(1, 2))
    cls = draw(st.sampled_from((*CACHES, cache_utils.EncoderDecoderCache)))
    if cls is not cache_utils.EncoderDecoderCache:
        return draw(_flat_caches(cls, batch))
    cache = cls(cache_utils.DynamicCache(), cache_utils.DynamicCache())
    cache.self_attention_cache = draw(_flat_caches(cache_utils.DynamicCache, batch))
    cache.cross_attention_cache = draw(_flat_caches(cache_utils.DynamicCache, batch))
    cache.is_updated = {i: draw(st.booleans()) for i in range(len(cache.cross_attention_cache.layers))}
    return cache


def held(value: Any) -> Iterator[tuple[str, Any]]:
    """All that a cache holds, by place: tensors themselves, of flags the type and the value."""
    yield from _held(value, "")


def _held(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    bases = (cache_utils.Cache, cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin)
    if isinstance(value, (*bases, *DUMMIES)):
        yield where, type(value)
        for name, child in vars(value).items():
            yield from _held(child, f"{where}.{name}")
    elif isinstance(value, (dict, list, tuple)):
        yield where, type(value)
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _held(child, f"{where}[{key!r}]")
    elif isinstance(value, torch.Tensor):
        yield where, value
    else:
        yield where, (type(value), value)
