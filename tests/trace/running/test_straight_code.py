"""A graph as one function: the numbers, refusals and memory of the module that torch makes of it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from onlooker.trace.running.straight_code import straight_code


def exported(model: Any, *inputs: Any, **shapes: Any) -> Any:
    return torch.export.export(model, inputs, dynamic_shapes=shapes or None, strict=False)


def function_of(program: Any) -> Any:
    module = program.module(check_guards=False)
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    module.recompile()
    made = straight_code(module.graph, module)
    assert made is not None
    return made, module.forward


class Operators(torch.nn.Module):
    """Operators with functions of torch of their own, with arguments by place and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.drop(self.norm(self.linear(x)))
        heads = y.view(*y.shape[:2], 2, 4).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask, scale=0.3)
        flat = attended.permute(0, 2, 1, 3).reshape(x.shape[0], -1, 8)
        total = torch.add(flat, y, alpha=2) - y / 3 + (-flat).pow(2).mean((-1,), keepdim=True)
        active = torch.cat([torch.relu(total), torch.tanh(y), torch.sigmoid(y)], dim=-1)
        gates = torch.nn.functional.gelu(active, approximate="tanh") * torch.nn.functional.silu(active)
        scores = torch.softmax(gates.to(torch.float64), -1, dtype=torch.float32).unsqueeze(1).expand(-1, 2, -1, -1)
        return torch.matmul(scores, scores.transpose(-1, -2)), total.pow(2).add(1e-3).rsqrt(), x


def test_every_operator_gives_the_numbers_of_torch_at_any_size() -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    x, mask = torch.randn(3, 5, 6), torch.ones(3, 1, 5, 5, dtype=torch.bool)
    program = exported(Operators().eval(), x, mask, x={0: batch, 1: length}, mask={0: batch, 2: length, 3: length})
    made, plain = function_of(program)
    x, mask = torch.randn(2, 7, 6), torch.rand(2, 1, 7, 7) > 0.3
    mask[..., 0] = True
    with torch.no_grad():
        got, expected = made([x, mask]), plain(x, mask)
    assert all(map(torch.equal, got, expected))
    assert got[2] is x


class Casting(torch.nn.Module):
    """A cast that the trace does not need."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32) * 2


def test_a_cast_is_made_where_the_tensor_has_another_dtype() -> None:
    """The dtype is looked at in each call: nothing depends on that of the trace."""
    program = exported(Casting(), torch.ones(2))
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)
    made, _ = function_of(program)
    assert made([torch.ones(2, dtype=torch.float64)])[0].dtype is torch.float32


class InMemory(torch.nn.Module):
    """A cast with the order of memory, which the operator takes by place and ``Tensor.to`` by name alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).to(torch.float64, memory_format=torch.contiguous_format)


def test_a_cast_keeps_the_order_of_memory_that_it_asks_for() -> None:
    made, _ = function_of(exported(InMemory(), torch.ones(2, 3, 4)))
    (got,) = made([torch.ones(2, 3, 4)])
    assert got.dtype is torch.float64
    assert got.is_contiguous()


def test_what_a_trace_says_of_a_tensor_is_still_asserted() -> None:
    made, plain = function_of(exported(Casting(), torch.ones(2)))
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="dtype") as expected:
        plain(x)
    with pytest.raises(RuntimeError) as caught:
        made([x])
    assert str(caught.value) == str(expected.value)


class Writing(torch.nn.Module):
    """A buffer that each call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


def test_a_buffer_is_the_one_that_calls_write_to() -> None:
    made, _ = function_of(exported(Writing(), torch.ones(2)))
    assert [made([torch.zeros(1)])[0].item() for _ in range(3)] == [1, 2, 3]


class Branching(torch.nn.Module):
    """A branch by a value, which is a graph inside of the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def test_a_graph_inside_of_a_graph_runs() -> None:
    made, _ = function_of(exported(Branching(), torch.ones(2)))
    assert made([torch.ones(2)])[0].tolist() == [2, 2]
    assert made([-torch.ones(2)])[0].tolist() == [-2, -2]


@pytest.mark.slow
def test_a_value_lives_until_it_is_used_last() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    alive: list[Any] = []

    def watched(value: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append(sum(one() is not None for one in made_values))
        result = value + 1
        made_values.append(weakref.ref(result))
        return result

    made_values: list[Any] = []
    for _ in range(4):
        x = graph.call_function(watched, (x,))
    graph.output((x,))
    made = straight_code(graph, torch.nn.Module())
    assert made is not None
    assert made([torch.zeros(2)])[0].tolist() == [4, 4]
    assert alive == [0, 1, 1, 1]


def test_a_graph_that_calls_a_module_is_left_to_torch() -> None:
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert straight_code(module.graph, module) is None
