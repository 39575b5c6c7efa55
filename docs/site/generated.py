"""Pages of the site that are made of other files of the project."""

from __future__ import annotations

import re

#: page -> the file in the project's root that it shows
ROOT_PAGES = {
    "project/architecture": "ARCHITECTURE.md",
    "project/changelog": "CHANGELOG.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
}


def with_links_of_the_site(text: str) -> str:
    """The text of a file of the root, with links that hold from a page in ``docs/project``."""
    pages = {file: page.removeprefix("project/") + ".md" for page, file in ROOT_PAGES.items()}

    def replaced(link: re.Match[str]) -> str:
        target = link[1]
        if target in pages:
            return f"]({pages[target]})"
        if target.startswith("docs/"):
            return f"](../{target.removeprefix('docs/')})"
        return link[0]

    return re.sub(r"\]\(([^)\s]+)\)", replaced, text)


def theme_options(address: str) -> dict[str, object]:
    """The options of the theme furo; with the address of the repository, links to it in the footer
    of each page, and to the source of the page.
    """
    options: dict[str, object] = {"navigation_with_keys": True}
    if address:
        options["source_repository"] = address
        options["source_branch"] = "main"
        options["source_directory"] = "docs/"
        options["footer_icons"] = [
            {"name": "Source of onlooker", "url": address, "html": "Source", "class": ""}
        ]
    return options
