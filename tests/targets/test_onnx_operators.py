"""Operators that torch's converter has no function for: what the experts of a mixture compute with, and the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.onnx._internal.exporter import _registration as registration
from transformers.integrations import moe
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError
from onlooker.targets.onnx.operators.missing import stop_of
from onlooker.targets.onnx.operators.table import functions_read_once, translations
from target_models import call, exported

GROUPS, INNER, WIDTH = 5, 16, 12
Run = Callable[..., torch.Tensor]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Experts(torch.nn.Module):
    """Rows times the weights of their groups, as a model of transformers asks for it."""

    def __init__(self, stored: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shape = (GROUPS, WIDTH, INNER) if stored == "transposed" else (GROUPS, INNER, WIDTH)
        self.weight = torch.nn.Parameter(rand(*shape).to(dtype))
        self.stored = stored

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        weight = self.weight.transpose(-2, -1) if self.stored == "transposed" else self.weight
        weight = weight * 2 if self.stored == "computed" else weight
        product = torch.ops.transformers.grouped_mm_fallback(rows.to(weight.dtype), weight, ends)
        return product.to(rows.dtype)


class Grouped(torch.nn.Module):
    """``torch.nn.functional.grouped_mm``, which torch exports in bfloat16 only."""

    def forward(self, left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.nn.functional.grouped_mm(left.bfloat16(), right.bfloat16(), offs=ends)
        return product.to(left.dtype)


def ends_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts).cumsum(0).int()


def converted_by_torch(
    model: torch.nn.Module, args: tuple[Any, ...], shapes: Any = None, opset: int | None = None
) -> torch.onnx.ONNXProgram:
    program = torch.export.export(model, args, dynamic_shapes=shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter calls what torch deprecates
        converted = torch.onnx.export(
            program, dynamo=True, verbose=False, opset_version=opset, custom_translation_table=translations()
        )
    assert converted is not None
    return converted


def in_onnx_runtime(model: torch.nn.Module, args: tuple[Any, ...], shapes: Any, opset: int | None = None) -> Run:
    converted = converted_by_torch(model, args, shapes, opset)
    assert not converted.model.functions
    assert opset is None or converted.model.opset_imports == {"": opset}
    session = onnxruntime.InferenceSession(
        converted.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]

    def run(*given: torch.Tensor) -> torch.Tensor:
        feed = {name: value.numpy() for name, value in zip(names, given, strict=True)}
        return torch.from_numpy(numpy.asarray(session.run(None, feed)[0]))

    return run


def experts_in_onnx(model: Experts, opset: int | None = None) -> Run:
    shapes = ({0: torch.export.Dim.DYNAMIC}, None)
    return in_onnx_runtime(model, (rand(7, INNER), ends_of([1, 2, 0, 3, 1])), shapes, opset)


counts = st.lists(st.integers(0, 4), min_size=GROUPS, max_size=GROUPS)


@pytest.mark.parametrize("stored", [pytest.param("transposed", marks=pytest.mark.slow), "computed"])
def test_the_experts_of_any_group_sizes_are_those_of_torch(stored: str) -> None:
    model = Experts(stored)
    run = experts_in_onnx(model)

    @settings(max_examples=30, deadline=None)
    @given(counts=counts, left=st.integers(0, 3))
    def agrees(counts: list[int], left: int) -> None:
        rows, ends = rand(sum(counts) + left, INNER), ends_of(counts)
        with torch.no_grad():
            expected = model(rows, ends)
        torch.testing.assert_close(run(rows, ends), expected)

    agrees()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("opset", [18, 21, 23])
def test_older_and_newer_opsets_have_the_experts(opset: int) -> None:
    model = Experts("transposed")
    run = experts_in_onnx(model, opset)
    for sizes in ([0, 0, 0, 0, 0], [0, 9, 0, 0, 0], [2, 1, 3, 1, 2]):
        rows, ends = rand(sum(sizes), INNER), ends_of(sizes)
        torch.testing.assert_close(run(rows, ends), model(rows, ends).detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.one_in(3)
def test_experts_of_every_dtype_of_weights(dtype: torch.dtype) -> None:
    """ONNX Runtime has no products in bfloat16 on the CPU, and sequences of ONNX cannot hold it: float32 is used."""
    model = Experts("transposed", dtype)
    rows, ends = rand(9, INNER), ends_of([3, 0, 4, 0, 2])
    within = {torch.float64: 1e-6, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(experts_in_onnx(model)(rows, ends), model(rows, ends).detach(), atol=within, rtol=within)


@pytest.mark.slow
def test_a_transposed_weight_is_in_the_model_once_and_never_as_a_whole_transposed() -> None:
    converted = converted_by_torch(Experts("transposed"), (rand(7, INNER), ends_of([1, 2, 0, 3, 1])))
    assert "Transpose" not in {node.op_type for node in converted.model.graph.all_nodes()}
    assert [tuple(v.shape.numpy()) for v in converted.model.graph.initializers.values() if len(v.shape) == 3] == [
        (GROUPS, WIDTH, INNER)
    ]


LAYOUTS = {
    "rows": ((None, INNER * 4), (GROUPS, INNER * 4, 8)),
    "columns": ((GROUPS, 8, INNER * 4), (INNER * 4, None)),
    "sums": ((8, None), (None, 16)),
    "one a group": ((GROUPS, None, 8), (GROUPS, 8, 16)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_grouped_mm_of_torch_in_all_its_layouts(layout: str) -> None:
    first, second = LAYOUTS[layout]

    def args(sizes: list[int]) -> tuple[torch.Tensor, ...]:
        shapes = [tuple(sum(sizes) if size is None else size for size in shape) for shape in (first, second)]
        left, right = (rand(*shape) for shape in shapes)
        return (left, right) if layout == "one a group" else (left, right, ends_of(sizes))

    axes = [{dim: torch.export.Dim.DYNAMIC for dim, s in enumerate(shape) if s is None} for shape in (first, second)]
    sizes = [8, 16, 8, 8, 16]
    run = in_onnx_runtime(Grouped(), args(sizes), (*axes, None)[: len(args(sizes))])
    for other in (sizes, [8, 0, 0, 24, 8], [0, 0, 0, 0, 16]):
        given = args(other)
        torch.testing.assert_close(run(*given), Grouped()(*given), atol=5e-2, rtol=5e-2)


def test_transformers_defines_no_operator_of_inference_that_is_not_translated() -> None:
    """When this fails, transformers has a new operator: give it a translation, or say here why it needs none."""
    assert moe is not None
    prefix = "transformers::"
    defined = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)}
    translated = {op.name() for op in translations() if isinstance(op, torch._ops.OpOverload)}
    assert defined - translated == {"transformers::grouped_mm_fallback_backward"}


def test_the_functions_of_the_converter_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last line fails, the converter of torch keeps what it has read: ``functions_read_once`` may go."""
    reads, read = [], registration.onnxscript_apis.get_torchlib_ops
    monkeypatch.setattr(registration.onnxscript_apis, "get_torchlib_ops", lambda: reads.append(1) or read())
    registry, name = registration.ONNXRegistry, "aten::add.Tensor"
    with functions_read_once():
        first = registry.from_torchlib().functions
        known = len(reads), list(first[name])
        first[name].clear()
        assert (len(reads), registry.from_torchlib().functions[name]) == known
    for _ in range(2):
        registry.from_torchlib()
    assert len(reads) == known[0] + 2


