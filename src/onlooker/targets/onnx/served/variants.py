"""Variants of a model of ONNX that are made to be served: operators of ONNX Runtime in the place of
several plain ones, smaller weights, a cache that is updated in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from ....core.contract import Constraint, Contract, Origin, Region
from ....core.errors import ExportError, OnlookerError, UsageError
from ....core.support.packages import require_packages
from ....trace.graph import Graph
from .group_query import Fused, fuse_group_query
from .in_place import make_in_place
from .precisions import with_precision

__all__ = [
    "FUSED_OPSET",
    "PROVIDERS",
    "VARIANT",
    "Variant",
    "made_variant",
    "variant_of",
]


#: the keywords that users give
VARIANT = ("fuse", "in_place_cache")
#: for what transformers fuses
PROVIDERS = ("cpu", "cuda", "webgpu")
#: the first opset with Attention, which the fusions begin with
FUSED_OPSET = 23


@dataclass(frozen=True, slots=True)
class Variant:
    """The variant that a user asked for; a plain model has none of it."""

    precision: str = ""
    fuse: str = ""
    in_place_cache: bool = False

    @property
    def is_plain(self) -> bool:
        """True for the model as it was converted."""
        return self == Variant()

    @property
    def options(self) -> dict[str, str]:
        """The options that were given, by keyword."""
        found = {"precision": self.precision, "fuse": self.fuse}
        in_place = {"in_place_cache": "True"} if self.in_place_cache else {}
        return {name: value for name, value in found.items() if value} | in_place


def variant_of(
    precision: str | None, fuse: Any, in_place_cache: Any, *, opset: int | None, merged: bool
) -> Variant:
    """Checks the variant that a user gave before any work is done with it.

    A cache in place needs GroupQueryAttention: it is fused for the CPU where nothing else is asked.

    :raises UsageError: ``bad-variant``
    :raises MissingPackageError: ``missing-package``
    """
    if fuse not in (None, *PROVIDERS):
        raise _bad(f"fuse is {fuse!r}.", f"Give one of {', '.join(PROVIDERS)}.")
    if not isinstance(in_place_cache, bool):
        raise _bad(f"in_place_cache is {in_place_cache!r}.", "Give True or False.")
    if (fuse or in_place_cache) and merged:
        raise _bad("A merged model is not fused.", "Leave merged=True out.")
    chosen = fuse or ("cpu" if in_place_cache else "")
    if chosen and opset is not None and opset < FUSED_OPSET:
        raise _bad(
            f"opset={opset} has no Attention, which the fusions begin with.",
            f"Leave opset out, or give {FUSED_OPSET}.",
        )
    if chosen:
        require_packages("transformers", purpose="An export to fused ONNX", extra="transformers")
        if find_spec("transformers.exporters") is None:
            raise _bad(
                "The installed transformers has no fusions for ONNX Runtime.",
                "Install transformers 5.23 or newer.",
            )
    return Variant(precision or "", chosen, in_place_cache)


def _bad(message: str, hint: str) -> UsageError:
    return UsageError(message, slug="bad-variant", hint=hint)


def made_variant(
    model: Any, graph: Graph, variant: Variant, calls: Sequence[Sequence[Any]]
) -> tuple[Any, Graph]:
    """The model of a graph as it was asked for, and the graph with what this changes: its options,
    a note of what was fused, and the sizes that it no longer takes. ``calls`` are the inputs of
    those that a precision is calibrated on.

    :raises ExportError: ``onnx-refused``, ``onnx-cache-not-in-place``, ``onnx-not-quantised``
    """
    notes: list[str] = []
    contract = graph.contract
    try:
        if variant.fuse:
            fused = fuse_group_query(model)
            _fuse_the_rest(model, variant.fuse)
            notes.append(_fusion_note(model, fused, variant.fuse))
            for limit in fused.limits:
                contract = _limited(contract, limit)
        if variant.in_place_cache:
            make_in_place(model, graph)
        if variant.precision:
            whole = variant.in_place_cache
            model = with_precision(model, variant.precision, graph, whole_caches=whole, calls=calls)
    except OnlookerError:
        raise
    except Exception as error:  # of transformers, onnxscript or ONNX Runtime
        asked = ", ".join(f"{name}={value}" for name, value in variant.options.items())
        raise ExportError(
            f"{graph.name} cannot be made with {asked}: {type(error).__name__}: {error}",
            slug="onnx-refused",
            hint='program.to("onnx") without these options may hold.',
        ) from error
    made = replace(
        graph,
        contract=contract,
        notes=(*graph.notes, *notes),
        options={**graph.options, **variant.options},
    )
    return model, made


def _fuse_the_rest(model: Any, provider: str) -> None:
    """Norms, rotations, packed projections and others, by the fusions of transformers.

    They look for a SimplifiedLayerNormalization, which is the RMSNormalization of opset 23 under the
    name of ONNX Runtime.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass
    from transformers.exporters.onnxruntime_fusions import fuse_for_onnxruntime

    TopologicalSortPass()(model)
    RemoveUnusedNodesPass()(model)
    for node in model.graph:
        if node.op_type == "RMSNormalization" and node.domain == "":
            node.op_type = "SimplifiedLayerNormalization"
            node.version = None
    names = [value.name for value in model.graph.outputs]
    fuse_for_onnxruntime(model, provider)
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name


def _fusion_note(model: Any, fused: Fused, provider: str) -> str:
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        if node.domain == "com.microsoft" or node.op_type == "SimplifiedLayerNormalization":
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"
    reasons = "; ".join(fused.reasons)
    left = f"; an attention stays as it is, since {reasons}" if reasons else ""
    return f"fused for {provider}: {listed}{left}"


def _limited(contract: Contract, limit: Sequence[str]) -> Contract:
    """The contract with one of some conditions in each of its regions."""
    line = "GroupQueryAttention of ONNX Runtime takes several tokens after a past for one row only"
    constraints = [Constraint(formula, Origin.RUNTIME, line) for formula in limit]

    def limited(region: Region) -> Iterator[Region]:
        for constraint in constraints:
            yield Region((*region.constraints, constraint), region.evidence)

    return contract.narrowed(limited)
