"""Runs an exported program of torch on its inputs in their order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..contract.places import Spelling
from ..core.path import Path
from ..core.spec import Axis
from ..torch_internals.sizes import ValueRanges, int_oo
from ..torch_internals.trees import torch_pytree
from .graph import Runner
from .running.grouped_heads import share_heads
from .running.straight_code import straight_code

__all__ = ["as_guards", "runner_of", "runner_on_demand", "without_guards", "write_contract"]


def runner_of(
    program: torch.export.ExportedProgram, names: Sequence[str], *, as_traced: bool = False
) -> Runner:
    """A function of the inputs, in the order of ``names``, that runs the program without its guards
    on sizes.

    The contract of the graph is checked before (:mod:`onlooker.contract`); assertions on values
    stay in the program. The module that torch gives opens its arguments twice, once to compare
    their structure and once to read them, which for a cache of many layers takes as long as many a
    small graph. Ours are flat, so its graph is written as one function of a list; where it is not
    as expected, the module is called by name. ``as_traced`` keeps all operators, for comparisons of
    these with what the model runs.
    """
    module = program.module(check_guards=False)
    order = _order(program, module, names)
    if not as_traced:
        share_heads(module.graph)
    forward = None if order is None else straight_code(module.graph, module)
    if order is None or forward is None:
        module.recompile()
        return lambda inputs: module(**dict(zip(names, inputs, strict=True)))
    if order == list(range(len(names))):
        return forward
    return lambda inputs: forward([inputs[position] for position in order])


def _order(
    program: torch.export.ExportedProgram, module: Any, names: Sequence[str]
) -> list[int] | None:
    """The position among ``names`` of each placeholder; None when the graph is not flat."""
    spec = program.call_spec
    if spec.in_spec is None or spec.out_spec is None:
        return None
    count = len(module.graph.find_nodes(op="placeholder"))
    given, results = spec.in_spec.num_leaves, spec.out_spec.num_leaves
    args, kwargs = torch_pytree.tree_unflatten(range(given), spec.in_spec)
    outputs = torch_pytree.tree_unflatten(range(results), spec.out_spec)
    flat = list(kwargs.values()) == list(range(count)) and set(kwargs) == set(names)
    if args or not flat or outputs != tuple(range(results)):
        return None
    positions = {name: position for position, name in enumerate(names)}
    return [positions[name] for name in kwargs]


def runner_on_demand(
    program: torch.export.ExportedProgram, names: Sequence[str], *, as_traced: bool = False
) -> Runner:
    """Returns a runner that is made by the first run: a graph whose guards and ranges still change
    is mostly never run. ``as_traced`` as for :func:`runner_of`.
    """
    made: list[Runner] = []

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        if not made:
            made.append(runner_of(program, names, as_traced=as_traced))
        return made[0](inputs)

    return run


def as_guards(names: Mapping[Path, str]) -> Spelling:
    """Axes as torch reads them in the guards of a program with flat inputs:
    ``L['x'].size()[1]``.
    """

    def spell(axis: Axis) -> str:
        source = f"L[{names[axis.path]!r}]"
        return source if axis.dim is None else f"{source}.size()[{axis.dim}]"

    return spell


def write_contract(program: torch.export.ExportedProgram, conditions: Sequence[str]) -> None:
    """Makes the contract the guards of a program, for whoever takes it out of onlooker, or saves it
    by itself.

    What torch assumed while it traced (every size is at least 2) and what it compared goes: the
    contract has what is needed of it. So does the range of an expression (``s0 + s1``): no file has
    a place for it.
    """
    ranges = program.range_constraints
    for size in list(ranges):
        del ranges[size]
        if size.is_Symbol:
            ranges[size] = ValueRanges(0, int_oo)
    program._guards_code = list(conditions)


@contextlib.contextmanager
def without_guards(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Inside the block the program has no guards on sizes: the contract of the graph is checked in
    their place.

    A converter that traces the program anew runs the guards on sizes that may change, and one that
    computes with floats (``math.ceil(float(1 - 2*s0) / -1.0)``) makes such a size the number of the
    example. Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/export/_unlift.py,
    where ``_unlift_exported_program_lifted_states`` makes ``_guards_fn``.
    """
    guards = program._guards_code
    program._guards_code = []
    try:
        yield
    finally:
        program._guards_code = guards
