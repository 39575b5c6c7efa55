"""Models that keep something in their modules from call to call: the program keeps it as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import ExportError, InputObserver, Program, RejectedCallError, UnsupportedError, UsageError

SIZES, MORE = (4, 6, 5, 3), (7, 9, 4)


class Stream(torch.nn.Module):
    """A convolution over a stream, which keeps the last two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 4, 3)
        self.frames: Any = torch.zeros(2, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.frames, x], 2)
        self.frames = whole[:, :, -2:]
        return self.conv(whole)


class BeginsWithNone(Stream):
    def __init__(self) -> None:
        super().__init__()
        self.frames = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.frames is None:
            self.frames = x.new_ones(x.shape[0], 3, 2)
        return super().forward(x)


class Statistics(torch.nn.Module):
    """Counts its steps in an int, and writes to a buffer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.mean.mul_(0.9).add_(0.1 * x.mean((0, 2)))
        return (x - self.mean[:, None]) / self.steps


class Frames(Stream):
    """Keeps its frames in a list, in a submodule, and changes the list in place."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = torch.nn.Module()
        self.frames.last = [torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: list[torch.Tensor] = self.frames.last
        whole = torch.cat([*last, x], 2)
        last.append(whole[:, :, -1:])
        last.pop(0)
        return self.conv(whole)


class Remembers(Stream):
    """Writes three attributes that are no state: a constant, the last result, and a table that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0)
        self.last: torch.Tensor | None = None
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = 2
        if x.shape[2] > len(self.table):
            self.table = torch.arange(x.shape[2]) * 1.0
        self.last = super().forward(x + self.table[: x.shape[2]]) * self.scale
        return self.last


MODELS = {
    "a tensor": (Stream, {"frames"}),
    "None at first": (BeginsWithNone, {"frames"}),
    "an int and a buffer": (Statistics, {"steps", "mean"}),
    "a list in a submodule": (Frames, {"frames.last"}),
    "beside what is no state": (Remembers, {"frames"}),
}


def inputs(sizes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    return [torch.rand(2, 3, size, generator=generator) for size in sizes]


def watched(cls: Any) -> tuple[Any, InputObserver, list[torch.Tensor]]:
    torch.manual_seed(0)
    model, observer = cls().eval(), InputObserver(state=True)
    with observer(model, store_n_calls=4), torch.no_grad():
        results = [model(x).clone() for x in inputs(SIZES)]
    return model, observer, results


def agree(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("cls", "paths"), MODELS.values(), ids=MODELS)
@pytest.mark.one_in(2)
def test_a_program_keeps_the_state_of_its_model(cls: Any, paths: set[str]) -> None:
    model, observer, seen = watched(cls)
    before = repr(vars(model)), repr(dict(model.named_buffers()))
    program = observer.export()
    tally = program.verify()
    assert tally.verified
    assert tally.counts[onlooker.core.verdict.Focus.SEQUENCE] == 8
    assert (repr(vars(model)), repr(dict(model.named_buffers()))) == before

    initial = repr(program.state)
    assert set(program.state) == paths
    for _ in range(2):
        program.reset_state()
        assert repr(program.state) == initial
        assert all(agree(program(x), y) for x, y in zip(inputs(SIZES), seen, strict=True))
    assert repr(program.state) != initial

    expected = [model(x).detach() for x in inputs(MORE)]  # the model has come as far as the program
    with program.installed(model) as served:
        assert all(agree(model(x), y) for x, y in zip(inputs(MORE), expected, strict=True))
    assert sum(served.calls.values()) == len(MORE)


def test_without_the_option_such_a_model_is_refused() -> None:
    torch.manual_seed(0)
    model, observer = Statistics().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for x in inputs(SIZES):
            model(x)
    with pytest.raises(ExportError) as caught:
        observer.export()
    assert caught.value.slug == "model-keeps-state"
    assert "steps, mean" in caught.value.message


def test_a_state_that_a_program_gets_wrong_is_found_by_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls one by one begin with the state of the model, and do not see that the program loses it."""
    _, observer, _ = watched(Stream)
    program = observer.export()
    serve = program._program.dispatcher.serve_values

    def forgets(values: dict[str, Any]) -> Any:
        graph, given, result = serve(values)
        return graph, given, {**result, "state": {"frames": result["state"]["frames"] + 1.0}}

    monkeypatch.setattr(program._program.dispatcher, "serve_values", forgets)
    tally = program.verify()
    failed = [check.label for check in tally.checks if not check.passed]
    assert not tally.verified
    assert "call 0 in sequence" in failed


def test_a_call_that_is_refused_leaves_the_state_and_runs_on_the_model_with_it() -> None:
    model, observer, _ = watched(Stream)
    program = observer.export(ranges={"x_dim_2": (3, 8)})
    for x in inputs(SIZES):
        program(x)
    before = program.state["frames"].clone()
    x, further = torch.rand(2, 3, 1), torch.rand(2, 3, 4)
    with pytest.raises(onlooker.RejectedCallError):
        program(x)
    assert torch.equal(program.state["frames"], before)

    whole = torch.cat([before, x, further], 2)
    model.frames = torch.full((2, 3, 2), 7.0)
    with program.installed(model, fallback=True) as served, torch.no_grad():
        got = torch.cat([model(x), model(further)], 2)
        assert agree(got, model.conv(whole))
    assert served.eager == 1
    assert torch.equal(model.frames, torch.full((2, 3, 2), 7.0))


LOADED = """
import sys, torch, onlooker
program = onlooker.load(sys.argv[1])
x, went_on, afresh = torch.load(sys.argv[2])
assert torch.allclose(program(x), went_on, atol=1e-5)
program.reset_state()
assert torch.allclose(program(x), afresh, atol=1e-5)
assert program.verify_saved().checks
print(sorted(program.state))
"""


def test_a_saved_program_goes_on_in_another_process(tmp_path: Path) -> None:
    model, observer, _ = watched(Statistics)
    program = observer.export()
    x = torch.rand(2, 3, 5)
    afresh = program(x)
    program.reset_state()
    for seen in inputs(SIZES):
        program(seen)
    program.save(tmp_path / "program", values=True)
    went_on = model(x).detach()
    torch.save((x, went_on, afresh), tmp_path / "values.pt")
    assert not agree(went_on, afresh)
    run = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "program"), str(tmp_path / "values.pt")],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(sorted(program.state))


