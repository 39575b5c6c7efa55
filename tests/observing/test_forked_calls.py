"""A process that forks while other threads call the model: no child hangs, and the parent says what it did not see."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, register_flattening_functions
from onlooker.core.support.locks import _living
from onlooker.observing.wrapping import hook
from onlooker.pytrees import registry

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
_LONGEST = 20


class Doubles(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def in_child(run: Callable[[], int]) -> int:
    """What ``run`` gives in a forked child, 0 to 100; 101 where it raises, 102 where it hangs."""
    child = os.fork()
    if not child:
        code = 101
        with contextlib.suppress(BaseException):
            code = run()
        os._exit(code)
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 102


@contextlib.contextmanager
def held(lock: Any, seconds: float) -> Iterator[None]:
    """Another thread holds the lock for some seconds."""
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            let_go.wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        let_go.set()
        thread.join()


def use_everything(model: Any, observer: InputObserver, program: Any) -> int:
    with observer(model):
        model(torch.ones(2, 3))
    with program.installed(model) as served:
        model(torch.ones(5, 3))
    with register_flattening_functions():
        pass
    return int(served.calls["main"])


@pytest.mark.parametrize("seconds", [0.2, 60])
@pytest.mark.one_in(2)
def test_a_child_does_not_hang_at_a_lock_that_another_thread_held(seconds: float) -> None:
    model, observer = Doubles(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
    program = observer.export()
    store = observer._watcher.stores["forward"]
    gc.collect()
    owners = [hook, registry, store, store.unrecorded, store.ledger.numbers]
    assert all(any(owner is known for known in _living()) for owner in owners)
    for owner in owners:
        with held(owner._lock, seconds):
            assert in_child(lambda: use_everything(model, observer, program)) == 1
    assert use_everything(model, observer, program) == 1


@pytest.mark.slow
def test_many_forks_under_threads_that_call() -> None:
    model, observer = Doubles(), InputObserver()
    stop = threading.Event()

    def call() -> None:
        n = 1
        while not stop.is_set():
            n = n % 50 + 1
            model(torch.ones(n, 3))

    def run() -> int:
        before = len(observer.recording())
        for n in range(60, 65):
            model(torch.ones(n, 3))
        return len(observer.recording()) - before

    with observer(model):
        model(torch.ones(1, 3))  # a recording without calls is an error
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [in_child(run) for _ in range(30)] == [5] * 30
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert observer.recording().missed == ("150 calls in forked processes were not seen",)
    assert all(call.count for call in observer.recording().calls)


def test_forks_without_calls_are_not_said() -> None:
    model, observer = Doubles(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
        assert in_child(lambda: 7) == 7
    assert observer.recording().missed == ()


def test_calls_in_a_child_alone_are_named_where_none_was_seen() -> None:
    model, observer = Doubles(), InputObserver()
    with observer(model):
        assert in_child(lambda: int(model(torch.ones(2, 3)).shape[0])) == 2
    with pytest.raises(onlooker.ObservationError, match="1 calls in forked processes were not seen"):
        observer.recording()


def test_every_lock_of_ours_is_made_for_forks() -> None:
    package = Path(onlooker.__file__).parent
    made = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("Lock", "RLock", "Condition", "Semaphore")
    ]
    assert {place.partition(":")[0] for place in made} == {"core/support/locks.py"}