def mixture(experts: int = 6) -> torch.nn.Module:
    config = Qwen3MoeConfig(
        hidden_size=16, moe_intermediate_size=12, num_experts=experts, num_experts_per_tok=2, norm_topk_prob=True
    )
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    block = Qwen3MoeSparseMoeBlock(config).eval()
    for weight in block.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return block


class Sorted(torch.nn.Module):
    """Rows that choose their experts; an int chooses between two forms of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(INNER, INNER)
        self.plain, self.transposed = Experts("plain"), Experts("transposed")

    def forward(self, rows: torch.Tensor, form: int) -> torch.Tensor:
        groups = self.router(rows).argmax(-1) % GROUPS
        order = groups.argsort()
        ends = torch.nn.functional.one_hot(groups, GROUPS).sum(0).cumsum(0).int()
        experts = self.plain if form == 0 else self.transposed
        product: torch.Tensor = experts(rows[order], ends)
        return product[order.argsort()]


def watched(model: torch.nn.Module, *calls: tuple[Any, ...]) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for args in calls:
            model(*args)
    return observer.export()


@pytest.mark.slow
def test_a_mixture_of_experts_is_verified_on_sizes_it_never_saw_and_loaded(tmp_path: Path) -> None:
    model = mixture()
    program = watched(model, (rand(2, 7, 16),), (rand(3, 5, 16),)).to("onnx")
    assert program.verify().verified, program.report
    program.save(tmp_path / "kept")
    kept = onlooker.load(tmp_path / "kept")
    for shape in ((1, 1, 16), (1, 9, 16), (4, 1, 16), (5, 23, 16)):
        hidden = rand(*shape)
        with torch.no_grad():
            expected = model(hidden)
        torch.testing.assert_close(program(hidden), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(kept(hidden), expected, atol=1e-5, rtol=1e-5)


def test_experts_of_several_graphs_are_one_model(tmp_path: Path) -> None:
    """The bodies of the loops use what stands outside of them, in a branch that has names of its own."""
    model = Sorted().eval()
    program = watched(model, *((rand(rows, INNER), form) for form in (0, 1) for rows in (7, 5)))
    assert len(program.graphs) == 2
    program.to("onnx", merged=True).save(tmp_path / "kept")
    kept = onlooker.load(tmp_path / "kept")
    for form in (0, 1):
        for rows in (2, 11, 40):
            given = rand(rows, INNER)
            with torch.no_grad():
                torch.testing.assert_close(kept(given, form), model(given, form))


class Turned(torch.nn.Module):
    """Pairs of numbers times complex numbers that get an axis, lose one, and are expanded, as in rotary embeddings."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turns = torch.polar(torch.ones_like(x[0, :, :3]), x[0, :, :3])
        last = pairs.unsqueeze(-1) * turns.unsqueeze(-1)
        chosen = (pairs.select(-1, 1) * turns[:, 0]).unsqueeze(2).unsqueeze(3)
        expanded = turns[None].expand(x.shape[0], -1, -1)[..., None]
        return torch.view_as_real(last * expanded + chosen).flatten(2)