def test_other_targets_keep_the_state_as_well() -> None:
    pytest.importorskip("onnxruntime")
    _, observer, seen = watched(BeginsWithNone)
    program = observer.export().to("onnx")
    assert all(agree(program(x), y) for x, y in zip(inputs(SIZES), seen, strict=True))


def test_what_the_observer_says_of_the_method_is_without_state() -> None:
    _, observer, _ = watched(Stream)
    assert len(observer.infer_dynamic_shapes()) == 1
    assert isinstance(observer.infer_arguments()[0], torch.Tensor)
    assert "state" in observer.recording().signature.names


def test_another_instance_is_verified_and_served_too() -> None:
    model, observer, seen = watched(Stream)
    program = observer.export()
    other = Stream().eval()
    other.load_state_dict(model.state_dict())
    assert program.verify(model=other, trials=12).verified
    with program.installed(other):
        assert agree(other(inputs(SIZES)[0]), seen[0])


def test_no_script_is_written_for_a_program_with_state() -> None:
    program: Program = watched(Stream)[1].export()
    with pytest.raises(UnsupportedError) as caught:
        program.code()
    assert caught.value.slug == "no-code-for-state"


def test_state_is_that_of_a_module() -> None:
    class Plain:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(UsageError) as caught, InputObserver(state=True)(Plain(), method_name="__call__"):
        pass
    assert caught.value.slug == "state-of-no-module"


