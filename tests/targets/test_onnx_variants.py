"""ONNX that is made to be served: fused attention, smaller weights, a cache in place. What is said of
them is right, and what is wrong with them is said.
"""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onlooker
from onlooker import ExportError, InputObserver, Program, RejectedCallError, UsageError
from onlooker.targets.target import read_again
from onlooker.targets.targets import target_of
from onlooker.zoo import tiny_model
from onlooker.zoo.draw import randomised

transformers = pytest.importorskip("transformers")
onnx_ir = pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

IDS = torch.tensor([[0, 0, 5, 6, 7, 9], [3, 4, 5, 8, 9, 2]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Program]:
    """A decoder whose heads share keys, and its program of torch."""
    model = tiny_model("llama").model
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model.generate(**PADDED, **GREEDY, max_new_tokens=4)
    return model, observer.export()


@pytest.fixture(scope="module")
def in_place(llama: tuple[Any, Program]) -> Program:
    return llama[1].to("onnx", in_place_cache=True)


def operators(program: Program) -> list[str]:
    return [node.op_type for graph in program.graphs for node in graph.artifact.model.graph]


def test_a_fused_program_with_its_cache_in_place_is_verified(in_place: Program) -> None:
    assert operators(in_place).count("GroupQueryAttention") == 2
    assert "SkipSimplifiedLayerNormalization" in operators(in_place)
    assert not {"Attention", "Softmax"} & {*operators(in_place)}
    assert in_place.verify().verified, in_place.report.text()
    assert in_place.graphs[0].options == {"fuse": "cpu", "in_place_cache": "True"}
    assert "fuse=cpu" in repr(in_place)
    assert "2 GroupQueryAttention" in in_place.report.text(full=True)


def test_padded_texts_have_the_tokens_of_the_model(llama: tuple[Any, Program], in_place: Program) -> None:
    model = llama[0]
    ids = torch.tensor([[0, 0, 0, 9, 4], [3, 1, 5, 8, 2], [0, 7, 7, 7, 7]])
    given = {"input_ids": ids, "attention_mask": (ids > 0).long(), **GREEDY, "max_new_tokens": 90}
    for beams in (1, 3):  # beams take rows out of the cache: their memory is no buffer any more
        wanted = model.generate(**given, num_beams=beams)
        with in_place.installed():
            assert model.generate(**given, num_beams=beams).tolist() == wanted.tolist()


def test_a_result_is_never_written_to_again(llama: tuple[Any, Program], in_place: Program) -> None:
    """Two texts go on from one beginning: the buffer belongs to the first that asks."""
    model = llama[0]
    start = {"input_ids": IDS, "attention_mask": PADDED["attention_mask"]}
    position_ids = (start["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad(), in_place.installed() as served:
        first = model(**start, position_ids=position_ids, use_cache=True, return_dict=True, logits_to_keep=1)
        cache = [(layer.keys, layer.values) for layer in first.past_key_values.layers]
        before = [(keys.clone(), values.clone()) for keys, values in cache]
        results = [_step(model, cache, token) for token in (4, 9, 4)]
    assert sum(served.calls.values()) == 4
    for (keys, values), (old_keys, old_values) in zip(cache, before, strict=True):
        assert torch.equal(keys, old_keys)
        assert torch.equal(values, old_values)
    assert torch.equal(results[0][0], results[2][0])
    assert torch.equal(results[0][1], results[2][1])
    assert not torch.equal(results[0][1][:, :, -1], results[1][1][:, :, -1])
    with torch.no_grad():
        right = [_step(model, before, token) for token in (4, 9)]
    for got, wanted in zip(results, right, strict=False):
        torch.testing.assert_close(got[1], wanted[1])


def _step(model: Any, cache: Any, token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores and the keys of one further token, of a cache that other steps have too."""
    past = transformers.DynamicCache()
    for layer, (keys, values) in enumerate(cache):
        past.update(keys, values, layer)
    for layer, (keys, values) in zip(past.layers, cache, strict=True):
        layer.keys, layer.values = keys, values
    mask = torch.cat([PADDED["attention_mask"], torch.ones(2, 1, dtype=torch.long)], 1)
    found = model(
        input_ids=torch.full((2, 1), token),
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1)[:, -1:],
        past_key_values=past,
        use_cache=True,
        return_dict=True,
        logits_to_keep=1,
    )
    return found.logits.clone(), found.past_key_values.layers[1].keys


def test_a_step_copies_no_cache(in_place: Program) -> None:
    """The second step of a text writes into the memory of the first one."""
    run, plan = in_place.graphs[0].run, in_place.graphs[0].plan

    def given(past: list[torch.Tensor] | None, length: int, new: int) -> list[torch.Tensor]:
        named = {
            "input_ids": torch.full((1, new), 5),
            "attention_mask": torch.ones(1, length + new, dtype=torch.long),
            "position_ids": torch.arange(length, length + new)[None],
        }
        caches = iter(past or [torch.zeros(1, 2, 0, 8)] * 4)
        return [named.get(leaf.path.code()) if leaf.path.code() in named else next(caches) for leaf in plan.inputs]

    first = list(run(given(None, 0, 6)))[1:]
    second = list(run(given(first, 6, 1)))[1:]
    third = list(run(given(second, 7, 1)))[1:]
    assert [tensor.data_ptr() for tensor in first] == [tensor.data_ptr() for tensor in third]
    assert third[0].shape == (1, 2, 8, 8)
    other = list(run(given(second, 7, 1)))[1:]
    assert other[0].data_ptr() != third[0].data_ptr()


def test_what_the_operator_does_not_take_is_refused_and_the_reason_said(
    llama: tuple[Any, Program], in_place: Program
) -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    model = llama[0]
    with torch.no_grad():
        past = model(input_ids=IDS, use_cache=True).past_key_values
    call = {
        "input_ids": ids,
        "attention_mask": torch.ones(2, 9, dtype=torch.long),
        "position_ids": torch.arange(6, 9).expand(2, 3).contiguous(),
        "past_key_values": past,
        "use_cache": True,
        "return_dict": True,
        "logits_to_keep": 1,
    }
    with pytest.raises(RejectedCallError, match="for one row only"):
        in_place(**call)
    assert "for one row only" in in_place.report.text(full=True)
    one = {name: value[:1] for name, value in call.items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        past = model(input_ids=IDS[:1], use_cache=True).past_key_values
        assert in_place(**{**call, **one, "past_key_values": past}).logits.shape == (1, 1, 256)


def test_genai_generates_with_one_buffer(llama: tuple[Any, Program], in_place: Program, tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    in_place.save_genai(tmp_path / "out", generation_config={"eos_token_id": 255})
    written = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    assert written["search"]["past_present_share_buffer"] is True
    model = genai.Model(str(tmp_path / "out"))
    for prompts in ([[5, 6, 7, 8, 9]], [[5, 6, 7], [8, 9, 4]]):
        search = genai.GeneratorParams(model)
        search.set_search_options(max_length=15, batch_size=len(prompts), do_sample=False)
        generator = genai.Generator(model, search)
        generator.append_tokens(torch.tensor(prompts, dtype=torch.int32).numpy())
        while not generator.is_done():
            generator.generate_next_token()
        ids = torch.tensor(prompts)
        wanted = llama[0].generate(ids, attention_mask=torch.ones_like(ids), **GREEDY, max_length=15)
        found = [[int(token) for token in generator.get_sequence(row)] for row in range(len(ids))]
        assert found == wanted.tolist()


@pytest.mark.slow
def test_a_saved_program_is_what_it_was(in_place: Program, tmp_path: Path) -> None:
    in_place.save(tmp_path / "out", values=True)
    loaded = onlooker.load(tmp_path / "out")
    assert loaded.graphs[0].options == in_place.graphs[0].options
    assert loaded.verify_saved().failed == 0
    assert "in_place_cache=True" in loaded.report.text()
    with pytest.raises(RejectedCallError):
        loaded(input_ids=IDS)


@pytest.mark.slow
def test_lower_precision_is_verified_by_a_threshold_of_the_user(llama: tuple[Any, Program], tmp_path: Path) -> None:
    program = llama[1].to("onnx", precision="int8", in_place_cache=True)
    assert program.verify().verdict == "verified as int8"
    assert not program.verify(atol=1e-5).verified  # number by number
    tally = program.verify(atol=0.05, agreement=0.5)
    assert tally.verified, program.report.text()
    watched, unseen = tally.scores("observed"), tally.scores("unseen")
    assert watched.count == 6
    assert unseen.count > 50
    assert 0 < unseen.difference < 0.2
    assert f"{unseen.agreeing} of {unseen.count} unseen tokens agree" in program.report.text()
    strict = program.verify(atol=0.05)
    assert strict.verified == (watched.share == unseen.share == 1)
    program.verify(atol=0.05, agreement=0.5)
    program.save(tmp_path / "out")
    assert onlooker.load(tmp_path / "out").tally.scores("unseen") == unseen


def test_garbage_scales_are_not_verified() -> None:
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    model = randomised(lambda: torch.nn.Sequential(*layers)).eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 4), (3, 5)):
            model(torch.randn(batch, length, 64))
    program = observer.export().to("onnx", precision="int8")
    limits: dict[str, Any] = {"atol": 0.1, "agreement": 0.8}
    assert program.verify(**limits).verified, program.report.text()
    damaged = with_garbage_scales(program)
    tally = damaged.verify(**limits)
    assert not tally.verified
    assert tally.scores("unseen").difference > program.tally.scores("unseen").difference
    # with a tolerance that forgives every number, the tokens still do not agree
    forgiven = damaged.verify(atol=1e6, agreement=0.8)
    assert not forgiven.verified
    assert {check.label for check in forgiven.checks if not check.passed} == {"tokens"}
    assert not damaged.report.verified


def with_garbage_scales(program: Program) -> Program:
    """The program with the scales of one layer drawn at random."""
    graph = program.graphs[0]
    products = [node for node in graph.artifact.model.graph if node.op_type == "MatMulNBits"]
    generator = numpy.random.default_rng(0)
    for node in products[:1]:
        scales = node.inputs[2]
        known = scales.const_value.numpy()
        drawn = 5 * known.std() * generator.normal(size=known.shape) + 5 * known.mean()
        scales.const_value = onnx_ir.Tensor(drawn.astype(known.dtype), name=scales.name)
    return Program(program._program.with_graphs(read_again(target_of("onnx"), [graph])))


@pytest.mark.slow
def test_the_root_logger_stays_as_it_is(llama: tuple[Any, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    """The quantiser sets it up where it is imported first."""
    monkeypatch.delitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", False)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    llama[1].to("onnx", precision="int4")
    assert root.handlers == []
    assert root.level == level


@pytest.mark.slow
def test_half_precision_keeps_the_cache_as_it_is(llama: tuple[Any, Program]) -> None:
    program = llama[1].to("onnx", precision="fp16", in_place_cache=True)
    assert program.verify(atol=5e-3, agreement=0.9).verified, program.report.text()


@pytest.mark.slow
def test_a_mask_that_lets_tokens_look_ahead_is_not_fused() -> None:
    """GroupQueryAttention hides what is ahead whatever its mask says."""
    model = LooksAhead().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        cache = (torch.zeros(2, 2, 0, 8), torch.zeros(2, 2, 0, 8))
        for length in (5, 1, 3):
            past = cache[0].shape[2]
            _, cache = model(torch.randn(2, length, 16), torch.ones(2, past + length), cache)
    program = observer.export().to("onnx", fuse="cpu")
    assert "GroupQueryAttention" not in operators(program)
    assert "its mask may let a token look ahead" in program.report.text(full=True)
    assert program.verify().verified, program.report.text()
    with pytest.raises(ExportError, match="cannot be updated in place") as refusal:
        observer.export().to("onnx", in_place_cache=True)
    assert refusal.value.slug == "onnx-cache-not-in-place"


#: rows and columns of a mask of some tokens behind a past, as ONNX
MASK = """
<ir_version: 10, opset_import: ["" : 23]>
mask (int64[batch, tokens] ids, int64[batch, length] shown) => (bool[batch, 1, tokens, length] out)
<
    int64[tokens] row, int64[length] column, int64[1, 1, tokens, 1] rows, int64[1, 1, 1, length] columns,
    int64[1, 1, tokens, 1] last, int64[1, 1, tokens, 1] next, int64[1, 1, tokens, 1] later,
    bool[1, 1, tokens, length] back, bool[1, 1, tokens, length] one_ahead, bool[1, 1, tokens, length] ahead,
    bool[1, 1, tokens, length] window, bool[batch, 1, 1, length] seen, bool[batch, 1, tokens, length] part,
    bool[batch, 1, tokens, length] first
>
{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    many = Constant <value_int = 1000> ()
    axes_of_rows = Constant <value_ints = [0, 1, 3]> ()
    axes_of_columns = Constant <value_ints = [0, 1, 2]> ()
    axes_of_seen = Constant <value_ints = [1, 2]> ()
    high = Constant <value_float = 0.0> ()
    low = Constant <value_float = -1e9> ()
    some_tokens = Shape <start = 1, end = 2> (ids)
    n_tokens = Squeeze (some_tokens)
    some_length = Shape <start = 1, end = 2> (shown)
    n_length = Squeeze (some_length)
    row = Range (zero, n_tokens, one)
    column = Range (zero, n_length, one)
    rows = Unsqueeze (row, axes_of_rows)
    columns = Unsqueeze (column, axes_of_columns)
    past = Sub (n_length, n_tokens)
    last = Add (rows, past)
    next = Add (last, one)
    thousands = Div (past, many)
    later = Add (last, thousands)
    back = LessOrEqual (columns, last)
    one_ahead = LessOrEqual (columns, next)
    ahead = Not (back)
    window = Greater (columns, rows)
    positive = Greater (shown, zero)
    seen = Unsqueeze (positive, axes_of_seen)
    %s
}
"""
LOOKS_BACK = (
    "out = And (seen, back)",
    "part = And (seen, back) out = Where (part, high, low)",
    "first = And (seen, window) out = And (first, back)",
    "first = And (back, window) out = And (seen, first)",
    "out = And (back, window)",
    "part = Less (columns, next) out = And (part, seen)",
    "part = GreaterOrEqual (last, columns) out = And (part, seen)",
    "part = Greater (columns, last) out = Where (part, low, high)",
    "out = Where (ahead, low, high)",
    "part = Or (ahead, window) out = Not (part)",
)
MAY_LOOK_AHEAD = (
    "out = And (seen, one_ahead)",
    "out = Or (seen, back)",
    "part = And (seen, ahead) out = Where (part, low, high)",  # hides it where a value says so
    "part = And (seen, back) out = Where (part, low, high)",
    "part = And (seen, ahead) out = Not (part)",
    "part = LessOrEqual (column, past) out = And (seen, part)",  # one row for all tokens
    "out = Identity (seen)",
    "part = LessOrEqual (columns, later) out = And (seen, part)",  # from a past of a thousand on
    "part = Less (columns, last) part_2 = Not (part) out = And (seen, part_2)",
    "out = Where (back, low, high)",
    "part = And (ahead, window) out = Not (part)",
    "part = LessOrEqual (rows, columns) out = And (seen, part)",
    "part = LessOrEqual (column, last) out = Or (back, part)",
)


@pytest.mark.parametrize("text", LOOKS_BACK)
def test_masks_that_look_back(text: str) -> None:
    assert looks_back(text)


@pytest.mark.parametrize("text", MAY_LOOK_AHEAD)
def test_masks_that_may_look_ahead(text: str) -> None:
    assert not looks_back(text)


def looks_back(text: str) -> bool:
    import onnx.parser
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    from onlooker.targets.onnx.served.group_query import is_causal
    from onlooker.targets.onnx.served.sizes import SizeNodes

    model = onnx_ir.from_proto(onnx.parser.parse_model(MASK % text))
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return is_causal(model.graph.outputs[0], "tokens", "length", SizeNodes(model))


class LooksAhead(torch.nn.Module):
    """Attention over a cache in which every token sees all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x: Any, mask: Any, cache: Any) -> Any:
        batch, tokens, _ = x.shape
        query, key, value = self.project(x).view(batch, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        seen = (mask > 0)[:, None, None, :].expand(batch, 1, tokens, mask.shape[1])
        found = torch.nn.functional.scaled_dot_product_attention(query, keys, values, seen)
        return found, (keys, values)


@pytest.mark.slow
def test_sizes_that_fill_no_block_have_a_scale_for_each_output() -> None:
    model = randomised(partial(torch.nn.Linear, 50, 8)).eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 3):
            model(torch.randn(rows, 4, 50))
    program = observer.export()
    for precision in ("int4", "int8"):
        small = program.to("onnx", precision=precision)
        assert "DequantizeLinear" in operators(small)
        assert small.verify().verified, small.tally.verdict
    half = program.to("onnx", precision="fp16")
    assert half.verify(atol=1e-2, agreement=0.5).verified


def test_a_graph_without_a_product_has_no_integers() -> None:
    program = onlooker.export(torch.nn.ReLU(), torch.randn(3, 4))
    for precision in ("int4", "int8-static"):
        with pytest.raises(ExportError, match="it has no product") as refusal:
            program.to("onnx", precision=precision)
        assert refusal.value.slug == "onnx-not-quantised"


def test_options_that_cannot_be_meant() -> None:
    program = onlooker.export(torch.nn.ReLU(), torch.randn(3, 4))
    for options in (
        {"precision": "int3"},
        {"fuse": "tpu"},
        {"in_place_cache": "yes"},
        {"in_place_cache": True, "merged": True},
        {"fuse": "cpu", "opset": 20},
    ):
        with pytest.raises(UsageError) as refusal:
            program.to("onnx", **options)
        assert refusal.value.slug == "bad-variant"
    for agreement in (-1, 2, "all", True):
        with pytest.raises(UsageError, match="agreement"):
            program.verify(agreement=agreement)
