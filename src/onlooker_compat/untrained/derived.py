"""Settings that the class of a configuration computes from others, to be computed anew after a
reduction.

``to_dict()`` does not say which settings were given and which were computed: the size of a head of a
state-space layer that is the width over the number of such heads, a second name of the width, the
numbers of the layers of a kind. Nothing is known here by name: a setting is computed if the class
finds the same value again without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["computed", "without_stale"]

#: what the class replaces when it is the default
_OPEN = (None, "auto")
_NO_SIZES = ("_token_id", "_token_ids", "_token_index")


def computed(config: Any) -> set[str]:
    """The names of the sizes that the class of a configuration computes when they are not given.

    Sizes are integers and lists of integers. The names of parts are not among them.
    """
    values = config.to_dict()
    parameters = inspect.signature(type(config)).parameters
    names = {
        name
        for name, value in values.items()
        if _is_size(value)
        and not name.endswith(_NO_SIZES)
        and (name not in parameters or parameters[name].default in _OPEN)
    }
    given = {name: value for name, value in values.items() if name not in names}
    try:
        again = type(config)(**_without_type(given)).to_dict()
    except Exception:  # the class wants some of them
        return set()
    return {name for name in names if name in again and again[name] == values[name]}


def _is_size(value: Any) -> bool:
    items = value if isinstance(value, list) and value else [value]
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def without_stale(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without the computed sizes that a reduction left as they were, in all parts.

    A size that would become 0 stays, too: others that it is made of were too large to be reduced.

    :param config: the configuration before the reduction
    :param values: the tree of its values after the reduction
    """
    before = config.to_dict()
    found = dict(values)
    for name, value in values.items():
        part = getattr(config, name, None) if isinstance(value, Mapping) else None
        if hasattr(part, "to_dict"):
            found[name] = without_stale(part, value)
    stale = {name for name in computed(config) if found.get(name) == before[name]}
    if not stale:
        return found
    given = {name: value for name, value in found.items() if name not in stale}
    try:
        again = type(config)(**_without_type(given)).to_dict()
    except Exception:  # what does not fit one another is said where the model is built
        return given
    return {name: value for name, value in found.items() if name not in stale or not again[name]}


def _without_type(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a class of configurations takes: it knows its own type."""
    return {name: value for name, value in values.items() if name != "model_type"}
