"""Untrained models: configurations that are published, reduced by rule, with inputs that run."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import UnsupportedError, UsageError, compat, max_diff, register_flattening_functions, string_type
from onlooker.pytrees.deepcopy import torch_deepcopy
from onlooker.zoo.tasks import model_class, task_of
from onlooker_compat.untrained import (
    get_cached_configuration,
    get_phi2,
    get_tiny_llm,
    get_tiny_model,
    get_untrained_model_with_inputs,
    preinstalled,
)
from onlooker_compat.untrained.derived import computed, without_stale
from onlooker_compat.untrained.published import find_configuration, published_configuration
from onlooker_compat.untrained.reduce import is_tiny, parts, reduced
from onlooker_compat.untrained.reduce_parts import HEADS, chosen_layers, reduced_layers, reduced_rope

TINY = "arnir0/Tiny-LLM"
BERT = "google-bert/bert-base-uncased"
#: the ids that users of other packages pin in their tests
PINNED = [
    "arnir0/Tiny-LLM",
    "microsoft/phi-2",
    "microsoft/Phi-3-mini-128k-instruct",
    "facebook/bart-base",
    "facebook/bart-large-cnn",
    "hf-tiny-model-private/tiny-random-PLBartForConditionalGeneration",
    "openai/clip-vit-base-patch16",
    "hf-internal-testing/tiny-random-BeitForImageClassification",
    "tiny-random-GPTNeoXForCausalLM",
    "tiny-random-Gemma3ForCausalLM",
    "tiny-xlm-roberta",
    "google-bert/bert-base-multilingual-cased",
    "Intel/bert-base-uncased-mrpc",
    "sentence-transformers/all-MiniLM-L6-v1",
    "fxmarty/sam-vit-tiny-random",
    "hustvl/yolos-tiny",
]


def run(model: torch.nn.Module, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**torch_deepcopy(inputs))


@pytest.mark.parametrize("model_id", preinstalled())
@pytest.mark.one_in(8)
def test_every_configuration_builds_and_runs(model_id: str) -> None:
    state = torch.get_rng_state()
    data = get_untrained_model_with_inputs(model_id)
    assert torch.equal(torch.get_rng_state(), state)
    assert data["n_weights"] < 13_000_000
    assert not data["model"].training
    assert data["inputs"].keys() == data["dynamic_shapes"].keys()
    for key in ("inputs", "inputs2", "inputs_batch1", "inputs_empty_cache"):
        if key in data:
            first = next(iter(run(data["model"], data[key]).values()))
            assert torch.isfinite(first).all()
    main = next(iter(data["inputs"]))
    assert data["inputs2"][main].shape[0] > data["inputs"][main].shape[0] > data["inputs_batch1"][main].shape[0]


def test_the_families_are_there() -> None:
    tasks = {task_of(published_configuration(name)) for name in preinstalled()}
    assert len(preinstalled()) >= 40
    assert tasks >= {
        "text-generation",
        "text2text-generation",
        "fill-mask",
        "feature-extraction",
        "text-classification",
        "image-classification",
        "object-detection",
        "mask-generation",
        "automatic-speech-recognition",
        "audio-classification",
        "zero-shot-image-classification",
        "image-text-to-text",
    }


@pytest.mark.parametrize(
    ("model_id", "count"),
    [
        ("openai/whisper-tiny", 37_760_640),
        ("facebook/wav2vec2-base-960h", 94_396_320),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen/Qwen2-0.5B", 494_032_768),
        ("google/gemma-2b", 2_506_172_416),
        ("microsoft/phi-2", 2_779_683_840),
        ("microsoft/Phi-3-mini-128k-instruct", 3_821_079_552),
        ("openai-community/gpt2", 124_439_808),
        ("EleutherAI/pythia-70m", 70_426_624),
        ("facebook/opt-125m", 125_239_296),
        ("google-bert/bert-base-uncased", 109_514_298),
        ("facebook/bart-base", 139_420_416),
        ("google-t5/t5-small", 60_506_624),
        ("openai/clip-vit-base-patch32", 151_277_313),
    ],
)
def test_published_sizes(model_id: str, count: int) -> None:
    """The number of parameters that the trained model has; meta tensors take no memory."""
    config = published_configuration(model_id)
    with torch.device("meta"):
        model = model_class(config, task_of(config))(config)
    assert sum(weight.numel() for weight in model.parameters()) == count


@pytest.mark.parametrize("model_id", PINNED)
def test_pinned_ids_are_known_with_and_without_their_owner(model_id: str) -> None:
    assert find_configuration(model_id, only_preinstalled=True) is not None
    assert find_configuration(model_id.rpartition("/")[2], only_preinstalled=True) is not None


# --- the model of the documents


def test_tiny_llm_is_not_reduced() -> None:
    data = get_untrained_model_with_inputs(TINY)
    assert (data["n_weights"], data["size"], data["task"]) == (12_988_992, 4 * 12_988_992, "text-generation")
    assert string_type(data["inputs"], with_shape=True) == (
        "dict(input_ids:T7s2x3,attention_mask:T7s2x33,position_ids:T7s2x3,past_key_values:"
        "DynamicCache(key_cache=#1[T1s2x1x30x96], value_cache=#1[T1s2x1x30x96]))"
    )
    assert tuple(run(data["model"], data["inputs"]).logits.shape) == (2, 3, 32000)
    assert string_type(data["inputs2"]["past_key_values"], with_shape=True).count("T1s3x1x31x96") == 2
    assert string_type(data["inputs_batch1"]["past_key_values"], with_shape=True).count("T1s1x1x30x96") == 2
    assert string_type(data["inputs_empty_cache"]["past_key_values"], with_shape=True).count("T1s2x1x0x96") == 2


def test_a_static_cache() -> None:
    data = get_untrained_model_with_inputs(
        TINY, model_kwargs={"cache_implementation": "static"}, inputs_kwargs={"cls_cache": "StaticCache"}
    )
    assert string_type(data["inputs"], with_shape=True) == (
        "dict(input_ids:T7s2x3,attention_mask:T9s2x1x3x96,cache_position:T7s3,past_key_values:"
        "StaticCache(key_cache=#1[T1s2x1x96x96], value_cache=#1[T1s2x1x96x96]))"
    )
    batch = "{0: Dim('batch', min=1, max=1024)}"
    assert repr(data["dynamic_shapes"]) == (
        "{'input_ids': {0: Dim('batch', min=1, max=1024), 1: 'seq_length'}, "
        "'attention_mask': {0: Dim('batch', min=1, max=1024), 2: 'seq'}, 'cache_position': {0: 'seq'}, "
        f"'past_key_values': [[{batch}], [{batch}]]}}"
    )
    grown = get_untrained_model_with_inputs(TINY)["inputs"]  # the same ids, by the same seed
    static, dynamic = run(data["model"], data["inputs"]), run(data["model"], grown)
    torch.testing.assert_close(static.logits, dynamic.logits)
    for key in ("inputs2", "inputs_batch1", "inputs_empty_cache"):
        assert run(data["model"], data[key]).logits.isfinite().all()


@pytest.mark.parametrize("model_id", ["google/gemma-3-1b-it", "LiquidAI/LFM2-350M", "facebook/bart-base"])
def test_other_layers_and_static_caches(model_id: str) -> None:
    data = get_untrained_model_with_inputs(model_id, inputs_kwargs={"cls_cache": "StaticCache"})
    assert "Static" in string_type(data["inputs"]["past_key_values"])
    for key in ("inputs", "inputs2", "inputs_batch1", "inputs_empty_cache"):
        assert run(data["model"], data[key]).logits.isfinite().all()


def test_a_cache_holds_the_tokens_that_are_asked_for() -> None:
    filled = get_untrained_model_with_inputs("openai-community/gpt2", inputs_kwargs={"sequence_length": 11})
    assert filled["inputs"]["past_key_values"].get_seq_length() == 11
    assert filled["inputs"]["past_key_values"].layers[0].keys.abs().max() > 0
    empty = get_untrained_model_with_inputs("openai-community/gpt2", inputs_kwargs={"sequence_length": 0})
    assert empty["inputs"]["past_key_values"].get_seq_length() == 0


# --- exports


@pytest.mark.parametrize(
    "model_id",
    [TINY, f"{TINY}::model", BERT, "google/vit-base-patch16-224", "openai/clip-vit-base-patch16", "facebook/bart-base"],
)
@pytest.mark.one_in(4)
def test_the_shapes_are_taken_by_torch_export(model_id: str) -> None:
    data = get_untrained_model_with_inputs(model_id)
    shapes = compat.use_dyn_not_str(data["dynamic_shapes"])
    with register_flattening_functions(), torch.no_grad():
        inputs = torch_deepcopy(data["inputs"])
        program = torch.export.export(data["model"], (), kwargs=inputs, dynamic_shapes=shapes, strict=False)
        for key in ("inputs", "inputs2", "inputs_batch1"):
            expected = run(data["model"], data[key])
            assert max_diff(expected, run(program.module(), data[key]))["abs"] == 0


# --- reduction


@pytest.mark.parametrize("model_id", preinstalled())
def test_reduction_keeps_what_belongs_together(model_id: str) -> None:
    config = published_configuration(model_id).to_dict()
    small = reduced(config)
    assert config == published_configuration(model_id).to_dict()  # untouched
    for before, after in zip(parts(config), parts(small), strict=True):
        width, heads = after.get("hidden_size"), after.get("num_attention_heads")
        if isinstance(width, int) and isinstance(heads, int) and not after.get("head_dim"):
            assert width % heads == 0
        keys = after.get("num_key_value_heads")
        if isinstance(keys, int):
            assert next(after[key] for key in HEADS if key in after) % keys == 0
            assert (keys == 1) == (before["num_key_value_heads"] == 1)
        names = [key for key in after if key.endswith(("_size", "_dim")) and isinstance(before.get(key), int)]
        ordered = sorted(names, key=lambda key: before[key])
        assert all(after[key] <= before[key] for key in names)
        widths = [key for key in ordered if key in ("hidden_size", "intermediate_size", "projection_dim", "embed_dim")]
        assert all(after[a] <= after[b] for a, b in pairwise(widths))


def test_special_tokens_stay_distinct_and_in_the_vocabulary() -> None:
    tree = {"hidden_size": 4096, "vocab_size": 128256, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 7]}
    small = reduced({**tree, "num_hidden_layers": 32, "image_token_index": 1023})
    assert (small["bos_token_id"], small["eos_token_id"]) == (1020, [1021, 1022, 7])
    assert small["image_token_index"] == 1023


def test_one_layer_of_each_kind_is_kept() -> None:
    kinds = ["dense"] * 2 + ["sparse"] * 4 + ["last"]
    assert chosen_layers({"num_hidden_layers": 7, "mlp_layer_types": kinds}) == [0, 2, 6]
    assert chosen_layers({"num_hidden_layers": 7}) == [0, 1]
    assert chosen_layers({"vocab_size": 7}) is None


def test_a_rotary_embedding_follows_the_head() -> None:
    part = {"rotary_dim": 64, "rope_parameters": {"short_factor": [1.0] * 48, "mrope_section": [16, 24, 24]}}
    assert reduced_rope(part, 128, 16) == {
        "rotary_dim": 8,
        "rope_parameters": {"short_factor": [1.0] * 6, "mrope_section": [2, 3, 3]},
    }


def test_what_is_tiny_stays() -> None:
    config = published_configuration(TINY).to_dict()
    assert is_tiny(config)
    assert reduced(config) == config


def test_layers_that_share_weights_have_another_one_of_their_kind() -> None:
    kinds = ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"]
    assert chosen_layers({"num_hidden_layers": 6, "layer_types": kinds}) == [0, 2, 4]
    alone = ["hybrid_sliding", "hybrid", "hybrid", "hybrid"]
    assert chosen_layers({"num_hidden_layers": 4, "layer_types": alone}) == [0, 1]


def test_a_list_of_a_value_for_each_layer_is_shortened_and_reduced() -> None:
    tree = {"hidden_size": 2048, "num_hidden_layers": 35, "intermediate_size": [16384] * 35, "num_kv_shared_layers": 20}
    small = reduced({**tree, "sparsity": [0.95] * 10 + [0.0] * 25, "scales": [1, 2, 3]})
    assert (small["intermediate_size"], small["sparsity"], small["scales"]) == ([512, 512], [0.95, 0.0], [1, 2, 3])
    assert small["num_kv_shared_layers"] == 1


def test_layers_that_take_keys_and_values_of_others_keep_a_source() -> None:
    tree = {"hidden_size": 6144, "num_hidden_layers": 36, "layer_types": ["full"] * 36}
    small = reduced({**tree, "kv_source_layers": list(range(36))})
    assert (small["num_hidden_layers"], small["kv_source_layers"]) == (2, [0, 1])
    small = reduced({**tree, "kv_source_layers": [*range(20), *[19] * 16]})
    assert (small["num_hidden_layers"], small["kv_source_layers"]) == (2, [0, 0])


def test_experts_that_compute_nothing_are_few() -> None:
    small = reduced({"hidden_size": 6144, "num_layers": 28, "zero_expert_num": 256, "moe_topk": 12})
    assert (small["zero_expert_num"], small["moe_topk"]) == (4, 2)


def test_an_image_has_one_side_in_all_parts() -> None:
    stages = {"image_size": [1024, 1024], "embed_dim_per_stage": [96, 192, 384, 768]}
    vision = {"backbone_config": stages, "backbone_feature_sizes": [[256, 256], [64, 64]]}
    prompt = {"hidden_size": 256, "image_size": 1024, "patch_size": 16}
    decoder = {"hidden_size": 256, "num_hidden_layers": 2, "vit_dim": 768}
    tree = {"vision_config": vision, "prompt_config": prompt, "decoder_config": decoder}
    small = reduced(tree)
    assert small["prompt_config"]["image_size"] == 128
    assert small["vision_config"]["backbone_config"]["image_size"] == [128, 128]
    assert small["vision_config"]["backbone_feature_sizes"] == [[32, 32], [8, 8]]
    assert small["decoder_config"]["vit_dim"] == 192


def test_a_pattern_over_the_layers_keeps_each_kind() -> None:
    part = {"num_hidden_layers": 32, "attn_layer_period": 8, "attn_layer_offset": 4, "attn_layer_indices": [9, 31]}
    update = reduced_layers(part, chosen_layers(part))
    assert (update["attn_layer_period"], update["attn_layer_offset"]) == (2, 1)
    assert update["attn_layer_indices"] == [0, 1]


# --- what a class computes


@dataclasses.dataclass
class Computing:
    """A configuration that computes two sizes of others, as those of transformers do."""

    width: int = 64
    heads: int = 4
    size: int | str = "auto"
    second_width: int | None = None
    stages: int = 8
    token_id: int | None = None

    def __post_init__(self) -> None:
        self.size = self.width // self.heads if self.size == "auto" else self.size
        self.second_width = self.second_width or self.width
        self.blocks = self.width // self.stages

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "model_type": "computing"}


def test_the_class_says_which_sizes_it_computes() -> None:
    assert computed(Computing()) == {"size", "second_width", "blocks"}
    assert computed(Computing(size=7)) == {"second_width", "blocks"}
    assert computed(Computing(token_id=64, second_width=5)) == {"size", "blocks"}


def test_a_state_space_layer_of_a_width_of_its_own_is_reduced_with_its_heads_and_its_state() -> None:
    tree = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    }
    small = reduced(tree)
    assert (small["mamba_d_ssm"], small["mamba_n_heads"], small["mamba_d_state"]) == (16, 4, 16)


def test_layers_that_only_a_list_of_their_kinds_counts_are_reduced() -> None:
    kinds = ["linear_attention", "moe"] * 20 + ["full_attention", "moe"]
    small = reduced({"hidden_size": 2688, "layers_block_type": kinds})
    assert small["layers_block_type"] == ["linear_attention", "moe", "full_attention"]


def test_a_computed_size_is_computed_anew_unless_the_reduction_knows_it() -> None:
    config = Computing(width=512)
    values = config.to_dict()
    assert values["size"] == 128
    found = without_stale(config, {**values, "width": 64})
    assert not {"size", "second_width"} & set(found)
    assert without_stale(config, {**values, "width": 64, "size": 32})["size"] == 32
    assert without_stale(config, values | {"width": 4})["blocks"] == 64  # it would be 0


# --- default configurations

#: the default configuration leaves open, or reduces to nothing: attention in any of the layers, the pattern of
#: attention, layers that share weights, sizes of state-space heads, kinds of layers, experts, heads, languages
DECODERS = [
    "BambaConfig",
    "GraniteMoeHybridConfig",
    "JambaConfig",
    "ZambaConfig",
    "Zamba2Config",
    "Lfm2MoeConfig",
    "DeepseekV2Config",
    "Dots1Config",
    "MinistralConfig",
    "NemotronConfig",
    "Gemma3nTextConfig",
    "XmodConfig",
]
#: sections of a rotary embedding, the width of the features of an image, tokens and words of images
READERS_OF_IMAGES = ["Qwen2VLConfig", "Glm4vConfig", "ChameleonConfig"]


def default_configuration(name: str) -> Any:
    """The default configuration of a class, where the installed transformers has it."""
    found = getattr(pytest.importorskip("transformers"), name, None)
    return found() if found is not None else pytest.skip(f"transformers has no {name}")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, "text-generation") for name in DECODERS),
        *((name, "image-text-to-text") for name in READERS_OF_IMAGES),
    ],
)
@pytest.mark.one_in(2)
def test_a_default_configuration_becomes_a_tiny_model_that_runs(name: str, task: str) -> None:
    data = get_untrained_model_with_inputs("default", config=default_configuration(name), task=task)
    assert data["n_weights"] < 30_000_000
    for key in ("inputs", "inputs2", "inputs_batch1"):
        assert run(data["model"], data[key]).logits.isfinite().all()


def test_a_model_of_linear_layers_has_attention_and_its_cache_has_both() -> None:
    data = get_untrained_model_with_inputs("default", config=default_configuration("BambaConfig"))
    kinds = [type(layer).__name__ for layer in data["inputs"]["past_key_values"].layers]
    assert len(set(kinds)) == 2
    assert data["inputs"]["past_key_values"].get_seq_length() == 30


def test_what_writes_text_is_a_decoder() -> None:
    config = default_configuration("RobertaConfig")
    assert config.is_decoder is False
    model = get_untrained_model_with_inputs("default", config=config, task="text-generation")["model"]
    ids = torch.tensor([[5, 6, 7, 8]])
    changed = torch.tensor([[5, 6, 7, 9]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[:, :3], model(changed).logits[:, :3])
    reader = get_untrained_model_with_inputs("default", config=config, task="fill-mask")["model"]
    assert reader.config.is_decoder is False


# --- arguments


def test_the_same_arguments_give_the_same_weights_and_inputs() -> None:
    torch.manual_seed(5)
    first = get_untrained_model_with_inputs(BERT)
    torch.manual_seed(6)
    second = get_untrained_model_with_inputs(BERT)
    assert max_diff(dict(first["model"].state_dict()), dict(second["model"].state_dict()))["abs"] == 0
    assert max_diff(first["inputs"], second["inputs"])["abs"] == 0


def test_sizes_and_attributes_are_given_by_the_caller() -> None:
    sizes = {"batch_size": 5, "sequence_length": 7, "sequence_length2": 2}
    data = get_untrained_model_with_inputs(
        TINY, inputs_kwargs=sizes, model_kwargs={"num_hidden_layers": 2}, add_second_input=0
    )
    assert tuple(data["inputs"]["attention_mask"].shape) == (5, 9)
    assert len(data["inputs"]["past_key_values"].layers) == data["configuration"].num_hidden_layers == 2
    assert not [key for key in data if key.startswith("inputs") and key != "inputs"]
    assert data["model_kwargs"] == {"num_hidden_layers": 2}
    assert data["input_kwargs"]["batch_size"] == 5


def test_a_configuration_inside_is_changed_and_not_replaced() -> None:
    changes = {"text_config": {"num_hidden_layers": 1}}
    data = get_untrained_model_with_inputs("openai/clip-vit-base-patch16", model_kwargs=changes)
    text = data["configuration"].text_config
    assert (text.num_hidden_layers, text.hidden_size) == (1, 48)


def test_a_configuration_of_the_caller_is_reduced_and_not_changed() -> None:
    config = get_cached_configuration(BERT, num_hidden_layers=3)
    data = get_untrained_model_with_inputs("mine", config=config)
    assert (config.hidden_size, data["configuration"].hidden_size) == (768, 64)
    other = get_untrained_model_with_inputs("mine", config=config, config_reduction=lambda *_: {"num_hidden_layers": 1})
    assert (other["configuration"].hidden_size, other["configuration"].num_hidden_layers) == (768, 1)
    task = get_untrained_model_with_inputs("mine", config=config, task="token-classification", skip_inputs=True)
    assert type(task["model"]).__name__ == "BertForTokenClassification"
    assert "inputs" not in task


def test_the_rotary_embedding_may_be_dynamic() -> None:
    data = get_untrained_model_with_inputs(TINY, dynamic_rope=True)
    assert data["configuration"].rope_parameters["rope_type"] == "dynamic"
    assert run(data["model"], data["inputs"]).logits.isfinite().all()


def test_a_part_of_the_model() -> None:
    for data in (
        get_untrained_model_with_inputs(f"{TINY}::model"),
        get_untrained_model_with_inputs(TINY, submodule="model"),
    ):
        assert type(data["model"]).__name__ == "LlamaModel"
        assert data["n_weights"] == 12_988_992 - 32000 * 192
        assert tuple(run(data["model"], data["inputs"]).last_hidden_state.shape) == (2, 3, 192)


def test_a_local_folder_and_its_weights(tmp_path: Path) -> None:
    model = get_untrained_model_with_inputs(BERT, skip_inputs=True)["model"]
    model.save_pretrained(tmp_path / "inside")
    folder = str(tmp_path / "inside")
    data = get_untrained_model_with_inputs(folder, use_pretrained=True)
    assert max_diff(dict(model.state_dict()), dict(data["model"].state_dict()))["abs"] == 0
    by_subfolder = get_untrained_model_with_inputs(str(tmp_path), subfolder="inside", same_as_pretrained=True)
    assert by_subfolder["n_weights"] == data["n_weights"]


def test_a_published_configuration_is_reduced_from_a_folder_as_well(tmp_path: Path) -> None:
    values = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    data = get_untrained_model_with_inputs(str(tmp_path))
    assert data["configuration"].hidden_size == 64
    assert data["dump_info"]["config"]["hidden_size"] == 768


# --- errors


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"model_id": "microsoft/phi-22"}, UsageError, r"'microsoft/phi-22' is not known here.*microsoft/phi-2\b"),
        ({"model_id": "zzz", "use_only_preinstalled": True}, UsageError, r"'zzz'.*Give config=.*\[unknown-untrained"),
        ({"model_id": TINY, "use_preinstalled": False}, UsageError, "is not known here"),
        ({"model_id": TINY, "task": "cooking"}, UsageError, r"no task 'cooking'.*\[no-such-task\]"),
        ({"model_id": TINY, "task": "mask-generation"}, UnsupportedError, r"no class for mask-generation.*\[no-task\]"),
        ({"model_id": TINY, "inputs_kwargs": {"batch": 1}}, UsageError, r"'batch'.*batch_size.*\[no-such-input-size\]"),
        ({"model_id": TINY, "inputs_kwargs": {"cls_cache": "Nope"}}, UsageError, r"'Nope'.*\[no-such-cache\]"),
        ({"model_id": TINY, "submodule": "nope"}, UsageError, r"'nope'.*model, lm_head.*\[no-such-submodule\]"),
    ],
)
def test_errors_say_what_to_do(kwargs: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        get_untrained_model_with_inputs(**kwargs)


# --- shorter ways


def test_tiny_models_by_a_shorter_way() -> None:
    tiny = get_tiny_model(TINY, config_updates={"num_hidden_layers": 2}, dtype="float16")
    assert (tiny.model_id, tiny.model.config.num_hidden_layers) == (TINY, 2)
    assert tiny.export_inputs["past_key_values"].layers[0].keys.dtype == torch.float16
    assert tiny.dynamic_shapes_for_torch_export_export["input_ids"][1] == torch.export.Dim.DYNAMIC
    assert run(tiny.model, tiny.export_inputs).logits.dtype == torch.float16
    with pytest.raises(UsageError, match=r"'float99'.*\[no-such-dtype\]"):
        get_tiny_model(TINY, dtype="float99")


def test_cached_configurations() -> None:
    assert get_cached_configuration("nothing/at-all") is None
    with pytest.raises(UsageError, match=r"\[unknown-untrained-model\]"):
        get_cached_configuration("nothing/at-all", exc=True)
    phi = get_cached_configuration("microsoft/phi-2", exc=True, num_hidden_layers=1)
    assert (phi.rope_parameters["partial_rotary_factor"], phi.num_hidden_layers) == (0.4, 1)


def test_two_models_that_are_used_most() -> None:
    llm, phi = get_tiny_llm(batch_size=3, use_static_cache=True), get_phi2(num_hidden_layers=1)
    assert (llm["n_weights"], llm["inputs"]["input_ids"].shape[0]) == (12_988_992, 3)
    assert type(llm["inputs"]["past_key_values"]).__name__ == "StaticCache"
    assert phi["configuration"].num_hidden_layers == 1


def test_the_names_at_the_top() -> None:
    assert onlooker.get_untrained_model_with_inputs is get_untrained_model_with_inputs
    data = compat.get_untrained_model_with_inputs(TINY, verbose=1, skip_inputs=True)
    assert data["n_weights"] == 12_988_992
    assert compat.get_tiny_model is get_tiny_model
