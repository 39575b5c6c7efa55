"""An export to one model of OpenVINO in the spirit of :func:`onlooker.onnx_export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.support.kinds import as_path
from ..hypotheses.overrides import RangesOption
from ..program import Program
from ..targets.single_file import check_file_name
from ..targets.targets import check_options, target_of
from .one_file import FileRequest, evaluated, export_file

__all__ = ["openvino_export"]


def openvino_export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Any = None,
    dynamic_shapes: Any = None,
    more_calls: Any = None,
    ranges: RangesOption | None = None,
    atol: float | None = None,
    agreement: float | None = None,
    **options: Any,
) -> Program:
    """The program of OpenVINO of a model, whose ``.xml`` is written to ``f`` after it was verified,
    with its ``.bin`` beside it.

    The arguments are those of :func:`onlooker.onnx_export`; ``f`` is a path that ends in ``.xml``, or
    None. ``options`` are those of OpenVINO, as in :meth:`Program.to`: ``precision``, ``device``,
    ``config``, ``stateful``.

    :raises ExportError: ``axis-not-dynamic``, ``not-verified``, ``openvino-refused``, and as
        :func:`onlooker.onnx_export`
    :raises UsageError: ``wrong-suffix``, ``unknown-option``, ``bad-openvino-options``, and as
        :func:`onlooker.onnx_export`
    :raises UnsupportedError: ``several-graphs`` where one model cannot serve all sizes
    :raises SavedFileError: ``not-written``
    :raises MissingPackageError: ``missing-package``

    >>> onlooker.openvino_export(model, (x,), "m.xml", dynamic_axes={"x": [0]})  # doctest: +SKIP
    """
    target = target_of("openvino")
    check_options(target, options, target.options, openvino_export)
    if f is not None:
        check_file_name(as_path(f, "The file f"), target)
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
    with evaluated(model, as_it_is=False):
        return export_file(model, request, f, "openvino", options)
