"""Attention over a cache as GroupQueryAttention, an operator of ONNX Runtime that also appends to
the cache.

A model gives the new keys and values to ``Concat(past, new)``, repeats the heads of the result and
attends. GroupQueryAttention does all three: it reads each head once, and where the tensor that it
reads the cache from is the one that it writes it to, it writes the new tokens alone.

It differs from the attention that it takes the place of in two ways, and a layer stays as it is
where either could show:

- It never looks ahead, whatever its bias says. So the mask must not either:
  :func:`is_causal` proves that from the nodes that make the mask.
- It takes several new tokens after a past for one row only. What this costs is a
  :attr:`Fused.limit`.

Upstream: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
and, for the last point, ``group_query_attention_helper.h`` there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy

from ....core.sizes.expression import Expression
from .sizes import SizeNodes

__all__ = ["Fused", "fuse_group_query", "is_causal"]


# Whether a mask of attention lets a token look ahead: proven from the nodes that make it, for all
# sizes and values.
#
# A mask is a conjunction: ``column <= row + past``, a window, padding. One part that hides all that
# lies ahead is enough, whatever the others say. So such a part is looked for: a comparison of
# positions that are counted along the columns and along the rows, from a start that sizes give.
#: a score to which this is added counts for nothing
_NOTHING = -1e4
#: operators that give the same numbers, in the same order, another shape
_RESHAPED = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Identity")
#: by operator whether the first of two numbers is the smaller one where it holds, and whether it
#: has to be smaller
_COMPARED = {
    "LessOrEqual": (True, False),
    "Less": (True, True),
    "GreaterOrEqual": (False, False),
    "Greater": (False, True),
}
_INTEGERS = (6, 7)  # int32 and int64, as ONNX numbers its types


class _Part(NamedTuple):
    """A part of a conjunction: what it says, or the contrary of it."""

    value: Any
    negated: bool = False


def is_causal(mask: Any, tokens: str, length: str, sizes: SizeNodes) -> bool:
    """True for a mask ``(batch, heads, tokens, length)`` in which the last token sees the whole
    length at most, the one before it all but the last, and so on, for all sizes.

    False says that this was not proven. A mask with one row for several tokens is none.
    """
    found = _Mask(tokens, length, sizes)
    return found.has_shape(mask) and (tokens == "1" or any(map(found.hides, found.parts(mask))))


class _Mask:
    """The sizes of a mask, as far as they are known; each size is a text."""

    def __init__(self, tokens: str, length: str, sizes: SizeNodes) -> None:
        self._tokens, self._length, self._sizes = tokens, length, sizes
        self._past = Expression.parse(length) - Expression.parse(tokens)

    def _shape(self, value: Any) -> list[str]:
        rank = len(value.shape) if value.shape is not None else 0
        return [self._sizes.text(value, axis) for axis in range(rank)]

    def has_shape(self, value: Any) -> bool:
        """True where the last two dimensions are rows and columns of the mask."""
        return self._shape(value)[-2:] == [self._tokens, self._length]

    def parts(self, mask: Any) -> Iterator[_Part]:
        """The parts of the conjunction, each as large as the mask."""
        below = [_Part(mask)]
        while below:
            part = below.pop()
            if self.has_shape(part.value):
                yield part
                below += _within(part)

    def hides(self, part: _Part) -> bool:
        """True where ``column <= row + past`` follows from a part."""
        node = part.value.producer()
        if node is None or node.domain or node.op_type not in _COMPARED:
            return False
        first_is_smaller, strict = _COMPARED[node.op_type]
        first, second = node.inputs
        if first_is_smaller == part.negated:
            first, second = second, first
        strict = strict != part.negated
        column = self._start(first, self._length, -1)
        row = self._start(second, self._tokens, -2)
        if column is None or row is None:
            return False
        spare = self._past + column - row
        return spare.is_constant and spare.evaluate({}) + strict >= 0

    def _start(self, value: Any, size: str, axis: int) -> Expression | None:
        """The first of the positions ``start, start + 1, ...`` that a value counts along an axis;
        None where it is anything else.
        """
        shape = self._shape(value)
        alone = len(shape) >= -axis and shape.pop(axis) == size and set(shape) <= {"1"}
        return self._counted(value, size) if alone else None

    def _counted(self, value: Any, size: str) -> Expression | None:
        node = value.producer()
        if node is None or node.domain or [s for s in self._shape(value) if s != "1"] != [size]:
            return None
        if node.op_type in _RESHAPED or _is_integer_cast(node):
            return self._counted(node.inputs[0], size)
        if node.op_type == "Range":
            start, _, step = map(self._number, node.inputs)
            return start if step is not None and str(step) == "1" else None
        if node.op_type not in ("Add", "Sub"):
            return None
        first, second = node.inputs
        if node.op_type == "Add" and self._number(first) is not None:
            first, second = second, first
        start, more = self._counted(first, size), self._number(second)
        if start is None or more is None:
            return None
        return start + more if node.op_type == "Add" else start - more

    def _number(self, value: Any) -> Expression | None:
        """A number that sizes give, or a constant; None for any other."""
        if value.const_value is not None:
            array = value.const_value.numpy()
            is_number = array.size == 1 and array.dtype.kind == "i"
            return Expression.constant(int(array.reshape(-1)[0])) if is_number else None
        node = value.producer()
        if node is None or node.domain:
            return None
        if node.op_type == "Shape":
            return self._size(node)
        if node.op_type in _RESHAPED or _is_integer_cast(node):
            return self._number(node.inputs[0]) if set(self._shape(value)) <= {"1"} else None
        if node.op_type in ("Add", "Sub"):
            first, second = map(self._number, node.inputs)
            if first is None or second is None:
                return None
            return first + second if node.op_type == "Add" else first - second
        return None

    def _size(self, node: Any) -> Expression | None:
        """The one size that a node reads."""
        measured = node.inputs[0]
        rank = len(measured.shape) if measured.shape is not None else 0
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", rank)
        axes = range(rank)[start:end]
        text = self._sizes.text(measured, axes[0]) if len(axes) == 1 else ""
        return Expression.parse(text) if text else None


def _within(part: _Part) -> list[_Part]:
    """The parts of which a part is the conjunction."""
    node = part.value.producer()
    if node is None or node.domain:
        return []
    if node.op_type == "Not":
        return [_Part(node.inputs[0], not part.negated)]
    if node.op_type == ("Or" if part.negated else "And"):
        return [_Part(value, part.negated) for value in node.inputs]
    if node.op_type in _RESHAPED:
        return [_Part(node.inputs[0], part.negated)]
    if node.op_type == "Where" and not part.negated:
        condition, then, otherwise = node.inputs
        hidden = [(otherwise, _Part(condition)), (then, _Part(condition, negated=True))]
        return [found for value, found in hidden if _is_hidden(value)]
    return []


def _is_hidden(value: Any) -> bool:
    """True for a constant that hides: False, or a score of nothing."""
    if value.const_value is None:
        return False
    array = value.const_value.numpy()
    return not array.any() if array.dtype == bool else bool(array.size and array.max() <= _NOTHING)


def _is_integer_cast(node: Any) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) in _INTEGERS


_DOMAIN = "com.microsoft"
#: the lowest float32: a score to which it is added counts for nothing, and a row of nothing else is
#: no NaN, as it would be with minus infinity
_LOWEST = numpy.finfo(numpy.float32).min
_MULTIPLE = 8  # of the size of a head


@dataclass(frozen=True, slots=True)
class Fused:
    """The attentions of a model: how many were fused, and why others were not.

    ``layers`` are fused, ``reasons`` say why others are not, each once. Each of the ``limits`` has
    conditions on sizes of which one must hold.
    """

    layers: int = 0
    reasons: tuple[str, ...] = ()
    limits: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _Update:
    """One half of the cache of a layer: what was there, what is appended, and both."""

    past: Any
    new: Any
    present: Any


class _UnfitError(Exception):
    """An attention that stays as it is, with the reason."""


def fuse_group_query(model: Any) -> Fused:
    """Makes a GroupQueryAttention of each attention of a model of onnx_ir that is one, in place."""
    sizes = SizeNodes(model)
    biases: dict[int, Any] = {}
    reasons: dict[str, None] = {}
    limits: dict[tuple[str, ...], None] = {}
    layers = 0
    for node in [node for node in model.graph if node.op_type == "Attention" and node.domain == ""]:
        try:
            _fuse(model, node, sizes, biases)
        except _UnfitError as error:
            reasons[str(error)] = None
            continue
        layers += 1
        limit = _limit(node.inputs[0], sizes, sizes.text(node.inputs[2], 2))
        limits |= {limit: None} if limit else {}
    if layers:
        model.opset_imports.setdefault(_DOMAIN, 1)
    return Fused(layers, tuple(reasons), tuple(limits))


def _fuse(model: Any, node: Any, sizes: SizeNodes, biases: dict[int, Any]) -> None:
    """Puts a GroupQueryAttention in the place of an attention.

    :raises _UnfitError: with the reason, before anything is changed
    """
    import onnx_ir

    query, keys, values, mask = _inputs(node)
    heads, head_size = _number(query, 1), _number(query, 3)
    key, value = _update(keys), _update(values)
    key_heads = _number(key.past, 1)
    if head_size % _MULTIPLE or _number(value.past, 3) != head_size:
        raise _UnfitError(f"heads of {head_size} numbers, and not of a multiple of {_MULTIPLE}")
    if heads % key_heads:
        raise _UnfitError(f"{heads} heads cannot share {key_heads}")
    if sizes.text(key.new, 2) != sizes.text(query, 2):
        raise _UnfitError("the cache does not grow by the tokens that attend")
    tokens, whole = sizes.text(query, 2), sizes.text(key.present, 2)
    if not tokens or not whole or sizes.text(keys, 2) != whole or sizes.text(values, 2) != whole:
        raise _UnfitError("its sizes are not known")
    if not is_causal(mask, tokens, whole, sizes):
        raise _UnfitError("its mask may let a token look ahead")
    total = sizes.value(key.present, 2)
    batch = sizes.value(query, 0)
    if total is None or batch is None:
        raise _UnfitError("no input tells how long the cache is")

    graph, tape = model.graph, onnx_ir.tape.Tape(model.graph)
    if id(mask) not in biases:
        biases[id(mask)] = _bias(tape, mask, query.dtype)
    length = tape.op("Cast", [total], attributes={"to": onnx_ir.DataType.INT32})
    last = tape.op("Sub", [length, _constant(tape, [1], numpy.int32)])
    inputs = [_flat(tape, states) for states in (query, key.new, value.new)]
    inputs += [key.past, value.past, tape.op("Expand", [last, batch]), tape.op("Squeeze", [length])]
    inputs += [None, None, None, biases[id(mask)]]
    attributes = {"num_heads": heads, "kv_num_heads": key_heads}
    if "scale" in node.attributes:
        attributes["scale"] = node.attributes["scale"].as_float()
    output, present_key, present_value = tape.op_multi_out(
        "GroupQueryAttention", inputs, attributes=attributes, domain=_DOMAIN, num_outputs=3
    )
    split = _constant(tape, [0, 0, heads, head_size], numpy.int64)
    by_token = tape.op("Reshape", [output, split])
    result = tape.op("Transpose", [by_token], attributes={"perm": [0, 2, 1, 3]})
    old = node.outputs[0]
    alike = ((present_key, key.present), (present_value, value.present), (result, old))
    for made, like in alike:
        made.shape, made.dtype = like.shape, like.dtype
    batch_size, tokens = query.shape[0], query.shape[2]
    output.shape = onnx_ir.Shape([batch_size, tokens, heads * head_size])
    by_token.shape = onnx_ir.Shape([batch_size, tokens, heads, head_size])
    output.dtype = by_token.dtype = query.dtype
    graph.insert_before(node, tape.nodes)
    for made, like in alike:
        sizes.replace(like, made)


def _inputs(node: Any) -> tuple[Any, Any, Any, Any]:
    """Queries, keys, values and mask of an attention that computes nothing else.

    :raises _UnfitError: for one that does
    """
    given = [*node.inputs, None, None]
    others = [value for value in node.inputs[4:] if value is not None]
    if others or any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise _UnfitError("it has a cache of its own")
    if node.attributes.get_int("is_causal", 0) or given[3] is None:
        raise _UnfitError("it has no mask")
    if node.attributes.get_float("softcap", 0.0):
        raise _UnfitError("its scores are capped")
    for value in given[:4]:
        if value.shape is None or len(value.shape) != 4:
            raise _UnfitError("its sizes are not known")
    return given[0], given[1], given[2], given[3]


def _number(value: Any, axis: int) -> int:
    size = value.shape[axis]
    if not isinstance(size, int):
        raise _UnfitError("its heads have no fixed number and size")
    return size


def _update(states: Any) -> _Update:
    """The cache that keys or values are: repeated for the heads that share one, or as it is.

    :raises _UnfitError: where they are no cache that grows by ``Concat(past, new)``
    """
    present = _repeated(states)
    concat = present.producer()
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != 2:
        raise _UnfitError("its keys and values are no cache that grows by Concat")
    past, new = concat.inputs
    if concat.attributes.get_int("axis") not in (2, -2) or not past.is_graph_input():
        raise _UnfitError("its keys and values are no cache that grows by Concat")
    readers = {usage.node.op_type for usage in present.uses()}
    if not readers <= {"Unsqueeze", "Attention", "Shape"}:
        raise _UnfitError("something else reads its cache too")
    return _Update(past, new, present)


def _repeated(states: Any) -> Any:
    """Returns the value that is repeated in ``Reshape(Expand(Unsqueeze(x, 2)))``, ``(batch, heads,
    length, size)`` as ``(batch, heads * groups, length, size)``; other values as they are.
    """
    reshape = _made_by(states, "Reshape")
    expand = _made_by(reshape.inputs[0], "Expand") if reshape is not None else None
    unsqueeze = _made_by(expand.inputs[0], "Unsqueeze") if expand is not None else None
    if unsqueeze is None or unsqueeze.inputs[1].const_value is None:
        return states
    axes = unsqueeze.inputs[1].const_value.numpy().tolist()
    source, wide = unsqueeze.inputs[0], reshape.inputs[0]
    if axes not in ([2], [-3]) or source.shape is None or wide.shape is None:
        return states
    sizes = list(wide.shape)
    groups = sizes.pop(2) if len(sizes) == 5 else None
    if not isinstance(groups, int) or sizes != list(source.shape):
        return states
    is_merged = _number(states, 1) == _number(source, 1) * groups
    return source if is_merged and list(states.shape[2:]) == list(source.shape[2:]) else states


def _made_by(value: Any, op_type: str) -> Any:
    node = value.producer()
    return node if node is not None and node.op_type == op_type else None


def _bias(tape: Any, mask: Any, dtype: Any) -> Any:
    """The mask that is added to the scores: a bool says which of them count."""
    import onnx_ir

    if mask.dtype != onnx_ir.DataType.BOOL:
        return mask
    zero = _constant(tape, 0.0, dtype.numpy())
    lowest = _constant(tape, max(_LOWEST, numpy.finfo(dtype.numpy()).min), dtype.numpy())
    bias = tape.op("Where", [mask, zero, lowest])
    bias.shape, bias.dtype = mask.shape, dtype
    return bias


def _flat(tape: Any, states: Any) -> Any:
    """``(batch, heads, length, size)`` as ``(batch, length, heads * size)``."""
    import onnx_ir

    batch, heads, length, size = states.shape
    moved = tape.op("Transpose", [states], attributes={"perm": [0, 2, 1, 3]})
    flat = tape.op("Reshape", [moved, _constant(tape, [0, 0, -1], numpy.int64)])
    moved.shape = onnx_ir.Shape([batch, length, heads, size])
    flat.shape = onnx_ir.Shape([batch, length, heads * size])
    moved.dtype = flat.dtype = states.dtype
    return flat


def _constant(tape: Any, values: Any, dtype: Any) -> Any:
    import onnx_ir

    return tape.op(
        "Constant", [], attributes={"value": onnx_ir.tensor(numpy.array(values, dtype=dtype))}
    )


def _limit(query: Any, sizes: SizeNodes, total: str) -> tuple[str, ...]:
    """One row, one new token, or no past: each as a condition; none where one of them always is
    so.
    """
    batch, tokens = sizes.text(query, 0), sizes.text(query, 2)
    past = str(Expression.parse(total) - Expression.parse(tokens))
    if "1" in (batch, tokens) or past == "0":
        return ()
    return f"{batch} == 1", f"{tokens} == 1", f"{past} == 0"
