"""``docs/coming_from.md``: every name in its tables stands where the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onlooker
import onlooker.compat

PAGE = (Path(__file__).parent.parent.parent / "docs" / "coming_from.md").read_text(encoding="utf-8")


def rows() -> Iterator[tuple[str, str]]:
    """The rows of the tables of names: what stood where, and where it stands now."""
    for table in re.findall(r"\| old name \| new name \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE):
        for line in table.splitlines():
            old, new = line.strip("| ").split(" | ")
            yield old, new


def test_every_name_stands_where_the_page_says() -> None:
    found = 0
    for old, new in rows():
        place = onlooker.compat if "onlooker.compat" in new else onlooker
        names = [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", old)]
        full = re.match(r"`onlooker(?:\.compat)?\.(\w+)`", new)
        names = [full[1]] if full and full[1] != "compat" else [name for name in names if name]
        for name in names:
            found += 1
            assert hasattr(place, name), f"{place.__name__}.{name}"
            assert name in (onlooker.compat.__all__ if place is onlooker.compat else onlooker._HOMES), name
    assert found > 40


def test_every_core_name_stands_in_compat_too() -> None:
    own = {
        "load",
        "observe",
        "generation",
        "verify_export",
        "progress",
        "marked",
        "export",
        "kept_calls",
        "sweep",
        "onnx_export",
        "openvino_export",
        "weights_from",
    }  # no other package has them
    core = {name for name in onlooker._HOMES if name.islower()} - own | {"InputObserver", "CacheKeyValue"}
    assert core <= set(onlooker.compat.__all__)
