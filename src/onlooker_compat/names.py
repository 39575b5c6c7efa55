"""The names of onlooker under which users of other packages know them: change the import, and
nothing else.

::

    from onlooker.compat import InputObserver, make_dynamic_cache, string_type, torch_deepcopy

This module has no logic. Where the other packages have an argument ``verbose``, it is accepted here
and ignored: onlooker logs through :mod:`logging`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

# isort: split
# --- the observer ---
from onlooker.by_hand.info import InputCandidate as InputCandidate
from onlooker.by_hand.info import InputObserverInfo as InputObserverInfo
from onlooker.input_observer import InputObserver as InputObserver

# isort: split
# --- flattening ---
from onlooker.pytrees.caches import flatten_cache as flatten_dynamic_cache
from onlooker.pytrees.caches import flatten_cache as flatten_encoder_decoder_cache
from onlooker.pytrees.caches import flatten_cache as flatten_static_cache
from onlooker.pytrees.caches import flatten_cache_with_keys as flatten_with_keys_dynamic_cache
from onlooker.pytrees.caches import (
    flatten_cache_with_keys as flatten_with_keys_encoder_decoder_cache,
)
from onlooker.pytrees.caches import flatten_cache_with_keys as flatten_with_keys_static_cache
from onlooker.pytrees.caches import unflatten_cache as unflatten_dynamic_cache
from onlooker.pytrees.registry import register_class_flattening as _register_class_flattening
from onlooker.pytrees.registry import (
    register_flattening_functions as _register_flattening_functions,
)
from onlooker.pytrees.registry import unregister_class_flattening as _unregister_class_flattening

from .trees.aliases import flatten_output as flatten_base_model_output
from .trees.aliases import flatten_output_with_keys as flatten_with_keys_base_model_output
from .trees.aliases import (
    unflatten_encoder_decoder_cache as unflatten_encoder_decoder_cache,
)
from .trees.aliases import unflatten_output as unflatten_base_model_output
from .trees.aliases import unflatten_static_cache as unflatten_static_cache

# isort: split
# --- caches ---
from onlooker.pytrees.deepcopy import torch_deepcopy as torch_deepcopy

from .shapes.from_inputs import (
    flatten_unflatten_for_dynamic_shapes as flatten_unflatten_for_dynamic_shapes,
)
from .shapes.from_inputs import make_dynamic_shapes_kv_cache as make_dynamic_shapes_kv_cache
from .trees.convert import to_any as to_any
from .trees.make import CacheKeyValue as CacheKeyValue
from .trees.make import make_dynamic_cache as make_dynamic_cache
from .trees.make import make_encoder_decoder_cache as make_encoder_decoder_cache
from .trees.make import make_static_cache as make_static_cache

# isort: split
# --- describing and comparing ---
from onlooker.pytrees.descriptions.describe import string_type as _string_type

from .trees.compare import flatten_object as flatten_object
from .trees.compare import max_diff as _max_diff
from .trees.compare import string_diff as string_diff

# isort: split
# --- shapes from inputs ---
from .shapes.axes import convert_dynamic_axes_into_dynamic_shapes as _convert_dynamic_axes
from .shapes.couple import CoupleInputsDynamicShapes as CoupleInputsDynamicShapes
from .shapes.dims import use_dyn_not_str as use_dyn_not_str
from .shapes.fake import FakeTensorContext as FakeTensorContext
from .shapes.fake import make_fake as make_fake
from .shapes.fake import (
    make_fake_with_dynamic_dimensions as make_fake_with_dynamic_dimensions,
)
from .shapes.from_inputs import (
    all_dynamic_shape_from_inputs as all_dynamic_shape_from_inputs,
)
from .shapes.from_inputs import (
    all_dynamic_shapes_from_inputs as all_dynamic_shapes_from_inputs,
)
from .shapes.model_inputs import ModelInputs as ModelInputs
from .shapes.model_inputs import (
    guess_dynamic_shapes_from_inputs as guess_dynamic_shapes_from_inputs,
)
from .validate import validate_ep as _validate_ep

# isort: split
# --- untrained models ---
from .untrained.build import get_untrained_model_with_inputs as _get_untrained_model_with_inputs
from .untrained.tiny import get_cached_configuration as get_cached_configuration
from .untrained.tiny import get_phi2 as get_phi2
from .untrained.tiny import get_tiny_llm as get_tiny_llm
from .untrained.tiny import get_tiny_model as get_tiny_model

# isort: split
# --- patches ---
from .patches.from_transformers import TransformersPatchEnum as TransformersPatchEnum
from .patches.from_transformers import (
    enable_transformers_onnx_export_flags as _enable_transformers_onnx_export_flags,
)
from .patches.patch import PatchDetails as PatchDetails
from .patches.patch import PatchInfo as PatchInfo
from .patches.patched import apply_patches_for_model as _apply_patches_for_model
from .patches.patched import torch_export_patches as _torch_export_patches

__all__ = [
    "CacheKeyValue",
    "CoupleInputsDynamicShapes",
    "FakeTensorContext",
    "InputCandidate",
    "InputObserver",
    "InputObserverInfo",
    "ModelInputs",
    "PatchDetails",
    "PatchInfo",
    "TransformersPatchEnum",
    "all_dynamic_shape_from_inputs",
    "all_dynamic_shapes_from_inputs",
    "apply_patches_for_model",
    "bypass_export_some_errors",
    "convert_dynamic_axes_into_dynamic_shapes",
    "enable_transformers_onnx_export_flags",
    "flatten_base_model_output",
    "flatten_dynamic_cache",
    "flatten_encoder_decoder_cache",
    "flatten_object",
    "flatten_static_cache",
    "flatten_unflatten_for_dynamic_shapes",
    "flatten_with_keys_base_model_output",
    "flatten_with_keys_dynamic_cache",
    "flatten_with_keys_encoder_decoder_cache",
    "flatten_with_keys_static_cache",
    "get_cached_configuration",
    "get_make_hybrid_cache",
    "get_phi2",
    "get_tiny_llm",
    "get_tiny_model",
    "get_untrained_model_with_inputs",
    "guess_dynamic_shapes_from_inputs",
    "make_dynamic_cache",
    "make_dynamic_shapes_kv_cache",
    "make_encoder_decoder_cache",
    "make_fake",
    "make_fake_with_dynamic_dimensions",
    "make_hybrid_cache",
    "make_sliding_window_cache",
    "make_static_cache",
    "max_diff",
    "register_additional_serialization_functions",
    "register_class_flattening",
    "register_flattening_functions",
    "replacement_before_exporting",
    "string_diff",
    "string_type",
    "to_any",
    "torch_deepcopy",
    "torch_export_patches",
    "unflatten_base_model_output",
    "unflatten_dynamic_cache",
    "unflatten_encoder_decoder_cache",
    "unflatten_static_cache",
    "unregister_class_flattening",
    "use_dyn_not_str",
    "validate_ep",
]

#: these caches are gone from transformers 5: see the argument ``cls_layers`` of
#: :func:`make_dynamic_cache`
make_sliding_window_cache = None
make_hybrid_cache = None
get_make_hybrid_cache = None


def register_flattening_functions(
    patch_transformers: Any = False, verbose: int = 0
) -> AbstractContextManager[Callable[[Any], Any]]:
    """As :func:`onlooker.register_flattening_functions`, which by default registers the caches
    of transformers.
    """
    return _register_flattening_functions(patch_transformers)


def register_additional_serialization_functions(
    patch_transformers: bool = False, patch_diffusers: bool = False, verbose: int = 0
) -> AbstractContextManager[Callable[[Any], Any]]:
    """As :func:`onlooker.register_flattening_functions`; the registrations are taken back on exit.

    ``patch_diffusers`` changes nothing: diffusers passes tensors and dicts, which torch knows.
    """
    return _register_flattening_functions(patch_transformers)


def register_class_flattening(
    cls: type,
    f_flatten: Callable[[Any], Any],
    f_unflatten: Callable[[Any, Any], Any],
    f_flatten_with_keys: Callable[[Any], Any],
    f_check: Callable[[], Any] | None = None,
    verbose: int = 0,
) -> bool:
    """As :func:`onlooker.register_class_flattening`."""
    return _register_class_flattening(cls, f_flatten, f_unflatten, f_flatten_with_keys, f_check)


def unregister_class_flattening(cls: type, verbose: int = 0) -> None:
    """As :func:`onlooker.unregister_class_flattening`."""
    _unregister_class_flattening(cls)


def replacement_before_exporting(args: Any) -> Any:
    """Returns the inputs: onlooker replaces no class before an export."""
    return args


def string_type(
    obj: Any,
    with_shape: bool = False,
    with_min_max: bool = False,
    with_device: bool = False,
    ignore: bool = False,
    limit: int = 20,
    verbose: int = 0,
) -> str:
    """As :func:`onlooker.string_type`."""
    return _string_type(obj, with_shape, with_min_max, with_device, ignore, limit)


def max_diff(
    expected: Any,
    got: Any,
    level: int = 0,
    flatten: bool = False,
    debug_info: list[str] | None = None,
    begin: int = 0,
    end: int = -1,
    _index: int = 0,
    allow_unique_tensor_with_list_of_one_element: bool = True,
    hist: bool | Sequence[float] | None = None,
    skip_none: bool = False,
    verbose: int = 0,
) -> dict[str, Any]:
    """As :func:`onlooker.max_diff`."""
    return _max_diff(
        expected,
        got,
        level,
        flatten,
        debug_info,
        begin,
        end,
        _index,
        allow_unique_tensor_with_list_of_one_element,
        hist,
        skip_none,
    )


def convert_dynamic_axes_into_dynamic_shapes(
    model: Any,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    dynamic_axes: dict[str, Any] | None = None,
    prefix_mapping: dict[str, str] | None = None,
    verbose: int = 0,
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The inputs by name and their ``dynamic_shapes``, from the arguments of the older exporter
    of torch.
    """
    return _convert_dynamic_axes(model, args, kwargs, dynamic_axes, prefix_mapping)


