"""``onlooker export --model``: saved models of several kinds, from a folder to files that run."""

from __future__ import annotations

import io
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import UsageError
from onlooker.cli import main
from onlooker.cli.pretrained import local_folder
from onlooker.zoo.draw import randomised
from onlooker.zoo.uses import Sizes, natural_use
from tiny_texts import TEXTS, bert, tokenizer

transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")

TEXT = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SOUND = {"conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2}
POSITIONS = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
BOTH = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
#: by what it does: class, and what its configuration has beside the defaults
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "decoder": ("LlamaForCausalLM", {**TEXT, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 63}),
    "encoder": ("BertForSequenceClassification", {**TEXT, "max_position_embeddings": 64}),
    "images": ("ViTForImageClassification", {**TEXT, "image_size": 32, "patch_size": 8}),
    "sound": ("Wav2Vec2ForCTC", {**TEXT, **SOUND, **POSITIONS, "vocab_size": 32}),
    "text to text": (
        "BartForConditionalGeneration",
        {**BOTH, "vocab_size": 64, "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
         "max_position_embeddings": 64, "forced_eos_token_id": None},
    ),
}  # fmt: skip


def run(*argv: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main([str(part) for part in argv], stdout, stderr)
    return code, stdout.getvalue(), stderr.getvalue()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of the saved model of a kind."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in made:
            name, values = KINDS[kind]
            cls = getattr(transformers, name)
            made[kind] = tmp_path_factory.mktemp("saved") / "model"
            randomised(partial(cls, cls.config_class(**values))).save_pretrained(made[kind])
            (made[kind] / "tokenizer_config.json").write_text("{}")
        return made[kind]

    return of


#: the others take half a minute each, and differ from these in what a natural use of them is
QUICK = {("decoder", "onnx"), ("images", "torch"), ("images", "onnx"), ("encoder", "torch")}


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        pytest.param(kind, to, marks=() if (kind, to) in QUICK else pytest.mark.slow)
        for kind in KINDS
        for to in ("torch", "onnx")
    ],
)
@pytest.mark.one_in(4)
def test_a_saved_model_becomes_a_proven_program(saved: Any, kind: str, to: str, tmp_path: Path) -> None:
    folder, out = saved(kind), tmp_path / "out"
    code, stdout, stderr = run("export", "--model", folder, "--to", to, "--out", out)
    assert code == 0, stdout + stderr
    program = onlooker.load(out)
    first = out if isinstance(program, onlooker.Program) else out / next(iter(program))
    assert {"config.json", "tokenizer_config.json"} <= {path.name for path in first.iterdir()}
    assert not (first / "model.safetensors").exists()
    model = getattr(transformers, KINDS[kind][0]).from_pretrained(folder).eval()
    use = natural_use(model)
    sizes = Sizes((0, 1, 0), 9, seed=5)
    with torch.no_grad():
        expected = use.run(model, sizes)
    lines = [line.strip() for line in stdout.partition("to run it in Python:")[2].splitlines()]
    if use.generates:
        assert f"model = onlooker.generation({str(out)!r}, {str(first)!r})" in lines
        assert torch.equal(use.run(onlooker.generation(out, first), sizes), expected)
    else:
        assert f"program = onlooker.load({str(out)!r})" in lines
        torch.testing.assert_close(program(**use.inputs(model, sizes)).logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert run("export", "--model", folder, "--to", to, "--out", out, "--no-verify")[0] == 0  # it is replaced


@pytest.mark.slow
def test_a_saved_model_for_openvino(saved: Any, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    code, stdout, stderr = run("export", "--model", saved("encoder"), "--to", "openvino", "--out", tmp_path / "out")
    assert code == 0, stdout + stderr
    model = openvino.Core().read_model(tmp_path / "out" / "main.xml")
    assert "input_ids" in {name for each in model.inputs for name in each.names}
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.slow
def test_a_saved_model_for_genai(saved: Any, tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    folder, out = saved("decoder"), tmp_path / "out"
    code, stdout, stderr = run("export", "--model", folder, "--to", "genai", "--out", out)
    assert code == 0, stdout + stderr
    assert {"config.json", "genai_config.json", "model.onnx"} <= {path.name for path in out.iterdir()}
    assert f"model = onnxruntime_genai.Model({str(out)!r})" in stdout
    loaded = genai.Model(str(out))
    search = genai.GeneratorParams(loaded)
    search.set_search_options(max_length=12)
    generator = genai.Generator(loaded, search)
    generator.append_tokens([5, 6, 7])
    while not generator.is_done():
        generator.generate_next_token()
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[5, 6, 7]])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_length=12, do_sample=False)
    tokens = expected[0].tolist()
    tokens = tokens[: tokens.index(63)] if 63 in tokens else tokens  # GenAI leaves the end out
    assert [int(token) for token in generator.get_sequence(0)] == tokens
    code, _, stderr = run("export", "--model", saved("text to text"), "--to", "genai", "--out", tmp_path / "other")
    assert code == 1
    assert "[one-model-only]" in stderr


