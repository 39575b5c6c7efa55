"""A tokenizer of few words, models of texts with random weights, and other packages that read folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = [
    "LONG",
    "TEXTS",
    "bert",
    "in_node",
    "in_sentence_transformers",
    "require_node",
    "require_sentence_transformers",
    "tokenizer",
]

KNOWN = "the cat sat on a mat dog ran far away in sun rain fell and we saw it all day long"
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
#: texts of several lengths, which no call of the tests has
LONG = "far away in sun rain fell " * 30
TEXTS = ["the cat sat on a mat", "dog", LONG, "we saw", "", "it fell on a dog and on a cat far away in the rain"]
ROOT = Path(__file__).parent.parent
#: where `make test-readers` puts the readers
READERS = Path(os.environ.get("ONLOOKER_READERS", ROOT / ".venv-readers"))
SCRIPTS = Path(__file__).parent / "readers"


def tokenizer() -> Any:
    """A tokenizer of transformers that is its file alone, for texts of up to 64 tokens."""
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate([*SPECIAL.values(), *KNOWN.split()])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    marks = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **SPECIAL)


def bert(hidden: int = 32, **values: Any) -> Any:
    """An encoder of transformers with random weights."""
    import transformers

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
    config = transformers.BertConfig(vocab_size=len(tokenizer()), hidden_size=hidden, **{**sizes, **values})
    return transformers.BertModel(config).eval()


def require_sentence_transformers() -> Path:
    """The Python of an environment that has sentence-transformers and optimum: this one needs transformers 4."""
    python = READERS / "bin" / "python"
    if not python.is_file():
        pytest.skip("sentence-transformers with its ONNX backend is not installed: make test-readers")
    return python


def in_sentence_transformers(folder: Path, asked: dict[str, Any], place: Path) -> dict[str, Any]:
    """What sentence-transformers gives with its ONNX backend."""
    return _read([require_sentence_transformers(), SCRIPTS / "embed.py"], folder, asked, place)


def require_node() -> str:
    """The path of node, where the packages of npm are there too."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (READERS / "node" / "node_modules" / "@huggingface" / "transformers").is_dir():
        pytest.skip("@huggingface/transformers of npm is not installed: make test-readers")
    return node


def in_node(script: str, folder: Path, asked: dict[str, Any], place: Path) -> dict[str, Any]:
    """What a script of JavaScript gives, with the packages of npm."""
    node, packages = require_node(), place / "node_modules"
    shutil.copy(SCRIPTS / script, place)  # node looks for packages beside the script
    if not packages.exists():
        packages.symlink_to(READERS / "node" / "node_modules", target_is_directory=True)
    return _read([node, place / script], folder, asked, place)


def _read(command: list[Any], folder: Path, asked: dict[str, Any], place: Path) -> dict[str, Any]:
    file = place / "asked.json"
    file.write_text(json.dumps(asked))
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    offline.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, command), folder, file], cwd=place, env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found
