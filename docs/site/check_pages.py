"""Opens every page of the site in Chromium: links, console, width; without Chromium it checks links alone.

``python docs/site/check_pages.py build/docs``. Exit code 1: something is wrong, and said. A page is
opened as a file; a request to a network is an error.
"""

from __future__ import annotations

import html.parser
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: the widths of a screen and of a small telephone, in pixels of CSS
WIDTHS = (1280, 380)
#: what a search for this word must find
WORD = "cache"


@dataclass
class Page(html.parser.HTMLParser):
    """What a page refers to, and the places in it that others refer to."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag refers to."""
        for name, value in attrs:
            if value is None:
                continue
            if name in ("href", "src"):
                self.links.append(value)
            elif name in ("id", "name"):
                self.anchors.add(value)


def read_pages(site: Path) -> dict[Path, Page]:
    """All pages of the site."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(file.read_text(encoding="utf-8"))
        pages[file.resolve()] = page
    return pages


def is_outside(link: str) -> bool:
    """True for what is not of this site."""
    return bool(urlsplit(link).scheme or link.startswith("//"))


def broken_links(pages: dict[Path, Page]) -> Iterator[str]:
    """References to files that do not exist, and to places that no page has."""
    for file, page in pages.items():
        for link in page.links:
            if is_outside(link):
                continue
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.exists():
                yield f"{file.name}: {link} does not exist"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{file.name}: {link} has no such place"


def loaded_from_outside(site: Path) -> Iterator[str]:
    """Style sheets, scripts and pictures that a reader without a network would not have."""
    for file in sorted(site.rglob("*.html")):
        text = file.read_text(encoding="utf-8")
        for address in re.findall(r'<(?:script|img)\b[^>]*\bsrc="(https?:[^"]+)"', text):
            yield f"{file.name} loads {address}"
        for address in re.findall(r'<link\b[^>]*stylesheet[^>]*\bhref="(https?:[^"]+)"', text):
            yield f"{file.name} loads {address}"


def seen_in_chromium(pages: dict[Path, Page], site: Path, chromium: str) -> Iterator[str]:
    """Errors of the console, requests to a network, pages that are wider than a screen or a telephone, and a search."""
    from playwright.sync_api import ConsoleMessage, Request, sync_playwright

    said: list[str] = []
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--allow-file-access-from-files"]
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        tab = browser.new_page(viewport={"width": WIDTHS[0], "height": 800})

        def note_message(message: ConsoleMessage) -> None:
            if message.type == "error":
                said.append(message.text)

        def note_request(request: Request) -> None:
            if not request.url.startswith(("file:", "data:")):
                said.append(f"a request to {request.url}")

        tab.on("console", note_message)
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", note_request)
        for file in pages:
            said.clear()
            tab.goto(file.as_uri(), wait_until="load")
            yield from (f"{file.name}: {line}" for line in said)
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 800})
                needed = tab.evaluate("document.documentElement.scrollWidth")
                if needed > width:
                    yield f"{file.name} is {needed} pixels wide, of {width}"
        said.clear()
        tab.goto(f"{(site / 'search.html').resolve().as_uri()}?q={WORD}")
        tab.wait_for_selector("#search-results li", timeout=20_000)
        found = tab.locator("#search-results li").count()
        yield from (f"search: {line}" for line in said)
        if found < 5:
            yield f"the search finds {found} pages with {WORD!r}"
        browser.close()


def main(site: Path) -> int:
    """Prints what is wrong, and how much was looked at."""
    pages = read_pages(site)
    wrong = [*broken_links(pages), *loaded_from_outside(site)]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    seen = "opened in Chromium"
    if chromium is None:
        seen = "not opened: there is no chromium (apt-get install --no-install-recommends chromium)"
    else:
        wrong += seen_in_chromium(pages, site, chromium)
    for line in wrong:
        print(line, file=sys.stderr)
    print(
        f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(wrong)} wrong; {seen}"
    )
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
