"""Generation on programs, without the weights of the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, RejectedCallError, UsageError
from onlooker.zoo import tiny_model

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[0, 0, 5, 6, 7, 9], [3, 4, 5, 8, 9, 2]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
PLAIN = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def watched(architecture: str, to: str = "torch") -> tuple[Any, Any]:
    """A tiny decoder, and a program of one generation of it."""
    model, observer = tiny_model(architecture).model, InputObserver()
    with observer(model), torch.no_grad():
        model.generate(**PADDED, **PLAIN)
    return model, observer.export(to=to)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    model, program = watched("llama")
    folder = tmp_path_factory.mktemp("llama")
    program.save(folder / "program")
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    return model, program, folder


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        {**PLAIN, "num_beams": 3},
        {**PLAIN, "do_sample": True, "top_k": 5},
        {**PLAIN, "num_return_sequences": 2, "num_beams": 2},
        {**PLAIN, "output_scores": True, "return_dict_in_generate": True},
        {**PLAIN, "repetition_penalty": 1.5},
    ],
    ids=["greedy", "beams", "sampled", "several", "scores", "penalty"],
)
def test_tokens_are_those_of_the_model(llama: tuple[Any, Any, Path], options: dict[str, Any]) -> None:
    model, _, folder = llama
    shell = onlooker.generation(folder / "program", folder)
    assert not [w for w in (*shell.parameters(), *shell.buffers()) if w.device.type != "meta"]
    results = []
    for each in (model, shell):
        torch.manual_seed(0)
        results.append(each.generate(**PADDED, **options))
    expected, got = (r if isinstance(r, torch.Tensor) else r.sequences for r in results)
    assert torch.equal(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_a_decoder_of_another_kind(to: str) -> None:
    model, program = watched("gpt2", to)
    shell = onlooker.generation(program, model.config)
    assert isinstance(shell, type(model))
    assert (shell.device.type, shell.dtype) == ("cpu", torch.float32)
    assert torch.equal(shell.generate(**PADDED, **PLAIN), model.generate(**PADDED, **PLAIN))
    prompt = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    assert torch.equal(shell.generate(prompt, **PLAIN), model.generate(prompt, **PLAIN))


def test_tokens_are_streamed(llama: tuple[Any, Any, Path]) -> None:
    class Keeps:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.seen.append(-1)

    model, program, _ = llama
    shell, streamer = onlooker.generation(program, model.config), Keeps()
    tokens = shell.generate(IDS[1:], streamer=streamer, **PLAIN)
    assert streamer.seen == [*tokens.flatten().tolist(), -1]


@pytest.mark.slow
def test_one_program_assists_another() -> None:
    """The calls of an assisted generation ask for the scores of several tokens: one was watched."""
    model, observer = tiny_model("llama").model, InputObserver()
    with observer(model), torch.no_grad():
        model.generate(IDS[1:], assistant_model=tiny_model("llama").model, **PLAIN)
        model.generate(IDS[1:], **PLAIN)
    program, prompt = observer.export(), torch.tensor([[1, 2, 7, 5, 4]])
    shell, helper = (onlooker.generation(program, model.config) for _ in range(2))
    got = shell.generate(prompt, assistant_model=helper, **PLAIN)
    assert torch.equal(got, model.generate(prompt, **PLAIN))


SEQ2SEQ = {
    "t5": {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 32},
    "bart": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "vocab_size": 32,
        "max_position_embeddings": 64,
    },
}


def seq2seq(kind: str) -> Any:
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **SEQ2SEQ[kind], **tokens)
    return transformers.AutoModelForSeq2SeqLM.from_config(config).eval()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "t5" else kind for kind in SEQ2SEQ]
)
@pytest.mark.slow
def test_an_encoder_is_a_program_beside(kind: str, tmp_path: Path) -> None:
    model = seq2seq(kind)
    with onlooker.observe(model=model, encoder=model.get_encoder()) as observers, torch.no_grad():
        model.generate(**PADDED, **PLAIN)
    observers.export().save(tmp_path / "out")
    shell = onlooker.generation(tmp_path / "out", model.config)
    shell.generation_config = model.generation_config
    longer = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    for options in ({}, {"num_beams": 2}):
        for given in (PADDED, {"input_ids": longer, "attention_mask": torch.ones_like(longer)}):
            expected = model.generate(**given, **{**PLAIN, **options})
            assert torch.equal(shell.generate(**given, **{**PLAIN, **options}), expected)


def test_an_encoder_without_a_program_is_refused() -> None:
    model, observer = seq2seq("t5"), InputObserver()
    with observer(model), torch.no_grad():
        model.generate(**PADDED, **{**PLAIN, "max_new_tokens": 1})
    program = observer.export()
    with pytest.raises(UsageError, match=r"runs its encoder before.*encoder=model.get_encoder") as caught:
        onlooker.generation(program, model.config)
    assert caught.value.slug == "no-encoder"


@pytest.mark.slow
def test_another_process_needs_the_folders_alone(llama: tuple[Any, Any, Path]) -> None:
    model, _, folder = llama
    code = f"""
