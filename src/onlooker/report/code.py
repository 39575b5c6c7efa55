"""Writes a program down as a Python script that exports the model again, without onlooker.

Where the model takes and gives tensors, lists and dicts alone, the script exports the model itself;
where there are classes (caches, outputs of transformers) or ``**kwargs``, it exports a small module
around it that takes and gives lists and dicts, since torch.export wants every class registered.

The parts of this file, in their order:

    random values      for each leaf the right shape, dtype and range, and nothing that was observed
    one graph          as the functions of a script: the module, the arguments, the dynamic shapes
    the script         of all graphs, with its imports and its ``main``
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract.places import formulas_of
from ..core.call import ARGUMENTS, OUTPUT, Parameter, Signature, changed_in
from ..core.contents import GraphContents, Outputs, ProgramContents
from ..core.drawing.alike import unused_name
from ..core.errors import UsageError
from ..core.path import Attr, Index, Name, Path
from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Expression
from ..core.spec import Axis
from ..core.structure import Structure
from ..core.surroundings import Autocast
from .code_classes import Imports
from .code_layout import bracketed, laid_out, listed, quoted
from .code_trees import as_classes, as_plain, holds_class, plain_tree

__all__ = ["script_of", "value_code"]


# -- random values
_RANDOM = frozenset({"float16", "bfloat16", "float32", "float64", "complex64", "complex128"})
_INTS = frozenset({"int8", "int16", "int32", "int64", "uint8"})


def shape_code(shape: tuple[Expression, ...]) -> str:
    """A shape as a tuple of Python: ``(batch, past_sequence + sequence)``."""
    return listed([*map(str, shape)], kind="tuple")


def value_code(leaf: LeafPlan, limits: tuple[float, float] | None) -> str:
    """The value of an input: a mask hides nothing, ids stay within those that were seen.

    >>> from onlooker.core.path import Name, Path
    >>> two = Expression.constant(2)
    >>> value_code(LeafPlan(Path((Name("input_ids"),)), "torch.int64", "cpu", (two,)), (3, 90))
    'torch.randint(3, 91, (2,))'
    """
    if leaf.is_float:
        return f"torch.tensor({_first_finite(leaf)}, dtype=torch.float64)"
    if not leaf.is_tensor:
        return str(leaf.value)
    dtype, shape = leaf.dtype.removeprefix("torch."), shape_code(leaf.shape)
    device = [f"device={quoted(leaf.device)}"] if leaf.device not in ("", "cpu") else []
    typed = [f"dtype=torch.{dtype}", *device]
    shown = _shown(leaf, dtype, limits)
    if shown is not None:
        return bracketed(f"torch.{'ones' if shown else 'zeros'}(", [shape, *typed], ")")
    if dtype in _INTS:
        low, high = (int(limits[0]), int(limits[1])) if limits is not None else (0, 1)
        others = device if dtype == "int64" else typed
        return bracketed("torch.randint(", [str(low), str(high + 1), shape, *others], ")")
    if dtype in _RANDOM:
        others = device if dtype == "float32" else typed
        return bracketed("torch.randn(", [shape, *others], ")")
    return bracketed("torch.zeros(", [shape, *typed], ")")


def _first_finite(leaf: LeafPlan) -> str:
    """A float that a call had."""
    values = [float(spec.value) for spec in leaf.floats if isinstance(spec.value, float)]
    return next((repr(value) for value in values if math.isfinite(value)), "0.5")


def _shown(leaf: LeafPlan, dtype: str, limits: tuple[float, float] | None) -> bool | None:
    """Returns the value that hides nothing in a mask: True for ones, False for zeros, which are
    added to scores; None for no mask.
    """
    if dtype == "bool":
        return True
    if "mask" not in leaf.path.root:
        return None
    greatest = (
        limits[1] if limits is not None else 1
    )  # a score that all positions get changes nothing
    return bool(greatest) if greatest in (0, 1) else None


# -- one graph


@dataclass(frozen=True, slots=True)
class GraphCode:
    """One graph, and what else a script needs of its program.

    ``limits`` has the least and the greatest value that was seen of a leaf of ints, ``autocast`` is
    what the calls were made in, ``hidden`` has, by container and attribute, the numbers and the dtype
    of tensors that are no leaves. Where calls change arguments and do not return them, ``changed``
    are those that this graph gives beside the result.
    """

    contents: GraphContents
    hidden: Mapping[Path, Mapping[str, tuple[object, str]]]
    limits: Mapping[Path, tuple[float, float]]
    autocast: tuple[Autocast, ...]
    changed: tuple[str, ...] | None

    @property
    def plan(self) -> Plan:
        """The plan of the graph."""
        return self.contents.plan

    @property
    def outputs(self) -> Outputs:
        """The result of the graph."""
        return self.contents.outputs


@dataclass(frozen=True, slots=True)
class Written:
    """The functions of one graph, and what they need."""

    name: str
    functions: tuple[str, ...]
    makes: bool
    guards: bool
    uses_dim: bool


def written(graph: GraphCode, signature: Signature, imports: Imports, to: str) -> Written:
    """The functions of a graph: its module where one is needed, arguments, dynamic shapes,
    export.
    """
    plan = graph.plan
    name = re.sub(r"\W", "_", plan.name)
    wraps = _wraps(graph, signature)
    constants = {leaf.path: leaf for leaf in plan.leaves if leaf.is_constant}
    roots = [(entry.name, child) for entry, child in _roots(plan.structure)]
    for leaf in plan.leaves:
        if (leaf.is_constant and leaf.constant is None) or (
            leaf.is_float and len(leaf.path.entries) > 1
        ):
            raise imports.refuse(leaf.path)
    given = [
        (root, child)
        for root, child in roots
        if not (wraps and _is_constant(root, child, constants))
    ]
    # the conditions that the program of a script must check, as torch writes its guards
    conditions: tuple[str, ...] = ()
    if to == "torch" and graph.plan.symbols:
        conditions = formulas_of(graph.plan, graph.contents.contract, _source)
    module = _module(graph, signature, imports, name, [root for root, _ in given]) if wraps else ""
    functions = [
        *([module] if module else []),
        _arguments(graph, name, given),
        _dynamic_shapes(graph, name, given),
        _export(graph, name, to, wraps, conditions),
    ]
    uses_dim = any("Dim" in function for function in functions[-2:])
    return Written(name, tuple(functions), "made(" in module, bool(conditions), uses_dim)


def _roots(structure: Structure) -> list[tuple[Name, Structure]]:
    pairs = structure.parts
    return [(entry, child) for entry, child in pairs if isinstance(entry, Name)]


def _is_constant(root: str, child: Structure, constants: Mapping[Path, LeafPlan]) -> bool:
    return child.is_leaf and Path((Name(root),)) in constants


def _wraps(graph: GraphCode, signature: Signature) -> bool:
    """True when the model cannot be exported as it is."""
    roots = [entry.name for entry, _ in _roots(graph.plan.structure)]
    parameters: list[Parameter | None] = [signature.get(root) for root in roots]
    by_name = all(
        p is not None and p.kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY") for p in parameters
    )
    return (
        graph.plan.method != "forward"
        or not by_name
        or bool(graph.autocast)
        or graph.changed is not None
        or any(leaf.is_float for leaf in graph.plan.inputs)
        or holds_class(graph.plan.structure)
        or holds_class(graph.outputs.structure)
        or not all(graph.outputs.dynamic)
    )


def _module(
    graph: GraphCode, signature: Signature, imports: Imports, name: str, given: list[str]
) -> str:
    method = "" if graph.plan.method == "forward" else f".{graph.plan.method}"
    items, held = _call(graph, signature, imports)
    call = bracketed(f"self.model{method}(", items, ")")
    if graph.changed is not None:
        given_back = bracketed("{", [f"{quoted(one)}: {one}" for one in graph.changed], "}")
        parts = [f"{quoted(OUTPUT)}: {call}", f"{quoted(ARGUMENTS)}: {given_back}"]
        call = bracketed("{", parts if graph.changed else parts[:1], "}")
    paths = dict(zip(graph.outputs.structure.paths(), graph.outputs.dynamic, strict=True))
    is_plain = all(graph.outputs.dynamic) and not holds_class(graph.outputs.structure)
    result = (
        "result"
        if is_plain
        else as_plain(graph.outputs.structure, "result", lambda path: paths[path], Path())
    )
    forward = bracketed("def forward(", ["self", *given], "):")
    blocks = [
        f"torch.autocast({quoted(state.device)}, dtype={state.dtype})" for state in graph.autocast
    ]
    inner = 12 if blocks else 8
    pad, end = " " * inner, "\n"
    around = f"        with {', '.join(blocks)}:\n" if blocks else ""
    beside = "" if graph.changed is None else ", and with the arguments that it changes"
    return (
        f"class {_camel(name)}(torch.nn.Module):\n"
        f'    """The model, with lists and dicts of tensors instead of its classes{beside}."""\n\n'
        "    def __init__(self, model):\n        super().__init__()\n        self.model = model\n"
        '        self.training = getattr(model, "training", False)\n\n'
        f"    {laid_out(forward, 4)}\n"
        f"{around}{''.join(f'{pad}{one} = {laid_out(made, inner)}{end}' for one, made in held)}"
        f"{pad}result = {laid_out(call, inner, 9)}\n"
        f"        return {laid_out(result, 8, 7)}"
    )


def _camel(name: str) -> str:
    return "Plain" + "".join(word.capitalize() for word in name.split("_"))


def _call(
    graph: GraphCode, signature: Signature, imports: Imports
) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments of the call inside the module, by position where Python wants it, else by name;
    and what the arguments are that the call changes, which have to be made before it.
    """
    held: list[tuple[str, str]] = []
    constants = {leaf.path: leaf for leaf in graph.plan.leaves if leaf.is_constant}
    pieces: dict[str, str] = {}
    floats = {leaf.path for leaf in graph.plan.inputs if leaf.is_float}
    for entry, child in _roots(graph.plan.structure):
        path = Path((entry,))
        if path in floats:
            pieces[entry.name] = f"{entry.name}.item()"
            continue
        is_constant = _is_constant(entry.name, child, constants)
        pieces[entry.name] = (
            quoted(_constant(constants[path]))
            if is_constant
            else as_classes(child, path, entry.name, imports, graph.hidden)
        )
        if entry.name in (graph.changed or ()) and pieces[entry.name] != entry.name:
            held.append((entry.name, pieces[entry.name]))
            pieces[entry.name] = entry.name
    var = signature.of_kind("VAR_POSITIONAL")
    spread = var is not None and var in pieces
    before: list[str] = []
    for parameter in signature.parameters:
        by_position = parameter.kind == "POSITIONAL_ONLY" or (
            spread and parameter.kind == "POSITIONAL_OR_KEYWORD"
        )
        if parameter.name in pieces and (by_position or parameter.name == var):
            star = "*" if parameter.name == var else ""
            before.append(f"{star}{pieces.pop(parameter.name)}")
    return [*before, *(f"{root}={piece}" for root, piece in pieces.items())], held


