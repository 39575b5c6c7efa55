"""A trace leaves tensors without values in the `functools.lru_cache` of a function of the model.

The next call of the model gets such a tensor from the cache. The positions of DINOv3 in transformers are such a
function.

Where: torch.export
Fails with: torch 2.13.0, 2.15.0
Thread: https://github.com/huggingface/transformers/pull/40007 (where such a cache came in)
In onlooker: `observing.cached_functions` forgets what a run without values left
"""

import functools

import torch


@functools.lru_cache
def positions(count):
    return torch.arange(count) * 1.0


class Placed(torch.nn.Module):
    def forward(self, x):
        return x + positions(4)


torch.export.export(Placed(), (torch.ones(3, 4),), strict=False)
try:
    given = Placed()(torch.ones(3, 4))
except Exception as error:
    print(f"still there: after the export the model raises {type(error).__name__}")
else:
    plain = type(given) is torch.Tensor
    print(
        "repaired: the model runs as before"
        if plain
        else f"still there: the model gives a {type(given).__name__}"
    )
