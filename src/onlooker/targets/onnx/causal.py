"""Whether a mask of attention ever lets a token look ahead.

A mask is a conjunction: of what the sizes alone decide, as ``column <= row + past``, and of what the
values of inputs decide, as padding. What lets no token look ahead without the second part does not
with it. So every part that reads a value counts as true here, and the rest is computed for a few
sizes.
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
_SAMPLES = 8
_MOST_NODES = 500


def is_causal(mask: Any, sizes: Sizes) -> bool:
    """True for a mask ``(batch, heads, tokens, length)`` in which the last token sees the whole
    length at most, the one before it all but the last, and so on.
    """
    try:
        part = _Part()
        result = part.add(mask)
        found = [_seen(part, result, chosen) for chosen in _choices(sizes.symbols)]
    except _UnknownError:
        return False
    return all(_looks_back(seen) for seen in found)


def _looks_back(seen: Any) -> bool:
    """``seen`` is true where a row sees a column; the last row sees all columns at most."""
    rows, columns = seen.shape[-2:]
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
        self._done: dict[int, str] = {}
        self._numbers = itertools.count()

    def add(self, value: Any) -> str:
        """The name of a value in the part; of ``true`` for a part of a conjunction that reads the
        values of inputs.

        :raises _UnknownError: where anything else reads them
        """
        if id(value) not in self._done:
            self._done[id(value)] = self._added(value)
        return self._done[id(value)]

    def _added(self, value: Any) -> str:
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
        is_conjunction = node.op_type == "And" and node.domain == ""
        inputs = [
            "true" if is_conjunction and _reads_values(each) and not _is_and(each) else self.add(each)
            for each in node.inputs
            if each is not None
        ]
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        if node.graph is None or any(not _is_plain(found) for found in attributes.values()):
            raise _UnknownError
        made = f"{name}_of_{node.op_type}"
        self.nodes.append(
            helper.make_node(node.op_type, inputs, [made], domain=node.domain, **attributes)
        )
        return made


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(each, (int, float)) for each in value)
    return isinstance(value, (int, float, str))


def _is_and(value: Any) -> bool:
    """True for a conjunction, and for one that is only given another shape."""
    node = value.producer()
    while node is not None and node.op_type in ("Expand", "Unsqueeze", "Identity"):
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "And"


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
