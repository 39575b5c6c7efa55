"""Folders for ONNX Runtime GenAI, run by it: the tokens are those of transformers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, OnlookerWarning, Program, UnsupportedError, UsageError
from onlooker.zoo import tiny_model
from onlooker.zoo.draw import randomised
from target_models import GROWING, Growing, exported

genai = pytest.importorskip("onnxruntime_genai")
transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[0, 0, 5, 6, 7, 9], [3, 4, 5, 8, 9, 2]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
PLAIN = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
PROMPTS = ([[5, 6, 7, 8, 9]], [[3]], [[9, 8, 7, 6, 5, 4, 3, 9, 8, 7, 6, 5]], [[5, 6, 7], [8, 9, 4]])
SMALL = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": None,
}
#: no text of these tests has it
END = {"eos_token_id": 255}


def watched(model: Any) -> Program:
    """The program of one generation of a decoder, in ONNX."""
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model.generate(**PADDED, **PLAIN, max_new_tokens=4)
    return observer.export(to="onnx")


def expected(model: Any, prompts: list[list[int]], length: int) -> list[list[int]]:
    """What transformers generates: prompt and new tokens, ``length`` in all."""
    ids = torch.tensor(prompts)
    found: list[list[int]] = model.generate(
        ids, **PLAIN, attention_mask=torch.ones_like(ids), max_length=length
    ).tolist()
    return found


def generated(folder: Path, prompts: list[list[int]], length: int) -> list[list[int]]:
    """What GenAI generates."""
    model = genai.Model(str(folder))
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=length, batch_size=len(prompts), do_sample=False)
    generator = genai.Generator(model, search)
    generator.append_tokens(torch.tensor(prompts, dtype=torch.int32).numpy())
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)] for row in range(len(prompts))]


def grouped() -> Any:
    """A decoder with biases and one head of keys for four of queries."""
    config = transformers.Qwen2Config(**{**SMALL, "num_key_value_heads": 1})
    return randomised(partial(transformers.Qwen2ForCausalLM, config))


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Program]:
    model = tiny_model("llama").model
    return model, watched(model)


@pytest.mark.slow
def test_tokens_and_file_of_a_decoder(llama: tuple[Any, Program], tmp_path: Path) -> None:
    model, program = llama
    files = program.save_genai(tmp_path / "out", generation_config=END)
    assert [path.name for path in files] == ["genai_config.json", "model.onnx"]
    for prompts in PROMPTS:
        length = len(prompts[0]) + 12
        assert generated(tmp_path / "out", prompts, length) == expected(model, prompts, length)
    written = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    decoder = written["model"].pop("decoder")
    sizes = {"type": "decoder", "context_length": 128, "vocab_size": 256}
    assert written["model"] == {**sizes, "bos_token_id": 1, "eos_token_id": 255, "pad_token_id": 0}
    assert written["search"] == {"do_sample": False, "max_length": 128, "past_present_share_buffer": False}
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (2, 2, 8)
    assert decoder["inputs"] == {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    assert decoder["outputs"]["present_value_names"] == "present.%d.value"


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [lambda: tiny_model("gpt2").model, pytest.param(grouped, marks=pytest.mark.slow)],
    ids=["learned positions", "grouped"],
)
def test_tokens_of_decoders_of_other_kinds(build: Any, tmp_path: Path) -> None:
    model = build()
    watched(model).save_genai(tmp_path, generation_config=END)
    for prompts in PROMPTS:
        length = len(prompts[0]) + 12
        assert generated(tmp_path, prompts, length) == expected(model, prompts, length)


@pytest.mark.slow
def test_texts_are_as_long_as_the_graph_is_proven_for(llama: tuple[Any, Program], tmp_path: Path) -> None:
    model, observer = llama[0], InputObserver()
    with observer(model), torch.no_grad():
        model.generate(**PADDED, **PLAIN, max_new_tokens=4)
    program = observer.export(to="onnx", ranges={"past_sequence": (0, 20)})
    with pytest.warns(OnlookerWarning, match="up to 21 tokens") as seen:
        program.save_genai(tmp_path, generation_config=END)
    assert [getattr(warning.message, "slug", "") for warning in seen] == ["shorter-texts"]
    assert generated(tmp_path, [[5, 6, 7]], 21) == expected(model, [[5, 6, 7]], 21)


@pytest.mark.slow
def test_the_end_of_a_text_is_that_of_the_generation_config(llama: tuple[Any, Program], tmp_path: Path) -> None:
    model, program = llama
    prompt = [[5, 6, 7, 8, 9]]
    tokens = expected(model, prompt, 17)[0]
    program.save_genai(tmp_path, generation_config={"eos_token_id": [tokens[8], 255], "top_k": 3})
    assert generated(tmp_path, prompt, 17) == [tokens[: tokens.index(tokens[8], 5)]]  # without the end itself
    written = json.loads((tmp_path / "genai_config.json").read_text())
    assert written["model"]["pad_token_id"] == 0
    assert written["search"]["top_k"] == 3


@pytest.mark.slow
def test_a_loaded_program_takes_configurations_and_a_tokenizer_from_folders(
    llama: tuple[Any, Program], tmp_path: Path
) -> None:
    model, program = llama
    program.save(tmp_path / "program")
    transformers.GenerationConfig(**END).save_pretrained(tmp_path / "settings")
    (tmp_path / "settings" / "tokenizer.json").write_text("{}")
    (tmp_path / "settings" / "model.safetensors").write_text("weights")
    loaded = onlooker.load(tmp_path / "program")
    files = loaded.save_genai(
        tmp_path / "out", tmp_path / "settings", tmp_path / "settings", config=model.config, context_length=40
    )
    names = ["genai_config.json", "generation_config.json", "model.onnx", "tokenizer.json"]
    assert [path.name for path in files] == names
    assert generated(tmp_path / "out", PROMPTS[0], 17) == expected(model, PROMPTS[0], 17)
    assert json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]["context_length"] == 40
    with pytest.raises(UsageError, match="no files of a tokenizer") as refused:
        loaded.save_genai(tmp_path / "other", tmp_path / "nowhere")
    assert refused.value.slug == "no-tokenizer"
    assert not (tmp_path / "other").exists()
    with pytest.raises(UsageError, match="ends a text is not known") as refused:
        loaded.save_genai(tmp_path / "other")
    assert refused.value.slug == "no-end-token"
    with pytest.raises(UsageError, match="cannot be used") as refused:
        loaded.save_genai(tmp_path / "other", generation_config=tmp_path / "nowhere")
    assert refused.value.slug == "bad-config"


def sliding() -> Program:
    config = transformers.MistralConfig(**SMALL, sliding_window=24)
    return watched(randomised(partial(transformers.MistralForCausalLM, config)))


def seq2seq() -> Program:
    config = transformers.BartConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
        decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    return watched(randomised(partial(transformers.BartForConditionalGeneration, config)))


def without_cache() -> Program:
    model = tiny_model("llama").model
    calls = [((), {"input_ids": IDS + 3, "use_cache": False}), ((), {"input_ids": IDS[:, :4] + 3, "use_cache": False})]
    return exported(model, calls).to("onnx")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param(seq2seq, "GenAI gives no .*decoder_input_ids", marks=pytest.mark.slow),
        pytest.param(sliding, "GenAI gives no past_key_values.0.cumulative_length", marks=pytest.mark.slow),
        (without_cache, "no cache of keys and values"),
        (lambda: exported(Growing(), GROWING), "one of torch"),
        (lambda: exported(Growing(), GROWING).to("onnx"), "GenAI gives no "),
    ],
    ids=["encoder and decoder", "sliding window", "without a cache", "torch", "other arguments"],
)
def test_what_the_format_cannot_express_is_refused(program: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refused:
        program().save_genai(tmp_path / "out")
    assert refused.value.slug == "not-for-genai"
    assert not (tmp_path / "out").exists()
