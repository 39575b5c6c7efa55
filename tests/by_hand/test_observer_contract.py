"""What users of torch.onnx.InputObserver, and of the observers made after it, rely on: behaviours and errors."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from onlooker import InputCandidate, InputObserver, OnlookerError, OnlookerWarning, make_dynamic_cache
from onlooker.core.call import Passing
from onlooker.observing import copies, store
from onlooker.observing.wrapping.hook import WrappedPlace
from onlooker.observing.wrapping.wrapper import Wrapper

DYN = torch.export.Dim.DYNAMIC


class Two(torch.nn.Module):
    def forward(self, x: Any = None, y: Any = None, add: bool = True) -> Any:
        if y is None:
            return x
        y = y[0] if isinstance(y, list) else y
        return y if x is None else x + y if add else x - y


class Required(torch.nn.Module):
    def forward(self, x: Any, y: Any, z: Any = None, w: Any = None) -> Any:
        return x + y


class Variadic(torch.nn.Module):
    def forward(self, a: Any, *args: Any, **kwargs: Any) -> Any:
        return a + sum(args) + sum(kwargs.values())


class Keywords(torch.nn.Module):
    def forward(self, x: Any, **kwargs: Any) -> Any:
        return x + kwargs["y"] * 2


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def watched(model: torch.nn.Module, calls: list[Any], store_n_calls: int = 3, **options: Any) -> InputObserver:
    """An observer that saw these calls: tuples, dicts, or ``(tuple, dict)``."""
    observer = InputObserver(**options)
    with observer(model, store_n_calls=store_n_calls):
        for call in calls:
            both = type(call) is tuple and len(call) == 2 and type(call[0]) is tuple
            args, kwargs = call if both else ((), call) if isinstance(call, dict) else (call, {})
            model(*args, **kwargs)
    return observer


def pairs(n: int = 3) -> list[Any]:
    return [(t(5 + i, 6 + i), t(1, 6 + i)) for i in range(n)]


# the exceptions that code catches, by type and text


def unknown_method() -> None:
    with InputObserver()(Two(), method_name="nonexistent"):
        pass


def changing_list(named: bool) -> None:
    values = [[t(7)], [t(7), t(7)]]
    watched(Two(), [{"x": t(7), "y": y} if named else (t(7), y) for y in values]).infer_dynamic_shapes()


def args_and_names() -> None:
    watched(Variadic(), [((t(5), t(5)), {"x": t(5)}), ((t(6), t(6)), {"x": t(6)})]).infer_arguments()


def changing_constant() -> None:
    watched(Two(), [{"x": t(5), "y": t(5), "add": add} for add in (True, False)]).infer_dynamic_shapes()


def missing_value(key: Any) -> None:
    model = Two()
    with InputObserver(value_if_missing={key: torch.empty(0)})(model):
        model(t(5, 6))


ERRORS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("shapes of nothing", lambda: InputObserver().infer_dynamic_shapes(), RuntimeError, "No inputs were captured."),
    ("arguments of nothing", lambda: InputObserver().infer_arguments(), RuntimeError, "No inputs were captured."),
    ("an empty block", lambda: watched(Two(), []).infer_dynamic_shapes(), RuntimeError, "No inputs were captured."),
    ("removal from nothing", lambda: InputObserver().remove_inputs(["x"]), RuntimeError, "No input was captured"),
    ("checks of nothing", lambda: InputObserver().check_discrepancies("m.onnx"), RuntimeError, "No inputs"),
    ("a named list that changes", lambda: changing_list(True), RuntimeError, "Named argument 'y' has"),
    ("a positional list that changes", lambda: changing_list(False), RuntimeError, "Positional argument 1 has"),
    ("a constant", changing_constant, RuntimeError, "Two calls were made with different constant values"),
    ("*args and names", args_and_names, RuntimeError, "neither a tuple nor a dict"),
    ("no such method", unknown_method, ValueError, "does not have a method"),
    ("arguments of text", lambda: watched(Two(), pairs(1)).infer_arguments("text"), ValueError, "Unexpected type"),  # type: ignore[arg-type]
    ("an unknown name", lambda: missing_value("nonexistent"), ValueError, "Unexpected keyword argument"),
    ("a position too far", lambda: missing_value(10), ValueError, "Unexpected keyword argument"),
    ("a position never given", lambda: missing_value(1), NotImplementedError, "Unexpected keyword argument"),
    ("a key that is no key", lambda: missing_value(1.5), TypeError, "Unexpected type"),
    (
        "*args",
        lambda: watched(Variadic(), [(t(5), t(5))]).remove_inputs(["args"]),
        ValueError,
        "Cannot remove variadic",
    ),
    (
        "**kwargs",
        lambda: watched(Keywords(), [{"x": t(5), "y": t(5)}]).remove_inputs(["kwargs"]),
        ValueError,
        "Cannot remove variadic",
    ),
    ("by hand", lambda: InputCandidate((t(2, 3),), {}, False, {}).n_aligned_tensors, RuntimeError, "not aligned"),
]


@pytest.mark.parametrize(("act", "builtin", "text"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_an_error_is_ours_and_of_the_builtin_type(act: Callable[[], Any], builtin: type[Exception], text: str) -> None:
    with pytest.raises(OnlookerError) as caught:
        act()
    assert isinstance(caught.value, builtin)
    assert text in str(caught.value)
    assert f"[{caught.value.slug}]" in str(caught.value)


def test_arguments_that_never_come_together_are_no_error() -> None:
    """Others raise here; the union of the calls is the answer."""
    observer = watched(Two(), [{"x": t(5, 6)}, {"y": t(1, 7)}, {"x": t(6, 6)}, {"y": t(1, 8)}], store_n_calls=4)
    assert observer.infer_dynamic_shapes() == {"x": {0: DYN}, "y": {1: DYN}}
    assert set(observer.infer_arguments()) == {"x", "y"}


def test_calls_that_one_graph_cannot_serve_point_to_export() -> None:
    for act in (lambda: changing_list(True), changing_constant):
        with pytest.raises(RuntimeError, match=r"observer\.export\(\) makes one graph for each"):
            act()


def test_a_position_never_given_can_be_repaired() -> None:
    model = Two()
    observer = InputObserver(value_if_missing={1: torch.empty(0, 6)})
    with pytest.raises(NotImplementedError, match="Give the value by its name, 'y'"), observer(model):
        model(t(5, 6))
    with pytest.raises(NotImplementedError):
        observer.infer_arguments()
    observer.value_if_missing = {"y": torch.empty(0, 6)}
    assert [tuple(x.shape) for x in observer.infer_arguments()] == [(5, 6), (0, 6)]


class FailsTheSecondTime(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return x * (1 // (2 - self.count))


def test_an_error_of_the_run_is_not_covered_by_one_of_ours() -> None:
    model = FailsTheSecondTime()
    with pytest.raises(ZeroDivisionError), InputObserver(value_if_missing={1: torch.empty(0)})(model):
        model(t(2), model(t(2)))


# info


def test_info_is_none_before_the_first_block_and_full_after_it() -> None:
    observer = InputObserver()
    assert observer.info is None
    assert observer.is_empty()
    model = Required()
    calls: list[Any] = [((t(5), t(5)), {}), ((t(6), t(6)), {"z": t(2), "w": t(3)})]
    expected = [model(*args, **kwargs) for args, kwargs in calls]
    with observer(model):
        for args, kwargs in calls:
            model(*args, **kwargs)
    info = observer.info
    assert info is not None
    assert len(info) == len(info.inputs) == len(info.latencies) == observer.num_obs() == 2
    assert not observer.is_empty()
    for outputs, wanted in zip(info.flat_outputs, expected, strict=True):
        assert len(outputs) == 1
        assert torch.equal(outputs[0], wanted)
    first, second = info.inputs
    assert [len(first.args), sorted(first.kwargs)] == [2, []]
    assert [len(second.args), sorted(second.kwargs)] == [2, ["w", "z"]]
    assert [len(c.flat_list) for c in info.inputs] == [2, 4]
    assert [[x is None for x in c.aligned_flat_list or []] for c in info.inputs] == [
        [False] * 2 + [True] * 2,
        [False] * 4,
    ]
    assert first.n_aligned_tensors == 4
    assert first.str_obs() == "((T1s5,T1s5),{})"
    assert all(seconds > 0 for seconds in info.latencies)
    assert info.signature_names == ["x", "y", "z", "w"]


def test_constants_of_a_call_are_told() -> None:
    info = watched(Two(), [{"x": t(5), "y": t(5), "add": False}] * 2).info
    assert info is not None
    assert info.inputs[0].cst_kwargs == {"add": False}


def test_a_candidate_may_be_made_by_hand() -> None:
    x = t(2, 3)
    candidate = InputCandidate((x, [x]), {"y": {"a": x}}, clone=True, cst_kwargs={"n": 1})
    x.zero_()
    assert len(candidate) == len(candidate.flat_list) == 3
    assert all(tensor.abs().sum() > 0 for tensor in candidate.flat_list)
    assert candidate.cst_kwargs == {"n": 1}


# remove_inputs


def test_a_removed_argument_was_never_passed() -> None:
    calls = [{"x": t(5, n), "y": t(1, n), "z": t(5, n), "w": t(1, n)} for n in (6, 7, 8)]
    observer = watched(Required(), calls)
    before = observer.recording()
    assert observer.remove_inputs(["z", "w"]) == 2
    assert observer.infer_dynamic_shapes() == {"x": {1: DYN}, "y": {1: DYN}}
    assert list(observer.infer_arguments()) == ["x", "y"]
    assert all(list(c.kwargs) == ["x", "y"] for c in observer.info.inputs)  # type: ignore[union-attr]
    assert {name for name, _ in before.calls[0].passed} == {"x", "y", "z", "w"}, "a recording is a value"
    assert observer.remove_inputs(["z"]) == 0


@pytest.mark.parametrize(
    ("names", "count", "left"),
    [
        (["nope"], 0, ["x", "y", "z"]),
        (["w"], 0, ["x", "y", "z"]),
        ([], 0, ["x", "y", "z"]),
        ([9, -1], 0, ["x", "y", "z"]),
        ([2], 1, ["x", "y"]),
        (["z", 2, "nope"], 1, ["x", "y"]),
    ],
    ids=repr,
)
def test_what_no_call_had_is_not_counted(names: list[Any], count: int, left: list[str]) -> None:
    observer = watched(Required(), [{"x": t(n), "y": t(n), "z": t(n)} for n in (5, 6)])
    assert observer.remove_inputs(names) == count
    assert list(observer.infer_dynamic_shapes()) == left


def test_positions_behind_a_removed_one_get_names() -> None:
    observer = watched(Two(), [(t(n, 2), t(n, 2)) for n in (5, 6)])
    assert observer.remove_inputs([0]) == 1
    assert observer.infer_dynamic_shapes() == {"y": {0: DYN}}
    assert observer.recording().calls[0].passed == (("y", Passing.KEYWORD),)


def test_one_keyword_of_many_is_removed() -> None:
    observer = watched(Keywords(), [{"x": t(n), "y": t(n), "z": t(2)} for n in (5, 6)])
    assert observer.remove_inputs(["z"]) == 1
    assert observer.infer_dynamic_shapes() == {"x": {0: DYN}, "kwargs": {"y": {0: DYN}}}


def test_an_argument_before_star_args_stays() -> None:
    observer = watched(Variadic(), [(t(n), t(n)) for n in (5, 6)])
    with pytest.raises(ValueError, match=r"Cannot remove 'a' from call 0: the variadic \*args stands behind it"):
        observer.remove_inputs(["a"])
    assert observer.infer_dynamic_shapes() == {"a": {0: DYN}, "args": ({0: DYN},)}


def test_the_export_goes_without_a_removed_argument() -> None:
    model = Two().eval()
    observer = watched(model, [{"x": t(n, 3), "y": t(n, 3)} for n in (4, 5)])
    observer.remove_inputs(["y"])
    program = observer.export()
    assert [leaf.path.root for leaf in program.plans[0].inputs] == ["x"]
    assert program.verify().verified


# one call


def cache_call(past: int) -> dict[str, Any]:
    return {"x": t(2, 3), "y": make_dynamic_cache([(t(2, 1, past, 4), t(2, 1, past, 4))])}


class Cached(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x


ONE_CALL = (
    "One call was watched, and nobody can know from it which axes change: {} are taken as constant. "
    "Watch a call of other sizes, give set_batch_dimension_for, or let observer.export() ask the model. [one-call]"
)


@pytest.mark.parametrize(
    ("model", "call", "axes", "shapes"),
    [
        (Two(), (t(2, 3),), "x.shape[0] and x.shape[1]", ({},)),
        (Two(), {"x": t(2), "y": [t(2)]}, "x.shape[0] and y[0].shape[0]", {"x": {}, "y": [{}]}),
        (
            Cached(),
            cache_call(5),
            "x.shape[0], x.shape[1], y.layers[0].keys.shape[0], y.layers[0].keys.shape[1], y.layers[0].keys.shape[2], "
            "y.layers[0].keys.shape[3], y.layers[0].values.shape[0], y.layers[0].values.shape[1] and 2 more",
            {"x": {}, "y": [{}, {}]},
        ),
    ],
    ids=["by position", "a list", "a cache"],
)
def test_one_call_is_answered_with_a_warning(model: torch.nn.Module, call: Any, axes: str, shapes: Any) -> None:
    observer = watched(model, [call])
    with pytest.warns(OnlookerWarning) as caught:
        assert observer.infer_dynamic_shapes() == shapes
    assert [str(w.message) for w in caught] == [ONE_CALL.format(axes)]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "options", [{"set_batch_dimension_for": True}, {"set_batch_dimension_for": {0}}, {"dim_names": True}], ids=repr
)
def test_a_user_who_says_what_changes_is_not_warned(options: Any) -> None:
    observer = watched(Two(), [(t(2, 3),)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observer.infer_dynamic_shapes(**options)
        observer.infer_arguments()


def test_a_scalar_has_no_axis_to_warn_of() -> None:
    assert watched(Two(), [(torch.tensor(1.0),)]).infer_dynamic_shapes() == ({},)


def test_one_head_is_no_sequence_because_each_step_has_one_token() -> None:
    """The sizes agree in the calls that have a cache, and the call without one has more tokens."""
    model = Cached()
    calls: list[Any] = [{"x": t(2, 7)}]
    calls += [{"x": t(2, 1), "y": make_dynamic_cache([(t(2, 1, n, 4), t(2, 1, n, 4))])} for n in (7, 8)]
    arguments = watched(model, calls).infer_arguments()
    assert arguments["x"].shape[1] > 1
    assert arguments["y"].layers[0].keys.shape[1] == 1


# **kwargs


def test_keywords_are_spelled_as_torch_wants_them_and_exported() -> None:
    model = Keywords()
    observer = watched(model, [{"x": t(n, 3), "y": t(n, 3)} for n in (4, 5)])
    assert observer.infer_dynamic_shapes() == {"x": {0: DYN}, "kwargs": {"y": {0: DYN}}}
    assert list(observer.infer_arguments()) == ["x", "y"]
    program = observer.export()
    assert program.verify().verified
    x, y = t(9, 3), t(9, 3)
    assert torch.equal(program(x, y=y), model(x, y=y))


def test_torch_refuses_keywords_beside_the_named_arguments() -> None:
    model = Keywords()
    observer = watched(model, [{"x": t(n, 3), "y": t(n, 3)} for n in (4, 5)])
    flat = {"x": {0: DYN}, "y": {0: DYN}}
    with pytest.raises(Exception, match=r"top-level keys must be the arg names \['x', 'kwargs'\]"):
        torch.export.export(model, (), observer.infer_arguments(), dynamic_shapes=flat)


# broken observers must fail


class Stateful(torch.nn.Module):
    """Changes its inputs in place, as a model does with its cache."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        result = x * 2
        x.add_(100)
        if cache is not None:
            cache.update(t(1, 1, 1, 2), t(1, 1, 1, 2), 0)
        return result


