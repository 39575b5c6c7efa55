"""Faults while watching: the result is what it would be without us, the model as it was, and what is missed is said.

Each fault is a model and a run of it; the run is made without and with an observer, and all that can be seen from
outside is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from onlooker import InputObserver
from onlooker.core.errors import UnsupportedError
from onlooker.core.recording import Recording
from onlooker.observing.bind import Binder
from onlooker.observing.copies import Copying
from onlooker.observing.ledger import Ledger, SpecNumbers
from onlooker.observing.samples import Samples
from onlooker.observing.store import Store
from onlooker.pytrees.open import open_tree
from onlooker.pytrees.reopen import StructureReader

# what is compared


def described(value: Any) -> Any:
    """A value as plain data: tensors by their numbers, everything else by its text or class."""
    leaves = []
    for leaf in open_tree(value).leaves:
        if isinstance(leaf, torch.Tensor):
            leaves.append((leaf.dtype, tuple(leaf.shape), leaf.requires_grad, leaf.detach().tolist()))
        else:
            leaves.append(leaf if isinstance(leaf, (int, float, str, bool, type(None))) else type(leaf).__name__)
    return leaves


def outcome(run: Callable[[Any], Any], model: Any) -> Any:
    """What a run gives: its result, or its exception."""
    torch.manual_seed(0)
    try:
        return described(run(model)), torch.get_rng_state().tolist()
    except BaseException as error:
        return type(error), str(error)


def traces(model: Any) -> list[Any]:
    """All that could stay behind: attributes of the model, its modules and their classes, by identity."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else [model]
    held = [obj for module in modules for obj in (module, *type(module).__mro__) if hasattr(obj, "__dict__")]
    found: list[Any] = [[(name, id(value)) for name, value in vars(obj).items()] for obj in held]
    for module in modules:
        found += [list(v.items()) for k, v in getattr(module, "__dict__", {}).items() if k.endswith("_hooks")]
    return found


def recording_of(observer: InputObserver) -> Recording:
    """The recording, also of no calls."""
    return next(iter(observer._watcher.stores.values())).recording


def check(
    make: Callable[[], Any], run: Callable[[Any], Any], calls: int, missed: str = "", **options: Any
) -> InputObserver:
    """Runs with and without an observer, and compares."""
    torch.manual_seed(1)
    plain = outcome(run, make())
    torch.manual_seed(1)
    model, observer = make(), InputObserver()
    before = traces(model)
    with observer(model, **options):
        seen = outcome(run, model)
    assert seen == plain
    assert traces(model) == before
    recording = recording_of(observer)
    assert len(recording) == calls
    assert (missed in " | ".join(recording.missed)) if missed else recording.missed == ()
    return observer


# models


class Scale(torch.nn.Module):
    """One weight, any arguments."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def forward(self, x: Any, *rest: Any, **options: Any) -> Any:
        return x * self.weight if isinstance(x, torch.Tensor) else x


class Raises(Scale):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            raise self.error
        return x


class Generates(Scale):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for i in range(3):
            yield x * i


class Waits(Scale):
    async def forward(self, x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x * self.weight


class Recurses(Scale):
    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return x if depth == 0 else self(x, depth=depth - 1) * self.weight


class Shares(torch.nn.Module):
    """Two names for one module, which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x))
        return result


class Delegates(torch.nn.Module):
    """As PEFT and FSDP wrap a model: names that it lacks are those of the model inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def one() -> torch.Tensor:
    return torch.ones(1, 2)


# hostile values


def hostile(name: str) -> Any:
    """An object that holds a tensor and whose special method raises."""

    def fails(self: Any, *args: Any) -> Any:
        raise RuntimeError(f"no {name}")

    def init(self: Any) -> None:
        object.__setattr__(self, "held", torch.ones(2))

    return type("Hostile", (), {"__init__": init, name: fails})()


class Unhashable(dict[str, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class ExitsWhenAsked:
    """Ends the program when anything about its attributes is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


