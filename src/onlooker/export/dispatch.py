"""Finds the graph that serves a call, fills what the call does not have, and refuses what none can serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.call import Signature
from ..core.errors import RejectedCallError
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.spec import ConstantSpec
from ..core.structure import Tree
from ..materialise.arguments import fill_of
from ..materialise.counting import sizes_of
from ..observe.bind import bind, python_signature
from ..pytrees.joins import Join, join_tensors, joined
from ..pytrees.open import close_tree, open_arguments, spec_of
from .graph import Graph

__all__ = ["Dispatcher", "Mismatch", "inputs_of"]


class Mismatch(Exception):
    """Why one graph does not take a call; never seen by a user."""


class Dispatcher:
    """Serves calls of one method by the first graph that takes them."""

    def __init__(self, graphs: Sequence[Graph], signature: Signature, joins: Sequence[Join] = ()) -> None:
        self.graphs = tuple(graphs)
        self.joins = tuple(joins)
        self.signature = signature
        self._python = python_signature(signature)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call, in the classes of the model.

        :raises RejectedCallError: ``call-refused`` with the reason of each graph
        """
        try:
            values, _ = bind(self._python, args, kwargs)
        except TypeError as error:
            raise RejectedCallError(
                f"The call does not fit the signature of the model: {error}.", slug="call-does-not-bind"
            ) from error
        tree = joined(open_arguments(values), self.joins, join_tensors)
        reasons = []
        for graph in self.graphs:
            try:
                return self.run(graph, tree)
            except Mismatch as mismatch:
                reasons.append(f"{graph.name}: {mismatch}" if len(self.graphs) > 1 else str(mismatch))
        raise RejectedCallError(
            f"No graph of this program takes the call. {'; '.join(reasons)}.",
            slug="call-refused",
            hint="Watch such a call and export again, or change the call.",
        )

    def run(self, graph: Graph, tree: Tree[Any]) -> Any:
        """The result of one graph; :class:`Mismatch` when it does not take the call."""
        inputs = inputs_of(graph.plan, tree, self.signature)
        try:
            leaves = graph(inputs)
        except (AssertionError, RuntimeError) as error:
            raise Mismatch(_reason(error)) from error
        return close_tree(graph.outputs.structure, leaves)


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"the program refuses it ({lines[0][:300] if lines else type(error).__name__})"


def inputs_of(plan: Plan, tree: Tree[Any], signature: Signature) -> list[Any]:
    """The inputs of a graph, in the order of its plan, from the leaves of a call."""
    given = dict(tree.items())
    present = frozenset(given)
    found: dict[Path, Any] = {}
    missing: list[LeafPlan] = []
    for leaf in plan.leaves:
        value = given.pop(leaf.path, None)
        if leaf.is_constant:
            _check_constant(leaf, value, leaf.path in present, plan, signature)
        elif value is None:
            missing.append(leaf)
        else:
            found[leaf.path] = _checked(leaf, value)
    _check_rest(given, signature)
    if missing:
        _fill(plan, missing, found)
    return [found[leaf.path] for leaf in plan.inputs]


def _checked(leaf: LeafPlan, value: Any) -> Any:
    if not leaf.is_tensor:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Mismatch(f"{leaf.path} is an int, the call has {spec_of(value)}")
        return value
    if not isinstance(value, torch.Tensor):
        raise Mismatch(f"{leaf.path} is a tensor, the call has {spec_of(value)}")
    if str(value.dtype) != leaf.dtype or value.ndim != len(leaf.shape):
        raise Mismatch(f"{leaf.path} is a {_kind(leaf)}, the call has {spec_of(value)}")
    for dim, (expression, size) in enumerate(zip(leaf.shape, value.shape, strict=True)):
        if expression.is_constant and expression.evaluate({}) != size:
            raise Mismatch(f"{leaf.path}.shape[{dim}] is always {expression}, the call has {size}")
    return value


def _kind(leaf: LeafPlan) -> str:
    return f"{leaf.dtype.removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"


def _check_constant(leaf: LeafPlan, value: Any, present: bool, plan: Plan, signature: Signature) -> None:
    baked = leaf.constant
    if baked is None:
        return
    if present:
        if spec_of(value) != baked:
            raise Mismatch(f"{leaf.path} is always {baked}, the call has {spec_of(value)}")
        return
    parameter = signature.get(leaf.path.root)
    default = parameter.default if parameter is not None else None
    if leaf.calls == len(plan.calls) and default != baked and baked.value is not None:
        raise Mismatch(f"{leaf.path} is always {baked}, the call does not give it")


def _check_rest(given: Mapping[Path, Any], signature: Signature) -> None:
    """What the graph has no place for must be nothing, or what the signature says anyway."""
    for path, value in given.items():
        parameter = signature.get(path.root)
        if (
            value is None
            or _is_empty(value)
            or (parameter is not None and parameter.default == spec_of(value) != ConstantSpec(None))
        ):
            continue
        raise Mismatch(f"{path} is not an input, the call has {spec_of(value)}")


def _is_empty(value: Any) -> bool:
    """True for a tensor without elements: an empty cache is no cache."""
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _fill(plan: Plan, missing: Sequence[LeafPlan], found: dict[Path, Any]) -> None:
    for leaf in missing:
        if leaf.fill is None:
            raise Mismatch(f"{leaf.path} was in every observed call, this one does not have it")
        if leaf.fill.kind == "constant":
            found[leaf.path] = leaf.fill.value
    sizes = sizes_of(plan, found)
    for leaf in missing:
        if leaf.is_tensor:
            found[leaf.path] = fill_of(leaf, sizes)
