"""What a graph asserts of values holds in ONNX Runtime too: a call of the other side of a branch is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from onlooker import InputObserver, Program
from onlooker.core.errors import RejectedCallError
from onlooker.targets.onnx.operators.table import translations


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x * 3


class Several(torch.nn.Module):
    """Results of several ranks, one of which is an argument."""

    def forward(self, x: torch.Tensor) -> Any:
        if (x < 0).any():
            raise ValueError("negative")
        return x, x[None] + 1, x.sum()


class GivenBack(torch.nn.Module):
    """Gives its arguments back, and decides by a number of rows; the name of one is of Python."""

    def forward(self, input: torch.Tensor) -> Any:
        if len((input == 9).nonzero()):
            return input * 2, input
        return input, input


class Count(torch.nn.Module):
    """A size that is read from a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = int(x.max()) + 1
        torch._check(count < 7)
        return torch.zeros(count).index_add(0, x, torch.ones(len(x)))


class Padded(torch.nn.Module):
    """The longest sequence fills its row: a number of values is a size of another argument."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max().item())
        hidden = torch.arange(longest).expand(lengths.shape[0], longest) >= lengths[:, None]
        return torch.stack([x, hidden.to(x.dtype)])


class Truth(torch.nn.Module):
    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x)


def converted(model: torch.nn.Module, *calls: torch.Tensor) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(call)
    return observer.export().to("onnx")


@pytest.mark.parametrize("model", [Branch(), Several()], ids=["branch", "several"])
def test_the_other_side_of_a_branch_is_refused(model: torch.nn.Module, tmp_path: Path) -> None:
    program = converted(model, torch.ones(3), torch.ones(4))
    torch.testing.assert_close(program(torch.ones(9)), model(torch.ones(9)))
    way = (
        r"the call goes another way than the watched calls where the model decides by values, at \S+\.py:\d+ in forward"
    )
    with pytest.raises(RejectedCallError, match=way):
        program(-torch.ones(3))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (port,) = session.get_inputs()
    with pytest.raises(Exception, match=r"assertion_of_the_model: it decides by values at \S+\.py:\d+ in forward"):
        session.run(None, {port.name: -torch.ones(3).numpy()})


@pytest.mark.parametrize("target", ["onnx", "openvino", pytest.param("aoti", marks=pytest.mark.slow)])
def test_a_branch_that_gives_arguments_back_is_checked(target: str) -> None:
    model, observer = GivenBack(), InputObserver()
    with observer(model), torch.no_grad():
        for length in (3, 4):
            model(torch.ones(2, length))
    program = observer.export().to(target)
    assert program.verify().verified
    torch.testing.assert_close(program(torch.ones(2, 5)), model(torch.ones(2, 5)))
    with pytest.raises(RejectedCallError, match=r"another way than the watched calls|the program refuses it"):
        program(torch.full((2, 3), 9.0))


def test_a_size_that_is_read_from_a_tensor_has_its_bound() -> None:
    model = Count()
    program = converted(model, torch.tensor([0, 2, 1]), torch.tensor([3, 4, 1, 0]))
    for call in (torch.tensor([5]), torch.tensor([0, 0])):
        torch.testing.assert_close(program(call), model(call))
    with pytest.raises(RejectedCallError, match=r"decides by values, at|an assertion of the model"):
        program(torch.tensor([8, 0]))


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.slow
def test_a_number_of_values_that_is_a_size_has_no_bound_of_the_trace(target: str) -> None:
    """A conversion traces the operators anew, where each size is 2 at least."""
    model, observer = Padded(), InputObserver()
    with observer(model), torch.no_grad():
        for lengths in ([5, 3], [7, 2, 7]):
            model(torch.randn(len(lengths), max(lengths)), torch.tensor(lengths))
    program = observer.export().to(target)
    for call in (
        (torch.randn(2, 1), torch.tensor([1, 0])),
        (torch.randn(1, 1), torch.tensor([1])),
        (torch.randn(1, 4), torch.tensor([4])),
    ):
        torch.testing.assert_close(program(*call), model(*call))
    with pytest.raises(RejectedCallError, match="the program refuses it"):
        program(torch.randn(2, 4), torch.tensor([3, 1]))
    assert program.verify().verified


@pytest.mark.slow
def test_a_program_is_converted_again() -> None:
    """The sizes that the first conversion read from tensors are not in the way of the second."""
    model, observer = Count(), InputObserver()
    with observer(model):
        for call in (torch.tensor([0, 2, 1]), torch.tensor([3, 4, 1, 0])):
            model(call)
    program = observer.export()
    for opset in (18, 20):
        call = torch.tensor([5])
        torch.testing.assert_close(program.to("onnx", opset=opset)(call), model(call))


@pytest.mark.parametrize("operator", [torch.ops.aten._is_all_true, torch.ops.aten._is_any_true])
def test_all_and_any_of_any_number_of_elements(operator: Any) -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Truth(operator), (torch.tensor([[True], [False]]),), dynamic_shapes=shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter calls what torch deprecates
        made = torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=translations())
    assert made is not None
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (name,) = [value.name for value in session.get_inputs()]
    for values in ([], [[True]], [[False]], [[True], [False]], [[True], [True]], [[False], [False]]):
        given = torch.tensor(values, dtype=torch.bool).reshape(-1, 1)
        (got,) = session.run(None, {name: given.numpy()})
        assert bool(got) is bool(operator(given))
        assert got.shape == ()


@pytest.mark.filterwarnings("ignore")
def test_the_converter_itself_drops_assertions() -> None:
    """Once it keeps them, the repair may go."""
    program = torch.export.export(
        Count(), (torch.tensor([0, 2, 1]),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    assert {node.op_type for node in made.model.graph}.isdisjoint({"Less", "LessOrEqual", "If"})
