"""The shapes of intermediate results in a converted model: taken back where the converter wrote what
holds for the example only, and written as the trace has them for those who look for patterns.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

__all__ = ["forget_narrow_shapes", "write_traced_shapes"]

logger = logging.getLogger(__name__)


def forget_narrow_shapes(model: Any, program: torch.export.ExportedProgram) -> bool:
    """Removes the shapes of all intermediate results when one of them is a number and the program
    says it changes.

    The converter traces the program anew to decompose its operators, and a question such as
    ``chunks == 1`` is then answered for the example: the number is written down as the size of
    results, and what simplifies the model afterwards, as ONNX Runtime does when it loads it, relies
    on that. True when shapes were removed.
    """
    shapes = _traced_shapes(program)
    results = [value for node in model.graph for value in node.outputs]
    wrong = [value.name for value in results if _is_narrow(value.shape, shapes.get(value.name))]
    if not wrong:
        return False
    logger.debug("shapes of intermediate results are left out: %s hold for the example only", wrong)
    kept = {id(value) for value in model.graph.outputs}
    for value in results:
        if id(value) not in kept:
            value.shape = None
    return True


def write_traced_shapes(model: Any, program: torch.export.ExportedProgram) -> None:
    """Gives results that have the name of an operator of ``program`` the shape that they have there.

    ``program`` is the one that the converter made, whose operators are those of ONNX by name. A size
    that changes is an expression in the names of the trace. Sizes that hold for the example only may
    be among them: what is made of a model with these shapes has to be tried.
    """
    import onnx_ir

    shapes = _traced_shapes(program)
    for node in model.graph:
        for value in node.outputs:
            traced = shapes.get(value.name)
            known = value.shape
            if traced is not None and (known is None or len(known) == len(traced)):
                value.shape = onnx_ir.Shape(
                    [size if isinstance(size, int) else str(size) for size in traced]
                )


def _traced_shapes(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """The shapes of the tensors of a program by the names of their nodes."""
    return {
        node.name: node.meta["val"].shape
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)  # a block of autocast is a graph of its own
        for node in module.graph.nodes
        if _is_tensor(node.meta.get("val"))
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_narrow(written: Any, traced: Any) -> bool:
    """True when a size is a number here and changes there."""
    if written is None or traced is None or len(written) != len(traced):
        return False
    sizes = zip(written, traced, strict=True)
    return any(isinstance(here, int) and not isinstance(there, int) for here, there in sizes)
