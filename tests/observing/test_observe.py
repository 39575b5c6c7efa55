"""Watching a model: everything is seen, nothing is changed, and nothing is left behind."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from onlooker import InputObserver
from onlooker.core.call import Passing
from onlooker.core.errors import ObservationError, UsageError
from onlooker.core.recording import Recording
from onlooker.observing.wrapping.hook import replaced_method


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
        """Adds."""
        return x * scale if y is None else x * scale + y

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


class Noisy(torch.nn.Module):
    """Draws random numbers, as dropout and sampling do."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"out": torch.nn.functional.dropout(x, 0.5, training=True), "noise": [torch.randn(2), 3]}


class Failing(torch.nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise self.error
        return x


def watched(model: Any, *calls: Any, **options: Any) -> InputObserver:
    """An observer that saw these calls: tuples of positional arguments or dicts of named ones."""
    observer = InputObserver()
    with observer(model, **options):
        for call in calls:
            model(**call) if isinstance(call, dict) else model(*call)
    return observer


def input_shapes(recording: Recording) -> list[list[tuple[int, ...]]]:
    return [[spec.shape for spec in call.inputs.leaves if hasattr(spec, "shape")] for call in recording.calls]


# nothing is changed


def run_noisy(model: torch.nn.Module) -> list[Any]:
    torch.manual_seed(7)
    return [model(torch.ones(3, 4)) for _ in range(5)] + [torch.get_rng_state()]


def test_results_and_random_numbers_are_the_same_with_and_without() -> None:
    model = Noisy()
    plain = run_noisy(model)
    observer = InputObserver()
    with observer(model):
        seen = run_noisy(model)
    for left, right in zip(torch_pytree.tree_leaves(plain), torch_pytree.tree_leaves(seen), strict=True):
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
    assert len(observer.recording()) == 5


def test_the_very_result_of_the_model_is_passed_on() -> None:
    result = (torch.zeros(2), {"a": [1]})

    class Constant(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            self.got = x
            return result

    model, x = Constant(), [torch.ones(1)]
    with InputObserver()(model):
        assert model(x) is result
    assert model.got is x


def test_gradients_flow_as_without() -> None:
    model = Add()
    x = torch.ones(2, requires_grad=True)
    observer = InputObserver()
    with observer(model):
        model(x, scale=3.0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert all(not t.requires_grad for outputs in observer.info.flat_outputs for t in outputs)  # type: ignore[union-attr]


# nothing is left behind


def attributes_of(model: Any) -> list[tuple[str, Any]]:
    """``vars()`` with the order of its keys; the values by identity."""
    return [(name, id(value)) for name, value in vars(model).items()]


def exits_normally(model: Any) -> None:
    with InputObserver()(model):
        model(torch.ones(1))


def raises_in_the_block(model: Any) -> None:
    with contextlib.suppress(KeyError), InputObserver()(model):
        model(torch.ones(1))
        raise KeyError("user")


def raises_in_the_call(model: Any) -> None:
    with contextlib.suppress(TypeError), InputObserver()(model):
        model("text", 2)


def is_interrupted(model: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt), InputObserver()(model):
        raise KeyboardInterrupt


def has_no_such_method(model: Any) -> None:
    with contextlib.suppress(UsageError), InputObserver()(model, method_name="nope"):
        pass


def is_watched_twice(model: Any) -> None:
    with InputObserver()(model), InputObserver()(model):
        model(torch.ones(1))


def is_watched_by_one_observer_twice(model: Any) -> None:
    observer = InputObserver()
    with observer(model), observer(model, method_name="encode"):
        model.encode(model(torch.ones(1)))


def leaves_in_the_order_of_entering(model: Any) -> None:
    first, second = InputObserver()(model), InputObserver()(model)
    first.__enter__()
    second.__enter__()
    model(torch.ones(1))
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)


WAYS = [
    exits_normally,
    raises_in_the_block,
    raises_in_the_call,
    is_interrupted,
    has_no_such_method,
    is_watched_twice,
    is_watched_by_one_observer_twice,
    leaves_in_the_order_of_entering,
]


@pytest.mark.parametrize("own", [False, True], ids=["method", "attribute"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_model_has_afterwards_what_it_had(way: Callable[[Any], None], own: bool) -> None:
    model = Add()
    if own:
        model.forward = model.encode  # type: ignore[method-assign, assignment]
        model.after = 1  # type: ignore[assignment]
    before = attributes_of(model)
    way(model)
    assert attributes_of(model) == before
    assert model(torch.full((1,), -1.0)).item() == (1.0 if own else -1.0)


@pytest.mark.parametrize("own", [False, True], ids=["method", "attribute"])
def test_a_method_that_the_user_put_on_inside_the_block_stays(own: bool) -> None:
    model = Add()
    if own:
        model.forward = model.encode  # type: ignore[method-assign, assignment]
    with InputObserver()(model):
        model.forward = lambda x: x + 5  # type: ignore[method-assign, assignment, misc]
    assert model(torch.zeros(1)).item() == 5


def test_no_wrapper_stays_where_the_user_took_the_method_away() -> None:
    model = Add()
    model.forward = model.encode  # type: ignore[method-assign, assignment]
    before = attributes_of(model)
    with InputObserver()(model):
        del model.forward
    assert attributes_of(model) in (before, [pair for pair in before if pair[0] != "forward"])


def test_the_signature_and_the_name_are_kept() -> None:
    model = Add()
    expected = inspect.signature(model.forward)
    with InputObserver()(model):
        assert inspect.signature(model.forward) == expected
        assert inspect.signature(type(model).forward).parameters.keys() == {"self", *expected.parameters}
        assert (model.forward.__name__, model.forward.__doc__) == ("forward", "Adds.")
    assert inspect.signature(model.forward) == expected


def test_any_object_with_a_method_can_be_watched() -> None:
    class Plain:
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    thing, calls = Plain(), []
    with replaced_method(thing, "run", lambda original, args, kwargs: calls.append(args) or original(*args, **kwargs)):
        assert thing.run(torch.zeros(1)).item() == 1
    assert (len(calls), vars(thing)) == (1, {})


# calls that raise


@pytest.mark.parametrize("error", [ValueError("too many rows"), KeyboardInterrupt(), StopIteration(3)], ids=repr)
def test_an_exception_of_the_call_is_passed_on_unchanged(error: BaseException) -> None:
    model, observer = Failing(error), InputObserver()
    with observer(model):
        model(torch.zeros(1))
        with pytest.raises(type(error)) as caught:
            model(torch.zeros(3))
        model(torch.zeros(2))
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert input_shapes(observer.recording()) == [[(1,)], [(2,)]]
    assert [call.index for call in observer.recording().calls] == [0, 1]
    assert observer.num_obs() == 2


def test_a_call_that_the_method_refuses_is_refused_as_without() -> None:
    model = Add()
    with pytest.raises(TypeError) as plain:
        model(torch.zeros(1), nope=1)
    observer = InputObserver()
    with observer(model), pytest.raises(TypeError) as seen:
        model(torch.zeros(1), nope=1)
    assert str(seen.value) == str(plain.value)
    assert observer.is_empty()


# what is recorded


def test_a_call_is_recorded_with_all_its_specs() -> None:
    observer = watched(Add(), (torch.zeros(2, 3),), {"x": torch.zeros(4, 3), "y": torch.zeros(3), "scale": 2.0})
    recording = observer.recording()
    assert recording.model == f"{Add.__module__}.Add"
    assert recording.method == "forward"
    assert recording.signature.names == ("x", "y", "scale")
    first, second = recording.calls
    assert {path.code(): str(spec) for path, spec in first.inputs.items()} == {"x": "float32[2, 3]"}
    assert {path.code(): str(spec) for path, spec in second.inputs.items()} == {
        "x": "float32[4, 3]",
        "y": "float32[3]",
        "scale": "2.0",
    }
    assert [str(spec) for spec in second.outputs.leaves] == ["float32[4, 3]"]
    assert first.passed == (("x", Passing.POSITIONAL),)
    assert second.passed == (("x", Passing.KEYWORD), ("y", Passing.KEYWORD), ("scale", Passing.KEYWORD))
    assert first.seconds > 0


@pytest.mark.parametrize(("n", "kept"), [(0, 0), (1, 1), (3, 3), (10, 6)])
def test_all_calls_are_recorded_and_the_first_ones_kept(n: int, kept: int) -> None:
    observer = watched(Add(), *[(torch.full((i, 2), float(i)),) for i in range(1, 7)], store_n_calls=n)
    assert input_shapes(observer.recording()) == [[(i, 2)] for i in range(1, 7)]
    assert observer.num_obs() == kept
    assert observer.info is not None
    assert [
        candidate.args[0].shape[0] if candidate.args else candidate.kwargs["x"].shape[0]
        for candidate in observer.info.inputs
    ] == list(range(1, kept + 1))
    assert [outputs[0].flatten()[0].item() for outputs in observer.info.flat_outputs] == list(
        map(float, range(1, kept + 1))
    )
    assert len(observer.info) == len(observer.info.latencies) == kept


def test_a_call_that_brings_something_new_is_kept_beyond_the_number() -> None:
    calls = [(torch.zeros(2),), (torch.zeros(3),), (torch.zeros(2), torch.ones(2)), (torch.zeros(4), torch.ones(4))]
    observer = watched(Add(), *calls, store_n_calls=1)
    assert observer.num_obs() == 1
    assert [sample.call.index for sample in observer._watcher.store().samples] == [0, 2]


def test_nothing_is_seen_before_the_first_call() -> None:
    observer = InputObserver()
    assert (observer.num_obs(), observer.is_empty(), observer.info) == (0, True, None)
    with observer(Add()):
        pass
    assert (observer.num_obs(), observer.is_empty()) == (0, True)
    assert observer.info is not None
    assert len(observer.info) == 0


def test_several_blocks_add_up() -> None:
    model, observer = Add(), InputObserver()
    for start in (1, 10):
        with observer(model, store_n_calls=2):
            for i in range(4):
                model(torch.zeros(start + i))
    assert input_shapes(observer.recording()) == [[(n,)] for n in (1, 2, 3, 4, 10, 11, 12, 13)]
    assert [sample.call.index for sample in observer._watcher.store().samples] == [0, 1, 4, 5]
    assert observer.num_obs() == 4
    model(torch.zeros(99))
    assert len(observer.recording()) == 8


def test_several_methods_are_watched_by_name() -> None:
    model, observer = Add(), InputObserver()
    with observer(model, method_name="encode"), observer(model):
        model(model.encode(torch.zeros(2)))
        model.encode(torch.zeros(3))
    assert input_shapes(observer.recording("encode")) == [[(2,)], [(3,)]]
    assert input_shapes(observer.recording("forward")) == [[(2,)]]
    assert observer.num_obs() == 3
    with pytest.raises(UsageError) as caught:
        observer.recording()
    assert str(caught.value) == (
        "Several methods were watched: encode, forward. Say which one with method_name. [which-method]"
    )


def test_nested_observers_see_the_same_calls() -> None:
    model, outer, inner = Add(), InputObserver(), InputObserver()
    with outer(model):
        model(torch.zeros(1))
        with inner(model):
            model(torch.zeros(2))
        model(torch.zeros(3))
    assert input_shapes(outer.recording()) == [[(1,)], [(2,)], [(3,)]]
    assert input_shapes(inner.recording()) == [[(2,)]]


def test_calls_of_many_threads_are_all_recorded() -> None:
    model, observer = Add(), InputObserver()
    barrier, errors = threading.Barrier(8), []

    def work(n: int) -> None:
        try:
            barrier.wait()
            for i in range(25):
                assert model(torch.full((n, i + 1), 1.0), scale=float(n)).sum().item() == n * n * (i + 1)
        except BaseException as error:
            errors.append(error)

    with observer(model, store_n_calls=10):
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    recording = observer.recording()
    assert sorted(shapes[0] for shapes in input_shapes(recording)) == sorted(
        (n, i + 1) for n in range(1, 9) for i in range(25)
    )
    assert [call.index for call in recording.calls] == list(range(200))
    assert recording.missed == ()
    assert observer.num_obs() == 10


# values are those of before the call


class Growing(torch.nn.Module):
    """Changes all its arguments in place, as caches are changed."""

    def forward(self, x: torch.Tensor, seen: list[torch.Tensor], flags: dict[str, Any]) -> Any:
        x += 1
        seen.append(x)
        flags["done"] = True
        return x


def test_what_a_call_changes_in_place_is_kept_as_it_was() -> None:
    model, observer = Growing(), InputObserver()
    x, seen, flags = torch.zeros(2), [torch.ones(1)], {"done": False}
    with observer(model):
        out = model(x, seen, flags)
    out += 10
    assert (x.tolist(), len(seen), flags) == ([11.0, 11.0], 2, {"done": True})
    (sample,) = observer._watcher.store().samples
    arguments = sample.arguments()
    assert arguments["x"].tolist() == [0.0, 0.0]
    assert [tensor.tolist() for tensor in arguments["seen"]] == [[1.0]]
    assert arguments["flags"] == {"done": False}
    assert sample.outputs.leaves[0].tolist() == [1.0, 1.0]
    assert [path.code() for path, _ in sample.call.inputs.items()] == ["x", "seen[0]", "flags['done']"]


def test_every_use_of_a_kept_call_gets_a_copy() -> None:
    observer = watched(Growing(), (torch.zeros(2), [], {}))
    (sample,) = observer._watcher.store().samples
    first = sample.arguments()
    first["x"] += 5
    first["seen"].append(1)
    assert sample.arguments()["x"].tolist() == [0.0, 0.0]
    assert sample.arguments()["seen"] == []


class Stubborn(torch.Tensor):
    """A tensor that cannot be copied."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.clone, torch.Tensor.detach):
            raise RuntimeError("no copies")
        return super().__torch_function__(func, types, args, kwargs or {})


class Unshaped(torch.Tensor):
    """A tensor that does not tell its shape."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")


def test_a_call_that_cannot_be_recorded_is_missed_and_runs_as_without(caplog: pytest.LogCaptureFixture) -> None:
    model, observer = torch.nn.Identity(), InputObserver()
    value = torch.zeros(2).as_subclass(Unshaped)
    with observer(model), caplog.at_level(logging.WARNING, logger="onlooker"):
        assert model(value) is value
        model(torch.zeros(3))
    recording = observer.recording()
    assert input_shapes(recording) == [[(3,)]]
    assert recording.missed == ("before a call: RuntimeError: no shape",)
    assert "A call of forward was not recorded" in caplog.text


class MakeStubborn(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_subclass(Stubborn)


@pytest.mark.parametrize("model", [torch.nn.Identity(), MakeStubborn()], ids=["argument", "result"])
def test_a_call_whose_values_cannot_be_copied_is_recorded_without_them(model: torch.nn.Module) -> None:
    observer = InputObserver()
    value = torch.zeros(2).as_subclass(Stubborn)
    with observer(model):
        for _ in range(9):
            assert type(model(value)) is Stubborn
    recording = observer.recording()
    assert input_shapes(recording) == [[(2,)]]
    assert len(recording) == 9
    assert observer.num_obs() == 0
    (missed,) = recording.missed
    assert missed.startswith("the values of a call were not kept: RuntimeError: no copies (")


def test_what_cannot_be_opened_is_an_opaque_leaf() -> None:
    class Thing:
        """Holds no tensor."""

    observer = watched(torch.nn.Identity(), (Thing(),))
    (call,) = observer.recording().calls
    assert [str(spec) for spec in call.inputs.leaves] == [f"<{Thing.__module__}.{Thing.__qualname__}>"]


def test_a_model_is_not_watched_while_it_is_exported() -> None:
    model, observer = Add(), InputObserver()
    with observer(model):
        program = torch.export.export(model, (torch.ones(2),))
    assert observer.is_empty()
    assert program.module()(torch.ones(2)).tolist() == [1.0, 1.0]


# errors

ADVICE = (
    " Call the model itself inside `with observer(model):`. It may be that a submodule was called instead "
    "(watch that one), that another method was (give method_name), that every call raised, or that the model "
    "was compiled before (watch the original model). [no-calls]"
)


@pytest.mark.parametrize(
    "ask",
    [
        lambda observer: observer.recording(),
        lambda observer: observer.plans(),
        lambda observer: observer.export(),
        lambda observer: observer.infer_dynamic_shapes(),
        lambda observer: observer.infer_arguments(),
    ],
    ids=["recording", "plans", "export", "infer_dynamic_shapes", "infer_arguments"],
)
def test_without_calls_an_error_names_the_method_and_what_may_have_happened(ask: Callable[[Any], Any]) -> None:
    observer = InputObserver()
    with pytest.raises(ObservationError) as before:
        ask(observer)
    assert str(before.value) == (
        "No inputs were captured. No input was captured: forward was not watched yet." + ADVICE
    )
    with observer(Add(), method_name="encode"):
        pass
    with pytest.raises(ObservationError) as after:
        ask(observer)
    assert str(after.value) == (
        "No inputs were captured. No input was captured: no call of encode has finished inside the block." + ADVICE
    )


def test_without_such_a_method_an_error_names_it() -> None:
    with pytest.raises(UsageError) as caught, InputObserver()(Add(), method_name="training"):
        pass
    assert str(caught.value) == (
        "Add does not have a method 'training'. Give the name of a method of the model as method_name. [no-such-method]"
    )
    with pytest.raises(ValueError, match="does not have a method 'nope'"), InputObserver()(Add(), method_name="nope"):
        pass


def test_an_observer_watches_one_model() -> None:
    observer = watched(Add(), (torch.zeros(1),))
    with pytest.raises(UsageError) as caught, observer(torch.nn.Identity()):
        pass
    assert str(caught.value) == (
        "This observer has watched a Add already and cannot watch another model. "
        "Make one InputObserver per model. [another-model]"
    )


def test_a_wrong_model_can_be_corrected() -> None:
    observer = InputObserver()
    with pytest.raises(UsageError), observer(Add(), method_name="nope"):
        pass
    model = torch.nn.Identity()
    with observer(model):
        model(torch.zeros(1))
    assert observer.num_obs() == 1


@pytest.mark.parametrize("n", [-1, 1.5, "3", None, True])
def test_the_number_of_calls_to_keep_is_a_whole_number(n: Any) -> None:
    model = Add()
    with pytest.raises(UsageError) as caught, InputObserver()(model, store_n_calls=n):
        pass
    assert str(caught.value) == (
        f"store_n_calls is {n!r}. Give the number of calls whose values are kept, 0 or more. [bad-store-n-calls]"
    )
    assert "forward" not in vars(model)


# transformers


def tiny(cls: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return cls(
        config(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            **({"sliding_window": 4} if config is MistralConfig else {}),
        )
    ).eval()


def generated(model: Any) -> torch.Tensor:
    torch.manual_seed(3)
    ids = torch.tensor([[1, 5, 9, 11], [1, 7, 3, 2]])
    options = {"max_new_tokens": 4, "do_sample": True, "pad_token_id": 0, "eos_token_id": None}
    tokens: torch.Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return tokens


@pytest.mark.parametrize(
    ("cls", "config"), [(LlamaForCausalLM, LlamaConfig), (MistralForCausalLM, MistralConfig)], ids=["llama", "mistral"]
)
def test_generate_is_watched_without_registration(cls: Any, config: Any) -> None:
    model = tiny(cls, config)
    plain, state = generated(model), torch.get_rng_state()
    nodes, before = dict(torch_pytree.SUPPORTED_NODES), attributes_of(model)
    observer = InputObserver()
    with observer(model):
        tokens = generated(model)
        assert nodes == torch_pytree.SUPPORTED_NODES
    assert torch.equal(plain, tokens)
    assert torch.equal(torch.get_rng_state(), state)
    assert attributes_of(model) == before
    assert nodes == torch_pytree.SUPPORTED_NODES
    recording = observer.recording()
    assert recording.missed == ()
    assert [dict(pairs)["input_ids"] for pairs in shapes_by_path(recording)] == [(2, 4), (2, 1), (2, 1), (2, 1)]
    kept = "past_key_values.layers[1].keys"
    window = 3 if config is MistralConfig else 99
    assert [dict(pairs).get(kept) for pairs in shapes_by_path(recording)] == [
        None,
        *((2, 1, min(n, window), 8) for n in (4, 5, 6)),
    ]


def shapes_by_path(recording: Recording) -> list[list[tuple[str, tuple[int, ...]]]]:
    return [
        [(path.code(), spec.shape) for path, spec in call.inputs.items() if hasattr(spec, "shape")]
        for call in recording.calls
    ]


def test_the_cache_of_a_kept_call_gives_the_result_of_that_call() -> None:
    model, observer = tiny(LlamaForCausalLM, LlamaConfig), InputObserver()
    with observer(model):
        generated(model)
    for sample in observer._watcher.store().samples:
        with torch.no_grad():
            again = model(**sample.arguments())
        expected = {path.code(): leaf for path, leaf in sample.outputs.items()}
        assert torch.equal(again.logits, expected[".logits"])
        assert torch.equal(again.past_key_values.layers[0].keys, expected[".past_key_values.layers[0].keys"])
