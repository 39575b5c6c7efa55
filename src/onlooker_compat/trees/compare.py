"""``max_diff``: the largest difference between two results, whatever holds their tensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.pytrees.caches import cache_leaves
from onlooker.pytrees.comparisons.leaves import (
    INFINITE,
    Difference,
    is_tensor_like,
    leaf_difference,
    thresholds_of,
)
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.layers import is_cache, is_layer
from onlooker.pytrees.open import open_tree
from onlooker.torch_internals.trees import torch_pytree

__all__ = ["flatten_object", "max_diff", "string_diff"]

_COUNTER = "cumulative_length"


@dataclasses.dataclass(frozen=True, slots=True)
class _Rules:
    flatten: bool
    skip_none: bool
    unwrap: bool


class _MismatchError(Exception):
    """The two values do not hold the same leaves."""


def max_diff(
    expected: Any,
    got: Any,
    level: int = 0,
    flatten: bool = False,
    debug_info: list[str] | None = None,
    begin: int = 0,
    end: int = -1,
    _index: int = 0,
    allow_unique_tensor_with_list_of_one_element: bool = True,
    hist: bool | Sequence[float] | None = None,
    skip_none: bool = False,
) -> dict[str, Any]:
    """The differences between what was expected and what was got, summed up over all tensors.

    :param expected: tensors, arrays, numbers, None, in any containers, caches, outputs or
        dataclasses
    :param got: the same
    :param level: how deep these values stand in others, written before the lines of ``debug_info``
    :param flatten: when two lists are of different lengths, compares all that they hold as two flat
        lists
    :param debug_info: gets one line for each mismatch of shape, length or keys
    :param begin: the first leaf to compare
    :param end: the leaf to stop before, -1 for the last one included
    :param _index: the number of the first leaf
    :param allow_unique_tensor_with_list_of_one_element: a tensor may be compared with a list of one
        tensor
    :param hist: counts the differences above these bounds, or above the usual ones when True
    :param skip_none: None may stand against a value, or be absent, and is no difference then
    :return: ``abs`` and ``rel``, the largest difference, absolute and relative to the expected
        value plus 1e-3; ``sum`` of all differences; ``n``, the number of elements; ``dnan``, the
        number of places where one side is NaN and the other a number, which ``abs`` counts as
        infinite; ``argm``, the place of the largest difference, for one tensor only; ``dev``, the
        number of tensors on different devices; ``rep``, the counts of ``hist``. Another shape,
        length or key makes all differences infinite
    :raises UsageError: ``none-against-value`` when None stands against a value, without
        ``skip_none``
    :raises ArgumentKindError: ``wrong-kind`` for bounds that are no numbers
    :raises UnsupportedError: ``tensor-without-values`` for fake tensors

    >>> max_diff([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])])["abs"]
    0.5
    >>> max_diff({"x": torch.zeros(2)}, {"y": torch.zeros(2)})["abs"]
    inf
    >>> max_diff(torch.tensor([1.0, 200.0]), torch.tensor([1.5, 200.0]), hist=[0.1, 1.0])["rep"]
    {'>0.1': 1, '>1.0': 0}
    """
    rules = _Rules(flatten, skip_none, allow_unique_tensor_with_list_of_one_element)
    thresholds = thresholds_of(hist)
    total: Difference | None = None
    try:
        for index, (where, left, right) in enumerate(
            _pairs(expected, got, rules, ""), start=_index
        ):
            if index < begin or (end != -1 and index >= end):
                continue
            found = Difference()
            if left is not None:
                found = leaf_difference(left, right, thresholds)
            if found is INFINITE:
                raise _MismatchError(
                    f"{where or 'the top'}: {_shown(right)} where {_shown(left)} is expected"
                )
            total = found if total is None else total + found
    except _MismatchError as mismatch:
        if debug_info is not None:
            debug_info.append(f"{' ' * level}{mismatch}")
        total = INFINITE
    return _as_dict(total or Difference())


def string_diff(diff: dict[str, Any], js: bool = False, ratio: bool = False, **kwargs: Any) -> str:
    """Returns the finding of :func:`max_diff` as one line.

    :param diff: the result of :func:`max_diff`
    :param js: as JSON, with the counts of ``hist`` beside the others
    :param ratio: with ``js``, adds the counts divided by the number of elements, and the mean
        difference
    :param kwargs: with ``js``, more values to write
    :return: the text

    >>> string_diff(max_diff(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), hist=[0.1]))
    'abs=0.5, rel=0.24987506246876562, n=2.0/#1>0.1,amax=1, dev=0'
    >>> string_diff({"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 2.0, "dnan": 0}, js=True, name="x")
    '{"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 2.0, "dnan": 0, "name": "x"}'
    """
    if js:
        counts = diff.get("rep", {})
        row = {**{key: value for key, value in diff.items() if key != "rep"}, **counts}
        if ratio and diff["n"]:
            row.update({f"%{bound}": count / diff["n"] for bound, count in counts.items()})
            row["mean"] = diff["sum"] / diff["n"]
        return json.dumps({**row, **kwargs})
    parts = [f"abs={diff['abs']}", f"rel={diff['rel']}"]
    if diff["abs"] != 0 and diff["rel"] != 0:
        parts.append(f"n={diff['n']}")
    if diff.get("dnan"):
        parts.append(f"dnan={diff['dnan']}")
    text = ", ".join(parts)
    if "rep" in diff:
        text += "/" + "-".join(
            f"#{count}{bound}" for bound, count in diff["rep"].items() if count > 0
        )
    if "argm" in diff:
        place = diff["argm"]
        text += f",amax={','.join(map(str, place)) if isinstance(place, tuple) else place}"
    return f"{text}, dev={diff['dev']}" if "dev" in diff else text


def flatten_object(x: Any, drop_keys: bool = False) -> Any:
    """All that ``x`` holds as one list; a tuple for a tuple, a cache or an output, ``x`` itself for
    a leaf.

    :param x: anything
    :param drop_keys: leaves out the keys of the dicts, which stand before their values otherwise
    :return: the leaves, None included; those of a cache in the order ``[keys, values, keys, ...]``

    >>> flatten_object([1, (2, {"a": 3})])
    [1, 2, 'a', 3]
    >>> flatten_object((1, {"a": [2, None]}), drop_keys=True)
    (1, 2, None)
    """
    if isinstance(x, dict) and not _is_output(x):
        items: list[Any] = (
            list(x.values()) if drop_keys else [part for item in x.items() for part in item]
        )
        return [leaf for item in items for leaf in _leaves(item, drop_keys)]
    inside = _inside(x)
    if inside is None:
        return x
    children = inside.values() if isinstance(inside, dict) else inside
    leaves = [leaf for child in children for leaf in _leaves(child, drop_keys)]
    return leaves if isinstance(x, list) else tuple(leaves)


def _leaves(x: Any, drop_keys: bool) -> list[Any]:
    flat = flatten_object(x, drop_keys)
    return list(flat) if _inside(x) is not None else [flat]


def _as_dict(difference: Difference) -> dict[str, Any]:
    found = dataclasses.asdict(difference)
    rep = dict(found.pop("rep"))
    kept = {key: value for key, value in found.items() if value is not None}
    return {**kept, "rep": rep} if rep else kept


def _pairs(expected: Any, got: Any, rules: _Rules, where: str) -> Iterator[tuple[str, Any, Any]]:
    """``(where, expected leaf, leaf got)`` for each leaf; two None for what is skipped."""
    if expected is not None and got is not None:
        expected, got = _comparable(expected, got, rules)
    if (
        expected is None or got is None
    ):  # also as the one element of a list that stands for a tensor
        if expected is not got and not rules.skip_none:
            side, value = ("expected", got) if expected is None else ("got", expected)
            raise UsageError(
                f"At {where or 'the top'}, {side} is None against {_shown(value)}.",
                slug="none-against-value",
                hint="skip_none=True leaves such places out.",
            )
        yield where, None, None
        return
    left, right = _inside(expected), _inside(got)
    if left is None and right is None:
        yield where, expected, got
        return
    if left is None or right is None:
        raise _MismatchError(
            f"{where or 'the top'}: {_shown(got)} where {_shown(expected)} is expected"
        )
    yield from _paired(expected, got, left, right, rules, where)


def _paired(
    expected: Any, got: Any, left: Any, right: Any, rules: _Rules, where: str
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        left, right = _without_lone_counters(left, right)
        if set(left) != set(right):
            raise _MismatchError(
                f"{where or 'the top'}: keys {list(right)} where {list(left)} are expected"
            )
        for key, child in left.items():
            yield from _pairs(child, right[key], rules, f"{where}[{key!r}]")
        return
    structured = any(
        _is_output(x) or not isinstance(x, (list, tuple, dict)) for x in (expected, got)
    )
    first, second = _values(left), _values(right)
    if len(first) != len(second) and (rules.flatten or structured):
        first, second = _leaves(expected, True), _leaves(got, True)
    if len(first) != len(second) and rules.skip_none:
        first, second = [x for x in first if x is not None], [x for x in second if x is not None]
    if len(first) != len(second):
        raise _MismatchError(
            f"{where or 'the top'}: {len(second)} values where {len(first)} are expected"
        )
    for position, (child, other) in enumerate(zip(first, second, strict=True)):
        yield from _pairs(child, other, rules, f"{where}[{position}]")


def _comparable(expected: Any, got: Any, rules: _Rules) -> tuple[Any, Any]:
    """Both values in the form in which they can be compared."""
    if is_tensor_like(expected):
        got = _as_numbers(got, expected)
    if is_tensor_like(got):
        expected = _as_numbers(expected, got)
    if isinstance(expected, (list, tuple)) and len(expected) == 1 and _inside(got) is None:
        return expected[0], got
    if _is_output(expected) and len(expected) == 1 and is_tensor_like(got):
        return next(iter(expected.values())), got
    if (
        rules.unwrap
        and is_tensor_like(expected)
        and isinstance(got, (list, tuple))
        and len(got) == 1
    ):
        return expected, got[0]
    if is_cache(expected) and _is_two_lists(got):
        return _key_value_lists(expected), got
    if is_cache(got) and _is_two_lists(expected):
        return expected, _key_value_lists(got)
    return expected, got


def _as_numbers(value: Any, like: Any) -> Any:
    """Nested lists of numbers as a tensor, if it has the shape of ``like``."""
    if not _is_nested_numbers(value) or (isinstance(like, torch.Tensor) and like.is_nested):
        return value
    try:
        numbers = torch.tensor(value)
    except (ValueError, RuntimeError, OverflowError):  # an int of more than 64 bits
        return value
    return numbers if numbers.shape == like.shape else value


def _is_nested_numbers(value: Any) -> bool:
    """True for lists of numbers, or of such lists of one length."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    if all(isinstance(x, (bool, int, float, complex)) for x in value):
        return True
    same = all(isinstance(x, (list, tuple)) and len(x) == len(value[0]) for x in value)
    return same and all(map(_is_nested_numbers, value))


def _is_two_lists(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(child, (list, tuple)) for child in value)
    )


def _key_value_lists(cache: Any) -> Any:
    """``[all keys, all values]`` of a cache of layers; a cache of caches is kept."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        return cache
    return [
        [getattr(x, "keys", None) for x in layers],
        [getattr(x, "values", None) for x in layers],
    ]


def _is_output(value: Any) -> bool:
    """True for an output of transformers, which is a dict."""
    return isinstance(value, dict) and any(
        cls.__name__ == "ModelOutput" for cls in type(value).__mro__
    )


def _inside(value: Any) -> Any:
    """Returns the values one level below ``value``: a list, or a dict; None for a leaf."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return dict(value.items())
    if isinstance(value, torch.Tensor) and value.is_nested:
        return list(value.unbind())
    if (
        value is None
        or is_tensor_like(value)
        or isinstance(value, (bool, int, float, complex, str, bytes))
    ):
        return None
    if is_cache(value):
        return cache_leaves(value)
    lists = [getattr(value, name, None) for name in ("key_cache", "value_cache")]
    if all(isinstance(child, (list, tuple)) for child in lists):
        return lists
    if isinstance(value, Mapping):
        return dict(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    node = torch_pytree.SUPPORTED_NODES.get(type(value))
    if node is not None and not is_layer(value):
        return list(node.flatten_fn(value)[0])
    tree = open_tree(value)
    return None if tree.structure.is_leaf else {path.code(): leaf for path, leaf in tree.items()}


def _values(inside: Any) -> list[Any]:
    return list(inside.values()) if isinstance(inside, dict) else list(inside)


def _without_lone_counters(left: dict[Any, Any], right: dict[Any, Any]) -> tuple[Any, Any]:
    """Leaves out the counters that one cache has and the other, of another class of layers, has
    not.
    """
    lone = {key for key in set(left) ^ set(right) if str(key).startswith(_COUNTER)}
    first, second = (
        {key: x for key, x in side.items() if key not in lone} for side in (left, right)
    )
    return first, second


def _shown(value: Any) -> str:
    return string_type(value, with_shape=True)
