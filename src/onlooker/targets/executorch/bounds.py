"""Upper bounds of sizes, where ExecuTorch reads them: in the ranges that torch keeps of its symbols.

Without a bound ExecuTorch plans its memory for the sizes of the example, and refuses larger ones
when it runs. Upstream: https://github.com/pytorch/executorch/issues/20834,
``exir/sym_util.py``, ``eval_upper_bound``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...core.expression import Expression
from ...hypotheses.ranges import greatest
from ...patches.swap import swapped
from ...torch_internals.sizes import ValueRanges
from ...trace.graph import Graph
from ...trace.obtained import sizes_in_plan

__all__ = ["bounds_in_torch"]


@contextlib.contextmanager
def bounds_in_torch(graphs: Sequence[Graph]) -> Iterator[list[str]]:
    """Inside the block torch knows the greatest value of each symbol of the programs of ``graphs``,
    whose plans have bounds. Afterwards the programs are as they were.

    A size that is an expression of others needs nothing: ExecuTorch computes its bound from theirs.
    Yields a list of the sizes that were made numbers meanwhile, complete when the block has ended.
    """
    from executorch.exir.verification import verifier

    baked: list[str] = []
    environments = [_environment(graph.artifact) for graph in graphs]
    check = verifier._check_tensor_args_matching_op_allowed_dtype
    with contextlib.ExitStack() as stack:
        for graph, environment in zip(graphs, environments, strict=True):
            if environment is not None:
                stack.enter_context(_bounded(graph, environment, baked))
        unguarded = _unguarded(check, [each for each in environments if each is not None])
        stack.enter_context(swapped(verifier, check.__name__, unguarded))
        yield baked


@contextlib.contextmanager
def _bounded(graph: Graph, environment: Any, baked: list[str]) -> Iterator[None]:
    ranges, replacements = environment.var_to_range, environment.replacements
    before, replaced = dict(ranges), dict(replacements)
    symbols = {symbol.name: symbol for symbol in graph.plan.symbols}
    sizes = sizes_in_plan(graph.artifact, graph.plan, graph.names)
    for symbol, size in sizes.items():
        if symbol in ranges and size.free_symbols:
            least = int(ranges[symbol].lower)
            # with one value left it would be a number, and smaller sizes would not be taken
            most = max(greatest(Expression(size), symbols), least + 1)
            ranges[symbol] = ValueRanges(least, most)
    environment._version_counter += 1  # what was decided with the other ranges is decided anew
    try:
        yield
    finally:
        baked += [
            f"{size} = {replacements[symbol]}"
            for symbol, size in sizes.items()
            if symbol in replacements and symbol not in replaced and replacements[symbol].is_number
        ]
        ranges.update(before)
        replacements.clear()
        replacements.update(replaced)
        environment._version_counter += 1
        environment.pending_fresh_unbacked_symbols.clear()


def _unguarded(check: Callable[[Any], None], environments: Sequence[Any]) -> Callable[[Any], None]:
    """The check of ExecuTorch without the guards that it leaves in torch.

    For an operator that gives a list of tensors it takes the first tensor for the list, and its
    length, which is the batch, becomes a number. Upstream: ``exir/verification/arg_validator.py``,
    ``call_function`` (executorch 1.5).
    """

    def checked(module: Any) -> None:
        with contextlib.ExitStack() as stack:
            for environment in environments:
                stack.enter_context(environment.suppress_guards())
            check(module)

    return checked


def _environment(program: torch.export.ExportedProgram) -> Any:
    """What torch knows of the sizes of a program; None where all are numbers."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    modes = (getattr(value, "fake_mode", None) for value in values)
    mode = next((mode for mode in modes if mode is not None), None)
    return None if mode is None else mode.shape_env