def check_observer(make: Callable[[], InputObserver]) -> None:
    """Asserts what no observer may get wrong: used with the real one, and with broken ones."""
    model = Stateful()
    before = dict(vars(model))
    observer = make()
    tensors = [torch.full((n, 3), float(n)) for n in (2, 3, 4, 5, 6)]
    cache = DynamicCache()
    with observer(model):
        for x in tensors:
            model(x, cache)
    assert dict(vars(model)) == before, "forward is not restored"
    info = observer.info
    assert info is not None
    kept = [candidate.flat_list[0] for candidate in info.inputs]
    assert [tuple(x.shape) for x in kept] == [(2, 3), (3, 3), (4, 3)], "not the first calls"
    assert [float(x[0, 0]) for x in kept] == [2, 3, 4], "inputs are kept by reference"
    assert [float(outputs[0][0, 0]) for outputs in info.flat_outputs] == [4, 6, 8], "outputs are not those of the call"
    assert [candidate.args[1].get_seq_length() for candidate in info.inputs] == [0, 1, 2], "the cache by reference"
    shapes: Any = observer.infer_dynamic_shapes()
    assert shapes == ({0: DYN}, [{2: DYN}, {2: DYN}]), "not what changed, and only that, is dynamic"
    arguments = observer.infer_arguments(1)
    assert torch.equal(arguments[0], torch.full((3, 3), 3.0)), "the arguments are not those of call 1"


