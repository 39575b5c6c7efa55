"""Equal operators are computed once in a trace, and the graph is the one that torch makes."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._sympy.functions import FloorDiv

from onlooker import InputObserver, RejectedCallError
from onlooker.patches.swap import swapped
from onlooker.repairs.numbers.quick_quotients import quotients_made_quickly
from onlooker.repairs.quick_nodes import nodes_made_quickly
from onlooker.repairs.repeated_operators import Blank, operators_repeat

AUTO = torch.export.Dim.AUTO


class Layers(nn.Module):
    """Layers that do the same, one after the other."""

    def __init__(self, layer: Any, count: int = 3) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        for line in self.lines:
            x = self.layer(line, x)
        return x


def plain(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + line(x).relu().transpose(0, 1).contiguous().transpose(0, 1)


def parts(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    first, second = line(x).chunk(2, dim=-1)
    values, _ = torch.cat((second, first), dim=-1).sort(dim=-1)
    return values.unsqueeze(1).expand(-1, 2, -1, -1).sum(1)


def written(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    kept, other = line(x), line(x)
    kept[:, 0].mul_(3.0)
    kept.add_(other.transpose(0, 1).transpose(0, 1))
    return kept - other


def own_argument(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return line(x.to(torch.float32).contiguous()).to(x.device)


def reshaped(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    flat = line(x).clone()
    flat.resize_(flat.shape[0], flat.shape[1], 8)
    flat.unsqueeze_(0)
    return flat.squeeze(0) * torch.arange(x.shape[1], dtype=x.dtype)[:, None] + x


def by_values(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = line(x).flatten()
    return x + found[found > 0].sum() + torch.tensor([1.0, 2.0]).sum()


def with_branch(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def double(y: torch.Tensor) -> torch.Tensor:
        return line(y) * 2

    return torch.cond(x.sum() > 0, double, lambda y: line(y) - 1, (x,))


def in_both_types(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = line(x)
    return line(x) + low.float()


def twice(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.stack((line(x), x)).mean(0).double().float() + torch.zeros(x.shape[0], 1, 8)


LAYERS = [plain, parts, written, own_argument, reshaped, by_values, with_branch, in_both_types, twice]


def exported(model: nn.Module, block: Any) -> torch.export.ExportedProgram:
    with block(), torch.no_grad():
        return torch.export.export(model, (torch.randn(3, 5, 8),), dynamic_shapes=({0: AUTO, 1: AUTO},), strict=False)


def nodes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """The nodes of a graph, without the memory formats of their results, which are left out."""
    return [
        (
            node.op,
            str(node.target),
            len(node.all_input_nodes),
            str(node.meta.get("val")),
            re.sub(r"memory_format=[\w.]+", "", str(node.meta.get("tensor_meta"))),
        )
        for node in program.graph.nodes
    ]


def stacks(program: torch.export.ExportedProgram) -> list[str]:
    """The frames of every node; torch numbers the code that it makes itself."""
    return [re.sub(r"eval_with_key>\.\d+", "", node.meta.get("stack_trace") or "") for node in program.graph.nodes]


@contextlib.contextmanager
def quickly() -> Any:
    with operators_repeat(), nodes_made_quickly():
        yield


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "layer", [pytest.param(one, marks=pytest.mark.slow if one is with_branch else ()) for one in LAYERS]
)
def test_the_graph_is_the_one_that_torch_makes(layer: Any) -> None:
    torch.manual_seed(0)
    model = Layers(layer).eval()
    quick, known = exported(model, quickly), exported(model, contextlib.nullcontext)
    assert nodes(quick) == nodes(known)
    assert stacks(quick) == stacks(known)
    for sizes in ((3, 5), (4, 7), (2, 2)):
        x = torch.randn(*sizes, 8)
        with torch.no_grad():
            torch.testing.assert_close(quick.module()(x), model(x))


@pytest.mark.parametrize("layer", [plain, parts, own_argument, twice])
@pytest.mark.one_in(2)
def test_further_layers_compute_no_shapes(layer: Any) -> None:
    def computed(count: int) -> int:
        found = 0
        dispatch = FakeTensorMode.dispatch

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal found
            found += 1
            return dispatch(*args, **kwargs)

        with swapped(FakeTensorMode, "dispatch", counted):
            exported(Layers(layer, count).eval(), quickly)
        return found

    per_layer = (computed(12) - computed(4)) / 8
    assert per_layer <= 2  # the two parameters of a layer come in


def test_results_do_not_share_memory() -> None:
    seen: list[torch.Tensor] = []

    def noted(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append(line(x))
        return x + seen[-1]

    exported(Layers(noted).eval(), quickly)
    assert len({tensor.untyped_storage()._cdata for tensor in seen}) == len(seen) == 3


def test_a_trace_with_gradients_is_left_alone() -> None:
    def tracked(line: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            assert line(x).requires_grad
        return plain(line, x)

    exported(Layers(tracked).eval(), quickly)


def test_what_was_replaced_is_put_back() -> None:
    dispatch, frames = proxy_tensor.ProxyTorchDispatchMode.__torch_dispatch__, torch.fx.proxy.CapturedTraceback
    with pytest.raises(ZeroDivisionError), quickly():
        raise ZeroDivisionError
    assert proxy_tensor.ProxyTorchDispatchMode.__torch_dispatch__ is dispatch
    assert torch.fx.proxy.CapturedTraceback is frames


class Branches(nn.Module):
    """Two branches on values, which are computed in the same way from tensors of the same sizes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if (x > 0).all():
            return x + y
        return x - y if (y > 0).all() else x * y


