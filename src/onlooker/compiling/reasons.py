"""Why torch.compile compiled again: what the text of the failed guard says, as a value.

torch gives the guard as text alone. The forms below are those of torch 2.10 to 2.15; a text of another
form is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FIRST", "Reason", "reason_of"]

#: the first compilation of a function
FIRST = "first call"
#: a guard begins with the number of the cache entry that it belongs to: ``0/1: ``
_ENTRY = re.compile(r"^\d+/\d+: ")
#: the form of a guard, with the argument and the dimension that it is about, and its kind
_FORMS = (
    (re.compile(r"tensor '(?P<place>.+?)' size mismatch at index (?P<dim>\d+)"), "size"),
    (re.compile(r"tensor '(?P<place>.+?)' stride mismatch at index (?P<dim>\d+)"), "memory layout"),
    (re.compile(r"^2 <= (?P<place>.+?)\.size\(\)\[(?P<dim>\d+)\]"), "size of 0 or 1"),
    (re.compile(r"tensor '(?P<place>.+?)' rank mismatch"), "number of dimensions"),
    (re.compile(r"tensor '(?P<place>.+?)' dtype mismatch"), "dtype"),
    (re.compile(r"tensor '(?P<place>.+?)' requires_grad mismatch"), "requires_grad"),
    (re.compile(r"tensor '(?P<place>.+?)' (?:device|dispatch key)"), "kind of tensor"),
    (re.compile(r"GLOBAL_STATE changed: (?P<place>[\w ,]+?)\s*$"), "setting of torch"),
    (re.compile(r"(?P<place>\S+?)\.s(?:ize|tride)\(\)\[(?P<dim>\d+)\]"), "condition on sizes"),
    (re.compile(r"expected type of '(?P<place>.+?)' to be"), "kind of argument"),
    (re.compile(r"^(?P<place>\S+) is (?:not )?None"), "argument left out"),
    (re.compile(r"^(?:not )?len\((?P<place>\S+?)\) "), "length of a container"),
    (
        re.compile(r"^(?:not )?___(?:dict_|key_)?contains\(.*?,? ?(?P<place>\S+)\)"),
        "keys of a dict",
    ),
    (re.compile(r"^(?P<place>[\w.\[\]']+) (?:==|!=|is) "), "value of Python"),
)
_LINE = re.compile(r"  # (?P<file>[^\s#]+:\d+) in \w+")
#: how torch names arguments: ``L['x']``, and ``kwargs['x']`` where a decorator passes them on
_SOURCE = re.compile(r"(?:\bL|\bkwargs)\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one compilation was made: its ``kind``, the argument as Python, the dimension of it, and
    the line of the model. ``text`` is what torch says.
    """

    kind: str
    place: str = ""
    dim: int | None = None
    line: str = ""
    text: str = ""

    def __str__(self) -> str:
        axis = f".shape[{self.dim}]" if self.dim is not None else ""
        about = f" of {self.place}{axis}" if self.place else ""
        return f"{self.kind}{about}{f' ({self.line})' if self.line else ''}"


def reason_of(text: str | None) -> Reason:
    """The reason in the text of a failed guard; without a text, the first compilation.

    >>> str(reason_of("0/0: tensor 'x' size mismatch at index 1. expected 5, actual 9"))
    'size of x.shape[1]'
    >>> reason_of(None).kind
    'first call'
    """
    if not text:
        return Reason(FIRST)
    guard = _SOURCE.sub(r"\1", _ENTRY.sub("", text.strip()).splitlines()[0])
    found_line = _LINE.search(guard)
    line = found_line["file"] if found_line else ""
    code = guard.split("  #")[0].strip()
    for form, kind in _FORMS:
        match = form.search(code)
        if match is not None:
            found = match.groupdict()
            dim = found.get("dim")
            return Reason(
                kind,
                found["place"].strip(),
                None if dim is None else int(dim),
                line,
                code,
            )
    return Reason("another guard", line=line, text=code)
