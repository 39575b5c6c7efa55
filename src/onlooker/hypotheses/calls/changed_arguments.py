"""Arguments that calls change and do not return: a graph has to give them beside the result.

A model writes into the cache, the list or the tensor that came in, and returns something else. The
kept calls are run again, on copies, to see which of their arguments are others afterwards. Caches
that the result has, which is usual, are not asked about; tensors are looked at in those runs that
the export makes anyway (:attr:`onlooker.lab.lab.Lab.written`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.call import OUTPUT, Arguments, ChangedArgument
from ...core.path import Path
from ...core.recording import Recording
from ...core.structure import kinds_in
from ...lab.effects import ArgumentEffects, effects_of, objects_in
from ...lab.lab import Lab
from ...observing.store import Sample
from ...pytrees.adopt import holds_numbers
from ...pytrees.layers import is_cache
from ...pytrees.nodes import qualified_name
from ...pytrees.open import spec_of

__all__ = ["ChangedArguments", "find_changed_arguments"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChangedArguments:
    """The changes that the kept calls make to their arguments: ``changed`` are those that a program
    has to give back, ``effects`` has all that was found, by the number of the call.
    """

    changed: tuple[ChangedArgument, ...] = ()
    effects: Mapping[int, Mapping[str, ArgumentEffects]] = field(default_factory=dict)

    def with_results(
        self, recording: Recording, samples: Sequence[Sample], lab: Lab
    ) -> tuple[Recording, list[Sample]]:
        """The kept calls with the changed arguments in their results, as a further run gives them,
        and the recording with these results; the lab gives them from here on. A call that the model
        refuses now is kept no longer.
        """
        if not self.changed:
            return recording, list(samples)
        lab.subject = replace(lab.subject, changed=self.changed)
        lab.forget()
        found = {}
        for sample in samples:
            why = f"call {sample.call.index} with the arguments that it changes"
            result = lab.try_run(dict(sample.arguments()), why=why, necessary=True)
            if result is not None:
                specs = result.each(spec_of)
                call = replace(sample.call, outputs=specs)
                found[call.index] = replace(sample, call=call, outputs=result)
        calls = tuple(
            found[call.index].call if call.index in found else call for call in recording.calls
        )
        return replace(recording, calls=calls), list(found.values())


def find_changed_arguments(samples: Sequence[Sample], lab: Lab) -> ChangedArguments:
    """Runs kept calls that pass lists, dicts, objects, or caches that they do not return."""
    effects: dict[int, dict[str, ArgumentEffects]] = {}
    numbers: set[str] = set()
    for sample in samples:
        arguments = dict(sample.arguments())
        numbers |= {name for name, value in arguments.items() if holds_numbers(value)}
        names = _questionable(sample, arguments, lab)
        if names:
            effects[sample.call.index] = _effects(names, arguments, sample, lab)
    written: dict[str, set[Path]] = {}
    for found in effects.values():
        for name, effect in found.items():
            if effect.effects and (effect.returned is None or name in numbers):
                written.setdefault(name, set()).update(effect.written)
    order = [name for name in lab.signature.names if name in written]
    order += [name for name in written if name not in order]
    changed = tuple(ChangedArgument(name, tuple(sorted(written[name], key=str))) for name in order)
    return ChangedArguments(changed, effects)


def _questionable(sample: Sample, arguments: Mapping[str, Any], lab: Lab) -> list[str]:
    """The arguments of a call that it may change and not return."""
    objects = objects_in(arguments)
    returned = Counter(kinds_in(sample.outputs.structure))
    given = Counter(qualified_name(type(value)) for value in arguments.values())
    names = []
    for name, value in arguments.items():
        if is_cache(value):
            kind = qualified_name(type(value))
            is_open = returned[kind] < given[kind]
        else:
            is_open = holds_numbers(value) or name in objects or name in lab.written
        if is_open:
            names.append(name)
    return names


def _effects(
    names: Sequence[str], arguments: Arguments, sample: Sample, lab: Lab
) -> dict[str, ArgumentEffects]:
    try:
        with lab.private_run(why=f"what call {sample.call.index} does to {', '.join(names)}"):
            return effects_of(names, arguments, lambda copies: _output(lab(copies), lab))
    except Exception as error:  # the model refuses the call now, which says nothing of arguments
        logger.debug("%s: %s: %s", sample.call.index, type(error).__name__, error)
        return {}


def _output(result: Any, lab: Lab) -> Any:
    """Returns the output of the method itself."""
    return result[OUTPUT] if lab.subject.has_parts else result
