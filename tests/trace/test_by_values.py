"""A trace that decides by real values computes them beside the symbolic ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import ExportError, InputObserver, RejectedCallError
from onlooker.trace import torch_export
from onlooker.trace.by_values import UncheckedBranchError


class Frames(nn.Module):
    """The end of each frame of some videos, in ints that torch adds up in a wider dtype by itself."""

    def forward(self, counts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if bool((scale > 5).any()):
            return scale
        ends = torch.repeat_interleave(2 * counts, counts).cumsum(0, dtype=torch.int32)
        return ends * scale.sum()


def watched() -> InputObserver:
    model, observer = Frames(), InputObserver()
    with observer(model):
        for counts in ([1, 2, 3], [2, 2], [3, 1, 2, 2]):
            model(torch.tensor(counts), torch.rand(2 * len(counts)))
    return observer


# torch 2.10 writes no assertion for a branch on values, see docs/versions.md
CHECKS_BRANCHES = not torch.__version__.startswith("2.10.")


@pytest.mark.skipif(not CHECKS_BRANCHES, reason="this torch does not check such a branch at run time")
def test_sums_in_ints_of_another_width_are_traced_beside_a_branch_on_values() -> None:
    model, program = Frames(), watched().export()
    counts, scale = torch.tensor([4, 1, 5, 2, 2]), torch.rand(10)
    torch.testing.assert_close(program(counts, scale), model(counts, scale))
    with pytest.raises(RejectedCallError):
        program(counts, 9 * torch.ones(10))


def test_a_branch_that_torch_does_not_check_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.10 says so itself; on newer ones the check is made to fail."""
    if CHECKS_BRANCHES:

        def unchecked(*_: object) -> None:
            raise UncheckedBranchError("the branch on any is not checked at run time by torch 2.10.0")

        monkeypatch.setattr(torch_export, "check_decided", unchecked)
    observer = watched()
    with pytest.raises(ExportError, match=r"The values of a call cannot decide: the branch on \w+ is not checked"):
        observer.export()
