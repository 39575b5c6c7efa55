"""``string_type``: any object as one short line of types, shapes and extremes."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...torch_internals.trees import torch_pytree
from ..nodes import SYMBOLIC
from .caches import describe_cache
from .tensors import array_text, is_array, ort_value_text, tensor_text

__all__ = ["Details", "string_type"]

_DEEPEST = 50
_LONGEST_SET = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Details:
    """The details that :func:`string_type` was asked to show, and how to show a part of the object."""

    with_shape: bool
    with_min_max: bool
    with_device: bool
    ignore: bool
    limit: int
    above: tuple[int, ...] = ()

    def part(self, value: Any) -> str:
        """The text of a part of the object described."""
        return _describe(value, self)


def string_type(
    obj: Any,
    with_shape: bool = False,
    with_min_max: bool = False,
    with_device: bool = False,
    ignore: bool = False,
    limit: int = 20,
) -> str:
    """One line that says what ``obj`` holds, for messages and tests. It never raises.

    ::

        CT7s2x7[0,6:A3.5]
        |||--+--+--------
        |||  |  +-- with_min_max: [smallest,largest:Amean], then N<count>nans; [empty]; =value when 0-d
        |||  +----- with_shape: s2x7, or the rank otherwise: r2
        ||+-------- the element type, numbered as in ONNX: 1 float32, 7 int64, 9 bool, 10 float16 ...
        |+--------- T a tensor, F a fake tensor, A an array of numpy, OV a value of ONNX Runtime
        +---------- with_device: C for the processor, G for any other device

    :param obj: anything: tensors, containers, caches and outputs of transformers, dynamic shapes
        ...
    :param with_shape: the shape of a tensor in the place of its rank
    :param with_min_max: the extremes of tensors, and the values of numbers
    :param with_device: a letter for the device of a tensor
    :param ignore: leaves the configurations of transformers at the name of their class
    :param limit: a list or a tuple of that many elements or more shows the first one only
    :return: the text

    >>> string_type((torch.zeros(2, 6), [1, None]), with_shape=True)
    '(T1s2x6,#2[int,None])'
    >>> string_type({"ids": torch.tensor([3, 5]), "use": True}, with_shape=True, with_min_max=True)
    'dict(ids:T7s2[3,5:A4.0],use:bool=True)'
    >>> string_type({0: torch.export.Dim("batch"), 1: "seq", 2: torch.export.Dim.DYNAMIC})
    '{0:Dim(batch),1:DYN(seq),2:DYNAMIC}'
    """
    return _describe(obj, Details(with_shape, with_min_max, with_device, ignore, limit))


def _describe(value: Any, details: Details) -> str:
    if id(value) in details.above or len(details.above) >= _DEEPEST:
        return "..."
    inside = dataclasses.replace(details, above=(*details.above, id(value)))
    for describer in _DESCRIBERS:
        try:
            text = describer(value, inside)
        except Exception:  # an object may do anything when it is looked at
            text = None
        if text is not None:
            return text
    return f"{_class_name(value)}(...)"


def _class_name(value: Any) -> str:
    return str(type.__dict__["__name__"].__get__(type(value)))


def _constant(value: Any, details: Details) -> str | None:
    for cls in (bool, int, float, complex):  # a bool is an int
        if isinstance(value, cls):
            return f"{cls.__name__}={value}" if details.with_min_max else cls.__name__
    for other in (str, bytes, slice):
        if isinstance(value, other):
            return other.__name__
    return "None" if value is None else None


def _sequence(value: Any, details: Details) -> str | None:
    if not isinstance(value, (list, tuple)):
        return None
    count, is_tuple = len(value), isinstance(value, tuple)
    if count == 0:
        return "()" if is_tuple else "#0[]"
    if count < max(details.limit, 2):
        parts = ",".join(map(details.part, value))
        if is_tuple:
            return f"({parts},)" if count == 1 else f"({parts})"
        return f"#{count}[{parts}]"
    first, extremes = details.part(value[0]), _extremes(value, details)
    if is_tuple:
        return f"#{count}({first},...)" + (f"[{extremes[0]}:A[{extremes[1]}]]" if extremes else "")
    return f"#{count}[{first},...]" + (f"[{extremes[0]}:{extremes[1]}]" if extremes else "")


def _set(value: Any, details: Details) -> str | None:
    if not isinstance(value, (set, frozenset)):
        return None
    if len(value) < _LONGEST_SET:
        return f"{{{','.join(sorted(map(details.part, value)))}}}"
    if extremes := _extremes(value, details):
        return f"{{...}}#{len(value)}[{extremes[0]}:A{extremes[1]}]"
    return f"{{...}}#{len(value)}" if details.with_shape else "{...}"


def _extremes(values: Iterable[Any], details: Details) -> tuple[str, float] | None:
    """``smallest,largest`` and the mean, when all are numbers and values are asked for."""
    found = list(values)
    if not details.with_min_max or not all(isinstance(x, (int, float)) for x in found):
        return None
    return f"{min(found)},{max(found)}", sum(map(float, found)) / len(found)


def _mapping(value: Any, details: Details) -> str | None:
    if type(value) not in (dict, OrderedDict, defaultdict):
        return None
    if not value:
        return "{}"
    positions = all(isinstance(key, int) for key in value)
    if positions and all(
        x is None or isinstance(x, (str, *_dimension_classes())) for x in value.values()
    ):
        rows = [
            f"{k}:DYN({v})" if isinstance(v, str) else f"{k}:{details.part(v)}"
            for k, v in value.items()
        ]
    else:
        rows = [f"{_key(key)}:{details.part(child)}" for key, child in value.items()]
    return f"{{{','.join(rows)}}}" if positions else f"dict({','.join(rows)})"


def _key(key: Any) -> str:
    try:
        return str(key)
    except Exception:
        return f"{_class_name(key)}(...)"


def _dimension_classes() -> tuple[type, ...]:
    shapes = torch.export.dynamic_shapes
    return (shapes.Dim, shapes._DimHint)


def _dimension(value: Any, details: Details) -> str | None:
    shapes = torch.export.dynamic_shapes
    if isinstance(value, shapes._DerivedDim):
        return "DerivedDim"
    if isinstance(value, shapes.Dim):
        return f"Dim({value.__name__})"
    if isinstance(value, shapes._DimHint):
        return value.type.name if value.min is None and value.max is None else repr(value)
    if isinstance(value, SYMBOLIC):
        return type(value).__name__
    return None


def _tensor(value: Any, details: Details) -> str | None:
    if isinstance(value, torch.Tensor):
        return tensor_text(value, details.with_shape, details.with_min_max, details.with_device)
    if is_array(value):
        return array_text(value, details.with_shape, details.with_min_max)
    if _class_name(value) == "OrtValue":
        return ort_value_text(value, details.with_shape, details.with_min_max, details.with_device)
    return None


def _dataclass(value: Any, details: Details) -> str | None:
    """A dataclass, or an output of transformers: the fields that are not None."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    rows = [f"{name}:{details.part(child)}" for name, child in fields.items() if child is not None]
    return f"{_class_name(value)}({','.join(rows)})"


