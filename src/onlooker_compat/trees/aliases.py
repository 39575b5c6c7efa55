"""One pair of functions per class, as other packages name them, to register classes of
transformers by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onlooker.pytrees.caches import cache_utils, unflatten_cache
from onlooker.torch_internals.trees import torch_pytree

__all__ = [
    "flatten_output",
    "flatten_output_with_keys",
    "unflatten_encoder_decoder_cache",
    "unflatten_output",
    "unflatten_static_cache",
]


def unflatten_static_cache(
    values: Iterable[Any], context: Any, output_type: type | None = None
) -> Any:
    """A ``StaticCache`` again, as :func:`~onlooker.pytrees.caches.unflatten_cache` builds it."""
    return unflatten_cache(values, context, output_type or cache_utils().StaticCache)


def unflatten_encoder_decoder_cache(
    values: Iterable[Any], context: Any, output_type: type | None = None
) -> Any:
    """An ``EncoderDecoderCache`` again, from its two caches."""
    return unflatten_cache(values, context, output_type or cache_utils().EncoderDecoderCache)


def flatten_output(output: Any) -> tuple[list[Any], list[str]]:
    """The fields of an output of transformers, those that are None left out, and their names."""
    return list(output.values()), list(output.keys())


def flatten_output_with_keys(output: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
    """As :func:`flatten_output`, each field with the step that leads to it."""
    values, names = flatten_output(output)
    return [
        (torch_pytree.MappingKey(name), value) for name, value in zip(names, values, strict=True)
    ], names


def unflatten_output(
    values: Iterable[Any], context: list[str], output_type: type | None = None
) -> Any:
    """The output again, a ``BaseModelOutput`` by default.

    :param values: one value per name
    :param context: the names of the fields
    :param output_type: another class
    """
    if output_type is None:
        from transformers.modeling_outputs import BaseModelOutput

        output_type = BaseModelOutput
    return output_type(**dict(zip(context, values, strict=True)))
