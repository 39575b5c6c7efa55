"""
Watching a model with a transformers cache
==========================================

A language model takes more than tensors: it takes a cache of keys and values, whose class torch.export
does not know, and arguments which come in one step and not in the next. Three models, from simple to rich,
show what an ``InputObserver`` makes of that:

#. two tensors, one of which is broadcast,
#. a decoder that gets a :class:`transformers.cache_utils.DynamicCache`,
#. a model that sees an image in its first step only.
"""

from __future__ import annotations

import torch

from onlooker import InputObserver, make_dynamic_cache, register_flattening_functions, string_type

# %%
# 1. Two tensors
# --------------
#
# The batch of ``y`` is 1 in every call while the batch of ``x`` changes.


class AddModel(torch.nn.Module):
    """``x + y``, where ``y`` has one row for all rows of ``x``."""

    def forward(self, x, y):
        return x + y


model_add = AddModel()
inputs_add = [
    (torch.randn(2, 6), torch.randn(1, 6)),
    (torch.randn(3, 7), torch.randn(1, 7)),
    (torch.randn(4, 8), torch.randn(1, 8)),
]

observer_add = InputObserver()
with observer_add(model_add):
    for x, y in inputs_add:
        model_add(x, y)

print("Observations stored:", observer_add.num_obs())
assert observer_add.num_obs() == 3

# %%
# The first size of ``y`` is left out of the answer: what never changed is a constant.

dyn_add = observer_add.infer_dynamic_shapes()
print("Dynamic shapes (add model):", dyn_add)

# %%
# The arguments come from the first call.

args_add = observer_add.infer_arguments()
print("Inferred arguments:", string_type(args_add, with_shape=True))

# %%
# 2. A decoder with a cache
# -------------------------
#
# The two calls below are a step with 10 cached tokens and the next one with 11. The observer opens a cache
# by itself; ``register_flattening_functions`` does the same for torch, so that
# ``torch.utils._pytree.tree_flatten`` and ``torch.export.export`` take a cache apart too, for as long as
# the block lasts.


class LLMLikeModel(torch.nn.Module):
    """Has the signature of a decoder, and returns what it is given."""

    def forward(self, input_ids, attention_mask=None, past_key_values=None):
        return input_ids, past_key_values


n_layers = 2
n_heads = 4
head_dim = 32


def cache_of(length):
    """A cache with ``length`` tokens in each layer."""
    shape = 1, n_heads, length, head_dim
    return make_dynamic_cache([(torch.rand(shape), torch.rand(shape)) for _ in range(n_layers)])


llm_inputs = [
    {
        "input_ids": torch.randint(0, 1000, (1, 10)),
        "attention_mask": torch.ones(1, 10, dtype=torch.int64),
        "past_key_values": cache_of(10),
    },
    {
        "input_ids": torch.randint(0, 1000, (1, 1)),
        "attention_mask": torch.ones(1, 11, dtype=torch.int64),
        "past_key_values": cache_of(11),
    },
]

model_llm = LLMLikeModel()
observer_llm = InputObserver()
with register_flattening_functions(patch_transformers=True), observer_llm(model_llm):
    for kwargs in llm_inputs:
        model_llm(**kwargs)

print("\nObservations stored (LLM):", observer_llm.num_obs())

# %%
# Both calls had a batch of 1, and it is meant to change all the same: ``set_batch_dimension_for=True`` makes
# the first axis of every tensor dynamic.

with register_flattening_functions(patch_transformers=True):
    dyn_llm = observer_llm.infer_dynamic_shapes(set_batch_dimension_for=True)
    kwargs_llm = observer_llm.infer_arguments()

print("Dynamic shapes (LLM):", dyn_llm)
print("Inferred kwargs:", string_type(kwargs_llm, with_shape=True))

# %%
# The cache is a flat list in the dynamic shapes: key, value, key, value. Of each, the batch (0) and the
# number of cached tokens (2) may change; the heads (1) and their size (3) may not.

# %%
# 3. An image in the first step only
# ----------------------------------
#
# A vision-language model reads ``pixel_values`` in its first step, and a cache in all the others. What
# stands for a missing image is told by ``value_if_missing``: the right height and width, in a batch of 0.


class MultimodalModel(torch.nn.Module):
    """Has the signature of a vision-language model, and returns what it is given."""

    def forward(self, input_ids, pixel_values=None, attention_mask=None, past_key_values=None):
        return input_ids, past_key_values


image_h, image_w = 224, 224
mm_inputs = [
    {
        "input_ids": torch.randint(0, 1000, (1, 20)),
        "pixel_values": torch.rand(1, 3, image_h, image_w),
        "attention_mask": torch.ones(1, 20, dtype=torch.int64),
    },
    {
        "input_ids": torch.randint(0, 1000, (1, 1)),
        "attention_mask": torch.ones(1, 21, dtype=torch.int64),
        "past_key_values": cache_of(20),
    },
    {
        "input_ids": torch.randint(0, 1000, (1, 1)),
        "attention_mask": torch.ones(1, 22, dtype=torch.int64),
        "past_key_values": cache_of(21),
    },
]

model_mm = MultimodalModel()
observer_mm = InputObserver(
    value_if_missing={"pixel_values": torch.empty((0, 3, image_h, image_w), dtype=torch.float32)}
)
with register_flattening_functions(patch_transformers=True), observer_mm(model_mm):
    for kwargs in mm_inputs:
        model_mm(**kwargs)

print("\nObservations stored (multimodal):", observer_mm.num_obs())

with register_flattening_functions(patch_transformers=True):
    dyn_mm = observer_mm.infer_dynamic_shapes(set_batch_dimension_for=True)
    kwargs_mm = observer_mm.infer_arguments()

print("Dynamic shapes (multimodal):", dyn_mm)
print("Inferred kwargs:", string_type(kwargs_mm, with_shape=True))

# %%
# ``pixel_values`` is there with a batch of 0, although two of the three calls had none, and its 224 x 224
# pixels stay constants. Arguments and shapes are what :func:`torch.export.export` and
# :func:`torch.onnx.export` take:
#
# .. code-block:: python
#
#     with register_flattening_functions(patch_transformers=True):
#         program = torch.export.export(model_mm, (), kwargs=kwargs_mm, dynamic_shapes=dyn_mm)
