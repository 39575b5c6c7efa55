"""A program in the place of its model: generate() and pipelines give the same tokens, and nothing stays behind."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

import onlooker
from onlooker import InputObserver, Program, RejectedCallError, UsageError
from onlooker.pytrees.adopt import adopt
from onlooker.pytrees.open import close_tree, open_tree
from onlooker_compat.trees.make import make_dynamic_cache

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def load(name: str) -> Any:
    """A script of the benchmarks as a module: the models and the comparison are the same here and there."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


GENERATORS = load("generators").GENERATORS
#: llama has two layers here; one of t5, with its two caches, is enough
SMALLER = {"t5": {"layers": 1}}
table = load("installed")


@pytest.fixture(scope="module")
def exported() -> Any:
    """``(generator, program)`` of a model and a target; each model is watched once, in one plain generate."""
    found: dict[tuple[str, str], tuple[Any, Program]] = {}

    def get(name: str, target: str) -> tuple[Any, Program]:
        if (name, target) not in found:
            if target == "torch":
                generator = GENERATORS[name](**SMALLER.get(name, {}))
                found[name, target] = generator, table.exported(generator, "torch")
            else:
                generator, program = get(name, "torch")
                found[name, target] = generator, program.to(target)
        return found[name, target]

    return get


@pytest.mark.parametrize("mode", ["greedy", "beams", "sampling"])
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.one_in(12)
def test_tokens_are_those_of_the_model(exported: Any, name: str, target: str, mode: str) -> None:
    outcome, counts = table.compare(*exported(name, target), mode)
    assert outcome == "equal", counts


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["greedy", "beams", "sampling"])
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("name", [name for name in GENERATORS if name not in ("llama", "t5")])
def test_tokens_are_those_of_the_model_for_every_family(exported: Any, name: str, target: str, mode: str) -> None:
    outcome, counts = table.compare(*exported(name, target), mode)
    assert outcome == "equal", counts


@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.slow
def test_tokens_of_a_loaded_program_are_those_of_the_model(exported: Any, target: str, tmp_path: Path) -> None:
    generator, program = exported("llama", target)
    assert all(not graph.file for graph in program.graphs)
    saved = Program(program._program.beside(program.recording, (), None))
    saved.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert [graph.file for graph in saved.graphs] == [graph.file for graph in loaded.graphs]
    assert all((tmp_path / "program" / graph.file).is_file() for graph in saved.graphs)
    for mode in ("greedy", "beams"):
        outcome, counts = table.compare(generator, loaded, mode)
        assert outcome == "equal", counts


@pytest.mark.slow
def test_every_call_of_generate_is_counted_by_its_graph(exported: Any) -> None:
    generator, program = exported("t5", "torch")
    with program.installed(generator.watched) as served:
        generator.generate((0,), 6, max_new_tokens=5)
    assert sum(served.calls.values()) == 5
    assert min(served.calls.values()) == 1  # the first step has no cache, and a graph of its own
    assert served.eager == 0


