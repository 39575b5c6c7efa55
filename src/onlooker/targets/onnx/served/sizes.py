"""Sizes of a model of ONNX, by the text of an axis, as values inside of it: ``past_sequence +
sequence`` is the second size of ``attention_mask``.

What computes a length from the tensor of a cache computes the same from another input here. So the
cache may be a buffer that is longer than what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from ....core.errors import OnlookerError
from ....core.sizes.expression import Expression

__all__ = ["SizeNodes"]


class SizeNodes:
    """The sizes that the inputs of a model have; ``caches`` are the inputs that tell none."""

    def __init__(self, model: Any, caches: Sequence[Any] = ()) -> None:
        self._model = model
        self._caches = {id(value) for value in caches}
        self._made: dict[str, Any] = {}
        self._last: Any = None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names in the sizes of all inputs."""
        inputs = self._model.graph.inputs
        texts = [str(_text(size)) for value in inputs for size in value.shape or ()]
        found = [parsed for text in texts if (parsed := _parsed(text)) is not None]
        return tuple(dict.fromkeys(name for each in found for name in each.symbols))

    def text(self, value: Any, axis: int) -> str:
        """The size of an axis as text; empty where nothing is known of it."""
        size = _text(value.shape[axis]) if value.shape is not None else None
        parsed = _parsed(str(size)) if size is not None else None
        return "" if parsed is None else str(parsed)

    def value(self, tensor: Any, axis: int) -> Any:
        """A tensor of one int64 with the size of an axis, computed from an input where the model
        begins; None where no input tells it.
        """
        return self.of_text(self.text(tensor, axis))

    def of_text(self, text: str) -> Any:
        """As :meth:`value`, of a size by its text."""
        if text and text not in self._made:
            made = self._found(text)
            if made is None:
                return None
            self._made[text] = made
        return self._made.get(text)

    def _found(self, text: str) -> Any:
        import onnx_ir

        if text.isdigit():
            return self._insert("Constant", [], {"value": onnx_ir.tensor(numpy.array([int(text)]))})
        for value in self._model.graph.inputs:
            for axis in range(len(value.shape or ())):
                if id(value) not in self._caches and self.text(value, axis) == text:
                    return self._insert("Shape", [value], {"start": axis, "end": axis + 1})
        return self._of_parts(text)

    def _of_parts(self, text: str) -> Any:
        """A sum of two sizes, or a difference, of which inputs tell both."""
        wanted = Expression.parse(text)
        known = {
            self.text(value, axis)
            for value in self._model.graph.inputs
            if id(value) not in self._caches
            for axis in range(len(value.shape or ()))
        } - {""}
        for first in sorted(known):
            for operator, word in (("+", "Add"), ("-", "Sub")):
                for second in sorted(known):
                    made = _parsed(f"({first}) {operator} ({second})")
                    if made is not None and str(made) == str(wanted):
                        parts = [self.of_text(first), self.of_text(second)]
                        return self._insert(word, parts, {})
        return None

    def _insert(self, op_type: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """A node where the model begins, behind those that were inserted before."""
        import onnx_ir

        node = onnx_ir.node(op_type, list(inputs), attributes=attributes)
        graph = self._model.graph
        if self._last is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(self._last, node)
        self._last = node
        node.outputs[0].shape = onnx_ir.Shape([1])
        node.outputs[0].dtype = onnx_ir.DataType.INT64
        return node.outputs[0]

    def replace(self, old: Any, new: Any) -> None:
        """Every use of ``old``, an output of the model too, is one of ``new``; what reads the shape
        of ``old`` reads it from inputs.
        """
        self.read_elsewhere(old)
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            old.name, new.name = f"{name}_before", name

    def read_elsewhere(self, value: Any) -> bool:
        """Lets the readers of the shape of a value read it from other inputs; False where something
        does not tell it.
        """
        done = True
        for usage in list(value.uses()):
            if usage.node.op_type != "Shape":
                continue
            made = self._shape(value, usage.node)
            if made is None:
                done = False
                continue
            usage.node.outputs[0].replace_all_uses_with(made)
            usage.node.graph.remove(usage.node, safe=True)
        return done

    def _shape(self, value: Any, node: Any) -> Any:
        rank = len(value.shape)
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", rank)
        parts = [self.value(value, axis) for axis in range(rank)[start:end]]
        if not parts or any(part is None for part in parts):
            return None
        return parts[0] if len(parts) == 1 else self._insert("Concat", parts, {"axis": 0})


def _text(size: Any) -> Any:
    return size if isinstance(size, int) else size.value


def _parsed(text: str) -> Expression | None:
    try:
        return Expression.parse(text)
    except (OnlookerError, ValueError, SyntaxError):
        return None
