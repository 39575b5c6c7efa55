"""An export to one file of ONNX with the arguments of ``torch.onnx.export``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..hypotheses.overrides import RangesOption
from ..program import Program
from .one_file import FileRequest, evaluated, export_file
from .torch_options import TorchOptions, checked_opset

__all__ = ["onnx_export"]


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
    atol: float = 1e-5,
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
    tried too. ``ranges`` are the least and the greatest size by the name of an axis, ``atol`` is the
    difference that is allowed, ``precision`` is ``"fp16"``, ``"int8"`` or ``"int4"``.

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
    )
    asked = {"opset": checked_opset(opset_version), "precision": precision}
    given = {name: value for name, value in asked.items() if value is not None}
    with evaluated(model, as_it_is=as_it_is):
        return export_file(model, request, f, "onnx", given)