def test_the_observer_holds_what_no_observer_may_get_wrong() -> None:
    check_observer(InputObserver)


@contextlib.contextmanager
def never_put_back(obj: Any, name: str, around: Any, finder: Any = None) -> Iterator[WrappedPlace]:
    original = getattr(obj, name)
    setattr(obj, name, lambda *args, **kwargs: around(original, args, kwargs))
    yield WrappedPlace(obj, name, Wrapper(None, lambda: None, lambda value: None))


class LastCalls(store.Store):
    def watch(self, original: Any, args: Any, kwargs: Any) -> Any:
        self.n_values = self.n_counted + 1
        return super().watch(original, args, kwargs)

    @property
    def samples(self) -> list[store.Sample]:
        return super().samples[-3:]


class EverythingDynamic(InputObserver):
    def infer_dynamic_shapes(self, *args: Any, **kwargs: Any) -> Any:
        return ({0: DYN, 1: DYN}, [{0: DYN, 1: DYN, 2: DYN, 3: DYN}] * 2)


class WrongArguments(InputObserver):
    def infer_arguments(self, *args: Any, **kwargs: Any) -> Any:
        return super().infer_arguments(0)


class LateOutputs(InputObserver):
    @property
    def info(self) -> Any:
        info = super().info
        if info is not None:
            info.flat_outputs[:] = [*info.flat_outputs[1:], info.flat_outputs[0]]
        return info


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], Callable[[], InputObserver]], str]] = {
    "forward not restored": (
        lambda patch: patch.setattr("onlooker.observing.observer.replaced_method", never_put_back) or InputObserver,
        "forward is not restored",
    ),
    "inputs by reference": (
        lambda patch: patch.setattr(copies.Copying, "run", lambda self: tuple(self.leaves)) or InputObserver,
        "inputs are kept by reference",
    ),
    "last calls": (
        lambda patch: patch.setattr("onlooker.observing.observer.Store", LastCalls) or InputObserver,
        "not the first calls",
    ),
    "everything dynamic": (lambda patch: EverythingDynamic, "not what changed, and only that, is dynamic"),
    "wrong values": (lambda patch: WrongArguments, "the arguments are not those of call 1"),
    "shifted outputs": (lambda patch: LateOutputs, "outputs are not those of the call"),
}


@pytest.mark.parametrize(("break_it", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_observer_is_found_out(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], Any], text: str
) -> None:
    make = break_it(monkeypatch)
    with pytest.raises(AssertionError, match=text):
        check_observer(make)
