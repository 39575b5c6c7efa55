"""
The observer, question by question
==================================

:func:`torch.export.export` wants one set of arguments that stands for all calls, and the sizes which may
change. A decoder makes both hard to write down: its first step has no cache and its later steps do, and a
vision-language model sees its image once. The calls themselves hold the answer.
"""

from __future__ import annotations

import torch

from onlooker import InputObserver, make_dynamic_cache, register_flattening_functions, string_type
from onlooker.zoo import tiny_model

# %%
# From calls to a program
# -----------------------
#
# The block does not change what the model computes. It notes every call, and keeps the tensors of the first
# ones; after the block the model is as it was.


class AddModel(torch.nn.Module):
    """``x + y``, both of shape (batch, length)."""

    def forward(self, x, y):
        return x + y


model = AddModel()
x1, y1 = torch.randn(2, 6), torch.randn(2, 6)
x2, y2 = torch.randn(3, 7), torch.randn(3, 7)

observer = InputObserver()
with observer(model):
    model(x1, y1)
    model(x2, y2)

args = observer.infer_arguments()
dynamic_shapes = observer.infer_dynamic_shapes()
program = torch.export.export(model, args, dynamic_shapes=dynamic_shapes)

x3, y3 = torch.randn(5, 9), torch.randn(5, 9)
print("add:", string_type(args, with_shape=True), dynamic_shapes)
print("add is exact on new sizes:", torch.equal(program.module()(x3, y3), x3 + y3))

# %%
# From ``generate()`` to a program
# --------------------------------
#
# A language model is watched through the loop in which it is used. The prompts are padded on the left,
# because ``generate()`` drops a mask that hides nothing before it calls the model.

GREEDY = {"do_sample": False, "max_new_tokens": 3, "pad_token_id": 0}

model = tiny_model("llama").model
input_ids = torch.tensor([[0, 0, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])
attention_mask = (input_ids != 0).to(torch.int64)

observer = InputObserver()
with observer(model):
    model.generate(input_ids, attention_mask=attention_mask, **GREEDY)

print("llama calls:", observer.num_obs())

kwargs = observer.infer_arguments()
dynamic_shapes = observer.infer_dynamic_shapes()
with register_flattening_functions(patch_transformers=True):
    program = torch.export.export(model, (), kwargs=kwargs, dynamic_shapes=dynamic_shapes)

print("llama:", sorted(name for name in dynamic_shapes if dynamic_shapes[name]))

# %%
# The program is tried on a step that no call was like: two tokens behind four cached ones.


def new_step():
    """A call of other sizes, made anew each time because a model changes its cache in place."""
    draw = torch.Generator().manual_seed(0)
    layers = [tuple(torch.randn(2, 2, 2, 4, 8, generator=draw)) for _ in range(2)]  # key and value
    # Newer versions of transformers name the argument `cache`.
    cache = next(name for name in kwargs if name in ("past_key_values", "cache"))
    return {
        **kwargs,
        "input_ids": torch.tensor([[21, 22], [23, 24]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]),
        "position_ids": torch.tensor([[3, 4], [4, 5]]),
        cache: make_dynamic_cache(layers),
    }


with register_flattening_functions(patch_transformers=True), torch.no_grad():
    difference = (program.module()(**new_step()).logits - model(**new_step()).logits).abs().max()

print("llama is exact on new sizes:", bool(difference <= 1e-5))

# %%
# An argument that is not always there
# ------------------------------------
#
# An image that most calls lack has to be stood in for by something. Only its shape and dtype count here: an
# empty batch of the right height and width.


class Captioner(torch.nn.Module):
    """Adds the mean of an image, when there is one, to the embeddings of the ids."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 4)

    def forward(self, input_ids, pixel_values=None):
        embedded = self.embedding(input_ids)
        return embedded if pixel_values is None else embedded + pixel_values.float().mean()


model = Captioner()
observer = InputObserver(
    value_if_missing={"pixel_values": torch.empty((0, 3, 896, 896), dtype=torch.float16)}
)
image = torch.zeros((1, 3, 896, 896), dtype=torch.float16)
with observer(model):
    model(input_ids=torch.arange(7).reshape(1, 7))
    model(input_ids=torch.arange(6).reshape(1, 6), pixel_values=image)

print("captioner:", string_type(observer.infer_arguments(), with_shape=True))
print("captioner:", observer.infer_dynamic_shapes())

# %%
# A batch that never changed
# --------------------------
#
# Runs with several batch sizes cost time, and the batch of a model nearly always may change. It can be said
# for some arguments, or for all of them with ``True``.

print("batch of the ids:", observer.infer_dynamic_shapes(set_batch_dimension_for={"input_ids"}))
print("batch of all:", observer.infer_dynamic_shapes(set_batch_dimension_for=True))

# %%
# What was seen
# -------------
#
# ``num_obs()`` counts the calls that were kept, and ``info`` holds them one by one.

print("captioner calls:", observer.num_obs(), len(observer.info))
for candidate in observer.info.inputs:
    print("- ids:", string_type(candidate.kwargs["input_ids"], with_shape=True))
