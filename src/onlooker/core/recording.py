"""The calls of one method of one model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .call import Call, Signature
from .errors import UsageError

__all__ = ["Recording"]


@dataclass(frozen=True, slots=True)
class Recording:
    """The finished calls of one method, in their order, with their provenance.

    ``model`` is the qualified name of the model's class. ``missed`` says of each call that could not be
    recorded why not. Two recordings of the same method merge with ``|``: calls which both have count once,
    and the result does not depend on the order of the merges.
    """

    model: str = ""
    method: str = "forward"
    signature: Signature = field(default_factory=Signature)
    calls: tuple[Call, ...] = ()
    missed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.calls)

    def __or__(self, other: Recording) -> Recording:
        if (self.model, self.method, self.signature) != (other.model, other.method, other.signature):
            raise UsageError(
                f"A recording of {self.model}.{self.method} cannot be merged with one of {other.model}.{other.method}.",
                slug="different-entry-points",
                hint="Merge recordings of the same method of the same model.",
            )
        calls = sorted(set(self.calls) | set(other.calls), key=_order)
        missed = tuple(sorted(set(self.missed) | set(other.missed)))
        return replace(self, calls=tuple(calls), missed=missed)

    def with_call(self, call: Call) -> Recording:
        """The recording with one more call."""
        return replace(self, calls=(*self.calls, call))


def _order(call: Call) -> tuple[int, float, str]:
    return call.index, call.seconds, repr(call)
