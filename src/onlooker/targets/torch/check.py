"""Reads the JSON of a program of torch with distrust, before torch does.

torch evaluates what it finds there: sizes by ``sympify``, guards by ``exec``, operators by
``getattr`` from ``torch``, names as the Python code that ``torch.fx`` writes. So every text has to
be of the form that its place has: a name, unless the place is one of the few below; and the
operators are those of tensors.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from ...core.errors import SavedFileError
from ...disk.text import damaged
from ...torch_internals.operators import OpOverload, OpOverloadPacket

__all__ = ["NAMESPACES", "check_program", "is_guard", "is_size", "scrubbed"]


# Which texts are sizes, and which are guards: arithmetic on symbols, and on the shapes of inputs.
#
# torch evaluates both: sizes are written as sympy builds them, ``Add(Symbol('s0', integer=True),
# Integer(1))``, guards as Python. A text that is no arithmetic, or would take for ever, is refused.
_LONGEST = 20_000
_LARGEST = 1 << 64
_HIGHEST = 64
_NAME_OF_SIZES = re.compile(r"(?!__)[A-Za-z_]\w*", re.ASCII)
_FLOAT = re.compile(r"-?[0-9.]{1,60}(e[+-]?[0-9]{1,3})?")
_FUNCTIONS = re.compile(
    "Abs|Add|And|BitwiseFn_bitwise_(and|or|xor)|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|ExprCondPair|FloatPow|FloatTrueDiv"
    "|FloorDiv|FloorToInt|Ge|GreaterThan|Gt|Identity|IntTrueDiv|IsNonOverlappingAndDenseIndicator|Le|LessThan|Lt|Max|Min"
    "|Mod|ModularIndexing|Mul|Ne|Not|OpaqueUnaryFn_(acos|asin|atan|cos|cosh|exp|log|log2|sin|sinh|sqrt|tan|tanh)|Or"
    "|Piecewise|PythonMod|RoundToInt|StrictGreaterThan|StrictLessThan|ToFloat"
    "|TruncToFloat|TruncToInt|Unequality|Where|abs|ceiling|float|floor|int|max|min|round"
)
_MATH_OF_SIZES = frozenset({"ceil", "floor", "sqrt", "trunc", "isnan"})
_SHAPES = frozenset({"size", "stride", "storage_offset", "dim"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_size(text: str) -> bool:
    """True for arithmetic on symbols and numbers, as sympy builds it.

    >>> is_size("Add(Mul(Integer(4), Symbol('s0', integer=True)), Integer(-1))")
    True
    >>> is_size("__import__('os')"), is_size("Pow(Integer(9), Integer(999999999))")
    (False, False)
    """
    return _is_arithmetic(text, _is_built)


def is_guard(text: str) -> bool:
    """True for arithmetic on the shapes of inputs.

    >>> is_guard("L['x'].size()[0] % 8 == 0"), is_guard("print(L['x'])"), is_guard("L['x'].numpy()")
    (True, False, False)
    """
    # torch puts the text into a comment and a string of the code that it writes
    return not set('\\"#\n\r\0') & set(text) and _is_arithmetic(text, _is_python)


def _is_arithmetic(text: str, grammar: Callable[[ast.expr, bool], bool]) -> bool:
    if len(text) > _LONGEST or not text.isascii():
        return False
    try:
        return grammar(ast.parse(text.strip(), mode="eval").body, False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(node.operand)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and abs(node.value) <= _LARGEST
    )


def _is_built(node: ast.expr, in_power: bool) -> bool:
    """Passes for what sympy writes; a power may not hold powers, or a number would fill the memory."""
    match node:
        case ast.Name(id="true" | "false" | "oo" | "int_oo"):
            return True
        case ast.Call(
            func=ast.Name(id="Symbol" | "Float" as kind),
            args=[ast.Constant(value=str() as text)],
            keywords=flags,
        ):
            form = _NAME_OF_SIZES if kind == "Symbol" else _FLOAT
            return form.fullmatch(text) is not None and all(map(_is_flag, flags))
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=numbers, keywords=[]):
            return all(_is_number(number) for number in numbers)
        case ast.Call(
            func=ast.Name(id="Pow" | "PowByNatural" | "LShift" | "RShift"),
            args=[base, high],
            keywords=[],
        ):
            numbers = high.args if isinstance(high, ast.Call) else [high]
            return (
                not in_power
                and _is_built(base, True)
                and all(_is_small(number) for number in numbers)
            )
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _FUNCTIONS.fullmatch(name) is not None and all(
                _is_built(child, in_power) for child in arguments
            )
        case ast.Tuple(elts=items):
            return all(_is_built(child, in_power) for child in items)
    return False


def _is_flag(flag: ast.keyword) -> bool:
    value = flag.value.value if isinstance(flag.value, ast.Constant) else None
    return isinstance(value, bool) or (
        flag.arg in ("precision", "dps") and isinstance(value, int) and value <= 256
    )


def _is_small(node: ast.expr) -> bool:
    plain = node.operand if isinstance(node, ast.UnaryOp) else node
    value = plain.value if isinstance(plain, ast.Constant) else None
    return isinstance(value, (int, float)) and abs(value) <= _HIGHEST


def _is_python(node: ast.expr, in_power: bool) -> bool:
    """Arithmetic on sizes of inputs."""
    match node:
        case ast.Constant():
            return _is_number(node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            return _is_python(operand, in_power)
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return not in_power and _is_small(exponent) and _is_python(base, True)
        case ast.BinOp(left=left, right=right, op=op):
            return (
                isinstance(op, _OPERATORS)
                and _is_python(left, in_power)
                and _is_python(right, in_power)
            )
        case ast.BoolOp(values=values):
            return all(_is_python(value, in_power) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            signs = all(isinstance(op, _COMPARISONS) for op in ops)
            return signs and all(_is_python(value, in_power) for value in [left, *others])
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _FUNCTIONS.fullmatch(name) is not None and all(
                _is_python(child, in_power) for child in arguments
            )
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=arguments, keywords=[]
        ):
            return name in _MATH_OF_SIZES and all(
                _is_python(child, in_power) for child in arguments
            )
    return _is_of_input(node)


def _is_of_input(node: ast.expr) -> bool:
    """``L['x']``, ``L['x'].size()[0]``."""
    match node:
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
            return _NAME_OF_SIZES.fullmatch(name) is not None
        case ast.Subscript(value=value, slice=ast.Constant(value=int())):
            return _is_of_input(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]):
            return name in _SHAPES and _is_of_input(value)
    return False


#: the operators that a folder may call; others have to be allowed by whoever loads it
NAMESPACES = ("aten", "prims", "quantized_decomposed", "torchvision", "transformers")
#: where a document names an operator
_OF_OPERATORS = frozenset({"target", "as_operator"})
#: the operators that hold graphs, and call nothing else
_HIGHER = re.compile(
    "associative_scan|auto_functionalized(_v2)?|cond|flex_attention|invoke_subgraph|map_impl|scan|strict_mode"
    "|wrap_with_autocast|wrap_with_set_grad_enabled|while_loop"
)
#: what touches more than tensors: files, and memory at addresses
_NEVER = frozenset({"from_file", "from_blob", "save", "load"})
_MATH = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|neg|pos|pow|eq|ne|lt|le|gt|ge|and_|or_|lshift|rshift|getitem)"
    r"|math\.(floor|ceil|trunc|sqrt)"
)
_SYM = re.compile(r"torch\.(sym_(int|float|not|max|min|ite|sum|fresh_size|sqrt)|_sym_[a-z0-9]+)")
_OP = re.compile(r"torch\.ops\.([A-Za-z]\w*)\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DOTTED = re.compile(r"(?:[\w :/+@#-]+(?:\.[\w :/+@#-]+)*)?", re.ASCII)
_LINE = re.compile(r"[^\r\n\x00]*")
#: what is written about a node; stacks would hold lines of the model's source
_NOTES = frozenset({"nn_module_stack", "torch_fn"})
_EMPTY = frozenset({"custom_obj_values", "treespec_namedtuple_fields"})
_REFUSED = frozenset({"as_custom_obj", "custom_obj", "token", "class_fqn"})
_FLOATS = frozenset({"Infinity", "-Infinity", "NaN"})
_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict"})


def scrubbed(document: Any) -> Any:
    """The document without what is said of the model's source: lines of code and paths of files."""
    if isinstance(document, dict):
        return {
            key: (
                {k: v for k, v in child.items() if k in _NOTES}
                if key == "metadata"
                else scrubbed(child)
            )
            for key, child in document.items()
        }
    return [scrubbed(child) for child in document] if isinstance(document, list) else document


