"""Checkpoints that are quantised already: their products are those of their integers, in small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

import onlooker
from onlooker import InputObserver, Program, UnsupportedError
from onlooker.targets.integers.packed import Packed, with_packed_weights
from quantised_layers import BytesPerOutput, HalvesByOutput, WordsByInput, WordsByOutput

LAYERS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    "words by input": WordsByInput,
    "words by input, 8 bits": lambda inputs, outputs: WordsByInput(inputs, outputs, bits=8),
    "words by input, out of order": lambda inputs, outputs: WordsByInput(inputs, outputs, ordered=False),
    "words by output": WordsByOutput,
    "halves by output": HalvesByOutput,
    "bytes per output": BytesPerOutput,
}
#: (inputs, outputs) of each layer in turn
SIZES = ((64, 96), (96, 64), (64, 96), (96, 160), (160, 96), (96, 64))


class Net(torch.nn.Module):
    """All layers in a row, each normed: x is (batch, length, 64)."""

    def __init__(self) -> None:
        super().__init__()
        made = [layer(*sizes) for layer, sizes in zip(LAYERS.values(), SIZES, strict=True)]
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.layer_norm(layer(x), (int(layer.matrix.shape[1]),))
        return x


def by_hand(net: Net, x: torch.Tensor) -> torch.Tensor:
    """The result by the floats that the integers stand for."""
    for layer in net.layers:
        x = x @ layer.matrix + getattr(layer, "bias", 0)
        x = torch.nn.functional.layer_norm(x, (layer.matrix.shape[1],))
    return x


def watched(model: torch.nn.Module, inputs: int = 64, dtype: torch.dtype = torch.float32) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 3), (4, 5), (3, 7)):
            model(torch.randn(batch, length, inputs).to(dtype))
    return observer.export()


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def program(net: Net) -> Program:
    return watched(net)


def bytes_of_integers(net: torch.nn.Module) -> int:
    return sum(value.nbytes for value in net.state_dict().values())


@pytest.mark.parametrize("target", ["torch", "onnx", "openvino"])
@pytest.mark.one_in(3)
def test_a_checkpoint_of_integers_is_exported_as_integers(
    net: Net, program: Program, tmp_path: Path, target: str
) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target))
    made = program.to(target)
    assert made.verify().verdict.startswith("verified")
    x = torch.randn(5, 2, 64)
    torch.testing.assert_close(made(x), by_hand(net, x), rtol=1e-4, atol=1e-4)
    made.save(tmp_path / "out")
    torch.testing.assert_close(onlooker.load(tmp_path / "out")(x), made(x))
    if target == "onnx":
        model = made.graphs[0].artifact.model
        kinds = [node.op_type for node in model.graph]
        assert kinds.count("MatMulNBits") == 5
        assert kinds.count("DequantizeLinear") == 1
        sizes = sum(value.const_value.nbytes for value in model.graph.initializers.values())
        assert sizes < 1.15 * bytes_of_integers(net)
    if target == "openvino":
        constants = [one for one in made.graphs[0].artifact.get_ops() if one.get_type_name() == "Constant"]
        assert {"i4", "i8", "u4", "u8"} <= {one.get_element_type().get_type_name() for one in constants}
        floats = [one for one in constants if one.get_element_type().get_type_name() == "f32"]
        assert max(one.get_byte_size() for one in floats) <= 4 * 160 * 5  # scales of blocks, and no matrix


@pytest.mark.parametrize("target", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_model_in_half_precision_keeps_its_integers(target: str) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target))
    torch.manual_seed(1)
    model = torch.nn.Sequential(WordsByOutput(64, 96), torch.nn.Tanh(), WordsByInput(96, 64)).eval().half()
    made = watched(model, dtype=torch.float16).to(target)
    assert made.verify().verdict.startswith("verified")


def test_scales_of_half_precision_before_a_product_of_floats() -> None:
    """The matrix is rounded to half precision first, which blocks of ONNX Runtime would not do."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    torch.manual_seed(1)
    layer = WordsByOutput(64, 96)
    layer.scales = layer.scales.half()
    program = watched(layer.eval())
    for target in ("onnx", "openvino"):
        assert program.to(target).verify().verdict.startswith("verified")


# -------------------------------------------------------------------------------- matrices that stay as they are


def traced(model: torch.nn.Module, *args: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model.eval(), args, strict=False)


def is_packed(model: torch.nn.Module, *args: torch.Tensor) -> bool:
    program = traced(model, *args)
    made = with_packed_weights(program)
    with torch.no_grad():
        torch.testing.assert_close(made.module()(*args), model(*args))
    return made is not program


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.one_in(2)
def test_the_weights_of_a_layer_become_one_operator(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](64, 96).eval()
    program = traced(layer, torch.randn(3, 64))
    made = with_packed_weights(program)
    operators = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
    assert sum("dequantize_per_channel_group" in one for one in operators) == 1
    assert not any("shift" in one or "and" in one.split(".")[1] for one in operators)
    assert len(made.state_dict) <= 5
    assert is_packed(layer, torch.randn(3, 64))


