"""Functions of torch that make a size a constant in a trace, and the ones that stand for them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.numbers import counted_places
from onlooker.repairs.numbers import sized_operators as sized
from onlooker.repairs.numbers.sized_operators import SizedOperators
from onlooker.repairs.trace_mode import reading

Function = Callable[[torch.Tensor], torch.Tensor]


def _between_tensors(x: torch.Tensor) -> torch.Tensor:
    """The places of rows whose number stands in a tensor, as detectors keep the sides of their levels."""
    (length,) = torch.as_tensor([x.shape[1]])
    return torch.linspace(0.5, length - 0.5, length)


def _last_set(value: Callable[[torch.Tensor], Any]) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, x.shape[1] - 1] = value(x)
        x[x.shape[0] - 1, ..., x.shape[1] // 2] = 7
        return x

    return function


#: name -> a function of a tensor, the shape that is watched, and which dimensions are its sizes
FUNCTIONS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "linspace": (lambda x: torch.linspace(0, 1, x.shape[1]) + x, (3, 24), (1,)),
    "linspace to a size": (lambda x: torch.linspace(0.5, x.shape[1] - 0.5, x.shape[1]) + x, (3, 24), (1,)),
    "logspace": (
        lambda x: torch.logspace(-1, 1.5, x.shape[1]) + torch.logspace(0, 3, x.shape[1], 2) + x,
        (3, 24),
        (1,),
    ),
    "fill_diagonal_": (lambda x: (x @ x.T).fill_diagonal_(0.5).sum(1, keepdim=True) + x, (6, 9), (0, 1)),
    "fill_diagonal_, wide and tall": (
        lambda x: (x * 2).fill_diagonal_(9) + (x.T * 1).fill_diagonal_(7).T,
        (6, 9),
        (0, 1),
    ),
    "linspace by tensors": (lambda x: _between_tensors(x) + x, (3, 24), (1,)),
    "multi_dot": (lambda x: torch.linalg.multi_dot([x, x.T, x, x.T.tanh()]), (6, 9), (0, 1)),
    "multi_dot of vectors": (lambda x: torch.linalg.multi_dot([x[0], x.T, x, x[-1]]) + x, (6, 9), (0, 1)),
    "interpolate by a factor": (
        lambda x: F.interpolate(x, scale_factor=(x.shape[2] // 2 + 0.1) / x.shape[2], mode="bilinear"),
        (3, 4, 12, 12),
        (2, 3),
    ),
    "interpolate by factors": (
        lambda x: F.interpolate(x, scale_factor=(20.1 / x.shape[2], 3.2), mode="bicubic"),
        (3, 4, 12, 10),
        (2, 3),
    ),
    "interpolate by a factor, with corners": (
        lambda x: F.interpolate(x, None, 7.5 / x.shape[2], mode="linear", align_corners=True),
        (3, 4, 24),
        (2,),
    ),
    "fftfreq": (lambda x: torch.fft.fftfreq(x.shape[1], d=0.1) + x, (3, 24), (1,)),
    "rfftfreq": (lambda x: torch.fft.rfftfreq(x.shape[1]) + torch.fft.rfft(x).abs(), (3, 24), (1,)),
    "hann_window": (lambda x: torch.hann_window(x.shape[1]) * x, (3, 24), (1,)),
    "hann_window, symmetric": (lambda x: torch.hann_window(x.shape[1], periodic=False) * x, (3, 24), (1,)),
    "hamming_window": (lambda x: torch.hamming_window(x.shape[1]) * x, (3, 24), (1,)),
    "hamming_window of others": (lambda x: torch.hamming_window(x.shape[1], False, 0.6, 0.4) * x, (3, 24), (1,)),
    "blackman_window": (lambda x: torch.blackman_window(x.shape[1]) * x, (3, 24), (1,)),
    "bartlett_window": (lambda x: torch.bartlett_window(x.shape[1]) * x, (3, 24), (1,)),
    "bartlett_window, symmetric": (lambda x: torch.bartlett_window(x.shape[1] + 1, False)[1:] * x, (3, 24), (1,)),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), x.shape[1]) + x, (3, 24), (1,)),
    "affine_grid": (
        lambda x: F.grid_sample(x, F.affine_grid(_turned(x), x.shape, align_corners=False), align_corners=False),
        (3, 4, 12, 10),
        (2, 3),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, padding=1), (3, 4, 24), (2,)),
    "max_pool1d of a module": (torch.nn.MaxPool1d(2, ceil_mode=True), (3, 4, 24), (2,)),
    "max_pool1d of all": (lambda x: F.max_pool1d(x, x.shape[2]), (3, 4, 24), (2,)),
    "max_pool2d of all": (lambda x: F.max_pool2d(x, x.shape[2:]), (3, 4, 12, 10), (2, 3)),
    "avg_pool1d of all": (lambda x: F.avg_pool1d(x, x.shape[2]), (3, 4, 24), (2,)),
    "avg_pool2d of all": (lambda x: F.avg_pool2d(x, x.shape[2:]), (3, 4, 12, 10), (2, 3)),
    "windows": (lambda x: x.unfold(1, x.shape[1] // 4, 2).sum(-1), (3, 24), (1,)),
    "windows that follow": (lambda x: x.unfold(1, x.shape[1] // 2, x.shape[1] // 2), (3, 24), (1,)),
    "windows at steps": (lambda x: x.unfold(-1, 3, x.shape[1] // 8).sum(-1), (3, 24), (1,)),
    "columns of windows": (lambda x: F.unfold(x, (x.shape[2] // 4, 2), stride=(1, 2)), (3, 4, 12, 10), (2, 3)),
    "max_pool1d of parts": (lambda x: F.max_pool1d(x, x.shape[2] // 4), (3, 4, 24), (2,)),
    "max_pool2d of parts": (lambda x: F.max_pool2d(x, (2, x.shape[3] // 2), (1, 2)), (3, 4, 12, 10), (2, 3)),
    "max_pool3d of lines": (lambda x: F.max_pool3d(x, (1, x.shape[3], 1)), (2, 3, 5, 6, 7), (2, 3, 4)),
    "avg_pool2d of lines": (lambda x: F.avg_pool2d(x, (1, x.shape[3])), (3, 4, 12, 10), (2, 3)),
    "avg_pool2d of parts": (lambda x: F.avg_pool2d(x, x.shape[2] // 4, 2, 0, False, True), (3, 4, 12, 12), (2, 3)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, x.shape[2] // 2), (3, 4, 24), (2,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, x.shape[3])), (3, 4, 12, 10), (3,)),
    "adaptive_max_pool3d of two sides": (
        lambda x: F.adaptive_max_pool3d(x, (3, None, 5)),
        (2, 3, 5, 6, 7),
        (2, 3, 4),
    ),
    "adaptive_max_pool2d of one side": (lambda x: F.adaptive_max_pool2d(x, (None, 1)), (3, 4, 12, 10), (2, 3)),
    "adaptive_max_pool2d of quarters": (
        lambda x: F.adaptive_max_pool2d(x, (x.shape[2] // 4, x.shape[3] // 3)),
        (3, 4, 12, 10),
        (2, 3),
    ),
    "adaptive_max_pool2d of all rows": (lambda x: F.adaptive_max_pool2d(x, (None, x.shape[3])), (3, 4, 12, 10), (2, 3)),
    "adaptive_max_pool2d of all rows, with places": (
        lambda x: F.adaptive_max_pool2d(x, (None, None), return_indices=True)[1] + x,
        (3, 4, 12, 10),
        (2, 3),
    ),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), (3, 24), (1,)),
    "take_along_dim, one row": (lambda x: x.take_along_dim(x.argsort(1)[:1], 1), (3, 24), (1,)),
    "triu_indices": (lambda x: x[0][torch.triu_indices(x.shape[1], x.shape[1], 1)[1]], (3, 24), (1,)),
    "tril_indices": (lambda x: x[0][torch.tril_indices(x.shape[1], x.shape[1], -2)].sum(0), (3, 24), (1,)),
    "product of a shape": (lambda x: x * x.shape[1:].numel() + x.size().numel(), (3, 4, 24), (2,)),
    "a column that is set": (_last_set(lambda x: x[:, 0] * 2), (3, 24), (1,)),
    "a column that is set to a number": (_last_set(lambda x: 0.5), (3, 24), (1,)),
    "a column that is set to one row": (_last_set(lambda x: x[:1, 0]), (3, 24), (1,)),
    "a column that is set to more dimensions": (_last_set(lambda x: x[:, 0][None, None]), (3, 24), (1,)),
    "kron": (lambda x: torch.kron(x, torch.tensor([[1.0, 2.0]])), (3, 24), (1,)),
}


def _even(x: torch.Tensor) -> torch.Tensor:
    """Half as many places, each the greatest of two."""
    return F.adaptive_max_pool2d(x[:, :, : x.shape[2] // 2 * 2], (x.shape[2] // 2, x.shape[3]))


@pytest.mark.parametrize("length", [1, 5, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 9])
def test_windows_are_those_of_torch(length: int, size: int, step: int) -> None:
    x = torch.randn(2, length, 3)
    if size > length:
        assert sized._unfolded(x, 1, size, step) is NotImplemented
        return
    assert torch.equal(sized._unfolded(x, -2, size, step), x.unfold(1, size, step))
    x = x[:, None]
    largest = sized._pooled(torch.amax, 2, *sized._OF_LARGEST)
    mean = sized._pooled(torch.mean, 2, *sized._OF_MEANS)
    assert torch.equal(largest(x, (size, 1), (step, 2), 0, 1), F.max_pool2d(x, (size, 1), (step, 2)))
    torch.testing.assert_close(mean(x, (size, 2), step, [0]), F.avg_pool2d(x, (size, 2), step))
    assert torch.equal(sized._columns_of_windows(x, (size, 2), stride=step), F.unfold(x, (size, 2), stride=step))


@pytest.mark.parametrize(
    "options",
    [{"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"return_indices": True}],
    ids=lambda options: next(iter(options)),
)
def test_other_windows_are_left_to_torch(options: dict[str, Any]) -> None:
    pool = sized._pooled(torch.amax, 2, *sized._OF_LARGEST)
    assert pool(torch.randn(1, 1, 6, 6), (2, 2), None, **options) is NotImplemented


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("shape", [(24, 12, 8), (6, 4, 2), (5, 4, 9)])
def test_adaptive_max_pools_have_the_bits_of_torch(dims: int, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, *shape[-dims:])
    pool = getattr(F, f"adaptive_max_pool{dims}d")
    for size in (1, 2, [1] * dims, *([[None] * (dims - 1) + [1]] if dims > 1 else [])):
        with reading(SizedOperators()):
            found = pool(x, size)
        assert torch.equal(found, pool(x, size))
    with reading(SizedOperators()):
        assert torch.equal(pool(x, 2, return_indices=True)[1], pool(x, 2, return_indices=True)[1])


@pytest.mark.parametrize("length", [1, 2, 5, 8, 17])
def test_rows_of_places_are_those_of_torch(length: int) -> None:
    x = torch.randn(3, length)
    for places in range(length + 3):
        rows = sized._rows_of_places(length, places, x.device)
        assert torch.equal(x[:, rows].amax(-1), F.adaptive_max_pool1d(x, places))


def test_windows_with_edges_of_a_size_are_those_of_torch() -> None:
    model = Uses(lambda x: F.max_pool2d(x, 2 * (x.shape[2] // 8) + 1, 1, x.shape[2] // 8))
    observer = InputObserver()
    with observer(model):
        model(torch.randn(1, 2, 16, 16))
    program, x = observer.export(), torch.randn(1, 2, 16, 16)
    torch.testing.assert_close(program(x), model(x), rtol=0, atol=0)


def test_places_of_adaptive_max_pools_are_a_size() -> None:
    model, observer = Uses(_even), InputObserver()
    with observer(model):
        for height in (12, 20):
            model(torch.randn(1, 2, height, height + 3))
    program = observer.export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for shape in ((1, 2, 7, 30), (3, 2, 40, 5)):
        x = torch.randn(*shape)
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=0)


def _turned(x: torch.Tensor) -> torch.Tensor:
    theta = torch.tensor([[0.8, 0.1, 0.0], [-0.1, 0.9, 0.2]])
    return theta.expand(x.shape[0], 2, 3)


class Uses(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _of(shape: tuple[int, ...], sizes: tuple[int, ...], more: int) -> torch.Tensor:
    """A tensor whose sizes are larger by ``more``."""
    return torch.randn([size + more * (dim in sizes) for dim, size in enumerate(shape)])


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_size_stays_a_size(name: str) -> None:
    function, shape, sizes = FUNCTIONS[name]
    model, observer = Uses(function), InputObserver()
    with observer(model):
        for more in (0, 2):
            model(_of(shape, sizes, more))
    program = observer.export()
    assert program.verify().verified
    if not name.endswith(("one_hot", "of all")) and not name.startswith(
        ("interpolate", "linspace by", "fill_diagonal_, wide")
    ):
        assert len(program.graphs) == 1
    for more in (-3, 1, 7):
        x = _of(shape, sizes, more)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.one_in(2)
def test_torch_makes_the_size_a_constant(name: str) -> None:
    """Where this fails, torch keeps the size, and the function may go from the module."""
    function, shape, sizes = FUNCTIONS[name]
    spec = (dict.fromkeys(sizes, torch.export.Dim.AUTO),)
    program = torch.export.export(Uses(function), (_of(shape, sizes, 0),), dynamic_shapes=spec)
    (x,) = (n for n in program.graph.nodes if n.op == "placeholder" and n.name == "x")
    fixed = any(isinstance(x.meta["val"].shape[dim], int) for dim in sizes)
    assert fixed or any(" == " in guard for guard in program._guards_code)


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.randn((2, n), generator=None),
        lambda n: torch.rand(2, n, generator=None, dtype=torch.float64),
        lambda n: torch.randint(0, 9, (2, n), generator=None),
        lambda n: torch.randperm(n, generator=None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*random-numbers")
def test_numbers_are_drawn_for_a_size_without_a_generator(draw: Callable[[int], torch.Tensor]) -> None:
    model, observer = Uses(lambda x: x + draw(x.shape[1])), InputObserver()
    with observer(model):
        model(torch.ones(2, 24))
    program = observer.export()
    for size in (7, 31):
        torch.manual_seed(3)
        expected = model(torch.ones(2, size))
        torch.manual_seed(3)
        torch.testing.assert_close(program(torch.ones(2, size)), expected, rtol=0, atol=0)


def counted(x: torch.Tensor) -> torch.Tensor:
    """The rows of each label, of which there are as many as the values say."""
    return F.one_hot(x.abs().amax(1).long()).float().mT @ x


def test_the_classes_of_one_hot_are_as_many_as_the_values_say() -> None:
    model, observer = Uses(counted), InputObserver()
    calls = [torch.tensor(rows).float() for rows in ([[0, 2], [1, 0]], [[3, 1], [0, 0], [2, 1]])]
    with observer(model):
        for call in calls:
            model(call)
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    for rows in ([[0.0, 0.0]], [[7.0, 1.0], [0.0, 2.0]], [[1.0, 0.0]] * 5):
        torch.testing.assert_close(program(torch.tensor(rows)), model(torch.tensor(rows)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([part.sum(1) for part in torch.tensor_split(x, 3, 1)]),
        lambda x: x.tensor_split(2)[0],
        lambda x: x.cov(correction=0),
        torch.corrcoef,
        lambda x: torch.combinations(x[0]).sum(1),
    ],
    ids=["parts", "parts of rows", "cov", "corrcoef", "combinations"],
)
@pytest.mark.one_in(2)
def test_parts_and_covariances_of_any_size_are_one_graph(function: Function) -> None:
    model, observer = Uses(function), InputObserver()
    with observer(model):
        for shape in ((3, 7), (4, 9)):
            model(torch.randn(shape))
    program = observer.export()
    assert program.verify().verified
    for columns in (4, 5, 6, 12):
        x = torch.randn(5, columns)
        torch.testing.assert_close(program(x), model(x))


def _contract_path(equation: str, *operands: Any, shapes: bool = False, optimize: object = "") -> tuple[Any, str]:
    """Reads sizes as the package opt_einsum does, and takes the last two tensors first."""
    sizes = [int(size) for operand in operands for size in (operand if shapes else operand.shape)]
    assert len(sizes) >= len(operands)
    return [(n - 1, n) for n in range(len(operands) - 1, 0, -1)], equation


@pytest.mark.parametrize("in_a_list", [False, True])
def test_the_order_of_products_is_that_of_the_example(in_a_list: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: Any = torch.backends.opt_einsum
    package = types.SimpleNamespace(contract_path=_contract_path)
    monkeypatch.setitem(orders.get_opt_einsum.__globals__, "_opt_einsum", package)
    monkeypatch.setitem(orders.get_opt_einsum.__globals__, "enabled", True)
    monkeypatch.setitem(orders.get_opt_einsum.__globals__, "strategy", "auto")
    monkeypatch.setattr(orders, "is_available", lambda: True)

    def product(x: torch.Tensor) -> torch.Tensor:
        operands = (x, x.tanh(), x.cos())
        return torch.einsum("ab,cb,cd->ad", *([operands] if in_a_list else operands))

    model, observer = Uses(product), InputObserver()
    with observer(model):
        for shape in ((2, 4), (3, 5)):
            model(torch.randn(shape))
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    x = torch.randn(7, 6)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.filterwarnings("ignore:where received a uint8:UserWarning")
@pytest.mark.parametrize("method", [False, True])
def test_bytes_choose_as_bools_do(method: bool) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        mask = (x > 0).byte()
        return x.where(mask, -x) if method else torch.where(mask, x, -x)

    model, observer = Uses(chosen), InputObserver()
    with observer(model):
        for rows in (2, 3):
            model(torch.randn(rows, 4))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(5, 4)
    assert torch.equal(program(x), model(x))


def test_distances_of_few_and_of_many_rows_are_one_graph() -> None:
    """torch takes a product beyond 25 rows, and decides that when a trace is made."""
    model, observer = Uses(lambda x: torch.cdist(x.mT, 2 * x.mT)), InputObserver()
    with observer(model):
        for rows in (6, 8):
            model(torch.randn(3, rows))
    program = observer.export()
    assert program.verify().verified
    for rows in (1, 25, 26, 90):
        x = torch.randn(3, rows)
        assert torch.equal(program(x), model(x))


@given(
    st.floats(-100, 100, width=32),
    st.floats(-100, 100, width=32),
    st.integers(0, 300),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(deadline=None)
def test_linspace_has_the_bits_of_torch(start: float, end: float, steps: int, dtype: torch.dtype) -> None:
    assert torch.equal(sized._linspace(start, end, steps, dtype=dtype), torch.linspace(start, end, steps, dtype=dtype))


@given(st.integers(1, 300), st.floats(0.01, 10))
@settings(deadline=None)
def test_frequencies_have_the_bits_of_torch(n: int, d: float) -> None:
    assert torch.equal(sized._fftfreq(n, d), torch.fft.fftfreq(n, d))
    assert torch.equal(sized._rfftfreq(n, d), torch.fft.rfftfreq(n, d))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(deadline=None)
def test_kron_has_the_bits_of_torch(left: list[int], right: list[int]) -> None:
    a, b = torch.randn(left), torch.randn(right)
    assert torch.equal(sized._kron(a, b), torch.kron(a, b))


@given(st.data())
@settings(deadline=None)
def test_take_along_dim_has_the_bits_of_torch(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    taken = [data.draw(st.sampled_from([1, size])) for size in shape]
    taken[dim] = data.draw(st.integers(1, 5))
    x, indices = torch.randn(shape), torch.randint(shape[dim], taken)
    assert torch.equal(sized._take_along_dim(x, indices, dim), torch.take_along_dim(x, indices, dim))
    flat = torch.randint(math.prod(shape), (5,))
    assert torch.equal(sized._take_along_dim(x, flat), torch.take_along_dim(x, flat))


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(None, 0, 1), (1, 1, 1), ([2], [0], [2])])
def test_max_pool1d_has_the_bits_of_torch(stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> None:
    x = torch.randn(2, 3, 11)
    settings_ = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    with reading(SizedOperators()):
        found = F.max_pool1d(x, 3, **settings_)
    assert torch.equal(found, F.max_pool1d(x, 3, **settings_))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 45))
def test_triangles_have_the_places_of_torch(n: int, offset: int) -> None:
    assert torch.equal(counted_places.triu_indices(n, n, offset), torch.triu_indices(n, n, offset))
    assert torch.equal(counted_places.tril_indices(n, n, -offset), torch.tril_indices(n, n, -offset))


def test_the_last_places_of_large_triangles_are_exact() -> None:
    for n in (3_000, 1 << 20, (1 << 25) + 7):
        last = n * (n + 1) // 2 - 1
        lines = counted_places.line_of_triangle(torch.tensor([last - n, last - n + 1, last]))
        assert lines.tolist() == [n - 2, n - 1, n - 1]


def test_what_is_not_replaced_is_as_before() -> None:
    x = torch.randn(2, 3, 12)
    with reading(SizedOperators()):
        pooled, places = F.max_pool1d(x, 2, return_indices=True)
        assert torch.equal(pooled, F.max_pool1d(x, 2))
        assert torch.equal(places, F.max_pool1d(x, 2, return_indices=True)[1])
        assert torch.equal(torch.linspace(0, 5, 6, dtype=torch.int64), torch.arange(6))
        into = torch.empty(4, 24)
        torch.kron(torch.ones(2, 3), torch.ones(2, 8), out=into)
    assert torch.equal(into, torch.ones(4, 24))


class Compares(torch.nn.Module):
    """A shortcut for equal tensors, as a kernel of a Gaussian process has."""

    def __init__(self, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
        super().__init__()
        self.same = same

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.same(x, y):
            return x * 2
        return x - y


COMPARISONS = [torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose]


@pytest.mark.parametrize("same", COMPARISONS, ids=["equal", "x.equal", "allclose", "x.allclose"])
@pytest.mark.one_in(2)
def test_a_comparison_of_values_is_a_branch_on_values(same: Callable[[Any, Any], bool]) -> None:
    """torch's own export has no such operators: here each side is a graph, and a side without one is refused."""
    model, observer = Compares(same), InputObserver()
    x = torch.randn(3, 4)
    with observer(model):
        model(x, torch.randn(3, 4))
        model(torch.randn(5, 4), torch.randn(5, 4))
    program = observer.export()
    other = torch.randn(7, 4)
    torch.testing.assert_close(program(other, other + 1), model(other, other + 1))
    with pytest.raises(RejectedCallError, match="decides by values"):
        program(x, x.clone())


class Unflattens(torch.nn.Module):
    """Makes a layer with sizes, as MiDaS makes images of rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.Unflatten(2, torch.Size([x.shape[2] // 2, 2]))(x).sum(-1)


def test_a_layer_is_made_with_sizes() -> None:
    model, observer = Unflattens(), InputObserver()
    with observer(model):
        for length in (8, 12):
            model(torch.randn(2, 3, length))
    program = observer.export()
    assert program.verify().verified
    for length in (4, 10, 22):
        x = torch.randn(2, 3, length)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(TypeError, match="must be tuple of ints"):
        torch.nn.Unflatten(2, (2.5, 2))  # type: ignore[arg-type]
