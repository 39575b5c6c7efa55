"""Rows of the sweep -> docs/models.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweep_measure import STATUSES

Row = Mapping[str, Any]

_TOP = """# Models

Tiny models with random weights of the architectures that transformers, timm and torchvision have: each one is used,
watched once, exported, and asked calls that nobody watched. `python benchmarks/sweep.py`
measures, and `--page` writes this page from what was measured; [benchmarks/sweep.py](../benchmarks/sweep.py) has the
rules.

A row is **ok** when every unseen call is exact (within 1e-4 of 1 + max|expected|) and `verify()` says verified. Else
it counts under the worst that was met. **not-built** says of the benchmark, and not of onlooker, that it has no tiny
model, or no use, of the architecture: such rows are left out of the shares. Their cause is *no-default-model* where
transformers itself makes no model of the default configuration, *missing-library* where it wants another library,
*no-tiny-model* where the rules make none that is small, and *no-use* where no input is found that the model takes.

A list of images of another length is another call, with a graph of its own. So a detector is watched with a list of two
images and with a list of one, and is asked both in other sizes; it has no threshold for scores, so that it finds boxes.
A model that keeps state is watched with `state=True`, as its error asks, and its unseen calls come in their order.

A program is made for what is used. A side of images that the one watched call does not change is served at other sizes
where one graph serves them. Else a larger image is refused, with the reason, and its row is **rejects**: models with
windows, and models that resize positions for all sides but one. `dynamic=`, or a second watched call, asks for it.
"""
MEANINGS = {
    "ok": "every unseen call exact, and verified",
    "not-verified": "every unseen call exact, and `verify()` says no",
    "rejects": "an unseen call is refused, with a reason",
    "crash": "an error that is not onlooker's, from the program, from `verify()` or from the process",
    "wrong": "an unseen call has another result, and `verify()` says no",
    "wrong-but-verified": "an unseen call has another result, and `verify()` says verified",
    "export-error": "no program",
    "observe-error": "the watched run failed",
    "timeout": "more processor time than the limit, 150 seconds or what `--timeout` says",
    "not-built": "no tiny model, or no use of it",
}
_EXAMPLES = 3
_LIMIT = 150  # seconds
_LONGEST = 150


def page_of(rows: Iterable[Row]) -> str:
    """The whole page, as Markdown."""
    ordered = sorted(rows, key=lambda row: str(row["name"]))
    parts = [_TOP, _days(ordered), "\n".join(_families(ordered)), "\n".join(_meanings(ordered))]
    parts.append(_watched_twice(ordered))
    parts += ["\n".join(_causes(ordered, built=True)), "\n".join(_causes(ordered, built=False))]
    parts.append("\n".join(_names(ordered)))
    return "\n".join(parts)


def _days(rows: Iterable[Row]) -> str:
    """When the rows were measured: a row is as old as the code that it says something of.

    >>> print(_days([{"day": "2026-11-24"}, {"day": "2026-11-24"}, {}]))
    Measured: 2 rows on 2026-11-24, 1 row earlier.
    <BLANKLINE>
    """
    counts = Counter(str(row.get("day", "")) for row in rows)
    earlier = counts.pop("", 0)
    shown = [f"{_rows(count)} on {day}" for day, count in sorted(counts.items(), reverse=True)]
    shown += [f"{_rows(earlier)} earlier"] if earlier else []
    return f"Measured: {', '.join(shown)}.\n"


def _watched_twice(rows: Iterable[Row]) -> str:
    """What becomes of refused media once a call with them is watched too.

    >>> rows = [{"name": "timm/a", "watched_twice": "ok"}, {"name": "timm/b", "watched_twice": "rejects"}]
    >>> print(_watched_twice(rows))
    Of 2 rows whose larger media are refused, 1 is ok where a second call with these media is watched,
    and media between both are asked: `timm/a`.
    <BLANKLINE>
    """
    found = {str(row["name"]): row["watched_twice"] for row in rows if "watched_twice" in row}
    if not found:
        return ""
    whole = [name for name, status in found.items() if status == "ok"]
    count, names = (
        f"{len(whole)} {'is' if len(whole) == 1 else 'are'}",
        ", ".join(map("`{}`".format, whole)),
    )
    return (
        f"Of {_rows(len(found))} whose larger media are refused, {count} ok where a second call with"
        f" these media is watched,\nand media between both are asked{': ' + names if whole else ''}.\n"
    )


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def share(part: int, whole: int) -> str:
    """A percentage that is never rounded to 100 or to 0.

    >>> share(999, 1000), share(1, 1000), share(3, 4), share(0, 0)
    ('99 %', '1 %', '75 %', '')
    """
    if not whole:
        return ""
    percent = round(100 * part / whole)
    if part not in (0, whole):
        percent = min(99, max(1, percent))
    return f"{percent} %"


def cause_of(row: Row) -> tuple[str, str]:
    """The class of a failure: the slug of its error, or the kind of the error, and what it says,
    without the numbers and the names of one model.

    >>> message = "rejects: RejectedCallError: No graph takes it. main: it needs x.shape[1] == 5, the call has 3."
    >>> cause_of({"status": "rejects", "slug": "call-refused", "message": message})
    ('call-refused', 'it needs x.shape[...] == N')
    """
    message = str(row.get("message") or "").partition(" | ")[0]
    kind = re.search(r"\b(\w+(?:Error|Exception|Built))\b", message)
    slug = str(row.get("slug") or (kind.group(1) if kind else ""))
    text = re.sub(r"^(\w+: )?(\w+(?:Error|Exception|Built): )+", "", message)
    for before, after in _LEFT_OUT:
        text = re.sub(before, after, text)
    return slug, text.strip()[:_LONGEST]


#: what is left out of a message, in this order, so that equal causes are equal texts
_LEFT_OUT = (
    (r"^No graph [^.]*takes [^.]*\. (?=main)", ""),
    (r"^main\w*: |^No graph of this program takes the call\. ", ""),
    (r", the call has .*", ""),
    (r"because of \S+ in (\w+)", r"because of \1"),
    (r"refuses \S+ \(\w+\)", "refuses a model"),
    (r"expression .*", "expression"),
    (r"'[^']*'|\"[^\"]*\"|`[^`]*`", "'...'"),
    (r"\[[^\]]*\]", "[...]"),
    (r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N"),
    (r"(?<=[.;]) .*", ""),
)


def _families(rows: list[Row]) -> Iterator[str]:
    """One line per library and head, and one for each library."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        library = row["name"].partition("/")[0]
        family = str(row["family"]).removeprefix(library).strip()
        groups[library].append(row)
        if family:
            groups[f"{library}, {family}"].append(row)
    shown = [status for status in STATUSES if any(row["status"] == status for row in rows)]
    yield "## Families\n"
    yield "| family | measured | " + " | ".join(shown) + " | whole |"
    yield "|---|---:|" + "---:|" * (len(shown) + 1)
    for name, of_group in [*sorted(groups.items()), ("**all**", rows)]:
        counts = Counter(row["status"] for row in of_group)
        built = len(of_group) - counts["not-built"]
        cells = [name, str(len(of_group)), *(str(counts[status] or "") for status in shown)]
        yield "| " + " | ".join([*cells, share(counts["ok"], built)]) + " |"
    yield ""