def check_program(document: Any, where: str, operators: Collection[str] = ()) -> None:
    """Passes for a document in which torch finds names, sizes and operators of tensors, and nothing
    else.

    ``operators`` are further namespaces of operators.

    :raises SavedFileError: ``file-damaged``, ``foreign-operator``
    """
    _Check(where, frozenset({*NAMESPACES, *operators})).visit("", document)


class _Check:
    def __init__(self, where: str, namespaces: frozenset[str]) -> None:
        self.where, self.namespaces = where, namespaces
        self.rules: dict[str, Callable[[str], bool]] = {
            "target": self._is_operator,
            "as_operator": self._is_operator,
            "expr_str": is_size,
            "guards_code": is_guard,
            "in_spec": _is_tree,
            "out_spec": _is_tree,
            "as_string": lambda text: True,
            "as_strings": lambda text: True,
            "torch_version": lambda text: re.fullmatch(r"[\w.+-]{1,64}", text) is not None,
            "fqn": _is_dotted,
            "parameter_name": _is_dotted,
            "buffer_name": _is_dotted,
            "tensor_constant_name": _is_dotted,
            "name": lambda text: not text or _is_name(text),
            **dict.fromkeys(
                ("as_float", "as_floats", "as_float_lists", "real", "imag"), _FLOATS.__contains__
            ),
        }

    def visit(self, key: str, value: Any) -> None:
        """Checks what stands under a key; items of a list stand under the key of the list."""
        if isinstance(value, str):
            if not self.rules.get(key, _is_name)(value):
                found = _OP.fullmatch(value) if key in _OF_OPERATORS else None
                if found is not None and found[1] not in (*self.namespaces, "higher_order"):
                    raise _of_another_library(self.where, value, found[1])
                raise damaged(
                    self.where,
                    f"{value[:100]!r} cannot be {key or 'the program'} of a program of tensors",
                )
        elif isinstance(value, list):
            for child in value:
                self.visit(key, child)
        elif isinstance(value, dict):
            self._visit_dict(key, value)
        elif not (value is None or isinstance(value, (bool, int, float))):
            raise damaged(self.where, f"a {type(value).__name__} cannot be {key}")

    def _visit_dict(self, key: str, value: dict[str, Any]) -> None:
        if key in _EMPTY and value:
            raise damaged(self.where, f"{key} holds objects, and a program of tensors has none")
        if key == "metadata":
            if not all(
                k in _NOTES and isinstance(v, str) and _LINE.fullmatch(v) for k, v in value.items()
            ):
                raise damaged(self.where, "metadata holds more than the names of modules")
            return
        for name, child in value.items():
            if name in _REFUSED or not _is_name(name):
                raise damaged(
                    self.where, f"{name[:100]!r} cannot be a part of a program of tensors"
                )
            self.visit(name, child)

    def _is_operator(self, text: str) -> bool:
        found = _OP.fullmatch(text)
        if found is None:
            return bool(_MATH.fullmatch(text) or _SYM.fullmatch(text))
        namespace, name, overload = found.groups()
        if namespace == "higher_order":
            return _HIGHER.fullmatch(name) is not None and overload is None
        return (
            namespace in self.namespaces
            and name not in _NEVER
            and _is_registered(namespace, name, overload)
        )


