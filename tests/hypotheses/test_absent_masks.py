"""A mask that nobody passed gets the length of what it hides, not any length that the model takes."""

import torch
from torch import nn

from onlooker import InputObserver
from onlooker.hypotheses import absent_masks


class CutsItsMask(nn.Module):
    """Reads a mask only as far as the keys go: a longer one runs too, and its end means nothing."""

    def forward(self, x, state, memory, mask: torch.Tensor | None = None):
        keys = torch.cat([state, x], dim=1)
        scores = x @ keys.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, : keys.shape[1]] == 0, -1e9)
        return scores.softmax(-1) @ keys + memory.mean(dim=1, keepdim=True)


def cut_masks():
    torch.manual_seed(0)
    observer, model = InputObserver(), CutsItsMask()
    with observer(model), torch.no_grad():
        for state, memory in ((5, 9), (6, 7), (7, 12)):
            model(*(torch.rand(2, length, 4) for length in (1, state, memory)))
    return observer


def test_a_length_that_one_call_refuses_may_be_right_for_another(monkeypatch):
    # a mask of 8 + 1 is too short for the first choice, and what the second one needs
    sizes = ((3, 8, 10, 12), (3, 5, 8, 13), (5, 7, 12, 16))
    names = ("batch", "x_dim_2", "state_dim_1", "memory_dim_1")
    choices = [dict(zip(names, row, strict=True)) for row in sizes]
    monkeypatch.setattr(absent_masks, "example_sizes", lambda plan: choices)
    (plan,) = cut_masks().plans()
    assert [str(e) for e in plan.leaf("mask").shape] == ["batch", "state_dim_1 + 1"]


def test_a_mask_is_as_long_as_the_keys_that_it_hides():
    (plan,) = cut_masks().plans()
    (mask,) = [leaf for leaf in plan.inputs if leaf.path.root == "mask"]
    assert [str(e) for e in mask.shape] == ["batch", "state_dim_1 + 1"]


# arguments that every call passed


class TakesLists(nn.Module):
    def forward(
        self,
        x,
        context_mask: list[torch.Tensor] | None = None,
        mask: torch.Tensor | list[torch.Tensor] | None = None,
    ):
        return x if mask is None else x + mask.sum()


def test_a_list_of_masks_is_no_mask():
    observer, model = InputObserver(), TakesLists()
    with observer(model):
        model(torch.rand(2, 5))
        model(torch.rand(3, 7))
    (plan,) = observer.plans()
    assert [spot.argument for spot in plan.blind] == ["mask"]


class SkipsItsEncoder(nn.Module):
    """The states of an encoder are given, so that the mask of what it would read is not read."""

    def forward(self, x, states, more, encoder_mask: torch.Tensor | None = None):
        return x + states.mean(1, keepdim=True) + more.mean(1, keepdim=True)


def test_a_mask_that_nothing_reads_costs_one_run():
    observer, model = InputObserver(), SkipsItsEncoder()
    with observer(model), torch.no_grad():
        for states, more in ((5, 9), (6, 7), (7, 12)):
            model(*(torch.rand(2, length, 4) for length in (1, states, more)))
    (plan,) = observer.plans()
    runs = [one for one in plan.probes if one.argument == "encoder_mask"]
    assert [one.finding.detail for one in runs] == ["nothing reads it"]
    assert not plan.blind
