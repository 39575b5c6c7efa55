"""Models of OpenVINO: an ``.xml`` with the ``.bin`` beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..targets.openvino.run import openvino_runner
from ..targets.openvino.settings import Settings
from ..targets.packages import require_packages
from .exported import Declared, Exported, Port, dtype_named, tensor_for
from .openvino_contents import contents_of_openvino

__all__ = ["is_openvino", "open_openvino"]

#: OpenVINO says so where a size has no upper bound
_UNBOUNDED = 2**31 - 1


def is_openvino(model: Any) -> bool:
    """True for an ``openvino.Model``."""
    return type(model).__module__.partition(".")[0] == "openvino" and hasattr(model, "get_ops")


def open_openvino(model: Any) -> Exported:
    """The path of an ``.xml``, or an ``openvino.Model``; it runs in float32 on the CPU.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    require_packages("openvino", target="openvino", extra="openvino")
    import openvino

    try:
        read = openvino.Core().read_model(model) if isinstance(model, Path) else model
        compiled = openvino.Core().compile_model(read, "CPU", Settings().properties)
    except RuntimeError as error:
        said = " ".join(str(error).split())[-300:]
        raise UsageError(
            f"{model if isinstance(model, Path) else 'The model'} cannot be loaded by OpenVINO:"
            f" {said}",
            slug="model-not-loaded",
            hint="Give the path of an .xml that has its .bin beside it.",
        ) from error
    inputs = tuple(_port(port, number) for number, port in enumerate(read.inputs))
    outputs = tuple(_port(port, number) for number, port in enumerate(read.outputs))
    places = list(range(len(inputs)))
    runner = openvino_runner(_Numbered(compiled), [str(place) for place in places], len(outputs))

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        return runner([tensor_for(given[port.name], port) for port in inputs])

    contents = contents_of_openvino(read, [port.name for port in inputs])
    return Exported("openvino", inputs, outputs, run, contents=contents)


class _Numbered:
    """A compiled model whose inputs are called by their numbers: some have no name."""

    def __init__(self, compiled: Any) -> None:
        self.inputs = [_Named(str(number)) for number in range(len(compiled.inputs))]
        self.outputs = compiled.outputs
        self.create_infer_request = compiled.create_infer_request


class _Named:
    """A port with one name."""

    def __init__(self, name: str) -> None:
        self.names = (name,)


def _port(port: Any, number: int) -> Port:
    name = min(port.get_names(), default=str(number))
    shape = port.get_partial_shape()
    sizes = tuple(map(_declared, shape)) if shape.rank.is_static else None
    return Port(name, dtype_named(port.get_element_type().to_string()), sizes)


def _declared(dimension: Any) -> Declared:
    high = dimension.get_max_length()
    is_open = high < 0 or high >= _UNBOUNDED
    return Declared("", dimension.get_min_length(), None if is_open else high)
