"""A call without an argument is the call with its default.

Where some calls pass an argument and others leave it out, those without it get the default of the
signature, as Python does when it calls the method:

    def forward(self, x, last=1): ...

    model(x), model(x, last=3)      are watched as      last=1, last=3

A default of None stays away: a call with ``mask=None`` and one without a mask have the same form
already. What stands in ``**kwargs`` has no default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.call import Signature
from ...core.path import Name, Path
from ...core.recording import Recording
from ...core.spec import ConstantSpec
from ...core.structure import LEAF, Structure, Tree
from ...observing.store import Sample

__all__ = ["with_bound_defaults"]


def with_bound_defaults(
    recording: Recording, samples: Sequence[Sample]
) -> tuple[Recording, Sequence[Sample]]:
    """The calls, each with the defaults of arguments that other calls pass."""
    defaults = _defaults_of(recording)
    if not defaults:
        return recording, samples
    specs: dict[str, Any] = dict(defaults)
    values = {name: default.value for name, default in defaults.items()}
    order = recording.signature
    calls = tuple(
        replace(call, inputs=_completed(call.inputs, specs, order)) for call in recording.calls
    )
    by_index = {call.index: call for call in calls}
    kept = [
        replace(
            sample,
            call=by_index[sample.call.index],
            inputs=_completed(sample.inputs, values, order),
        )
        for sample in samples
    ]
    return replace(recording, calls=calls), kept


def _defaults_of(recording: Recording) -> dict[str, ConstantSpec]:
    """The defaults of arguments that some calls pass and others leave out."""
    passed = [_names(call.inputs.structure) for call in recording.calls]
    in_some = set().union(*passed) if passed else set()
    in_all = set(passed[0]).intersection(*passed) if passed else set()
    found: dict[str, ConstantSpec] = {}
    for parameter in recording.signature.parameters:
        default = parameter.default
        is_open = parameter.name in in_some - in_all
        if is_open and default is not None and default != ConstantSpec(None):
            found[parameter.name] = default
    return found


def _names(structure: Structure) -> set[str]:
    return {Path((entry,)).root for entry in structure.entries}


def _completed(inputs: Tree[Any], defaults: Mapping[str, Any], signature: Signature) -> Tree[Any]:
    """The arguments with the defaults that they lack, in the order of the signature."""
    structure = inputs.structure
    missing = [name for name in defaults if name not in _names(structure)]
    if not missing:
        return inputs
    order = {name: number for number, name in enumerate(signature.names)}
    parts = inputs.parts()
    parts.update((Name(name), Tree(Structure(LEAF), (defaults[name],))) for name in missing)
    return inputs.with_parts(
        dict(sorted(parts.items(), key=lambda part: order.get(part[0].code(), len(order))))
    )