def _constant(leaf: LeafPlan) -> object:
    return leaf.constant.value if leaf.constant is not None else None


def _tree(given: list[tuple[str, Structure]], leaf: dict[Path, str]) -> str:
    items = [
        f"{quoted(root)}: {plain_tree(child, Path((Name(root),)), leaf.__getitem__)}"
        for root, child in given
    ]
    return bracketed("{", items, "}")


def _arguments(graph: GraphCode, name: str, given: list[tuple[str, Structure]]) -> str:
    values: dict[Path, str] = {}
    for leaf in graph.plan.leaves:
        values[leaf.path] = (
            quoted(_constant(leaf))
            if leaf.is_constant
            else value_code(leaf, graph.limits.get(leaf.path))
        )
    sizes = [
        f"{symbol.name}={graph.contents.sizes.get(symbol.name, symbol.low)}"
        for symbol in graph.plan.symbols
    ]
    head = bracketed(f"def {name}_arguments(", sizes, "):")
    return (
        f'{laid_out(head)}\n    """Random values. Of 0, of 1 and of equal sizes torch makes'
        f' constants: no size here is one."""\n    return {laid_out(_tree(given, values), 4, 7)}'
    )


def _dynamic_shapes(graph: GraphCode, name: str, given: list[tuple[str, Structure]]) -> str:
    plan = graph.plan
    dims: dict[str, str] = {}
    shapes: dict[Path, str] = {leaf.path: "None" for leaf in plan.leaves}
    for leaf in plan.inputs:
        if leaf.is_float:
            continue
        if not leaf.is_tensor:
            is_fixed = graph.contents.fixed_size(Axis(leaf.path, None)) is not None
            shapes[leaf.path] = "None" if is_fixed else "Dim.AUTO"
            continue
        changing: list[str] = []
        for dim, expression in enumerate(leaf.shape):
            fixed = graph.contents.fixed_size(Axis(leaf.path, dim))
            if expression.symbols and fixed is None:
                changing.append(f"{dim}: {_dim(expression, graph, dims)}")
        shapes[leaf.path] = bracketed("{", changing, "}") if changing else "None"
    lines = [_declared(variable, *graph.contents.named[text]) for text, variable in dims.items()]
    return "\n".join(
        [
            f"def {name}_dynamic_shapes():",
            (
                '    """What may change: a Dim by its name, and Dim.AUTO where torch finds the'
                ' relation by itself."""'
            ),
            *lines,
            f"    return {laid_out(_tree(given, shapes), 4, 7)}",
        ]
    )


