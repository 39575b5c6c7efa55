"""Adapters of PEFT as an argument: one program for all of them, and for none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import EntriesError, Observers, Program, RejectedCallError, UnsupportedError, UsageError

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore:Adapter name:UserWarning")

NAMES = ("french", "german", "greek")


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 8)
        self.up, self.down = torch.nn.Linear(8, 12), torch.nn.Linear(12, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.down(torch.relu(self.up(self.words(ids))))
        return scores.mean(1)


def lora(*modules: str, **options: Any) -> Any:
    return peft.LoraConfig(target_modules=list(modules), init_lora_weights=False, **options)


def adapted() -> Any:
    """A model with three adapters of other ranks, scalings and layers."""
    torch.manual_seed(0)
    model = peft.get_peft_model(Classifier(), lora("up", r=2), adapter_name="french")
    model.add_adapter("german", lora("up", "down", r=4, lora_alpha=16))
    model.add_adapter("greek", lora("down", r=3, lora_alpha=1))
    return model.eval().requires_grad_(False)


def use(model: Any, name: str, *sizes: int) -> torch.Tensor:
    ids = torch.arange(sizes[0] * sizes[1]).reshape(sizes) % 20
    if name == "none":
        with model.disable_adapter():
            scores: torch.Tensor = model(ids)
            return scores
    model.set_adapter(name)
    with_one: torch.Tensor = model(ids)
    return with_one


def watched(model: Any) -> Observers:
    with onlooker.observe(model=model, adapters=True, store_n_calls=4) as observers:
        for name, *sizes in (("french", 2, 5), ("german", 3, 4), ("greek", 1, 6), ("none", 4, 3)):
            use(model, name, *sizes)
    return observers


@pytest.fixture(scope="module")
def exported() -> tuple[Any, Program]:
    model = adapted()
    return model, watched(model).export()["model"]


def check(model: Any, program: Program, atol: float = 1e-6) -> None:
    """Each adapter and none, passed, and as it is active in a model that runs on the program."""
    ids = torch.arange(35).reshape(5, 7) % 20
    for name in (*NAMES, "none"):
        want = use(model, name, 5, 7)
        assert torch.allclose(program(ids, weights=program.weights[name]), want, atol=atol)
        with program.installed(model) as served:
            assert torch.allclose(use(model, name, 5, 7), want, atol=atol)
        assert sum(served.calls.values()) == 1


def test_one_program_serves_three_adapters_and_none(exported: tuple[Any, Program]) -> None:
    model, program = exported
    assert list(program.weights) == [*NAMES, "none"]
    assert program.verify().verdict == "verified"
    check(model, program)
    shapes = {name: tuple(one.shape) for name, one in program.weights["french"].items()}
    assert shapes == {"up.lora_A": (4, 8), "up.lora_B": (12, 4), "down.lora_A": (4, 12), "down.lora_B": (3, 4)}
    assert not any(one.any() for one in program.weights["none"].values())
    lifted = {str(leaf.path) for leaf in program.plans[0].inputs}
    assert lifted == {"ids", *(f"weights[{name!r}]" for name in shapes)}
    assert not any("lora" in name for name in program.graphs[0].artifact.state_dict)


def test_watching_changes_nothing_of_the_model() -> None:
    model = adapted()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    watched(model).export()
    model.set_adapter("german")
    assert model.active_adapter == "german"
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_saved_program_has_a_file_for_each_adapter(exported: tuple[Any, Program], tmp_path: Path) -> None:
    model, program = exported
    program.save(tmp_path / "program")
    files = {path.name for path in (tmp_path / "program").glob("adapter_*")}
    assert files == {f"adapter_{name}.safetensors" for name in (*NAMES, "none")}
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, Program)
    check(model, loaded)
    (tmp_path / "program" / "adapter_greek.safetensors").unlink()
    with pytest.raises(onlooker.SavedFileError):
        onlooker.load(tmp_path / "program")


@pytest.mark.slow
def test_onnx_runtime_takes_the_adapters_by_itself(exported: tuple[Any, Program], tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    model, program = exported
    converted = program.to("onnx")
    converted.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, Program)
    check(model, loaded, atol=1e-5)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of each input that has a default
    session = ort.InferenceSession(tmp_path / "program" / "main.adapters.onnx", options)
    ids = (torch.arange(35).reshape(5, 7) % 20).numpy()
    for name in (*NAMES, "none"):
        adapter, run_options = ort.LoraAdapter(), ort.RunOptions()
        adapter.Load(str(tmp_path / "program" / f"adapter_{name}.onnx_adapter"))
        run_options.add_active_adapter(adapter)
        (scores,) = session.run(None, {"ids": ids}, run_options)
        assert torch.allclose(torch.from_numpy(scores), use(model, name, 5, 7), atol=1e-5)


def test_an_adapter_that_the_program_lacks_is_refused(exported: tuple[Any, Program]) -> None:
    _, program = exported
    model = adapted()
    model.add_adapter("latin", lora("up", r=2))
    with program.installed(model), pytest.raises(RejectedCallError) as refused:
        use(model, "latin", 2, 3)
    assert refused.value.slug == "no-such-adapter"
    ids = torch.zeros(1, 2, dtype=torch.long)
    model.base_model.set_adapter(["french", "greek"])
    want = model(ids)
    with program.installed(model), pytest.raises(RejectedCallError, match=r"french \+ greek"):
        model(ids)
    with program.installed(model, fallback=True) as served:
        assert torch.equal(model(ids), want)
    assert served.eager == 1


def test_calls_with_several_adapters_are_left_out_where_they_do_not_fit() -> None:
    model = adapted()
    with onlooker.observe(model=model, adapters=True) as observers:
        use(model, "french", 2, 3)
        model.base_model.set_adapter(["french", "german"])
        together = model(torch.zeros(1, 2, dtype=torch.long))
    assert together.shape == (1, 3)
    recording = observers["model"].recording()
    assert len(recording) == 1
    assert any("french + german" in text for text in recording.missed)


@pytest.mark.parametrize(
    "config",
    [
        lambda: lora("up", r=2, use_dora=True),
        lambda: lora("up", r=2, lora_bias=True),
        lambda: lora("words", r=2),
        lambda: lora("up", r=2, modules_to_save=["down"]),
        lambda: peft.IA3Config(target_modules=["up"], feedforward_modules=["up"]),
    ],
    ids=["DoRA", "bias", "embedding", "saved modules", "IA3"],
)
def test_other_adapters_are_refused(config: Callable[[], Any]) -> None:
    model = peft.get_peft_model(Classifier(), config()).eval()
    with pytest.raises(onlooker.OnlookerError) as refused:
        onlooker.observe(model=model, adapters=True)
    assert refused.value.slug in ("adapters-not-lifted", "no-adapters")


def test_a_merged_adapter_is_refused() -> None:
    model = adapted()
    model.merge_adapter(["french"])
    with pytest.raises(UnsupportedError, match="merged"):
        onlooker.observe(model=model, adapters=True)


def test_a_model_without_adapters_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        onlooker.observe(model=Classifier(), adapters=True)
    assert refused.value.slug == "no-adapters"


class Other(torch.nn.Module):
    """Layers whose adapters are more than a pair of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = torch.nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.grouped(x).flatten(2).transpose(1, 2)
        states: torch.Tensor = self.attention(rows, rows, rows, need_weights=False)[0]
        return states


