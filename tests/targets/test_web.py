"""Folders for transformers.js, run by it in node and by onnxruntime-web: each file is as near as it says."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onlooker
from onlooker import Program, UnsupportedError, UsageError
from onlooker.targets.onnx.readers import handed_over
from onlooker.targets.onnx.readers.web import WebFile
from tiny_texts import TEXTS, bert, in_node, require_node, tokenizer

onnxruntime = pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers")

Made = tuple[Any, Program, list[WebFile], Path]
NAMES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "q8": "model_quantized.onnx", "q4": "model_q4.onnx"}
WATCHED = (["the cat sat on a mat", "dog"], ["the cat", "a dog ran far away in sun", "we saw it all day long in rain"])
BATCHES = (TEXTS[:2], TEXTS[3:4], TEXTS[3:])
#: another build of ONNX Runtime computes in another order
CLOSE = 1e-5


def watched(model: Any, calls: Any = WATCHED) -> Program:
    observer, reads = onlooker.InputObserver(), tokenizer()
    with observer(model), torch.no_grad():
        for texts in calls:
            model(**reads(texts, padding=True, return_tensors="pt"))
    return observer.export()


def hidden(model: Any, texts: list[str]) -> Any:
    with torch.no_grad():
        return model(**tokenizer()(texts, padding=True, return_tensors="pt")).last_hidden_state.numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("web") / "encoder"
    model = bert()
    program = watched(model)
    return model, program, program.save_web(folder, tokenizer()), folder


def distances(files: list[WebFile]) -> dict[str, float]:
    return {file.dtype: file.tally.difference for file in files if file.tally is not None}


def test_each_file_says_how_near_it_is(made: Made) -> None:
    _, _, files, folder = made
    assert [(file.dtype, file.path.name) for file in files] == list(NAMES.items())
    assert all(file.path.is_file() and file.size == file.path.stat().st_size and file.holds for file in files)
    first, *others = files
    assert first.verdict.startswith("verified, largest difference ")
    for file in others:
        assert re.match(r"differs from the model by up to 0\.0\d+ in \d+ trials; the largest number", file.verdict)
        assert "verified" not in str(file)
    found = distances(files)
    assert found["fp32"] < CLOSE < found["q8"] < found["q4"] < 0.1
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [
        "config.json",
        *sorted(f"onnx/{name}" for name in NAMES.values()),
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertModel"])


def test_transformers_js_gives_what_the_files_say(made: Made, tmp_path: Path) -> None:
    model, _, files, folder = made
    asked = {"batches": BATCHES, "dtypes": list(NAMES), "architecture": "BertModel", "padding_side": "right"}
    found = in_node("encode.mjs", folder, asked, tmp_path)
    measured = distances(files)
    for dtype in NAMES:
        for texts, rows in zip(BATCHES, found[dtype], strict=True):
            distance = float(numpy.abs(numpy.array(rows) - hidden(model, texts)).max())
            assert distance < (CLOSE if dtype == "fp32" else 2 * measured[dtype]), (dtype, texts, distance)


def test_onnxruntime_web_gives_what_the_files_say(made: Made, tmp_path: Path) -> None:
    model, _, files, folder = made
    inputs = tokenizer()(TEXTS[3:], padding=True, return_tensors="pt")
    names = ("input_ids", "attention_mask")
    asked = {"inputs": {name: inputs[name].tolist() for name in names}, "files": list(NAMES.values())}
    found = in_node("wasm.mjs", folder, asked, tmp_path)
    expected = hidden(model, TEXTS[3:])
    for dtype, distance in distances(files).items():
        rows = numpy.array(found[NAMES[dtype]]).reshape(expected.shape)
        assert numpy.abs(rows - expected).max() < (CLOSE if dtype == "fp32" else 2 * distance), dtype


def decoder() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_transformers_js_generates_the_tokens_of_the_model(tmp_path: Path) -> None:
    require_node()
    model, reads, observer = decoder(), tokenizer(), onlooker.InputObserver()
    reads.padding_side = "left"
    settings = {"max_new_tokens": 6, "do_sample": False}
    with observer(model):
        for texts in (WATCHED[0], ["a dog ran far"]):
            model.generate(**reads(texts, padding=True, return_tensors="pt"), **settings)
    files = observer.export().save_web(tmp_path / "decoder", reads, dtypes=("fp32", "fp16"))
    assert [file.holds for file in files] == [True, True]
    assert (tmp_path / "decoder" / "generation_config.json").is_file()
    batches = [["the cat sat on a mat", "dog", "we saw"], ["in sun rain fell"]]
    asked: dict[str, Any] = {"batches": batches, "dtypes": ["fp32", "fp16"], "architecture": "LlamaForCausalLM"}
    found = in_node(
        "encode.mjs", tmp_path / "decoder", {**asked, "padding_side": "left", "generate": settings}, tmp_path
    )
    expected = [model.generate(**reads(texts, padding=True, return_tensors="pt"), **settings) for texts in batches]
    assert found["fp32"] == found["fp16"] == [tokens.tolist() for tokens in expected]


def test_weights_that_stand_beside_their_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_node()
    monkeypatch.setattr(handed_over, "MOST_IN_ONE_FILE", 1024)
    model = bert()
    (file,) = watched(model).save_web(tmp_path / "encoder", tokenizer(), dtypes="fp32", verify=False)
    beside = tmp_path / "encoder" / "onnx" / "model.onnx_data"
    assert file.size == file.path.stat().st_size + beside.stat().st_size
    assert (file.verdict, file.holds) == ("not compared with the model", False)
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    assert config["transformers.js_config"] == {"use_external_data_format": {"model.onnx": 1}}
    asked = {"batches": BATCHES[:1], "dtypes": ["fp32"], "architecture": "BertModel", "padding_side": "right"}
    found = in_node("encode.mjs", tmp_path / "encoder", asked, tmp_path)
    numpy.testing.assert_allclose(numpy.array(found["fp32"][0]), hidden(model, BATCHES[0]), atol=CLOSE)


def test_weights_without_whole_blocks_have_every_dtype(tmp_path: Path) -> None:
    program = watched(bert(hidden=24, num_attention_heads=2))
    files = program.save_web(tmp_path / "out", dtypes=("fp32", "q4"), verify=False)
    assert [file.dtype for file in files] == ["fp32", "q4"]


def test_a_file_that_is_judged_holds_or_does_not(made: Made, tmp_path: Path) -> None:
    _, program, files, folder = made
    (q4,) = program.save_web(tmp_path / "out", config=folder, dtypes=["q4"], atol=1e-5)
    assert not q4.holds
    assert re.match(r"not verified: \d+ of \d+ trials failed, largest difference 0\.00", q4.verdict)
    # of a trial that fails it is that of the first output that differs
    assert CLOSE < q4.to_dict()["difference"] <= distances(files)["q4"]
    near = replace(q4, tally=files[3].tally)
    assert near.verdict.startswith("verified, largest difference 0.0")


def test_what_transformers_js_cannot_run_is_refused(made: Made, tmp_path: Path) -> None:
    program, observer, linear = made[1], onlooker.InputObserver(), torch.nn.Linear(4, 2)
    with observer(linear), torch.no_grad():
        linear(torch.ones(2, 4)), linear(torch.ones(3, 4))
    with pytest.raises(UnsupportedError, match="its model has no configuration") as refused:
        observer.export().save_web(tmp_path / "out")
    assert refused.value.slug == "not-for-web"
    with pytest.raises(UnsupportedError, match="generates with an encoder"):
        program.save_web(tmp_path / "out", config=transformers.BartConfig())
    with pytest.raises(UsageError, match="dtypes is 'int8'") as wrong:
        program.save_web(tmp_path / "out", dtypes="int8")
    assert wrong.value.slug == "bad-variant"
    with pytest.raises(UsageError, match="there is no config") as wrong:
        program.save_web(tmp_path / "out", config=tmp_path, dtypes="fp32", verify=False)
    assert wrong.value.slug == "bad-config"
    assert not (tmp_path / "out").exists()


def test_graphs_of_other_inputs_are_no_model_for_the_web(tmp_path: Path) -> None:
    observer, model = onlooker.InputObserver(), bert()
    ids = torch.arange(4, 14).reshape(2, 5)
    with observer(model), torch.no_grad():
        for size in (3, 5):
            model(input_ids=ids[:, :size], attention_mask=torch.ones_like(ids[:, :size]))
            model(inputs_embeds=torch.ones(2, size, 32))
    with warnings.catch_warnings(), pytest.raises(UnsupportedError, match="graphs take different inputs"):
        observer.export().save_web(tmp_path / "out", dtypes="fp32", verify=False)
