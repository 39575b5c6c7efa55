"""Models of transformers on ExecuTorch, in their own generate(), and operators that it lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver
from onlooker.core.errors import MissingPackageError
from onlooker.targets.executorch.target import Executorch
from target_models import call, exported, rand

transformers = pytest.importorskip("transformers")


def missing() -> str:
    try:
        Executorch().require()
    except MissingPackageError as error:
        return error.message
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=None,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def generate(model: Any, batch: int, length: int) -> torch.Tensor:
    ids = torch.randint(3, 60, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    found: torch.Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    return found


@pytest.mark.parametrize(("build", "graphs", "backend"), [(llama, 1, "xnnpack"), (t5, 2, "portable")])
def test_generate_gives_the_same_tokens(build: Any, graphs: int, backend: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    observer = InputObserver()
    with observer(model):
        generate(model, 2, 6), generate(model, 3, 9)
    program = observer.export().to("executorch", ranges="observed", backend=backend)
    tally = program.verify()
    assert tally.verified, [check for check in tally.checks if not check.passed]
    assert tally.difference < 1e-5
    program.save(tmp_path / "out")
    expected = generate(model, 2, 7)
    with onlooker.load(tmp_path / "out").installed(model) as served:
        assert torch.equal(generate(model, 2, 7), expected)
    assert served.eager == 0
    assert len(program.graphs) == graphs


class Lacking(torch.nn.Module):
    """Operators for which ExecuTorch has no kernel, or one that gives other numbers."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        return {
            "rests": (i % 3, i % -3, i % (i.abs() + 1), x % 0.7),
            "sorted": (x.sort(0, descending=True).values, x.argsort(1)),
            "middle": (x.median(), x.kthvalue(2, 0).values),
            "running": (x.cummax(1).values, x.cumprod(1)),
            "angle": (torch.atan2(x, x.flip(0)), torch.hypot(x, x.flip(0)), x.copysign(x.flip(1))),
        }


def test_operators_that_executorch_lacks_are_taken_apart() -> None:
    calls = [call(rand(n, 4), torch.arange(-2 * n, 2 * n).reshape(n, 4)) for n in (3, 5)]
    ranges = {"batch": (2, 8), "x_dim_1": (4, 8), "i_dim_0": (2, 8)}
    program = exported(Lacking(), calls).to("executorch", ranges=ranges)
    assert program.verify().verified, program.report