def _dim(expression: Expression, graph: GraphCode, dims: dict[str, str]) -> str:
    """Returns the text that asks for an axis: a variable of ``dims``, which maps expressions to
    variables, or a hint.
    """
    text = str(expression)
    if text not in graph.contents.named:
        high = _greatest(expression, graph)
        return "Dim.AUTO" if high is None else f"Dim.AUTO(max={high})"
    if text not in dims:
        words = (
            text.replace("+", " plus ")
            .replace("-", " minus ")
            .replace("//", " over ")
            .replace("*", " times ")
        )
        if words[0].isdigit():
            words = f"n {words}"
        dims[text] = unused_name(re.sub(r"\W+", "_", words).strip("_"), dims.values())
    return dims[text]


def _greatest(expression: Expression, graph: GraphCode) -> int | None:
    """The greatest size of what has one in the plan."""
    highs = {name: graph.plan.symbol(name).high for name in expression.symbols}
    if any(high is None for high in highs.values()):
        return None
    return expression.evaluate({name: high for name, high in highs.items() if high is not None})


def _declared(variable: str, low: int | None, high: int | None) -> str:
    arguments = [quoted(variable)]
    if low is not None:
        arguments.append(f"min={low}")
    if high is not None:
        arguments.append(f"max={high}")
    return f"    {variable} = Dim({', '.join(arguments)})"


