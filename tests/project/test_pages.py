"""The code of the tutorial, the guides and the reference runs, and prints what stands there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import pages

FOLDERS = ("howto", "reference", "contributing", "explanation")
IN_FOLDERS = [page for folder in FOLDERS for page in sorted((pages.DOCS / folder).glob("*.md"))]
PAGES = [pages.DOCS / "tutorial.md", *IN_FOLDERS]
RUN = [page for page in PAGES if pages.BLOCK.search(page.read_text(encoding="utf-8"))]


def is_slow(page: Path) -> bool:
    return "<!-- slow -->" in page.read_text(encoding="utf-8")


def parameters() -> list[object]:
    marks = {page: [pytest.mark.slow] if is_slow(page) else [] for page in RUN}
    return [pytest.param(page, id=str(page.relative_to(pages.DOCS)), marks=marks[page]) for page in RUN]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", parameters())
def test_a_page_prints_what_stands_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in pages.needed_packages(text) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with pages.workshop():
        assert pages.with_outputs(text) == text


def test_a_block_that_prints_something_else_is_found() -> None:
    page = "```python\nprint(1 + 1)\n```\n```text\n3\n```\n"
    assert pages.with_outputs(page) == page.replace("3", "2")


def test_a_block_that_prints_needs_a_block_of_text() -> None:
    with pytest.raises(pages.PageError, match="no block of text follows"):
        pages.with_outputs("```python\nprint(1)\n```\n")


def test_seconds_and_what_is_left_out_may_differ() -> None:
    assert pages.agrees("a 1.0 s (< 1 %)\n...\nb\n", "a 2.5 s (17 %)\nc\nd\nb\n")
    assert not pages.agrees("a 1.0 s\nb\n", "a 2.5 s\nc\n")


def test_no_page_has_an_output_that_nothing_prints() -> None:
    """A block of text behind a block of Python is what it printed, and no page was left without it."""
    empty = [page.name for page in RUN if re.search(r"^```text\n```$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert not empty
