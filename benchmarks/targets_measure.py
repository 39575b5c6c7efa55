"""One tiny model on every target: unseen calls, tokens, and the same calls on the programs that
``transformers.exporters`` makes.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sweep_measure import (
    TOLERANCE,
    Call,
    Use,
    answer,
    copied,
    difference,
    recorded,
    seed_all,
    tensors_of,
    text_of,
    unseen_calls,
)

import onlooker

#: how often the greatest watched size the bounds of ExecuTorch are; the first one is that of a row,
#: the others are those of the table of memory
FACTORS = (2, 1, 4, 16)
#: way -> the target, and its options
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "onnx": ("onnx", {}),
    "aoti": ("aoti", {}),
    "openvino": ("openvino", {}),
    "executorch": ("executorch", {"backend": "portable"}),
    "xnnpack": ("executorch", {"backend": "xnnpack"}),
}
#: way -> the names of the exporter and of its configuration in transformers.exporters, and options
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "peer-onnx": ("OnnxExporter", "OnnxConfig", {}),
    "peer-openvino": ("OpenVINOExporter", "OpenVINOConfig", {"stateful": False}),
    "peer-executorch": ("ExecutorchExporter", "ExecutorchConfig", {"backend": "xnnpack"}),
}
#: conversions alone, for the bytes that are planned for several bounds
MEMORY = "memory"
WAYS = (*OWN, *PEERS, MEMORY)
_PLANNED = re.compile(r"^([\d,]+) bytes of memory are planned")


@dataclass(slots=True)
class Subject:
    """A use, its unseen calls, and the program of torch once it was asked for."""

    use: Use
    calls: list[Call]
    program: Any = None

    def torch_program(self) -> Any:
        """What one watched run gives."""
        if self.program is None:
            observer = onlooker.InputObserver()
            seed_all()
            with observer(self.use.model), torch.no_grad():
                self.use.watch(self.use.model)
            self.program = observer.export()
        return self.program


def subject_of(build: Callable[[], Use]) -> Subject:
    """The use, with the calls of its unseen runs as the model itself answers them."""
    use = build()
    return Subject(use, unseen_calls(use))


def measure(subject: Subject, way: str, seconds: int) -> dict[str, Any]:
    """One cell: ``calls`` as ``[exact, all]``, ``tokens`` likewise, or ``cause``; seconds of the
    processor.
    """
    row: dict[str, Any] = {}
    begin = time.process_time()
    try:
        with warnings.catch_warnings(), _limited(seconds):
            warnings.simplefilter("ignore")
            if way == MEMORY:
                row["memory"] = _memory(subject)
            elif way in PEERS:
                _measure_peer(subject, way, row)
            else:
                _measure_own(subject, way, row)
    except Exception as error:
        traceback.print_exc()
        row["cause"] = text_of(error)
    row["seconds"] = round(time.process_time() - begin, 1)
    return row


class TooLong(Exception):
    """More seconds of the processor than a cell may take."""


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def end(*_: Any) -> None:
        raise TooLong(f"more than {seconds} seconds of the processor")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# ---------------------------------------------------------------------------------- onlooker


def _measure_own(subject: Subject, way: str, row: dict[str, Any]) -> None:
    program = subject.torch_program()
    target, options = OWN[way]
    if target == "executorch":
        options = {**options, "ranges": bounds_of(program, FACTORS[0])}
    if target != "torch":
        program = program.to(target, **options)
    row["graphs"] = len(program.graphs)
    outcomes = [answer(program, call) for call in subject.calls]
    _count(row, outcomes)
    if not is_generating(subject.use):
        return
    same = []
    for run in subject.use.unseen:
        try:
            same.append(torch.equal(_generated(subject, program, run), run(_copy(subject))))
        except Exception as error:
            same.append(False)
            row.setdefault("cause", f"generating: {text_of(error)}")
    row["tokens"] = [sum(same), len(same)]


def _generated(subject: Subject, program: Any, run: Callable[[Any], Any]) -> torch.Tensor:
    with program.installed(subject.use.model), torch.no_grad():
        seed_all()
        tokens: torch.Tensor = run(subject.use.model)
    return tokens


def _copy(subject: Subject) -> Any:
    seed_all()
    return copy.deepcopy(subject.use.model)


def is_generating(use: Use) -> bool:
    """True where the use is one of ``generate()``."""
    return use.story.startswith("generate")


def _count(row: dict[str, Any], outcomes: list[tuple[str, str]]) -> None:
    row["calls"] = [sum(kind == "ok" for kind, _ in outcomes), len(outcomes)]
    notes = [f"{kind}: {note}" for kind, note in outcomes if kind != "ok"]
    if notes:
        row["cause"] = notes[0]


def bounds_of(program: Any, factor: int) -> dict[str, tuple[int, int]]:
    """The ranges of a program: up to so many times the greatest size that was watched."""
    from onlooker.hypotheses.ranges import seen_sizes

    seen = seen_sizes(program.plans, program.recording, program._program.contents.joins)
    ranges = {}
    for plan in program.plans:
        for symbol in plan.symbols:
            if symbol.high is None:
                _, watched = seen.get(symbol.name, (1, 1))
                ranges[symbol.name] = (symbol.low, factor * max(watched, symbol.low, 1))
    return ranges


def _memory(subject: Subject) -> list[dict[str, Any]]:
    """Per choice of bounds the bytes that ExecuTorch plans beside the weights."""
    program, found = subject.torch_program(), []
    for factor in sorted(FACTORS):
        bounds = bounds_of(program, factor)
        converted = program.to("executorch", backend="portable", ranges=bounds)
        notes = [note for graph in converted.graphs for note in graph.notes]
        planned = [match[1] for match in map(_PLANNED.match, map(str, notes)) if match]
        found.append(
            {
                "factor": factor,
                "bounds": {name: high for name, (_, high) in bounds.items()},
                "bytes": [int(text.replace(",", "")) for text in planned],
            }
        )
    return found


# ---------------------------------------------------------------- transformers.exporters


def _measure_peer(subject: Subject, way: str, row: dict[str, Any]) -> None:
    """As its documentation says: what generates by ``export_for_generation``, the rest by
    ``export``; all sizes dynamic. Each part is asked by its runner.
    """
    import transformers.exporters as exporters

    exporter_name, config_name, options = PEERS[way]
    exporter = getattr(exporters, exporter_name)()
    config = getattr(exporters, config_name)(dynamic=True, **options)
    model, parts = copy.deepcopy(subject.use.model), {}
    if is_generating(subject.use):
        sample = _generate_inputs(model, subject.use.watch)
        parts = _parts_of(copy.deepcopy(model), copied(sample))
        exported = exporter.export_for_generation(model, sample, config)
    else:
        (first, *_) = recorded(copy.deepcopy(model), subject.use.watch)
        exported = exporter.export(model, named(subject.use.model, first), config)
    row["graphs"] = len(exported.components)
    if config_name == "OpenVINOConfig":  # it would compute in bfloat16 on many processors
        exported.to("cpu", config={"INFERENCE_PRECISION_HINT": "f32"})
    runners = exported.runners
    outcomes = [_asked(subject.use.model, parts, runners, call) for call in subject.calls]
    _count(row, outcomes)


def _generate_inputs(model: Any, watch: Callable[[Any], object]) -> dict[str, Any]:
    """The tensors that ``generate()`` is given in a run."""
    given: list[dict[str, Any]] = []
    original = model.generate

    def generate(**kwargs: Any) -> Any:
        given.append({k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)})
        return original(**kwargs)

    object.__setattr__(model, "generate", generate)
    try:
        with torch.no_grad():
            watch(model)
    finally:
        object.__delattr__(model, "generate")
    return given[0]


def _parts_of(model: Any, sample: dict[str, Any]) -> dict[str, Any]:
    """Name -> the module that a component is made of."""
    from transformers.exporters.utils import decompose_for_generation

    return {name: module for name, (module, _) in decompose_for_generation(model, sample).items()}


def named(model: Any, call: Call) -> dict[str, Any]:
    """The arguments of a call that are not None, by name."""
    bound = inspect.signature(model.forward).bind_partial(*call.args, **call.kwargs)
    found = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return {name: copied(value) for name, value in found.items() if value is not None}


def _asked(
    model: Any, parts: Mapping[str, Any], runners: Mapping[str, Any], call: Call
) -> tuple[str, str]:
    """``ok``, ``rejects`` or ``wrong``, and what there is to say."""
    inputs = named(model, call)
    try:
        if set(runners) == {"model"}:
            return _compared(runners["model"], inputs, call.expected)
        if _has_past(inputs):
            return _compared(runners["decode"], inputs, call.expected)
        if "prefill" in runners:
            return _compared(runners["prefill"], inputs, call.expected)
        return _asked_by_parts(parts, runners, inputs)
    except TooLong:
        raise
    except Exception as error:
        traceback.print_exc()
        return "rejects", text_of(error)


def _asked_by_parts(
    parts: Mapping[str, Any], runners: Mapping[str, Any], inputs: dict[str, Any]
) -> tuple[str, str]:
    """The prefill of a model that is split into components, whose joining is left to the caller:
    each one is asked what its module is asked while the whole model runs.
    """
    from transformers.exporters.utils import prepare_for_export

    whole = parts["decode"]
    for name, runner in runners.items():
        if name == "decode":
            continue
        for call in recorded(parts[name], lambda _: whole(**copied(inputs))):
            given = named(parts[name], call)
            prepare_for_export(parts[name], given)
            kind, note = _compared(runner, given, call.expected)
            if kind != "ok":
                return kind, f"component {name}: {note}"
    return "ok", ""


def _compared(runner: Any, inputs: dict[str, Any], expected: Any) -> tuple[str, str]:
    wanted = runner.metadata.kwargs
    given = {name: value for name, value in inputs.items() if name in wanted}
    if "attention_mask" in wanted and "attention_mask" not in given:
        given["attention_mask"] = _ones(inputs)  # generate() left one out that hides nothing
    with torch.no_grad():
        got = runner(**given)
    gap = _difference(got, expected, inputs.get("attention_mask"))
    if isinstance(gap, str) or gap > TOLERANCE:
        return "wrong", gap if isinstance(gap, str) else f"{gap:.2g} of 1 + max|expected|"
    return "ok", ""


def _has_past(inputs: Mapping[str, Any]) -> bool:
    """True where a cache is given that holds something."""
    return any(
        tensor.dim() > 1 and tensor.numel()
        for name, value in inputs.items()
        if not isinstance(value, torch.Tensor)
        and name.endswith(("past_key_values", "cache_params"))
        for _, tensor in tensors_of(value)
    )


def _ones(inputs: Mapping[str, Any]) -> torch.Tensor:
    ids = next(value for name, value in inputs.items() if name.endswith("input_ids"))
    past = [
        tensor.shape[-2]
        for name, value in inputs.items()
        if not isinstance(value, torch.Tensor)
        for path, tensor in tensors_of(value)
        if tensor.dim() == 4 and path.endswith("keys")
    ]
    return torch.ones(ids.shape[0], max(past, default=0) + ids.shape[1], dtype=torch.int64)


def _difference(got: Any, expected: Any, mask: torch.Tensor | None = None) -> float | str:
    """As :func:`difference`, on the last tokens. Results that are no tensors, caches above all, are
    compared where both sides have tensors of the same shapes in them, since a program may keep its
    cache in another form, and where the mask hides nothing.
    """
    if not isinstance(expected, Mapping):
        return difference(got, expected)
    largest = 0.0
    for key, value in expected.items():
        own = got[key] if isinstance(got, Mapping) and key in got else None
        if own is None and isinstance(value, torch.Tensor):
            return f"no {key}"
        if not isinstance(value, torch.Tensor):
            shapes = [[t.shape for _, t in tensors_of(v) if t.dim()] for v in (own, value)]
            if shapes[0] != shapes[1]:
                continue
            one, other = (
                [_shown(t, mask) for _, t in tensors_of(v) if t.dim()] for v in (own, value)
            )
            gap = difference(one, other)
        else:
            gap = difference(_last(own, value), value)
        if isinstance(gap, str):
            return f"{key}: {gap}"
        largest = max(largest, gap)
    return largest


def _shown(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Keys or values without the tokens that the mask hides: nothing reads them."""
    if mask is None or tensor.dim() != 4 or mask.shape != (tensor.shape[0], tensor.shape[2]):
        return tensor
    return torch.where(mask[:, None, :, None] != 0, tensor, 0)


def _last(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The last items of a dimension of which a program gives more: the logits of all tokens, where
    the model was asked for those of the last one.
    """
    if got.dim() != expected.dim():
        return got
    longer = [d for d, size in enumerate(expected.shape) if got.shape[d] != size]
    if len(longer) != 1 or longer[0] == 0 or got.shape[longer[0]] < expected.shape[longer[0]]:
        return got
    (dim,) = longer
    return got.narrow(dim, got.shape[dim] - expected.shape[dim], expected.shape[dim])