def test_complex_numbers_get_and_lose_axes_and_the_graph_of_torch_stays() -> None:
    program = watched(Turned(), (rand(2, 5, 6),), (rand(3, 4, 6),))
    before = str(program.graphs[0].artifact.graph)
    converted = program.to("onnx")
    assert converted.verify().verified, converted.report
    assert str(program.graphs[0].artifact.graph) == before
    assert program.verify().verified


class Moved(torch.nn.Module):
    """Complex numbers that are padded, chosen, repeated and added up, as in the bands of a spectrum."""

    def forward(self, x: torch.Tensor) -> Any:
        z = torch.view_as_complex(x)
        padded = torch.nn.functional.pad(z, (1, 2))
        loud = z.abs() > 1
        found = (padded, z.repeat(1, 2), z.index_select(1, torch.arange(z.shape[1] - 1)), z.cumsum(1))
        chosen = (torch.where(loud, z, z.flip(1)), torch.where(loud, z, x[..., 0]), z.masked_fill(loud, 0))
        rolled = (z.roll((1, -1), (0, -1)), torch.fft.fftshift(z, dim=(-2, -1)))
        return tuple(map(torch.view_as_real, (*found, *chosen, *rolled, torch.zeros_like(z) + z[:1])))


def test_complex_numbers_are_padded_and_chosen() -> None:
    program = watched(Moved(), (rand(2, 5, 2),), (rand(3, 8, 2),)).to("onnx")
    assert program.verify().verified, program.report
    x = rand(4, 6, 2)
    torch.testing.assert_close(program(x), Moved()(x))


class Spectra(torch.nn.Module):
    """Complex numbers that come in and go out, as pairs of a file."""

    def forward(self, x: torch.Tensor, z: torch.Tensor, n: torch.Tensor) -> Any:
        return {"real": z.abs(), "spectrum": torch.fft.rfft(x), "rows": torch.einsum("ij,kj->ik", z, z), "n": n.clone()}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
@pytest.mark.slow
def test_complex_numbers_go_in_and_come_out(dtype: torch.dtype) -> None:
    calls = [call(rand(2, n), rand(n, 5) * (1 + 2j), torch.ones(1, dtype=dtype)) for n in (6, 8)]
    program = exported(Spectra(), calls).to("onnx")
    assert program.verify().verified, program.report
    x, z = rand(2, 9), rand(9, 4) * (3 - 1j)
    for view in (z, z.conj()):
        got, wanted = program(x, view, calls[0][0][2]), Spectra()(x, view, calls[0][0][2])
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_the_converter_has_no_axes_for_complex_numbers_of_its_own() -> None:
    """When this fails, the converter has them, and ``operators.complex_numbers`` may go."""
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        converted_by_torch(Turned(), (rand(2, 5, 6),))
    missing = {name.removesuffix(" of complex numbers") for name in stop_of(caught.value).missing}
    assert missing == {"aten.unsqueeze.default", "aten.select.int", "aten.expand.default"}


