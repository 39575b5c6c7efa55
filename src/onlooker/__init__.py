"""onlooker watches a PyTorch model while it is used, and exports it with the right dynamic shapes.

Names are imported when they are first used: ``import onlooker`` costs little beside
``import torch``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .core.support.logs import log_as_asked as _log_as_asked
from .core.versions import __version__ as __version__

if TYPE_CHECKING:
    from onlooker_compat.patches.patched import torch_export_patches as torch_export_patches
    from onlooker_compat.shapes.from_inputs import (
        all_dynamic_shape_from_inputs as all_dynamic_shape_from_inputs,
    )
    from onlooker_compat.shapes.from_inputs import (
        all_dynamic_shapes_from_inputs as all_dynamic_shapes_from_inputs,
    )
    from onlooker_compat.trees.compare import max_diff as max_diff
    from onlooker_compat.trees.make import CacheKeyValue as CacheKeyValue
    from onlooker_compat.trees.make import make_dynamic_cache as make_dynamic_cache
    from onlooker_compat.trees.make import make_encoder_decoder_cache as make_encoder_decoder_cache
    from onlooker_compat.trees.make import make_static_cache as make_static_cache
    from onlooker_compat.untrained.build import (
        get_untrained_model_with_inputs as get_untrained_model_with_inputs,
    )

    from .by_hand.info import InputCandidate as InputCandidate
    from .by_hand.info import InputObserverInfo as InputObserverInfo
    from .capture.export import kept_calls as kept_calls
    from .compiling.marked import marked as marked
    from .core.errors import ArgumentKindError as ArgumentKindError
    from .core.errors import EntriesError as EntriesError
    from .core.errors import ExportError as ExportError
    from .core.errors import MissingPackageError as MissingPackageError
    from .core.errors import ObservationError as ObservationError
    from .core.errors import OnlookerError as OnlookerError
    from .core.errors import OnlookerWarning as OnlookerWarning
    from .core.errors import RejectedCallError as RejectedCallError
    from .core.errors import SavedFileError as SavedFileError
    from .core.errors import UnsupportedError as UnsupportedError
    from .core.errors import UsageError as UsageError
    from .core.plan import Plan as Plan
    from .core.recording import Recording as Recording
    from .core.support.progress import Step as Step
    from .core.verdict import Tallies as Tallies
    from .core.verdict import Tally as Tally
    from .fleet.sweep import sweep as sweep
    from .foreign.report import ExportReport as ExportReport
    from .foreign.verify import verify_export as verify_export
    from .front.export import export as export
    from .front.onnx import onnx_export as onnx_export
    from .front.openvino import openvino_export as openvino_export
    from .generating import generation as generation
    from .input_observer import InputObserver as InputObserver
    from .low_memory import weights_from as weights_from
    from .observers import Observers as Observers
    from .observers import observe as observe
    from .program import Program as Program
    from .programs import Programs as Programs
    from .programs import load as load
    from .pytrees.descriptions.describe import string_type as string_type
    from .pytrees.registry import register_class_flattening as register_class_flattening
    from .pytrees.registry import register_flattening_functions as register_flattening_functions
    from .pytrees.registry import unregister_class_flattening as unregister_class_flattening
    from .report.progress import progress as progress

__all__ = [
    "ExportError",
    "InputObserver",
    "OnlookerError",
    "OnlookerWarning",
    "Program",
    "Programs",
    "Recording",
    "RejectedCallError",
    "export",
    "generation",
    "kept_calls",
    "load",
    "marked",
    "observe",
    "onnx_export",
    "openvino_export",
    "progress",
    "sweep",
    "verify_export",
    "weights_from",
]

#: the module of each name that ``onlooker.NAME`` gives: the imports above, for the run time. Those
#: that ``__all__`` leaves out are reachable all the same: classes of results and rarer errors, and
#: names that users of other packages know, of which ``onlooker.compat`` has more.
_HOMES = {
    "ArgumentKindError": ".core.errors",
    "CacheKeyValue": "onlooker_compat.trees.make",
    "EntriesError": ".core.errors",
    "ExportError": ".core.errors",
    "ExportReport": ".foreign.report",
    "InputCandidate": ".by_hand.info",
    "InputObserver": ".input_observer",
    "InputObserverInfo": ".by_hand.info",
    "MissingPackageError": ".core.errors",
    "ObservationError": ".core.errors",
    "Observers": ".observers",
    "OnlookerError": ".core.errors",
    "OnlookerWarning": ".core.errors",
    "Plan": ".core.plan",
    "Program": ".program",
    "Programs": ".programs",
    "Recording": ".core.recording",
    "RejectedCallError": ".core.errors",
    "SavedFileError": ".core.errors",
    "Step": ".core.support.progress",
    "Tallies": ".core.verdict",
    "Tally": ".core.verdict",
    "UnsupportedError": ".core.errors",
    "UsageError": ".core.errors",
    "all_dynamic_shape_from_inputs": "onlooker_compat.shapes.from_inputs",
    "all_dynamic_shapes_from_inputs": "onlooker_compat.shapes.from_inputs",
    "export": ".front.export",
    "generation": ".generating",
    "kept_calls": ".capture.export",
    "get_untrained_model_with_inputs": "onlooker_compat.untrained.build",
    "load": ".programs",
    "make_dynamic_cache": "onlooker_compat.trees.make",
    "make_encoder_decoder_cache": "onlooker_compat.trees.make",
    "make_static_cache": "onlooker_compat.trees.make",
    "marked": ".compiling.marked",
    "max_diff": "onlooker_compat.trees.compare",
    "observe": ".observers",
    "onnx_export": ".front.onnx",
    "openvino_export": ".front.openvino",
    "progress": ".report.progress",
    "register_class_flattening": ".pytrees.registry",
    "register_flattening_functions": ".pytrees.registry",
    "string_type": ".pytrees.descriptions.describe",
    "sweep": ".fleet.sweep",
    "torch_export_patches": "onlooker_compat.patches.patched",
    "unregister_class_flattening": ".pytrees.registry",
    "verify_export": ".foreign.verify",
    "weights_from": ".low_memory",
}


_log_as_asked()


if not TYPE_CHECKING:  # a type checker has the imports above, and finds names that there are not

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name], __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
