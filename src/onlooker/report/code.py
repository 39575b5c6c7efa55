"""Writes a program down as a Python script that exports the model again, without onlooker.

Where the model takes and gives tensors, lists and dicts alone, the script exports the model itself;
where there are classes (caches, outputs of transformers) or ``**kwargs``, it exports a small module
around it that takes and gives lists and dicts, since torch.export wants every class registered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.call import Signature
from .code_classes import Imports
from .code_data import GraphCode
from .code_graph import Written, written

__all__ = ["script_of"]

_MADE = '''
def made(cls, **attributes):
    """An object with these attributes; its __init__ could make tensors, which torch would take for constants."""
    obj = object.__new__(cls)
    vars(obj).update(attributes)
    return obj
'''

_GUARDED = '''
def guarded(program, *conditions):
    """Lets the program check these conditions on its inputs: it is proven where they hold.

    torch keeps every comparison that its trace met, and takes it for granted that no size is 0 or 1.
    It takes all parts of a split out of their list, used or not: another input may have fewer.
    """
    program.graph.eliminate_dead_code(lambda node: not node.name.startswith("getitem"))
    program.graph_module.recompile()
    for symbol in list(program.range_constraints):
        program.range_constraints[symbol] = ValueRanges(0, int_oo)
    program._guards_code = list(conditions)
    return program
'''


def script_of(
    graphs: Sequence[GraphCode],
    signature: Signature,
    *,
    to: str = "torch",
    source: str = "",
    variable: str = "",
) -> str:
    """The script: the model as a function to fill in, and per graph its arguments, dynamic shapes
    and export.

    ``source`` is the body of the function that gives the model, ``to`` is ``"torch"`` or
    ``"onnx"``. With ``variable``, the name of one that holds the model, it is code to be pasted where
    that is: there is no such function, and the export runs at once.

    :raises UnsupportedError: ``no-code-for-class`` when an argument cannot be written as Python
    """
    imports = Imports()
    parts = [written(graph, signature, imports, to) for graph in graphs]
    first = graphs[0].plan
    model = re.sub(r"\W", "_", first.model.rpartition(".")[2]) or "the model"
    text = "\n\n".join(
        [
            (
                f'"""Exports {model}.{first.method} with'
                f" torch.{'onnx.' if to == 'onnx' else ''}export.\n\nEvery function can be changed;"
                ' nothing but what is imported here is needed.\n"""'
            ),
            "\n".join(_imports(parts, imports)),
        ]
    )
    if variable:
        text = "\n".join(_imports(parts, imports))
    pieces = [] if variable else [_make_model(model, source)]
    pieces += [_MADE.strip("\n")] if any(part.makes for part in parts) else []
    pieces += [_GUARDED.strip("\n")] if any(part.guards for part in parts) else []
    pieces += [function for part in parts for function in part.functions]
    pieces.append(_calls(parts, to, variable) if variable else _main(parts, to))
    return text + "".join(f"\n\n\n{piece}" for piece in pieces) + "\n"


def _imports(parts: Sequence[Written], imports: Imports) -> list[str]:
    lines = ["import torch"]
    lines += ["from torch.export import Dim"] if any(part.uses_dim for part in parts) else []
    guards = any(part.guards for part in parts)
    lines += (
        [
            "from torch.utils._sympy.numbers import int_oo",
            "from torch.utils._sympy.value_ranges import ValueRanges",
        ]
        if guards
        else []
    )
    return [*lines, *imports.lines()]


def _make_model(model: str, source: str) -> str:
    body = source or f'raise NotImplementedError("Return your {model} here.")'
    lines = "".join(f"\n    {line}" for line in body.splitlines())
    return (
        'def make_model():\n    """The model to export, with its weights and in its mode'
        f' (eval)."""{lines}'
    )


def _main(parts: Sequence[Written], to: str) -> str:
    calls = _calls(parts, to, "model").splitlines()
    lines = ["model = make_model()", *calls]
    return "\n".join(['if __name__ == "__main__":', *(f"    {line}" for line in lines)])


def _calls(parts: Sequence[Written], to: str, variable: str) -> str:
    """The lines that export each graph of the model, and save it."""
    lines = []
    for part in parts:
        exported = f"export_{part.name}({variable})"
        if to == "onnx":
            lines.append(f'{exported}.save("{part.name}.onnx")')
        else:
            lines.append(f'torch.export.save({exported}, "{part.name}.pt2")')
    return "\n".join(lines)
