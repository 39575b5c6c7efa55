"""Replays recorded calls to find hidden state: results that depend on more than the arguments.

Such a model counts its calls, fills a table, draws random numbers, or is in training mode. An
export captures a single call, so the user is warned. The cause may also stand around the calls, as
a hook does: it does not stand around an experiment, and is in no graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...core.call import Call
from ...core.drawing.alike import named_few
from ...core.errors import ExportError, OnlookerWarning
from ...core.structure import Result
from ...lab.kept import Kept
from ...lab.lab import Lab
from ...lab.rerun import difference, is_as_seen, rerun
from ...lab.work import rows_of
from ...materialise.arguments import leaf_values
from ...observing.module_state import Contents
from ...observing.state import StateKeeper
from ...observing.store import Sample
from ...observing.surroundings import record_gradients
from ...observing.wrapped_model import advice_on_wrapped
from ...pytrees.unread import Unread
from .attributes import attributes_between_calls
from .surroundings import beside_fast_path, surroundings_of

__all__ = ["find_doubt"]

_MOST_REPLAYS = 2
#: calls that are run one after the other, for attributes that one of them writes and another reads
_MOST_IN_A_ROW = 64
#: a first call with so many times the rows of the last one is not run again: the last one tells more,
#: since more calls stood before it
_MUCH_DEARER = 32
#: torch's words where a derivative by a tensor is asked for that records no gradients
_NO_GRADIENTS = "does not require grad"
#: attributes that a refusal names
_MOST_NAMED = 4


def find_doubt(
    samples: Sequence[Sample], lab: Lab, calls: Sequence[Call] = ()
) -> OnlookerWarning | None:
    """A warning when the first or the last kept call, run again in private, gives another result
    than recorded. A first call that is much dearer than the last one is not run.

    Where gradients were recorded in all ``calls``, and only then the result is the one that was
    seen, the lab records them from there on.

    :raises ExportError: ``replay-refused`` when the model refuses all that are run again,
        ``fast-path`` where eager takes a way that no trace takes, and that gives another result,
        ``model-keeps-state`` when calls read attributes of modules that calls before them wrote
    """
    training, recorded = _is_training(lab.model), record_gradients(calls)
    refused: list[tuple[Sample, Exception]] = []
    first_and_last = _first_and_last(samples)
    for sample in first_and_last:
        again = _run_again(sample, lab, first_and_last)
        if recorded and not lab.subject.gradients and not is_as_seen(sample, again):
            recording = rerun(sample, lab, context=torch.enable_grad())
            if is_as_seen(sample, recording):
                lab.record_gradients()
                again = recording
        if isinstance(again, Exception):
            refused.append((sample, again))
            continue
        if training:
            evaluated = rerun(sample, lab, eval_mode=True)
            other = "" if isinstance(evaluated, Exception) else difference(again, evaluated)
            if other:
                return _in_training(sample, other)
        other = beside_fast_path(sample, again, lab)
        if other:
            raise _on_fast_path(sample, other)
        other = difference(sample.outputs, again)
        claim = f"call {sample.call.index} gives the same when it is run again"
        lab.record_claim(claim, not other, detail=other)
        if other:
            around = surroundings_of(sample, lab)
            whole = [one for one in samples if not one.altered]
            kept = () if around else attributes_between_calls(whole[:_MOST_IN_A_ROW], lab)
            if kept:
                raise _keeps_state(sample, other, kept)
            if not around and _draws(sample, again, lab):
                return _random(sample)
            if not around:
                lab.kept.difference = f"call {sample.call.index}, run again by itself: {other}"
            return _depends(sample, f"differs ({other})", around)
        lab.remember(sample.arguments(), again)
    if refused and len(refused) == len(first_and_last):
        raise _refusal(*refused[0], lab) from refused[0][1]
    if not refused:
        return None
    sample, error = refused[0]
    return _depends(sample, f"is refused ({_first_line(error)})")


def _run_again(sample: Sample, lab: Lab, samples: Sequence[Sample]) -> Result | Exception:
    """The result of a call that is run again. What the model made at random in its first calls, such as
    weights, stays from there on. Where the twin does not give what was seen and the model
    itself does, as one that is a key of a table outside of it, the model itself is run from
    there on; not one with an iterator, of which no step can be taken back.
    """
    n_readings = Unread.n_readings
    again = _with_what_it_drew(sample, rerun(sample, lab), lab, samples)
    twin = lab.subject
    has_twin = twin.original is not None and twin.model is not twin.original
    if is_as_seen(sample, again) or not has_twin or Unread.n_readings != n_readings:
        return again
    if any(change.lasts for change in lab.kept.changes.values()):
        return again
    lab.subject = twin.on_original()
    other = rerun(sample, lab)
    if not is_as_seen(sample, other):
        lab.subject = twin
        return again
    return other


def _with_what_it_drew(
    sample: Sample, again: Result | Exception, lab: Lab, samples: Sequence[Sample]
) -> Result | Exception:
    """The result of a call that is run again, with less put back where it is not the one that was seen, and where
    the first and the last call of the ``samples`` are as they were seen then: the user may have changed a list or a
    dict between calls, and a model that draws its weights in its first call would draw others.
    """
    former, kept = lab.subject, lab.kept
    if is_as_seen(sample, again) or not former.former:
        return again
    attributes = {
        path: value for path, value in former.former.items() if not isinstance(value, Contents)
    }
    fewer: list[Mapping[str, Any]] = [attributes] if len(attributes) < len(former.former) else []
    if isinstance(again, Exception) or _draws(sample, again, lab):
        fewer.append({})
    for held in fewer:
        lab.subject, lab.kept = replace(former, former=held, keeper=StateKeeper()), Kept()
        other = rerun(sample, lab)
        others = [one for one in samples if one is not sample]
        if is_as_seen(sample, other) and all(is_as_seen(one, rerun(one, lab)) for one in others):
            return other
    lab.subject, lab.kept = former, kept
    if isinstance(again, Exception) and len(attributes) < len(former.former):
        lab.subject, lab.kept = replace(former, former=attributes, keeper=StateKeeper()), Kept()
        return rerun(sample, lab)
    return again


def _draws(sample: Sample, again: Result, lab: Lab) -> bool:
    """True where the call gives another result with other random numbers of torch, and the same one
    with the same.
    """
    same, other = rerun(sample, lab), rerun(sample, lab, context=_other_random_numbers())
    if isinstance(same, Exception) or isinstance(other, Exception):
        return False
    return not difference(again, same) and bool(difference(again, other))


@contextlib.contextmanager
def _other_random_numbers() -> Iterator[None]:
    """Stands inside of a private run, which brings the random state back."""
    torch.manual_seed(torch.initial_seed() + 1)
    yield


def _first_and_last(samples: Sequence[Sample]) -> list[Sample]:
    whole = [sample for sample in samples if not sample.altered]
    if len(whole) < _MOST_REPLAYS:
        return whole
    first, last = (rows_of(leaf_values(sample)) for sample in (whole[0], whole[-1]))
    return [whole[-1]] if first >= _MUCH_DEARER * last else [whole[0], whole[-1]]


def _is_training(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(module.training for module in model.modules())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _refusal(sample: Sample, error: Exception, lab: Lab) -> ExportError:
    found = surroundings_of(sample, lab)
    text = (
        f"The model took call {sample.call.index} while it was watched, and refuses it when it is"
        f" run again in private: {_first_line(error).rstrip('.')}."
    )
    if found:
        hint = f"It takes it {found}. {_MOVE}"
    elif _NO_GRADIENTS in str(error):
        hint = (
            "Its method differentiates by an argument that recorded gradients in the call, and an argument of"
            " a program records none: let the method begin with x = x.requires_grad_()."
        )
    else:
        inner = advice_on_wrapped(lab.model)
        hint = inner.strip() or f"It may be a context, a hook or a global setting. {_MOVE}"
    return ExportError(text, slug="replay-refused", hint=hint)


_MOVE = (
    "What stands around a call is in no graph: move it into the method, or watch a module whose"
    " forward does both, the surroundings and the call."
)


def _in_training(sample: Sample, difference: str) -> OnlookerWarning:
    return OnlookerWarning(
        "The model, or a module of it, is in training mode, and in evaluation mode call"
        f" {sample.call.index} gives another result ({difference}).",
        slug="training-mode",
        hint=(
            "Call model.eval() before watching and exporting, unless the behaviour in training"
            " shall be exported."
        ),
    )


def _on_fast_path(sample: Sample, difference: str) -> ExportError:
    return ExportError(
        f"In call {sample.call.index} the model takes the fast path of attention that torch has for"
        f" eager mode, which gives another result ({difference}) than the operators of the model"
        " itself: those of padded positions are others. torch.export traces these operators, so"
        " that its graph differs from what was watched.",
        slug="fast-path",
        hint=(
            "Turn the fast path off before watching:"
            " torch.backends.mha.set_fastpath_enabled(False)."
        ),
    )


def _keeps_state(sample: Sample, difference: str, attributes: Sequence[str]) -> ExportError:
    shown = named_few(attributes, _MOST_NAMED)
    return ExportError(
        f"The model keeps state: its calls read {shown}, and write it for the next call. So call"
        f" {sample.call.index}, run again from the state that stood before watching, differs"
        f" ({difference}).",
        slug="model-keeps-state",
        hint=(
            "Watch with InputObserver(state=True): the program then keeps these attributes from"
            " call to call. Or pass them to the method, and return them."
        ),
    )


def _random(sample: Sample) -> OnlookerWarning:
    return OnlookerWarning(
        f"The model draws random numbers: call {sample.call.index} gives another result each time.",
        slug="random-numbers",
        hint=(
            "A program of torch draws them as the model does, and gives the same from the same"
            " torch.manual_seed(); other targets have random numbers of their own. Pass the numbers"
            " as an argument where the method has one."
        ),
    )


def _depends(sample: Sample, what: str, found: str = "") -> OnlookerWarning:
    said = f" {found[0].upper()}{found[1:]}, it gives what was seen." if found else ""
    return OnlookerWarning(
        "Outputs depend on earlier calls, or on something else than the arguments: call"
        f" {sample.call.index}, run again from the state that stood before watching, {what}.{said}",
        slug="outputs-depend-on-earlier-calls",
        hint=(
            f"The program is without it. {_MOVE}"
            if found
            else (
                "The program does what such a first call does. Pass the state as an argument, or"
                " watch another method."
            )
        ),
    )
