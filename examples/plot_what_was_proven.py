"""
Pictures of what was watched and what was proven
================================================

A program comes with its proof: the sizes of every call that was tried on it. This example draws them for a
model that takes another path for long texts, so that its program has two graphs.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from onlooker import InputObserver

# %%
# A model with two paths
# ----------------------
#
# Short texts get the mean of all words. Long ones, from 24 words on, get the mean of the first 24.

LONG = 24


class Summary(torch.nn.Module):
    """Words of shape (batch, length, 4) -> one row of 2 numbers for each text."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, words):
        if words.shape[1] >= LONG:
            words = words[:, :LONG]
        return self.layer(words).mean(1)


torch.manual_seed(0)
model = Summary().eval()
sizes = [(2, 5), (3, 7), (1, 12), (4, 20), (2, 40), (8, 64)]

observer = InputObserver()
with observer(model), torch.no_grad():
    for batch, length in sizes:
        model(torch.randn(batch, length, 4))

# %%
# The calls, one after the other
# ------------------------------
#
# A recording has the sizes of every call, whether its values were kept or not.

shapes = [call.inputs.leaves[0].shape for call in observer.recording().calls]
print("watched:", shapes)

figure, axes = plt.subplots(figsize=(6, 3))
for dim, name in ((0, "batch"), (1, "length")):
    axes.plot([shape[dim] for shape in shapes], marker="o", label=name)
axes.set_xlabel("call")
axes.set_ylabel("size")
axes.legend()
figure.tight_layout()

# %%
# The sizes that were tried
# -------------------------
#
# Each point is one comparison of the program with the model. The dashed line is the condition of the model: each
# side has its graph, and both sides of the line were tried.

program = observer.export()
tally = program.verify()
print("graphs:", len(program.graphs), "- verified:", tally.verified)

figure, axes = plt.subplots(figsize=(6, 4))
tried = [dict(check.sizes) for check in tally.checks if check.kind == "unseen"]
unseen = [(size["batch"], size["words_dim_1"]) for size in tried if size]
for name, marker, points in (("tried", ".", unseen), ("watched", "s", sizes)):
    batches, lengths = zip(*points, strict=True)
    axes.scatter(lengths, batches, marker=marker, label=name)
axes.axvline(LONG, linestyle="--", color="gray", label="the model branches")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_xlabel("length")
axes.set_ylabel("batch")
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3)
figure.tight_layout()
