"""``check_discrepancies``: observed results beside those of exported models, call by call."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import onnx
import onnx.helper
import pytest
import torch

from onlooker import InputObserver, MissingPackageError, UsageError, make_dynamic_cache, register_flattening_functions
from onlooker.by_hand.discrepancies import Rules, judge
from onlooker.core.errors import ArgumentKindError
from onlooker.core.path import Attr, Index, Key, Name, Path
from onlooker.targets.onnx.runtime import model as onnx_model
from onlooker.targets.onnx.runtime.feeds import match_inputs, spellings

KEYS = {
    *("index", "SUCCESS", "error", "abs", "rel", "sum", "n", "dnan", "dev", ">0.1", ">0.01", "n_inputs", "n_none"),
    *("n_empty", "duration_torch", "ort_duration", "atol", "rtol", "inputs", "outputs_torch", "outputs_ort"),
}
NAN = float("nan")
Rows = list[dict[str, Any]]


class Sum(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x * 2 if y is None else x * 2 + y


class Outputs(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2, None, {"positive": x > 0, "none": None}, [x.sum(), x[:0], x.long()]


class Attention(torch.nn.Module):
    """As a decoder: a cache that may be empty or absent, grown by the tokens."""

    def forward(self, input_ids: Any, past_key_values: Any = None) -> Any:
        keys = past_key_values.layers[0].keys if past_key_values is not None and len(past_key_values.layers) else None
        new = input_ids.to(torch.float32)[:, None, :, None].expand(-1, 1, -1, 4)
        return new * 3 if keys is None else torch.cat([keys, new * 3], dim=2)


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def watched(model: torch.nn.Module, calls: list[Any], **options: Any) -> InputObserver:
    observer = InputObserver(**options)
    with observer(model, store_n_calls=len(calls)):
        for call in calls:
            model(**call) if isinstance(call, dict) else model(*call)
    return observer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings, the lines and the log of the converter."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), register_flattening_functions():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def to_onnx(model: torch.nn.Module, observer: InputObserver, **options: Any) -> Any:
    """What torch.onnx makes of what was inferred."""
    args, kwargs = observer.infer_arguments(as_args_kwargs=True)
    shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
    with quiet():
        return torch.onnx.export(
            model, args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True, verbose=False, **options
        )


def steps(*pasts: int | None) -> list[dict[str, Any]]:
    """A prefill without a cache (None), or with an empty one (0), and steps with filled ones."""
    calls = []
    for past in pasts:
        call: dict[str, Any] = {"input_ids": torch.randint(0, 9, (2, 7 if not past else 1))}
        if past == 0:
            from transformers import DynamicCache

            call["past_key_values"] = DynamicCache()
        elif past:
            call["past_key_values"] = make_dynamic_cache([(t(2, 1, past, 4), t(2, 1, past, 4))])
        calls.append(call)
    return calls


def all_hold(rows: Rows, count: int) -> bool:
    return len(rows) == count and all(row["SUCCESS"] and row["error"] is None for row in rows)


@pytest.fixture(scope="module")
def observed() -> InputObserver:
    return watched(Sum(), [(t(n, 4), t(n, 4)) for n in (3, 4, 5)])


@pytest.fixture(scope="module")
def program(observed: InputObserver) -> Any:
    return to_onnx(Sum(), observed)


# what is taken


def kinds(program: Any, folder: FilePath, observer: InputObserver) -> dict[str, Any]:
    path = folder / "model.onnx"
    onnx.save(program.model_proto, str(path))
    arguments, shapes = observer.infer_arguments(), observer.infer_dynamic_shapes()
    ours = observer.export()
    return {
        "text path": str(path),
        "path": path,
        "proto": program.model_proto,
        "onnx program": program,
        "ir model": program.model,
        "torch program": torch.export.export(Sum(), arguments, dynamic_shapes=shapes),
        "graph module": torch.export.export(Sum(), arguments, dynamic_shapes=shapes).module(),
        "our program": ours,
        "our program as ONNX": ours.to("onnx"),
        "our graph": ours.graphs[0],
        "our artifact": ours.to("onnx").graphs[0].artifact,
        "model": Sum(),
        "function": lambda x, y: 2 * x + y,
    }


def test_every_kind_of_exported_model_is_taken(program: Any, observed: InputObserver, tmp_path: FilePath) -> None:
    for kind, model in kinds(program, tmp_path, observed).items():
        rows = observed.check_discrepancies(model)
        assert all_hold(rows, 3), (kind, rows)
        assert [row["n_inputs"] for row in rows] == [2, 2, 2], kind


def test_an_artifact_that_holds_a_proto_is_taken(program: Any, observed: InputObserver) -> None:
    class Artifact:
        proto = program.model_proto

    assert all_hold(observed.check_discrepancies(Artifact()), 3)


@pytest.mark.parametrize("model", [None, 3, {"a": 1}], ids=repr)
def test_what_cannot_be_run_is_refused(model: Any, observed: InputObserver) -> None:
    with pytest.raises(ArgumentKindError, match=r"is not a model that can be run\..* \[not-a-model\]") as caught:
        observed.check_discrepancies(model)
    assert isinstance(caught.value, TypeError)


def test_a_file_that_is_no_model_is_refused(observed: InputObserver, tmp_path: FilePath) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for path in (tmp_path / "text.onnx", str(tmp_path / "absent.onnx")):
        with pytest.raises(UsageError, match=r"cannot be loaded by ONNX Runtime: .* \[model-not-loaded\]"):
            observed.check_discrepancies(path)


def test_onnxruntime_may_be_absent(program: Any, observed: InputObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'onlooker\[onnx\]'"):
        observed.check_discrepancies(program)


def test_a_model_too_large_for_one_message_goes_by_a_file(
    program: Any, observed: InputObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_model, "_LARGEST", 1)
    assert all_hold(observed.check_discrepancies(program), 3)


# the rows


def test_a_row_per_call_with_the_same_keys(program: Any, observed: InputObserver) -> None:
    rows = observed.check_discrepancies(program)
    assert [set(row) for row in rows] == [KEYS] * 3
    assert [list(row) for row in rows] == [list(rows[0])] * 3
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["n"] for row in rows] == [12, 16, 20]
    assert {(row["atol"], row["rtol"], row["n_none"], row["n_empty"]) for row in rows} == {(1e-4, 0.1, 0, 0)}
    assert all(row["duration_torch"] > 0 and row["ort_duration"] > 0 for row in rows)
    assert rows[0]["inputs"].startswith("dict(x:T1s3x4[")
    columns = {key: [row[key] for row in rows] for key in rows[0]}  # what a DataFrame makes of it
    assert max(columns["abs"]) < 1e-5


def test_texts_and_counts_are_as_asked(program: Any, observed: InputObserver) -> None:
    rows = observed.check_discrepancies(program, atol=0.5, rtol=0.25, hist=(1, 2.5), include_io=False)
    assert [set(row) for row in rows] == [
        KEYS - {">0.1", ">0.01", "inputs", "outputs_torch", "outputs_ort"} | {">1", ">2.5"}
    ] * 3
    assert {(row["atol"], row["rtol"], row[">1"], row[">2.5"]) for row in rows} == {(0.5, 0.25, 0, 0)}


def test_progress_is_shown_beside_the_output(
    program: Any, observed: InputObserver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all_hold(observed.check_discrepancies(program, progress_bar=True), 3)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "comparing" in shown.err


def test_nothing_changes_and_the_order_of_asking_is_free(observed: InputObserver, program: Any) -> None:
    def numbers(rows: Rows) -> Any:
        return [(row["abs"], row["inputs"], row["outputs_torch"], row["outputs_ort"]) for row in rows]

    fresh = watched(Sum(), [(t(n, 4), t(n, 4)) for n in (3, 4)])
    assert all_hold(fresh.check_discrepancies(program), 2)  # before any infer_*
    first = numbers(observed.check_discrepancies(program))
    observed.infer_arguments()
    assert numbers(observed.check_discrepancies(program)) == first


def test_calls_kept_without_being_asked_for_are_no_rows_but_for_want_of_others(program: Any) -> None:
    model, observer = Sum(), InputObserver()
    with observer(model, store_n_calls=0):
        model(t(3, 4), t(3, 4))
    assert all_hold(observer.check_discrepancies(program), 1)


# a failing call


def test_a_failing_call_is_a_row(program: Any) -> None:
    observer = watched(Sum(), [(t(3, 4), t(3, 4)), (t(3, 5), t(3, 5)), (t(2, 4), t(2, 4))])
    rows = observer.check_discrepancies(program)
    assert [row["SUCCESS"] for row in rows] == [True, False, True]
    assert [set(row) for row in rows] == [KEYS] * 3
    failed = rows[1]
    assert "Got: 5 Expected: 4" in failed["error"]
    assert (failed["abs"], failed["rel"], failed["n"], failed["outputs_ort"]) == (math.inf, math.inf, 0, "")
    assert failed["inputs"].startswith("dict(x:T1s3x5[")


@pytest.mark.slow
def test_a_model_with_other_inputs_fails_in_every_row(observed: InputObserver) -> None:
    class Three(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return a + b + c

    other = to_onnx(Three(), watched(Three(), [(t(n, 4), t(n, 4), t(n, 4)) for n in (3, 4)]))
    rows = observed.check_discrepancies(other)
    assert {row["SUCCESS"] for row in rows} == {False}
    assert "The model has inputs a, b, c that no argument is called like; left are x, y." in rows[0]["error"]


def test_calls_that_contradict_each_other_are_compared_one_by_one() -> None:
    model = Sum()
    observer = watched(model, [(t(3, 4), t(3, 4)), (t(3, 4), [t(3, 4)][0].long()), (t(3, 4), t(4))])
    with pytest.raises(RuntimeError):
        observer.infer_arguments()
    rows = observer.check_discrepancies(lambda x, y: x * 2 + y)
    assert all_hold(rows, 3)


# what is different


@pytest.mark.parametrize(
    ("function", "largest", "dnan", "error"),
    [
        (lambda x, y: 2 * x + y + 1e-6, 1e-6, 0, None),
        (lambda x, y: 2 * x + y + 0.5, 0.5, 0, None),
        (lambda x, y: (2 * x + y).masked_fill(torch.ones_like(x) > 0, NAN), math.inf, 12, None),
        (lambda x, y: (2 * x + y)[:2], math.inf, 0, "not the same shape: output is float32[2, 4], float32[3, 4]"),
        (lambda x, y: (2 * x + y)[:0], math.inf, 0, "not the same shape"),
        (lambda x, y: (2 * x + y).double(), math.inf, 0, "not the same type: output is float64[3, 4], float32[3, 4]"),
        (lambda x, y: (2 * x + y, x), math.inf, 0, "not the same number of outputs: 2 outputs of the model, 1"),
        (lambda x, y: None, math.inf, 0, "missing output"),
        (lambda x: x, math.inf, 0, "TypeError"),
    ],
    ids=["close", "far", "NaN", "shape", "empty", "dtype", "number", "None", "call"],
)
def test_differences_are_told(function: Any, largest: float, dnan: int, error: str | None) -> None:
    observer = watched(Sum(), [{"x": torch.ones(3, 4), "y": torch.ones(3, 4)}])
    (row,) = observer.check_discrepancies(function)
    assert row["abs"] == pytest.approx(largest, rel=0.2)
    assert row["dnan"] == dnan
    assert row["SUCCESS"] is (largest < 1e-4)
    assert row["error"] is None if error is None else error in row["error"]


def test_the_counts_are_those_of_the_differences() -> None:
    observer = watched(Sum(), [{"x": torch.ones(3, 4), "y": torch.ones(3, 4)}])
    (row,) = observer.check_discrepancies(lambda x, y: 2 * x + y + torch.tensor([0.0, 0.05, 0.5, 5.0]))
    assert (row[">0.1"], row[">0.01"], row["n"]) == (6, 9, 12)
    assert row["sum"] == pytest.approx(3 * 5.55)


def leaves(*values: Any) -> list[tuple[Path, Any]]:
    return [(Path((Index(i),)), value) for i, value in enumerate(values)]


ONE, ZERO, EMPTY = torch.ones(2), torch.zeros(2), torch.ones(0, 2)
TRUE, FALSE = torch.tensor([True, True]), torch.tensor([True, False])


@pytest.mark.parametrize(
    ("expected", "got", "largest", "error"),
    [
        ((torch.tensor([1.0, NAN]),), [torch.tensor([1.0, NAN])], 0, None),
        ((torch.tensor([1.0, NAN]),), [torch.tensor([NAN, 1.0])], math.inf, None),
        ((torch.tensor([math.inf]),), [torch.tensor([math.inf])], 0, None),
        ((torch.tensor([math.inf]),), [torch.tensor([-math.inf])], math.inf, None),
        ((EMPTY,), [EMPTY], 0, None),
        ((EMPTY,), [torch.ones(0, 3)], None, "not the same shape: output[0] is float32[0, 3], float32[0, 2]"),
        ((TRUE,), [TRUE], 0, None),
        ((TRUE,), [FALSE], 1, None),
        ((TRUE,), [TRUE.float()], None, "not the same type"),
        ((ONE, None, ZERO), [ONE, ZERO], 0, None),
        ((ONE, None, ZERO), [ONE, None, ZERO], 0, None),
        ((None, ONE, None), [ONE], 0, None),
        ((None, ONE), [None, ONE], 0, None),
        ((None, ONE), [ONE, None], 0, None),
        ((ONE, 3, "text"), [ONE], 0, None),
        ((ONE, 3), [ONE, torch.tensor([3])], 0, None),
        ((ONE, 3), [ONE, torch.tensor(4)], 1, None),
        ((ONE, 3), [ONE, torch.tensor([3, 3])], None, "not the same shape"),
        ((ONE, ZERO), [ONE], None, "not the same number of outputs: 1 outputs of the model, 2 of the call"),
        ((ONE,), [], None, "not the same number of outputs"),
        ((None,), [], 0, None),
        ((), [], 0, None),
        ((ONE,), [None], None, "missing output"),
    ],
)
def test_outputs_are_aligned_and_judged(expected: Any, got: list[Any], largest: float, error: str | None) -> None:
    judged = judge(leaves(*expected), got, Rules())
    if error is None:
        assert (judged.error, judged.difference.abs) == (None, largest)
    else:
        assert error in str(judged.error)


@pytest.mark.parametrize(
    ("expected", "got", "error"),
    [
        ((ONE, None), [ONE, None], None),
        ((ONE, None), [ONE], "not the same number of outputs"),
        ((ONE, None), [ONE, ZERO], "missing output: output[1] is float32[2], None is expected"),
        ((ONE, ZERO), [ONE, None], "missing output: output[1] is None, float32[2] is expected"),
    ],
)
def test_none_is_an_output_where_it_is_not_skipped(expected: Any, got: list[Any], error: str | None) -> None:
    judged = judge(leaves(*expected), got, Rules(skip_none=False))
    assert judged.error is None if error is None else error in str(judged.error)


def test_none_bool_empty_and_nan_outputs_of_a_real_export() -> None:
    model = Outputs()
    observer = watched(model, [(t(n, 4),) for n in (3, 4)] + [(torch.zeros(2, 4),)])
    exported = to_onnx(model, observer)
    assert all_hold(observer.check_discrepancies(exported), 3)
    (row,) = watched(model, [(torch.full((2, 4), NAN),)]).check_discrepancies(exported)
    assert row["dnan"] == 0
    assert {row["SUCCESS"] for row in observer.check_discrepancies(exported, skip_none=False)} == {False}


@pytest.mark.slow
def test_a_wrong_export_is_found_out(observed: InputObserver) -> None:
    class Wrong(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return (x * 2 + y).sqrt()  # NaN where the model gives negative numbers

    wrong = to_onnx(Wrong(), observed)
    rows = observed.check_discrepancies(wrong)
    assert {row["SUCCESS"] for row in rows} == {False}
    assert all(row["dnan"] > 0 and row["abs"] == math.inf for row in rows)


# missing inputs


@pytest.mark.parametrize(
    "names", [None, ["input_ids", "past_key_values.0.key", "past_key_values.0.value"], list("abc")]
)
@pytest.mark.parametrize("first", [0, None], ids=["empty", "absent"])
@pytest.mark.one_in(6)
def test_a_missing_cache_is_completed(first: int | None, names: list[str] | None) -> None:
    model = Attention()
    observer = watched(model, steps(first, 7, 8))
    exported = to_onnx(model, observer, input_names=names)
    rows = observer.check_discrepancies(exported)
    assert [row["error"] for row in rows] == [None] * 3
    assert all_hold(rows, 3)
    assert [(row["n_none"], row["n_empty"]) for row in rows] == [(2, 2), (0, 0), (0, 0)]


@pytest.mark.slow
def test_a_value_given_for_a_missing_argument_is_used() -> None:
    class Pick(torch.nn.Module):
        def forward(self, x: Any, y: Any = None) -> Any:
            return x if y is None else x + y.sum()

    model = Pick()
    observer = watched(model, [(t(3),), (t(4), t(5)), (t(5), t(6))], value_if_missing={"y": torch.zeros(0)})
    rows = observer.check_discrepancies(to_onnx(model, observer))
    assert all_hold(rows, 3)
    assert [row["n_none"] for row in rows] == [1, 0, 0]


def test_a_program_of_torch_gets_the_completed_call() -> None:
    model = Attention()
    observer = watched(model, steps(None, 7, 8))
    with quiet():
        exported = torch.export.export(
            model,
            (),
            observer.infer_arguments(),
            dynamic_shapes=observer.infer_dynamic_shapes(set_batch_dimension_for=True),
        )
    rows = observer.check_discrepancies(exported)
    assert [row["error"] for row in rows[1:]] == [None, None]


def test_a_program_of_ours_gets_the_call_as_it_was() -> None:
    observer = watched(Attention().eval(), steps(0, 7, 8))
    assert all_hold(observer.check_discrepancies(observer.export()), 3)


def test_bfloat16_goes_both_ways() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.to(torch.bfloat16) * 2, x

    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BFLOAT16, ["a", 4]) for n in "xyz"]
    nodes = [onnx.helper.make_node("Identity", ["x"], [name]) for name in "yz"]
    graph = onnx.helper.make_graph(nodes, "same", info[:1], info[1:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    observer = watched(Double(), [(torch.zeros(n, 4, dtype=torch.bfloat16),) for n in (2, 3)])
    assert all_hold(observer.check_discrepancies(proto), 2)
    (row,) = watched(Double(), [(torch.ones(2, 4, dtype=torch.bfloat16),)]).check_discrepancies(proto)
    assert (row["SUCCESS"], row["abs"]) == (False, 1)


@pytest.mark.slow
def test_a_language_model_converted_by_torch_is_compared_call_by_call() -> None:
    """One head of keys, and one token a step: two sizes that are equal by accident."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, **sizes)
    model = LlamaForCausalLM(config).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        ids, cache = torch.randint(0, 64, (2, 7)), None
        for total in (7, 8, 9):
            mask = torch.ones(2, total, dtype=torch.int64)
            result = model(input_ids=ids, attention_mask=mask, past_key_values=cache)
            ids, cache = result.logits[:, -1:].argmax(-1), result.past_key_values
    with torch.no_grad():
        exported = to_onnx(model, observer)
    assert [value.name for value in exported.model.graph.inputs][2:] == [
        "past_key_values_key_0",
        "past_key_values_value_0",
    ]
    rows = observer.check_discrepancies(exported)
    assert all_hold(rows, 3), rows
    assert [row["n_none"] for row in rows] == [2, 0, 0]


