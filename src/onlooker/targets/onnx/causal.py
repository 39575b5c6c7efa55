"""Whether a mask of attention ever lets a token look ahead.

A mask is a conjunction: of what the sizes alone decide, as ``column <= row + past``, and of what the
values of inputs decide, as padding. What lets no token look ahead without the second part does not
with it. So every part that reads a value counts as true here, and the rest is computed for a few
sizes. This is so for what says what is seen; of what says what is hidden, no part is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy

from ...core.expression import Expression
from .sizes import Sizes

__all__ = ["is_causal"]

#: a score to which this is added counts for nothing
_NOTHING = -1e4
#: operators that give the same numbers another shape
_RESHAPED = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Identity")
_SAMPLES = 8
_MOST_NODES = 500


def is_causal(mask: Any, tokens: str, length: str, sizes: Sizes) -> bool:
    """True for a mask ``(batch, heads, tokens, length)`` in which the last token sees the whole
    length at most, the one before it all but the last, and so on. A mask with one row for all
    tokens is none.
    """
    wanted = Expression.parse(tokens), Expression.parse(length)
    try:
        part = _Part()
        result = part.add(mask, says_what_is_seen=True)
        for chosen in _choices(sizes.symbols):
            shape = tuple(size.evaluate(chosen) for size in wanted)
            if not _looks_back(_seen(part, result, chosen), shape):
                return False
    except _UnknownError:
        return False
    return True


def _looks_back(seen: Any, shape: tuple[int, ...]) -> bool:
    """``seen`` is true where a row sees a column; the last row sees all columns at most."""
    rows, columns = shape
    if seen.shape[-2:] != shape:
        return False
    ahead = numpy.triu(numpy.ones((rows, columns), dtype=bool), columns - rows + 1)
    return not bool((seen & ahead).any())


def _choices(symbols: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """A few sizes of all symbols, small ones and some beyond those of a window."""
    for number in range(_SAMPLES):
        yield {
            name: 2 + (number * (3 * at + 5) + 4 * at + number * number) % (11 + 6 * number)
            for at, name in enumerate(symbols)
        }


class _UnknownError(Exception):
    """A mask that is not understood."""


class _Part:
    """The part of a graph that computes a mask from sizes: the nodes, their constants, and the
    values whose shapes they read.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.shapes: dict[str, tuple[Any, Any]] = {}
        self._done: dict[tuple[int, bool], str] = {}
        self._numbers = itertools.count()

    def add(self, value: Any, *, says_what_is_seen: bool = False) -> str:
        """The name of a value in the part; of ``true`` for a part of a conjunction that reads the
        values of inputs, where the conjunction ``says_what_is_seen``.

        :raises _UnknownError: where anything else reads them
        """
        key = id(value), says_what_is_seen
        if key not in self._done:
            self._done[key] = self._added(value, says_what_is_seen)
        return self._done[key]

    def _added(self, value: Any, says_what_is_seen: bool) -> str:
        from onnx import helper

        name, node = f"value_{next(self._numbers)}", value.producer()
        if value.const_value is not None:
            self.constants[name] = value.const_value.numpy()
            return name
        if node is None or len(self.nodes) > _MOST_NODES:
            raise _UnknownError
        if node.op_type == "Shape":
            self.shapes[name] = (node.inputs[0], node)
            return name
        handed_on = _hands_on(node) if says_what_is_seen else ()
        inputs = []
        for at, each in enumerate(node.inputs):
            if node.op_type == "And" and at in handed_on and _is_left_out(each):
                inputs.append("true")
            else:
                inputs.append(self.add(each, says_what_is_seen=at in handed_on))
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        if not all(map(_is_plain, attributes.values())):
            raise _UnknownError
        made = f"{name}_of_{node.op_type}"
        self.nodes.append(
            helper.make_node(node.op_type, inputs, [made], domain=node.domain, **attributes)
        )
        return made


def _hands_on(node: Any) -> tuple[int, ...]:
    """The inputs of a node of which more that is seen is more in its result too."""
    if node.domain:
        return ()
    if node.op_type == "And":
        return 0, 1
    if node.op_type in _RESHAPED:
        return (0,)
    if node.op_type == "Where":
        seen, hidden = (each.const_value for each in node.inputs[1:3])
        is_score = seen is not None and hidden is not None
        return (0,) if is_score and seen.numpy().min() >= hidden.numpy().max() else ()
    return ()


def _is_left_out(value: Any) -> bool:
    """True for a part of a conjunction that reads values, and is no conjunction itself."""
    node = value.producer()
    while node is not None and node.op_type in _RESHAPED:
        node = node.inputs[0].producer()
    is_conjunction = node is not None and node.op_type == "And"
    return _reads_values(value) and not is_conjunction


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(each, (int, float)) for each in value)
    return isinstance(value, (int, float, str))


def _reads_values(value: Any) -> bool:
    """True where a value depends on more than the shapes of inputs."""
    below, known = [value], set()
    while below:
        each = below.pop()
        if each is None or id(each) in known or each.const_value is not None:
            continue
        known.add(id(each))
        node = each.producer()
        if node is None:
            return True
        if node.op_type != "Shape":
            below += node.inputs
    return False


def _seen(part: _Part, result: str, chosen: dict[str, int]) -> Any:
    """The mask for some sizes: what is seen, as bools."""
    import onnxruntime
    from onnx import helper, numpy_helper

    fed = {name: _shape(value, node, chosen) for name, (value, node) in part.shapes.items()}
    constants = {**part.constants, "true": numpy.array(True)}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    inputs = [helper.make_tensor_value_info(name, 7, [len(shape)]) for name, shape in fed.items()]
    outputs = [helper.make_empty_tensor_value_info(result)]
    graph = helper.make_graph(part.nodes, "mask", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run([result], fed)[0]
    except Exception as error:
        raise _UnknownError from error
    return found if found.dtype == bool else found > _NOTHING


def _shape(value: Any, node: Any, chosen: dict[str, int]) -> Any:
    """What a node says of the shape of a value, for some sizes."""
    if value.shape is None:
        raise _UnknownError
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(value.shape))
    found = []
    for size in list(value.shape)[start:end]:
        text = str(size if isinstance(size, int) else size.value)
        try:
            found.append(Expression.parse(text).evaluate(chosen))
        except Exception as error:
            raise _UnknownError from error
    return numpy.array(found, dtype=numpy.int64)
