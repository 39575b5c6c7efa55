"""Marks for torch.compile as text: a function that marks the arguments of one call, and the same for
those who mark by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.path import Name, Path
from ..core.plan import LeafPlan
from .traffic import Served

__all__ = ["marking_lines"]


def _changing(graphs: Sequence[Served]) -> dict[Path, dict[int, str]]:
    """The dimensions that change in some graph, each with its size in words, by the tensor."""
    found: dict[Path, dict[int, str]] = {}
    for served in graphs:
        for leaf in served.plan.inputs:
            for dim, expression in enumerate(leaf.shape):
                if expression.symbols and leaf.is_tensor:
                    found.setdefault(leaf.path, {}).setdefault(dim, str(expression))
    return {path: dict(sorted(sizes.items())) for path, sizes in found.items()}


def marking_lines(graphs: Sequence[Served]) -> list[str]:
    """A function that marks a call, the sources for ``TORCH_COMPILE_DYNAMIC_SOURCES``, and what
    vLLM's ``support_torch_compile`` takes.
    """
    leaves = _changing(graphs)
    roots = list(dict.fromkeys(path.root for path in leaves))
    always = [root for root in roots if all(_has(served, root) for served in graphs)]
    optional = [root for root in roots if root not in always]
    arguments = ", ".join([*always, *(f"{root}=None" for root in optional)])
    lines = ["from torch._dynamo import maybe_mark_dynamic", "", "", f"def mark({arguments}, **_):"]
    lines.append('    """Marks the sizes that change, before compiled(...) is called."""')
    for root in roots:
        indent = "    "
        if root in optional:
            lines.append(f"    if {root} is not None:")
            indent = "        "
        for path, sizes in leaves.items():
            if path.root == root:
                lines += [
                    f"{indent}maybe_mark_dynamic({path.code()}, {dim})  # {size}"
                    for dim, size in sizes.items()
                ]
    sources = ",".join(_source(path) for path in leaves)
    lines += ["", "", "# the same without code, for all sizes of these arguments:"]
    lines.append(f'# TORCH_COMPILE_DYNAMIC_SOURCES="{sources}"')
    dims = {path.root: sizes for path, sizes in leaves.items() if len(path.entries) == 1}
    lines.append(f"# vLLM: @support_torch_compile(dynamic_arg_dims={dims})")
    return lines


def _has(served: Served, root: str) -> bool:
    """True where a call of a graph brings the argument."""
    leaves: list[LeafPlan] = [leaf for leaf in served.plan.leaves if leaf.path.root == root]
    return any(leaf.fill is None for leaf in leaves)


def _source(path: Path) -> str:
    """The name that torch.compile gives to an argument: ``L['past'].layers[0].keys``."""
    rest = Path(path.entries[1:]).code()
    first = path.entries[0]
    return f"L['{first.name}']{rest}" if isinstance(first, Name) else path.code()
