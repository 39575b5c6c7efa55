"""Functions of torch that make a size a constant of the graph, written with others that do not.

Some functions take a number where they could take a size (``torch.linspace(0, 1, x.shape[1])``),
others are written in C++ with sizes that are numbers (``torch.max_pool1d``). Torch gives both the
number of the example, and the graph then holds for this size alone. While the block lasts they are
computed by functions that keep a size as it is, and that give the same bits.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/native_functions.yaml,
where the first ones take ``int`` for ``SymInt``. A function may go from here when the test of its
name in ``tests/repairs/test_sized_operators.py`` is exact without it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import sympy
import torch

from ...model_source.frames import frame_of_model
from ...torch_internals.operators import pad_sequence
from ...torch_internals.sizes import (
    expression_of,
    is_contiguous_or_false,
    is_less,
    statically_known_true,
)
from ...torch_internals.tracing import decompositions, refs
from ...torch_internals.trees import torch_pytree as pytree
from ..repair import Repair
from ..trace_mode import Reader, TraceMode
from .counted_places import SizesOfShape, combinations, is_counted, tril_indices, triu_indices
from .packed_sequences import PACKED
from .padded_rows import pad_sequence_of_values

__all__ = ["BASIC_ENTRIES", "SIZED_OPERATORS", "SizedOperators"]

_SHAPES = frozenset({torch.Tensor.shape.__get__, torch.Tensor.size})  # type: ignore[attr-defined]
#: the entries of a key that read no values
BASIC_ENTRIES = (int, torch.SymInt, slice, type(None), type(...))
#: an int or a SymInt: torch writes ``int`` where it takes both
Size = Any


class SizedOperators(Reader):
    """Inside the block the functions keep sizes as they are.

    With ``copies`` a tensor of which sizes decide whether it is contiguous is copied
    (:mod:`onlooker.repairs.memory_copies`).
    """

    def __init__(self, copies: bool = False) -> None:
        self._copies = copies

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Computes a function by another one that keeps sizes."""
        if func in _SHAPES:
            shape = func(*args, **kwargs)
            return (
                SizesOfShape(shape) if _has_sizes(shape) and is_counted(frame_of_model()) else shape
            )
        other = _ALWAYS.get(func)
        if func is torch.Tensor.contiguous and self._copies:
            other = _contiguous
        if other is None and func in _OF_SIZES and _has_sizes((args, kwargs)):
            other = _OF_SIZES[func]
        if other is None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        with TraceMode(self):  # one of them may use another
            result = other(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def _has_sizes(values: Any) -> bool:
    return any(
        isinstance(leaf.start if isinstance(leaf, slice) else leaf, torch.SymInt)
        for leaf in pytree.tree_leaves(values)
    )


def _linspace(
    start: Any, end: Any, steps: Size, *, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """From both ends to the middle, as the kernel does."""
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return NotImplemented
    place = torch.arange(steps, dtype=dtype, **options)
    first, last = (
        value.to(dtype)
        if isinstance(value, torch.Tensor)
        else torch.full((), value, dtype=dtype, **options)
        for value in (start, end)
    )
    step = (last - first) / torch.sym_max(steps - 1, 1)  # type: ignore[no-untyped-call]
    return torch.where(
        (place < steps // 2) | (place == 0),
        torch.addcmul(first, step, place),
        torch.addcmul(last, step, (steps - 1) - place, value=-1),
    )


def _linspace_to_a_size(start: Any, end: Any, steps: Any, **options: Any) -> Any:
    """``torch.linspace`` of as many steps as a size is, or a tensor that holds it."""
    if isinstance(steps, torch.Tensor):
        steps = steps.item()
    is_size = isinstance(steps, torch.SymInt)
    return _linspace(start, end, steps, **options) if is_size else NotImplemented


def _logspace_to_a_size(
    start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any
) -> Any:
    """``torch.logspace`` of as many steps as a size is: powers in doubles, as the kernel computes them."""
    places = _linspace_to_a_size(start, end, steps, **options)
    return places if places is NotImplemented else torch.pow(base, places.double()).to(places.dtype)


def _fill_diagonal(self: torch.Tensor, fill_value: Any, wrap: bool = False) -> Any:
    """``fill_diagonal_`` of one matrix."""
    if self.ndim != 2 or wrap:
        return NotImplemented
    self.diagonal().fill_(fill_value)
    return self


def _interpolated(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """``interpolate`` by factors that are computed of sizes, which torch makes numbers: one dimension after
    the other.
    """
    factors = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor]
    is_of_sizes = any(isinstance(factor, torch.SymFloat) for factor in factors)
    if not is_of_sizes or recompute_scale_factor or antialias or mode not in _NEIGHBOURS:
        return NotImplemented
    result = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    for dim, factor in zip(range(2, input.ndim), factors * (input.ndim - 2), strict=False):
        number = input.shape[dim]
        # as a value: a size of this form is in no proof, and each comparison of it would be a condition
        wanted: Any = torch.sym_int(number * factor)  # type: ignore[no-untyped-call]
        if isinstance(factor, torch.SymFloat):
            wanted = torch.ops.aten.scalar_tensor.default(wanted, dtype=torch.int64).item()
        place = torch.arange(wanted, dtype=result.dtype, device=input.device)
        if align_corners:
            place = place * ((number - 1) / torch.sym_max(wanted - 1, 1))  # type: ignore[no-untyped-call]
        else:
            place = (place + 0.5) * (1.0 / factor) - 0.5
        rows = [
            result.index_select(dim, row.clamp(0, number - 1).long())
            * share.reshape(-1, *[1] * (input.ndim - 1 - dim))
            for row, share in _NEIGHBOURS[mode](place)
        ]
        result = functools.reduce(torch.add, rows)
    return result.to(input.dtype)


def _two_neighbours(place: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The rows on both sides of a place, each with its share."""
    place = place.clamp(min=0)
    row = place.floor()
    return [(row, 1 - (place - row)), (row + 1, place - row)]


def _four_neighbours(place: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two rows on each side of a place, with the shares of a cubic convolution of -0.75."""
    row, a = place.floor(), -0.75
    part = (place - row).clamp(0, 1)

    def near(t: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: torch.Tensor) -> torch.Tensor:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    shares = far(part + 1), near(part), near(1 - part), far(2 - part)
    return [(row + step, share) for step, share in zip((-1, 0, 1, 2), shares, strict=True)]


#: by the mode of ``interpolate`` the rows that each place is made of, and their shares
_NEIGHBOURS: dict[str, Callable[[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]] = {
    **dict.fromkeys(("linear", "bilinear", "trilinear"), _two_neighbours),
    "bicubic": _four_neighbours,
}


def _fftfreq(n: Size, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    place = torch.arange(n, dtype=dtype or torch.get_default_dtype(), **options)
    is_positive = place < (n + 1) // 2
    step = torch.where(is_positive, place, place - n)  # of 5: 0 1 2 -2 -1
    return step * (1.0 / (n * d))


def _rfftfreq(n: Size, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    step = torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), **options)
    return step * (1.0 / (n * d))


def _window(shape_of: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A window of a size: ``shape_of`` gives it for its places, and for how many steps there are between the
    first one and the last.
    """

    def window(
        n: Size,
        periodic: bool = True,
        *of_kind: float,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> Any:
        place = torch.arange(n, dtype=dtype or torch.get_default_dtype(), **options)
        steps = n if periodic else torch.sym_max(n - 1, 1)  # type: ignore[no-untyped-call]
        return torch.where((place == 0) & (place == n - 1), 1.0, shape_of(place, steps, *of_kind))

    return window


def _cosine(place: torch.Tensor, steps: Size, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return (place * (math.pi * 2.0 / steps)).cos() * -beta + alpha


def _two_cosines(place: torch.Tensor, steps: Size) -> Any:
    place = place * (math.pi / steps)
    return (place * 4).cos() * 0.08 - (place * 2).cos() * 0.5 + 0.42


def _triangle(place: torch.Tensor, steps: Size) -> Any:
    scaled = place * (2.0 / steps)
    return torch.where(place <= steps // 2, scaled, 2 - scaled)


def _one_hot(tensor: torch.Tensor, num_classes: Size = -1) -> Any:
    if isinstance(num_classes, int):
        if num_classes != -1:
            return NotImplemented
        num_classes = tensor.max().item() + 1  # as many as the values say
        return torch.nn.functional.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)


def _contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Any:
    has_sizes = any(isinstance(size, torch.SymInt) for size in tensor.shape)
    if not has_sizes or memory_format is not torch.contiguous_format:
        return NotImplemented
    if is_contiguous_or_false(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _affine_grid(
    theta: torch.Tensor, size: Sequence[Size], align_corners: bool | None = None
) -> Any:
    return decompositions.affine_grid_generator(theta, size, bool(align_corners))


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The pooling of a picture of one line."""
    if return_indices:
        return NotImplemented
    kernel, step, edge, gap = map(_single, (kernel_size, stride, padding, dilation))
    pooled = torch.max_pool2d(
        input.unsqueeze(-2),
        (1, kernel),
        (1, kernel if step is None else step),
        (0, edge),
        (1, gap),
        ceil_mode,
    )
    return pooled.squeeze(-2)


def _numbers(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _of_each_dim(value: Any, dims: int) -> list[Any]:
    """A number for each dimension: one number stands for all of them."""
    numbers = _numbers(value)
    return numbers * dims if len(numbers) == 1 else numbers


def _are_all(value: Any, number: int) -> bool:
    """True for a number, or a list of numbers, that are known to be this one."""
    return all(statically_known_true(one == number) for one in _numbers(value))


def _single(value: Any) -> Any:
    """The number, or that of a list with one; None of an empty list."""
    return next(iter(_numbers(value)), None)


def _adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> torch.Tensor:
    lines = torch.nn.functional.adaptive_avg_pool2d(input.unsqueeze(-2), (1, _single(output_size)))
    return lines.squeeze(-2)


def _adaptive_max_pool(dims: int, *, returns: bool = False) -> Callable[..., Any]:
    """The pooling into as many places as sizes say, one dimension after the other. What ``returns`` the places too
    is left as it is, but for a pooling that keeps each row.
    """

    def pool(input: torch.Tensor, output_size: Any, return_indices: bool = returns) -> Any:
        sizes = _of_each_dim(output_size, dims)
        plain = all(isinstance(size, int) for size in sizes)
        if plain or len(sizes) != dims:
            return NotImplemented
        if all(map(_keeps, sizes, input.shape[-dims:])):
            return (input.clone(), _places_of(input, dims)) if return_indices else input.clone()
        if return_indices:
            return NotImplemented
        pooled = input
        for dim, size in zip(range(-dims, 0), sizes, strict=True):
            length = input.shape[dim]
            if _keeps(size, length):
                continue
            if statically_known_true(length % size == 0):
                pooled = torch.unflatten(pooled, dim, (size, length // size)).amax(dim)
                continue
            if not isinstance(size, int):
                rows = _rows_of_places(length, size, input.device)
                chosen = pooled.index_select(dim, rows.flatten())
                pooled = torch.unflatten(chosen, dim, rows.shape).amax(dim)
                continue
            rows = pooled.movedim(dim, -1)
            places = torch.nn.functional.adaptive_max_pool1d(rows.flatten(0, -2), size)
            pooled = torch.unflatten(places, 0, rows.shape[:-1]).movedim(-1, dim)
        return pooled

    return pool


def _keeps(size: Size | None, length: Size) -> bool:
    """True where a pooling into as many places gives a place for each row."""
    return size is None or bool(statically_known_true(size == length))


def _places_of(input: torch.Tensor, dims: int) -> torch.Tensor:
    """The place of each number in the last dimensions of its tensor, counted row by row."""
    shape = input.shape[-dims:]
    places = torch.arange(math.prod(shape), device=input.device).reshape(shape)
    return places.expand(input.shape).contiguous()


def _rows_of_places(length: Size, places: Size, device: torch.device) -> torch.Tensor:
    """The rows of each place that an adaptive pooling makes, (places, rows of the largest place); a smaller one
    has its last row again.

    Source: a place i is of the rows from floor(i * length / places) to ceil((i + 1) * length / places).
    """
    place = torch.arange(places, device=device).unsqueeze(1)
    most = length // getattr(torch, "sym_max")(places, 1) + 2  # noqa: B009  # without types
    last = ((place + 1) * length - 1) // places
    return torch.minimum(place * length // places + torch.arange(most, device=device), last)


def _pooled(reduce: Callable[..., torch.Tensor], dims: int, *options: str) -> Callable[..., Any]:
    """The pooling of windows whose sizes are sizes, which ``reduce`` makes a number each; ``options`` are the
    arguments after the padding.
    """

    def pool(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        *others: Any,
        **named: Any,
    ) -> Any:
        given = {**dict(zip(options, others, strict=False)), **named}
        given.pop("count_include_pad", None)
        is_plain = _are_all(padding, 0) and _are_all(given.pop("dilation", 1), 1)
        kernels = _of_each_dim(kernel_size, dims)
        steps = _of_each_dim(stride, dims) if _single(stride) is not None else kernels
        if not is_plain or any(given.values()):
            return NotImplemented
        windows = input
        for dim, size, step in zip(range(-dims, 0), kernels, steps, strict=True):
            windows = _unfolded(windows, input.ndim + dim, size, step)
            if windows is NotImplemented:
                return NotImplemented
        return reduce(windows, tuple(range(input.ndim, windows.ndim)))

    return pool


def _unfolded(tensor: torch.Tensor, dimension: int, size: Size, step: Size) -> Any:
    """``Tensor.unfold``: a view where the windows are all rows, each once, else rows by their places."""
    dim, length = dimension % tensor.ndim, tensor.shape[dimension]
    if size < 1 or step < 1 or size > length:
        return NotImplemented
    count, rows = (length - size) // step + 1, tensor
    is_whole = statically_known_true(size == length)
    is_next = statically_known_true(step == size)
    if not is_whole and not (is_next and statically_known_true(count * size == length)):
        first = torch.arange(count, device=tensor.device) * step
        places = first[:, None] + torch.arange(size, device=tensor.device)
        rows = tensor.index_select(dim, places.flatten())
    return torch.unflatten(rows, dim, (count, size)).movedim(dim + 1, -1)


def _columns_of_windows(
    input: torch.Tensor,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    """``torch.nn.functional.unfold``: the windows of a picture, each a column."""
    if not _are_all(padding, 0) or not _are_all(dilation, 1) or input.ndim != 4:
        return NotImplemented
    windows = input
    sizes = _of_each_dim(kernel_size, 2), _of_each_dim(stride, 2)
    for dim, size, step in zip((2, 3), *sizes, strict=True):
        windows = _unfolded(windows, dim, size, step)
        if windows is NotImplemented:
            return NotImplemented
    return windows.movedim((4, 5), (2, 3)).flatten(4).flatten(1, 3)


def _get_item(tensor: torch.Tensor, key: Any) -> Any:
    """``x[n : n + 8]``, without asking whether so many rows are left."""
    within = _within_rows(tensor, key)
    return NotImplemented if within is key else tensor[within]


def _within_rows(tensor: torch.Tensor, key: Any) -> Any:
    """The key with the end of the tensor for each slice of a plain number of rows that begins in the tensor and may
    end beyond it; the key itself where there is no such slice.
    """
    entries = key if isinstance(key, tuple) else (key,)
    if any(type(entry) not in BASIC_ENTRIES for entry in entries):
        return key
    n_given = sum(entry is not None and entry is not ... for entry in entries)
    dim, found = 0, list(entries)
    for place, entry in enumerate(entries):
        if isinstance(entry, slice) and isinstance(entry.start, torch.SymInt) and not entry.step:
            size, end = tensor.shape[dim], entry.stop
            width = None if end is None else sympy.sympify(expression_of(end - entry.start))
            is_window = width is not None and bool(width.is_Integer) and width > 0
            if is_window and not is_less(end, size + 1) and is_less(entry.start, size + 1):
                found[place] = slice(entry.start, torch.sym_min(end, size))  # type: ignore[no-untyped-call]
        dim += tensor.ndim - n_given if entry is ... else int(entry is not None)
    if all(one is other for one, other in zip(found, entries, strict=True)):
        return key
    return tuple(found)


def _set_item(tensor: torch.Tensor, key: Any, value: Any) -> Any:
    """``x[:, n] = value``: torch makes a number of a size in the key, though not where it reads."""
    within = _within_rows(tensor, key)
    if within is not key:
        tensor[within] = value
        return None
    entries = key if isinstance(key, tuple) else (key,)
    is_basic = all(type(entry) in BASIC_ENTRIES for entry in entries)
    if not is_basic or not any(isinstance(entry, torch.SymInt) for entry in entries):
        return NotImplemented
    place = tensor[key]
    if not isinstance(value, torch.Tensor):
        place.fill_(value)
        return None
    while value.ndim > place.ndim and statically_known_true(value.shape[0] == 1):
        value = value[0]
    place.copy_(value)
    return None


def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> Any:
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.ndim != indices.ndim:
        return NotImplemented
    dim %= input.ndim
    shapes = ([1 if d == dim else n for d, n in enumerate(t.shape)] for t in (input, indices))
    sizes = list(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    return input.expand([*sizes[:dim], input.shape[dim], *sizes[dim + 1 :]]).gather(
        dim, indices.expand([*sizes[:dim], indices.shape[dim], *sizes[dim + 1 :]])
    )


def _cdist(
    x1: torch.Tensor,
    x2: torch.Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Any:
    """The operator that decides when it runs whether there are more than 25 rows, as a product is
    faster then.
    """
    if p != 2 or compute_mode != "use_mm_for_euclid_dist_if_necessary":
        return NotImplemented
    return torch.ops.aten._cdist_forward(x1, x2, p, None)


def _tensor_split(input: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """Parts of which the first ones are longer, without asking how many these are."""
    if not isinstance(sections, int):
        return NotImplemented
    each, longer = input.shape[dim] // sections, input.shape[dim] % sections
    ends = [
        each * count + torch.sym_min(count, longer)  # type: ignore[no-untyped-call]
        for count in range(sections + 1)
    ]
    return tuple(torch.ops.aten.slice.Tensor(input, dim, *part) for part in pairwise(ends))


def _cov(input: torch.Tensor, *, correction: int = 1, **weights: Any) -> Any:
    """Of rows without weights; torch's own asks with ``equal`` whether they have two columns."""
    if any(weight is not None for weight in weights.values()):
        return NotImplemented
    rows = input if input.ndim == 2 else input.reshape(1, -1)
    count = rows.shape[1]
    apart = rows - (rows.sum(1) / count)[:, None]
    divisor = torch.sym_max(count - correction, 0)  # type: ignore[no-untyped-call]
    return (torch.mm(apart, apart.t().conj()) / divisor).squeeze()


def _corrcoef(input: torch.Tensor) -> Any:
    products = torch.cov(input)
    if not products.ndim:
        return products / products
    if products.is_complex():
        return NotImplemented
    root = products.diag().sqrt()
    return (products / root[:, None] / root).clamp(-1, 1)


def _kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dims = max(input.ndim, other.ndim)
    left = input.reshape((1,) * (dims - input.ndim) + tuple(input.shape))
    right = other.reshape((1,) * (dims - other.ndim) + tuple(other.shape))
    sizes = [a * b for a, b in zip(left.shape, right.shape, strict=True)]
    # (a, b) and (c, d) become (a, 1, b, 1) and (1, c, 1, d), whose product has all pairs
    for dim in range(dims):
        left, right = left.unsqueeze(2 * dim + 1), right.unsqueeze(2 * dim)
    return (left * right).reshape(sizes)


def _equal(input: torch.Tensor, other: torch.Tensor) -> Any:
    """A comparison of values, of which torch's own is no operator of a trace."""
    return tuple(input.shape) == tuple(other.shape) and bool((input == other).all())


def _allclose(input: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return bool(torch.isclose(input, other, *args, **kwargs).all())


def _without_generator(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The drawing of numbers with ``generator=None``, whose operator is another one than without it and
    takes no sizes.
    """

    def drawn(*args: Any, **options: Any) -> Any:
        if options.pop("generator", draw) is not None:
            return NotImplemented
        return draw(*args, **options)

    return drawn


def _where(condition: torch.Tensor, *values: Any, **named: Any) -> Any:
    """Of bytes, which torch takes for bools where tensors have values, and refuses in a trace."""
    is_bytes = isinstance(condition, torch.Tensor) and condition.dtype is torch.uint8
    if not is_bytes or not (values or named):
        return NotImplemented
    return torch.where(condition.bool(), *values, **named)


def _where_of_tensor(tensor: Any, condition: torch.Tensor, other: Any) -> Any:
    return _where(condition, tensor, other)


def _einsum(equation: Any, *operands: Any) -> Any:
    """With the order of products that is best for the example. The package ``opt_einsum``, which torch uses
    where it is installed, makes a number of each size.
    """
    (tensors,) = operands if isinstance(operands[0], (list, tuple)) else (operands,)
    orders: Any = torch.backends.opt_einsum
    package = orders.get_opt_einsum()
    if len(tensors) < 3 or package is None or not orders.enabled:
        return NotImplemented
    shapes = [tuple(map(_of_example, tensor.shape)) for tensor in tensors]
    pairs, _ = package.contract_path(equation, *shapes, shapes=True, optimize=orders.strategy)
    path = [place for pair in pairs for place in pair]
    return torch.ops.aten.einsum.default(equation, tensors, path=path)


def _multi_dot(tensors: Sequence[torch.Tensor], **options: Any) -> Any:
    """With the order of products that is best for the example; torch makes numbers of all sizes to choose one."""
    if options or len(tensors) < 3 or any(one.ndim not in (1, 2) for one in tensors):
        return NotImplemented
    (first, *_), (*_, last) = tensors, tensors
    chain = [first[None] if first.ndim == 1 else first, *tensors[1:-1]]
    chain.append(last[:, None] if last.ndim == 1 else last)
    sizes = [_of_example(size) for size in (*(one.shape[0] for one in chain), chain[-1].shape[1])]

    @functools.cache
    def cheapest(begin: int, end: int) -> tuple[int, int]:
        """The fewest products for some matrices, and where the last one parts them; of several, the first."""
        costs = [
            cheapest(begin, cut)[0] + cheapest(cut, end)[0] + sizes[begin] * sizes[cut] * sizes[end]
            for cut in range(begin + 1, end)
        ]
        return (min(costs), begin + 1 + costs.index(min(costs))) if costs else (0, begin)

    def product(begin: int, end: int) -> torch.Tensor:
        cut = cheapest(begin, end)[1]
        return torch.mm(product(begin, cut), product(cut, end)) if cut > begin else chain[begin]

    result = product(0, len(chain))
    result = result.select(0, 0) if first.ndim == 1 else result
    return result.select(-1, 0) if last.ndim == 1 else result


def _of_example(size: Size) -> int:
    """The size in the example, which is no condition of the graph."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(hint) if isinstance(hint, int) else 1


#: the arguments of functions of pooling after the padding
_OF_MEANS = "ceil_mode", "count_include_pad", "divisor_override"
_OF_LARGEST = "dilation", "ceil_mode", "return_indices"
#: replaced where a size is among the arguments
_OF_SIZES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _get_item,
    torch.Tensor.__setitem__: _set_item,
    torch.triu_indices: triu_indices,
    torch.tril_indices: tril_indices,
    torch.fft.fftfreq: _fftfreq,
    torch.fft.rfftfreq: _rfftfreq,
    torch.hann_window: _window(lambda place, steps: _cosine(place, steps, 0.5, 0.5)),
    torch.hamming_window: _window(_cosine),
    torch.blackman_window: _window(_two_cosines),
    torch.bartlett_window: _window(_triangle),
    torch.istft: refs.istft,
    torch.Tensor.istft: refs.istft,
    torch.nn.functional.avg_pool1d: _pooled(torch.mean, 1, *_OF_MEANS),
    torch.nn.functional.avg_pool2d: _pooled(torch.mean, 2, *_OF_MEANS),
    torch.nn.functional.avg_pool3d: _pooled(torch.mean, 3, *_OF_MEANS),
    torch.nn.functional.max_pool2d: _pooled(torch.amax, 2, *_OF_LARGEST),
    torch.max_pool2d: _pooled(torch.amax, 2, *_OF_LARGEST),
    torch.nn.functional.max_pool3d: _pooled(torch.amax, 3, *_OF_LARGEST),
    torch.max_pool3d: _pooled(torch.amax, 3, *_OF_LARGEST),
    torch.Tensor.unfold: _unfolded,
    torch.nn.functional.unfold: _columns_of_windows,
    **{
        draw: _without_generator(draw)
        for draw in (torch.rand, torch.randn, torch.randint, torch.randperm)
    },
}
#: replaced wherever they are used
_ALWAYS: dict[Any, Callable[..., Any]] = {
    torch.linspace: _linspace_to_a_size,
    torch.logspace: _logspace_to_a_size,
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    torch.nn.functional.interpolate: _interpolated,
    torch.nn.functional.affine_grid: _affine_grid,
    torch.affine_grid_generator: _affine_grid,
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    torch.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    **{
        getattr(torch.nn.functional, f"adaptive_max_pool{dims}d"): _adaptive_max_pool(dims)
        for dims in (1, 2, 3)
    },
    **{
        getattr(torch.nn.functional, f"adaptive_max_pool{dims}d_with_indices"): _adaptive_max_pool(
            dims, returns=True
        )
        for dims in (1, 2, 3)
    },
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.combinations: combinations,
    torch.cdist: _cdist,
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
    torch.kron: _kron,
    torch.Tensor.kron: _kron,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: _allclose,
    torch.Tensor.allclose: _allclose,
    torch.einsum: _einsum,
    torch.linalg.multi_dot: _multi_dot,
    torch.where: _where,
    torch.Tensor.where: _where_of_tensor,
    **PACKED,
    pad_sequence: pad_sequence_of_values,
}


SIZED_OPERATORS = Repair(
    "operators that keep sizes",
    "``torch.linspace(0, 1, x.shape[1])``, ``hann_window``, ``max_pool1d`` and others take a plain number where"
    " a size would do, and get that of the example. They are computed by functions that keep"
    " the size, and give the same bits. So is ``one_hot`` of as many classes as the values say. ``equal`` and"
    " ``allclose``, which are no operators of a trace, become branches on values; ``where`` has its bytes as bools,"
    " and ``einsum`` and ``multi_dot`` the order of products of the example. ``tensor_split`` does not ask how many of"
    " its parts are longer, nor ``cov`` and ``corrcoef`` whether there are two columns. ``triu_indices``,"
    " ``tril_indices`` and ``combinations`` of two are counted by their places, and ``x.shape.numel()`` is a product."
    " ``x[:, n] = value`` for a size ``n`` is written to that row of it. Windows that are as large as a size, of"
    " ``unfold``, ``avg_pool2d`` and ``max_pool2d``, are rows by their places."
    " ``torch.randn(sizes, generator=None)`` and others draw without the argument. Layers run on packed sequences by"
    " the places of their rows, since the kernels of torch loop over how many rows each step has.",
    until="upstream/torch_numbers_for_sizes.py",
    versions="2.13, 2.15",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/native_functions.yaml",
    always=True,
)
