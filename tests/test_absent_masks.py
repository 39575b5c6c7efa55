"""A mask that nobody passed gets the length of what it hides, not any length that the model takes."""

import torch
from torch import nn

from onlooker import InputObserver


class CutsItsMask(nn.Module):
    """Reads a mask only as far as the keys go: a longer one runs too, and its end means nothing."""

    def forward(self, x, state, memory, mask: torch.Tensor | None = None):
        keys = torch.cat([state, x], dim=1)
        scores = x @ keys.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, : keys.shape[1]] == 0, -1e9)
        return scores.softmax(-1) @ keys + memory.mean(dim=1, keepdim=True)


def test_a_mask_is_as_long_as_the_keys_that_it_hides():
    observer, model = InputObserver(), CutsItsMask()
    with observer(model), torch.no_grad():
        for state, memory in ((5, 9), (6, 7), (7, 12)):
            model(torch.randn(2, 1, 4), torch.randn(2, state, 4), torch.randn(2, memory, 4))
    (plan,) = observer.plans()
    (mask,) = [leaf for leaf in plan.inputs if leaf.path.root == "mask"]
    assert [str(e) for e in mask.shape] == ["batch", "state_dim_1 + 1"]
