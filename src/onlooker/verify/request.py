"""What a caller may ask of a verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import UsageError
from ..core.kinds import check_kind
from ..core.plan import Plan
from ..core.recording import Recording
from ..observe.inner import method_signature

__all__ = ["check_model", "check_request"]


def check_request(plans: Sequence[Plan], atol: float, sizes: Sequence[Mapping[str, int]]) -> None:
    """Passes for a tolerance that can be meant, and for sizes of symbols that some plan has.

    :raises UsageError: ``bad-tolerance``, ``no-such-symbol``
    :raises ArgumentKindError: ``wrong-kind``
    """
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or not 0 <= atol < float("inf"):
        raise UsageError(
            f"atol is {atol!r}.", slug="bad-tolerance", hint="Give a number, 0 or more: the largest difference allowed."
        )
    wanted = "a list of sizes, each a number per symbol: [{'batch': 5}]"
    check_kind(sizes, (list, tuple), "sizes", wanted)
    known = {symbol.name for plan in plans for symbol in plan.symbols}
    for choice in sizes:
        check_kind(choice, Mapping, "One of the sizes", wanted)
        for name, size in choice.items():
            if name not in known:
                raise UsageError(
                    f"sizes names {name!r}, and no graph has such a symbol.",
                    slug="no-such-symbol",
                    hint=f"There are {', '.join(sorted(known)) or 'none'}.",
                )
            check_kind(size, int, f"The size of {name}", "a number")


def check_model(model: Any, recording: Recording) -> Any:
    """The model, when it has the method that was watched, with the same parameters.

    :raises UsageError: ``another-signature``
    """
    method = recording.method
    known = callable(getattr(model, method, None)) and method_signature(model, method)[1].names
    if known != recording.signature.names:
        raise UsageError(
            f"{type(model).__name__} has no {recording.method}({', '.join(recording.signature.names)}).",
            slug="another-signature",
            hint=f"Give a model that is called as {recording.model} was.",
        )
    return model