@pytest.mark.parametrize("target", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_assisted_decoding_goes_on_where_no_graph_serves_it(exported: Any, target: str) -> None:
    """Candidates are checked by calls that a plain generate never makes; caches change hands, and are cropped."""
    generator, program = exported("llama", target)
    prompt = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assistant = GENERATORS["llama"]().model
    expected = generator.model.generate(prompt, **settings, assistant_model=assistant)
    with (
        program.installed(generator.model, fallback=True) as served,
        program.installed(assistant, fallback=True) as drafts,
    ):
        assert torch.equal(generator.model.generate(prompt, **settings, assistant_model=assistant), expected)
    assert served.eager > 0
    assert served.refusals
    assert sum(drafts.calls.values()) + drafts.eager > 0
    with pytest.raises(RejectedCallError), program.installed(generator.model):
        generator.model.generate(prompt, **settings, assistant_model=assistant)


def test_a_pipeline_runs_on_the_program(exported: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    generator, program = exported("llama", "torch")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w3"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", padding_side="left")
    pipeline = transformers.pipeline("text-generation", model=generator.model, tokenizer=tokenizer, device="cpu")
    ask = {"max_new_tokens": 6, "do_sample": False, "batch_size": 2, "return_tensors": True}
    texts = ["w5 w6 w7 w8", "w9 w10"]
    expected = pipeline(texts, **ask)
    with program.installed(generator.model) as served:
        assert pipeline(texts, **ask) == expected
    assert served.calls["main"] == 6


def test_the_signature_stays_and_nothing_is_left_behind(exported: Any) -> None:
    generator, program = exported("llama", "torch")
    model = generator.model
    before, signature = dict(vars(model)), inspect.signature(model.forward)
    with program.installed(model):
        assert inspect.signature(model.forward) == signature
    assert vars(model) == before
    with pytest.raises(KeyError, match="mine"), program.installed(model):
        raise KeyError("mine")
    assert vars(model) == before
    assert "forward" not in vars(model)


def test_a_call_that_no_graph_takes_raises_from_inside_generate(exported: Any) -> None:
    generator, program = exported("llama", "torch")
    before = dict(vars(generator.model))
    with (
        pytest.raises(RejectedCallError, match="use_cache is always True, the call has False") as caught,
        program.installed(generator.model),
    ):
        generator.generate((1, 0), 5, use_cache=False)
    assert caught.value.slug == "call-refused"
    assert vars(generator.model) == before


def test_with_fallback_such_a_call_runs_on_the_model_and_is_counted(exported: Any) -> None:
    generator, program = exported("llama", "torch")
    model, ids = generator.model, torch.ones(1, 4, dtype=torch.int64)
    with torch.no_grad():
        expected = model(ids, output_attentions=True).logits
        with program.installed(model, fallback=True) as served:
            assert torch.equal(model(ids, output_attentions=True).logits, expected)
            model(ids, output_attentions=True)
    assert served.eager == 2
    assert len(served.refusals) == 1
    assert sum(served.calls.values()) == 0
    assert repr(served) == "<onlooker.Installed main: 0, eager: 2>"


class Takes(torch.nn.Module):
    """A model whose forward is any function."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.forward = forward


FITTING = {
    "the same": lambda x, y=None: x,
    "one more": lambda x, y=None, z=None: x,
    "anything": lambda *args, **kwargs: args[0],
    "by name": lambda x, **kwargs: x,
}
UNFIT = {
    "one less": lambda x: x,
    "another order": lambda y, x=None: y,
    "another order, and anything": lambda y, x=None, **kwargs: y,
    "other names": lambda a, b=None: a,
    "none": lambda: None,
}


@pytest.fixture(scope="module")
def sum_program() -> Program:
    model, observer = Takes(lambda x, y=None: x + y), InputObserver()
    with observer(model):
        for size in (2, 3):
            model(torch.ones(size), torch.ones(size))
    return observer.export()


@pytest.mark.parametrize("name", FITTING)
def test_a_model_that_is_called_in_the_same_way_may_be_another_one(sum_program: Program, name: str) -> None:
    with sum_program.installed(model := Takes(FITTING[name])):
        assert model(torch.ones(5), torch.ones(5)).tolist() == [2.0] * 5


@pytest.mark.parametrize("name", UNFIT)
def test_a_model_of_another_signature_is_refused_before_anything_is_installed(sum_program: Program, name: str) -> None:
    model = Takes(UNFIT[name])
    with pytest.raises(UsageError) as caught, sum_program.installed(model):
        pass
    assert caught.value.slug == "another-signature"
    assert model.forward is UNFIT[name]


@pytest.mark.parametrize("target", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_the_cache_of_the_caller_is_the_one_that_changes(exported: Any, target: str) -> None:
    generator, program = exported("llama", target)
    fixed = {"use_cache": True, "logits_to_keep": 1, "return_dict": True}
    own, theirs = DynamicCache(config=generator.model.config), DynamicCache(config=generator.model.config)
    layers = list(own.layers)
    for step, length in enumerate((5, 1, 2)):
        past = own.get_seq_length()
        call = {
            "input_ids": torch.full((2, length), 7 + step),
            "attention_mask": torch.ones(2, past + length, dtype=torch.int64),
            "position_ids": torch.arange(past, past + length).expand(2, -1),
        }
        with torch.no_grad():
            expected = generator.model(**call, past_key_values=theirs, **fixed)
            with program.installed(generator.model):
                got = generator.model(**call, past_key_values=own, **fixed)
        assert got.past_key_values is own
        assert own.layers == layers
        torch.testing.assert_close(got.logits, expected.logits, atol=1e-5, rtol=1e-5)
        assert vars(own.layers[0]).keys() == vars(theirs.layers[0]).keys()
        for left, right in zip(open_tree(own).leaves, open_tree(theirs).leaves, strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


class Keeps(torch.nn.Module):
    """Reads a cache that it does not return, and changes it in large batches."""

    def forward(self, x: torch.Tensor, past: DynamicCache) -> torch.Tensor:
        if x.shape[0] > 3:
            past.update(x, x, 0)
        return x.sum(dim=2) + past.layers[0].keys[:, :, :1].sum(dim=2)


def test_a_cache_that_no_watched_call_changed_is_read_and_refused_where_it_changes() -> None:
    def call(batch: int, length: int) -> tuple[torch.Tensor, Any]:
        keys, values = torch.randn(batch, 1, length, 4), torch.randn(batch, 1, length, 4)
        return torch.ones(batch, 1, 1, 4), make_dynamic_cache([(keys, values)])

    model, observer = Keeps(), InputObserver()
    with observer(model):
        model(*call(2, 3))
        model(*call(3, 4))
    program = observer.export(ranges={"batch": (1, 8)})
    x, past = call(1, 6)
    expected = model(x, past)
    with program.installed(model) as served:
        torch.testing.assert_close(model(x, past), expected)
        assert (served.eager, past.get_seq_length()) == (0, 6)
        with pytest.raises(RejectedCallError) as caught:
            model(*call(4, 6))
    assert caught.value.slug == "cache-not-returned"


def filled_cache(kind: str, batch: int, value: float) -> Any:
    """A cache after one update of three tokens."""
    config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=8, sliding_window=4)
    tokens = torch.full((batch, 2, 3, 4), value)
    if kind == "static":
        cache: Any = StaticCache(config=config, max_cache_len=8)
    elif kind == "sliding":
        config.layer_types = ["sliding_attention", "full_attention"]
        cache = DynamicCache(config=config)
    elif kind == "encoder-decoder":
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for layer in range(2):
            cache.cross_attention_cache.update(tokens, tokens, layer)
            cache.is_updated[layer] = True
        cache.self_attention_cache.update(tokens, tokens, 0)
        return cache
    else:
        cache = DynamicCache()
    for layer in range(2):
        cache.update(tokens, tokens, layer)
    return cache


@pytest.mark.parametrize("kind", ["dynamic", "sliding", "static", "encoder-decoder"])
def test_a_cache_takes_over_the_state_of_another_and_keeps_its_identity(kind: str) -> None:
    """What a program gives is rebuilt from its leaves; the caller's cache then equals it, flag by flag."""
    given, after = filled_cache(kind, 3, 1.0), filled_cache(kind, 3, 2.0)
    tree = open_tree(after)
    made = close_tree(tree.structure, [x.clone() if isinstance(x, torch.Tensor) else x for x in tree.leaves])
    before = open_tree(given).leaves
    assert adopt(given, made) is given
    got = open_tree(given)
    assert got.structure == tree.structure
    for left, right in zip(got.leaves, tree.leaves, strict=True):
        torch.testing.assert_close(left, right)
    if kind == "static":  # a static layer promises that its tensors stay where they are
        assert all(left is right for left, right in zip(got.leaves, before, strict=True))


@pytest.mark.parametrize("kind", ["dynamic", "sliding", "static", "encoder-decoder"])
def test_an_empty_cache_takes_over_everything(kind: str) -> None:
    after = filled_cache(kind, 2, 2.0)
    empty = filled_cache(kind, 2, 1.0)
    caches = [empty.self_attention_cache, empty.cross_attention_cache] if kind == "encoder-decoder" else [empty]
    for cache in caches:
        for layer in cache.layers:
            layer.__dict__ = {**type(layer)(max_cache_len=8, sliding_window=4).__dict__}
    adopt(empty, after)
    assert open_tree(empty).structure == open_tree(after).structure


def test_a_rebuilt_static_layer_says_its_own_batch_size() -> None:
    tree = open_tree(filled_cache("static", 2, 1.0))
    leaves = [x.repeat(2, 1, 1, 1) if getattr(x, "ndim", 0) == 4 else x for x in tree.leaves]
    assert {layer.batch_size for layer in close_tree(tree.structure, leaves).layers} == {4}