def _of_another_library(where: str, operator: str, namespace: str) -> SavedFileError:
    """The refusal of a program with an operator that whoever loads it has not allowed."""
    return SavedFileError(
        f"{where}: it calls {operator[:100]}, an operator that is not torch's own, which loading a program allows"
        " by name alone.",
        slug="foreign-operator",
        hint=(
            f"If you trust it, import the library that defines it: onlooker.load(directory,"
            f' operators=("{namespace}",)).'
        ),
    )


def _is_registered(namespace: str, name: str, overload: str | None) -> bool:
    """True for an operator that is known here: torch would take any attribute."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not isinstance(packet, OpOverloadPacket):
        return False
    return isinstance(getattr(packet, str(overload), None), OpOverload)


def _is_name(text: str) -> bool:
    return len(text) < 2000 and _NAME.fullmatch(text) is not None and not text.startswith("__")


def _is_dotted(text: str) -> bool:
    return len(text) < 2000 and _DOTTED.fullmatch(text) is not None


def _is_tree(text: str) -> bool:
    """True for tuples, lists and dicts with names for keys: nothing that has to be imported."""
    try:
        version, tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return version == 1 and _is_node(tree)


def _is_node(node: Any) -> bool:
    if not isinstance(node, dict) or set(node) != {"type", "context", "children_spec"}:
        return False
    children = node["children_spec"]
    if node["type"] is None:
        return node["context"] is None and children == []
    if (
        node["type"] not in _TREES
        or not isinstance(node["context"], str)
        or not isinstance(children, list)
    ):
        return False
    try:
        context = json.loads(node["context"])
    except (ValueError, RecursionError):
        return False
    names = context if isinstance(context, list) else []
    keys = context is None or (
        isinstance(context, list) and all(isinstance(n, str) and _is_name(n) for n in names)
    )
    return keys and all(_is_node(child) for child in children)
