"""The documentation: every public name is in the reference with an example, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
from pathlib import Path

import pytest

import onlooker
import page_outputs
from modules_of_files import module_of

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((page_outputs.DOCS / "reference").glob("*.md"))
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
CODE = "\n".join(body for kind, body in page_outputs.BLOCK.findall(REFERENCE) if kind == "python")
CHECK_PAGES = page_outputs.DOCS / "site" / "check_pages.py"
NAMES = sorted(onlooker._HOMES)
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


def test_what_is_wrong_with_a_built_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">b</a><a href="b.html#gone">b</a><a href="c.html">c</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"><script src="https://example.org/x.js"></script>')
    check_pages = module_of(CHECK_PAGES, "check_pages")
    read = check_pages.read_pages(tmp_path)
    assert list(check_pages.broken_links(read)) == [
        "a.html: b.html#gone has no such place",
        "a.html: c.html does not exist",
    ]
    assert list(check_pages.loaded_from_outside(tmp_path)) == ["b.html loads https://example.org/x.js"]


def test_a_page_that_is_too_wide_or_has_an_error_is_found(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("there is no chromium, or no playwright, here")
    (tmp_path / "search.html").write_text("<ul id='search-results'><li>1<li>2<li>3<li>4<li>5</ul>")
    (tmp_path / "wide.html").write_text("<div style='width: 700px'>wide</div><script>nobody()</script>")
    (tmp_path / "wider.html").write_text("<div style='width: 1400px'>wider</div>")
    check_pages = module_of(CHECK_PAGES, "check_pages")
    found = list(check_pages.seen_in_chromium(check_pages.read_pages(tmp_path), tmp_path, chromium))
    assert len(found) == 4
    assert "nobody is not defined" in found[0]
    assert re.fullmatch(r"wide\.html is 7\d\d pixels wide, of 380", found[1])
    assert [line.rpartition(" ")[2] for line in found[2:]] == ["1280", "380"]


def test_pages_link_to_the_repository_where_its_address_is_known() -> None:
    specification = importlib.util.spec_from_file_location("generated", CHECK_PAGES.parent / "generated.py")
    assert specification is not None
    assert specification.loader is not None
    generated = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generated)
    options = generated.theme_options("https://example.org/onlooker")
    assert options["source_repository"] == "https://example.org/onlooker"
    assert [icon["url"] for icon in options["footer_icons"]] == ["https://example.org/onlooker"]
    assert generated.theme_options("") == {"navigation_with_keys": True}
