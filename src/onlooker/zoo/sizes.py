"""The sizes of the inputs that are made for a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ..core.errors import UsageError

__all__ = ["BATCH", "InputSizes", "Made", "random_tokens", "sizes_from"]

#: inputs by name, and their dynamic shapes by the same names
Made = tuple[dict[str, Any], dict[str, Any]]

#: the symbol of the batch in all dynamic shapes
BATCH = torch.export.Dim("batch", min=1, max=1024)

_FIRST_TOKEN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class InputSizes:
    """``sequence_length`` tokens that a cache holds (or a text without cache has),
    ``sequence_length2`` new ones.

    A model with an encoder reads ``encoder_length`` tokens; a static cache has room for
    ``max_cache_len``.
    """

    batch_size: int = 2
    sequence_length: int = 30
    sequence_length2: int = 3
    encoder_length: int = 20
    max_cache_len: int = 96
    cls_cache: str = "DynamicCache"

    def of(self, **sizes: Any) -> InputSizes:
        """Returns the sizes with these in place of some."""
        return dataclasses.replace(self, **sizes)

    def larger(self, more: int) -> InputSizes:
        """The batch and both lengths, each larger by ``more``."""
        return dataclasses.replace(
            self,
            batch_size=self.batch_size + more,
            sequence_length=self.sequence_length + more,
            sequence_length2=self.sequence_length2 + more,
            encoder_length=self.encoder_length + more,
        )


def sizes_from(given: Mapping[str, Any] | None) -> InputSizes:
    """The sizes, with what a caller gives by name.

    >>> sizes_from({"batch_size": 5, "cls_cache": "StaticCache"})
    ... # doctest: +NORMALIZE_WHITESPACE
    InputSizes(batch_size=5, sequence_length=30, sequence_length2=3, encoder_length=20, max_cache_len=96,
               cls_cache='StaticCache')

    :raises UsageError: ``no-such-input-size``
    """
    values = dict(given or {})
    if isinstance(values.get("cls_cache"), type):
        values["cls_cache"] = values["cls_cache"].__name__
    known = [field.name for field in dataclasses.fields(InputSizes)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise UsageError(
            f"inputs_kwargs has no {', '.join(map(repr, unknown))}.",
            slug="no-such-input-size",
            hint=f"Give some of: {', '.join(known)}.",
        )
    return InputSizes(**values)


def random_tokens(config: Any, generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Token ids of the vocabulary of the text part, int64, none of them a special token."""
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None) or _vocabulary(config)
    ids = torch.randint(min(_FIRST_TOKEN, vocabulary - 1), vocabulary, shape, generator=generator)
    special = [
        value
        for part in (config, text)
        for name, value in vars(part).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    ]
    return ids.masked_fill(
        torch.isin(ids, torch.tensor(special or [-1])), min(_FIRST_TOKEN, vocabulary - 1)
    )


def _vocabulary(config: Any) -> int:
    """The size of the vocabulary of a configuration, or of the first part inside it that has one."""
    if isinstance(getattr(config, "vocab_size", None), int):
        return int(config.vocab_size)
    inside = (part for name, part in vars(config).items() if name.endswith("_config"))
    found = next((part for part in inside if hasattr(part, "get_text_config")), None)
    return int(config.vocab_size) if found is None else _vocabulary(found.get_text_config())
