"""One method of a model, run with arguments by name, in private and without a trace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ..core.call import OUTPUT, Arguments, ChangedArgument, Signature
from ..core.spec import OpaqueSpec
from ..core.structure import LEAF, Result, Structure, Tree
from ..core.surroundings import Autocast
from ..observing.bind import as_args_kwargs
from ..observing.cached_functions import without_remembered_fakes
from ..observing.samples import Sample
from ..observing.state import StateKeeper, kept_state, kept_weights
from ..observing.surroundings import inside_autocast, outside_autocast
from ..observing.tracked_state import with_changed_arguments
from ..patches.batch_statistics import batch_statistics_counted
from ..pytrees.open import copy_tensors, map_tensors, spec_of
from ..pytrees.unread import open_result
from ..torch_internals.trees import tree_leaves
from .recorder import Operators, Recorder, Survived
from .repeated_blocks import EqualBlocks
from .run_alone import check_runs_alone
from .stateful import Stateful
from .twin import twin_of
from .without_floats import without_float_values, without_its_floats, without_values

__all__ = [
    "ModelRunner",
    "cuda_devices",
    "objects_in_calls",
    "opened",
]


def cuda_devices() -> list[int]:
    """The devices whose random state a run may change: none before CUDA was used, so that it is
    not started.
    """
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []


def _uncompiled(traced: bool) -> contextlib.AbstractContextManager[Any]:
    """Runs the block with compiled modules as they were written; before anything was compiled,
    torch's compiler is not loaded.
    """
    if traced or "torch._dynamo.eval_frame" not in sys.modules:
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A method of a model, as it was watched.

    ``model`` is what is run: a twin of the ``original``, where that can be copied. ``former`` are
    attributes that the model itself overwrote while it was watched, as they were before.
    ``autocast`` is what the calls were made in: every run is, and a trace writes it into its graph.
    With ``gradients`` runs record them, as calls do whose results are others without. Runs are not
    counted here: a :class:`~onlooker.lab.lab.Lab` does that. ``copy_of`` is the model that was
    watched, where a changed copy of it was called instead. Without ``repeats`` all blocks run.
    Where there are ``changed`` arguments, a run gives them beside the result. ``keeper`` puts back
    what a run changes, and ``objects_keeper`` what it changes in the ``objects`` that watched calls
    passed and that cannot be copied: they are the user's own.
    """

    model: Any
    method: str
    signature: Signature
    former: Mapping[str, Any] = field(default_factory=dict)
    autocast: tuple[Autocast, ...] = ()
    gradients: bool = False
    repeats: EqualBlocks = field(default_factory=EqualBlocks)
    copy_of: Any = None
    changed: tuple[ChangedArgument, ...] = ()
    original: Any = None
    keeper: StateKeeper = field(default_factory=StateKeeper, compare=False)
    objects: tuple[Any, ...] = ()
    objects_keeper: StateKeeper = field(default_factory=StateKeeper, compare=False)

    @classmethod
    def of_twin(cls, model: Any, *args: Any, **options: Any) -> ModelRunner:
        """The method of a twin of the model."""
        inner = model.inner if isinstance(model, Stateful) else model
        runner = cls(model, *args, **options)
        return replace(runner, original=inner).with_new_twin()

    def with_new_twin(self) -> ModelRunner:
        """Returns the runner with a twin of the original as it is now: it may have changed since."""
        if self.original is None:
            return self
        twin = _around_twin(self.model, twin_of(self.original))
        return replace(self, model=twin, keeper=StateKeeper())

    def on_original(self) -> ModelRunner:
        """Returns the runner of the original, without a twin."""
        if self.original is None:
            return self
        model = _around_twin(self.model, self.original)
        return replace(self, model=model, keeper=StateKeeper())

    @property
    def watched(self) -> Any:
        """The model that the user has."""
        if self.original is not None:
            return self.original
        return self.model.inner if isinstance(self.model, Stateful) else self.model

    def __call__(self, arguments: Arguments) -> Any:
        """Runs the method as it is, on the arguments themselves, inside the autocast of the
        calls.
        """
        args, kwargs = as_args_kwargs(self.signature, arguments)
        result = self.within(getattr(self.model, self.method), args, kwargs)
        if not self.changed:
            return result
        parts = result if self._keeps_state else {OUTPUT: result}
        return with_changed_arguments(parts, arguments, self.changed)

    @property
    def has_parts(self) -> bool:
        """True where a result has the output of the method as one of its parts."""
        return bool(self.changed) or self._keeps_state

    @property
    def _keeps_state(self) -> bool:
        return isinstance(self.model, Stateful)

    def within(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a function inside the autocast of the calls.

        A run shares no casts with an autocast block of the user: it may be one without values.
        """
        with inside_autocast(self.autocast, keeps_casts=torch.compiler.is_exporting()):
            return function(*args, **kwargs)

    @contextlib.contextmanager
    def untouched(self, *, traced: bool = False, has_fakes: bool = True) -> Iterator[None]:
        """Inside the block the model is as before it was watched, autocast of the caller is off, and
        gradients are recorded if they shall be; on exit all of it and the random state are as they
        were.

        Compiled code runs uncompiled: torch would note each size, and soon compile no more for the
        user. When it is ``traced`` it stays compiled: ``torch.export`` brings operators such as
        ``torch.cond`` into their form by the compiler. Unless it ``has_fakes``, no tensor without values is used,
        which a function of the model could remember.

        :raises UnsupportedError: ``sharded-weights``, ``distributed-wrapper`` for a model that
            cannot be run alone
        """
        check_runs_alone(self.model)
        with (
            outside_autocast(),
            torch.inference_mode(False) if self.gradients else contextlib.nullcontext(),
            torch.set_grad_enabled(self.gradients),
            _uncompiled(traced),
            kept_state(self.model, self.former, self.keeper),
            kept_state(self.objects, {}, self.objects_keeper)
            if self.objects
            else contextlib.nullcontext(),
            contextlib.nullcontext() if traced else kept_weights(self.keeper),
            contextlib.nullcontext() if traced else batch_statistics_counted(),
            without_remembered_fakes(self.model) if has_fakes else contextlib.nullcontext(),
            torch.random.fork_rng(devices=cuda_devices()),
        ):
            self.repeats.remove()
            yield

    def try_out(self, arguments: Arguments, copies: Arguments | None = None) -> Result:
        """Runs the method on copies of the arguments, those that are given or new ones, and leaves
        no other trace.
        """
        copies = copy_tensors(arguments) if copies is None else copies
        leaves = tree_leaves(copies)
        is_empty = any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in leaves)
        survived = Survived() if is_empty else contextlib.nullcontext()
        with self.untouched(has_fakes=False), survived:
            return opened(self(copies))

    def try_fake(
        self,
        arguments: Arguments,
        within: contextlib.AbstractContextManager[Any] | None = None,
    ) -> Result:
        """Runs the method on tensors without values, inside a block that looks at the run: the result
        has shapes only, at next to no cost.
        """
        with self._without_values(arguments) as inputs, within or contextlib.nullcontext():
            return opened(self(inputs))

    def try_without_floats(self, arguments: Arguments) -> Result:
        """Runs the method on tensors of which only ints have values: what it decides and refuses by
        ids, masks and positions is as with all values.
        """
        with self.untouched(), without_float_values() as mode:
            return opened(self(map_tensors(partial(without_its_floats, mode), arguments)))

    def try_shapes(self, arguments: Arguments) -> Result:
        """Runs the method on tensors without values; the one leaf has its operators, each with the
        shapes that it gave.
        """
        with self._without_values(arguments) as inputs, Recorder() as run:
            self(inputs)
        steps = tuple((str(func), _shapes_of(result)) for func, _, _, result in run.steps)
        return Tree(Structure(LEAF), (steps,))

    def try_operators(self, arguments: Arguments) -> Result:
        """Runs the method on copies of the arguments; the one leaf has its operators, each with the
        shapes that it was given, and the result of the run.
        """
        copies = copy_tensors(arguments)
        with self.untouched(has_fakes=False):
            with Operators() as run:
                result = self(copies)
            return Tree(Structure(LEAF), ((tuple(run.names), opened(result)),))

    @contextlib.contextmanager
    def _without_values(self, arguments: Arguments) -> Iterator[Arguments]:
        """Inside the block tensors have no values; gives the arguments as such tensors."""
        with self.untouched(), without_values() as mode:
            yield map_tensors(mode.from_tensor, arguments)


def objects_in_calls(samples: Iterable[Sample]) -> tuple[Any, ...]:
    """Returns the objects in the kept calls that are neither tensors nor constants, each once."""
    leaves = (leaf for sample in samples for leaf in sample.inputs.leaves)
    found = {id(leaf): leaf for leaf in leaves if isinstance(spec_of(leaf), OpaqueSpec)}
    return tuple(found.values())


def _around_twin(model: Any, twin: Any) -> Any:
    """The twin, with its state as an argument where the model has it so."""
    return model.around(twin) if isinstance(model, Stateful) else twin


def _shapes_of(result: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def opened(result: Any) -> Result:
    """The leaves of a result, which hold nothing that was recorded for gradients."""
    tree = open_result(result)
    leaves = (leaf.detach() if _is_recorded(leaf) else leaf for leaf in tree.leaves)
    return Tree(tree.structure, tuple(leaves))


def _is_recorded(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
