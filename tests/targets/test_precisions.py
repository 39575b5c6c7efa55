"""One vocabulary of precisions: what each target makes of it, what it refuses, and what it is calibrated on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, ObservationError, OnlookerWarning, Program, SavedFileError
from onlooker.core.errors import ExportError, UsageError
from onlooker.core.precision import PRECISIONS
from onlooker.targets.targets import TARGETS
from recorded import written


class Seer(torch.nn.Module):
    """Convolutions up and down, products by matrices of other layouts, a tied table: ids (batch, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 48)
        self.up = torch.nn.ConvTranspose1d(48, 40, 4, stride=2)
        self.down = torch.nn.Conv1d(40, 48, 4, stride=2)
        self.matrix = torch.nn.Parameter(torch.randn(48, 48) / 7)
        self.bias = torch.nn.Parameter(torch.randn(48))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids)
        rows = rows + self.down(self.up(rows.transpose(1, 2))).transpose(1, 2)
        flat = rows.reshape(-1, 48)
        flat = torch.addmm(self.bias, flat, self.matrix) + flat @ self.matrix
        return torch.nn.functional.linear(flat, self.table.weight)


@pytest.fixture(scope="module")
def seer() -> Program:
    torch.manual_seed(0)
    model, observer = Seer().eval(), InputObserver()
    with observer(model, keep=64), torch.no_grad():
        for batch, length in ((2, 5), (3, 9), (4, 6), (6, 7)):
            model(torch.randint(0, 50, (batch, length)))
    return observer.export()


CASES = [
    (target.name, precision)
    for target in TARGETS
    if target.name in ("torch", "onnx")
    for precision in target.precisions
]


@pytest.mark.parametrize(("target", "precision"), CASES)
@pytest.mark.one_in(4)
def test_a_precision_is_verified_and_saved(seer: Program, tmp_path: Any, target: str, precision: str) -> None:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    program = seer.to(target, precision=precision)
    assert program.graphs[0].options["precision"] == precision
    assert program.verify().verdict == f"verified as {precision}"
    program.save(tmp_path / "small")
    seer.to(target).save(tmp_path / "whole")
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("small", "whole")]
    assert sizes[0] < sizes[1]
    loaded = onlooker.load(tmp_path / "small")
    ids = torch.randint(0, 50, (5, 11))
    torch.testing.assert_close(loaded(ids), program(ids), rtol=0, atol=1e-6)