class Bessel(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.bessel_j0(x)
        return torch.special.bessel_j0(y) + torch.special.i1(y)


class Complex(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.polar(torch.ones_like(x), x)
        return torch.view_as_real(torch.exp(turned))


class OpenHistogram(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 4) + torch.special.bessel_j0(x).sum()


def refusal(model: torch.nn.Module) -> ExportError:
    with pytest.raises(ExportError, match=r"\[onnx-refused\]") as caught:
        watched(model.eval(), (rand(3),), (rand(5),)).to("onnx")
    return caught.value


def test_operators_without_a_function_are_named_with_their_lines() -> None:
    said = refusal(Bessel()).message
    assert "no function for prims.bessel_j0.default (2 calls, at " in said
    assert "in forward: y = torch.special.bessel_j0(x)); prims.bessel_i1.default (1 call, at " in said
    assert f"{Path(__file__).name}:" in said


def test_an_operator_without_a_function_for_complex_numbers_says_so() -> None:
    said = refusal(Complex()).message
    assert "no function for aten.exp.default of complex numbers (1 call, at " in said


def test_an_operator_that_the_converter_gives_up_on_is_named_with_its_line() -> None:
    said = refusal(OpenHistogram()).message
    assert "min == max" in said
    assert "(aten.histc.default, at " in said
    assert "in forward: return torch.histc(x, 4)" in said
    assert "no function for prims.bessel_j0.default (1 call, " in said


class InParts(torch.nn.Module):
    """Guidance: the two halves of a batch, and parts of the rows by a length that is computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        without, given = x.chunk(2)
        guided = without + 3 * (given - without)
        first, second = guided.split((guided.shape[1] + 1) // 2, dim=1)
        return first.cumsum(1)[:, : second.shape[1]] + second


@pytest.mark.slow
def test_parts_by_a_size_are_converted() -> None:
    observer = InputObserver()
    model = InParts().eval()
    with torch.no_grad(), observer(model):
        for shape in ((4, 9, 3), (6, 14, 3)):
            model(torch.randn(*shape))
    program = observer.export(to="onnx")
    assert program.verify().verified
    for shape in ((2, 4, 3), (10, 31, 3)):
        x = torch.randn(*shape)
        torch.testing.assert_close(program(x), model(x))


class RotaryTable(torch.nn.Module):
    """A table of angles, whose positions are ints."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.einsum("i, j -> i j", torch.arange(x.shape[1]), self.frequencies)
        return x * angles.cos() + torch.einsum("bid,bjd->bij", x, x).sum(-1, keepdim=True)


@pytest.mark.slow
def test_a_product_of_ints_and_floats_is_converted() -> None:
    observer = InputObserver()
    model = RotaryTable().eval()
    with torch.no_grad(), observer(model):
        for shape in ((2, 9, 3), (4, 14, 3)):
            model(torch.randn(*shape))
    program = observer.export(to="onnx")
    assert program.verify().verified
    x = torch.randn(3, 31, 3)
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


class InOrder(torch.nn.Module):
    """Places in an order that equal elements keep, as the rows of the experts of a mixture have it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rounded = x.round()
        values, places = torch.sort(rounded > 0, dim=1, stable=True)
        return torch.argsort(rounded, dim=1, descending=True, stable=True), values, places


def test_equal_elements_keep_their_order() -> None:
    model = InOrder()
    program = exported(model, [call(rand(2, 9)), call(rand(3, 7))]).to("onnx")
    for x in (rand(4, 20) * 2, torch.zeros(2, 6)):
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


class KeptFromZero(torch.nn.Module):
    """Adds and multiplies by numbers that are nearly 0 and 1."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return 1 / torch.sqrt(x + 1e-8), (x - 1e-9).sign(), torch.log(1e-12 + x), (x * 1.000001 - x) * 1e6


def test_a_small_number_that_is_added_is_not_left_out() -> None:
    model = KeptFromZero()
    program = exported(model, [call(torch.zeros(2, 3)), call(torch.zeros(3, 5))]).to("onnx")
    for x in (torch.zeros(4, 2), torch.full((2, 2), 1.0)):
        torch.testing.assert_close(program(x), model(x), rtol=1e-3, atol=1e-3)
