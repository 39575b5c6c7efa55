"""Compiles an exported graph ahead of time with AOTInductor."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...contract.places import formulas_of, spelled_axis
from ...core.errors import ExportError
from ...trace.graph import Graph
from ...trace.torch_run import without_guards
from ..inputs import fake_inputs, layout_of, with_tensors_for_ints
from ..refused import operator_in, refused_graph

__all__ = ["CONDITIONS", "LAYOUTS", "Package", "compile_graph", "layouts_in"]

logger = logging.getLogger(__name__)
#: where the metadata of a package has what the inputs have to obey, and how they have to lie
CONDITIONS = "onlooker.conditions"
LAYOUTS = "onlooker.layouts"


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled graph: the content of the package, and the weights that it has to be given, by
    name.
    """

    content: bytes
    weights: Mapping[str, torch.Tensor]


def compile_graph(graph: Graph) -> Package:
    """The package of a graph of torch, without its weights.

    :raises ExportError: ``aoti-refused`` with the message of the compiler
    """
    program = graph.artifact
    about = {
        CONDITIONS: json.dumps(formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))),
        LAYOUTS: json.dumps(layouts_in(graph)),
    }
    options = {"aot_inductor.package_constants_in_so": False, "aot_inductor.metadata": about}
    from ...torch_internals.compiled import aoti_compile_and_package

    with tempfile.TemporaryDirectory(prefix="onlooker-") as folder:
        path = str(Path(folder, "package.pt2"))
        try:
            with warnings.catch_warnings(), torch.no_grad(), without_guards(program):
                warnings.simplefilter("ignore")
                ready = with_tensors_for_ints(program)
                aoti_compile_and_package(ready, package_path=path, inductor_configs=options)
        except Exception as error:
            reason = f"{_shortened(error)}{operator_in(str(error), program.graph)}"
            refusal = ExportError(
                f"cannot be compiled by AOTInductor: {reason}", slug="aoti-refused"
            )
            raise refused_graph(graph, refusal, error) from None
        content = Path(path).read_bytes()
    return Package(content, {**program.constants, **program.state_dict})


def _shortened(error: Exception) -> str:
    """The class and the first lines: a compiler says a lot."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"


def layouts_in(graph: Graph) -> list[list[int] | None]:
    """Per input the order of its dimensions in memory; None for an int.

    :raises ExportError: ``aoti-refused`` for an input with gaps
    """
    found: list[list[int] | None] = []
    for path, value in fake_inputs(graph):
        order = layout_of(value) if isinstance(value, torch.Tensor) else None
        if order is None and isinstance(value, torch.Tensor):
            raise ExportError(
                f"{path} was exported with gaps in memory, which AOTInductor would take for the"
                " layout of every call.",
                slug="aoti-refused",
                hint="Call the model with contiguous tensors while it is watched.",
            )
        found.append(order)
    return found
