"""An operator that a trace has met with the same sizes is not computed a second time.

torch finds the shape of every result with symbolic arithmetic, which is more than half of the time
of a trace. The layers of a model are alike: the second one runs the same operators on tensors of
the same dtypes, sizes and strides, and each result has the shape that the first one had. Such a
result is made from the shape that is known, and the node of the graph is recorded as ever.

Only shapes are remembered, within one trace and one graph. Every node has its own result, in memory
of its own. An operator whose result depends on values, writes to an argument, draws on a constant,
or is not one of torch's own, is always computed. Decisions about sizes are the same for the same
sizes, so that the second run of an operator would decide nothing new.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/proxy_tensor.py
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..patches.swap import swapped
from ..proofs.operators import facts_of
from ..torch_internals.fake_tensors import FakeTensor, in_kernel_invocation_manager
from ..torch_internals.graph_modules import nodes_of
from ..torch_internals.modes import WithoutFunctions
from ..torch_internals.operators import OpOverload
from ..torch_internals.sizes import free_unbacked_symbols
from ..torch_internals.tracing import proxy_tensor
from ..torch_internals.trees import torch_pytree
from .repair import Attempt, Repair, Retry

__all__ = ["REPEATED_OPERATORS", "Blank", "conversion_repeats", "operators_repeat"]

#: the message of an inner trace about the size of a memory that it does not know
_UNKNOWN_SIZE = "vr must not be None for symbol"
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


@contextlib.contextmanager
def operators_repeat() -> Iterator[None]:
    """Inside the block a trace of torch computes each operator once for the same sizes."""
    known = _Remembered()
    dispatch = proxy_tensor.ProxyTorchDispatchMode.__torch_dispatch__

    def remembered(
        mode: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        key = known.key(mode, func, args, kwargs or {})
        if key is None:
            return dispatch(mode, func, types, args, kwargs)
        shapes = known.results.get(key)
        if shapes is not None:
            return known.repeated(shapes, func, args, kwargs or {})
        result = dispatch(mode, func, types, args, kwargs)
        known.remember(key, func, result, (args, kwargs))
        return result

    with swapped(proxy_tensor.ProxyTorchDispatchMode, "__torch_dispatch__", remembered):
        yield


@contextlib.contextmanager
def conversion_repeats(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Inside the block a converter that traces a program again computes each operator once for the same
    sizes, also in runs that make no graph: there torch has a memory of its own, which is off in a
    trace of ours.
    """
    values = [node.meta.get("val") for node in nodes_of(program)]
    modes = {value.fake_mode for value in values if isinstance(value, FakeTensor)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(operators_repeat())
        for mode in modes:
            stack.enter_context(swapped(mode, "cache_enabled", True))
        yield


@dataclass(slots=True)
class _Remembered:
    """The shapes of results by operator and arguments, in one trace."""

    results: dict[Hashable, _Results] = field(default_factory=dict)
    #: the tracer of the graph; the body of a loop or a branch has another one
    tracer: Any = None

    def key(self, mode: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
        """Equal for calls whose results have the same shapes; None where the shapes depend on
        more than the arguments show.
        """
        if self.tracer is None:
            self.tracer = mode.tracer
        if (
            mode.tracer is not self.tracer
            or not facts_of(func).is_pure
            or torch.is_grad_enabled()
            or any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
        ):
            return None
        try:
            named = tuple((name, self._key_of(value)) for name, value in kwargs.items())
            return (func, torch.get_default_dtype(), self._key_of(args), named)
        except _NotComparableError:
            return None

    def _key_of(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return self._key_of_tensor(value)
        if isinstance(value, torch.SymInt):
            return ("size", value.node.expr)
        if isinstance(value, (list, tuple)):
            return tuple([self._key_of(item) for item in value])
        if isinstance(value, _PLAIN):
            return (type(value), value)
        raise _NotComparableError

    def _key_of_tensor(self, value: torch.Tensor) -> Hashable:
        if not _shows_its_shape(value) or value not in self.tracer.tensor_tracker:
            raise _NotComparableError
        return (
            value.dtype,
            value.device,
            _numbers(value.shape),
            _numbers(value.stride()),
            _numbers((value.storage_offset(),)),
        )

    def remember(self, key: Hashable, func: OpOverload, result: Any, given: Any) -> None:
        """Keeps the shapes of a result that is made of tensors alone and stands in the graph as
        the result of ``func``, which may have become other operators.
        """
        several = isinstance(result, (list, tuple))
        tensors = result if several else (result,)
        if not all(_is_plain(tensor) and self._is_result(tensor, func) for tensor in tensors):
            return
        passed = [id(value) for value in torch_pytree.tree_leaves(given)]
        same = passed.index(id(result)) if id(result) in passed else None
        if same is None and any(id(tensor) in passed for tensor in tensors):
            return
        shapes = tuple(_Shape.of(tensor, self.tracer) for tensor in tensors)
        self.results[key] = _Results(shapes, type(result) if several else None, same)

    def _is_result(self, tensor: torch.Tensor, func: OpOverload) -> bool:
        tracked = proxy_tensor.get_proxy_slot(tensor, self.tracer, None)
        if tracked is None:
            return False
        node: Any = tracked.proxy.node
        if node.target is operator.getitem:
            node = node.args[0]
        return node.target is func

    def repeated(self, known: _Results, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Records the operator in the graph; gives new tensors of the known shapes."""
        tracer = self.tracer
        proxy_args = tuple([self._proxy_of(value) for value in args])
        proxy_kwargs = {key: self._proxy_of(value) for key, value in kwargs.items()}
        name = tracer.graph._target_to_str(func.overloadpacket.__name__)
        proxy = tracer.create_proxy("call_function", func, proxy_args, proxy_kwargs, name=name)
        made = [shape.fresh() for shape in known.shapes]
        if known.kind is None:
            [(result, value)] = made
            if known.same is not None:
                result = torch_pytree.tree_leaves((args, kwargs))[known.same]
            self._describe(proxy, result, value, known.shapes[0])
            return result
        proxy.node.meta["val"] = known.kind(value for _, value in made)
        for index, ((result, value), shape) in enumerate(zip(made, known.shapes, strict=True)):
            self._describe(proxy[index], result, value, shape)
        return known.kind(result for result, _ in made)

    def _proxy_of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return proxy_tensor.get_proxy_slot(value, self.tracer).proxy
        if isinstance(value, torch.SymInt):
            return proxy_tensor.fetch_sym_proxy(self.tracer)(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._proxy_of(item) for item in value])
        return value

    def _describe(self, proxy: Any, result: Any, value: Any, shape: _Shape) -> None:
        proxy.node.meta["val"] = value
        proxy.node.meta["tensor_meta"] = shape.described
        tracked = proxy_tensor._ProxyTensor(proxy, None)
        proxy_tensor.set_proxy_slot(result, self.tracer, tracked)


@dataclass(frozen=True, slots=True)
class _Results:
    """The shapes of the results of one operator.

    ``kind`` is the class of several results, None for one tensor; ``same`` is the number of the
    argument that the operator gives back as it is.
    """

    shapes: tuple[_Shape, ...]
    kind: type | None
    same: int | None


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape of one result, and the description of the tensor that torch writes into a graph."""

    blank: Blank
    described: Any

    @classmethod
    def of(cls, tensor: FakeTensor, tracer: Any) -> _Shape:
        """The shape of ``tensor``, which is recorded in the graph of ``tracer``."""
        node = proxy_tensor.get_proxy_slot(tensor, tracer).proxy.node
        return cls(Blank._of(tensor), node.meta["tensor_meta"])

    def fresh(self) -> tuple[FakeTensor, FakeTensor]:
        """A tensor of this shape in memory of its own, and a copy for the graph in that memory."""
        first, second = self.blank.fakes(2)
        return first, second


@dataclass(frozen=True, slots=True)
class Blank:
    """All of a tensor but its values: ``bytes`` is the size of its memory, ``mode`` that of a tensor
    of a trace.
    """

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    bytes: Any
    dtype: torch.dtype
    device: torch.device
    mode: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Blank | None:
        """The shape of a tensor; None for one that is more than its shape and its values."""
        is_real = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        is_real = is_real and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        with WithoutFunctions():  # the model does not ask
            is_recorded = tensor.requires_grad
        if is_recorded or not (is_real or _shows_its_shape(tensor)):
            return None
        return cls._of(tensor)

    @classmethod
    def _of(cls, tensor: torch.Tensor) -> Blank:
        return cls(
            tuple(tensor.shape),
            tensor.stride(),
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.dtype,
            tensor.device,
            getattr(tensor, "fake_mode", None),
        )

    def fresh(self) -> torch.Tensor:
        """A tensor of this shape in memory of its own, with any values."""
        if self.mode is not None:
            return self.fakes(1)[0]
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)

    def fakes(self, number: int) -> list[FakeTensor]:
        """Tensors of this shape in one memory of their own."""
        with in_kernel_invocation_manager(self.mode):
            blank = torch.Tensor._make_wrapper_subclass(
                _Blank,
                self.size,
                strides=self.stride,
                storage_offset=self.offset,
                dtype=self.dtype,
                device=torch.device("meta"),
                storage_size=self.bytes,
            )
            return [FakeTensor(self.mode, blank, self.device) for _ in range(number)]


class _Blank(torch.Tensor):
    """A tensor that has a shape and no values."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch has no types here
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} was called on the shape of a result")


class _NotComparableError(Exception):
    """An argument does not show all that the shapes of the results depend on."""


def _numbers(sizes: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple([size if type(size) is int else size.node.expr for size in sizes])


def _is_plain(value: Any) -> bool:
    return _shows_its_shape(value) and not value.requires_grad and not free_unbacked_symbols(value)


def _shows_its_shape(value: Any) -> bool:
    """True for a tensor without values, of which sizes and strides tell everything."""
    return (
        type(value) is FakeTensor
        and value.constant is None
        and value.real_tensor is None  # values decide in this trace: each result has its own
        and value.layout is torch.strided
        and not value.is_conj()
        and not value.is_neg()
    )


def _gives_up(attempt: Attempt) -> Retry | None:
    """Gives the shapes up where a trace inside of the trace, as that of ``flex_attention``, does not
    know the sizes of the memory of a part: the parts of one tensor share it, unless they are made anew.
    """
    is_unknown = attempt.error is not None and _UNKNOWN_SIZE in str(attempt.error)
    if not is_unknown or not REPEATED_OPERATORS.is_part_of(attempt.request):
        return None
    return Retry(attempt.request.without_repair(REPEATED_OPERATORS))


REPEATED_OPERATORS = Repair(
    "repeated operators",
    "torch finds the shape of every result with symbolic arithmetic, more than half of the"
    " time of a trace. Layers are alike: an operator on the same sizes has the shape that it"
    " had before.",
    until="tests/repairs/test_repeated_operators.py::test_further_layers_compute_no_shapes",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/proxy_tensor.py",
    always=True,
    failed=_gives_up,
    block=lambda _: operators_repeat(),
)
