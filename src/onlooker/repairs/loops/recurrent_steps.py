"""Recurrent layers whose number of steps stays a dynamic size in a trace.

Why: ``aten.lstm``, ``aten.gru`` and ``aten.rnn`` stand in an exported graph as one operator, which
takes any number of steps. The shapes of its results are found by a Python function of torch that
goes through the steps one by one, and this makes their number a constant of the graph. Of a symbolic
number of steps a single one tells the shapes.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py, where
``one_layer_rnn`` and ``one_layer_lstm`` iterate over their input. It may go when they do so no more;
``test_steps_become_a_constant_without_the_repair`` of ``tests/repairs/test_recurrent_steps.py``
fails then.

A program whose trace decided by values keeps them. Traced anew, the kernel of an LSTM gives no tensor
for a result that has a shape, and torch 2.13 stops there: its operators are decomposed by shapes alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...patches.swap import swapped
from ...torch_internals.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    give_value,
    has_values,
    is_fake,
    value_beside,
)
from ...torch_internals.graph_modules import nodes_of
from ...torch_internals.modes import WithoutFunctions, without_dispatch_modes
from ...torch_internals.tracing import decompositions, get_proxy_mode
from ...torch_internals.trees import tree_leaves, tree_map_only
from ..repair import Repair

__all__ = ["RECURRENT_OPERATORS", "RECURRENT_STEPS", "steps_stay_sizes"]

_LAYERS = ("one_layer_rnn", "one_layer_lstm")
#: the operators that a recurrent layer is in a graph
RECURRENT_OPERATORS = frozenset(
    {
        torch.ops.aten.gru.input,
        torch.ops.aten.lstm.input,
        torch.ops.aten.rnn_relu.input,
        torch.ops.aten.rnn_tanh.input,
    }
)


@contextlib.contextmanager
def steps_stay_sizes(model: Any) -> Iterator[None]:
    """Inside the block a trace of ``model`` keeps the number of steps of recurrent layers dynamic.

    An exported program is traced anew where its operators are decomposed. Nothing is replaced for a
    model without modules such as ``torch.nn.LSTM``, and for a program without their operators.
    """
    with contextlib.ExitStack() as stack:
        for name in _LAYERS if _has_layers(model) else ():
            if hasattr(decompositions, name):
                layer = _of_one_step(getattr(decompositions, name))
                stack.enter_context(swapped(decompositions, name, layer))
        if _has_layers(model):
            layer = torch.nn.RNNBase
            check = _without_numbers(layer.check_forward_args)
            stack.enter_context(swapped(layer, "check_forward_args", check))
        for mode in _modes(model) if _has_layers(model) else ():
            stack.enter_context(swapped(mode, "propagate_real_tensors", False))
        yield


def _modes(model: Any) -> set[FakeTensorMode]:
    """The modes in which an exported program was traced; of a module there are none."""
    if not isinstance(model, torch.export.ExportedProgram):
        return set()
    values = [node.meta.get("val") for node in model.graph.nodes]
    return {value.fake_mode for value in values if isinstance(value, FakeTensor)}


def _has_layers(model: Any) -> bool:
    if isinstance(model, torch.export.ExportedProgram):
        return any(node.target in RECURRENT_OPERATORS for node in nodes_of(model))
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(isinstance(module, torch.nn.RNNBase) for module in modules)


def _of_one_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def layer(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        steps = inputs.shape[0]
        is_computed = not is_fake(inputs) or get_proxy_mode() is not None
        if is_computed or not isinstance(steps, torch.SymInt):
            return original(inputs, *args, **kwargs)
        one = inputs.new_empty((1, *inputs.shape[1:]))
        results, last = original(one, *args, **kwargs)
        results = results.new_empty((steps, *results.shape[1:]))
        if has_values(inputs):
            _give_values((results, last), original, (inputs, *args), kwargs)
        return results, last

    return layer


def _give_values(results: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Keeps what a function gives for the values of the example beside its results in a trace by values."""
    with without_dispatch_modes(), WithoutFunctions():
        args, kwargs = tree_map_only(torch.Tensor, value_beside, (args, kwargs))
        values = function(*args, **kwargs)
        for result, value in zip(tree_leaves(results), tree_leaves(values), strict=True):
            give_value(result, value)


def _without_numbers(original: Callable[..., None]) -> Callable[..., None]:
    """A check of what a layer is given that makes no number of the values of packed sequences; what the
    layer runs with demands the same of the state.
    """

    def check_forward_args(
        layer: torch.nn.RNNBase,
        input: torch.Tensor,
        hidden: Any,
        batch_sizes: torch.Tensor | None,
    ) -> None:
        if not is_fake(batch_sizes):
            original(layer, input, hidden, batch_sizes)

    return check_forward_args


RECURRENT_STEPS = Repair(
    "recurrent steps",
    "The shapes of what ``torch.nn.LSTM`` gives are found step by step, which makes the number"
    " of steps a constant of a graph that takes any. A single step tells them.",
    until="upstream/torch_recurrent_steps.py",
    versions="2.13, 2.15",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py",
    always=True,
    block=lambda setup: steps_stay_sizes(setup.model),
)
