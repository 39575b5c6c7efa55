"""A model of ONNX as a folder that ONNX Runtime GenAI generates with: ``genai_config.json`` says
which of the model's own inputs and outputs are tokens, masks, caches and scores, and how large they
are.

GenAI gives a decoder the tokens, a mask of the whole length, positions, and the keys and values of
each layer, which grow by the tokens that are given. It runs one model for the prompt and for every
further token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....contract.checker import Checker
from ....core.drawing.alike import named_few
from ....core.errors import OnlookerError, OnlookerWarning, UnsupportedError, UsageError, warn
from ....core.plan import LeafPlan
from ....core.sizes.expression import Expression
from ....trace.graph import Graph
from ...names import names_of
from ...side_files import copy_tokenizer
from ..files import write_models
from ..merge import SELECTOR
from ..served.in_place import CAPACITY
from ..weights import MOST_INSIDE
from .handed_over import Sized, longest_served

__all__ = ["DecoderFacts", "decoder_of", "write_genai"]

#: the files of the model, and of what GenAI has to know of it
MODEL, CONFIG = "model.onnx", "genai_config.json"
#: the longest text where neither the model, nor its configuration, nor the caller says one
DEFAULT_LENGTH = 4096
#: what GenAI gives beside the cache: the names of its format, and of transformers' ``generate()``
TOKENS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
SCORES = "logits"
_NUMBER = re.compile(r"\d+")
_DTYPES = ("float32", "float16", "bfloat16")
#: settings of a search that the file of GenAI and a generation config call the same
_SEARCH = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "num_beams",
    "num_return_sequences",
    "length_penalty",
    "no_repeat_ngram_size",
    "diversity_penalty",
)


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """The facts that GenAI needs of one model: its names by their role, with ``%d`` for the number
    of a layer, and its sizes. ``longest`` is the greatest length that the graph is proven for, at
    most the one that was asked. ``in_place`` is true where the cache is a buffer that is updated in
    place.
    """

    graph: Graph
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    layers: int
    heads: int
    head_size: int
    vocabulary: int
    longest: int
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class _Layers:
    """Tensors whose names differ in one number: ``past_key_values.%d.key`` for each layer, and
    their shape as text.
    """

    template: str
    numbers: tuple[int, ...]
    shape: tuple[str, ...]
    dtype: str


def decoder_of(graphs: Sequence[Graph], wanted: int, adapters: str) -> DecoderFacts:
    """The graph that GenAI can run, for texts of up to ``wanted`` tokens; of several graphs the one
    that is proven for the longest texts. ``adapters`` is the argument that has the matrices of an
    adapter, which GenAI gives from a file.

    :raises UnsupportedError: ``not-for-genai`` with the reason
    """
    refusals: list[OnlookerError] = []
    found: list[DecoderFacts] = []
    for graph in graphs:
        try:
            found.append(_decoder(graph, wanted, adapters))
        except UnsupportedError as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    return max(found, key=lambda decoder: decoder.longest)


def _decoder(graph: Graph, wanted: int, adapters: str) -> DecoderFacts:
    if graph.target != "onnx":
        raise UnsupportedError(
            f"ONNX Runtime GenAI runs models of ONNX, and {graph.name} is one of {graph.target}.",
            slug="not-for-genai",
            hint='Convert it first: program.to("onnx").save_genai(directory).',
        )
    model = graph.artifact.model.graph
    given = {str(value.name): value for value in model.inputs}
    if SELECTOR in given:
        raise _refused(graph, "it is merged of several graphs", "Leave merged=True out.")
    leaves = dict(zip(names_of(graph).inputs, graph.plan.inputs, strict=True))
    lent = {name for name, leaf in leaves.items() if leaf.path.root == adapters}
    caches = _layered(value for value in model.inputs if str(value.name) not in lent)
    kept = {name for layers in caches for name in _names(layers)} | lent
    others = [name for name in leaves if name not in (TOKENS, MASK, POSITIONS, *kept)]
    if others:
        raise _refused(graph, f"GenAI gives no {named_few(others, 3)}, which it takes")
    if TOKENS not in given:
        raise _refused(graph, f"it takes no {TOKENS}")
    if len(caches) != 2:
        raise _refused(
            graph,
            "it takes no cache of keys and values",
            "Watch generate() with its cache: GenAI gives each token once.",
        )
    presents = _layered(model.outputs)
    keys, values = caches
    heads, head_size = _cache_sizes(graph, caches)
    scores = next((value for value in model.outputs if str(value.name) == SCORES), None)
    if scores is None:
        raise _refused(graph, f"it gives no {SCORES}")
    vocabulary = _vocabulary(graph, scores, leaves[TOKENS])
    if len(presents) != 2 or any(one.numbers != keys.numbers for one in presents):
        raise _refused(graph, "it gives no cache with a layer for each one that it takes")
    _check_growth(graph, presents, keys, leaves)
    longest = _longest(graph, heads, head_size, wanted, lent)
    inputs = {name: name for name in (TOKENS, MASK, POSITIONS) if name in given}
    return DecoderFacts(
        graph,
        {**inputs, "past_key_names": keys.template, "past_value_names": values.template},
        {
            SCORES: SCORES,
            "present_key_names": presents[0].template,
            "present_value_names": presents[1].template,
        },
        len(keys.numbers),
        heads,
        head_size,
        vocabulary,
        longest,
        keys.shape[2] == CAPACITY,
    )


def _refused(graph: Graph, reason: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"ONNX Runtime GenAI cannot run {graph.name}: {reason}.",
        slug="not-for-genai",
        hint=hint or "onlooker.generation() runs it with transformers' generate().",
    )


def _layered(values: Iterable[Any]) -> list[_Layers]:
    """The groups of tensors of four dimensions that stand once for each layer, numbered from 0: the
    keys first, since the cache of a layer has them first.
    """
    groups: dict[str, list[tuple[int, Any]]] = {}
    for value in values:
        name, number = str(value.name), _NUMBER.search(str(value.name))
        if number is not None and value.shape is not None and len(value.shape) == 4:
            template = f"{name[: number.start()]}%d{name[number.end() :]}"
            groups.setdefault(template.replace("%", "%%").replace("%%d", "%d"), []).append(
                (int(number.group()), value)
            )
    found = []
    for template, members in groups.items():
        shapes = {_shape(value) for _, value in members}
        numbers = tuple(sorted(number for number, _ in members))
        if len(shapes) == 1 and numbers == tuple(range(len(numbers))):
            dtype = str(members[0][1].dtype).rpartition(".")[2].lower()
            found.append(_Layers(template, numbers, shapes.pop(), _dtype(dtype)))
    return found


def _dtype(name: str) -> str:
    """The name of torch for one of ONNX: ``float`` is ``float32``."""
    return "float32" if name == "float" else name


def _shape(value: Any) -> tuple[str, ...]:
    return tuple(str(size if isinstance(size, int) else size.value) for size in value.shape)


def _names(layers: _Layers) -> list[str]:
    return [layers.template % number for number in layers.numbers]


def _cache_sizes(graph: Graph, caches: Sequence[_Layers]) -> tuple[int, int]:
    """Heads and the size of each: equal for keys and values of all layers."""
    keys, values = caches
    if (keys.shape, keys.numbers, keys.dtype) != (values.shape, values.numbers, values.dtype):
        raise _refused(graph, "keys and values of its cache have other sizes")
    _, heads, _, head_size = keys.shape
    if not (heads.isdigit() and head_size.isdigit()):
        raise _refused(graph, "the heads of its cache have no fixed number and size")
    if keys.dtype not in _DTYPES:
        raise _refused(graph, f"its cache is one of {keys.dtype}")
    return int(heads), int(head_size)


def _vocabulary(graph: Graph, scores: Any, tokens: LeafPlan) -> int:
    """Returns how many tokens have a score: after each given token, or after the last one alone."""
    shape = _shape(scores)
    if len(shape) != 3 or shape[1] not in ("1", str(tokens.shape[1])) or not shape[2].isdigit():
        raise _refused(
            graph, f"its {SCORES}, of shape ({', '.join(shape)}), are none of next tokens"
        )
    return int(shape[2])


def _check_growth(
    graph: Graph, presents: Sequence[_Layers], past: _Layers, leaves: Mapping[str, LeafPlan]
) -> None:
    """Passes where the cache that the graph gives is the one that it takes and the new tokens, or
    a buffer for both.
    """
    before = leaves[_names(past)[0]].shape[2]
    whole = before + leaves[TOKENS].shape[1]
    if all(layers.shape == past.shape and past.shape[2] == CAPACITY for layers in presents):
        return
    for layers in presents:
        if (layers.shape[1], layers.shape[3]) != (past.shape[1], past.shape[3]) or not _is(
            layers.shape[2], whole
        ):
            raise _refused(
                graph,
                f"its cache has {layers.shape[2]} tokens after a call, and not {whole}",
                "A sliding window that was full while it was watched has such a cache.",
            )


def _is(text: str, expression: Expression) -> bool:
    try:
        return str(Expression.parse(text)) == str(expression)
    except (OnlookerError, ValueError, SyntaxError):
        return False


def _longest(
    graph: Graph, heads: int, head_size: int, wanted: int, adapters: Collection[str]
) -> int:
    """The greatest length, at most ``wanted``, up to which the graph is proven for a prompt of
    that length and for the step that reaches it.
    """
    checker, names = Checker(graph.plan, graph.contract), names_of(graph).inputs
    of_adapters = {
        name: tuple(size.evaluate({}) for size in leaf.shape)
        for name, leaf in zip(names, graph.plan.inputs, strict=True)
        if name in adapters
    }

    def given(past: int, new: int) -> list[Sized]:
        """The shapes that GenAI gives, in the order of the plan."""
        known = {TOKENS: (1, new), MASK: (1, past + new), POSITIONS: (1, new), **of_adapters}
        return [Sized(known.get(name, (1, heads, past, head_size))) for name in names]

    def serves(length: int) -> bool:
        calls = [(0, length), (length - 1, 1)] if length > 1 else [(0, 1)]
        return all(checker(given(*call)) for call in calls)

    served = longest_served(serves, wanted)
    if served < 2:
        broken = [
            str(violation)
            for past, new in ((0, 2), (1, 1))
            for violation in checker.violations(given(past, new))
        ]
        raise _refused(graph, f"it does not take a prompt and each further token: {broken[0]}")
    return served


def write_genai(
    graphs: Sequence[Graph],
    folder: Path,
    *,
    config: Any,
    generation_config: Any,
    tokenizer: Any,
    context_length: int | None,
    adapters: str,
) -> DecoderFacts:
    """Writes the model, ``genai_config.json`` and the files of the tokenizer into a folder, and gives
    the facts of the graph. ``adapters`` is the argument that has the matrices of an adapter.

    :raises UnsupportedError: ``not-for-genai``
    :raises UsageError: ``bad-config``, ``no-end-token``, ``no-tokenizer``
    """
    text = None if config is None else config.get_text_config()
    known = getattr(text, "max_position_embeddings", None)
    wanted = context_length or (known if isinstance(known, int) else DEFAULT_LENGTH)
    settings = _settings(generation_config)
    decoder = decoder_of(graphs, wanted, adapters)
    if decoder.longest < wanted:
        warn(
            OnlookerWarning(
                f"The folder for ONNX Runtime GenAI is for texts of up to {decoder.longest} tokens,"
                f" and not of {wanted}: {decoder.graph.name} is proven for these.",
                slug="shorter-texts",
                hint="Longer texts run on the program itself, which may have a graph for them.",
            )
        )
    write_models([decoder.graph.artifact.model], [folder / MODEL], MOST_INSIDE)
    if tokenizer is not None:
        copy_tokenizer(tokenizer, folder)
    content = _config_of(decoder, text, settings)
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return decoder


def _settings(generation_config: Any) -> dict[str, Any]:
    """The settings of a generation by name: of a configuration, of a mapping, or of the file in a
    folder.

    :raises UsageError: ``bad-config``
    """
    if generation_config is None:
        return {}
    if isinstance(generation_config, Mapping):
        return dict(generation_config)
    if hasattr(generation_config, "to_dict"):
        return dict(generation_config.to_dict())
    path = Path(generation_config)
    path = path / "generation_config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(found)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"The configuration {path} cannot be used: {error}",
            slug="bad-config",
            hint="Give the folder that generation_config.save_pretrained wrote.",
        ) from error


def _config_of(decoder: DecoderFacts, text: Any, generation: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``genai_config.json``.

    ``text`` is the configuration of the model or None, ``generation`` has the settings of its
    generation by name.

    :raises UsageError: ``no-end-token``
    """
    tokens = {
        name: found
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if (found := _first(generation.get(name), getattr(text, name, None))) is not None
    }
    if "eos_token_id" not in tokens:
        raise UsageError(
            "The token that ends a text is not known, and ONNX Runtime GenAI takes 0 for it then.",
            slug="no-end-token",
            hint='Give it: save_genai(directory, generation_config={"eos_token_id": 2}).',
        )
    if "pad_token_id" not in tokens:
        first = tokens["eos_token_id"]
        tokens["pad_token_id"] = first[0] if isinstance(first, list) else first
    about = {
        name: value
        for name in ("hidden_size", "num_attention_heads")
        if isinstance(value := getattr(text, name, None), int)
    }
    search = {name: generation[name] for name in _SEARCH if generation.get(name) is not None}
    return {
        "model": {
            "type": "decoder",
            **tokens,
            "context_length": decoder.longest,
            "vocab_size": decoder.vocabulary,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": MODEL,
                "head_size": decoder.head_size,
                **about,
                "num_key_value_heads": decoder.heads,
                "num_hidden_layers": decoder.layers,
                "inputs": dict(decoder.inputs),
                "outputs": dict(decoder.outputs),
            },
        },
        "search": {
            "do_sample": False,
            **search,
            "max_length": decoder.longest,
            "past_present_share_buffer": decoder.in_place,
        },
    }


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