@pytest.mark.slow
def test_a_saved_model_for_sentence_transformers(tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers")
    folder, out = tmp_path / "encoder", tmp_path / "out"
    bert().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    code, stdout, stderr = run("export", "--model", folder, "--to", "sentence-transformers", "--out", out)
    assert code == 0, stdout + stderr
    assert f"model = SentenceTransformer({str(out)!r}, backend='onnx')" in stdout
    model = package.SentenceTransformer(str(folder), device="cpu")
    inputs = tokenizer()(TEXTS, padding=True, truncation=True, return_tensors="np")
    session = onnxruntime.InferenceSession(out / "onnx" / "model.onnx")
    feeds = {port.name: inputs[port.name].astype("int64") for port in session.get_inputs()}
    found = session.run(["sentence_embedding"], feeds)[0]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(model.encode(TEXTS)), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_saved_model_for_the_web(tmp_path: Path) -> None:
    folder, out = tmp_path / "encoder", tmp_path / "out"
    bert().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    code, stdout, stderr = run("export", "--model", folder, "--to", "web", "--out", out)
    assert code == 0, stdout + stderr
    assert f"{out}/onnx/model.onnx (fp32, 0.1 MB): verified, largest difference" in stdout
    assert f"{out}/onnx/model_q4.onnx (q4, 0.1 MB): differs from the model by up to 0.0" in stdout
    assert "import { BertModel, AutoTokenizer, env } from '@huggingface/transformers';" in stdout
    names = {path.name for path in out.iterdir()}
    assert names == {"config.json", "onnx", "tokenizer.json", "tokenizer_config.json"}
    code, stdout, _ = run("export", "--model", folder, "--to", "web", "--out", out, "--atol", "1e-6", "--json")
    files = {file["dtype"]: file for file in json.loads(stdout)["web"]}
    assert (code, files["fp32"]["holds"], files["q8"]["holds"]) == (2, True, False)
    for wrong in (("--precision", "int4", "--out", out), ()):
        code, _, stderr = run("export", "--model", folder, "--to", "web", *wrong)
        assert (code, "[bad-command-line]" in stderr) == (1, True)


def test_a_class_that_the_configuration_does_not_name_is_that_of_its_type(saved: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved("encoder"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": None}))
    code, stdout, stderr = run("export", "--model", folder, "--json", "--no-verify")
    assert code == 0, stderr
    assert "Bert" in json.loads(stdout)["report"]["model"]


def test_what_is_no_saved_model_is_refused(saved: Any, tmp_path: Path) -> None:
    code, _, stderr = run("export", "--model", tmp_path)
    assert (code, "has no config.json" in stderr, "[no-saved-model]" in stderr) == (1, True, True)
    code, _, stderr = run("export", "--model", "nobody/has-this")
    assert (code, "hf download nobody/has-this" in stderr, "[no-saved-model]" in stderr) == (1, True, True)
    (tmp_path / "config.json").write_text('{"model_type": "nothing"}')
    code, _, stderr = run("export", "--model", tmp_path)
    assert (code, "[bad-saved-model]" in stderr) == (1, True)
    for argv in ((), ("app.py:build", "--model", "x"), ("--model", "x", "--entry", "unet")):
        code, _, stderr = run("export", *argv)
        assert (code, "[bad-command-line]" in stderr) == (1, True)
    with pytest.raises(UsageError, match="no such"):
        local_folder(str(saved("decoder")), "such.json")
