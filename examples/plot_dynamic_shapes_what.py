"""
Shapes for inputs that hold a cache
===================================

The ``dynamic_shapes`` of :func:`torch.export.export` have the form of the inputs. That is plain for tensors, lists
and dictionaries; for a class such as :class:`transformers.cache_utils.DynamicCache` it is the form into which the
class is flattened, which nobody wants to look up. The inputs alone are enough to write it down.
"""

from __future__ import annotations

import pprint

import torch

from onlooker import (
    all_dynamic_shape_from_inputs,
    all_dynamic_shapes_from_inputs,
    get_untrained_model_with_inputs,
    make_dynamic_cache,
    string_type,
    torch_export_patches,
)

# %%
# A decoder with a cache that grows
# ---------------------------------
#
# Two prompts of three tokens, behind thirty tokens that are in the cache already.

batch, heads, past, head_size = 2, 1, 30, 96

inputs = {
    "input_ids": torch.randint(15, size=(2, 3), dtype=torch.int64),
    "attention_mask": torch.randint(1, size=(2, 33), dtype=torch.int64),
    "position_ids": torch.arange(3, dtype=torch.int64),
    "past_key_values": make_dynamic_cache(
        [(torch.randn(batch, heads, past, head_size), torch.randn(batch, heads, past, head_size))]
    ),
}

print(string_type(inputs, with_shape=True))

# %%
# Every dimension gets a name of its own, ``d_<tensor>_<dimension>``. This function has the older name, and gives
# a cache the older form: one list for the keys of all layers, and one for their values.

ds = all_dynamic_shape_from_inputs(inputs)
pprint.pprint(ds)

# %%
# torch.export itself reads a cache as one flat list, layer by layer, and that is what the function gives under its
# newer name. All of onlooker reads both forms.

pprint.pprint(all_dynamic_shapes_from_inputs(inputs)["past_key_values"])

# %%
# And a cache of fixed length?
# ----------------------------
#
# An untrained model of a known architecture comes with inputs that fit it. transformers does not use
# ``cache_position`` any more; it is kept among the inputs, and a model takes it without a word.

data = get_untrained_model_with_inputs(
    "arnir0/Tiny-LLM",
    model_kwargs={"cache_implementation": "static"},
    inputs_kwargs={"cls_cache": "StaticCache"},
)
inputs = data["inputs"]
print(string_type(inputs, with_shape=True))

# %%
# A class need not be registered with torch for its shapes to be known. The other branch is for a cache without
# any shapes: it shows where registrations would stand.

ds = all_dynamic_shape_from_inputs(inputs)
if ds["past_key_values"]:
    print("The static cache is opened as it is.")
else:
    print("The static cache has to be registered.")
    with torch_export_patches(patch_transformers=True):
        ds = all_dynamic_shape_from_inputs(inputs)

# %%
# It looks like the cache that grows.

pprint.pprint(ds)

# %%
# Not all of these dimensions can change: the length of a static cache, for one, is a constant. The shapes that come
# with the model say what its architecture lets change; for a static cache they have the older form.

pprint.pprint(data["dynamic_shapes"])