def test_a_parameter_that_is_called_state_keeps_its_name() -> None:
    class Named(Stream):
        def forward(self, state: torch.Tensor) -> torch.Tensor:
            return super().forward(state)

    _, observer, seen = watched(Named)
    program = observer.export()
    assert observer.recording().signature.names == ("state", "state_2")
    assert all(agree(program(state=x), y) for x, y in zip(inputs(SIZES), seen, strict=True))


def test_several_modules_are_watched_with_their_state() -> None:
    torch.manual_seed(0)
    stream, statistics = Stream().eval(), Statistics().eval()
    with onlooker.observe(stream=stream, statistics=statistics, state=True) as observers, torch.no_grad():
        for x in inputs(SIZES):
            stream(x)
            statistics(x)
    programs = observers.export()
    assert set(programs["stream"].state) == {"frames"}
    assert set(programs["statistics"].state) == {"steps", "mean"}


class Appends(torch.nn.Module):
    """Changes the cache that it is given, and does not return it; without one it makes its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        self.calls += 1
        cache = transformers_cache() if cache is None else cache
        keys, _ = cache.update(x[:, None], x[:, None], 0)
        return keys.sum(2) + self.calls


def transformers_cache() -> Any:
    return pytest.importorskip("transformers").DynamicCache()


def test_a_cache_that_is_changed_and_not_returned_takes_its_new_state() -> None:
    model, observer = Appends().eval(), InputObserver(state=True)
    own, cache = transformers_cache(), transformers_cache()
    chunks = [torch.rand(2, size, 4) for size in (5, 1, 3)]
    with observer(model, store_n_calls=4):
        expected = [model(chunk, own) for chunk in chunks]
    program = observer.export()
    assert program.verify().verified
    with program.installed(model):
        assert all(agree(model(chunk, cache), y) for chunk, y in zip(chunks, expected, strict=True))
    assert cache.get_seq_length() == own.get_seq_length() == 9
    program.reset_state()
    assert agree(program(chunks[0], transformers_cache()), expected[0])
    with pytest.raises(onlooker.RejectedCallError, match="cache was in every observed call"):
        program(chunks[0])  # without a cache there is none that could be handed back


class ShortCallsAskWhatLongOnesKeep(torch.nn.Module):
    """Watched calls write ``last`` and give the same whatever it holds; shorter ones do not."""

    last: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last is None and x.shape[1] < 8:
            return x * 2
        self.last = x.shape[1]
        return x


def test_what_watched_calls_keep_is_tried_at_other_sizes() -> None:
    model, observer = ShortCallsAskWhatLongOnesKeep(), InputObserver()
    with observer(model):
        model(torch.rand(2, 16))
        model(torch.rand(3, 40))
    x = torch.rand(2, 5)
    try:
        program = observer.export()
        assert not program.verify().verified or program(x).equal(model(x))
    except (ExportError, RejectedCallError):
        return  # a refusal is no lie


class OpensSeldom(torch.nn.Module):
    """Keeps the last strong call, and the largest values so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.zeros(2, 4))
        self.register_buffer("largest", torch.full((1, 4), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x - self.key
        self.key = torch.where(x.mean() > 0.5, x, self.key)
        self.largest = torch.maximum(self.largest, x.abs().amax(0, keepdim=True))
        return y / self.largest


def test_a_state_that_watched_calls_left_as_it_was_is_state() -> None:
    model, observer = OpensSeldom(), InputObserver(state=True)
    with observer(model):
        for _ in range(3):
            model(torch.rand(2, 4) * 0.1)
    program = observer.export()
    assert program.verify().verified
    program.reset_state()
    fresh = OpensSeldom()
    for x in (torch.full((2, 4), 9.0), torch.rand(2, 4), torch.ones(2, 4), torch.rand(2, 4)):
        torch.testing.assert_close(program(x), fresh(x))
