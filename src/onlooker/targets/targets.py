"""The targets that a program can be exported to, in the order in which they are shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..core.errors import UsageError
from ..core.messages import nearest
from .aoti.target import Aoti
from .executorch.target import Executorch
from .onnx.target import Onnx
from .openvino.target import OpenVino
from .target import Target
from .torch.target import TorchFiles

__all__ = ["TARGETS", "check_options", "keywords_of", "target_of"]

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
    names = [target.name for target in TARGETS]
    raise UsageError(
        f"There is no target {name!r}.",
        slug="unknown-target",
        hint=f"{_did_you_mean(str(name), names)}The targets are {', '.join(names)}.",
    )


def check_options(
    target: Target,
    given: Iterable[str],
    known: Sequence[str],
    function: Callable[..., Any] | None = None,
) -> None:
    """Passes when all options are known: those of :attr:`Target.options`, or of
    :attr:`Target.reading`. One of the other keywords of ``function``, which was called, may have been
    meant.

    :raises UsageError: ``unknown-option``
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    owners = [repr(other.name) for other in TARGETS if unknown[0] in other.options]
    guess = "" if owners else _did_you_mean(unknown[0], [*known, *keywords_of(function)])
    takes = f"It takes {', '.join(known)}." if known else "It takes none."
    owned = f" {unknown[0]} is an option of {' and '.join(owners)}." if owners else ""
    raise UsageError(
        f"The target {target.name!r} has no option {', '.join(unknown)}.",
        slug="unknown-option",
        hint=f"{guess}{takes}{owned}",
    )


def keywords_of(function: Callable[..., Any] | None) -> list[str]:
    """The names of the parameters of a function that have to be given by name; none for None.

    >>> keywords_of(lambda x, *, to="torch", **options: x)
    ['to']
    """
    if function is None:
        return []
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    meant = nearest(word, known)
    return f"Did you mean {meant}? " if meant else ""
