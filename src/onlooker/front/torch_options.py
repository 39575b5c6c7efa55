"""The other arguments of ``torch.onnx.export``: each changes nothing, is obeyed, or is refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import OnlookerWarning, UsageError, warn

__all__ = ["TorchOptions", "checked_opset"]

#: the oldest opset that torch's converter writes
_LOWEST = 18


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """The arguments beside model, inputs and axes, with the defaults of ``torch.onnx.export``."""

    given: Mapping[str, Any]

    def check(self) -> bool:
        """Passes where all of them can be obeyed; True where the model is exported as it is, also in
        training mode.

        :raises UsageError: ``unknown-option``, ``not-in-file``
        """
        for name, value in self.given.items():
            if name in _ACCEPTED:
                continue
            if name not in _REFUSED:
                known = ", ".join(sorted((*_ACCEPTED, *_REFUSED)))
                raise UsageError(
                    f"There is no option {name!r}.",
                    slug="unknown-option",
                    hint=f"Beside its own, the function takes those of torch.onnx.export: {known}.",
                )
            allowed, hint = _REFUSED[name]
            if value not in allowed:
                raise UsageError(
                    f"{name}={value!r} cannot be obeyed.", slug="not-in-file", hint=hint
                )
        mode = getattr(self.given.get("training"), "name", "EVAL")
        if mode == "TRAINING":
            raise UsageError(
                "training=TrainingMode.TRAINING cannot be obeyed: a program gives the same result for"
                " the same call.",
                slug="not-in-file",
                hint="Leave it out; TrainingMode.PRESERVE exports the model in the mode in which it is.",
            )
        kind = getattr(self.given.get("operator_export_type"), "name", "ONNX")
        if kind != "ONNX":
            raise UsageError(
                f"operator_export_type={kind} cannot be obeyed: the file has operators of ONNX alone.",
                slug="not-in-file",
                hint="Leave it out.",
            )
        return mode == "PRESERVE"


#: what changes nothing in the file: how torch goes about it, and what it prints
_ACCEPTED = (
    "artifacts_dir",
    "autograd_inlining",
    "do_constant_folding",
    "dynamo",
    "external_data",
    "fallback",
    "operator_export_type",
    "training",
    "verbose",
    "verify",
)
#: by name the values that ask for nothing, and what to do about others
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "custom_opsets": ((None, {}), "Leave it out: operators of other domains are not written."),
    "custom_translation_table": (
        (None, {}),
        "Use torch.onnx.export for operators of your own, and onlooker.verify_export for its file.",
    ),
    "dump_exported_program": (
        (None, False),
        "onlooker.export(model, calls) gives the program of torch, which program.save writes.",
    ),
    "export_modules_as_functions": ((None, False), "Leave it out: the file is one graph."),
    "export_params": (
        (None, True),
        "The file has its weights: from 2 GB on they stand beside it.",
    ),
    "keep_initializers_as_inputs": (
        (None, False),
        "Weights are no inputs: pass the tensor as an argument of the model instead.",
    ),
    "optimize": ((None, True), "The file is always optimised; its results are those of the model."),
    "profile": (
        (None, False),
        "print(program.report.text(full=True)) has the seconds of each stage.",
    ),
    "report": ((None, False), "print(program.report), or program.report.to_dict()."),
}


def checked_opset(opset: Any) -> Any:
    """The opset of the file: an older one than torch's converter writes is raised, with a warning,
    as ``torch.onnx.export`` does.
    """
    if type(opset) is not int or opset >= _LOWEST:
        return opset
    warn(
        OnlookerWarning(
            f"opset_version={opset} was asked for, and torch converts to {_LOWEST} and newer: the file"
            f" has opset {_LOWEST}.",
            slug="opset-raised",
            hint=f"Ask for {_LOWEST}, or convert the file with onnx.version_converter.",
        )
    )
    return _LOWEST
