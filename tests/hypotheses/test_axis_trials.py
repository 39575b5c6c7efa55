"""Large models are probed with fake tensors: how large a model is follows from its parameters, not from a clock."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from onlooker import InputObserver, Plan
from onlooker.core.experiment import FindingKind
from onlooker.hypotheses.axes.may_change import AxesThatMayChange
from onlooker.hypotheses.draft import Draft
from onlooker.hypotheses.shared_graphs import find_drafts
from onlooker.lab.lab import Lab
from unreached import Unreached


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def shapes(plan: Plan) -> dict[str, str]:
    return {leaf.path.code(): ", ".join(map(str, leaf.shape)) for leaf in plan.inputs}


def probed_as_large(model: torch.nn.Module, call: dict[str, Any]) -> tuple[Draft, Lab]:
    """What probes of the axes alone say of a model that counts as large."""
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        model(**call)
    store = observer._watcher.store()
    lab = Lab(observer._lab(store).subject, most_work=-1)
    (draft,) = find_drafts(store.recording.calls, store.samples, lab)
    for better in AxesThatMayChange(draft, store.samples, lab).drafts():
        draft = better
    return draft, lab


def real_runs(lab: Lab) -> list[FindingKind]:
    """What real runs said of the batches that fake tensors accepted."""
    return [record.finding.kind for record in lab.records if record.claim.startswith("a real run keeps")]


class Counts(torch.nn.Module):
    """Counts the runs on real tensors."""

    def __init__(self, real: Unreached) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)
        self.real = real

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, FakeTensor):
            self.real.append(x.shape)
        return self.linear(x).cumsum(1)


def test_a_large_model_is_probed_with_fake_tensors_and_confirmed_by_a_real_run() -> None:
    real = Unreached()
    draft, lab = probed_as_large(Counts(real), {"x": rand(1, 4, 6)})
    assert shapes(draft.plan()) == {"x": "batch, x_dim_1, 6"}
    assert len(lab.records) > 3
    assert [tuple(shape) for shape in real] == [(1, 4, 6), (1, 4, 6), (2, 4, 6)]
    assert any("fake tensors" in note for note in draft.notes)
    assert real_runs(lab) == [FindingKind.CONFIRMED]


def test_rows_that_come_out_otherwise_are_no_batch_for_a_large_model_either() -> None:
    draft, lab = probed_as_large(torch.nn.Softmax(dim=0), {"input": rand(3, 4)})
    found = real_runs(lab)
    assert found
    assert set(found) == {FindingKind.REFUTED}
    assert shapes(draft.plan())["input"].split(", ")[0] != "3"  # it may have another size all the same


def test_a_large_model_whose_path_depends_on_values_is_probed_a_few_times() -> None:
    class Depends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1) if float(x.sum()) > 1e9 else x.flip(1)

    draft, lab = probed_as_large(Depends(), {"x": rand(1, 4)})
    assert shapes(draft.plan()) == {"x": "batch, x_dim_1"}
    assert len(lab.records) <= 12
    assert any("refuses fake tensors (DataDependentOutputException)" in note for note in draft.notes)
