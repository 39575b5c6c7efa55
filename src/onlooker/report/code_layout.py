"""Python expressions as text: on one line where they fit, else one item a line."""

from __future__ import annotations

import io
import itertools
import tokenize
from collections.abc import Iterable, Sequence

__all__ = ["bracketed", "laid_out", "listed", "quoted", "repeated"]

_WIDTH = 108


def bracketed(before: str, items: Iterable[str], close: str) -> str:
    """Items between brackets.

    >>> bracketed("f(", ["1", "x=2"], ")")
    'f(1, x=2)'
    """
    return f"{before}{', '.join(items)}{close}"


def listed(items: Sequence[str], *, kind: str) -> str:
    """A list, or a tuple.

    >>> listed(["1", "2"], kind="list"), listed(["1"], kind="tuple")
    ('[1, 2]', '(1,)')
    """
    if kind == "list":
        return bracketed("[", items, "]")
    return bracketed("(", items, ",)" if len(items) == 1 else ")")


def laid_out(text: str, indent: int = 0, taken: int = 0) -> str:
    """The expression on lines of which the first one begins ``taken`` columns behind the indent. What
    does not fit on one line has each item of its last brackets on a line of its own; the ``for`` of a
    comprehension begins a line.
    """
    line = " " * taken + text
    if indent + len(line) <= _WIDTH:
        return text
    before, items, after = _parted(text)
    if not items:
        return text
    inner = " " * (indent + 4)
    lines = []
    for item, tail in items:
        lines += [f"{inner}{laid_out(item, len(inner))}{'' if tail else ','}"]
        lines += [f"{inner}{tail}"] if tail else []
    return "\n".join([before, *lines, " " * indent + after])


def _parted(text: str) -> tuple[str, list[tuple[str, str]], str]:
    """What stands before the items in the last brackets, each item with the ``for`` behind it, and
    what stands after them.

    >>> _parted("made(Cache, layers=[layer for layer in x])")
    ('made(', [('Cache', ''), ('layers=[layer for layer in x]', '')], ')')
    >>> _parted("[a for a in x]")
    ('[', [('a', 'for a in x')], ']')
    """
    depth, cuts, loops, end = 0, [0], list[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        place = token.start[1]
        if token.string in ("(", "[", "{"):
            depth += 1
            if depth == 1:
                cuts, loops = [place], []
        elif token.string in (")", "]", "}"):
            depth -= 1
            end = end if depth else place
        elif depth == 1 and token.string == ",":
            cuts.append(place)
        elif depth == 1 and token.string == "for":
            loops.append(place)
    items = [text[start + 1 : stop].strip() for start, stop in itertools.pairwise([*cuts, end])]
    if loops:
        return (
            text[: cuts[0] + 1],
            [(text[cuts[0] + 1 : loops[0]].strip(), text[loops[0] : end])],
            text[end:],
        )
    return text[: cuts[0] + 1], [(item, "") for item in items if item], text[end:]


def quoted(value: object) -> str:
    """A constant as Python, a plain string in the quotes of the house.

    >>> quoted("a"), quoted(1)
    ('"a"', '1')
    """
    is_plain = isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}
    return f'"{value}"' if is_plain else repr(value)


def repeated(items: Sequence[str], *, kind: str) -> str:
    """The items of a list or tuple, runs of equal ones written as a comprehension.

    >>> repeated(["a", "b", "b"], kind="list"), repeated(["a", "a"], kind="tuple")
    ('[a, *[b for _ in range(2)]]', 'tuple([a for _ in range(2)])')
    """
    runs = [(item, len([*run])) for item, run in itertools.groupby(items)]
    shown = [item if n == 1 else f"[{item} for _ in range({n})]" for item, n in runs]
    if len(runs) == 1 < len(items):
        return shown[0] if kind == "list" else f"tuple({shown[0]})"
    return listed(
        [f"*{one}" if n > 1 else one for one, (_, n) in zip(shown, runs, strict=True)], kind=kind
    )
