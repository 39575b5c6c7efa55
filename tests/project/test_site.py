"""The documentation: every public name is in the reference with an example, and every link leads somewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import onlooker
import page_outputs

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((page_outputs.DOCS / "reference").glob("*.md"))
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
CODE = "\n".join(body for kind, body in page_outputs.BLOCK.findall(REFERENCE) if kind == "python")
NAMES = [name for name in onlooker.__all__ if not name.startswith("_")]
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_in_the_reference_once(name: str) -> None:
    found = re.findall(rf"^\.\. auto(\w+):: onlooker\.{name}$", REFERENCE, flags=re.MULTILINE)
    assert len(found) == 1
    assert found[0] == ("class" if inspect.isclass(getattr(onlooker, name)) else "function")


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_runs(name: str) -> None:
    """In its docstring, as a doctest, or on its page of the reference."""
    documentation = inspect.getdoc(getattr(onlooker, name)) or ""
    assert ">>>" in documentation or re.search(rf"\bonlooker\.{name}\b", CODE)


def markdown() -> list[Path]:
    written_by_build = page_outputs.DOCS / "gallery"
    found = [page for page in page_outputs.DOCS.rglob("*.md") if written_by_build not in page.parents]
    return [*sorted(found), *sorted(ROOT.glob("*.md"))]


def test_every_link_of_a_page_leads_to_a_file() -> None:
    broken = []
    for page in markdown():
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            is_outside = "://" in target
            is_of_gallery = "gallery/" in target  # written by the build, which checks it
            if not is_outside and not is_of_gallery and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
