"""Equal blocks of a decoder: each takes its own layer of a cache, and its number is in no graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import EntriesError, Program, Programs, UnsupportedError

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
PLAIN = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def llama(layers: int = 3) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def scores(model: Any, ids: torch.Tensor, tokens: int) -> Any:
    found = model.generate(
        ids,
        attention_mask=(ids > 0).long(),
        max_new_tokens=tokens,
        output_scores=True,
        return_dict_in_generate=True,
        **PLAIN,
    )
    return found.sequences, torch.stack(found.scores)


@pytest.fixture(scope="module")
def exported() -> tuple[Any, Programs]:
    model = llama()
    with onlooker.observe(layer=model.model.layers) as observers:
        scores(model, IDS, 3)
        scores(model, IDS[1:], 3)
    return model, observers.export()


def check(model: Any, program: Program) -> None:
    """Texts of other lengths, with and without padding, are generated on the program."""
    for ids, tokens in ((IDS, 6), (IDS[1:, :4], 5), (IDS[:, 1:].repeat(2, 1), 4)):
        want = scores(model, ids, tokens)
        with program.installed(model.model.layers) as served:
            got = scores(model, ids, tokens)
        assert torch.equal(got[0], want[0])
        assert torch.allclose(got[1], want[1], atol=1e-5)
        assert sum(served.calls.values()) == len(model.model.layers) * tokens


@pytest.mark.slow
def test_the_layers_of_a_decoder_are_one_program_in_generate(exported: tuple[Any, Programs]) -> None:
    model, programs = exported
    program = programs["layer"]
    assert list(program.weights) == ["0", "1", "2"]
    caches = {str(leaf.path) for leaf in program.plans[0].inputs if leaf.path.root == "past_key_values"}
    assert caches == {"past_key_values.layers[0].keys", "past_key_values.layers[0].values"}
    assert programs.verify().verdict == "verified"
    check(model, program)


@pytest.mark.slow
def test_a_saved_program_runs_in_the_layers_of_another_model(exported: tuple[Any, Programs], tmp_path: Path) -> None:
    model, programs = exported
    programs["layer"].save(tmp_path / "layer", values=True)
    loaded = onlooker.load(tmp_path / "layer")
    assert isinstance(loaded, Program)
    check(model, loaded)
    assert loaded.verify(model=model.model.layers).verdict == "verified"


@pytest.mark.slow
def test_watching_leaves_the_cache_of_the_caller(exported: tuple[Any, Programs]) -> None:
    model, programs = exported
    plain, served = (transformers.DynamicCache(config=model.config) for _ in range(2))
    model(IDS[1:], past_key_values=plain)
    with onlooker.observe(layer=model.model.layers), programs.installed():
        model(IDS[1:], past_key_values=served)
    assert len(served.layers) == 3
    for own, other in zip(plain.layers, served.layers, strict=True):
        assert torch.allclose(own.keys, other.keys, atol=1e-5)
        assert torch.allclose(own.values, other.values, atol=1e-5)


class Block(torch.nn.Module):
    """Adds what its layer of a cache holds after this call."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, past: Any) -> torch.Tensor:
        rows = self.linear(x)[:, None]
        keys, values = past.update(rows, rows, self.number)
        return x + keys.sum((1, 2))[:, None] + values.mean((1, 2))[:, None] + self.more(past)

    def more(self, past: Any) -> Any:
        return 0


class ReadsFirst(Block):
    def more(self, past: Any) -> Any:
        return past.layers[0].keys.mean()


class ReadsItsNeighbour(Block):
    def more(self, past: Any) -> Any:
        return past.layers[self.number - 1].keys.mean()


class Counts(Block):
    def more(self, past: Any) -> Any:
        return len(past.layers)


class Marks(Block):
    def more(self, past: Any) -> Any:
        past.latest = past.__dict__.get("latest", 0) + 1
        return 0


class ReadsItsNumber(Block):
    def more(self, past: Any) -> Any:
        return self.number


class AsksForTheClassOfItsNumber(Block):
    """Of the first block alone, and for three rows, of which no call of this block is kept."""

    def more(self, past: Any) -> Any:
        if past.layers[self.number].keys.shape[0] < 3:
            return 0
        return 1 if type(self.number) is int and self.number == 0 else 0


class Model(torch.nn.Module):
    def __init__(self, kind: type[Block]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(kind(number) for number in range(3))

    def forward(self, x: torch.Tensor, past: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, past)
        return x


def cache(rows: int, length: int) -> Any:
    """A cache of three layers, which hold something."""
    found = transformers.DynamicCache(config=llama().config)
    for number in range(3):
        past = torch.full((rows, 1, length, 4), 1.0 + number)
        found.update(past, past, number)
    return found


def watched(model: Model) -> onlooker.Observers:
    with torch.no_grad(), onlooker.observe(block=model.blocks) as observers:
        for rows, length, past in ((2, 5, 3), (3, 4, 6), (1, 3, 2)):
            model(torch.randn(rows, length, 4), cache(rows, past))
    return observers


def test_a_block_takes_its_own_layer() -> None:
    torch.manual_seed(0)
    model = Model(Block).eval()
    programs = watched(model).export()
    assert programs.verify().verdict == "verified"
    x = torch.randn(2, 7, 4)
    plain, served = cache(2, 5), cache(2, 5)
    with torch.no_grad():
        want = model(x, plain)
        with programs.installed():
            assert torch.equal(model(x, served), want)
    for own, other in zip(plain.layers, served.layers, strict=True):
        assert torch.equal(own.keys, other.keys)


@pytest.mark.parametrize(
    "kind",
    [ReadsFirst, ReadsItsNeighbour, Counts, Marks, ReadsItsNumber, AsksForTheClassOfItsNumber],
)
def test_whatever_else_a_block_reads_of_a_cache_tells_it_apart(kind: type[Block]) -> None:
    torch.manual_seed(0)
    with pytest.raises(EntriesError) as refused:
        watched(Model(kind).eval()).export()
    error = refused.value.refusals["block"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "blocks-differ"
