"""Settings of other runtimes: no size in them is one that the graph refuses, and runtimes take them."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onlooker
from fuzz_values import examples
from onlooker.contract.checker import Checker
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.core.path import Name, Path
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.profile import profile_of_rows
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import TensorSpec
from onlooker.core.structure import Structure
from onlooker.emit.buckets import best_cuts, buckets_of
from onlooker.emit.texts import EMITTERS, clusters_of, emitted
from onlooker.emit.traffic import Served
from onlooker.materialise.arguments import Calls

FORMULAS = (
    "batch*sequence <= 64",
    "sequence + past <= 40",
    "sequence != 3",
    "past % 4 == 0",
    "batch < 7",
    "sequence >= past",
)
EXPRESSIONS = ("past + sequence", "batch*sequence", "2*sequence", "min(past, 9)", "41 - past", "(sequence + 1)//2")


@st.composite
def served(draw: st.DrawFn) -> Served:
    """A graph with relations and conditions, and random traffic, of which it may not take all."""
    step = draw(st.sampled_from([1, 2]))
    symbols = (
        Symbol("batch", (1, 2), low=1),
        Symbol("sequence", (1, 8), low=1, high=64, step=step),
        Symbol("past", (0, 8), low=0),
    )
    more = draw(st.lists(st.sampled_from(EXPRESSIONS), max_size=3, unique=True))
    shapes = [("batch", "sequence"), ("batch", "past", "4"), *((text,) for text in more)]
    kinds = ("torch.int64", *["torch.float32"] * (len(shapes) - 1))
    leaves = tuple(
        LeafPlan(Path((Name(f"x{n}"),)), kind, "cpu", tuple(map(Expression.parse, shape)))
        for n, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    )
    formulas = draw(st.lists(st.sampled_from(FORMULAS), max_size=3, unique=True))
    region = Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas))
    size = st.tuples(st.integers(1, 10), st.integers(1, 45), st.integers(0, 45))
    rows = draw(st.lists(st.tuples(size, st.integers(1, 100)), min_size=1, max_size=25))
    names = ("batch", "sequence", "past")
    traffic = profile_of_rows("main", [(dict(zip(names, sizes, strict=True)), count) for sizes, count in rows])
    plan = Plan("main", Structure(), leaves, symbols)
    outputs = (("y", "torch.float32", 2),)
    return Served(plan, Contract((region,)), traffic, tuple(f"x{n}" for n in range(len(leaves))), outputs)


@pytest.mark.slow
@given(served(), st.sampled_from(sorted(EMITTERS)), st.integers(1, 4))
@examples(500)
def test_no_emitted_corner_is_outside_of_the_contract(graph: Served, kind: str, count: int) -> None:
    checker = Checker(graph.plan, graph.contract)
    found = emitted(kind, [graph], 0, count)
    assert found.corners or not graph.rows or kind in ("compile", "triton-python")  # have no sizes
    for _, sizes in found.corners:
        row = tuple(dict(sizes).values())
        inputs = [TensorSpec(shape, "torch.float32") for shape in graph.shapes(row)]
        assert checker(inputs), (kind, sizes)


@given(served(), st.integers(1, 4))
@examples(100)
def test_every_call_lies_in_a_profile_and_under_a_bucket(graph: Served, count: int) -> None:
    clusters = clusters_of(graph, count)
    assert sum(cluster.calls for cluster in clusters) == sum(calls for _, calls in graph.rows)
    for row, _ in graph.rows:
        inside = [
            all(
                a <= b <= c
                for bounds in zip(graph.shapes(one.low), graph.shapes(row), graph.shapes(one.high), strict=True)
                for a, b, c in zip(*bounds, strict=True)
            )
            for one in clusters
        ]
        assert any(inside), row
    found = buckets_of(graph, count)
    assert sum(bucket.calls for bucket in found) == sum(calls for _, calls in graph.rows)
    assert all(bucket.wasted >= 0 for bucket in found)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=7), st.integers(1, 4))
@examples(150)
def test_buckets_of_one_axis_pad_least(pairs: list[tuple[int, int]], count: int) -> None:
    sizes = sorted(dict(pairs).items())
    found = best_cuts(sizes, count)

    def cost(tops: tuple[int, ...]) -> int:
        return sum(calls * min(sizes[top][0] for top in tops if sizes[top][0] >= size) for size, calls in sizes)

    every = [
        (*rest, len(sizes) - 1)
        for number in range(min(count, len(sizes)))
        for rest in itertools.combinations(range(len(sizes) - 1), number)
    ]
    assert cost(tuple(found)) == min(map(cost, every))


class Attention(torch.nn.Module):
    """Rows of a past and of new ones, the mean of what a mask shows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(16, 4)

    def forward(self, ids: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([past, self.embed(ids)], 1) * mask.unsqueeze(2)
        return rows.sum(1) / (mask.sum(1, keepdim=True) + 1)


def arguments(batch: int, sequence: int, past: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(batch + sequence + past)
    return {
        "ids": torch.randint(0, 16, (batch, sequence), generator=draw),
        "past": torch.randn(batch, past, 4, generator=draw),
        "mask": torch.ones(batch, past + sequence),
    }


TRAFFIC = [(2, 9, 0)] * 3 + [(1, 20, 0)] + [(2, 1, past) for past in range(9, 20)] + [(1, 1, 21)] * 2


@functools.cache
def program() -> onlooker.Program:
    model, observer = Attention(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for sizes in TRAFFIC:
            model(**arguments(*sizes))
    return observer.export()


def test_the_profile_has_sizes_that_came_together() -> None:
    (graph,) = program().profile().graphs
    assert graph.calls == len(TRAFFIC)
    ids, past = graph.names.index(symbol_of("ids", 1)), graph.names.index(symbol_of("past", 1))
    pairs = {(sizes[ids], sizes[past]): count for sizes, count in graph.rows}
    assert (pairs[9, 0], pairs[1, 21]) == (3, 2)
    assert graph.percentile(symbol_of("ids", 1), 50) == 1
    assert graph.percentile(symbol_of("ids", 1), 99) == 20
    (by_axis,) = program().recording.profile().graphs
    assert by_axis.counts("ids.shape[1]") == {1: 13, 9: 3, 20: 1}


def symbol_of(name: str, dim: int) -> str:
    return str(program().plans[0].leaf(name).shape[dim])


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize("kind", ["trtexec", "openvino", "buckets"])
@pytest.mark.one_in(2)
def test_every_corner_is_served_by_the_runtime(target: str, kind: str) -> None:
    pytest.importorskip("onnxruntime" if target == "onnx" else "openvino")
    converted = of_target(target)
    kept = program()._program.beside_model().kept
    model = program()._program.beside_model().subject
    corners = {corner for count in (1, 2, 3) for corner in program().emit(kind, count=count).corners}
    assert len(corners) > 3
    for name, sizes in sorted(corners):
        plan = next(plan for plan in program().plans if plan.name == name)
        call = Calls(plan, kept).arguments(dict(sizes))
        (expected,) = model.try_out(call).leaves
        torch.testing.assert_close(converted(**call), expected, atol=1e-4, rtol=1e-4)


@functools.cache
def of_target(target: str) -> Any:
    return program().to(target)


def test_openvino_takes_the_shapes() -> None:
    openvino = pytest.importorskip("openvino")
    model = of_target("openvino").graphs[0].artifact
    text = program().emit("openvino").text
    shapes = dict(re.findall(r'"(\w+)": openvino.PartialShape\("(.*?)"\)', text))
    assert set(shapes) == {"ids", "past", "mask"}
    assert openvino.PartialShape(shapes["ids"]).rank.get_length() == 2
    if hasattr(model, "reshape"):
        model = model.clone()
        model.reshape({name: openvino.PartialShape(shape) for name, shape in shapes.items()})
        assert str(model.input("ids").get_partial_shape()).replace(" ", "") == shapes["ids"]


SHAPE = r"[\w.]+:\d+(x\d+)*"
SHAPES = rf"{SHAPE}(,{SHAPE})*"


def test_the_flags_of_trtexec_are_as_it_reads_them() -> None:
    text = program().emit("trtexec", count=2).text
    flags = re.sub(r"\\\n", "", text.split("\n", 1)[1]).split()
    assert flags[0] == "trtexec"
    assert all(re.fullmatch(rf"--(onnx=\S+|profile=\d+|(min|opt|max)Shapes={SHAPES})", flag) for flag in flags[1:])
    assert text.count("--profile=") == 2


def test_the_options_of_onnx_runtime_have_a_shape_for_each_profile() -> None:
    text = program().emit("ort-trt", count=2).text
    options = json.loads(text.split("=", 1)[1])
    assert set(options) == {f"trt_profile_{name}_shapes" for name in ("min", "opt", "max")}
    for shapes in options.values():
        assert re.fullmatch(SHAPES, shapes)
        assert shapes.count("ids:") == 2


def test_inputs_of_torch_tensorrt_are_python() -> None:
    seen: list[dict[str, Any]] = []

    class Fake:
        @staticmethod
        def Input(**given: Any) -> None:  # as it is called there
            seen.append(given)

    for count in (1, 2):
        seen.clear()
        exec(program().emit("tensorrt", count=count).text, {"torch_tensorrt": Fake, "torch": torch})
        assert [given["dtype"] for given in seen] == [torch.int64, torch.float32, torch.float32]
        profiles = seen[0].get("profiles", [seen[0]])
        assert len(profiles) == count
        for one in profiles:
            low, best, high = (one[f"{name}_shape"] for name in ("min", "opt", "max"))
            assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))


def test_the_configuration_of_triton_has_its_fields() -> None:
    text = program().emit("triton").text
    assert "max_batch_size: 2" in text
    assert re.search(r'input \[ \{ name: "ids" data_type: TYPE_INT64 dims: \[ -1 \] \} \]', text)
    assert re.search(r'input \[ \{ name: "past" data_type: TYPE_FP32 dims: \[ -1, 4 \] \} \]', text)
    assert re.search(r"dynamic_batching \{ preferred_batch_size: \[ 1, 2 \] \}", text)
    assert text.count("output [") == 1
    assert text.count("{") == text.count("}")


def test_the_sizes_of_vllm_are_those_of_the_traffic() -> None:
    text = program().emit("vllm").text
    assert "max-model-len: 22" in text
    assert "max-num-seqs: 2" in text
    assert "max-num-batched-tokens: 22" in text
    sizes = json.loads(text.split("compilation-config: '")[1].rstrip("'\n"))
    assert sizes == {"cudagraph_capture_sizes": [1, 2]}


def test_the_bounds_of_executorch_are_dims_of_torch() -> None:
    text = program().emit("executorch").text
    lines = [line for line in text.splitlines() if "Dim(" in line]
    space: dict[str, Any] = {"torch": torch}
    exec("\n".join(lines), space)
    assert len(lines) == 3
    assert 'program.to("executorch", ranges={' in text


def test_a_corner_that_no_call_can_have_divides_the_profile() -> None:
    region = Region((Constraint("batch*sequence <= 32", Origin.MODEL),))
    symbols = (Symbol("batch", (1, 8)), Symbol("sequence", (4, 32)))
    shape = (Expression.symbol("batch"), Expression.symbol("sequence"))
    plan = Plan("main", Structure(), (LeafPlan(Path((Name("x"),)), "torch.float32", "cpu", shape),), symbols)
    rows = [({"batch": 8, "sequence": 4}, 5), ({"batch": 1, "sequence": 32}, 5)]
    graph = Served(plan, Contract((region,)), profile_of_rows("main", rows), ("x",))
    found = emitted("trtexec", [graph], 0, 1)
    assert found.text.count("--profile=") == 2
    assert "corners of fewer" in found.notes[0]


def test_an_axis_that_is_another_number_in_each_graph_is_marked() -> None:
    """Both graphs are called, so the axis changes, though no graph has a symbol for it."""
    graphs = []
    for size in ("4", "8"):
        leaf = LeafPlan(Path((Name("x"),)), "torch.float32", "cpu", tuple(map(Expression.parse, (size, "3"))))
        plan = Plan(f"graph_{size}", Structure(), (leaf,), ())
        graphs.append(Served(plan, Contract(), profile_of_rows(plan.name, []), ("x",)))
    assert "maybe_mark_dynamic(x, 0)  # 4 or 8" in emitted("compile", graphs, 0, 1).text
    assert "maybe_mark_dynamic" not in emitted("compile", graphs[:1], 0, 1).text.partition("def mark")[2]


def test_what_cannot_be_meant_is_an_error() -> None:
    with pytest.raises(onlooker.UsageError, match=r"unknown-emitter"):
        program().emit("coreml")
    with pytest.raises(onlooker.UsageError, match=r"bad-count"):
        program().emit("buckets", count=0)


def test_traffic_that_no_graph_takes_is_counted() -> None:
    outside = {"ids": torch.zeros(2, 3), "past": torch.zeros(2, 1, 4), "mask": torch.ones(2, 4)}
    calls = [arguments(*sizes) for sizes in random.Random(0).sample(TRAFFIC, 4)]
    found = program().emit("buckets", [*calls, outside])
    assert found.notes == ("1 calls are left out: no graph takes them",)
