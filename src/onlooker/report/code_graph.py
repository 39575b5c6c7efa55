"""One graph as the functions of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..contract.places import formulas_of
from ..core.call import ARGUMENTS, OUTPUT, Parameter, Signature
from ..core.expression import Expression
from ..core.path import Attr, Index, Name, Path
from ..core.plan import LeafPlan
from ..core.spec import Axis
from ..core.structure import Structure
from .code_classes import Imports
from .code_data import GraphCode
from .code_layout import Brackets, Piece, bracketed, laid_out, quoted
from .code_trees import as_classes, as_plain, holds_class, plain_tree
from .code_values import value_code

__all__ = ["Written", "written"]


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
    baked = {leaf.path: leaf for leaf in plan.leaves if leaf.is_constant}
    roots = [(entry.name, child) for entry, child in _roots(plan.structure)]
    for leaf in plan.leaves:
        if (leaf.is_constant and leaf.constant is None) or (
            leaf.is_float and len(leaf.path.entries) > 1
        ):
            raise imports.refuse(leaf.path)
    given = [
        (root, child) for root, child in roots if not (wraps and _is_baked(root, child, baked))
    ]
    conditions = _conditions(graph) if to == "torch" and graph.plan.symbols else ()
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
    pairs = zip(structure.entries, structure.children, strict=True)
    return [(entry, child) for entry, child in pairs if isinstance(entry, Name)]


def _is_baked(root: str, child: Structure, baked: Mapping[Path, LeafPlan]) -> bool:
    return child.is_leaf and Path((Name(root),)) in baked


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
        or holds_class(graph.outputs)
        or not all(graph.dynamic)
    )


def _module(
    graph: GraphCode, signature: Signature, imports: Imports, name: str, given: list[str]
) -> str:
    method = "" if graph.plan.method == "forward" else f".{graph.plan.method}"
    items, held = _call(graph, signature, imports)
    call: Piece = Brackets(f"self.model{method}(", tuple(items), ")")
    if graph.changed is not None:
        given_back = bracketed("{", [(f"{quoted(one)}: ", one) for one in graph.changed], "}")
        parts = [(f"{quoted(OUTPUT)}: ", call), (f"{quoted(ARGUMENTS)}: ", given_back)]
        call = bracketed("{", parts if graph.changed else parts[:1], "}")
    paths = dict(zip(graph.outputs.paths(), graph.dynamic, strict=True))
    is_plain = all(graph.dynamic) and not holds_class(graph.outputs)
    result = (
        "result"
        if is_plain
        else as_plain(graph.outputs, "result", lambda path: paths[path], Path())
    )
    forward = Brackets("def forward(", tuple(("", text) for text in ("self", *given)), ")", ":")
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
) -> tuple[list[tuple[str, Piece]], list[tuple[str, Piece]]]:
    """The arguments of the call inside the module, by position where Python wants it, else by name;
    and what the arguments are that the call changes, which have to be made before it.
    """
    held: list[tuple[str, Piece]] = []
    baked = {leaf.path: leaf for leaf in graph.plan.leaves if leaf.is_constant}
    pieces: dict[str, Piece] = {}
    floats = {leaf.path for leaf in graph.plan.inputs if leaf.is_float}
    for entry, child in _roots(graph.plan.structure):
        path = Path((entry,))
        if path in floats:
            pieces[entry.name] = f"{entry.name}.item()"
            continue
        is_baked = _is_baked(entry.name, child, baked)
        pieces[entry.name] = (
            quoted(_constant(baked[path]))
            if is_baked
            else as_classes(child, path, entry.name, imports, graph.hidden)
        )
        if entry.name in (graph.changed or ()) and pieces[entry.name] != entry.name:
            held.append((entry.name, pieces[entry.name]))
            pieces[entry.name] = entry.name
    var = signature.of_kind("VAR_POSITIONAL")
    spread = var is not None and var in pieces
    before: list[tuple[str, Piece]] = []
    for parameter in signature.parameters:
        by_position = parameter.kind == "POSITIONAL_ONLY" or (
            spread and parameter.kind == "POSITIONAL_OR_KEYWORD"
        )
        if parameter.name in pieces and (by_position or parameter.name == var):
            before.append(("*" if parameter.name == var else "", pieces.pop(parameter.name)))
    return [*before, *((f"{root}=", piece) for root, piece in pieces.items())], held


def _constant(leaf: LeafPlan) -> object:
    return leaf.constant.value if leaf.constant is not None else None


def _tree(given: list[tuple[str, Structure]], leaf: dict[Path, Piece]) -> Piece:
    items = [
        (f"{quoted(root)}: ", plain_tree(child, Path((Name(root),)), lambda path: leaf[path]))
        for root, child in given
    ]
    return bracketed("{", items, "}")


def _arguments(graph: GraphCode, name: str, given: list[tuple[str, Structure]]) -> str:
    values: dict[Path, Piece] = {}
    for leaf in graph.plan.leaves:
        values[leaf.path] = (
            quoted(_constant(leaf))
            if leaf.is_constant
            else value_code(leaf, graph.limits.get(leaf.path))
        )
    sizes = [
        ("", f"{symbol.name}={graph.sizes.get(symbol.name, symbol.low)}")
        for symbol in graph.plan.symbols
    ]
    head = Brackets(f"def {name}_arguments(", tuple(sizes), ")", ":")
    return (
        f'{laid_out(head)}\n    """Random values. Of 0, of 1 and of equal sizes torch makes'
        f' constants: no size here is one."""\n    return {laid_out(_tree(given, values), 4, 7)}'
    )


