"""The operators of a run, in their order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..proofs.operators import call_draws, ends_process
from ..repairs.trace_mode import Reader, reading
from ..torch_internals.modes import BesideCompilers, TorchDispatchMode
from ..torch_internals.operators import HigherOrderOperator
from ..torch_internals.sizes import SIZE_READS
from ..torch_internals.trees import tree_leaves

__all__ = [
    "CountedOperators",
    "OperatorMode",
    "Operators",
    "ReachedError",
    "RecordedBody",
    "Recorder",
    "Survived",
]


@dataclass(frozen=True, slots=True)
class RecordedBody:
    """The operators that the body of an operator runs: one step of a ``scan``, or a branch of a ``cond``.

    ``inputs`` are what a step has from the one before, the rows that it reads, and what stays, which is all
    that a branch has; ``outputs`` are those of the body.
    """

    recorder: Recorder
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class OperatorMode(BesideCompilers, TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block the operators of torch run through :meth:`run`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,  # torch gives it
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator; a subclass notes what it wants to know of it."""
        raise NotImplementedError


class Recorder(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block every operator is recorded, with its arguments and its result, which stay
    alive.

    Of a ``scan`` the arguments are recorded, with its first step in the keyword ``bodies``; of a ``cond`` its
    operands in the place of what stays in a scan, its ``predicate``, and both branches as ``bodies``. Other
    operators that take graphs are refused, and so are branches that a size chooses, or that read sizes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, dict[str, Any], Any]] = []
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block nothing is recorded."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator, and notes it."""
        if self._is_paused:
            return func(*args, **kwargs)
        noted: Any = args, kwargs
        if str(func) == "scan":
            noted = args[1:], {"bodies": (_first_step(*args, **kwargs),)}
        elif str(func) == "cond":
            predicate, *branches, operands = args
            if not isinstance(predicate, torch.Tensor):
                raise NotImplementedError("branches that a size chooses are not recorded")
            bodies = tuple(_recorded(branch, operands) for branch in branches)
            noted = ((), (), operands), {"predicate": predicate, "bodies": bodies}
        elif isinstance(func, HigherOrderOperator):
            raise NotImplementedError(f"{func} is not recorded")
        result = func(*args, **kwargs)
        self.steps.append((func, *noted, result))
        return result


class Operators(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block each operator is noted by its name and the shapes of its arguments; no tensor
    stays alive. Operators that take graphs are refused.

    Two runs with equal ``names`` compute by the same kernels: these depend on shapes and strides,
    not on values.

    >>> with Operators() as run:
    ...     _ = torch.ones(2).add(torch.ones(2))
    >>> [name for name, _ in run.names]
    ['aten.ones.default', 'aten.ones.default', 'aten.add.Tensor']
    """

    supports_higher_order_operators = False

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, tuple[Any, ...]]] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator, and notes it."""
        shapes = tuple(map(_layout, tree_leaves((args, kwargs))))
        self.names.append((str(func), shapes))
        return func(*args, **kwargs)


class ReachedError(Exception):
    """A run was ended on purpose; never seen by a user."""


class CountedOperators(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block operators are counted; with ``most`` the run ends after so many of them.

    >>> with CountedOperators() as run:
    ...     _ = torch.ones(2).add(torch.ones(2))
    >>> run.count
    3

    :raises ReachedError: after ``most`` operators
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.count = 0
        self._most = most

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator, and counts it."""
        if self._most is not None and self.count >= self._most:
            raise ReachedError
        self.count += 1
        return func(*args, **kwargs)


class Survived(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block an operator that would end the process raises an error instead."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator, unless it is one of these.

        :raises RuntimeError: where it is
        """
        if ends_process(func, args):
            raise RuntimeError(f"{func} ends the process for a tensor without elements")
        return func(*args, **kwargs)


def _layout(leaf: Any) -> Any:
    """Returns the layout of a tensor, and which arguments are left out: a kernel is chosen by them."""
    if not isinstance(leaf, torch.Tensor):
        return leaf is None
    if leaf.layout is not torch.strided:
        return str(leaf.layout), leaf.dtype, leaf.shape
    return leaf.dtype, leaf.shape, leaf.stride()


def _first_step(body: Any, init: Any, rows: Any, additional_inputs: Any = ()) -> RecordedBody:
    """Runs the body of a scan for the first row of what it reads."""
    step = _recorded(body, (*init, *(row.select(0, 0) for row in rows), *additional_inputs))
    shapes = [
        [tensor.shape for tensor in tensors[: len(init)]] for tensors in (step.inputs, step.outputs)
    ]
    if shapes[0] != shapes[1]:
        raise NotImplementedError("a scan whose state has another shape after a step")
    return step


def _recorded(body: Any, inputs: Sequence[Any]) -> RecordedBody:
    """Runs a body on copies of its inputs."""
    given = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)
    with Recorder() as recorder, reading(_WithoutSizes()):
        outputs = tree_leaves(body(*given))
    if any(call_draws(func, args, kwargs) for func, args, kwargs, _ in recorder.steps):
        raise NotImplementedError("a body that draws random numbers is not recorded")
    return RecordedBody(recorder, given, tuple(outputs))


class _WithoutSizes(Reader):
    """Inside the block no size of a tensor may be read: no other reader of the run sees it."""

    functions = SIZE_READS

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Raises what ends the recording."""
        raise NotImplementedError("a body that reads sizes is not recorded")
