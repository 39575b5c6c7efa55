"""The targets that a program can be exported to, in the order in which they are shown."""

from __future__ import annotations

from ..core.errors import UsageError
from .aoti.target import Aoti
from .executorch.target import Executorch
from .onnx.target import Onnx
from .openvino.target import OpenVino
from .target import Target
from .torch.target import TorchFiles

__all__ = ["TARGETS", "target_of"]

TARGETS: tuple[Target, ...] = (TorchFiles(), Onnx(), Aoti(), OpenVino(), Executorch())


def target_of(name: str) -> Target:
    """The target called ``name``.

    >>> target_of("onnx").suffix
    '.onnx'

    :raises UsageError: ``unknown-target``
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise UsageError(
        f"There is no target {name!r}.",
        slug="unknown-target",
        hint=f"The targets are {', '.join(target.name for target in TARGETS)}.",
    )
