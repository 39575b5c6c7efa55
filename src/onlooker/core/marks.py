"""What a model may read of a call beside values, sizes and structure. A graph names each kind that
its model reads, with the line that reads it, and serves only calls that are as in its trace.

>>> said_of(IDENTITY)
'tensors that are no argument twice'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

__all__ = [
    "ATTRIBUTES",
    "AUTOCASTS",
    "CLASSES",
    "FINITE",
    "GRADIENTS",
    "IDENTITY",
    "INFERENCE",
    "MEMORY",
    "NUMBERS",
    "ORDER",
    "RECORDED",
    "SETTINGS",
    "SINGLE",
    "UNRECORDED",
    "WRITES",
    "asked_in",
    "asked_mark",
    "autocast_mark",
    "autocasts_in",
    "contiguous_in",
    "contiguous_mark",
    "ids_in",
    "ids_mark",
    "ints_in",
    "ints_mark",
    "refused_of",
    "said_of",
    "setting_mark",
    "settings_in",
]

#: whether gradients are recorded
GRADIENTS: Final = "gradients"
#: strides, the place in memory, whose view a tensor is, whether its numbers stand there negated
MEMORY: Final = "memory"
#: attributes that somebody gave to a tensor object: ``x.note = True``
ATTRIBUTES: Final = "attributes"
#: whether a tensor was made in inference mode
INFERENCE: Final = "inference"
#: how often a tensor was written in place
WRITES: Final = "writes"
#: whether two arguments are one object
IDENTITY: Final = "identity"
#: the order of the items of dicts, and of arguments that ``**kwargs`` takes
ORDER: Final = "order"
#: whether a tensor is a torch.nn.Parameter, or of another class of its own
CLASSES: Final = "classes"
#: whether the block around a call records gradients, where watched calls stood in one that does not
UNRECORDED: Final = "unrecorded"
#: the same, where watched calls stood in one that does
RECORDED: Final = "recorded"
#: whether a number is NaN, which other runtimes than torch do not carry through
NUMBERS: Final = "numbers"
#: whether a number is infinite, where another runtime was seen to compute otherwise with such
FINITE: Final = "finite"
#: whether a float argument is beyond those of 32 bits, infinite or NaN
SINGLE: Final = "single floats"
#: settings of torch that are no argument of a call, by the functions of torch that tell them
SETTINGS: Final = (
    "are_deterministic_algorithms_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "get_default_device",
    "get_default_dtype",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "get_num_interop_threads",
    "get_num_threads",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_inference_mode_enabled",
    "is_warn_always_enabled",
)
#: functions of torch that tell the autocast of a kind of devices, and that kind; None where it is their argument
AUTOCASTS: Final = {
    "is_autocast_enabled": None,
    "is_autocast_cpu_enabled": "cpu",
    "get_autocast_dtype": None,
    "get_autocast_cpu_dtype": "cpu",
    "get_autocast_gpu_dtype": "cuda",
}
_AUTOCAST, _INTS = "autocast of ", "ints below 2**"
_ASKED, _CONTIGUOUS = "a cache without the attribute ", "a contiguous "

_SAID = {
    GRADIENTS: "tensors that record no gradients",
    MEMORY: "contiguous tensors that are no part of another one",
    ATTRIBUTES: "tensors without attributes of the caller's",
    INFERENCE: "tensors that were not made in torch.inference_mode()",
    WRITES: "tensors that were never written in place",
    IDENTITY: "tensors that are no argument twice",
    NUMBERS: "numbers, and no NaN",
    FINITE: "finite numbers",
    SINGLE: "float arguments that are finite in 32 bits",
    CLASSES: "tensors of the class torch.Tensor, and no torch.nn.Parameter",
    UNRECORDED: "a call inside torch.no_grad()",
    RECORDED: "a call that records gradients, outside of torch.no_grad()",
    ORDER: "the items in the order of the watched calls",
}

_REFUSED = {
    GRADIENTS: "with tensors that record gradients",
    MEMORY: "with tensors that are not contiguous, or a part of another one",
    ATTRIBUTES: "with tensors that the caller gave attributes",
    INFERENCE: "with tensors that were made in torch.inference_mode()",
    WRITES: "with tensors that were written in place",
    IDENTITY: "with one tensor twice",
    NUMBERS: "with NaN",
    FINITE: "with infinite numbers",
    SINGLE: "with a float argument that is NaN, infinite or beyond 32 bits",
    CLASSES: "with a torch.nn.Parameter, or a tensor of another class",
    UNRECORDED: "that record gradients",
    RECORDED: "inside torch.no_grad()",
    ORDER: "with items in another order",
}


def said_of(mark: str) -> str:
    """Returns in words which mark a graph needs its calls to have."""
    for path, low, high in ids_in([mark]):
        return f"ids of {low} to {high} in {path}"
    for device, state in autocasts_in([mark]):
        return f"a call where torch.autocast is {state} for {device}"
    is_setting = any(settings_in([mark]))
    return f"a call where {mark}" if is_setting else _SAID.get(mark, mark)


def refused_of(mark: str) -> str:
    """The calls that such a graph refuses, in words.

    >>> refused_of(NUMBERS), refused_of(UNRECORDED)
    ('calls with NaN', 'calls that record gradients')
    """
    for path, low, high in ids_in([mark]):
        return f"calls with ids outside {low} to {high} in {path}"
    for power in ints_in([mark]):
        return f"calls with ints from 2**{power} on, or below -2**{power}"
    for device, state in autocasts_in([mark]):
        return f"calls where torch.autocast is not {state} for {device}"
    for name, value in settings_in([mark]):
        return f"calls where torch.{name}() is not {value}"
    for name in asked_in([mark]):
        return f"calls with a cache that has the attribute {name}"
    for path in contiguous_in([mark]):
        return f"calls with {path} in memory that is not contiguous"
    return f"calls {_REFUSED.get(mark, f'without {mark}')}"


def ids_mark(path: str, low: int, high: int) -> str:
    """Returns the mark of a graph for whose runtime any id of an argument has a row in a table.

    >>> ids_mark("input_ids", 0, 9)
    'ids: input_ids from 0 to 9'
    """
    return f"ids: {path} from {low} to {high}"


def ids_in(marks: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yields the ids among the marks of a graph: the path of the argument, the least and the greatest.

    >>> [*ids_in([GRADIENTS, "ids: input_ids from 0 to 9"])]
    [('input_ids', 0, 9)]
    """
    for mark in marks:
        if mark.startswith("ids: "):
            path, _, ends = mark.removeprefix("ids: ").rpartition(" from ")
            low, _, high = ends.partition(" to ")
            yield path, int(low), int(high)


