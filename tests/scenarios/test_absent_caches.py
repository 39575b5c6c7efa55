"""An absent cache is an empty one, whatever its layers keep beside their tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from onlooker import InputObserver, RejectedCallError
from onlooker.core.call import Call
from onlooker.core.path import Attr, Name, Path
from onlooker.core.plan import Fill
from onlooker.core.spec import ConstantSpec, Spec, TensorSpec
from onlooker.core.structure import Structure, Tree
from onlooker.infer.build import _counters
from onlooker.infer.unify import forms_of, union_of

CACHE = Path((Name("cache"),))
KEYS, COUNT = CACHE / Attr("keys"), CACHE / Attr("cumulative_length")


def call(index: int, count: int, keys: int | None) -> Call:
    names = ["cumulative_length", *(["keys"] if keys is not None else [])]
    leaves: list[Spec] = [ConstantSpec(count)]
    leaves += [TensorSpec((1, keys), "torch.float32")] if keys is not None else []
    layer = Structure("Layer", tuple(map(Attr, names)), tuple(Structure() for _ in names))
    arguments = Structure("arguments", (Name("cache"),), (layer,))
    return Call(index, Tree(arguments, tuple(leaves)), Tree(Structure(), (ConstantSpec(None),)))


@pytest.mark.parametrize(
    ("calls", "fills", "found"),
    [
        ([(0, None), (3, 3), (4, 4)], {KEYS: Fill("empty", 1)}, {COUNT: Fill("constant", value=0)}),
        ([(7, None), (7, None), (3, 3)], {KEYS: Fill("empty", 1)}, {COUNT: Fill("constant", value=7)}),
        ([(0, None), (1, None), (3, 3)], {KEYS: Fill("empty", 1)}, {}),
        ([(3, 3), (4, 4)], {}, {}),
        ([(0, None), (3, 3)], {KEYS: Fill("zeros")}, {}),
    ],
)
def test_the_count_of_an_absent_layer_is_that_of_an_empty_one(calls: Any, fills: Any, found: Any) -> None:
    made = [call(i, count, keys) for i, (count, keys) in enumerate(calls)]
    assert _counters(union_of(forms_of(made)), fills) == found


@pytest.mark.slow
def test_a_program_with_a_sliding_window_takes_a_call_without_a_cache() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = MistralConfig(vocab_size=50, num_hidden_layers=1, sliding_window=6, max_position_embeddings=64, **sizes)
    model, observer = MistralForCausalLM(config).eval(), InputObserver()

    def mask(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, dtype=torch.int64)

    with observer(model), torch.no_grad():
        cache = DynamicCache(config=config)
        model(input_ids=torch.randint(0, 50, (1, 4)), past_key_values=cache, attention_mask=mask(1, 4))
        for step in range(3):
            ids = torch.randint(0, 50, (1, 1))
            model(input_ids=ids, past_key_values=cache, attention_mask=mask(1, 5 + step))
    program = observer.export()
    ids = torch.randint(0, 50, (2, 3))
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask(2, 3))
    for more in ({}, {"past_key_values": None}, {"past_key_values": DynamicCache(config=config)}):
        arguments = {"input_ids": ids, "attention_mask": mask(2, 3), **more}
        got = program(**arguments)
        assert torch.allclose(got.logits, expected.logits, atol=1e-5)
        assert got.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length() == 3
        assert program.check([arguments]).holds
    with pytest.raises(RejectedCallError):
        program(attention_mask=mask(2, 3))