# names


def layer(*before: Any, index: int = 0, name: str = "keys") -> Path:
    return Path((Name("past_key_values"), *before, Attr("layers"), Index(index), Attr(name)))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (Path((Name("x"),)), "x"),
        (Path((Name("args"), Index(1))), "args_1"),
        (Path((Name("y"), Key("a"), Index(0))), "y_a_0"),
        (layer(), "past_key_values.0.key"),
        (layer(index=3, name="values"), "past_key_values_value_3"),
        (layer(), "past_key_values_key_0"),
        (layer(), "key_0"),
        (layer(), "past_key_values_0_key"),
        (layer(), "past_key_values.key_cache.0"),
        (layer(Attr("self_attention_cache")), "past_key_values_self_attention_cache_key_0"),
    ],
)
def test_a_leaf_is_known_by_what_exporters_call_it(path: Path, name: str) -> None:
    others = {Path((Name(f"other_{i}"),)): ONE for i in range(2)}
    assert match_inputs([name], {**others, path: ONE}) == {name: path}
    assert all(text == text.lower() for text in spellings(path))


def test_short_names_that_two_leaves_could_have_are_not_used() -> None:
    own, cross = (layer(Attr(f"{kind}_attention_cache")) for kind in ("self", "cross"))
    assert match_inputs(["key_0", "key_0_1"], {own: ONE, cross: ONE}) == {"key_0": own, "key_0_1": cross}


def test_inputs_without_telling_names_go_by_order() -> None:
    x, n, flag, text = (Path((Name(name),)) for name in ("x", "n", "flag", "text"))
    values = {x: ONE, n: 3, flag: True, text: "a"}
    assert match_inputs(["input"], values) == {"input": x}
    assert match_inputs(["a", "b", "c"], values) == {"a": x, "b": n, "c": flag}
    assert match_inputs(["n", "input"], values) == {"n": n, "input": x}
    with pytest.raises(UsageError, match=r"\[inputs-do-not-match\]"):
        match_inputs(["a", "b"], values)


class LeavesOut(torch.nn.Module):
    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = ids * 0.5
        return hidden.cumsum(dim=1) if attention_mask is None else (hidden * attention_mask).cumsum(dim=1)


def test_a_mask_that_no_call_passed_is_ones(tmp_path: FilePath) -> None:
    model, observer = LeavesOut(), InputObserver()
    with observer(model):
        for length in (4, 6, 9):
            model(torch.arange(2 * length).reshape(2, length))
    (path,) = observer.export(to="onnx").save_graphs(tmp_path)
    assert [(row["SUCCESS"], row["abs"]) for row in observer.check_discrepancies(path)] == [(True, 0.0)] * 3
