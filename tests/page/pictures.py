"""Makes the pictures of docs/html.md from the page of the tests: PYTHONPATH=tests python tests/page/pictures.py"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pages import chromium, page_file, program
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent.parent
#: the file of each picture, and how its heading begins
PICTURES = {
    "over-calls": "x_dim_1 over the calls",
    "together": "x_dim_1 beside batch",
    "proof": "Sizes that were tried",
    "axes": "Observed, asked for and obtained",
}


def main() -> None:
    """Writes docs/pictures."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.goto(page_file(Path(work), program(), "branches").as_uri())
        for name, title in PICTURES.items():
            page.locator(f"figure:has(strong:text-is('{title}'))").screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
