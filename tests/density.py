"""Prints how dense the code is: nodes of its syntax tree per line of code, and per function.

``python tests/density.py`` looks at ``src/onlooker``, ``python tests/density.py DIR`` at another folder. Lines of
docstrings, comments and blanks are no code. It is a thermometer: nothing fails by it.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "onlooker"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str, tree: ast.Module) -> int:
    """The lines of a file that are neither empty, nor a comment, nor in a docstring."""
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = (line.strip() for line in text.splitlines())
    return sum(
        1 for number, line in enumerate(lines, 1) if line and not line.startswith("#") and number not in documented
    )


def main(folder: Path) -> None:
    nodes = lines = 0
    functions: list[int] = []
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        nodes += sum(1 for _ in ast.walk(tree))
        lines += code_lines(text, tree)
        functions += [sum(1 for _ in ast.walk(node)) for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    tenths = statistics.quantiles(functions, n=10)
    print(f"{nodes / lines:.1f} nodes a line of code, {lines} lines")
    print(f"{len(functions)} functions: median {statistics.median(functions):.0f} nodes, 90 % below {tenths[-1]:.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
