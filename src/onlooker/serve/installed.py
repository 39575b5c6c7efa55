"""A program in the place of a method of its model: ``generate()`` and pipelines then run on the
exported graphs.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..core.call import Arguments, Signature
from ..core.errors import RejectedCallError, UsageError
from ..core.structure import kinds_in
from ..core.support.locks import lock_of
from ..lab.effects import ArgumentEffects, effects_of, objects_in
from ..lab.runner import ModelRunner
from ..observing.bind import as_args_kwargs
from ..observing.surroundings import autocast_of
from ..observing.tracked_state import with_state_parameter
from ..observing.wrapped_model import method_signature
from ..observing.wrapping.hook import check_method, replaced_method
from ..observing.wrapping.lifted_weights import WithWeights, around_call
from ..observing.wrapping.submodule_calls import part_of_class
from ..pytrees.adopt import adopted, caches_in, made_at, put, take_over
from ..pytrees.deepcopy import torch_deepcopy
from ..pytrees.nodes import qualified_name
from ..pytrees.open import open_tree
from .dispatch import Dispatcher
from .runnable import RunnableProgram
from .settings import Setting, Settings, read_by
from .state import MethodDispatcher, of_another_class
from .weights import lifted_of

__all__ = ["Installed", "installed"]

logger = logging.getLogger(__name__)


class Installed:
    """Counts the calls that an installed program has served so far.

    ``calls`` counts the calls of each graph by its name, ``eager`` those that ran on the model
    itself (only with ``fallback=True``), ``refusals`` says why, once per reason.
    """

    def __init__(
        self,
        dispatcher: Dispatcher | MethodDispatcher,
        fallback: bool,
        subject: ModelRunner,
        untouched: Mapping[str, Sequence[str]],
        settings: Settings | None = None,
    ) -> None:
        self.calls: Counter[str] = Counter({graph.name: 0 for graph in dispatcher.graphs})
        self.eager: int = 0
        self.refusals: list[str] = []
        self._dispatcher = dispatcher
        self._fallback = fallback
        self._subject = subject
        self._untouched = untouched
        self._settings = settings
        self._switched: dict[tuple[Any, ...], list[Setting]] = {}
        self._returned = {
            kind for graph in dispatcher.graphs for kind in kinds_in(graph.outputs.structure)
        }
        self._effects: dict[tuple[Any, ...], dict[str, ArgumentEffects]] = {}
        self._lock = lock_of(self)

    def serve(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of the call; what the caller holds is brought to the state after the call.

        For objects of other classes than the caches of transformers, one run of the model per
        structure shows how the method changes them.

        :raises RejectedCallError: as :meth:`Dispatcher.serve`, ``cache-not-returned`` and ``attribute-switched``
        """
        try:
            self._check_settings(original, args, kwargs)
            effects = self._known_effects(original, args, kwargs)

            def finished(values: dict[str, Any], result: Any) -> Any:
                result = _with_callers_caches(values, result, self._returned)
                return _with_callers_objects(effects, values, result)

            graph, _, result = self._dispatcher.serve(args, kwargs, finished)
        except RejectedCallError as error:
            self.note_refusal(error)
            with self._with_state():
                return original(*args, **kwargs)
        with self._lock:
            self.calls[graph.name] += 1
        return result

    def note_refusal(self, error: RejectedCallError) -> None:
        """Notes a call that runs on the model.

        :raises RejectedCallError: the error itself, where no call may run there
        """
        if not self._fallback:
            raise error
        with self._lock:
            self.eager += 1
            if error.message not in self.refusals:
                self.refusals.append(error.message)

    def _with_state(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the model itself has the state of the program, and changes it."""
        state = self._dispatcher.state if isinstance(self._dispatcher, MethodDispatcher) else None
        if state is not None:
            return state.lent_to(self._subject.model)
        return contextlib.nullcontext()

    def _given_back(self) -> Collection[str]:
        """The arguments that every call brings to the state after it."""
        dispatcher = self._dispatcher
        return dispatcher.changed if isinstance(dispatcher, MethodDispatcher) else ()

    def _known_effects(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, ArgumentEffects]:
        """Returns the effects of the model on the objects among the arguments, and on caches of
        classes that no graph returns; they are found once per graph and structure of these, unless
        the program knows that they stay as they are. A graph stands for one way through the model.

        :raises RejectedCallError: ``call-does-not-bind``, ``cache-not-returned``
        """
        values = self._dispatcher.bound(args, kwargs)
        held = objects_in(values)
        for name, cache in caches_in(values):
            if qualified_name(type(cache)) not in self._returned:
                held[name] = open_tree(cache)
        held = {name: tree for name, tree in held.items() if name not in self._given_back()}
        graph = self._dispatcher.taker(values) if held else None
        if graph is None:
            return {}  # nothing to know, or the call is refused
        known = self._untouched.get(graph.name, ())
        held = {name: tree for name, tree in held.items() if name not in known}
        if not held:
            return {}
        key = (graph.name, *((name, tree.structure) for name, tree in held.items()))
        if key not in self._effects:
            self._effects[key] = self._asked(original, held, values)
        effects = self._effects[key]
        for name, effect in effects.items():
            if effect.effects and effect.returned is None:
                raise _not_returned(name)
        return effects

    def _check_settings(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Passes where the call reads no attribute of the model that is another one since the export; a run
        of the model tells once for each graph.

        :raises RejectedCallError: ``attribute-switched``
        """
        changed = () if self._settings is None else self._settings.changed()
        if not changed:
            return
        values = self._dispatcher.bound(args, kwargs)
        graph = self._dispatcher.taker(values)
        if graph is None:
            return  # the call is refused
        key = (graph.name, *((one.path, repr(one.now)) for one in changed))
        if key not in self._switched:
            self._switched[key] = self._read(changed, self._run_of(original), values)
        if self._switched[key]:
            raise _switched(self._switched[key][0])

    def _read(
        self, changed: Sequence[Setting], run: Callable[[Arguments], Any], values: dict[str, Any]
    ) -> list[Setting]:
        """Those of the changed attributes that a run of the model reads, all where the run fails."""
        try:
            with self._subject.untouched():
                return read_by(lambda: run(torch_deepcopy(values)), changed)
        except Exception as error:
            logger.debug("it is not known what the model reads: %s", error)
            return [*changed]

    def _run_of(self, original: Callable[..., Any]) -> Callable[[Arguments], Any]:
        """The method of the model, for arguments by name."""

        def run(arguments: Arguments) -> Any:
            args, kwargs = as_args_kwargs(self._dispatcher.signature, arguments)
            return self._subject.within(original, args, kwargs)

        return run

    def _asked(
        self, original: Callable[..., Any], names: Mapping[str, Any], values: Mapping[str, Any]
    ) -> dict[str, ArgumentEffects]:
        try:
            with self._subject.untouched():
                return effects_of(names, values, self._run_of(original))
        except Exception as error:
            raise RejectedCallError(
                f"The model was asked what it does to {', '.join(names)}, and raised"
                f" {type(error).__name__}: {error}",
                slug="cache-not-returned",
                hint=(
                    "Whether the call changes these objects has to be known before a program can"
                    " stand in for it."
                ),
            ) from error

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {number}" for name, number in self.calls.items())
        return f"<onlooker.Installed {counts}, eager: {self.eager}>"


def _with_callers_caches(values: Mapping[str, Any], result: Any, returned: Collection[str]) -> Any:
    """The result, in which every cache that came in is the object that came in; those of classes that
    are not ``returned`` are known to stay as they are.
    """
    given = dict(caches_in(values))
    if not given:
        return result
    result, missing = adopted(result, given)
    for name in missing:
        if qualified_name(type(given[name])) in returned:
            raise _not_returned(name)
    return result


def _with_callers_objects(
    effects: Mapping[str, ArgumentEffects], values: Mapping[str, Any], result: Any
) -> Any:
    """The result, in which every object that the model gives back is the one that came in."""
    for name, effect in effects.items():
        if effect.returned is not None:
            if effect.effects:
                made = made_at(result, effect.returned)
                if take_over(values[name], made, effect.written) is not values[name]:
                    raise of_another_class(name, values[name])
            result = put(result, effect.returned, values[name])
    return result


def _switched(setting: Setting) -> RejectedCallError:
    return RejectedCallError(
        f"{setting.path} of the model is {setting.now!r}, and was {setting.value!r} when the model was exported: the"
        " model reads the attribute, and the graphs have its former value as a constant.",
        slug="attribute-switched",
        hint="Set the attribute back, or watch and export the model as it is now.",
    )


def _not_returned(name: str) -> RejectedCallError:
    return RejectedCallError(
        f"The call passes {name}, which the method changes and does not return, as no watched call"
        " did: the program cannot update it.",
        slug="cache-not-returned",
        hint="Watch calls that pass and change it too, and export again.",
    )


def _check_signature(given: Signature, dispatcher: Dispatcher | MethodDispatcher) -> None:
    """Passes for a method that takes what the graphs take, in the same order; it may take more."""
    roots = {leaf.path.root for graph in dispatcher.graphs for leaf in graph.plan.inputs}
    taken = [name for name in dispatcher.signature.names if name in roots]
    shared = [name for name in given.names if name in taken]
    known = (
        taken
        if given.of_kind("VAR_KEYWORD") is None
        else [name for name in taken if name in shared]
    )
    if shared != known:
        raise UsageError(
            f"The graphs take {', '.join(taken)}, and the method takes"
            f" {', '.join(given.names) or 'nothing'}.",
            slug="another-signature",
            hint="Install the program in a model that is called as the watched one was.",
        )


def _served_with_weights(
    served: Installed,
    argument: str,
    one: WithWeights,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of a call of a module, with its weights.

    :raises RejectedCallError: as :meth:`Installed.serve`, and ``no-such-adapter``
    """
    try:
        weights = one.weights()
    except RejectedCallError as error:
        served.note_refusal(error)
        return original(*args, **kwargs)
    return around_call(argument, one, weights, served.serve)(original, args, kwargs)


@contextlib.contextmanager
def _installed_with_weights(
    program: RunnableProgram, given: Any, fallback: bool
) -> Iterator[Installed]:
    """Inside the block each of several equal blocks, or a model with adapters, runs on the graphs with
    its weights.

    :raises UsageError: ``no-model``, ``no-such-block``, ``another-signature``
    """
    weights, recording = program.weights, program.contents.recording
    assert weights is not None
    lifted = program.watched.watched if given is None else lifted_of(given, weights)
    served_modules = lifted.served(weights.sets)
    runner = ModelRunner(
        served_modules[0].module,
        recording.method,
        recording.signature,
        autocast=autocast_of(recording.calls),
    )
    served = Installed(program.method, fallback, runner, program.contents.untouched)
    with contextlib.ExitStack() as stack:
        for one in served_modules:
            check_method(one.module, recording.method)
            plain = method_signature(one.module, recording.method)[1]
            _check_signature(with_state_parameter(plain, weights.argument), program.method)
            around = partial(_served_with_weights, served, weights.argument, one)
            stack.enter_context(replaced_method(one.module, recording.method, around))
        yield served


@contextlib.contextmanager
def installed(
    program: RunnableProgram, model: Any = None, *, fallback: bool = False
) -> Iterator[Installed]:
    """Inside the block the watched method of a model, by default of the one that was watched, runs
    on the graphs; on exit ``vars(model)`` is what it was.

    Where the watched model called a copy of itself, the method of the copy is replaced too.

    :raises UsageError: ``no-such-method``, ``no-model``, ``another-signature``
    """
    recording, serving = program.contents.recording, program.method
    if program.weights is not None:
        with _installed_with_weights(program, model, fallback) as served:
            yield served
        return
    subject = program.lab.subject if program.lab is not None else None
    own = () if subject is None else (subject.watched, subject.copy_of)
    chosen = program.watched.watched if model is None else model
    chosen = part_of_class(chosen, recording.model)
    is_own = any(chosen is one for one in own)
    models = [one for one in own if type(one) is type(chosen)] if is_own else [chosen]
    for one in models:
        check_method(one, recording.method)
        _check_signature(method_signature(one, recording.method)[1], serving)
    runner = ModelRunner(
        models[0], recording.method, serving.signature, autocast=autocast_of(recording.calls)
    )
    settings = program.settings if is_own else None
    served = Installed(serving, fallback, runner, program.contents.untouched, settings)
    with contextlib.ExitStack() as stack:
        for one in models:
            stack.enter_context(replaced_method(one, recording.method, served.serve))
        yield served
