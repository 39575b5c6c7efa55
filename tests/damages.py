"""Damages of programs: each a change of what runs a graph, by name, with the models where it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from damaged_models import Run, program_of, rerun
from onlooker.trace.graph import Graph

Change = Callable[[Graph], Graph]
Values = list[Any]

MODELS = ("perceptron", "convolution", "masked", "encoder", "decoder")
FLOATS = ("perceptron", "convolution")
IDS = ("masked", "encoder", "decoder")
DECODER = ("decoder",)


@dataclass(frozen=True)
class Damage:
    """What is broken, in words, how, and on which models."""

    kind: str
    change: Change
    models: tuple[str, ...] = MODELS


# the two sides of a graph


def on_outputs(change: Callable[[Values], Values]) -> Change:
    return rerun(lambda graph, run: lambda inputs: change(list(run(inputs))))


def on_first_output(change: Callable[[torch.Tensor], Any]) -> Change:
    return on_outputs(lambda out: [change(out[0]), *out[1:]])


def on_inputs(change: Callable[[Values], Values]) -> Change:
    return rerun(lambda graph, run: lambda inputs: run(change(list(inputs))))


def on_first_input(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return on_inputs(lambda inp: [change(inp[0]), *inp[1:]])


def on_second_input(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return on_inputs(lambda inp: [inp[0], change(inp[1]), *inp[2:]])


def where(applies: Callable[[Sequence[Any]], bool], wrong: Callable[[torch.Tensor], Any] = lambda t: t + 1.0) -> Change:
    """A first output that is wrong for some calls only."""

    def wrap(graph: Graph, run: Run) -> Run:
        def runs(inputs: Sequence[Any]) -> Sequence[Any]:
            out = list(run(inputs))
            return [wrong(out[0]), *out[1:]] if applies(inputs) else out

        return runs

    return rerun(wrap)


def refusing(applies: Callable[[Sequence[Any]], bool]) -> Change:
    """A guard too many."""

    def wrap(graph: Graph, run: Run) -> Run:
        def runs(inputs: Sequence[Any]) -> Sequence[Any]:
            if applies(inputs):
                raise AssertionError("Guard failed: the size is another one")
            return run(inputs)

        return runs

    return rerun(wrap)


# weights

WEIGHTS = {
    "perceptron": "first.weight",
    "convolution": "second.weight",
    "masked": "head.weight",
    "encoder": "layer.0.attention.output.dense.weight",
    "decoder": "layers.1.mlp.down_proj.weight",
}
PAIRS = {
    "perceptron": ("first.weight", "second.weight"),
    "convolution": ("first.bias", "second.bias"),
    "encoder": ("layer.0.attention.self.query.weight", "layer.0.attention.self.value.weight"),
    "decoder": ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"),
}
BUFFERS = {"perceptron": "norm.running_mean", "convolution": "norm.running_mean", "masked": "scale"}
BIASES = {"perceptron": "second.bias", "convolution": "head.bias", "masked": "head.bias"}


def with_state(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """The same graph on other weights."""

    def damage(graph: Graph) -> Graph:
        module, names = graph.artifact.module(), tuple(graph.names.values())
        changed = change({name: value.detach().clone() for name, value in graph.artifact.state_dict.items()})

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            named = dict(zip(names, inputs, strict=True))
            result: Sequence[Any] = torch.func.functional_call(module, changed, (), named)
            return result

        return replace(graph, run=run)

    return damage


def _ending(state: dict[str, torch.Tensor], ends: dict[str, str]) -> str:
    return next(name for name in state for end in ends.values() if name.endswith(end))


def on_weight(change: Callable[[torch.Tensor], torch.Tensor], ends: dict[str, str] = WEIGHTS) -> Change:
    def changed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = _ending(state, ends)
        return {name: change(state[name])}

    return with_state(changed)


def _swapped_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for ends in PAIRS.values():
        names = [name for end in ends for name in state if name.endswith(end)]
        if len(names) == 2 and state[names[0]].shape == state[names[1]].shape:
            return {names[0]: state[names[1]], names[1]: state[names[0]]}
    raise AssertionError("no pair of weights")


def _one_element(weight: torch.Tensor) -> torch.Tensor:
    weight.view(-1)[0] += 0.05
    return weight


def _two_rows(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([weight[1:2], weight[:1], weight[2:]])


def _in_bfloat16(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.bfloat16().to(value.dtype) for name, value in state.items()}


def in_training(graph: Graph) -> Graph:
    """The graph with batch norm as in training mode, on buffers of its own."""
    module, names = graph.artifact.module(), tuple(graph.names.values())
    for node in module.graph.nodes:
        if node.op == "call_function" and "batch_norm" in str(node.target):
            node.args = (*node.args[:5], True, *node.args[6:])
    module.recompile()
    state = {name: value.detach().clone() for name, value in graph.artifact.state_dict.items()}

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        result: Sequence[Any] = torch.func.functional_call(module, state, (), dict(zip(names, inputs, strict=True)))
        return result

    return replace(graph, run=run)


# sizes


def _baked(graph: Graph, run: Run) -> Run:
    """Computes as many rows as the example of the export had, whatever comes."""

    def runs(inputs: Sequence[Any]) -> Sequence[Any]:
        batch = inputs[0].shape[0]
        rows = torch.arange(graph.sizes["batch"]) % batch
        return run([value.index_select(0, rows) for value in inputs])

    return runs


def _cut_off(graph: Graph, run: Run) -> Run:
    """Right up to eight, and nothing behind."""

    def runs(inputs: Sequence[Any]) -> Sequence[Any]:
        out = list(run(inputs))
        if inputs[0].shape[-1] > 8:
            out[0] = out[0].clone()
            out[0].view(out[0].shape[0], -1)[:, -1] = 0
        return out

    return runs


def _length(inputs: Sequence[Any]) -> int:
    return int(inputs[0].shape[-1])


def _batch(inputs: Sequence[Any]) -> int:
    return int(inputs[0].shape[0])


# memory


class _Stateful:
    """What a program keeps from call to call."""

    def __init__(self, run: Run) -> None:
        self.run, self.count = run, 0
        self.kept: dict[Any, Any] = {}

    def second_differs(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.count += 1
        out = list(self.run(inputs))
        return out if self.count != 2 else [out[0] + 1, *out[1:]]

    def drifts(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.count += 1
        out = list(self.run(inputs))
        return [out[0] + 1e-5 * self.count, *out[1:]]

    def remembers(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The answer to the first call of these sizes."""
        key = tuple(tuple(value.shape) for value in inputs)
        if key not in self.kept:
            self.kept[key] = self.run(inputs)
        return list(self.kept[key])

    def answers_once(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Its own example for ever."""
        self.kept.setdefault("first", self.run(inputs))
        return list(self.kept["first"])

    def reuses(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Results in memory that the next call writes to."""
        out = list(self.run(inputs))
        memory = self.kept.setdefault("memory", torch.zeros(100_000))
        memory[: out[0].numel()] = out[0].reshape(-1)
        return [memory[: out[0].numel()].view(out[0].shape), *out[1:]]

    def fails_at_last(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Right for five calls."""
        self.count += 1
        if self.count > 5:
            raise RuntimeError("no memory is left")
        return self.run(inputs)


def keeping(method: Callable[[_Stateful, Sequence[Any]], Sequence[Any]]) -> Change:
    def wrap(graph: Graph, run: Run) -> Run:
        state = _Stateful(run)
        return lambda inputs: method(state, inputs)

    return rerun(wrap)


def _mutating(graph: Graph, run: Run) -> Run:
    def runs(inputs: Sequence[Any]) -> Sequence[Any]:
        out = [value.clone() if isinstance(value, torch.Tensor) else value for value in run(inputs)]
        inputs[0].add_(1)
        return out

    return runs


def _aliasing(graph: Graph, run: Run) -> Run:
    """The argument itself, where the model gives a copy."""
    return lambda inputs: [*list(run(inputs))[:-1], inputs[0]]


# single values


def _noisy(value: torch.Tensor) -> torch.Tensor:
    return value + 1e-3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))


def _at(value: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor], place: int = -1) -> torch.Tensor:
    value = value.clone().contiguous()
    flat = value.view(-1)
    if flat.numel():
        flat[place] = change(flat[place])
    return value


def _of_dtype(change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Change:
    """One element of the first output of a dtype."""

    def changed(out: Values) -> Values:
        position = next(i for i, value in enumerate(out) if value.dtype == dtype)
        return [_at(value, change) if i == position else value for i, value in enumerate(out)]

    return on_outputs(changed)


def _rows_after_the_first(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value[:1], value[1:] + 1])


def _turned(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, 1)


def _only_padded_rows(inputs: Values, out: Values) -> Values:
    padded = (inputs[1] == 0).any(dim=1)
    return [out[0] + padded.reshape(-1, *[1] * (out[0].ndim - 1)), *out[1:]]


def _on_both(change: Callable[[Values, Values], Values]) -> Change:
    return rerun(lambda graph, run: lambda inputs: change(list(inputs), list(run(inputs))))


# inputs


def _exchanged(first: int, second: int) -> Callable[[Values], Values]:
    def exchanged(values: Values) -> Values:
        values[first], values[second] = values[second], values[first]
        return values

    return exchanged


def _on_cache(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return on_inputs(lambda inp: [*inp[:3], *map(change, inp[3:])])


def _first_forgotten(keys: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(keys[:, :, :1]), keys[:, :, 1:]], dim=2)


def _off_by_one(keys: torch.Tensor) -> torch.Tensor:
    return torch.cat([keys[:, :, 1:], keys[:, :, -1:]], dim=2)


def _not_appended(inputs: Values, out: Values) -> Values:
    return [out[0], *inputs[3:]]


def _other_fill(graph: Graph) -> Graph:
    leaves = tuple(
        replace(leaf, fill=replace(leaf.fill, kind="zeros")) if leaf.fill and leaf.fill.kind == "ones" else leaf
        for leaf in graph.plan.leaves
    )
    return replace(graph, plan=replace(graph.plan, leaves=leaves))


def _other_regime(graph: Graph) -> Graph:
    other = next(g for g in program_of("masked").graphs if g.name != graph.name)
    return replace(graph, run=other.run)


def _most_hidden(mask: torch.Tensor) -> torch.Tensor:
    return mask[:1].expand_as(mask)


def _without_one_mark(mask: torch.Tensor) -> torch.Tensor:
    """Sees the last padded token."""
    return (mask + mask.roll(-1, dims=-1)).clamp(max=1)


def _is_not_contiguous(inputs: Sequence[Any]) -> bool:
    return any(not value.is_contiguous() for value in inputs)


INF, NAN = float("inf"), float("nan")

DAMAGES: tuple[Damage, ...] = (
    Damage("a weight 1 % larger", on_weight(lambda w: w * 1.01)),
    Damage("one element of a weight changed", on_weight(_one_element)),
    Damage("two rows of a weight swapped", on_weight(_two_rows)),
    Damage("two weights swapped", with_state(_swapped_weights), tuple(PAIRS)),
    Damage("a weight transposed", on_weight(lambda w: w.transpose(0, 1).contiguous().view(w.shape))),
    Damage("a bias set to zero", on_weight(torch.zeros_like, BIASES), tuple(BIASES)),
    Damage("all weights rounded to half", with_state(lambda s: {k: v.half().to(v.dtype) for k, v in s.items()})),
    Damage(
        "all weights rounded to bfloat16", with_state(lambda s: {k: v.bfloat16().to(v.dtype) for k, v in s.items()})
    ),
    Damage("a buffer changed", on_weight(lambda b: b * 1.05, BUFFERS), tuple(BUFFERS)),
    Damage("batch norm in training mode", in_training, FLOATS),
    Damage("dropout left on", on_first_output(lambda t: torch.nn.functional.dropout(t, 0.1))),
    Damage("a batch baked in", rerun(_baked), ("perceptron", "convolution", "masked", "encoder")),
    Damage("a guard on the batch of the export", rerun(lambda g, run: _guarded(g, run, 0, "batch"))),
    Damage("a guard on the sequence of the export", rerun(lambda g, run: _guarded(g, run, 1, "sequence")), IDS),
    Damage("one row refused", refusing(lambda inp: _batch(inp) == 1)),
    Damage("a range that ends at what was seen", refusing(lambda inp: _batch(inp) > 3)),
    Damage("a range that ends at sixteen", refusing(lambda inp: _batch(inp) > 16)),
    Damage("wrong beyond sixteen", where(lambda inp: _length(inp) > 16), ("convolution", *IDS)),
    Damage("wrong beyond sixteen rows", where(lambda inp: _batch(inp) > 16)),
    Damage("cut off beyond eight", rerun(_cut_off), ("convolution", *IDS)),
    Damage("wrong for one row", where(lambda inp: _batch(inp) == 1)),
    Damage("wrong for length one", where(lambda inp: _length(inp) == 1), ("convolution", *IDS)),
    Damage("wrong for odd lengths", where(lambda inp: _length(inp) in range(9, 99, 2)), ("convolution", *IDS)),
    Damage("wrong where two sizes are equal", where(lambda inp: _batch(inp) == _length(inp) > 1), IDS),
    Damage("wrong without a past", where(lambda inp: inp[3].shape[2] == 0), DECODER),
    Damage("wrong with a past of one", where(lambda inp: inp[3].shape[2] == 1), DECODER),
    Damage("rows after the first wrong", on_first_output(_rows_after_the_first)),
    Damage("the first row for all rows", on_first_output(lambda t: t[:1].expand_as(t))),
    Damage("rows reversed", on_first_output(lambda t: t.flip(0))),
    Damage("two inputs swapped", on_inputs(_exchanged(0, 1)), ("perceptron", "masked", "encoder")),
    Damage("keys and values swapped", on_inputs(_exchanged(3, 4)), DECODER),
    Damage("an input ignored", on_first_input(torch.zeros_like)),
    Damage("the mask ignored", on_second_input(torch.ones_like), IDS),
    Damage("the mask inverted", on_second_input(lambda mask: 1 - mask), IDS),
    Damage("the mask of the first row for all", on_second_input(_most_hidden), IDS),
    Damage("one padded token seen", on_second_input(_without_one_mark), IDS),
    Damage("padded rows wrong", _on_both(_only_padded_rows), IDS),
    Damage("zeros instead of ones for a missing mask", _other_fill, ("masked",)),
    Damage("positions off by one", on_inputs(lambda inp: [*inp[:2], inp[2] + 1, *inp[3:]]), DECODER),
    Damage("the first of the past forgotten", _on_cache(_first_forgotten), DECODER),
    Damage("the past off by one", _on_cache(_off_by_one), DECODER),
    Damage("the cache not appended to", _on_both(_not_appended), DECODER),
    Damage("the layers of the cache swapped", on_outputs(_exchanged(1, 3)), DECODER),
    Damage("negative values cut off", on_first_input(torch.relu), FLOATS),
    Damage("zeros replaced", on_first_input(lambda t: torch.where(t == 0, torch.full_like(t, 0.5), t)), FLOATS),
    Damage("large values cut off", on_first_input(lambda t: t.clamp(max=1.0)), FLOATS),
    Damage("the greatest id replaced", on_first_input(lambda t: torch.where(t == t.max(), t.min(), t)), IDS),
    Damage("the least id replaced", on_first_input(lambda t: torch.where(t == t.min(), t.max(), t)), IDS),
    Damage("tensors that are not contiguous read wrongly", where(_is_not_contiguous), MODELS),
    Damage("NaN in all places", on_first_output(lambda t: t * NAN)),
    Damage("NaN in one place", on_first_output(lambda t: _at(t, lambda v: v * NAN))),
    Damage("NaN for one row", where(lambda inp: _batch(inp) == 1, lambda t: t * NAN)),
    Damage("an infinity in one place", on_first_output(lambda t: _at(t, lambda v: v + INF))),
    Damage("zeros as result", on_first_output(torch.zeros_like)),
    Damage("noise of 0.001", on_first_output(_noisy)),
    Damage("one element off by 0.001", on_first_output(lambda t: _at(t, lambda v: v + 1e-3))),
    Damage("the sign turned", on_first_output(torch.neg)),
    Damage("one int off by one", _of_dtype(lambda v: v + 1, torch.int64), ("perceptron", "masked")),
    Damage("one bool turned", _of_dtype(torch.logical_not, torch.bool), ("perceptron",)),
    Damage("an output left out", on_outputs(lambda out: out[:-1])),
    Damage("an output too many", on_outputs(lambda out: [*out, out[-1]])),
    Damage("two outputs swapped", on_outputs(_exchanged(0, 1))),
    Damage("None for an output", on_outputs(lambda out: [None, *out[1:]])),
    Damage("a number for an output", on_outputs(lambda out: [0.0, *out[1:]])),
    Damage("another dtype", on_first_output(lambda t: t.double())),
    Damage("rounded to half", on_first_output(lambda t: t.half().float())),
    Damage("a dimension too many", on_first_output(lambda t: t.unsqueeze(0))),
    Damage("two dimensions exchanged", on_first_output(_turned)),
    Damage("a row too many", on_first_output(lambda t: torch.cat([t, t[:1]]))),
    Damage("another device", on_first_output(lambda t: t.to("meta"))),
    Damage("the second call wrong", keeping(_Stateful.second_differs)),
    Damage("a little more wrong with each call", keeping(_Stateful.drifts)),
    Damage("the first result for all calls of these sizes", keeping(_Stateful.remembers)),
    Damage("one result for all calls", keeping(_Stateful.answers_once)),
    Damage("results overwritten by the next call", keeping(_Stateful.reuses)),
    Damage("an error after five calls", keeping(_Stateful.fails_at_last)),
    Damage("the graph of the other regime", _other_regime, ("masked",)),
    Damage("an argument changed in place", rerun(_mutating)),
    Damage("an argument given back for a copy", rerun(_aliasing), ("perceptron",)),
)


def _guarded(graph: Graph, run: Run, dim: int, symbol: str) -> Run:
    def runs(inputs: Sequence[Any]) -> Sequence[Any]:
        if inputs[0].shape[dim] != graph.sizes[symbol]:
            raise AssertionError(f"Guard failed: size {dim} == {graph.sizes[symbol]}")
        return run(inputs)

    return runs


def _sums_reordered(value: torch.Tensor) -> torch.Tensor:
    return (value + 1.0) - 1.0


def _laid_otherwise(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, 1).contiguous().transpose(0, 1)


def _negative_zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value == 0, torch.full_like(value, -0.0), value)


HARMLESS: tuple[Damage, ...] = (
    Damage("nothing", lambda graph: graph),
    Damage("minus zero", on_first_output(_negative_zeros)),
    Damage("differences of 1e-7", on_first_output(lambda t: t + 1e-7)),
    Damage("a sum in another order", on_first_output(_sums_reordered)),
    Damage("copies of the results", on_outputs(lambda out: [value.clone() for value in out])),
    Damage(
        "results that are not contiguous", on_first_output(lambda t: t.transpose(0, 1).contiguous().transpose(0, 1))
    ),
    Damage("a graph that refuses tensors that are not contiguous", refusing(_is_not_contiguous)),
    Damage("inputs made contiguous", on_inputs(lambda inp: [value.contiguous() for value in inp])),
)
