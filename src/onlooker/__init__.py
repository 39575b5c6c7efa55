"""onlooker watches a PyTorch model while it is used, and exports it with the right dynamic shapes."""

from __future__ import annotations

from ._api import InputObserver as InputObserver
from .core.errors import ArgumentKindError as ArgumentKindError
from .core.errors import ExportError as ExportError
from .core.errors import MissingPackageError as MissingPackageError
from .core.errors import ObservationError as ObservationError
from .core.errors import OnlookerError as OnlookerError
from .core.errors import OnlookerWarning as OnlookerWarning
from .core.errors import RejectedCallError as RejectedCallError
from .core.errors import UnsupportedError as UnsupportedError
from .core.errors import UsageError as UsageError
from .core.plan import Plan as Plan
from .core.recording import Recording as Recording
from .core.verdict import Tally as Tally
from .export.patched import torch_export_patches as torch_export_patches
from .materialise.from_inputs import all_dynamic_shape_from_inputs as all_dynamic_shape_from_inputs
from .materialise.from_inputs import all_dynamic_shapes_from_inputs as all_dynamic_shapes_from_inputs
from .materialise.info import InputCandidate as InputCandidate
from .materialise.info import InputObserverInfo as InputObserverInfo
from .program import Program as Program
from .pytrees.compare import max_diff as max_diff
from .pytrees.describe import string_type as string_type
from .pytrees.make import CacheKeyValue as CacheKeyValue
from .pytrees.make import make_dynamic_cache as make_dynamic_cache
from .pytrees.make import make_encoder_decoder_cache as make_encoder_decoder_cache
from .pytrees.make import make_static_cache as make_static_cache
from .pytrees.registry import register_class_flattening as register_class_flattening
from .pytrees.registry import register_flattening_functions as register_flattening_functions
from .pytrees.registry import unregister_class_flattening as unregister_class_flattening
from .zoo.untrained.build import get_untrained_model_with_inputs as get_untrained_model_with_inputs

__all__ = [
    "ArgumentKindError",
    "CacheKeyValue",
    "ExportError",
    "InputCandidate",
    "InputObserver",
    "InputObserverInfo",
    "MissingPackageError",
    "ObservationError",
    "OnlookerError",
    "OnlookerWarning",
    "Plan",
    "Program",
    "Recording",
    "RejectedCallError",
    "Tally",
    "UnsupportedError",
    "UsageError",
    "all_dynamic_shape_from_inputs",
    "all_dynamic_shapes_from_inputs",
    "get_untrained_model_with_inputs",
    "make_dynamic_cache",
    "make_encoder_decoder_cache",
    "make_static_cache",
    "max_diff",
    "register_class_flattening",
    "register_flattening_functions",
    "string_type",
    "torch_export_patches",
    "unregister_class_flattening",
]
