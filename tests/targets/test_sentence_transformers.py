"""Folders for sentence-transformers, run by it with its ONNX backend: the embeddings are those of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onlooker
from onlooker import OnlookerWarning, Program, UnsupportedError
from tiny_texts import (
    LONG,
    TEXTS,
    bert,
    in_sentence_transformers,
    require_sentence_transformers,
    tokenizer,
)

onnxruntime = pytest.importorskip("onnxruntime")
sentence_transformers = pytest.importorskip("sentence_transformers")

WATCHED = (["the cat sat on a mat", "dog"], ["the cat", "a dog ran far away in sun", "we saw it all day long in rain"])
#: what is computed in another order differs by so much
CLOSE = 1e-5


def embedder(folder: Path, *, pooling: str = "mean", normalised: bool = True, more: Any = ()) -> Any:
    """A model of sentence-transformers with random weights, beside which its encoder is saved."""
    modules = sentence_transformers.sentence_transformer.modules
    bert().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    parts = [modules.Transformer(str(folder)), modules.Pooling(32, pooling), *more]
    parts += [modules.Normalize()] if normalised else []
    prompts = {"query": "we saw "}
    return sentence_transformers.SentenceTransformer(modules=parts, device="cpu", prompts=prompts)


def watched(model: Any, **options: Any) -> Program:
    observer = onlooker.InputObserver()
    with observer(model):
        for texts in WATCHED:
            model.encode(texts)
    return observer.export(**options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Program, Path]:
    place = tmp_path_factory.mktemp("sentences")
    model = embedder(place / "encoder")
    program = watched(model, to="onnx")
    assert program.verify().verified
    program.save_sentence_transformers(place / "out")
    return model, program, place / "out"


def test_the_embeddings_of_the_reader_are_those_of_the_model(made: tuple[Any, Program, Path], tmp_path: Path) -> None:
    model, _, folder = made
    found = in_sentence_transformers(folder, {"texts": TEXTS, "batch_sizes": [1, 3, 32]}, tmp_path)
    expected = model.encode(TEXTS)
    assert len(found["rows"]) == 3
    for rows in found["rows"]:
        numpy.testing.assert_allclose(numpy.array(rows), expected, atol=CLOSE)
    assert found["longest"] == model.max_seq_length == 64
    assert found["prompts"]["query"] == "we saw "


@pytest.mark.parametrize("pooling", ["cls", ("max", "weightedmean")])
def test_the_embeddings_of_another_pooling_without_normalisation(pooling: Any, tmp_path: Path) -> None:
    require_sentence_transformers()
    model = embedder(tmp_path / "encoder", pooling=pooling, normalised=False)
    watched(model, to="onnx").save_sentence_transformers(tmp_path / "out")
    found = in_sentence_transformers(tmp_path / "out", {"texts": TEXTS, "batch_sizes": [2]}, tmp_path)
    numpy.testing.assert_allclose(numpy.array(found["rows"][0]), model.encode(TEXTS), atol=CLOSE)


def test_the_file_alone_pools_and_normalises(made: tuple[Any, Program, Path]) -> None:
    model, _, folder = made
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    assert [port.name for port in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert [port.name for port in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:4]):
        inputs = model.tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        feeds = {port.name: inputs[port.name].astype("int64") for port in session.get_inputs()}
        found = session.run(["sentence_embedding"], feeds)[0]
        numpy.testing.assert_allclose(found, model.encode(texts), atol=CLOSE)
        numpy.testing.assert_allclose(numpy.linalg.norm(found, axis=1), 1.0, atol=CLOSE)


def test_what_stands_in_the_folder(made: tuple[Any, Program, Path]) -> None:
    _, program, folder = made
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [
        "1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "modules.json",
        "onnx/model.onnx", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True
    assert pooling["pooling_mode_cls_token"] is False
    # version 4 of transformers, which the ONNX backend runs beside, knows no TokenizersBackend
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    (folder / "mine.txt").write_text("stays")
    files = program.save_sentence_transformers(folder)
    assert sorted(str(path.relative_to(folder)) for path in files) == names
    assert (folder / "mine.txt").read_text() == "stays"


def test_a_loaded_program_takes_the_model(made: tuple[Any, Program, Path], tmp_path: Path) -> None:
    model, program, folder = made
    program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, Program)
    with pytest.raises(UnsupportedError, match="no model is here") as refused:
        loaded.save_sentence_transformers(tmp_path / "out")
    assert refused.value.slug == "not-for-sentence-transformers"
    assert not (tmp_path / "out").exists()
    loaded.save_sentence_transformers(tmp_path / "out", model=model)
    same = ("modules.json", "config.json", "sentence_bert_config.json")
    assert [(tmp_path / "out" / name).read_text() for name in same] == [(folder / name).read_text() for name in same]


def test_texts_are_cut_at_the_length_that_is_proven(tmp_path: Path) -> None:
    model = embedder(tmp_path / "encoder")
    program = watched(model, to="onnx", ranges={"sequence": (1, 20)})
    with pytest.warns(OnlookerWarning, match="up to 20 tokens, and not of 64") as seen:
        program.save_sentence_transformers(tmp_path / "out")
    assert [getattr(warning.message, "slug", "") for warning in seen] == ["shorter-texts"]
    found = in_sentence_transformers(tmp_path / "out", {"texts": [LONG], "batch_sizes": [1]}, tmp_path)
    model.max_seq_length = 20
    numpy.testing.assert_allclose(numpy.array(found["rows"][0]), model.encode([LONG]), atol=CLOSE)


def of_torch(place: Path) -> Any:
    return watched(embedder(place / "encoder"))


def of_the_encoder(place: Path) -> Any:
    observer, model, reads = onlooker.InputObserver(), bert(), tokenizer()
    with observer(model), torch.no_grad():
        for texts in WATCHED:
            model(**reads(texts, padding=True, return_tensors="pt"))
    return observer.export()


def of_one_text(place: Path) -> Any:
    return watched(embedder(place / "encoder"), to="onnx", ranges={"batch": (1, 8)})


def with_a_dropout(place: Path) -> Any:
    dropout = sentence_transformers.sentence_transformer.modules.Dropout(0.1)
    return watched(embedder(place / "encoder", more=[dropout]).eval(), to="onnx")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (of_torch, "a program of torch"),
        (of_the_encoder, "a BertModel was watched"),
        (of_one_text, "does not take 32 texts of 2 tokens"),
        (with_a_dropout, "Dropout, a module of it, is not known here"),
    ],
    ids=["torch", "an encoder alone", "few texts at once", "another module"],
)
def test_what_the_reader_cannot_read_is_refused(program: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refused:
        program(tmp_path).save_sentence_transformers(tmp_path / "out")
    assert refused.value.slug == "not-for-sentence-transformers"
    assert not (tmp_path / "out").exists()
