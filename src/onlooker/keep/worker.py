"""Trials of a saved program in a process that has nothing else: a worker of an executor."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.errors import OnlookerError, UsageError
from ..model_source.user_function import check_name, load_model, name_of_function
from ..observing.state import kept_state
from ..pytrees.comparisons.digest import digest_of
from ..pytrees.open import open_arguments
from ..serve.runnable import ProgramAndModel, RunnableProgram
from ..verify.conversion import run_with
from ..verify.request import VerifyRequest
from ..verify.spread import Found, Spread, WorkerAnswer, trying
from ..verify.trials import Trial
from ..verify.verification import ruler_of, trials_of
from ..verify.verify import try_alone
from .folder import load_folder, save_folder

__all__ = ["Task", "spread_over", "try_some"]

#: the tensors of trials that a worker keeps
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a worker: the folder of the program, the function that builds the model, where
    that is looked for, what is asked, and the digest of the weights that the model has to have.
    """

    folder: str
    build: str
    directory: str
    request: VerifyRequest
    operators: tuple[str, ...]
    weights: str


@contextlib.contextmanager
def spread_over(
    program: RunnableProgram,
    report: Mapping[str, object],
    request: VerifyRequest,
    executor: Any,
    build: Any,
    model: Any,
) -> Iterator[Spread | None]:
    """Inside the block workers of the executor may try the program, which is saved for them; nothing
    without an executor.

    :raises UsageError: ``bad-worker``, ``bad-function``
    """
    if executor is None:
        yield None
        return
    if build is None or not callable(getattr(executor, "submit", None)):
        raise UsageError(
            "executor= is no executor."
            if build is not None
            else "executor= has no model to build.",
            slug="bad-worker",
            hint="Give an executor of concurrent.futures, and build='app.py:build' beside it.",
        )
    name = name_of_function(build)
    check_name(name)
    before = program.contents
    with tempfile.TemporaryDirectory(
        prefix="onlooker-verify-", ignore_cleanup_errors=True
    ) as beside:
        folder = Path(beside) / "program"
        try:
            save_folder(program, report, folder, values=True)
        finally:
            program.contents = before  # the names of these files are of no interest
        weights = digest_of_weights(program.subject_of(model).watched)
        operators = tuple(sorted(_namespaces(program)))
        asked = replace(request, metric=None)  # is measured where the tally is made
        task = Task(str(folder), name, os.getcwd(), asked, operators, weights)
        yield Spread(executor, try_some, task)


def _namespaces(program: RunnableProgram) -> set[str]:
    """The namespaces of the operators that the graphs of torch call."""
    found: set[str] = set()
    for graph in program.contents.graphs:
        if graph.target != "torch":
            continue
        for module in graph.artifact.graph_module.modules():
            nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
            found |= {node.target.namespace for node in nodes if hasattr(node.target, "namespace")}
    return found


class _Session:
    """A program and a model that a process has loaded, and the trials that come next."""

    def __init__(self, task: Task) -> None:
        with contextlib.suppress(OSError):
            os.chdir(task.directory)
        model = load_model(task.build)
        options = {"operators": task.operators} if task.operators else {}
        program = load_folder(Path(task.folder), machine_code=True, options=options)
        assert isinstance(program, RunnableProgram)
        self.tried = run_with(program, task.request.options)
        self.basis: ProgramAndModel = program.beside_model(model)
        self.request = task.request
        self.ruler = ruler_of(task.request, program.contents, program.samples)
        self._next, self._nbytes = 0, 0
        self._trials: Iterator[Trial] = iter(())
        self._known: dict[int, Trial] = {}

    def trial(self, number: int) -> Trial | None:
        """A trial by its number; as many are kept as memory allows, since the parts of a process come
        from the last one on.
        """
        if number in self._known:
            return self._known[number]
        if number < self._next or self._next == 0:
            self._trials, self._next = trials_of(self.basis, self.request), 0
        for trial in self._trials:
            if self._nbytes < _MOST_BYTES and self._next not in self._known:
                self._known[self._next] = trial
                self._nbytes += _nbytes(trial)
            self._next += 1
            if self._next > number:
                return trial
        return None


def _nbytes(trial: Trial) -> int:
    """The bytes of the tensors of a trial."""
    leaves = open_arguments(trial.arguments).leaves
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))


#: by the folder of the task
_sessions: dict[str, _Session | str] = {}


def try_some(task: Task, numbers: Sequence[int]) -> WorkerAnswer:
    """Makes the trials of some numbers; a process has one task at a time."""
    with trying():
        key = task.folder
        if key not in _sessions:
            _sessions.clear()
            _sessions[key] = _begun(task)
        session = _sessions[key]
        if isinstance(session, str):
            return WorkerAnswer(problem=session)
        trials = [(number, session.trial(number)) for number in numbers]
        numbered = [(number, trial) for number, trial in trials if trial is not None]
        subject, request = session.basis.subject, task.request
        with kept_state(subject.model, {}):
            outcomes = try_alone(
                session.tried.serve,
                subject,
                [trial for _, trial in numbered],
                atol=request.atol,
                measured=request.agreement is not None,
                ruler=session.ruler,
            )
        return WorkerAnswer(
            tuple(
                Found(number, trial.label, trial.sizes, tried)
                for (number, trial), tried in zip(numbered, outcomes, strict=True)
            )
        )


def _begun(task: Task) -> _Session | str:
    """The session of a task, or why there is none."""
    try:
        session = _Session(task)
    except OnlookerError as error:
        return f"{error.message} {error.hint}".strip()
    if digest_of_weights(session.basis.subject.watched) != task.weights:
        return f"the model that {task.build} gives there has other weights."
    return session


def digest_of_weights(model: Any) -> str:
    """Equal for models with the same parameters and buffers, in any process."""
    digest = hashlib.sha256()
    named = (
        [*model.named_parameters(), *model.named_buffers()]
        if isinstance(model, torch.nn.Module)
        else []
    )
    for name, tensor in named:
        digest.update(name.encode())
        with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
            digest.update(digest_of(tensor))
    return digest.hexdigest()