def validate_ep(
    ep: Any,
    mod: Any = None,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    copy: bool = False,
    dynamic_shapes: Any = None,
    values_to_try: dict[str, list[int]] | None = None,
    exc: bool = True,
    verbose: int = 0,
    atol: float = 1e-2,
    rtol: float = 1e-1,
) -> list[dict[str, Any]]:
    """An exported program against its model, on its inputs and on others grown from them."""
    return _validate_ep(ep, mod, args, kwargs, copy, dynamic_shapes, values_to_try, exc, atol, rtol)


def torch_export_patches(
    patch_sympy: bool = True,
    patch_torch: bool | int = True,
    patch_transformers: bool = False,
    patch_diffusers: bool = False,
    catch_constraints: bool = True,
    stop_if_static: int = 0,
    verbose: int = 0,
    patch: bool = True,
    custom_patches: list[Any] | None = None,
    rewrite: Any = None,
    dump_rewriting: str | None = None,
    patch_details: PatchDetails | None = None,
    profile: str | None = None,
) -> AbstractContextManager[Callable[[Any], Any]]:
    """As :func:`onlooker.torch_export_patches`."""
    return _torch_export_patches(
        patch_sympy,
        patch_torch,
        patch_transformers,
        patch_diffusers,
        catch_constraints,
        stop_if_static,
        patch,
        custom_patches,
        rewrite,
        dump_rewriting,
        patch_details,
        profile,
    )


