"""Writes docs/repairs.md from the repairs themselves: ``python tests/repairs_page.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onlooker.repairs.repair import Repair
from onlooker.repairs.repairs import REPAIRS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "repairs.md"

_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/"
_INTRODUCTION = """# Repairs

What behaves otherwise while onlooker traces a model with `torch.export`: why, what of torch it is about, the versions
of torch that were seen to need it, and what tells when it may go. Nothing of this lasts longer than the trace.
`python tests/repairs_page.py` writes this page from `onlooker.repairs.repairs.REPAIRS`.

An export begins with the repairs that are part of every trace. After each attempt the others are asked, in the order of
this page, whether they want the next one. A repair that did not help is given up again.

A script under `upstream` shows the limit with plain torch ([upstream](upstream.md)): when it prints *repaired*, the
repair may go. A test has the model that the repair is for: when it passes without the repair, the repair may go.
"""


def _section(repair: Repair) -> Iterator[str]:
    path, _, test = repair.until.partition("::")
    where = f"`{test}` of `{path}`" if test else f"`{path}`"
    yield f"### {repair.name.capitalize()}\n"
    yield repair.why
    yield ""
    if repair.refusal:
        yield f"- **Wanted after**: `{repair.refusal}`"
    if repair.link:
        yield f"- **About**: [{repair.link.removeprefix(_SOURCE)}]({repair.link})"
    yield f"- **Needed with**: torch {repair.versions}"
    says = "prints *repaired*" if path.startswith("upstream/") else "passes without it"
    yield f"- **May go when**: {where} {says}\n"


def page() -> str:
    """The text of the page."""
    lines = [_INTRODUCTION, "## Parts of every trace\n"]
    for repair in REPAIRS:
        if repair.always:
            lines += _section(repair)
    lines.append("## Parts of a trace that wants them\n")
    for repair in REPAIRS:
        if not repair.always:
            lines += _section(repair)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