class Rows(torch.nn.Module):
    """Layers whose inputs have two axes, one of them without a bias, and a square matrix that is read both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64, bias=False)
        self.both, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.both(self.down(torch.relu(self.up(x))))
        return self.head(rows @ self.both.weight)


@pytest.mark.slow
def test_layers_of_rows_have_the_bits_that_are_asked_for(tmp_path: Any) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, observer = Rows().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 3, 5, 8):
            model(torch.randn(rows, 64))
    program = observer.export()
    sizes = {}
    for precision, bits in (("int8", 8), ("int4", 4)):
        small = program.to("onnx", precision=precision)
        nodes = small.graphs[0].artifact.model.graph
        products = [node for node in nodes if node.op_type == "MatMulNBits"]
        assert [node.attributes["bits"].as_int() for node in products] == 5 * [bits]
        assert not {"Gemm", "MatMul"} & {node.op_type for node in nodes}
        assert small.verify().verdict == f"verified as {precision}"
        folder = tmp_path / precision
        small.save(folder)
        sizes[bits] = sum(file.stat().st_size for file in folder.glob("*.onnx"))
    # 42,240 weights with a scale of 4 bytes for 32 of them: 8 bits + 1, and 4 bits + 1
    assert 0.5 < sizes[4] / sizes[8] < 0.7


def test_what_is_tied_to_a_table_stays(seer: Program) -> None:
    state = seer.to("torch", precision="int8").graphs[0].artifact.state_dict
    assert state["watched.table.weight"].dtype == torch.float32
    assert state["watched.matrix_int8"].dtype == torch.int8
    assert "watched.matrix" not in state
    assert sum(tensor.nbytes for tensor in state.values()) < 0.6 * sum(
        tensor.nbytes for tensor in seer.graphs[0].artifact.state_dict.values()
    )


def test_every_target_has_names_of_the_one_vocabulary_and_one_error(seer: Program) -> None:
    known = {precision.name for precision in PRECISIONS}
    for target in TARGETS:
        assert {"int8", "int4"} <= set(target.precisions) <= known
        if target.name == "executorch":
            continue  # is installed in an environment of its own
        with pytest.raises(UsageError) as refusal:
            seer.to(target.name, precision="int3")
        assert refusal.value.message == f"The target {target.name!r} has no precision 'int3'."
        assert refusal.value.hint == f"It has {', '.join(target.precisions)}."
    with pytest.raises(UsageError, match="'torch' has no precision 'fp16'"):
        seer.to("torch", precision="fp16")


def test_a_bad_precision_is_refused_before_the_model_is_traced() -> None:
    model, observer = torch.nn.Linear(4, 2), InputObserver()
    with observer(model):
        model(torch.ones(2, 4))
    with pytest.raises(UsageError, match="'aoti' has no precision 'bf16'"):
        observer.export(to="aoti", precision="bf16")


def test_a_reduced_program_is_not_reduced_again(seer: Program) -> None:
    program = seer.to("torch", precision="int8")
    with pytest.raises(UsageError, match="already") as refusal:
        program.to("torch", precision="int4")
    assert refusal.value.slug == "not-from-torch"


def test_calls_are_divided_by_the_seed(seer: Program) -> None:
    found = [
        seer.to("torch", precision="int8-static", seed=seed).graphs[0].options["calibration"] for seed in (0, 0, 1, 2)
    ]
    assert found[0] == found[1]
    assert len(set(found)) > 1
    assert all(text.startswith("watched calls ") and text.count(",") == 1 for text in found)


def test_calls_of_the_user_are_calibrated_on(seer: Program) -> None:
    ids = torch.randint(0, 50, (3, 8))
    other = InputObserver()
    model = seer._program.watched.watched
    with other(model, keep=3), torch.no_grad():
        model(ids)
    for calls in ([{"ids": ids}], [((ids,), {})], iter([{"ids": ids}]), other):
        program = seer.to("torch", precision="int8-static", calibration=calls)
        assert program.graphs[0].options["calibration"] == "1 given calls"
    kinds = {one.kind for one in program.verify().distances}
    assert kinds == {"held-out", "unseen"}


def test_the_folder_of_a_run_is_calibrated_on(seer: Program, tmp_path: Any) -> None:
    """With the values of two methods in it, those of the program are taken."""
    model = seer._program.watched.watched
    other = torch.nn.ReLU()

    def use() -> None:
        with torch.no_grad():
            model(torch.randint(0, 50, (3, 8)))

    written(tmp_path, other, lambda: other(torch.ones(2)), values=True)
    written(tmp_path, model, use, values=True)
    for folder in (tmp_path, str(tmp_path)):
        program = seer.to("torch", precision="int8-static", calibration=folder)
        assert program.graphs[0].options["calibration"] == "1 given calls"
    with pytest.raises(SavedFileError, match="file-missing"):
        seer.to("torch", precision="int8-static", calibration="absent")


def test_calls_that_cannot_be_calibrated_on(seer: Program, tmp_path: Any) -> None:
    static: dict[str, Any] = {"precision": "int8-static"}
    for wrong in (seer.recording, b"folder", 3):
        with pytest.raises(UsageError, match=r"has no calls with values.*\[no-calibration\]"):
            seer.to("torch", **static, calibration=wrong)
    with pytest.raises(ObservationError, match="no-calls"):
        seer.to("torch", **static, calibration=[])
    with pytest.raises(UsageError, match=r"None of the 1 calls to calibrate on is one of main"):
        seer.to("torch", **static, calibration=[{"ids": torch.ones(2, 5)}])
    with pytest.raises(UsageError, match="precision='int8' is made without calls"):
        seer.to("torch", precision="int8", calibration=[{"ids": torch.ones(2, 5)}])
    seer.save(tmp_path / "out")
    with pytest.raises(UsageError, match="no values of calls to calibrate on"):
        onlooker.load(tmp_path / "out").to("torch", **static)


def test_an_activation_without_a_weight_is_no_product() -> None:
    program = onlooker.export(torch.nn.ReLU(), torch.randn(3, 4))
    with pytest.raises(ExportError, match=r"main cannot have weights of int8.*\[torch-not-quantised\]"):
        program.to("torch", precision="int8")


def watch(observer: InputObserver, model: torch.nn.Module, keep: int) -> None:
    with observer(model, keep=keep), torch.no_grad():
        for rows in range(2, 40):
            model(torch.randn(rows, 64))


def test_kept_values_are_bounded_in_number_and_bytes() -> None:
    model, observer = torch.nn.Linear(64, 2), InputObserver(max_bytes=20_000)
    with pytest.warns(OnlookerWarning, match="Not all values were kept"):
        watch(observer, model, 64)
    assert 3 < len(observer.kept_calls()) < 20
    few = InputObserver()
    watch(few, model, 5)
    assert [len(call["input"]) for call in few.kept_calls()] == [2, 3, 4, 5, 6]


def test_calls_without_gradients_are_calibrated_on_anywhere() -> None:
    class Asking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.training_only = torch.nn.Linear(8, 4), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled() and self.training_only:
                x = x + 1
            return self.layer(x)

    model, observer = Asking().eval(), InputObserver()
    with observer(model, keep=4), torch.no_grad():
        for rows in (2, 3, 4):
            model(torch.randn(rows, 8))
    program = observer.export().to("torch", precision="int8-static")
    assert program.graphs[0].options["calibration"].startswith("watched calls")