#: the older name
bypass_export_some_errors = torch_export_patches


def apply_patches_for_model(
    patch_torch: bool = False,
    patch_transformers: bool | TransformersPatchEnum = False,
    verbose: int = 0,
    model: Any = None,
    extra_patches: Iterable[PatchInfo] | None = None,
) -> AbstractContextManager[PatchDetails]:
    """The repairs of torch and transformers for the time of a block, which gets the list of
    them.
    """
    return _apply_patches_for_model(patch_torch, patch_transformers, model, extra_patches)


def enable_transformers_onnx_export_flags(
    model: Any = None, verbose: int = 0
) -> AbstractContextManager[dict[str, list[str]]]:
    """The switches for an export that a model has itself, turned on for the time of a block."""
    return _enable_transformers_onnx_export_flags(model)


def get_untrained_model_with_inputs(
    model_id: str,
    config: Any = None,
    task: str = "",
    inputs_kwargs: dict[str, Any] | None = None,
    model_kwargs: dict[str, Any] | None = None,
    verbose: int = 0,
    dynamic_rope: bool | None = None,
    use_pretrained: bool = False,
    same_as_pretrained: bool = False,
    use_preinstalled: bool = True,
    add_second_input: int = 1,
    subfolder: str | None = None,
    use_only_preinstalled: bool = False,
    config_reduction: Callable[[Any, str], dict[str, Any]] | None = None,
    submodule: str | None = None,
    skip_inputs: bool = False,
) -> dict[str, Any]:
    """As :func:`onlooker.get_untrained_model_with_inputs`."""
    return _get_untrained_model_with_inputs(
        model_id,
        config,
        task,
        inputs_kwargs,
        model_kwargs,
        dynamic_rope,
        use_pretrained,
        same_as_pretrained,
        use_preinstalled,
        add_second_input,
        subfolder,
        use_only_preinstalled,
        config_reduction,
        submodule,
        skip_inputs,
    )
