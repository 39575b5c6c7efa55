"""An export to one file of ONNX with the arguments of ``torch.onnx.export``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import OnlookerWarning, UsageError, warn
from ..core.messages import nearest
from ..hypotheses.overrides import RangesOption
from ..program import Program
from ..targets.targets import keywords_of
from .one_file import FileRequest, evaluated, export_file

__all__ = ["onnx_export"]


# The other arguments of ``torch.onnx.export``: each changes nothing, is obeyed, or is refused by
# name.
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
                known = sorted((*_ACCEPTED, *_REFUSED))
                meant = nearest(name, [*keywords_of(onnx_export), *known])
                guess = f"Did you mean {meant}? " if meant else ""
                raise UsageError(
                    f"There is no option {name!r}.",
                    slug="unknown-option",
                    hint=(
                        f"{guess}Beside its own, the function takes those of torch.onnx.export:"
                        f" {', '.join(known)}."
                    ),
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


def onnx_export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Any = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
    more_calls: Any = None,
    ranges: RangesOption | None = None,
    atol: float | None = None,
    agreement: float | None = None,
    precision: str | None = None,
    **options: Any,
) -> Program:
    """The program of ONNX of a model, whose one file is written to ``f`` after it was verified.

    The arguments are those of ``torch.onnx.export``, and ``f`` is a path, a file that is open for
    writing bytes, or None. The axes of ``dynamic_axes`` or ``dynamic_shapes`` change, and all others
    stay as in the example; without both, those that differ between the calls change. An example of
    size 1 may stand for any size. Inputs, outputs and axes are called as you say; inputs and outputs
    are in the order of ``torch.onnx.export``. ``model`` is exported in evaluation mode, and is as it
    was afterwards; ``training=TrainingMode.PRESERVE`` exports it as it is.

    ``more_calls`` are further calls, as :func:`onlooker.export` takes them, on which the program is
    tried too. ``ranges`` are the least and the greatest size by the name of an axis. ``precision`` is
    ``"fp16"``, ``"int8"`` or ``"int4"``; such a program is no exact copy, and is written where ``atol`` and
    ``agreement`` of :meth:`Program.verify` allow its differences: the error says which would.

    What changes nothing in the file is accepted (``dynamo``, ``verbose``, ``do_constant_folding``,
    ``external_data``: weights are in the file below 2 GB, else beside it). What cannot be obeyed is an
    error that names it (``export_params=False``, ``custom_opsets``).

    :raises ExportError: ``axis-not-dynamic`` for an axis that the model wants of one size, with the
        line of the model; ``not-verified``: no file is written then; and as
        :meth:`InputObserver.export` and :meth:`Program.to`
    :raises UsageError: ``call-raised``, ``bad-dynamic-axes``, ``bad-dynamic-shapes``,
        ``no-such-name``, ``no-such-dimension``, ``axis-not-named``, ``bad-names``, ``not-in-file``,
        ``unknown-option``, ``bad-opset``, ``not-a-file``
    :raises ArgumentKindError: ``wrong-kind``
    :raises SavedFileError: ``not-written``
    :raises MissingPackageError: ``missing-package``

    >>> import io, torch, onlooker
    >>> file = io.BytesIO()
    >>> program = onlooker.onnx_export(
    ...     torch.nn.Linear(4, 2),
    ...     (torch.ones(1, 4),),
    ...     file,
    ...     input_names=["x"],
    ...     output_names=["scores"],
    ...     dynamic_axes={"x": {0: "rows"}},
    ... )
    >>> program.report.verified, program(torch.ones(7, 4)).shape
    (True, torch.Size([7, 2]))
    """
    as_it_is = TorchOptions(options).check()
    request = FileRequest(
        args,
        kwargs,
        more_calls,
        input_names,
        output_names,
        dynamic_axes,
        dynamic_shapes,
        ranges,
        atol,
        agreement,
    )
    asked = {"opset": checked_opset(opset_version), "precision": precision}
    given = {name: value for name, value in asked.items() if value is not None}
    with evaluated(model, as_it_is=as_it_is):
        return export_file(model, request, f, "onnx", given)
