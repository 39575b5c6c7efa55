"""A language model of transformers that keeps its recurrent states in its modules, in its own generate()."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver
from onlooker.core.verdict import Focus

transformers = pytest.importorskip("transformers")


@pytest.mark.slow
def test_recurrent_gemma_generates_on_its_program() -> None:
    """Its method changes the cache that it is given, and returns none; each length of a prompt is a graph."""
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        block_types=("recurrent", "attention"),
        num_attention_heads=2,
        num_key_value_heads=1,
        lru_width=16,
        attention_window_size=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model, observer = transformers.RecurrentGemmaForCausalLM(config).eval(), InputObserver(state=True)
    ids = torch.tensor([[5, 9, 3], [2, 7, 4]])
    with observer(model, store_n_calls=4):
        model.generate(ids, max_new_tokens=4, do_sample=False)
    program = observer.export(
        static={"input_ids": [0], "position_ids": [0], "attention_mask": [0]},
        ranges={"sequence": (1, 3)},
    )
    tally = program.verify()
    # without a cache the model begins anew, and the program goes on from its state with an empty one
    assert {check.focus for check in tally.checks if not check.passed} <= {Focus.LEFT_OUT}
    assert tally.counts[Focus.SEQUENCE] >= 4

    other = torch.tensor([[8, 1, 6], [3, 3, 9]])
    with program.installed(model) as served:
        got = model.generate(other, max_new_tokens=7, do_sample=False)
    assert sum(served.calls.values()) == 7
    assert torch.equal(got, model.generate(other, max_new_tokens=7, do_sample=False))