class Altered(torch.nn.Module):
    """Bytes for 32 outputs of 64 inputs, used as ``use`` says."""

    def __init__(self, use: Callable[[Altered, torch.Tensor], Any]) -> None:
        super().__init__()
        self.use = use
        self.register_buffer("numbers", torch.randint(-8, 8, (32, 64), dtype=torch.int8))
        self.register_buffer("scales", drawn(32, 2))
        self.register_buffer("table", torch.randn(16))

    @property
    def matrix(self) -> torch.Tensor:
        return (self.numbers.unflatten(1, (2, 32)) * self.scales[:, :, None]).flatten(1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(self, x)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.5


def in_place(self: Altered, x: torch.Tensor) -> torch.Tensor:
    matrix = self.numbers.float()
    matrix *= self.scales[:, :1]
    return x @ matrix.t()


USES: dict[str, tuple[bool, Callable[[Altered, torch.Tensor], Any]]] = {
    "a product": (True, lambda self, x: x @ self.matrix.t()),
    "two products": (True, lambda self, x: (x @ self.matrix.t(), (x + 1) @ self.matrix.t())),
    "a product and a table": (True, lambda self, x: (lambda m: (x @ m.t(), m[0]))(self.matrix)),
    "values of a table": (False, lambda self, x: x @ self.table[self.numbers.long() + 8].t()),
    "scales of the call": (False, lambda self, x: x @ (self.numbers * x.mean()).t()),
    "a scale on the result": (True, lambda self, x: (x @ self.numbers.float().t()) * self.scales[:, 0]),
    "a result in place": (True, lambda self, x: (x @ self.matrix.t()).add_(1).mul_(2)),
    "a view of a matrix in place": (False, lambda self, x: (lambda m: (m[0].zero_(), x @ m.t())[1])(self.matrix)),
    "a matrix with inputs in it": (False, lambda self, x: (lambda m: (m[0].copy_(x[0]), x @ m.t())[1])(self.matrix)),
    "an offset": (False, lambda self, x: x @ (self.matrix + 0.3).t()),
    "floats in place": (False, in_place),
    "random numbers": (False, lambda self, x: x @ (self.numbers * torch.rand(32, 1)).t() * 0),
}


@pytest.mark.parametrize("name", USES)
def test_a_matrix_is_packed_where_it_is_integers_with_scales_and_nothing_else(name: str) -> None:
    torch.manual_seed(0)
    expected, use = USES[name]
    assert is_packed(Altered(use), torch.randn(3, 64)) is expected


def test_a_buffer_that_calls_write_to_is_no_weight() -> None:
    def counting(self: Altered, x: torch.Tensor) -> torch.Tensor:
        self.numbers.add_(1)
        return x @ self.matrix.t()

    model, x = Altered(counting), torch.randn(3, 64)
    before = model.numbers.clone()
    program = traced(model, x)
    assert with_packed_weights(program) is program
    assert torch.equal(model.numbers, before)


@pytest.mark.parametrize("low", [-16, -15, -8, 0, 1, 100, -128])
def test_zero_points_are_what_the_integers_need(low: int) -> None:
    """Blocks with all 16 integers from ``low`` on: 4 bits, where a zero point of 4 bits moves them there."""
    model = Altered(lambda self, x: x @ ((self.numbers.int() + low) * self.scales[:, :1]).t())
    model.numbers = (torch.arange(32 * 64) % 16).reshape(32, 64).to(torch.int8)
    program = traced(model, torch.randn(3, 64))
    made = with_packed_weights(program)
    (node,) = [one for one in made.graph.nodes if "dequantize" in str(one.target)]
    assert node.args[3:5] == ((-8, 7) if -15 <= low <= 0 else (-128, 127))
    assert is_packed(model, torch.randn(3, 64))


def test_a_matrix_is_made_of_its_integers_again() -> None:
    integers = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
    packed = Packed(integers, torch.tensor([[0.5, 2.0]]), torch.tensor([[1, 0]], dtype=torch.int32), 4)
    assert packed.block == 2
    assert packed.matrix().tolist() == [[0.0, -1.5, 6.0, 8.0]]


# ------------------------------------------------------------------------------------------ weights of a class


class Bytes(torch.Tensor):
    """A weight that holds integers and scales, as those of torchao do."""

    numbers: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, scales: torch.Tensor) -> Bytes:
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scales.dtype)
        made.numbers, made.scales = numbers, scales
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], *_: Any) -> Bytes:
        return cls(inner["numbers"], inner["scales"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight = args[:2]
            return x @ (weight.numbers * weight.scales).t()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            made = cls(func(args[0].numbers), func(args[0].scales))
            return return_and_correct_aliasing(func, args, kwargs or {}, made)
        floats = [one.numbers * one.scales if isinstance(one, Bytes) else one for one in args]
        return func(*floats, **(kwargs or {}))


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        numbers = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
        self.weight = torch.nn.Parameter(Bytes(numbers, drawn(32, 1)), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight)


def test_weights_of_a_class_of_tensors_are_saved_as_plain_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Layer().eval()
    program = watched(model)
    assert program.verify().verdict == "verified"
    state = program.graphs[0].artifact.state_dict
    assert {name: value.dtype for name, value in state.items()} == {
        "watched.weight_numbers": torch.int8,
        "watched.weight_scales": torch.float32,
    }
    assert isinstance(model.weight, Bytes)
    program.save(tmp_path / "out")
    x = torch.randn(5, 2, 64)
    assert torch.equal(onlooker.load(tmp_path / "out")(x), model(x))


def test_integers_whose_scales_are_attributes_of_python_are_refused() -> None:
    class Coded(torch.nn.Parameter):
        pass

    class Coding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            numbers = torch.randint(0, 255, (32, 64), dtype=torch.uint8)
            self.weight = Coded(numbers, requires_grad=False)
            self.weight.scales = drawn(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight * self.weight.scales).t()

    model, observer = Coding(), InputObserver()
    with observer(model):
        model(torch.randn(2, 64))
    with pytest.raises(UnsupportedError, match=r"weight is a .*Coded: torch\.uint8.*scales") as refusal:
        observer.export()
    assert refusal.value.slug == "packed-weights"
    assert "dequantize" in (refusal.value.hint or "")
