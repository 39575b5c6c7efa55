"""Tables for notebooks: plain HTML, in which every text of a user is only a text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["details", "heading", "listing", "table"]

_MOST_ROWS = 60


def heading(text: str, more: str = "") -> str:
    """A bold line.

    >>> heading("7 calls of <Net>")
    '<p><b>7 calls of &lt;Net&gt;</b></p>'
    """
    rest = f" {escape(more)}" if more else ""
    return f"<p><b>{escape(text)}</b>{rest}</p>"


def details(text: str, inner: str) -> str:
    """HTML that is folded below a line of text.

    >>> details("more", "<p>text</p>")
    '<details><summary>more</summary><p>text</p></details>'
    """
    return f"<details><summary>{escape(text)}</summary>{inner}</details>"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; of very many rows the first ones, and how many more there are. Without rows there is
    none.
    """
    if not rows:
        return ""
    top = "".join(f'<th style="text-align:left">{escape(head)}</th>' for head in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    rest = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{rest}"


def listing(texts: Sequence[str]) -> str:
    """A list of sentences; nothing for none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _cell(value: object) -> str:
    return f'<td style="text-align:left">{escape(str(value))}</td>'