def _dynamic_shapes(graph: GraphCode, name: str, given: list[tuple[str, Structure]]) -> str:
    plan = graph.plan
    dims: dict[str, str] = {}
    shapes: dict[Path, Piece] = {leaf.path: "None" for leaf in plan.leaves}
    for leaf in plan.inputs:
        if leaf.is_float:
            continue
        if not leaf.is_tensor:
            shapes[leaf.path] = (
                "None" if _is_number(graph.obtained.get(leaf.path.code(), "")) else "Dim.AUTO"
            )
            continue
        changing: list[tuple[str, Piece]] = []
        for dim, expression in enumerate(leaf.shape):
            axis = f"{leaf.path.code()}.shape[{dim}]"
            if expression.symbols and not _is_number(graph.obtained.get(axis, "")):
                changing.append((f"{dim}: ", _dim(expression, graph, dims)))
        shapes[leaf.path] = bracketed("{", changing, "}") if changing else "None"
    lines = [_declared(variable, *graph.named[text]) for text, variable in dims.items()]
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


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _dim(expression: Expression, graph: GraphCode, dims: dict[str, str]) -> str:
    """How an axis is asked for: by a variable of ``dims``, which maps expressions to variables,
    or by a hint.
    """
    text = str(expression)
    if text not in graph.named:
        high = _greatest(expression, graph)
        return "Dim.AUTO" if high is None else f"Dim.AUTO(max={high})"
    if text not in dims:
        words = (
            text.replace("+", " plus ")
            .replace("-", " minus ")
            .replace("//", " over ")
            .replace("*", " times ")
        )
        stem = variable = re.sub(
            r"\W+", "_", words if not words[0].isdigit() else f"n {words}"
        ).strip("_")
        number = 2
        while variable in dims.values():
            variable, number = f"{stem}_{number}", number + 1
        dims[text] = variable
    return dims[text]


def _greatest(expression: Expression, graph: GraphCode) -> int | None:
    """The greatest size of what has one in the plan."""
    highs = {name: graph.plan.symbol(name).high for name in expression.symbols}
    if any(high is None for high in highs.values()):
        return None
    return expression.evaluate({name: high for name, high in highs.items() if high is not None})


def _declared(variable: str, low: int | None, high: int | None) -> str:
    limits = [f"min={low}"] * (low is not None) + [f"max={high}"] * (high is not None)
    return f"    {variable} = Dim({', '.join([quoted(variable), *limits])})"


def _conditions(graph: GraphCode) -> tuple[str, ...]:
    """What the program of a script must check, as torch writes its guards."""
    return formulas_of(graph.plan, graph.contract, _source)


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
    items: list[tuple[str, Piece]] = [("", model), ("", "()"), ("kwargs=", f"{name}_arguments()")]
    items += [("dynamic_shapes=", f"{name}_dynamic_shapes()")]
    if to == "onnx":
        items += [
            ("output_names=", "[" + ", ".join(map(quoted, graph.output_names)) + "]"),
            ("dynamo=", "True"),
        ]
        call = Brackets("torch.onnx.export(", tuple(items), ")")
    else:
        call = Brackets("torch.export.export(", (*items, ("strict=", "False")), ")")
    lines = [
        f"def export_{name}(model):",
        f'    """The program of calls like the observed ones {calls}."""',
    ]
    settings = (
        ", torch.fx.experimental._config.patch(backed_size_oblivious=True)"
        if graph.oblivious
        else ""
    )
    lines.append(f"    with torch.no_grad(){settings}:")
    if not conditions:
        lines.append(f"        return {laid_out(call, 8, 7)}")
        return "\n".join(lines)
    lines.append(f"        program = {laid_out(call, 8, 10)}")
    texts = [("", quoted(condition.replace(".shape[", ".size()["))) for condition in conditions]
    checked = Brackets("guarded(", (("", "program"), *texts), ")")
    lines.append(f"    return {laid_out(checked, 4, 7)}")
    return "\n".join(lines)
