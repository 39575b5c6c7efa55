"""The meaning of the word at the end of an error: the entries of the page ``messages.md``.

The page of the documentation is the source; in the source tree the file beside this one is a link to
it, in a wheel a copy.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["advice_of", "messages", "nearest"]

_PAGE = Path(__file__).with_name("messages.md")
_ADVICE = re.compile(r"\*\*What to do\.\*\*\s+(.*?)(?:\n\n|\Z)", re.DOTALL)
_SENTENCE = re.compile(r".*?\.(?=\s|$)")


@functools.cache
def messages() -> Mapping[str, str]:
    """The text of each entry, by its word, in the order of the page; none where the page is missing.

    >>> list(messages())[:2]
    ['adapters-not-lifted', 'another-machine']
    """
    try:
        page = _PAGE.read_text(encoding="utf-8")
    except OSError:
        return {}
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return {word: text.strip() for word, text in zip(parts[::2], parts[1::2], strict=True)}


@functools.cache
def advice_of(word: str) -> str:
    """The first sentence of what to do about an error; "" for a word that the page lacks.

    >>> advice_of("call-does-not-bind")
    'Call the program as the model is called; the message says which argument does not fit.'
    """
    found = _ADVICE.search(messages().get(word, ""))
    if found is None:
        return ""
    sentence = _SENTENCE.match(" ".join(found[1].split()))
    return sentence[0] if sentence else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that a mistyped one is most like; "" where it is like none.

    >>> nearest("exprot", ["export", "explain"]), nearest("opset_version", ["merged", "opset"])
    ('export', 'opset')
    >>> nearest("verify", ["--to"])
    ''
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    longer = [one for one in words if len(one) > 3 and word.startswith(one)]
    return next(iter([*close, *longer]), "")