def _source(axis: Axis) -> str:
    """An axis as a guard of torch reads it: ``L['cache'][0].size()[2]``."""
    rest = axis.path.entries[1:]
    steps = [
        entry.index if isinstance(entry, Index) else getattr(entry, "key", None) for entry in rest
    ]
    names = [
        entry.name if isinstance(entry, Attr) else step
        for entry, step in zip(rest, steps, strict=True)
    ]
    text = f"L[{axis.path.root!r}]" + "".join(f"[{name!r}]" for name in names)
    return text if axis.dim is None else f"{text}.shape[{axis.dim}]"


def _export(graph: GraphCode, name: str, to: str, wraps: bool, conditions: Sequence[str]) -> str:
    model = f"{_camel(name)}(model)" if wraps else "model"
    calls = ", ".join(map(str, graph.plan.calls[:5])) + (
        " ..." if len(graph.plan.calls) > 5 else ""
    )
    items = [model, "()", f"kwargs={name}_arguments()", f"dynamic_shapes={name}_dynamic_shapes()"]
    if to == "onnx":
        names = listed([*map(quoted, graph.outputs.names)], kind="list")
        items += [f"output_names={names}", "dynamo=True"]
        call = bracketed("torch.onnx.export(", items, ")")
    else:
        call = bracketed("torch.export.export(", [*items, "strict=False"], ")")
    summary = f"The program of calls like the observed ones {calls}."
    unrolls = graph.contents.has_rolled_loops
    if unrolls:
        summary += f"\n\n    {_UNROLLED[to]}\n    "
    lines = [f"def export_{name}(model):", f'    """{summary}"""']
    settings = (
        ", torch.fx.experimental._config.patch(backed_size_oblivious=True)"
        if graph.contents.oblivious
        else ""
    )
    lines.append(f"    with torch.no_grad(){settings}:")
    if not conditions:
        lines.append(f"        return {laid_out(call, 8, 7)}")
        return "\n".join(lines)
    lines.append(f"        program = {laid_out(call, 8, 10)}")
    texts = [quoted(condition.replace(".shape[", ".size()[")) for condition in conditions]
    kept = ["*program._guards_code"] if unrolls else []
    checked = bracketed("guarded(", ["program", *kept, *texts], ")")
    lines.append(f"    return {laid_out(checked, 4, 7)}")
    return "\n".join(lines)


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


# onlooker's graph has such a loop as one operator, which torch by itself does not make of the loop
_UNROLLED = {
    "torch": "torch writes each step of a loop down: other numbers of steps are refused by its guards.",
    "onnx": "torch writes each step of a loop down: the file is right for as many steps alone.",
}


# -- the script


def script_of(
    program: ProgramContents[Any],
    *,
    to: str | None,
    source: str,
    variable: str,
    limits: Mapping[Path, tuple[float, float]],
    autocast: tuple[Autocast, ...],
    hidden: Sequence[Mapping[Path, Mapping[str, tuple[object, str]]]],
) -> str:
    """The script: the model as a function to fill in, and per graph its arguments, dynamic shapes
    and export.

    ``source`` is the body of the function that gives the model, ``to`` is ``"torch"`` or
    ``"onnx"``, by default that of the program. With ``variable``, the name of one that holds the
    model, it is code to be pasted where that is: there is no such function, and the export runs at
    once. ``hidden`` are, per graph, the small tensors that its caches hold.

    :raises UsageError: ``unknown-target``
    :raises UnsupportedError: ``no-code-for-class`` when an argument cannot be written as Python
    """
    to = to or ("onnx" if program.graphs[0].target == "onnx" else "torch")
    if to not in ("torch", "onnx"):
        raise UsageError(
            f"No script is written for {to!r}.",
            slug="unknown-target",
            hint="A script exports to torch or onnx.",
        )
    graphs = []
    for graph, own in zip(program.graphs, hidden, strict=True):
        changed = changed_in(graph.outputs.structure) if program.changed else None
        graphs.append(GraphCode(graph, own, limits, autocast, changed))
    signature = program.recording.signature
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
