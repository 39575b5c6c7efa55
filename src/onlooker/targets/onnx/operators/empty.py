"""Tensors without an element in a converted model, as torch reads them."""

from __future__ import annotations

from typing import Any

__all__ = ["empty_tensors_as_in_torch"]

#: the reductions that have a result for no elements
_REDUCTIONS = ("ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2")


def empty_tensors_as_in_torch(model: Any) -> None:
    """Lets reductions and reshapes of ``model`` take tensors without an element, in place.

    - ONNX Runtime 1.31 gives the sum of (7, 0) over axis -1 the shape (7, 0), and over axis 1 the shape
      (7,): constant axes are counted from the front. Upstream: ``upstream/onnxruntime_axis_of_no_elements.py``.
    - A size of 0 among those that Reshape is given stands for the size that its input has there; a size
      that is computed never does, and says 0 where it is 0 (``allowzero``). The constant -1 excludes it.
    """
    import onnx_ir

    for node in list(model.graph.all_nodes()):
        if node.op_type in _REDUCTIONS and not node.domain:
            _count_from_the_front(node)
        elif node.op_type == "Reshape" and not node.domain and _is_computed(node.inputs[1]):
            node.attributes["allowzero"] = onnx_ir.AttrInt64("allowzero", 1)


def _count_from_the_front(node: Any) -> None:
    """Writes the constant axes of a reduction as numbers from 0."""
    import onnx_ir

    shape = node.inputs[0].shape
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    if shape is None or axes is None or (axes.numpy() >= 0).all():
        return
    name = f"{node.outputs[0].name}_axes"
    counted = onnx_ir.val(name, const_value=onnx_ir.tensor(axes.numpy() % len(shape), name=name))
    node.graph.register_initializer(counted)
    node.replace_input_with(1, counted)


def _is_computed(sizes: Any) -> bool:
    """Whether sizes are computed, and none of them is a constant -1 or 0."""
    maker = sizes.producer()
    if maker is None or sizes.const_value is not None:
        return False
    parts = maker.inputs if maker.op_type == "Concat" else ()
    constants = [part.const_value.numpy() for part in parts if part.const_value is not None]
    return maker.op_type in ("Concat", "Shape") and all((known > 0).all() for known in constants)
