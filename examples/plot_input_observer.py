"""
Watching a model to export it
=============================

:func:`torch.export.export` asks for two things that nobody likes to write by hand: example arguments, and
a ``dynamic_shapes`` that says which sizes may change. An ``InputObserver`` finds both by watching the
model while it is used:

#. a model called with positional tensors,
#. a model called by keyword,
#. a model with an argument that only some calls pass,
#. what torch.export makes of the answers,
#. a picture of the three steps.
"""

from __future__ import annotations

import matplotlib.patches as mpatches
import matplotlib.pyplot as plt
import torch

from onlooker import InputObserver, string_type

# %%
# 1. Positional arguments
# -----------------------
#
# The first model adds two tensors. It is used three times, each time with other sizes.


class AddModel(torch.nn.Module):
    """``x + y``, both of shape (batch, length)."""

    def forward(self, x, y):
        return x + y


model_add = AddModel()
inputs_add = [
    (torch.randn(2, 6), torch.randn(2, 6)),
    (torch.randn(3, 7), torch.randn(3, 7)),
    (torch.randn(4, 8), torch.randn(4, 8)),
]

observer_add = InputObserver()
with observer_add(
    model_add, store_n_calls=3
):  # tensors are kept for 3 calls, unless told otherwise
    for x, y in inputs_add:
        model_add(x, y)

print("Observations stored:", observer_add.num_obs())
assert observer_add.num_obs() == 3

# %%
# A size that was not the same in every call is dynamic. The calls were positional, so the answer is a tuple
# with one entry per argument.

dyn_add = observer_add.infer_dynamic_shapes()
print("Dynamic shapes:", dyn_add)

# %%
# The arguments come from the calls themselves, in the same form. ``T1s2x6`` reads: a tensor of float32
# (which is type 1 of ONNX) of shape 2 x 6.

args_add = observer_add.infer_arguments()
print("Inferred args:", string_type(args_add, with_shape=True))

# %%
# 2. Keyword arguments
# --------------------
#
# Nothing changes for a model that is called by keyword, except that the answers are dictionaries.


class LinearModel(torch.nn.Module):
    """Scores of shape (batch, out_features), and their loss when the labels are known."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.zeros(out_features))

    def forward(self, x, labels=None):
        logits = x @ self.weight.T + self.bias
        if labels is None:
            return logits
        return logits, torch.nn.functional.cross_entropy(logits, labels)


model_lin = LinearModel(8, 4)
kwargs_lin = [
    {"x": torch.randn(2, 8), "labels": torch.randint(0, 4, (2,))},
    {"x": torch.randn(5, 8), "labels": torch.randint(0, 4, (5,))},
    {"x": torch.randn(7, 8), "labels": torch.randint(0, 4, (7,))},
]

observer_lin = InputObserver()
with observer_lin(model_lin):
    for kwargs in kwargs_lin:
        model_lin(**kwargs)

print("\nObservations stored (linear):", observer_lin.num_obs())

dyn_lin = observer_lin.infer_dynamic_shapes()
print("Dynamic shapes (linear):", dyn_lin)

kwargs_inferred = observer_lin.infer_arguments()
print("Inferred kwargs:", string_type(kwargs_inferred, with_shape=True))

# %%
# The batch is dynamic in both arguments. The 8 features of ``x`` never changed: that size stays a constant.

# %%
# 3. An argument that only some calls pass
# ----------------------------------------
#
# No call shows what a mask that says nothing looks like, so ``value_if_missing`` tells the observer what
# stands in for it. Here it is a mask of no rows: an empty batch is how an absent tensor is written.


class MaskedModel(torch.nn.Module):
    """``x * mask``, or ``x`` without a mask."""

    def forward(self, x, mask=None):
        return x if mask is None else x * mask


model_masked = MaskedModel()
seq_len = 10
inputs_masked = [
    {"x": torch.randn(2, seq_len)},
    {"x": torch.randn(3, seq_len), "mask": torch.ones(3, seq_len)},
    {"x": torch.randn(4, seq_len), "mask": torch.ones(4, seq_len)},
]

observer_masked = InputObserver(value_if_missing={"mask": torch.ones(0, seq_len)})
with observer_masked(model_masked):
    for kwargs in inputs_masked:
        model_masked(**kwargs)

print("\nObservations stored (masked):", observer_masked.num_obs())

dyn_masked = observer_masked.infer_dynamic_shapes()
print("Dynamic shapes (masked):", dyn_masked)

kwargs_masked = observer_masked.infer_arguments()
print("Inferred kwargs:", string_type(kwargs_masked, with_shape=True))

# %%
# 4. What torch.export makes of them
# ----------------------------------
#
# The answers have the form that torch.export wants: a tuple goes in as ``args``, a dictionary as ``kwargs``.
# Both programs then take sizes that no call had.

exported_add = torch.export.export(model_add, args_add, dynamic_shapes=dyn_add)
x, y = torch.randn(5, 11), torch.randn(5, 11)
torch.testing.assert_close(exported_add.module()(x, y), model_add(x, y))

exported_lin = torch.export.export(model_lin, (), kwargs=kwargs_inferred, dynamic_shapes=dyn_lin)
new = {"x": torch.randn(9, 8), "labels": torch.randint(0, 4, (9,))}
torch.testing.assert_close(exported_lin.module()(**new), model_lin(**new))

# %%
# 5. The three steps in one picture
# ---------------------------------

STEPS = (
    ("1. Observe", "#dce9f5", "#4c72b0", ("model(x1, y1)", "model(x2, y2)", "model(x3, y3)")),
    ("2. Analyse", "#fde8d8", "#dd8452", ("infer_dynamic_shapes()", "infer_arguments()")),
    (
        "3. Export",
        "#d5ecd4",
        "#3a8a3a",
        ("torch.export.export(", "  model, args,", "  dynamic_shapes=dyn)"),
    ),
)
WIDTH, GAP = 3.6, 0.4

fig, ax = plt.subplots(figsize=(9, 3.5))
ax.set_xlim(0, len(STEPS) * (WIDTH + GAP))
ax.set_ylim(0, 5)
ax.axis("off")
ax.set_title("InputObserver workflow", fontsize=12)

for position, (title, fill, edge, lines) in enumerate(STEPS):
    left = GAP / 2 + position * (WIDTH + GAP)
    box = mpatches.FancyBboxPatch(
        (left, 0.8),
        WIDTH,
        3.2,
        boxstyle="round,pad=0.15",
        linewidth=1.5,
        edgecolor=edge,
        facecolor=fill,
    )
    ax.add_patch(box)
    middle = left + WIDTH / 2
    ax.text(middle, 3.7, title, ha="center", va="center", fontsize=9, fontweight="bold")
    for row, line in enumerate(lines):
        ax.text(
            middle,
            3.0 - 0.55 * row,
            line,
            ha="center",
            va="center",
            fontsize=7.5,
            family="monospace",
        )
    if position:  # an arrow from the step before
        ax.annotate(
            "",
            xy=(left, 2.4),
            xytext=(left - GAP, 2.4),
            arrowprops={"arrowstyle": "->", "color": "#555555", "lw": 1.5},
        )

plt.tight_layout()
plt.show()
