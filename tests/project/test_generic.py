"""Nothing in the package knows a model or a task, and an export replaces no function of torch or transformers."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.pipelines import SUPPORTED_TASKS

import onlooker
from onlooker import InputObserver
from onlooker.core.marks import AUTOCASTS, SETTINGS
from onlooker.zoo import MODELS
from unreached import Unreached

# ------------------------------------------------------------------------------------- names of models and tasks

PACKAGE = Path(onlooker.__file__).parent
COMPAT = PACKAGE.with_name("onlooker_compat")
#: the zoo and the untrained models are made of models; all the rest has to do without them
MADE_OF_MODELS = (PACKAGE / "zoo", COMPAT / "untrained")
SOURCES = sorted(
    path for path in [*PACKAGE.rglob("*.py"), *COMPAT.rglob("*.py")] if not {*path.parents} & {*MADE_OF_MODELS}
)
#: the command that shows the models of the zoo names one by default
DEMO = PACKAGE / "cli" / "work" / "demo.py"
#: the declarations of all commands, that of the demo among them
COMMANDS = PACKAGE / "cli" / "commands.py"

#: forms of models and operators of Python, before they were names of architectures
WORDS = {"bit", "encoder-decoder", "gte"}
#: every architecture and every task that transformers knows, and the families that users speak of
NAMES = {name.lower() for name in CONFIG_MAPPING_NAMES} | {"bert", "clip", "gpt", "llama", "mistral", "qwen", "whisper"}
NAMES -= WORDS
TASKS = set(SUPPORTED_TASKS)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every text and every name of the source that is no docstring, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.alias):
            text = next(getattr(node, field) for field in ("id", "attr", "arg", "name") if hasattr(node, field))
            yield node.lineno, text


def known_in(text: str) -> set[str]:
    """The architectures and tasks that a text names: as a word, as a part of a name, or as the text itself."""
    words = set(re.findall(r"[a-z][a-z0-9_\-]+", text.lower()))
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]{2,}|[A-Z]{2,}[0-9]*", text)}
    return ((words | parts) & NAMES) | {task for task in TASKS if task in text.lower()}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LlamaForCausalLM", {"llama"}),
        ("transformers.models.bert.modeling_bert", {"bert"}),
        ("the task text-generation", {"text-generation"}),
        ("gpt2", {"gpt2"}),
        ("the length of the past", set()),
    ],
)
def test_names_are_found(text: str, found: set[str]) -> None:
    assert known_in(text) >= found
    assert bool(known_in(text)) is bool(found)


#: names of architectures that are words for other things: torch.fx.graph.CodeGen, the decisions of a trace,
#: align_corners of torch
OF_TORCH = {"codegen", "decision", "align"}
#: the middle one of least, usual and most, as TensorRT calls them
OF_TENSORRT = {"opt"}
#: torch.backends.opt_einsum
OF_EINSUM = {"opt"}
#: an operator of ONNX, and of torch
OF_ONNX = {"clip"}
#: the file of settings that sentence-transformers reads, sentence_bert_config.json
OF_SENTENCE_TRANSFORMERS = {"bert"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE.parent).as_posix())
def test_no_model_and_no_task_is_known_by_name(path: Path) -> None:
    allowed = (set(MODELS) if path in (DEMO, COMMANDS) else set()) | OF_TORCH
    allowed |= OF_TENSORRT if path.parent.name == "emit" else set()
    allowed |= OF_EINSUM if path.name == "sized_operators.py" else set()
    allowed |= OF_ONNX if path.name.startswith(("onnx", "thresholds", "exact_numbers")) else set()
    allowed |= OF_SENTENCE_TRANSFORMERS if path.name == "sentences.py" else set()
    found = {(line, name) for line, text in texts_of(path) for name in known_in(text) - allowed}
    assert not found


# ------------------------------------------------------------------------------------------- nothing is replaced

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
ALTERNATING = ["sliding_attention", "full_attention"]
SLIDING = {"head_dim": 8, "sliding_window": 64, "layer_types": ALTERNATING}

#: the twelve core decoders: what their configuration has beside, or instead of, the common sizes
DECODERS: dict[str, tuple[set[str], dict[str, Any]]] = {
    "llama": (set(), {}),
    "mistral": (set(), {"sliding_window": 64}),
    "qwen3": (set(), {"head_dim": 8}),
    "gemma3_text": (set(), {**SLIDING, "query_pre_attn_scalar": 8}),
    "phi3": (set(), {"num_key_value_heads": 4, "pad_token_id": 0}),
    "gpt2": (set(COMMON) - {"vocab_size"}, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, **NO_TOKENS}),
    "bloom": (set(COMMON) - {"vocab_size", "hidden_size"}, {"n_layer": 2, "n_head": 4}),
    "falcon": ({"intermediate_size", "num_key_value_heads"}, {"ffn_hidden_size": 64, "alibi": False}),
    "mixtral": (set(), MOE),
    "gpt_oss": (set(), {**MOE, **SLIDING}),
    "mamba2": (
        {"intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"},
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "expand": 2, "n_groups": 2, "chunk_size": 8},
    ),
    "lfm2": (set(), {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
}
QUICK = ("llama",)


class Traced(torch.nn.Module):
    """A language model that writes down, while it is traced, what torch and transformers consist of."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> Any:
        if isinstance(input_ids, FakeTensor) and not FOUND:
            FOUND.append(functions())
        return self.model(input_ids=input_ids, use_cache=False).logits


FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, classmethod, staticmethod)
FOUND = Unreached()


def functions() -> dict[str, Any]:
    """Every function and every method of torch and transformers that is loaded, by its place."""
    found: dict[str, Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in ("torch", "transformers") or module is None:
            continue
        for name, value in list(vars(module).items()):
            if issubclass(type(value), type) and value.__module__ == module_name:
                methods = {f"{module_name}.{name}.{key}": method for key, method in vars(value).items()}
                found.update({place: method for place, method in methods.items() if type(method) in FUNCTIONS})
            elif type(value) in FUNCTIONS:
                found[f"{module_name}.{name}"] = value
    return found


def is_same(one: Any, other: Any) -> bool:
    """True for one function, and for two of the same code: torch makes some anew for each trace."""
    if one is other or one == other:
        return True
    return getattr(one, "__code__", one) is getattr(other, "__code__", None)


def seen_while(export: Callable[[], Any]) -> dict[str, Any]:
    FOUND.clear()
    export()
    seen = dict(FOUND[0])
    FOUND.clear()
    return seen


def decoder(name: str) -> Traced:
    left_out, more = DECODERS[name]
    sizes = {key: value for key, value in COMMON.items() if key not in left_out}
    config = transformers.AutoConfig.for_model(name, **(sizes | more))
    torch.manual_seed(0)
    return Traced(transformers.AutoModelForCausalLM.from_config(config).eval())


#: the places of torch where the decisions of a trace are read (comparisons, answers, texts and plain ints of sizes),
#: the settings that a model asks for, the place where equal operators are found, that where a size gets its node,
#: and the operators of floats, which algebra would round otherwise; for torch they do what they did, and are put back
READ = re.compile(
    r"torch\.fx\.experimental\.(sym_node\.SymNode\.(eq|ne|lt|le|gt|ge)|.*evaluate_sym_node"
    r"|proxy_tensor\.(ProxyTorchDispatchMode\.__torch_dispatch__|_sym_register))"
    r"|torch\.Sym(Int|Float|Bool)\.__(repr|format)__|torch\.is_grad_enabled"
    rf"|torch\.({'|'.join((*SETTINGS, *AUTOCASTS))})"
    r"|torch\.SymFloat\.__(r?(add|sub|mul|truediv)|eq|ne|lt|le|gt|ge)__"
    r"|torch\.SymInt\.(bit_length|__(index|int|r?divmod|r?and|[rl]shift)__)"
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS]
)
def test_an_export_replaces_no_function(name: str) -> None:
    model = decoder(name)
    ids = torch.arange(10).reshape(2, 5)
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(ids)
    ours = seen_while(lambda: observer.export(probe=False, dynamic={"input_ids": [0, 1]}))
    dims = {"input_ids": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    plain = seen_while(
        lambda: torch.export.export(model, (torch.arange(21).reshape(3, 7),), dynamic_shapes=dims, strict=False)
    )
    assert len(ours) > 10_000
    both = ours.keys() & plain.keys()
    assert len(both) > 10_000
    changed = [place for place in both if not is_same(ours[place], plain[place])]
    assert not [place for place in changed if not READ.fullmatch(place)]
