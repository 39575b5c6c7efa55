"""
Caches of your own as arguments
===============================

A model may take an object of your own: here a cache of keys and values that grows with every token.
:func:`torch.export.export` knows lists, tuples and dictionaries, and nothing of that class. This example
exports a model with such an argument:

#. by hand, with the class registered,
#. by watching the model, with nothing registered,
#. with a cache that derives from ``torch.nn.Module``, which torch.export takes without a word, and wrongly.
"""

from __future__ import annotations

import torch
import torch.utils._pytree as torch_pytree

from onlooker import InputObserver, register_class_flattening, unregister_class_flattening

# %%
# A cache and a model
# -------------------
#
# The cache counts its tokens and appends to two lists, one tensor per layer. The base class is a parameter:
# that is all that changes in the second half.


def make_cache_class(base):
    class KeyValueCache(base):
        """Keys and values of shape (batch, heads, tokens, size), one per layer."""

        def __init__(self):
            super().__init__()
            self.tokens = 0
            self.key_cache = []
            self.value_cache = []

        def update(self, keys, values, layer):
            if layer == 0:
                self.tokens += keys.shape[-2]
            if layer == len(self.key_cache):
                self.key_cache.append(keys)
                self.value_cache.append(values)
            else:
                self.key_cache[layer] = torch.cat([self.key_cache[layer], keys], dim=-2)
                self.value_cache[layer] = torch.cat([self.value_cache[layer], values], dim=-2)
            return self.key_cache[layer], self.value_cache[layer]

        def get_seq_length(self, layer=0):
            return self.key_cache[layer].shape[-2] if layer < len(self.key_cache) else 0

    return KeyValueCache


class SumOfCache(torch.nn.Module):
    """``x`` plus the sum over all tokens of the cache."""

    def forward(self, x, cache):
        keys, values = torch.cat(cache.key_cache, dim=1), torch.cat(cache.value_cache, dim=1)
        batch, heads, _, size = cache.key_cache[0].shape
        zeros = torch.zeros(batch, heads, cache.get_seq_length(), size)
        return x + (keys + values + zeros).sum(dim=2, keepdim=True)


def make_inputs(cache_class, batch, tokens, value=1.0):
    cache = cache_class()
    cache.update(
        torch.full((batch, 8, tokens, 6), value), torch.full((batch, 8, tokens, 6), 2 * value), 0
    )
    return torch.randn(batch, 8, 7, 1), cache


model = SumOfCache()
PlainCache = make_cache_class(object)

print(model(*make_inputs(PlainCache, 3, 5)).shape)
print(model(*make_inputs(PlainCache, 4, 11)).shape)

# %%
# 1. By hand
# ----------
#
# A registration says which tensors an object holds, and builds it again from others. The spelling of
# ``dynamic_shapes`` follows it: one list for the keys, one for the values.


def flatten(cache):
    return [cache.key_cache, cache.value_cache], None


def flatten_with_keys(cache):
    names = ("key_cache", "value_cache")
    return [(torch_pytree.GetAttrKey(name), getattr(cache, name)) for name in names], None


def unflatten_into(cache_class):
    def unflatten(children, context):
        cache = cache_class()
        cache.key_cache, cache.value_cache = children
        return cache

    return unflatten


def export_by_hand(cache_class, x, cache):
    batch, tokens = (
        torch.export.Dim("batch", min=1, max=1024),
        torch.export.Dim("tokens", min=1, max=1024),
    )
    layer = {0: batch, 2: tokens}
    register_class_flattening(cache_class, flatten, unflatten_into(cache_class), flatten_with_keys)
    try:
        return torch.export.export(
            model, (x, cache), dynamic_shapes=({0: batch}, [[layer], [layer]])
        )
    finally:
        unregister_class_flattening(cache_class)


program = export_by_hand(PlainCache, *make_inputs(PlainCache, 3, 5))
print("by hand:", program.graph_signature.user_inputs)

# %%
# 2. By watching
# --------------
#
# An observer opens any object that holds tensors: nothing is registered, and no shapes are written. The
# counter of the tokens is found too: it is an input, since it changes from call to call.


def export_by_watching(cache_class):
    observer = InputObserver()
    with observer(model):
        model(*make_inputs(cache_class, 3, 5))
        model(*make_inputs(cache_class, 4, 11))
    watched = observer.export()
    assert watched.verify().verified
    return watched


def is_exact(exported, cache_class):
    """Compares on sizes that no call had, with another content of the cache."""
    x, cache = make_inputs(cache_class, 5, 9, value=3.0)
    return torch.equal(exported(x, cache), model(x, cache))


watched = export_by_watching(PlainCache)
print("watched:", watched.graphs[0].labels)
print("watched, exact on new sizes:", is_exact(watched, PlainCache))

# %%
# 3. A cache that is a module
# ---------------------------
#
# The same class, derived from ``torch.nn.Module``. torch.export takes a module for a part of the program, and
# its tensors for constants: there is no error, and one input less.

ModuleCache = make_cache_class(torch.nn.Module)
x, cache = make_inputs(ModuleCache, 3, 5)
frozen = torch.export.export(model, (x, cache))
print("module, as it is:", frozen.graph_signature.user_inputs)

# %%
# The program answers for the cache of the export, whatever cache it is given.

x, other = make_inputs(ModuleCache, 3, 5, value=100.0)
answer = frozen.module()(x, other)
print("of the given cache:", torch.equal(answer, model(x, other)))
print("of the first cache:", torch.equal(answer, model(x, cache)))

# %%
# A registration makes it an argument again. Without one, the observer opens it like any other object.

by_hand = export_by_hand(ModuleCache, *make_inputs(ModuleCache, 3, 5))
print("module, by hand:", by_hand.graph_signature.user_inputs)

watched = export_by_watching(ModuleCache)
print("module, watched:", watched.graphs[0].labels)
print("module, watched, exact on new sizes:", is_exact(watched, ModuleCache))
