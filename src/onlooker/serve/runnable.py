"""A program with all that runs it: graphs, state, the watched calls with values, and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.contents import ProgramContents
from ..core.errors import UsageError
from ..core.marks import RECORDED
from ..core.path import Path
from ..core.recording import Recording
from ..lab.effects import ArgumentEffects
from ..lab.lab import Lab
from ..lab.runner import ModelRunner
from ..lab.stages import Stages
from ..lab.stateful import Stateful
from ..materialise.domains import limits_of
from ..observing.bind import as_args_kwargs
from ..observing.store import Sample
from ..observing.surroundings import autocast_of, record_gradients
from ..observing.wrapped_model import method_signature
from ..observing.wrapping.submodule_calls import part_of_class
from ..trace.graph import Graph
from .dispatch import Dispatcher
from .kept_caches import CacheKeeper
from .settings import Settings
from .state import MethodDispatcher, ProgramState, of_given_arguments, without_state
from .weights import ProgramWeights, lifted_of

__all__ = ["ProgramAndModel", "RunnableProgram", "check_model"]


# The arguments that a loaded program knows to stay as they are.
def untouched_arguments(
    samples: Sequence[Sample],
    dispatcher: Dispatcher,
    effects: Mapping[int, Mapping[str, ArgumentEffects]],
) -> dict[str, tuple[str, ...]]:
    """By the name of a graph, the arguments with ``effects`` that the method neither changes nor
    returns in any kept call that this graph takes; the effects are those of the calls, by their
    numbers.

    A program that was loaded has no model to ask: it knows this of the calls of its graphs.
    """
    found: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        known = effects.get(sample.call.index)
        graph = None if known is None else dispatcher.taker(dict(sample.arguments()))
        if known is None or graph is None:
            continue
        left = {name for name, each in known.items() if not each.effects and each.returned is None}
        found[graph.name] = tuple(sorted(left.intersection(found.get(graph.name, left))))
    return found


@dataclass(frozen=True, slots=True)
class ProgramAndModel:
    """A program beside the model that it is compared with. ``kept`` are the ``samples`` as the graphs
    see them. ``weights`` is the argument that has weights, where there is one.
    """

    contents: ProgramContents[Graph]
    samples: tuple[Sample, ...]
    kept: tuple[Sample, ...]
    subject: ModelRunner
    weights: str = ""


class RunnableProgram:
    """The graphs of a program, and what its calls need.

    ``samples`` are the watched calls whose values were kept. ``lab`` has the model that was watched;
    a loaded program has none. ``state`` is what the program keeps from call to call, ``weights`` are
    those of the blocks or adapters that run on it. ``settings`` are those that the model had when it was
    exported. ``contents`` is replaced as a whole when something new is known: a verdict, the files of the graphs.
    """

    def __init__(
        self,
        contents: ProgramContents[Graph],
        samples: Sequence[Sample] = (),
        lab: Lab | None = None,
        state: ProgramState | None = None,
        weights: ProgramWeights | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.contents = contents
        self.samples: tuple[Sample, ...] = tuple(samples)
        self.lab = lab
        self.state = state
        self.weights = weights
        self.settings = settings
        self.stages: Stages = Stages() if lab is None else lab.stages
        signature = contents.recording.signature
        self.dispatcher = Dispatcher(contents.graphs, signature, contents.joins)
        self.method: Dispatcher | MethodDispatcher = self.dispatcher
        if state is not None or contents.changed:
            self.method = MethodDispatcher(self.dispatcher, state, contents.changed)
        caches = dict.fromkeys(name for graph in contents.graphs for name in graph.keeps)
        self.keeper: CacheKeeper | None = (
            CacheKeeper(self.method, tuple(caches)) if caches else None
        )

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, in the classes that the model returns."""
        return (self.keeper or self.method)(args, kwargs)

    def serve(self, arguments: dict[str, Any]) -> Any:
        """The result of the graphs for arguments by name: state, and arguments that the call
        changes, are parts of it. A graph that is for recorded calls alone gets one.
        """
        args, kwargs = as_args_kwargs(self.contents.recording.signature, arguments)
        records = any(RECORDED in graph.marks for graph in self.contents.graphs)
        with torch.set_grad_enabled(records or torch.is_grad_enabled()):
            result = self.dispatcher(args, kwargs)
        return result if self.method is self.dispatcher else of_given_arguments(result, arguments)

    def reset(self) -> None:
        """Brings the state back to what stood in the model when watching began, and forgets caches."""
        if self.keeper is not None:
            self.keeper.reset()
        if self.state is not None:
            self.state.reset()

    def with_graphs(self, graphs: Sequence[Graph]) -> RunnableProgram:
        """A program of these graphs, beside the same calls and model; nothing of it is verified."""
        return self.beside(self.contents.recording, self.samples, self.lab, graphs)

    def beside(
        self,
        recording: Recording,
        samples: Sequence[Sample],
        lab: Lab | None,
        graphs: Sequence[Graph] | None = None,
    ) -> RunnableProgram:
        """The graphs beside these calls and this model, with a state of their own."""
        contents = ProgramContents(
            self.contents.graphs if graphs is None else tuple(graphs),
            recording,
            self.contents.refusals,
            self.contents.joins,
            self.contents.limits,
            untouched=self.contents.untouched,
            changed=self.contents.changed,
        )
        state = None if self.state is None else self.state.copy()
        settings = None if lab is None else self.settings
        return RunnableProgram(contents, samples, lab, state, self.weights, settings)

    def know_untouched(self, effects: Mapping[int, Mapping[str, ArgumentEffects]]) -> None:
        """Notes which lists, dicts or objects of tensors the kept calls leave as they are; ``effects``
        is what was found of each call, by its number.
        """
        if self.state is None:
            found = untouched_arguments(self.samples, self.dispatcher, effects)
            self.contents = replace(self.contents, untouched=found)

    @property
    def argument_of_weights(self) -> str:
        """The argument that has the weights of blocks or of adapters; empty for other programs."""
        return "" if self.weights is None else self.weights.argument

    @property
    def kept(self) -> tuple[Sample, ...]:
        """The watched calls with values, as the graphs see them."""
        return tuple(sample.joined(self.contents.joins) for sample in self.samples)

    @property
    def limits(self) -> Mapping[Path, tuple[float, float]]:
        """The least and the greatest number of ids and masks: of the kept calls, or as they were
        saved.
        """
        return {**self.contents.limits, **limits_of(self.kept)}

    @property
    def watched(self) -> ModelRunner:
        """The model that was watched.

        :raises UsageError: ``no-model``
        """
        if self.lab is None:
            raise UsageError(
                "A program that was loaded has no model.",
                slug="no-model",
                hint="Give it: program.verify(model=model), program.installed(model).",
            )
        return self.lab.subject

    def subject_of(self, model: Any) -> ModelRunner:
        """The model to compare with, whose runs count against no budget: the one that was watched, or
        the given one.

        :raises UsageError: ``no-model``, ``another-signature``
        """
        if model is None:
            return self.watched.with_new_twin()
        recording, state = self.contents.recording, self.state
        method = recording.method
        if self.weights is not None:
            checked = check_model(lifted_of(model, self.weights), recording)
        elif state is None:
            checked = check_model(model, recording)
        else:
            plain = without_state(recording.signature, state.name)
            check_model(model, replace(recording, signature=plain))
            checked = Stateful(model, method, recording.signature, state.name, state.paths)
            method = "forward"
        return ModelRunner.of_twin(
            checked,
            method,
            recording.signature,
            autocast=autocast_of(recording.calls),
            gradients=record_gradients(recording.calls),
            changed=self.contents.changed,
        )

    def beside_model(self, model: Any = None) -> ProgramAndModel:
        """The program and the model to compare with, by default the one that was watched.

        :raises UsageError: ``no-model``, ``no-values``, ``another-signature``
        """
        subject = self.subject_of(model)
        if not self.samples:
            raise UsageError(
                "The program has no values of calls to start from.",
                slug="no-values",
                hint="Save it with program.save(directory, values=True), or watch calls again.",
            )
        return ProgramAndModel(
            self.contents, self.samples, self.kept, subject, self.argument_of_weights
        )


def check_model(model: Any, recording: Recording) -> Any:
    """The model, or the part of it that was watched, when it has the method, with the same
    parameters.

    :raises UsageError: ``another-signature``
    """
    method, model = recording.method, part_of_class(model, recording.model)
    known = callable(getattr(model, method, None)) and method_signature(model, method)[1].names
    if known != recording.signature.names:
        raise UsageError(
            f"{type(model).__name__} has no"
            f" {recording.method}({', '.join(recording.signature.names)}).",
            slug="another-signature",
            hint=f"Give a model that is called as {recording.model} was.",
        )
    return model