def test_values_that_decide_are_computed_again() -> None:
    model, observer = Branches(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(-torch.rand(batch, length), torch.rand(batch, length))
    program = observer.export()
    x, y = -torch.rand(4, 6), torch.rand(4, 6)
    torch.testing.assert_close(program(x, y), model(x, y))
    for other in ((-x, y), (x, -y)):
        with pytest.raises(RejectedCallError):
            program(*other)


@pytest.mark.parametrize("is_fake", [False, True], ids=["real", "fake"])
def test_a_blank_tensor_has_all_of_another_one_but_its_values(is_fake: bool) -> None:
    with FakeTensorMode() if is_fake else contextlib.nullcontext():
        given = torch.randn(4, 6, dtype=torch.float64)[:, 1:].t()
        blank = Blank.of(given)
        assert blank is not None
        made = blank.fresh()
    assert type(made) is type(given)
    assert (made.shape, made.stride(), made.dtype, made.device) == (
        given.shape,
        given.stride(),
        given.dtype,
        given.device,
    )
    assert made.untyped_storage()._cdata != given.untyped_storage()._cdata


def test_what_is_more_than_its_shape_has_no_blank() -> None:
    assert Blank.of(torch.ones(3, requires_grad=True)) is None
    assert Blank.of(torch.ones(3, dtype=torch.complex64).conj()) is None
    assert Blank.of(torch.eye(3).to_sparse()) is None


def test_no_memory_format_is_looked_for_with_symbolic_sizes() -> None:
    program = exported(Layers(plain).eval(), quickly)
    results = [node for node in program.graph.nodes if node.op == "call_function" and "tensor_meta" in node.meta]
    assert results
    assert {node.meta["tensor_meta"].memory_format for node in results} == {None}


@pytest.fixture
def simplified(monkeypatch) -> list[Any]:
    """What torch has sympy simplify."""
    found: list[Any] = []
    simplify = sympy.simplify
    monkeypatch.setattr(sympy, "simplify", lambda value: found.append(value) or simplify(value))
    return found


def _sizes(*names: str) -> list[sympy.Symbol]:
    return [sympy.Symbol(name, integer=True, positive=True) for name in names]


def test_torch_simplifies_quotients_of_products(simplified: list[Any]) -> None:
    p, q, r = _sizes("p0", "q0", "r0")
    assert FloorDiv(6 * p * q, p * r) == FloorDiv(6 * q, r)
    assert simplified


def test_a_common_factor_is_divided_out_without_a_simplification(simplified: list[Any]) -> None:
    p, q, r = _sizes("p1", "q1", "r1")
    before = vars(FloorDiv)["eval"]
    with quotients_made_quickly():
        assert FloorDiv(6 * p * q, p * r) == FloorDiv(6 * q, r)
        assert FloorDiv(6 * p * q, p * q) == 6
        assert FloorDiv(2 * p * q + 4 * p, 2 * p * r) == FloorDiv(q + 2, r)
        side = FloorDiv(FloorDiv(q - 1, 2) + r, 4) + 1
        assert FloorDiv(12 * p * side, p * side) == 12
        assert FloorDiv(3 * side + 3, side + 1) == 3
        assert FloorDiv(4 * (2 * side + 2) * p, 8) == (side + 1) * p
        assert FloorDiv(5 * side + 5, 2 * side + 2) == 2
        assert FloorDiv(4 * p + 8 * q, 8) == FloorDiv(p, 2) + q
    assert not simplified
    assert vars(FloorDiv)["eval"] is before


@pytest.mark.parametrize("seed", range(4))
def test_quotients_are_those_of_numbers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q, r = _sizes(*(f"{name}{seed + 2}" for name in "pqr"))
    values = [q, q + 1, 2 * q + 2, FloorDiv(q, 2) + 1, 6 * FloorDiv(r, 2) + 6, r, 3 * r + q, 2 * p, p * r]
    for i in range(15):
        a, b, c, d = (values[k] for k in torch.randint(len(values), (4,), generator=generator).tolist())
        base, divisor = ((sympy.expand(a * b) + a * c, a * d), (a * b * c, a * d), (a * b, c + d))[i % 3]
        with quotients_made_quickly():
            quotient = FloorDiv(base, divisor)
        for sizes in ((2, 3, 5), (7, 4, 9), (3, 8, 2)):
            at = dict(zip((p, q, r), sizes, strict=True))
            expected = int(base.xreplace(at)) // int(divisor.xreplace(at))
            assert int(quotient.xreplace(at)) == expected, (base, divisor, at)


class Heads(nn.Module):
    """The heads of a detector: what three strides leave, as rows of boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(i, 6, 3, stride=2, padding=1) for i in (3, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for convolution in self.convolutions:
            x = convolution(x)
            batch, _, height, width = x.shape
            row = x.view(batch, -1, 2, height, width).permute(0, 3, 4, 1, 2)
            rows.append(row.reshape(batch, -1, 2))
        return torch.cat(rows, 1)


def test_heads_of_a_detector_need_no_simplification(simplified: list[Any]) -> None:
    model = Heads().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3, 32, 48))
        model(torch.randn(1, 3, 64, 40))
    program = observer.export()
    assert not simplified
    for shape in ((3, 3, 33, 47), (1, 3, 81, 36)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))


class FlexibleLayers(nn.Module):
    """Layers of ``flex_attention``, whose heads are parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(16, 48, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for line in self.lines:
            heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in line(x).chunk(3, -1)]
            x = x + flex_attention(*heads).transpose(1, 2).flatten(2)
        return x


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.slow
def test_layers_of_flexible_attention_take_any_batch() -> None:
    model, observer = FlexibleLayers().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 17, 16))
        model(torch.randn(3, 17, 16))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(5, 17, 16)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))


