"""Takes back the shapes that the converter of torch wrote into a model, where they hold for the
example only.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

__all__ = ["forget_narrow_shapes"]

logger = logging.getLogger(__name__)


def forget_narrow_shapes(model: Any, program: torch.export.ExportedProgram) -> bool:
    """Removes the shapes of all intermediate results when one of them is a number and the program
    says it changes.

    The converter traces the program anew to decompose its operators, and a question such as
    ``chunks == 1`` is then answered for the example: the number is written down as the size of
    results, and what simplifies the model afterwards, as ONNX Runtime does when it loads it, relies
    on that. True when shapes were removed.
    """
    shapes = {
        node.name: node.meta["val"].shape
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)  # a block of autocast is a graph of its own
        for node in module.graph.nodes
        if _is_tensor(node.meta.get("val"))
    }
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


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_narrow(written: Any, traced: Any) -> bool:
    """True when a size is a number here and changes there."""
    if written is None or traced is None or len(written) != len(traced):
        return False
    sizes = zip(written, traced, strict=True)
    return any(isinstance(here, int) and not isinstance(there, int) for here, there in sizes)