def ints_mark(power: int) -> str:
    """Returns the mark of a graph whose runtime computes larger ints of 64 bits otherwise.

    >>> ints_mark(31)
    'ints below 2**31'
    """
    return f"{_INTS}{power}"


def ints_in(marks: Iterable[str]) -> Iterator[int]:
    """Yields the powers of 2 that ints have to be below, by the marks of a graph.

    >>> [*ints_in([GRADIENTS, "ints below 2**31"])]
    [31]
    """
    for mark in marks:
        if mark.startswith(_INTS):
            yield int(mark.removeprefix(_INTS))


def setting_mark(name: str, value: object) -> str:
    """Returns the mark of a graph whose model asks for a setting of torch.

    >>> setting_mark("get_default_dtype", "torch.float32")
    'torch.get_default_dtype() is torch.float32'
    """
    return f"torch.{name}() is {value}"


def settings_in(marks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the settings among the marks of a graph: the function of torch, and what it gave.

    >>> [*settings_in([GRADIENTS, "torch.get_default_dtype() is torch.float32"])]
    [('get_default_dtype', 'torch.float32')]
    """
    for mark in marks:
        name, _, value = mark.removeprefix("torch.").partition("() is ")
        if value and name in SETTINGS:
            yield name, value


def autocast_mark(device: str, state: str) -> str:
    """Returns the mark of a graph whose model asks for the autocast of a kind of devices.

    >>> autocast_mark("cpu", "off")
    'autocast of cpu: off'
    """
    return f"{_AUTOCAST}{device}: {state}"


def autocasts_in(marks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the kinds of devices whose autocast is among the marks of a graph, and what it was.

    >>> [*autocasts_in([GRADIENTS, "autocast of cpu: torch.bfloat16"])]
    [('cpu', 'torch.bfloat16')]
    """
    for mark in marks:
        if mark.startswith(_AUTOCAST):
            device, _, state = mark.removeprefix(_AUTOCAST).partition(": ")
            yield device, state


def asked_mark(name: str) -> str:
    """Returns the mark of a graph whose model asks a cache for an attribute that it lacks in the trace.

    >>> asked_mark("is_compiled")
    'a cache without the attribute is_compiled'
    """
    return f"{_ASKED}{name}"


def contiguous_mark(path: str) -> str:
    """Returns the mark of a graph whose model asks for an argument in contiguous memory, and gives it back or writes to
    it: ``contiguous()`` of another one is a copy.
    """
    return f"{_CONTIGUOUS}{path}"


def contiguous_in(marks: Iterable[str]) -> Iterator[str]:
    """Yields the arguments among the marks of a graph that have to be contiguous.

    >>> [*contiguous_in([GRADIENTS, contiguous_mark("x")])]
    ['x']
    """
    for mark in marks:
        if mark.startswith(_CONTIGUOUS):
            yield mark.removeprefix(_CONTIGUOUS)


def asked_in(marks: Iterable[str]) -> Iterator[str]:
    """Yields the attributes among the marks of a graph that caches lack.

    >>> [*asked_in([GRADIENTS, "a cache without the attribute is_compiled"])]
    ['is_compiled']
    """
    for mark in marks:
        if mark.startswith(_ASKED):
            yield mark.removeprefix(_ASKED)