def _meanings(rows: list[Row]) -> Iterator[str]:
    for status, meaning in MEANINGS.items():
        if any(row["status"] == status for row in rows):
            yield f"* **{status}**: {meaning}"
    long = [row for row in rows if row["status"] == "ok" and row.get("seconds", 0) > _LIMIT]
    if long:
        named = ", ".join(f"{_short(row)} {row['seconds']:.0f} s" for row in long)
        yield (
            f"\nok, with a longer limit or on a busy machine ({len(long)}), in seconds of the clock:"
            f" {named}."
        )
    yield ""


def _causes(rows: list[Row], *, built: bool) -> Iterator[str]:
    """One line per class of failure, the most frequent first."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] != "ok" and (row["status"] != "not-built") == built:
            groups[(row["status"], *cause_of(row))].append(row)
    yield "## Causes\n" if built else "## Not built, and why\n"
    yield "| status | cause | count | says | such as |"
    yield "|---|---|---:|---|---|"
    order = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    for (status, slug, text), of_group in order:
        examples = ", ".join(_short(row) for row in of_group[:_EXAMPLES])
        yield f"| {status} | {slug} | {len(of_group)} | {_cell(text)} | {examples} |"
    yield ""


def _names(rows: list[Row]) -> Iterator[str]:
    """Every architecture, by status and library."""
    yield "## All of them\n"
    for status in STATUSES:
        groups: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row["status"] == status:
                groups[row["name"].partition("/")[0]].append(_short(row))
        for library, names in sorted(groups.items()):
            yield f"**{status}, {library}** ({len(names)}): {', '.join(names)}.\n"


def _short(row: Row) -> str:
    return str(row["name"].partition("/")[2])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