def _dictionary_class(value: Any, details: Details) -> str | None:
    """The classes that behave like a dict: a batch of a tokenizer, a plain ``ModelOutput`` ..."""
    if isinstance(value, UserDict):
        return f"{_class_name(value)}(data={details.part(value.data)})"
    if isinstance(value, dict):
        rows = ",".join(f"{_key(key)}:{details.part(child)}" for key, child in value.items())
        return f"{_class_name(value)}({rows})"
    return None


def _torch_object(value: Any, details: Details) -> str | None:
    if isinstance(value, (torch.device, torch.dtype, torch.layout, torch.memory_format)):
        return f"{_class_name(value)}({value})"
    if isinstance(value, torch.fx.Node):
        return f"%{value.target}"
    if isinstance(
        value, (torch_pytree.TreeSpec, torch_pytree.MappingKey, torch_pytree.SequenceKey)
    ):
        return repr(value).replace(" ", "").replace("\n", " ")
    return None


def _configuration(value: Any, details: Details) -> str | None:
    names = {cls.__name__ for cls in type(value).__mro__}
    if not names & {"PreTrainedConfig", "PretrainedConfig"}:
        return None
    if details.ignore:
        return f"{_class_name(value)}(...)"
    different = str(value.to_diff_dict()).replace("\n", "").replace(" ", "")
    return f"{_class_name(value)}(**{different})"


def _other_library(value: Any, details: Details) -> str | None:
    if _class_name(value) == "ValueInfoProto":
        return f"OT{value.type.tensor_type.elem_type}"
    return None


def _registered(value: Any, details: Details) -> str | None:
    """Describes a value whose class somebody registered as a node of torch's pytrees."""
    node = torch_pytree.SUPPORTED_NODES.get(type(value))
    if node is None or isinstance(value, torch.nn.Module):
        return None
    return f"{_class_name(value)}[serialized]({details.part(list(node.flatten_fn(value)[0]))})"


#: what is tried, in this order; the first one that knows the object describes it
_DESCRIBERS: tuple[Callable[[Any, Details], str | None], ...] = (
    _constant,
    _sequence,
    _set,
    _mapping,
    _tensor,
    _dimension,
    _configuration,
    _torch_object,
    _dataclass,
    _dictionary_class,
    describe_cache,
    _other_library,
    _registered,
)