def test_a_layer_of_groups_is_refused() -> None:
    model = peft.get_peft_model(Other(), lora("grouped", r=2)).eval()
    with pytest.raises(UnsupportedError) as refused:
        onlooker.observe(model=model, adapters=True)
    assert refused.value.slug == "adapters-not-lifted"


def test_a_layer_that_computes_otherwise_with_its_adapter_is_refused() -> None:
    model = peft.get_peft_model(Other(), lora("attention", r=2)).eval().requires_grad_(False)
    with onlooker.observe(model=model, adapters=True) as observers:
        model(torch.ones(2, 4, 3, 3)), model(torch.ones(3, 4, 5, 3))
    with pytest.raises(EntriesError) as refused:
        observers.export()
    error = refused.value.refusals["model"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "adapters-not-lifted"


class Counting(torch.nn.Module):
    """Reads the name of an adapter, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.up(x)
        return y * 2 if "greek" in self.up.active_adapters else y


def test_a_model_that_reads_which_adapter_is_active_is_refused() -> None:
    model = peft.get_peft_model(Counting(), lora("up", r=2), adapter_name="french")
    model.add_adapter("greek", lora("up", r=2))
    model.eval().requires_grad_(False)
    with onlooker.observe(model=model, adapters=True) as observers:
        model.set_adapter("french")
        model(torch.ones(2, 8)), model(torch.ones(3, 8))
    with pytest.raises(EntriesError) as refused:
        observers.export()
    error = refused.value.refusals["model"]
    assert isinstance(error, UnsupportedError)
    assert error.slug == "adapters-not-lifted"
    assert "greek" in str(error)