import json, torch, onlooker
shell = onlooker.generation({str(folder / "program")!r}, {str(folder)!r})
ids = torch.tensor({IDS.tolist()})
print(json.dumps(shell.generate(ids, attention_mask=(ids > 0).long(), **{PLAIN!r}).tolist()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == model.generate(**PADDED, **PLAIN).tolist()


def test_what_has_no_weights_is_not_saved_and_not_moved(llama: tuple[Any, Any, Path], tmp_path: Path) -> None:
    model, program, _ = llama
    shell = onlooker.generation(program, model.config)
    assert shell.to("cpu") is shell
    with pytest.raises(UsageError, match="no weights to save"):
        shell.save_pretrained(tmp_path)
    assert torch.equal(model.generate(**PADDED, **PLAIN), shell.generate(**PADDED, **PLAIN))  # the class is as it was


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_what_does_not_generate_is_refused(llama: tuple[Any, Any, Path], tmp_path: Path) -> None:
    model, program, _ = llama
    plain, observer = Plain(), InputObserver()
    with observer(plain):
        plain(torch.ones(2, 3))
    for source, config, slug in (
        (observer.export(), model.config, "no-generation"),
        (program, tmp_path, "bad-config"),
        (program, transformers.GPT2Config(n_embd=7, n_head=2), "bad-config"),
    ):
        with pytest.raises(UsageError) as caught:
            onlooker.generation(source, config)
        assert caught.value.slug == slug


def llava() -> Any:
    """A model that reads images of 8 pixels, each as four tokens."""
    text = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    image = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=image, image_token_id=63)
    torch.manual_seed(0)
    return transformers.LlavaForConditionalGeneration(config).eval()


def questions(images: int, words: int) -> dict[str, torch.Tensor]:
    """Questions of as many words, each about one image."""
    asked = torch.arange(images * words).reshape(images, words) % 60 + 1
    ids = torch.cat([torch.full((images, 4), 63), asked], dim=1)
    pixels = torch.rand(images, 3, 8, 8, generator=torch.Generator().manual_seed(images))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


@pytest.mark.slow
@pytest.mark.parametrize("watches_modules", [pytest.param(True, marks=pytest.mark.slow), False])
def test_images_are_encoded_by_programs(watches_modules: bool, tmp_path: Path) -> None:
    model = llava()
    inner = model.model
    modules = {"tower": inner.vision_tower, "projector": inner.multi_modal_projector}
    parts = modules if watches_modules else {"image": (inner, "get_image_features")}
    with onlooker.observe(model=model, **parts) as observers, torch.no_grad():
        for images, words in ((1, 3), (2, 5), (3, 2)):
            model.generate(**questions(images, words), **PLAIN)
    observers.export().save(tmp_path / "out")
    shell = onlooker.generation(tmp_path / "out", model.config)
    for images, words in ((1, 6), (3, 4), (2, 9)):
        expected = model.generate(**questions(images, words), **PLAIN)
        assert torch.equal(shell.generate(**questions(images, words), **PLAIN), expected)
    if watches_modules:
        expected = model.generate(**questions(4, 3), **PLAIN)
        assert torch.equal(shell.generate(**questions(4, 3), **PLAIN), expected)
    else:  # a list with an item for each image, which a graph has as many of as its example
        with pytest.raises(RejectedCallError, match=r"pixel_values\.shape\[0\]"):
            shell.generate(**questions(4, 3), **PLAIN)


@pytest.mark.slow
def test_a_part_that_generate_runs_by_itself_is_named() -> None:
    model, observer, given = llava(), InputObserver(), questions(1, 2)
    with observer(model), torch.no_grad():
        model.generate(**given, **{**PLAIN, "max_new_tokens": 1})
    shell = onlooker.generation(observer.export(), model.config)
    with pytest.raises(UsageError, match=r'part=\(model.model, "get_image_features"\)') as caught:
        shell.generate(**given, **PLAIN)
    assert caught.value.slug == "no-part"
