"""Models inside wrappers: FSDP, DistributedDataParallel, DataParallel, torch.compile and PEFT.

Each is run with and without an observer. What cannot be exported as it stands says so, and says what can.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_faults import Delegates, described, outcome, recording_of

from onlooker import InputObserver
from onlooker.core.errors import ExportError, ObservationError, OnlookerWarning, RejectedCallError, UnsupportedError
from onlooker.hypotheses.calls.replay import find_doubt
from onlooker.observing.wrapped_model import wrapped_model


class Small(torch.nn.Module):
    """Two layers, so that a part of the model can be wrapped."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4, dtype=dtype)
        self.second = torch.nn.Linear(4, 3, dtype=dtype)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x))) * scale
        return result


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# wrappers


def fully_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = Small()
    fully_shard(model.first)
    return fully_shard(model)


def partly_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = Small()
    fully_shard(model.first)
    return model


def older(use_orig_params: bool) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(Small(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)


def older_inside() -> Any:
    return older(True).module


def tensor_parallel() -> Any:
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    return parallelize_module(Small(), init_device_mesh("cpu", (1,)), plan)


def in_ddp() -> Any:
    return torch.nn.parallel.DistributedDataParallel(Small())


def compiled() -> Any:
    return torch.compile(Small(), backend="eager")


def partly_compiled() -> Any:
    model: Any = Small()
    model.second = torch.compile(model.second, backend="eager")
    return model


WRAPPERS: dict[str, Callable[[], Any]] = {
    "fully_shard": fully_sharded,
    "fully_shard of a part": partly_sharded,
    "FullyShardedDataParallel": lambda: older(False),
    "FullyShardedDataParallel with the original parameters": lambda: older(True),
    "tensor parallelism": tensor_parallel,
    "DistributedDataParallel": in_ddp,
    "DataParallel": lambda: torch.nn.DataParallel(Small()),
    "torch.compile": compiled,
    "torch.compile of a part": partly_compiled,
}
#: calls of each, which the recording has
CALLS = 3


def whole(value: Any) -> Any:
    """A tensor of which a process may have a part, as one tensor."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def trained(model: Any) -> Any:
    """Results, gradients and weights of a step and two calls."""
    model(torch.ones(2, 3)).sum().backward()
    gradients = [None if weight.grad is None else whole(weight.grad) for weight in model.parameters()]
    with torch.no_grad():
        results = [model(torch.ones(4, 3), scale=2.0), model(torch.full((5, 3), 0.5))]
    state = {name: whole(value) for name, value in model.state_dict().items()}
    return gradients, results, list(state), list(state.values())


def standing(model: Any) -> Any:
    """What stands in the model: classes, the names of all attributes, and how many hooks there are of each kind."""
    found = []
    for path, module in model.named_modules():
        hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        found.append((path, type(module), sorted(vars(module)), hooks))
    return found


def classes(model: Any) -> Any:
    """What stands in the classes, by identity."""
    kinds = {cls for module in model.modules() for cls in type(module).__mro__}
    return {cls: [(name, id(value)) for name, value in vars(cls).items()] for cls in kinds}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.usefixtures("one_process")
def test_wrapped_models_run_as_without_us(make: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    plain = make()
    expected = outcome(trained, plain)
    assert not isinstance(expected[0], type), expected
    torch.manual_seed(1)
    model, observer = make(), InputObserver()
    before = classes(model)
    with observer(model):
        seen = outcome(trained, model)
    assert seen == expected
    assert classes(model) == before
    assert standing(model) == standing(plain)
    recording = recording_of(observer)
    assert len(recording) == CALLS
    assert recording.missed == ()
    assert [[name for name, _ in call.passed] for call in recording.calls] == [["x"], ["x", "scale"], ["x"]]


# what is spread over processes


SHARDED = {
    "fully_shard": (fully_sharded, "FSDPSmall", "first.weight is a DTensor"),
    "fully_shard of a part": (partly_sharded, "Small", "first is a FSDPLinear of torch.distributed.fsdp"),
    "FullyShardedDataParallel": (
        lambda: older(False),
        "FullyShardedDataParallel",
        "_fsdp_wrapped_module._flat_param belongs to FullyShardedDataParallel",
    ),
    "FullyShardedDataParallel with the original parameters": (
        lambda: older(True),
        "FullyShardedDataParallel",
        "_fsdp_wrapped_module.first.weight belongs to FullyShardedDataParallel",
    ),
    "inside FullyShardedDataParallel": (
        older_inside,
        "Small",
        "first.weight belongs to FullyShardedDataParallel",
    ),
    "tensor parallelism": (tensor_parallel, "Small", "first.weight is a DTensor"),
}


def watched(model: Any, *sizes: int, **options: Any) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for size in sizes or (2, 4):
            model(torch.rand(size, 3), **options)
    return observer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "name", "place"), SHARDED.values(), ids=SHARDED)
@pytest.mark.usefixtures("one_process")
def test_sharded_weights_are_refused_before_anything_is_asked(make: Any, name: str, place: str) -> None:
    """The older FSDP would not run any more after a trace."""
    model = make()
    expected = model(torch.ones(2, 3))
    observer = watched(model)
    with pytest.raises(UnsupportedError) as caught:
        observer.export()
    assert caught.value.slug == "sharded-weights"
    assert caught.value.message == f"The weights of {name} are sharded over processes: {place}."
    assert "get_model_state_dict" in caught.value.hint
    assert torch.equal(model(torch.ones(2, 3)), expected)


@pytest.mark.usefixtures("one_process")
def test_the_plans_of_a_sharded_model_come_from_its_calls_alone() -> None:
    (plan,) = watched(fully_sharded()).plans()
    assert [symbol.name for symbol in plan.symbols] == ["batch"]
    assert "nothing was probed" in " ".join(plan.notes)
    assert "are sharded over processes" in " ".join(plan.notes)


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel_is_exported_as_the_model_inside() -> None:
    wrapper = in_ddp()
    with pytest.raises(UnsupportedError) as caught:
        watched(wrapper).export()
    assert str(caught.value) == (
        "model is a DistributedDataParallel, whose forward talks to other processes, and no graph can. Watch and "
        "export model.module, and call model as before: its calls go through that one. [distributed-wrapper]"
    )
    observer = InputObserver()
    with observer(wrapper.module):
        wrapper(torch.ones(2, 3))
        wrapper(torch.ones(4, 3))
    program = observer.export()
    assert program.verify().verified
    with program.installed(wrapper.module) as served:
        torch.testing.assert_close(wrapper(torch.ones(7, 3)), program(torch.ones(7, 3)))
    assert served.calls == {"main": 1}


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel_inside_a_model_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), in_ddp())
    with pytest.raises(UnsupportedError, match=r"model\.1 is a Distributed.* Put model\.1\.module in its place"):
        watched(model).export()


TWO_PROCESSES = """
import sys, torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from onlooker import InputObserver
from onlooker.core.errors import UnsupportedError

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
make = lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
torch.manual_seed(0)
model = make()
inputs = [torch.rand(n, 3) for n in (2, 4)]
expected = [model(x).detach() for x in inputs]
fully_shard(model[0])
fully_shard(model)
assert model[0].weight.to_local().shape == (2, 3)
observer = InputObserver()
with observer(model):
    got = [model(x) for x in inputs]
assert all(torch.equal(a, b) for a, b in zip(got, expected))
got[1].sum().backward()
assert len(observer.recording()) == 2 and observer.recording().missed == ()
try:
    observer.export()
except UnsupportedError as error:
    assert error.slug == "sharded-weights", error
else:
    raise AssertionError("exported")
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
whole, observer = make(), InputObserver()
whole.load_state_dict(state)
if rank == 0:  # the other process does not take part
    with observer(whole):
        assert all(torch.equal(whole(x), y) for x, y in zip(inputs, expected))
    assert observer.export().verify().verified
dist.barrier()
dist.destroy_process_group()
print("right")
"""


@pytest.mark.slow
def test_weights_that_are_sharded_over_two_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", TWO_PROCESSES, str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [text.splitlines()[-1:] for text in said] == [["right"], ["right"]], "\n".join(said)


# what hands its arguments on


@pytest.mark.parametrize("make", [lambda: torch.nn.DataParallel(Small()), compiled], ids=["DataParallel", "compile"])
def test_arguments_of_a_wrapper_have_the_names_of_the_model_inside(make: Callable[[], Any]) -> None:
    model, observer = make(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.rand(2, 3))
        model(x=torch.rand(4, 3))
    program = observer.export()
    assert program.verify().verified
    (graph,) = program.graphs
    assert list(graph.names.values()) == ["x"]
    assert program.verify(model=model).verified
    assert program.verify(model=wrapped_model(model)[1]).verified  # type: ignore[index]
    with program.installed(model) as served:
        torch.testing.assert_close(model(torch.ones(7, 3)), program(x=torch.ones(7, 3)))
    assert served.calls == {"main": 1}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch._dynamo looks at it
@pytest.mark.parametrize("part", [False, True])
def test_nothing_is_compiled_for_the_questions_that_are_asked(part: bool) -> None:
    """After eight sizes torch would compile no more, and the user's model be slow for ever."""
    compilations = []

    def backend(graph: Any, example: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model: Any = Small()
    if part:
        model.second = torch.compile(model.second, backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    observer = watched(model, 2, 4, 5)
    before = len(compilations)
    assert before > 0
    assert observer.export().verify().verified
    assert len(compilations) == before
    with torch.no_grad():
        model(torch.rand(3, 3))
    assert len(compilations) == before


def test_the_model_inside_a_wrapper_is_found() -> None:
    small = Small()
    assert wrapped_model(small) is None
    assert wrapped_model(torch.nn.Sequential(small)) is None
    assert wrapped_model(3) is None
    assert wrapped_model(torch.nn.LazyLinear(2)) is None
    assert wrapped_model(torch.nn.DataParallel(small)) == ("module", small)
    assert wrapped_model(torch.compile(torch.nn.DataParallel(small), backend="eager")) == ("_orig_mod.module", small)
    delegates = Delegates()
    assert wrapped_model(delegates) == ("inner", delegates.inner)


def test_what_torch_refuses_of_a_wrapper_may_go_with_the_model_inside() -> None:
    class Leaves(torch.nn.Module):
        """Computes outside of torch."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.layer(x).detach().numpy() + 1)

    with pytest.raises(ExportError, match=r"This DataParallel wraps a Leaves: watch model\.module instead\.") as caught:
        watched(torch.nn.DataParallel(Leaves())).export()
    assert caught.value.slug == "export-refused"


# what stood around the calls


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Product(torch.nn.Module):
    """Takes numbers of its own dtype only."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 3, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Wide(Product):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() @ self.weight + torch.ones(3) @ self.weight


class Prepared(torch.nn.Module):
    """A hook before each call makes the weight, and one after it takes it away, as FSDP does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 3))
        self.made: Any = None
        self.register_forward_pre_hook(lambda module, args: setattr(module, "made", module.weight * 2))
        self.register_forward_hook(lambda module, args, result: setattr(module, "made", None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.made


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@dataclass
class Around:
    """A model, what stood around its calls, and what the message says about it."""

    make: Callable[[], Any]
    context: Callable[[], Any]
    error: str
    found: str


AROUND = {
    "a default dtype": Around(
        lambda: Wide(torch.float64), in_double, "expected m1", "It may be a context, a hook or a global setting."
    ),
    "a hook": Around(
        Prepared,
        contextlib.nullcontext,
        "unsupported operand type(s) for @",
        "It takes it with the hooks of the model itself.",
    ),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_calls_that_are_refused_when_they_are_run_again(around: Around) -> None:
    model, observer = around.make(), InputObserver()
    with observer(model), around.context():
        model(torch.rand(2, 3))
        model(torch.rand(4, 3))
    with pytest.raises(ExportError) as caught:
        observer.export()
    assert caught.value.slug == "replay-refused"
    assert caught.value.message.startswith(
        "The model took call 0 while it was watched, and refuses it when it is run again in private: "
    )
    assert around.error in caught.value.message
    assert caught.value.hint == (
        f"{around.found} What stands around a call is in no graph: move it into the method, or watch a module whose "
        "forward does both, the surroundings and the call."
    )


def test_one_call_that_is_refused_when_it_is_run_again_is_a_doubt() -> None:
    class Fills(torch.nn.Module):
        """Wants the first call before others."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 2 and not self.seen:
                raise ValueError("no first call")
            return x * 2

    model, observer = Fills(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
        model.seen.append(2)
        model(torch.ones(4, 3))
    model.seen.clear()
    store = observer._watcher.store()
    doubt = find_doubt(store.samples, observer._lab(store))
    assert doubt is not None
    assert doubt.slug == "outputs-depend-on-earlier-calls"
    assert "call 1, run again from the state that stood before watching, is refused (ValueError: no first" in str(doubt)


@pytest.mark.parametrize("make", [Small, Product])
def test_autocast_around_the_calls_is_in_the_graph(make: Any) -> None:
    """The second model takes no float32 outside."""
    model, observer = make(), InputObserver()
    with observer(model), autocast():
        model(torch.rand(2, 3))
        model(torch.rand(4, 3))
    program = observer.export()
    assert program.verify().verified
    assert program(torch.ones(3, 3)).dtype == torch.bfloat16


def test_autocast_around_the_export_alone_is_in_no_graph() -> None:
    model = Small()
    observer = InputObserver()
    with observer(model):
        model(torch.rand(2, 3))
        model(torch.rand(4, 3))
    x = torch.rand(3, 3)
    with autocast():
        program = observer.export()
        assert program.verify().verified
        assert program(x).dtype == torch.float32
        assert torch.equal(model(x), model(x))
    assert torch.equal(program(x), model(x))


def test_autocast_that_changes_nothing_is_not_said() -> None:
    observer = InputObserver()
    with autocast():
        model = torch.nn.ReLU()
        with observer(model):
            model(torch.rand(2, 3))
            model(torch.rand(4, 3))
        assert observer.export().verify().verified


def test_autocast_in_the_method_is_in_the_graph() -> None:
    """As the message advises."""

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Product()

        def forward(self, x: torch.Tensor) -> Any:
            with autocast():
                return self.model(x)

    program = watched(Whole()).export()
    assert program.verify().verified
    assert program(torch.ones(7, 3)).dtype == torch.bfloat16


HOOKS: dict[str, Callable[[Any], Any]] = {
    "changes the inputs": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "changes inputs by name": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: ((), {"x": args[0] * 2}), with_kwargs=True
    ),
    "casts the inputs": lambda m: m.double().register_forward_pre_hook(lambda module, args: (args[0].double(),)),
    "changes the result": lambda m: m.register_forward_hook(lambda module, args, result: result * 2),
}


@pytest.mark.parametrize("add", HOOKS.values(), ids=HOOKS)
def test_a_program_is_of_the_method_and_hooks_of_the_model_run_around_it(add: Callable[[Any], Any]) -> None:
    model = Small()
    add(model)
    program = watched(model).export()
    assert program.verify().verified
    x = torch.rand(7, 3)
    expected = model(x)
    with program.installed(model) as served:
        torch.testing.assert_close(model(x), expected)
    assert served.calls == {"main": 1}


# PEFT


#: peft 0.21 asks transformers 5.23 by a name that is going
_deprecated = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
_positions = pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning")


def of_peft(test: Callable[..., None]) -> Callable[..., None]:
    return _deprecated(_positions(test))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def lora(peft: Any, **options: Any) -> Any:
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False, **options)


ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "LoRA": lora,
    "DoRA": lambda peft: lora(peft, use_dora=True),
    "IA3": lambda peft: peft.IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    ),
    "prefix tuning": lambda peft: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prompt tuning": lambda peft: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


#: calls of the model inside: six of two generations, and two
CALLS_OF_PEFT = 8


def adapted(kind: str = "LoRA") -> Any:
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    return peft.get_peft_model(llama(), ADAPTERS[kind](peft)).eval()


def generated(model: Any) -> list[list[int]]:
    torch.manual_seed(3)
    results = []
    for shape in ((2, 5), (3, 7)):
        ids = torch.randint(1, 32, shape)
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
        results += out.tolist()
    return results


def logits(model: Any, *shapes: tuple[int, int]) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        ids = [torch.randint(1, 32, shape) for shape in shapes or ((2, 5), (3, 7))]
        return [model(input_ids=i, attention_mask=torch.ones_like(i), use_cache=False).logits for i in ids]


@of_peft
@pytest.mark.parametrize("kind", ADAPTERS)
def test_models_of_peft_run_as_without_us(kind: str) -> None:
    """On the wrapper and on the model inside at once; ``generate()`` of the wrapper calls the model inside only."""
    plain = adapted(kind)
    expected = generated(plain), described(logits(plain))
    model = adapted(kind)
    outer, inner = InputObserver(), InputObserver()
    before = classes(model)
    with outer(model), inner(wrapped_model(model)[1]):  # type: ignore[index]
        seen = generated(model), described(logits(model))
    assert seen == expected
    assert classes(model) == before
    assert standing(model) == standing(plain)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True))
    assert (len(recording_of(outer)), len(recording_of(inner))) == (2, CALLS_OF_PEFT)
    assert recording_of(outer).missed == recording_of(inner).missed == ()


