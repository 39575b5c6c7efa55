"""The code of the README, the tutorial, the guides and the reference runs, and prints what stands there."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

import page_outputs

FOLDERS = ("howto", "reference", "contributing", "explanation")
IN_FOLDERS = [page for folder in FOLDERS for page in sorted((page_outputs.DOCS / folder).glob("*.md"))]
PAGES = [page_outputs.DOCS.parent / "README.md", page_outputs.DOCS / "tutorial.md", *IN_FOLDERS]
RUN = [page for page in PAGES if page_outputs.BLOCK.search(page.read_text(encoding="utf-8"))]


def is_slow(page: Path) -> bool:
    return "<!-- slow -->" in page.read_text(encoding="utf-8")


def parameters() -> list[object]:
    marks = {page: [pytest.mark.slow] if is_slow(page) else [] for page in RUN}
    return [pytest.param(page, id=os.path.relpath(page, page_outputs.DOCS), marks=marks[page]) for page in RUN]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the blocks of a page are written beside it, as page.py


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", parameters())
def test_a_page_prints_what_stands_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in page_outputs.needed_packages(text) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    with page_outputs.workshop():
        assert page_outputs.with_outputs(text) == text


def test_a_block_that_prints_something_else_is_found() -> None:
    page = "```python\nprint(1 + 1)\n```\n```text\n3\n```\n"
    assert page_outputs.with_outputs(page) == page.replace("3", "2")


def test_a_block_that_prints_needs_a_block_of_text() -> None:
    with pytest.raises(page_outputs.PageError, match="no block of text follows"):
        page_outputs.with_outputs("```python\nprint(1)\n```\n")


def test_an_output_of_a_block_that_prints_nothing_is_found() -> None:
    code = "```python\nx = 1\n```\n"
    assert page_outputs.with_outputs(code + "```text\n1\n```\n") == code + "```text\n```\n"


def test_a_command_that_fails_is_found() -> None:
    with pytest.raises(page_outputs.PageError, match="file-missing"):
        page_outputs.with_outputs("```console\n$ onlooker show no-such-folder\n```\n")


def test_seconds_and_what_is_left_out_may_differ() -> None:
    assert page_outputs.agrees("a 1.0 s (< 1 %)\n...\nb\n", "a 2.5 s (17 %)\nc\nd\nb\n")
    assert not page_outputs.agrees("a 1.0 s\nb\n", "a 2.5 s\nc\n")


def test_no_page_has_an_output_that_nothing_prints() -> None:
    """A block of text behind a block of Python is what it printed, and no page was left without it."""
    empty = [page.name for page in RUN if re.search(r"^```text\n```$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert not empty


#: a module of the library as the pages name it: `graphs/sides/side_runs.py`, `verify/`
MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*/(?:[a-z_]+\.py)?)`")


def test_the_table_of_what_decides_names_modules_that_exist() -> None:
    text = (page_outputs.DOCS / "explanation" / "verified.md").read_text(encoding="utf-8")
    named = MODULE.findall("\n".join(line for line in text.splitlines() if line.startswith("|")))
    source = page_outputs.DOCS.parent / "src" / "onlooker"
    assert len(named) > 20
    assert [name for name in named if not (source / name).exists()] == []
