"""From what was captured, perhaps elsewhere, and a model that is built here, to an observer.

The model is called with a few of the recorded calls: with the values that were kept, else with values
that are grown from the specs and from what the values were seen to be. All other calls are added by
their specs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..core.call import Call
from ..core.errors import ObservationError, UsageError
from ..core.recording import Recording
from ..core.spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import Tree
from ..core.support.kinds import as_path
from ..core.surroundings import Gradients, Surroundings
from ..infer.unify import forms_of
from ..input_observer import InputObserver
from ..keep.containers import hidden_of
from ..keep.values import tree_of
from ..materialise.facts import Fact
from ..observing.bind import as_args_kwargs
from ..observing.surroundings import inside_autocast, inside_gradients
from ..pytrees.identity import generator_device, identity_of
from ..pytrees.numbers import as_dtype
from ..pytrees.open import close_tree, dtype_of
from ..serve.runnable import check_model
from ..targets.weights import read_tensors
from .combine import Seen
from .reader import ValueRange
from .recorded import label, read_seen

__all__ = ["kept_calls", "observer_of", "part_of"]

#: calls of each kind that the model is called with
_MOST_CALLS = 2


def part_of(built: Any, seen: Seen, name: str | None = None) -> Any:
    """The model of the entry point in what was built, which may be a pipeline that holds it.

    It is looked for under the ``name`` of the entry and under its places in the program, without
    the names that they begin with: for ``pipe.vae.decode``, ``built.vae``. A module in which
    nothing is found is given as it is, since the model may be inside of it.

    :raises UsageError: ``bad-entry``
    """
    short = seen.entry.model.rpartition(".")[2]
    for path in ("", name or "", *seen.places):
        words = path.removesuffix(f".{seen.entry.method}").split(".") if path else []
        for start in range(len(words) + 1):
            found = _attribute(built, words[start:])
            if type(found).__name__ == short:
                return found
    if isinstance(built, torch.nn.Module):
        return built
    raise UsageError(
        f"There is no {short} at {name or seen.name} of the {type(built).__name__} that was built.",
        slug="bad-entry",
        hint=(
            "Return the module itself, or name the attribute that holds it: --entry unet, or"
            " --entry vae.decode for a method."
        ),
    )


def _attribute(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value


def observer_of(
    seen: Seen, model: Any, folders: Sequence[Path] = (), observer: InputObserver | None = None
) -> InputObserver:
    """An observer of the model that has all calls of the entry point; ``folders`` may have values
    that were kept. It is a new one, or the given ``observer``.

    :raises ObservationError: ``values-not-grown`` where arguments hold objects that cannot be made,
        ``build-refuses`` where the model refuses a recorded call, ``build-differs`` where it gives
        results of other shapes than those that were recorded
    :raises UsageError: ``another-signature``
    """
    recording = _on_device(seen.recording, model)
    part = check_model(model, replace(recording, model=_class_name(model, recording)))
    calls = _chosen(recording, _kept_rows(seen))
    observer = InputObserver() if observer is None else observer
    with observer(part, store_n_calls=len(calls), method_name=recording.method):
        for call in calls:
            _run(part, recording, call, _values(seen, call, folders))
    _check_results(observer.recording(recording.method), calls, seen)
    rest = tuple(
        replace(call, count=call.count - 1) if call in calls else call for call in recording.calls
    )
    calls_left = tuple(call for call in rest if call.count)
    observer.add_recording(replace(recording, calls=calls_left))
    return observer


def _class_name(model: Any, recording: Recording) -> str:
    """The name of the recorded class in this process, where it may have another module."""
    short = recording.model.rpartition(".")[2]
    modules = model.modules() if isinstance(model, torch.nn.Module) else [model]
    for module in modules:
        if type(module).__name__ == short:
            return f"{type(module).__module__}.{type(module).__qualname__}"
    return recording.model


def _on_device(recording: Recording, model: Any) -> Recording:
    """The recording on the device of the model, where all its tensors were on one other device;
    generators of that device move with them.
    """
    calls = recording.calls
    seen = {spec.device for call in calls for spec in _tensors(call)}
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    here = next((str(weight.device) for weight in weights), "cpu")
    if len(seen) != 1 or seen == {here}:
        return recording

    (there,) = seen

    def moved_leaf(spec: Spec) -> Spec:
        if isinstance(spec, TensorSpec):
            return replace(spec, device=here)
        if not isinstance(spec, OpaqueSpec):
            return spec
        device = generator_device(spec.kind, spec.identity)
        return (
            replace(spec, identity=identity_of(torch.Generator(here)))
            if str(device) == there
            else spec
        )

    def moved(tree: Tree[Spec]) -> Tree[Spec]:
        return replace(tree, leaves=tuple(map(moved_leaf, tree.leaves)))

    return replace(
        recording,
        calls=tuple(
            replace(call, inputs=moved(call.inputs), outputs=moved(call.outputs)) for call in calls
        ),
    )


def _tensors(call: Call) -> list[TensorSpec]:
    leaves = (*call.inputs.leaves, *call.outputs.leaves)
    return [spec for spec in leaves if isinstance(spec, TensorSpec)]


def _chosen(recording: Recording, kept: Mapping[Call, Any]) -> list[Call]:
    """A few calls of each kind: those with values, else a small one and one of middling size."""
    found: list[Call] = []
    for form in forms_of(recording.calls):
        ordered = sorted(form.calls, key=lambda call: (_elements(call), call.index))
        with_values = [call for call in form.calls if _plain(call) in kept]
        found += (with_values or [ordered[0], ordered[len(ordered) // 2]])[:_MOST_CALLS]
    return list(dict.fromkeys(found))


def _elements(call: Call) -> int:
    total = 0
    for spec in call.inputs.leaves:
        if isinstance(spec, TensorSpec):
            total += torch.Size(spec.shape).numel()
    return total


def _plain(call: Call) -> Call:
    """The call without what is of one process, or of one device."""
    leaves = tuple(
        replace(s, device="") if isinstance(s, TensorSpec) else s for s in call.inputs.leaves
    )
    return Call(0, Tree(call.inputs.structure, leaves), Tree(call.inputs.structure, ()))


def _kept_rows(seen: Seen) -> dict[Call, str]:
    """The file with the values of each call that was kept."""
    found: dict[Call, str] = {}
    for _, part in seen.parts:
        by_row = {call.index: call for call in part.calls}
        for row, file in part.values:
            if row in by_row:
                found.setdefault(_plain(by_row[row]), file)
    return found


def kept_calls(folder: str | Path, entry: str | None = None) -> list[dict[str, Any]]:
    """The calls whose values ``onlooker run --keep-values`` kept in a folder, each as arguments by
    name: calls to calibrate on, ``program.to("onnx", precision="int8-static", calibration=calls)``.

    ``entry`` names the entry point where the folder has several.

    :raises SavedFileError: ``file-missing``, ``nothing-captured`` and others of the folder
    :raises UsageError: ``no-such-entry``
    :raises ObservationError: ``no-values`` where no values were kept
    """
    place = as_path(folder, "The folder of a run")
    (seen,) = read_seen(place, [] if entry is None else [entry])
    rows = _kept_rows(seen)
    found = []
    for call in seen.recording.calls:
        if _plain(call) in rows:
            tree = _values(seen, call, [place])
            found.append(close_tree(tree.structure, tree.leaves))
    if not found:
        raise ObservationError(
            f"{place} has no values of calls.",
            slug="no-values",
            hint="Record with onlooker run --keep-values.",
        )
    return found


def _values(seen: Seen, call: Call, folders: Sequence[Path]) -> Tree[Any]:
    name = _kept_rows(seen).get(_plain(call))
    for folder in folders if name else ():
        file = folder / str(name)
        if file.is_file():
            tables = read_tensors(file)
            moved = {key: _like(tensor, call) for key, tensor in tables.get("inputs", {}).items()}
            structure = call.inputs.structure
            tree = tree_of(call.inputs, hidden_of(structure), moved, "inputs", str(file))
            return replace(tree, structure=structure)
    ranges = seen.ranges
    leaves = [
        _grown(spec, ranges.get(path.code()), path.code()) for path, spec in call.inputs.items()
    ]
    return Tree(call.inputs.structure, tuple(leaves))


def _like(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """The tensor on the device of the call."""
    device = next((spec.device for spec in _tensors(call)), "cpu")
    return tensor.to(device)


def _grown(spec: Spec, known: ValueRange | None, path: str) -> Any:
    """A value with the spec: within what the values of this leaf were seen to be."""
    if isinstance(spec, ConstantSpec):
        return spec.value
    if isinstance(spec, OpaqueSpec):
        device = generator_device(spec.kind, spec.identity)
        if device is not None:
            return torch.Generator(device).manual_seed(0)
        raise ObservationError(
            f"No value was kept for {path}, a {spec.kind}, and none can be made from its spec.",
            slug="values-not-grown",
            hint="Watch the model where it is built, or pass tensors, numbers and generators to it.",
        )
    dtype = dtype_of(spec.dtype)
    numbers = _numbers(spec.shape, known, is_float=dtype.is_floating_point or dtype.is_complex)
    return as_dtype(numbers, dtype).to(spec.device)


def _numbers(shape: tuple[int, ...], known: ValueRange | None, *, is_float: bool) -> torch.Tensor:
    size = torch.Size(shape)
    steps = torch.arange(size.numel())
    facts = known.facts if known is not None else frozenset()
    if is_float:
        low, high = (known.low, known.high) if known is not None else (-1.0, 1.0)
        if Fact.HIDES.name in facts:
            low = high = 0.0
        found = low + (high - low) * (torch.sin(0.7 * steps.to(torch.float32)) + 1) / 2
    elif known is None:
        return torch.ones(
            size, dtype=torch.int64
        )  # in every vocabulary, and a mask that hides none
    elif Fact.BINARY.name in facts and Fact.PADDED.name in facts:
        return _padded(size, hides=known.low < known.high)
    elif Fact.CONSECUTIVE.name in facts:
        row = torch.arange(size[-1] if size else 1)
        return (int(known.low) + row).reshape(size[-1:]).expand(size).contiguous()
    else:
        span = int(known.high) - int(known.low) + 1
        found = int(known.low) + (steps * 7919 + 3) % span
    found = found.reshape(size)
    if size and Fact.RISING.name in facts:
        found = found.sort(dim=-1).values
    elif size and Fact.FALLING.name in facts:
        found = found.sort(dim=-1, descending=True).values
    return found


def _padded(size: torch.Size, *, hides: bool) -> torch.Tensor:
    """A mask of ones; the first row begins with a 0 where some were seen."""
    mask = torch.ones(size, dtype=torch.int64)
    if hides and size and size[-1] > 1:
        mask.reshape(-1, size[-1])[0, 0] = 0
    return mask


def _run(model: Any, recording: Recording, call: Call, values: Tree[Any]) -> None:
    """Calls the model as the call was made.

    :raises ObservationError: ``build-refuses``
    """
    arguments = close_tree(values.structure, values.leaves)
    args, kwargs = as_args_kwargs(recording.signature, arguments)
    try:
        with _inside(call.surroundings):
            getattr(model, recording.method)(*args, **kwargs)
    except Exception as error:
        raise ObservationError(
            f"The model that was built refuses call {call.index} of the recording, with values made"
            f" from its specs: {type(error).__name__}: {error}",
            slug="build-refuses",
            hint=(
                "Build the model that was watched; record with --keep-values where the values"
                " decide."
            ),
        ) from error


@contextlib.contextmanager
def _inside(surroundings: Surroundings | None) -> Iterator[None]:
    gradients = surroundings.gradients if surroundings is not None else Gradients.NO_GRAD
    with contextlib.ExitStack() as stack:
        if surroundings is not None:
            stack.enter_context(inside_autocast(surroundings.autocast, keeps_casts=True))
        stack.enter_context(inside_gradients(gradients))
        yield


def _check_results(made: Recording, calls: Sequence[Call], seen: Seen) -> None:
    """Passes where the model gives results of the recorded shapes.

    :raises ObservationError: ``build-differs``
    """
    expected = {call.inputs: call for call in calls}
    for call in made.calls:
        known = expected.get(call.inputs)
        if known is None or known.outputs == call.outputs:
            continue
        pairs = zip(known.outputs.items(), call.outputs.items(), strict=False)
        found = next((f"{p.code()} is {b}, and was {a}" for (p, a), (_, b) in pairs if a != b), "")
        raise ObservationError(
            f"The model that was built gives other results than {label(seen)} gave:"
            f" {found or 'they are built otherwise'}.",
            slug="build-differs",
            hint="Build the model that was watched, with its configuration.",
        )