class Stubborn(torch.Tensor):
    """A tensor that cannot be copied."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.clone, torch.Tensor.detach):
            raise MemoryError("no copies")
        return super().__torch_function__(func, types, args, kwargs or {})


def in_itself(kind: str) -> Any:
    value: Any = [torch.ones(1)] if kind == "list" else {"x": torch.ones(1)}
    value.append(value) if kind == "list" else value.update(me=value)
    return value


def nested(depth: int) -> Any:
    value: Any = torch.ones(1)
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, tuple[Callable[[], Any], int, str]] = {
    **{
        f"an object whose {name} raises": ((lambda name=name: hostile(name)), 2, "")
        for name in ("__eq__", "__repr__", "__len__", "__iter__", "__bool__", "__hash__", "__str__", "__getattr__")
    },
    "an object without readable attributes": (ExitsWhenAsked, 0, "before a call: RuntimeError: no attribute"),
    "a dict that cannot be iterated": (lambda: Unhashable(x=torch.ones(1)), 2, ""),
    "a list in itself": (lambda: in_itself("list"), 2, ""),
    "a dict in itself": (lambda: in_itself("dict"), 2, ""),
    "3000 lists in each other": (lambda: nested(3000), 2, ""),
    "a tensor that cannot be copied": (lambda: torch.ones(2).as_subclass(Stubborn), 2, "MemoryError: no copies"),
}


@pytest.mark.parametrize(("make", "calls", "missed"), VALUES.values(), ids=VALUES)
def test_values_that_cannot_be_read(make: Callable[[], Any], calls: int, missed: str) -> None:
    """As an argument, and as the result: the model passes it on."""
    value = make()
    model, observer = torch.nn.Identity(), InputObserver()
    before = traces(model)
    with observer(model):
        assert model(value) is value
        assert model(value) is value
    assert traces(model) == before
    recording = recording_of(observer)
    assert len(recording) == calls
    assert (missed in " | ".join(recording.missed)) if missed else recording.missed == ()


# faults in the run


@dataclass
class Fault:
    """A model, a run of it, and what is recorded of that."""

    make: Callable[[], Any]
    run: Callable[[Any], Any]
    calls: int
    missed: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def raising(model: Any) -> Any:
    model(torch.ones(1))
    with contextlib.suppress(ZeroDivisionError):
        model(torch.ones(3))
    return model(torch.ones(1, 1))


def with_hook(kind: str, error: BaseException) -> Callable[[Any], Any]:
    def fails(*args: Any) -> None:
        raise error

    def run(model: Any) -> Any:
        handle = getattr(model, f"register_forward_{kind}")(fails)
        try:
            with contextlib.suppress(ValueError):
                model(one())
        finally:
            handle.remove()
        return model(one())

    return run


def closes_a_generator(model: Any) -> Any:
    generator = model(one())
    first = next(generator)
    generator.close()
    return first, list(model(one()))


def runs_together(model: Any) -> Any:
    async def everything() -> Any:
        return await asyncio.gather(*(model(torch.full((n,), 1.0)) for n in range(1, 5)))

    return asyncio.run(everything())


def copied_by(copier: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        twin = copier(model)
        names = list(vars(twin))
        twin.weight = torch.nn.Parameter(torch.tensor(5.0))
        return model(one()), twin(one()), names, type(twin).__name__

    return run


def saved_and_loaded(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def replicated(model: Any) -> Any:
    twin = model._replicate_for_data_parallel()
    twin.weight = torch.tensor(7.0)
    return model(one()), twin(one())


def moved(model: Any) -> Any:
    results = [model(one()), model.double()(one().double()), model.half()(one().half())]
    model.to("meta")
    results.append(model(torch.ones(1, 2, device="meta")).shape)
    return results


def compiled(model: Any) -> Any:
    names = set(vars(model))
    fast = torch.compile(model, backend="eager")
    try:
        return fast(one()), fast(torch.ones(3, 2)), model(torch.ones(4, 2))
    finally:
        for name in set(vars(model)) - names:  # torch leaves notes of its own
            del vars(model)[name]


def compiled_in_place(model: Any) -> Any:
    try:
        model(one())
        model.compile(backend="eager")
        return model(torch.ones(3, 2)), model(torch.ones(4, 2))
    finally:
        model._compiled_call_impl = None


def replaces_forward(model: Any) -> Any:
    first = model(one())
    model.forward = lambda x: x + 100
    second = model(one())
    del model.forward
    return first, second, model(one())


def in_threads(model: Any) -> Any:
    results: dict[int, Any] = {}
    barrier = threading.Barrier(8)

    def work(n: int) -> None:
        barrier.wait()
        results[n] = [model(torch.full((n, i), 1.0)) for i in range(1, 9)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(results.items()))


def checkpointed(reentrant: bool) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        x = torch.ones(2, 2, requires_grad=True)
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        out.sum().backward()
        return out, x.grad, model.weight.grad

    return run


def autocast(model: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(one()), torch.mm(one(), one().T)


def transformed(model: Any) -> Any:
    parameters = dict(model.named_parameters())
    call = torch.func.functional_call
    return (
        torch.vmap(model)(torch.ones(3, 2)),
        torch.func.grad(lambda p: call(model, p, (one(),)).sum())(parameters),
        torch.func.jvp(model, (one(),), (one(),)),
        torch.vmap(torch.func.grad(lambda x: model(x).sum()))(torch.ones(3, 2)),
        model(one()),
    )


def traced(model: Any) -> Any:
    scripted = torch.jit.trace(model, (one(),))
    graph = make_fx(model)(one())
    return scripted(torch.full((1, 2), 3.0)), str(scripted.code), graph.code


def symbolic(model: Any) -> Any:
    return torch.fx.symbolic_trace(model).code


def faked(model: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return tuple(model(mode.from_tensor(one())).shape)


class Counts(TorchDispatchMode):
    """Counts what runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class CountsFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def counted(mode: Any) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        with mode() as counter:
            for _ in range(5):
                model(one())
        return counter.names

    return run


