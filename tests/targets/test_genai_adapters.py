"""A decoder with adapters of PEFT in ONNX Runtime GenAI: the tokens are those of PEFT with each of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onlooker

genai = pytest.importorskip("onnxruntime_genai")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:peft", "ignore:Adapter name:UserWarning", "ignore::FutureWarning:transformers"
)

NAMES = ("french", "german", "greek")
PLAIN = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
LENGTH = 16


def lora(*modules: str, **options: Any) -> Any:
    return peft.LoraConfig(target_modules=list(modules), init_lora_weights=False, **options)


def adapted() -> Any:
    """A decoder with three adapters of other ranks, scalings and layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    plain = transformers.LlamaForCausalLM(config)
    model = peft.get_peft_model(plain, lora("q_proj", r=2, lora_alpha=16), adapter_name="french")
    model.add_adapter("german", lora("q_proj", "v_proj", r=4, lora_alpha=32))
    model.add_adapter("greek", lora("down_proj", r=3, lora_alpha=16))
    return model.eval().requires_grad_(False)


def expected(model: Any, prompts: list[list[int]], name: str) -> list[list[int]]:
    ids = torch.tensor(prompts)
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_length": LENGTH, **PLAIN}
    if name == "none":
        with model.disable_adapter():
            without: list[list[int]] = model.generate(**options).tolist()
            return without
    model.set_adapter(name)
    found: list[list[int]] = model.generate(**options).tolist()
    return found


def generated(folder: Path, prompts: list[list[int]], name: str | None) -> list[list[int]]:
    model = genai.Model(str(folder))
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=LENGTH, batch_size=len(prompts), do_sample=False)
    generator = genai.Generator(model, search)
    adapters = genai.Adapters(model)
    if name is not None:
        adapters.load(str(folder / f"adapter_{name}.onnx_adapter"), name)
        generator.set_active_adapter(adapters, name)
    generator.append_tokens(np.array(prompts, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)] for row in range(len(prompts))]


@pytest.mark.slow
def test_genai_takes_three_adapters_and_none(tmp_path: Path) -> None:
    model = adapted()
    ids = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    with onlooker.observe(model=model, adapters=True, store_n_calls=3) as observers:
        for name in NAMES:
            model.set_adapter(name)
            model.generate(input_ids=ids, attention_mask=(ids > 0).long(), max_new_tokens=3, **PLAIN)
    program = observers.export()["model"].to("onnx")
    files = program.save_genai(tmp_path, generation_config={"eos_token_id": 63})
    adapters = [f"adapter_{name}.onnx_adapter" for name in (*NAMES, "none")]
    assert [path.name for path in files] == [*adapters, "genai_config.json", "model.onnx"]
    written = json.loads((tmp_path / "genai_config.json").read_text())
    assert written["model"]["context_length"] == 64, "the configuration is that of the model of the user"
    texts = set()
    for prompts in ([[5, 6, 7, 8], [9, 8, 7, 6]], [[3, 4]]):
        for name in (*NAMES, "none"):
            want = expected(model, prompts, name)
            assert generated(tmp_path, prompts, name) == want
            texts.add(str(want[0]))
        assert generated(tmp_path, prompts, None) == expected(model, prompts, "none")
    assert len(texts) > 4, "adapters that make no difference show nothing"
