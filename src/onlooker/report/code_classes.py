"""The code that builds a class again: its import, and the flags that an opened structure keeps as
text.

The text comes from a structure, which may have been read from a file: only names, numbers, strings
and plain containers of them are ever written into a script.
"""

from __future__ import annotations

import ast
import builtins
import keyword

from ..core.errors import UnsupportedError
from ..core.path import Attr, Path
from ..core.structure import Structure
from .code_layout import quoted

__all__ = ["PLAIN", "Imports", "attributes_of"]

#: the kinds of structures that need no class of their own
PLAIN = frozenset({"leaf", "list", "tuple", "dict", "arguments"})


class Imports:
    """The classes that a script imports, by the name under which it knows them."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def name(self, qualified: str, path: Path) -> str:
        """The name in the script of a class ``module.Class``.

        :raises UnsupportedError: ``no-code-for-class`` when it cannot be imported by its name
        """
        module, _, name = qualified.rpartition(".")
        words = qualified.split(".")
        if not module or "<locals>" in qualified or not all(_is_name(word) for word in words):
            raise _refusal(path, f"a {qualified}", "its class cannot be imported by name")
        if qualified not in self._known:
            taken = {*self._known.values(), *dir(builtins)}
            self._known[qualified] = name if name not in taken else "_".join(words)
        return self._known[qualified]

    def refuse(self, path: Path) -> UnsupportedError:
        """The error for a leaf that is an object: only the name of its class is known."""
        return _refusal(path, "an object", "only its class is known")

    def lines(self) -> list[str]:
        """The import statements."""
        found: dict[str, list[str]] = {}
        for qualified, known in self._known.items():
            module, _, name = qualified.rpartition(".")
            found.setdefault(module, []).append(name if name == known else f"{name} as {known}")
        return [
            f"from {module} import {', '.join(sorted(names))}"
            for module, names in sorted(found.items())
        ]


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _refusal(path: Path, kind: str, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"{path.code() or 'the result'} is {kind}: no script can build it, since {reason}.",
        slug="no-code-for-class",
        hint=(
            "Use observer.export(), which needs no script, or pass tensors, lists and dicts to the"
            " model."
        ),
    )


def attributes_of(structure: Structure, path: Path, imports: Imports) -> dict[str, str] | None:
    """The flags of an object that is built without its ``__init__``; None for a class that is
    called by keyword.

    :raises UnsupportedError: ``no-code-for-class`` when the object holds what cannot be written
    """
    if not all(isinstance(entry, Attr) and _is_name(entry.name) for entry in structure.entries):
        raise _refusal(path, f"a {structure.kind}", "its parts have no names")
    context = structure.context
    if context in ("", "named tuple"):
        return None
    try:
        node = ast.parse(context, mode="eval").body
        if not isinstance(node, ast.Dict):
            raise ValueError(context)
        keys = [
            key.value
            for key in node.keys
            if isinstance(key, ast.Constant) and _is_name(str(key.value))
        ]
        texts = [_written(value, path, imports) for value in node.values]
        return dict(zip(map(str, keys), texts, strict=True))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _refusal(
            path, f"a {structure.kind}", "it holds what cannot be written as Python"
        ) from error


def _written(node: ast.expr, path: Path, imports: Imports) -> str:
    if isinstance(node, ast.Constant | ast.UnaryOp):
        return quoted(ast.literal_eval(node))
    if isinstance(node, ast.Dict):
        pairs = (
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        )
        return (
            "{"
            + ", ".join(
                f"{_written(k, path, imports)}: {_written(v, path, imports)}" for k, v in pairs
            )
            + "}"
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _called(node, node.func.id, path, imports)
    text = ast.unparse(node)
    if isinstance(node, ast.Attribute) and all(map(_is_name, text.split("."))):
        is_short = text.startswith("torch.") and text.count(".") == 1
        return text if is_short else imports.name(text, path)
    raise ValueError(text)


def _called(node: ast.Call, name: str, path: Path, imports: Imports) -> str:
    """``list(1, 2)`` and ``tuple(...)`` of a context, and ``device(type='cpu')``."""
    if name in ("list", "tuple") and not node.keywords:
        items = [_written(item, path, imports) for item in node.args]
        return (
            f"[{', '.join(items)}]"
            if name == "list"
            else f"({''.join(f'{item}, ' for item in items)})"
        )
    if (
        name == "device"
        and not node.args
        and all(isinstance(k.value, ast.Constant) for k in node.keywords)
    ):
        values = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        index = values.get("index")
        return f"torch.device({quoted(str(values['type']) + (f':{int(index)}' if index is not None else ''))})"
    raise ValueError(name)
