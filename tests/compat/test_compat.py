"""The names of other packages: each is there, with the arguments that its users give."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput

import onlooker
import onlooker_compat
from onlooker import compat

FLATTEN = "cls, f_flatten, f_unflatten, f_flatten_with_keys, f_check"
STRING_TYPE = "obj, with_shape, with_min_max, with_device, ignore, limit"
MAX_DIFF = (
    "expected, got, level, flatten, debug_info, begin, end, _index, allow_unique_tensor_with_list_of_one_element, "
    "hist, skip_none"
)
CHECK = "self, onnx_model, atol, rtol, hist, progress_bar, include_io, skip_none"

#: where, name, the names of its parameters in their order
SIGNATURES: list[tuple[Any, str, str]] = [
    (onlooker, "InputObserver", "value_if_missing, max_bytes, state"),
    (onlooker.InputObserver, "__call__", "self, model, store_n_calls, method_name, keep"),
    (onlooker.InputObserver, "num_obs", "self"),
    (onlooker.InputObserver, "is_empty", "self"),
    (onlooker.InputObserver, "infer_dynamic_shapes", "self, set_batch_dimension_for, dim_names"),
    (onlooker.InputObserver, "infer_arguments", "self, index_or_args_or_kwargs, flat, as_args_kwargs"),
    (onlooker.InputObserver, "check_discrepancies", CHECK),
    (onlooker.InputObserver, "remove_inputs", "self, input_names"),
    (onlooker, "register_flattening_functions", "patch_transformers"),
    (onlooker, "register_class_flattening", FLATTEN),
    (onlooker, "unregister_class_flattening", "cls"),
    (onlooker, "string_type", STRING_TYPE),
    (onlooker, "max_diff", MAX_DIFF),
    (onlooker, "make_dynamic_cache", "key_value_pairs, cls_layers, cls_kwargs"),
    (onlooker, "make_static_cache", "key_value_pairs, max_cache_len, cls_layers"),
    (onlooker, "make_encoder_decoder_cache", "self_attention_cache, cross_attention_cache"),
    (compat, "InputObserver", "value_if_missing, max_bytes, state"),
    (compat, "register_flattening_functions", "patch_transformers, verbose"),
    (compat, "register_additional_serialization_functions", "patch_transformers, patch_diffusers, verbose"),
    (compat, "register_class_flattening", f"{FLATTEN}, verbose"),
    (compat, "unregister_class_flattening", "cls, verbose"),
    (compat, "replacement_before_exporting", "args"),
    (compat, "make_dynamic_cache", "key_value_pairs, cls_layers, cls_kwargs"),
    (compat, "make_static_cache", "key_value_pairs, max_cache_len, cls_layers"),
    (compat, "make_encoder_decoder_cache", "self_attention_cache, cross_attention_cache"),
    (compat, "CacheKeyValue", "cache, cls_layers"),
    (compat, "make_dynamic_shapes_kv_cache", "cache, shape_of_one"),
    (compat, "flatten_unflatten_for_dynamic_shapes", "obj, use_dict, change_function"),
    (compat, "torch_deepcopy", "value"),
    (compat, "to_any", "value, to_value"),
    (compat, "string_type", f"{STRING_TYPE}, verbose"),
    (compat, "max_diff", f"{MAX_DIFF}, verbose"),
    (compat, "flatten_object", "x, drop_keys"),
    (compat, "string_diff", "diff, js, ratio, kwargs"),
]

DEFAULTS = {
    "store_n_calls": 3,
    "method_name": "forward",
    "atol": 1e-4,
    "rtol": 0.1,
    "progress_bar": False,
    "include_io": True,
    "limit": 20,
    "level": 0,
    "end": -1,
    "verbose": 0,
    "flat": False,
    "as_args_kwargs": False,
    "drop_keys": False,
    "js": False,
    "ratio": False,
    "use_dict": False,
    "patch_diffusers": False,
}


@pytest.mark.parametrize(
    ("where", "name", "parameters"), SIGNATURES, ids=[f"{row[0].__name__}.{row[1]}" for row in SIGNATURES]
)
def test_a_name_has_the_parameters_that_its_users_know(where: Any, name: str, parameters: str) -> None:
    found = inspect.signature(getattr(where, name)).parameters
    assert ", ".join(found) == parameters
    told = {p.name: p.default for p in found.values() if p.name in DEFAULTS and p.default is not p.empty}
    assert told == {key: DEFAULTS[key] for key in told}


def test_all_is_what_is_public() -> None:
    assert dir(compat) == dir(onlooker_compat) == sorted(set(compat.__all__))
    assert len(compat.__all__) == len(set(compat.__all__)) > 50
    assert all(getattr(compat, name) is getattr(onlooker_compat, name) for name in compat.__all__)


def test_a_name_that_there_is_not_is_an_error_of_python() -> None:
    with pytest.raises(ImportError, match="no_such_name"):
        from onlooker.compat import no_such_name  # noqa: F401


def test_nothing_is_imported_before_a_name_is_used() -> None:
    script = "import sys, onlooker.compat; print('onlooker_compat.names' in sys.modules, 'torch' in sys.modules)"
    script += "; from onlooker.compat import *; print(string_type(5), len(dir(onlooker.compat)) > 50)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "False False\nint True\n", done.stderr


def test_what_is_public_at_the_top_is_the_same_here() -> None:
    for name in set(compat.__all__) & set(onlooker._HOMES):
        here, there = getattr(compat, name), getattr(onlooker, name)
        assert here is there or "verbose" in inspect.signature(here).parameters, name


def test_a_candidate_is_made_of_what_its_users_give() -> None:
    assert list(inspect.signature(compat.InputCandidate).parameters)[:4] == ["args", "kwargs", "clone", "cst_kwargs"]
    assert {field.name for field in dataclasses.fields(compat.InputCandidate)} >= {"aligned_flat_list", "latency"}


@pytest.mark.parametrize("name", ["make_sliding_window_cache", "make_hybrid_cache", "get_make_hybrid_cache"])
def test_a_cache_that_transformers_gave_up_is_none(name: str) -> None:
    assert getattr(compat, name) is None


# verbose is accepted and ignored


class Pair:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def test_verbose_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([1.0, 2.0])
    assert compat.string_type([x], with_shape=True, verbose=10) == onlooker.string_type([x], with_shape=True)
    assert compat.max_diff([x], [x + 1], verbose=10) == onlooker.max_diff([x], [x + 1])
    keys = [torch_pytree.GetAttrKey(name) for name in "ab"]
    functions = (
        lambda pair: ([pair.a, pair.b], None),
        lambda children, _: Pair(*children),
        lambda pair: (list(zip(keys, [pair.a, pair.b], strict=True)), None),
    )
    assert compat.register_class_flattening(Pair, *functions, verbose=1)
    try:
        assert not compat.register_class_flattening(Pair, *functions, lambda: Pair(x, x), 1)
        assert len(torch_pytree.tree_leaves(Pair(x, [x]))) == 2
    finally:
        compat.unregister_class_flattening(Pair, verbose=1)
    assert Pair not in torch_pytree.SUPPORTED_NODES
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "register", [compat.register_flattening_functions, compat.register_additional_serialization_functions]
)
def test_caches_are_registered_for_a_block_when_asked(register: Any) -> None:
    cache = cache_of(1)
    with register(patch_transformers=True, verbose=1) as unchanged:
        assert unchanged(cache) is cache
        assert len(torch_pytree.tree_leaves(cache)) == 2
    assert len(torch_pytree.tree_leaves(cache)) == 1
    with register():
        assert len(torch_pytree.tree_leaves(cache)) == 1


def test_inputs_are_not_replaced_before_an_export() -> None:
    inputs = {"cache": cache_of(1)}
    assert compat.replacement_before_exporting(inputs) is inputs


# flattening by hand


def cache_of(layers: int) -> Any:
    return compat.make_dynamic_cache([(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)) for _ in range(layers)])


CASES: dict[str, tuple[Any, type, list[str]]] = {
    "dynamic_cache": (cache_of(2), DynamicCache, ["key_0", "value_0", "key_1", "value_1"]),
    "static_cache": (
        compat.make_static_cache([(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))], max_cache_len=8),
        StaticCache,
        ["key_0", "value_0"],
    ),
    "encoder_decoder_cache": (
        compat.make_encoder_decoder_cache(cache_of(1), cache_of(1)),
        EncoderDecoderCache,
        ["self_attention_cache", "cross_attention_cache"],
    ),
    "base_model_output": (
        BaseModelOutput(last_hidden_state=torch.randn(4, 4, 4)),
        BaseModelOutput,
        ["last_hidden_state"],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_class_is_taken_apart_and_built_again(kind: str) -> None:
    value, cls, names = CASES[kind]
    values, context = getattr(compat, f"flatten_{kind}")(value)
    pairs, same = getattr(compat, f"flatten_with_keys_{kind}")(value)
    assert same == context
    assert [str(key) for key, _ in pairs][: len(names)] == [f"['{name}']" for name in names]
    assert all(left is right for left, (_, right) in zip(values, pairs, strict=True))
    for options in ({}, {"output_type": cls}):
        again = getattr(compat, f"unflatten_{kind}")(values, context, **options)
        assert type(again) is cls
        assert onlooker.max_diff(value, again)["abs"] == 0


# shapes, copies


def test_the_shapes_of_a_cache_are_one_dict_per_tensor() -> None:
    one = {0: "batch", 2: "past"}
    shapes = compat.make_dynamic_shapes_kv_cache(cache_of(2), one)
    assert shapes == [one] * 4
    assert len({id(shape) for shape in shapes}) == 4


def test_tensors_are_converted_wherever_they_stand() -> None:
    value = {"cache": cache_of(1), "ids": torch.zeros(2, dtype=torch.int64), "flag": True, "list": [torch.zeros(2)]}
    half = compat.to_any(value, torch.float16)
    assert half["cache"].layers[0].keys.dtype == half["list"][0].dtype == torch.float16
    assert (half["ids"].dtype, half["flag"]) == (torch.int64, True)
    assert value["list"][0].dtype == torch.float32
    assert compat.to_any(value, "cpu")["ids"].device.type == "cpu"
    assert compat.to_any(torch.zeros(1), torch.device("meta")).device.type == "meta"
    assert compat.to_any(torch.nn.Linear(2, 2), torch.float64).weight.dtype == torch.float64


# a session of a user of the others, the import changed


def test_a_script_of_another_package_runs() -> None:
    from onlooker.compat import InputObserver, make_dynamic_cache, register_flattening_functions, string_type

    class Model(torch.nn.Module):
        def forward(self, input_ids: Any, past_key_values: Any = None) -> Any:
            return input_ids * 2

    model, observer = Model(), InputObserver()
    with register_flattening_functions(patch_transformers=True), observer(model, store_n_calls=2):
        for past in (5, 6):
            model(torch.ones(2, 3), make_dynamic_cache([(torch.zeros(2, 1, past, 4), torch.zeros(2, 1, past, 4))]))
    with register_flattening_functions(patch_transformers=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        arguments, shapes = observer.infer_arguments(), observer.infer_dynamic_shapes()
        program = torch.export.export(model, arguments, dynamic_shapes=shapes)
    assert string_type(arguments, with_shape=True) == (
        "(T1s2x3,DynamicCache(key_cache=#1[T1s2x1x5x4], value_cache=#1[T1s2x1x5x4]))"
    )
    assert [row["SUCCESS"] for row in observer.check_discrepancies(program)] == [True, True]


PATCHES = (
    "patch_sympy, patch_torch, patch_transformers, patch_diffusers, catch_constraints, stop_if_static, verbose, patch, "
    "custom_patches, rewrite, dump_rewriting, patch_details, profile"
)
UNTRAINED = (
    "model_id, config, task, inputs_kwargs, model_kwargs, verbose, dynamic_rope, use_pretrained, same_as_pretrained, "
    "use_preinstalled, add_second_input, subfolder, use_only_preinstalled, config_reduction, submodule, skip_inputs"
)
VALIDATE = "ep, mod, args, kwargs, copy, dynamic_shapes, values_to_try, exc, verbose, atol, rtol"

#: shapes from inputs, patches and untrained models
MORE_SIGNATURES: list[tuple[Any, str, str]] = [
    (compat, "all_dynamic_shapes_from_inputs", "inputs, dim_prefix"),
    (compat, "all_dynamic_shape_from_inputs", "inputs, dim_prefix"),
    (compat, "guess_dynamic_shapes_from_inputs", "inputs, auto"),
    (compat, "ModelInputs", "model, inputs, level, method_name, name"),
    (compat.ModelInputs, "guess_dynamic_shapes", "self, auto"),
    (compat.ModelInputs, "move_to_kwargs", "self, args, kwargs, dynamic_shapes"),
    (compat, "CoupleInputsDynamicShapes", "args, kwargs, dynamic_shapes, args_names"),
    (compat.CoupleInputsDynamicShapes, "invalid_dimensions_for_export", "self"),
    (compat.CoupleInputsDynamicShapes, "replace_string_by", "self, value"),
    (compat.CoupleInputsDynamicShapes, "replace_by_string", "self"),
    (compat.CoupleInputsDynamicShapes, "change_dynamic_dimensions", "self, desired_values, args_kwargs, only_desired"),
    (compat, "validate_ep", VALIDATE),
    (compat, "use_dyn_not_str", "dynamic_shapes, default_value"),
    (
        compat,
        "convert_dynamic_axes_into_dynamic_shapes",
        "model, args, kwargs, dynamic_axes, prefix_mapping, verbose",
    ),
    (compat, "make_fake", "x, context"),
    (compat, "make_fake_with_dynamic_dimensions", "x, dynamic_shapes, context"),
    (compat, "apply_patches_for_model", "patch_torch, patch_transformers, verbose, model, extra_patches"),
    (compat, "torch_export_patches", PATCHES),
    (compat, "bypass_export_some_errors", PATCHES),
    (compat, "get_untrained_model_with_inputs", UNTRAINED),
    (compat, "get_tiny_model", "model_id, config_updates, dtype"),
    (compat, "get_cached_configuration", "name, exc, kwargs"),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), MORE_SIGNATURES, ids=[name for _, name, _ in MORE_SIGNATURES])
def test_the_names_beyond_the_observer_take_the_same_arguments(owner: Any, name: str, parameters: str) -> None:
    assert ", ".join(inspect.signature(getattr(owner, name)).parameters) == parameters


@pytest.mark.parametrize(
    "name",
    [
        "all_dynamic_shapes_from_inputs",
        "all_dynamic_shape_from_inputs",
        "get_untrained_model_with_inputs",
        "torch_export_patches",
    ],
)
def test_the_core_names_stand_at_the_top_too(name: str) -> None:
    assert name in onlooker._HOMES
    assert callable(getattr(onlooker, name))