@of_peft
def test_where_generate_passed_a_wrapper_the_model_inside_is_named() -> None:
    """Prefix tuning has weights of its own beside the model inside: that one alone is another program."""
    model, observer = adapted("prefix tuning"), InputObserver()
    with observer(model):
        generated(model)
    with pytest.raises(ObservationError) as caught:
        observer.export()
    text = "This PeftModelForCausalLM wraps a LlamaForCausalLM: watch model.base_model instead."
    assert caught.value.slug == "no-calls"
    assert caught.value.hint.startswith(text)


@pytest.mark.slow
@of_peft
def test_a_wrapper_with_lora_generates_on_the_program_of_the_model_inside() -> None:
    model, observer = adapted(), InputObserver()
    with pytest.warns(OnlookerWarning, match="base_model.model, a LlamaForCausalLM"), observer(model):
        expected = generated(model)
    program = observer.export()
    assert program.verify().verified
    with program.installed(model) as served:
        assert generated(model) == expected
    assert (sum(served.calls.values()), served.eager) == (6, 0)


@of_peft
@pytest.mark.slow
def test_a_model_with_lora_generates_on_its_program() -> None:
    model, observer = adapted(), InputObserver()
    inner = model.base_model.model
    with observer(inner):
        expected = generated(model)
    program = observer.export()
    assert program.verify().verified
    with program.installed(inner) as served:
        assert generated(model) == expected
    assert (sum(served.calls.values()), served.eager) == (6, 0)