class Halves(torch.nn.Module):
    """Moves parts of the sides of an image to its channels, as a pixel shuffle does."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, channels = x.shape
        if height % self.part != 0 or width % self.part != 0:
            raise ValueError("no such sides")
        x = x.view(batch, width, int(height * self.part), int(channels / self.part)).permute(0, 2, 1, 3)
        sides = int(height * self.part), int(width * self.part)
        return x.reshape(batch, *sides, int(channels / self.part**2))


@pytest.mark.parametrize("part", [0.25, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_size_has_no_rest_by_a_part_of_one(part: float) -> None:
    model, observer = Halves(part).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for batch, side in ((2, 12), (3, 24)):
            model(torch.randn(batch, side, side, 4))
    program = observer.export()
    assert program.verify().verified
    for shape in ((1, 24, 12, 4), (4, 8, 36, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))


class Asks(torch.nn.Module):
    """Asks for the rest alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 0.5 == 0 else x


def test_torch_itself_finds_no_range_for_such_a_rest() -> None:
    """Once it does, ``Mod.eval`` need not be another one."""
    rows = torch.export.Dim.DYNAMIC
    with pytest.raises(Exception, match="Invalid ranges"):
        torch.export.export(Asks(), (torch.randn(6, 2),), dynamic_shapes=({0: rows},), strict=False)
