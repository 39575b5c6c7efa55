"""A model of ONNX as a folder that sentence-transformers loads with its ONNX backend.

The reader runs the file for the embeddings of the tokens, which it looks for under the name of
transformers, and then the modules that ``modules.json`` lists: pooling, normalisation. The file has
the embedding of the whole text too, computed by the pooling and the normalisation of the watched
model, for whoever runs it without sentence-transformers.

Modules, and the settings of the pooling, are written in the words of version 2, which all later
versions read: the ONNX backend of optimum runs beside sentence-transformers 5, which knows no module
of version 6 by its own name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....core.errors import OnlookerWarning, UnsupportedError, warn
from ....core.plan import LeafPlan
from ....trace.graph import Graph
from ...side_files import copy_tokenizer, write_json
from .handed_over import handed_over, longest_served, why_refused

__all__ = ["is_sentence_transformer", "write_sentence_transformers"]

#: what the reader gives a model: what tokenizers give, all of the same shape
_GIVEN = ("input_ids", "attention_mask", "token_type_ids")
#: what modules of the watched model call the embeddings of the tokens and of the text, and what the
#: file calls them
_TOKENS, _TEXT = "token_embeddings", "sentence_embedding"
_OUTPUTS = {_TOKENS: "last_hidden_state", _TEXT: _TEXT}
#: the numbers of texts that the graph has to take at once: 32 is what ``encode()`` gives
_BATCHES = (1, 2, 32)
#: where neither the model nor its tokenizer says how long a text may be
_DEFAULT_LENGTH = 512
#: a pooling of each name is true or false in the words of version 2
_POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def is_sentence_transformer(model: Any) -> bool:
    """True for a ``SentenceTransformer``; where nobody imported its package there is none."""
    package = sys.modules.get("sentence_transformers")
    return package is not None and isinstance(model, package.SentenceTransformer)


def write_sentence_transformers(graphs: Sequence[Graph], folder: Path, model: Any) -> None:
    """Writes ``onnx/model.onnx``, the configuration, the tokenizer and the modules of a model.

    :raises UnsupportedError: ``not-for-sentence-transformers`` with the reason
    :raises ExportError: ``not-mergeable``
    """
    if not is_sentence_transformer(model):
        raise _refused(
            f"a {type(model).__name__} was watched" if model is not None else "no model is here",
            "Watch the SentenceTransformer itself: with observer(model): model.encode(texts). A loaded"
            " program needs it as model=.",
        )
    target = graphs[0].target
    if target != "onnx":
        raise _refused(
            f"this is a program of {target}",
            'Convert it first: program.to("onnx").save_sentence_transformers(directory).',
        )
    transformer, *rest = model.children()
    if type(transformer).__name__ != "Transformer":
        raise _refused(f"its first module is a {type(transformer).__name__}")
    modules = [("", "Transformer"), *_written_modules(rest, folder)]
    made = handed_over(graphs)
    others = [name for name in made.inputs if name not in _GIVEN]
    if others:
        raise _refused(f"the reader gives no {', '.join(others)}")
    missing = [name for name in _OUTPUTS if name not in made.outputs]
    if missing:
        raise _refused(f"the model gives no {' and no '.join(missing)}")
    made.keep_outputs(_OUTPUTS)
    length = _longest(graphs, transformer, model.tokenizer)
    made.write(folder / "onnx" / "model.onnx")
    transformer.auto_model.config.save_pretrained(folder)
    copy_tokenizer(model.tokenizer, folder)
    write_json(
        folder / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (path, kind) in enumerate(modules)
        ],
    )
    settings = {"max_seq_length": length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", settings)
    about = {
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
    }
    write_json(folder / "config_sentence_transformers.json", about)


def _refused(reason: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"sentence-transformers cannot read this program: {reason}.",
        slug="not-for-sentence-transformers",
        hint=hint
        or "Save it with program.save(directory), and run it with onlooker.load(directory).",
    )


def _written_modules(modules: Sequence[Any], folder: Path) -> list[tuple[str, str]]:
    """Writes the settings of the modules behind the transformer, and gives the path and the kind of
    each.
    """
    found = []
    for number, module in enumerate(modules, start=1):
        kind = type(module).__name__
        path = f"{number}_{kind}"
        (folder / path).mkdir(parents=True)
        if kind == "Pooling":
            write_json(folder / path / "config.json", _pooling(module))
        elif kind != "Normalize":
            raise _refused(f"{kind}, a module of it, is not known here")
        found.append((path, kind))
    return found


def _pooling(module: Any) -> dict[str, Any]:
    """The settings of a pooling in the words of version 2."""
    if not module.include_prompt:
        raise _refused("its pooling leaves the prompt out, whose length is a number in the graph")
    modes = [module.pooling_mode] if isinstance(module.pooling_mode, str) else module.pooling_mode
    flags = {flag: mode in modes for mode, flag in _POOLINGS.items()}
    return {"word_embedding_dimension": module.embedding_dimension, **flags, "include_prompt": True}


def _longest(graphs: Sequence[Graph], transformer: Any, tokenizer: Any) -> int:
    """The greatest number of tokens of a text: what the model says, or less where the graphs are
    proven for fewer. The least one is that of an empty text.
    """

    def refusal(batch: int, length: int) -> str:
        def shape_of(name: str, leaf: LeafPlan) -> tuple[int, ...]:
            return (batch, length)

        return why_refused(graphs, shape_of)

    def serves(length: int) -> bool:
        return not any(refusal(batch, length) for batch in _BATCHES)

    wanted = transformer.max_seq_length or _DEFAULT_LENGTH
    least = max(1, tokenizer.num_special_tokens_to_add())
    served = longest_served(serves, wanted, least)
    if not served:
        batch = next(batch for batch in _BATCHES if refusal(batch, least))
        raise _refused(
            f"it does not take {batch} texts of {least} tokens: {refusal(batch, least)}",
            "Watch more calls, of other numbers of texts and of other lengths, and export again.",
        )
    if served < wanted:
        warn(
            OnlookerWarning(
                f"The folder for sentence-transformers is for texts of up to {served} tokens, and not of"
                f" {wanted}: the program is proven for these.",
                slug="shorter-texts",
                hint="Longer texts are cut there, as encode() cuts them.",
            )
        )
    return served