@of_peft
@pytest.mark.parametrize("kind", ["LoRA", pytest.param("prompt tuning", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_model_of_peft_is_exported_as_it_is_called(kind: str) -> None:
    """Prompt tuning adds tokens before the inner model sees them: they are in the graph of the wrapper."""
    model, observer = adapted(kind), InputObserver()
    with observer(model):
        logits(model)
    program = observer.export()
    assert program.verify().verified
    (graph,) = program.graphs
    assert list(graph.names.values()) == ["input_ids", "attention_mask"]
    expected = logits(model, (4, 6))
    with program.installed(model) as served:
        torch.testing.assert_close(logits(model, (4, 6)), expected)
    assert sum(served.calls.values()) == 1


@pytest.mark.slow
@of_peft
def test_a_model_with_lora_becomes_onnx() -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model, observer = adapted(), InputObserver()
    with observer(model):
        logits(model)
    assert observer.export(to="onnx").verify().verified


def doubt_of(observer: InputObserver) -> OnlookerWarning | None:
    store = observer._watcher.store()
    return find_doubt(store.samples, observer._lab(store))


def disabled_in_between(model: Any) -> None:
    with model.disable_adapter():
        logits(model)


def another_adapter(model: Any) -> None:
    import peft

    model.add_adapter("other", lora(peft))
    model.set_adapter("other")


CHANGES: dict[str, tuple[Callable[[Any], Any], bool, bool]] = {
    "disabled in between": (disabled_in_between, True, False),
    "another one": (another_adapter, True, True),
    "merged": (lambda model: model.merge_adapter(), False, False),
    "merged for good": (lambda model: model.merge_and_unload(), False, False),
}


@of_peft
@pytest.mark.parametrize(("change", "inside", "after"), CHANGES.values(), ids=CHANGES)
@pytest.mark.one_in(2)
def test_adapters_that_change_while_the_model_is_watched_and_after(
    change: Callable[[Any], Any], inside: bool, after: bool
) -> None:
    """A program holds one state of the model: that others were seen is said, a merged adapter gives the same."""
    for during, expected in ((True, inside), (False, after)):
        model, observer = adapted(), InputObserver()
        with observer(model.base_model.model):
            logits(model)
            if during:
                change(model)
        if not during:
            change(model)
        doubt = doubt_of(observer)
        assert (doubt is not None) == expected
        assert doubt is None or doubt.slug == "outputs-depend-on-earlier-calls"


@of_peft
def test_a_program_of_a_model_with_lora_is_of_the_adapter_that_was_active() -> None:
    model = adapted()
    observer = InputObserver()
    with observer(model):
        before = logits(model)
    program = observer.export()
    with program.installed(model):
        torch.testing.assert_close(logits(model), before)
        with model.disable_adapter(), pytest.raises(RejectedCallError, match="_adapters_disabled of the model is True"):
            logits(model)
    model.merge_adapter()
    assert (
        not program.verify().verified
    )  # the graph adds the adapter, and the weights, which it shares, have it already
    model.unmerge_adapter()
    assert program.verify().verified