FAULTS: dict[str, Fault] = {
    **{
        f"{type(error).__name__} in forward": Fault(lambda error=error: Raises(error), raising, calls)  # type: ignore[misc]
        for error, calls in (
            (ZeroDivisionError("rows"), 2),
            (KeyboardInterrupt("stop"), 1),
            (SystemExit(3), 1),
            (GeneratorExit(), 1),
            (MemoryError("full"), 1),
            (RecursionError("deep"), 1),
            (torch.OutOfMemoryError("full"), 1),
        )
    },
    "an exception in a forward hook": Fault(Scale, with_hook("hook", ValueError("hook")), 2),
    "an exception in a hook before": Fault(Scale, with_hook("pre_hook", ValueError("hook")), 1),
    "KeyboardInterrupt in a hook": Fault(Scale, with_hook("hook", KeyboardInterrupt()), 1),
    "a generator that is closed": Fault(Generates, closes_a_generator, 2),
    "asyncio": Fault(Waits, runs_together, 4),
    "copied": Fault(Scale, copied_by(copy.copy), 1),
    "deep-copied": Fault(Scale, copied_by(copy.deepcopy), 1),
    "pickled": Fault(Scale, copied_by(lambda model: pickle.loads(pickle.dumps(model))), 1),
    "saved": Fault(Scale, copied_by(saved_and_loaded), 1),
    "replicated": Fault(Scale, replicated, 1, "1 calls of replicas of the model were not seen"),
    "moved": Fault(Scale, moved, 4),
    "compiled": Fault(Scale, compiled, 1, "forward was compiled inside the block: calls of the compiled code"),
    "forward replaced and taken away": Fault(Scale, replaces_forward, 2),
    "threads": Fault(Scale, in_threads, 64),
    "checkpointing": Fault(Scale, checkpointed(False), 1),
    "checkpointing, reentrant": Fault(Scale, checkpointed(True), 2),
    "autocast": Fault(Scale, autocast, 1),
    "vmap, grad, jvp": Fault(Scale, transformed, 5, "exist only inside a transform of torch.func"),
    "jit.trace and make_fx": Fault(Scale, traced, 1),
    "fx.symbolic_trace": Fault(lambda: torch.nn.Linear(2, 2), symbolic, 0),
    "fake tensors": Fault(Scale, faked, 1, "its tensors are fake"),
    "a dispatch mode that counts": Fault(Scale, counted(Counts), 5),
    "a function mode that counts": Fault(Scale, counted(CountsFunctions), 5),
    "a call inside the call": Fault(Recurses, lambda model: model(one()), 3),
    "shared submodules": Fault(Shares, lambda model: model(one()), 1),
    "a wrapper that delegates": Fault(Delegates, lambda model: model(one(), key=1), 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_in_the_run(fault: Fault) -> None:
    check(fault.make, fault.run, fault.calls, fault.missed, **fault.options)


def test_a_model_compiled_in_place_runs_as_without() -> None:
    """Its calls are seen before it is compiled; the compiled code calls no wrapper."""
    model, observer = Scale(), InputObserver()
    with observer(model):
        result = compiled_in_place(model)
    assert described(result) == described(compiled_in_place(Scale()))
    assert len(recording_of(observer)) >= 1
    assert "was compiled inside the block" in recording_of(observer).missed[0]


def test_the_model_compiles_into_one_graph_inside_the_block() -> None:
    model, observer = Scale(), InputObserver()
    with observer(model):
        fast = torch.compile(model, backend="eager", fullgraph=True)
        assert fast(one()).tolist() == [[2.0, 2.0]]
        torch.export.export(model, (one(),), strict=True)
    assert len(recording_of(observer)) == 0


def test_a_compiled_model_can_be_watched_itself() -> None:
    fast, observer = torch.compile(Scale(), backend="eager"), InputObserver()
    with observer(fast):
        assert fast(one()).tolist() == [[2.0, 2.0]]
    assert len(recording_of(observer)) == 1


@pytest.mark.parametrize("cls", ["script", "trace"])
def test_a_module_of_torchscript_is_refused(cls: str) -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        scripted = torch.jit.script(Shares()) if cls == "script" else torch.jit.trace(Shares(), (one(),))
    with pytest.raises(UnsupportedError) as caught, InputObserver()(scripted):
        pass
    assert str(caught.value) == (
        f"{type(scripted).__name__} is a module of TorchScript, whose methods do not run in Python. "
        "Watch the module that it was made from. [script-module]"
    )


# several observers


def test_two_models_of_one_class_are_told_apart() -> None:
    first, second = Scale(), Scale(3.0)
    left, right = InputObserver(), InputObserver()
    with left(first), right(second):
        assert (first(one()).sum().item(), second(torch.ones(5, 2)).sum().item()) == (4.0, 30.0)
        first(one())
    assert (len(recording_of(left)), len(recording_of(right))) == (2, 1)
    assert recording_of(left).calls[0].inputs.leaves[0] != recording_of(right).calls[0].inputs.leaves[0]


@pytest.mark.parametrize("order", ["nested", "overlapping"])
@pytest.mark.parametrize("same", [False, True], ids=["two observers", "one observer twice"])
def test_several_blocks_on_one_model(order: str, same: bool) -> None:
    model, first = Scale(), InputObserver()
    second = first if same else InputObserver()
    before = traces(model)
    outer, inner = first(model), second(model)
    outer.__enter__()
    model(one())
    inner.__enter__()
    model(one())
    for block in (inner, outer) if order == "nested" else (outer, inner):
        block.__exit__(None, None, None)
        model(one())
    assert traces(model) == before
    assert recording_of(first).missed == recording_of(second).missed == ()
    lengths = (len(recording_of(first)), len(recording_of(second)))
    assert lengths == ((3, 3) if same else (3, 1) if order == "nested" else (2, 2))


def test_forward_replaced_inside_the_block_is_said() -> None:
    model, observer = Scale(), InputObserver()
    with observer(model):
        model(one())
        model.forward = lambda x: x + 100  # type: ignore[method-assign, assignment]
        assert model(one()).tolist() == [[101.0, 101.0]]
    assert model(one()).tolist() == [[101.0, 101.0]]
    assert recording_of(observer).missed == ("forward was replaced inside the block: calls after that were not seen",)


def test_a_class_that_was_replaced_inside_the_block_stays_so() -> None:
    class Changed(Scale):
        pass

    model, observer = Changed(), InputObserver()
    with observer(model):
        Changed.forward = lambda self, x: x + 100  # type: ignore[method-assign, assignment]
    assert model(one()).tolist() == [[101.0, 101.0]]
    assert "was replaced inside the block" in recording_of(observer).missed[0]


# classes of all kinds


class Slots:
    __slots__ = ("weight",)

    def __init__(self) -> None:
        self.weight = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Property:
    weight = 2.0

    @property
    def forward(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * self.weight


class Static:
    @staticmethod
    def forward(x: torch.Tensor, self: float = 2.0) -> torch.Tensor:
        return x * self


class OfClass:
    weight = 2.0

    @classmethod
    def forward(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.weight


class Partial:
    @staticmethod
    def scale(weight: float, x: torch.Tensor) -> torch.Tensor:
        return x * weight

    def __init__(self) -> None:
        self.forward = functools.partial(self.scale, 2.0)


class PartialOfClass:
    def scale(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        return x * weight

    forward = functools.partialmethod(scale, weight=2.0)


class Callables:
    class Scaling:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2.0

    forward = Scaling()


class Inherits(Slots):
    __slots__ = ()


class Guarded(torch.nn.Module):
    """Lets nobody set an attribute."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            raise AttributeError("no attributes here")
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


@pytest.mark.parametrize(
    "cls", [Slots, Property, Static, OfClass, Partial, PartialOfClass, Callables, Inherits, Guarded]
)
def test_methods_of_all_kinds(cls: Any) -> None:
    observer = check(cls, lambda model: [model.forward(x=one()), model.forward(torch.ones(3, 2))], 2)
    assert [call.passed[0][0] for call in recording_of(observer).calls] == ["x", "x"]


def test_a_method_of_the_model_inside_is_watched_through_the_wrapper() -> None:
    model, observer = Delegates(), InputObserver()
    model.inner.encode = lambda x: x * 3  # type: ignore[assignment]
    before = traces(model)
    with observer(model, method_name="encode"):
        twin = copy.deepcopy(model)
        assert model.encode(one()).tolist() == twin.encode(one()).tolist() == [[3.0, 3.0]]
    assert traces(model) == before
    assert len(recording_of(observer)) == 1


# faults of our own

OWN = [
    (Binder, "__call__"),
    (StructureReader, "open"),
    (SpecNumbers, "row"),
    (SpecNumbers, "kinds"),
    (Samples, "is_new"),
    (Samples, "may_keep"),
    (Samples, "make_room"),
    (Samples, "remember"),
    (Samples, "add"),
    (Copying, "__init__"),
    (Copying, "run"),
    (Ledger, "add"),
    (Ledger, "last_call"),
    (Store, "_copied"),
]


@pytest.mark.parametrize("error", [RuntimeError("injected"), MemoryError("injected"), RecursionError("injected")])
@pytest.mark.parametrize(("owner", "name"), OWN, ids=lambda value: getattr(value, "__name__", value))
def test_what_fails_in_our_own_code_is_not_seen(
    owner: Any, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(owner, name, fails)
    model, observer = Scale(), InputObserver()
    before = traces(model)
    with observer(model):
        assert [model(torch.ones(n)).sum().item() for n in (1, 2, 3)] == [2.0, 4.0, 6.0]
    assert traces(model) == before
    assert "injected" in " | ".join(recording_of(observer).missed)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2)], ids=repr)
@pytest.mark.parametrize(("owner", "name"), OWN, ids=lambda value: getattr(value, "__name__", value))
def test_an_interrupt_that_meets_us_is_passed_on(
    owner: Any, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was meant for the program; the block ends as always, and later calls are recorded as always."""
    model, observer = Scale(), InputObserver()
    before = traces(model)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    def interrupted() -> None:
        with monkeypatch.context() as patch, observer(model):
            patch.setattr(owner, name, fails)
            model(one())

    with pytest.raises(type(error)):
        interrupted()
    assert traces(model) == before
    seen = recording_of(observer).calls
    with observer(model):
        model(torch.ones(5))
        model(torch.ones(5))
    assert len(recording_of(observer)) == len(seen) + 2
    assert observer.num_obs() >= 2


# what was kept is of use


def test_what_was_kept_in_inference_mode_can_be_exported() -> None:
    model, observer = torch.nn.Linear(2, 3), InputObserver()
    with observer(model), torch.inference_mode():
        x = torch.ones(2, 2)
        model(x)
        model(torch.ones(4, 2))
    (sample, _) = observer._watcher.store().samples
    assert not any(leaf.is_inference() for leaf in (*sample.inputs.leaves, *sample.outputs.leaves))
    sample.arguments()["input"].requires_grad_().sum().backward()
    program = observer.export()
    torch.testing.assert_close(program(torch.ones(7, 2)), model(torch.ones(7, 2)))
