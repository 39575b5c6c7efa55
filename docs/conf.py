"""How Sphinx builds this site: `make docs`.

Nothing is fetched while it is built, and nothing when it is read: fonts are those of the reader's
system, and the search is an index in JavaScript. Where ``ONLOOKER_URL`` is the address of the
repository, each page links to it in its footer, and to its own source.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "site"))

import generated  # noqa: E402

project = "onlooker"
author = "the authors of onlooker"
release = version = importlib.metadata.version("onlooker")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["site", "requirements.txt", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5"]
# A section of a long page is a target of links, as on GitHub.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = "onlooker"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False
html_theme_options = generated.theme_options(os.environ.get("ONLOOKER_URL", ""))
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True}
python_use_unqualified_type_names = True
# Fields of a dataclass with slots are described by the text of the class, not by their descriptors.
autodoc_preserve_defaults = True

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__\.py",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": (),
    "write_computation_times": False,
    "min_reported_time": 0,
    "promote_jupyter_magic": False,
    "notebook_extensions": set(),
}
# "config.cache": the gallery's settings hold a class, which cannot be compared with those of the last build.
# "misc.highlighting_failure": sessions of the shell have the boxes of reports in them.
suppress_warnings = ["config.cache", "misc.highlighting_failure"]
# Examples show what they print, not what the library logs.
logging.getLogger("onlooker").setLevel(logging.WARNING)


def read_page_of_the_root(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts a file of the project's root in the place of its page under `project/`."""
    file = generated.ROOT_PAGES.get(docname)
    if file is not None:
        text = (ROOT / file).read_text(encoding="utf-8")
        source[0] = generated.with_links_of_the_site(text)


def leave_out_links_back(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Takes the links from a source to its documentation away.

    A name that stands on two pages (`onlooker.NAME` and `onlooker.compat.NAME`) has one source, whose
    link back would lead to a place that there is not.
    """
    if pagename.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app: Sphinx) -> None:
    """Registers what is particular to this site."""
    app.connect("source-read", read_page_of_the_root)
    app.connect("html-page-context", leave_out_links_back)
