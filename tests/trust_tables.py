"""Writes the tables of docs/trust.md from the tests: ``python tests/trust_tables.py``.

The tests themselves compare what they find with the tables, cell by cell.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from damages import DAMAGES, MODELS
from onlooker.core.verdict import Focus, Tally

ROOT = Path(__file__).parent.parent
TRUST = ROOT / "docs" / "trust.md"

_BEGIN, _END = "<!-- {name}: written by tests/trust_tables.py -->\n", "<!-- end of {name} -->"
_WORDS = {
    Focus.OBSERVED: "call",
    Focus.SIZES: "sizes",
    Focus.GIVEN: "sizes",
    Focus.BOUNDS: "bounds",
    Focus.PADDING: "padding",
    Focus.LEFT_OUT: "left out",
    Focus.VALUES: "values",
    Focus.EXTREME: "values",
    Focus.LAYOUT: "layout",
    Focus.REPEATED: "repetition",
}


def found_by(tally: Tally) -> str:
    """The first trial that fails, in a word."""
    return next((_WORDS[check.focus] for check in tally.checks if not check.passed and check.focus), "missed")


def section(text: str, name: str) -> str:
    """What stands between the two marks of a table."""
    begin, end = _BEGIN.format(name=name), _END.format(name=name)
    return text.partition(begin)[2].partition(end)[0]


def damage_rows(table: str) -> dict[str, dict[str, str]]:
    """Per kind of damage the cell of each model."""
    rows = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(MODELS) + 1 and cells[0] not in ("damage", "---"):
            rows[cells[0]] = dict(zip(MODELS, cells[1:], strict=True))
    return rows


def damages_table() -> str:
    """The table of damages, by running all of them."""
    from damaged_models import damaged

    lines = [f"| damage | {' | '.join(MODELS)} |", f"|{'---|' * (len(MODELS) + 1)}"]
    count = missed = 0
    for damage in DAMAGES:
        cells = []
        for name in MODELS:
            found = found_by(damaged(name, damage.change).verify()) if name in damage.models else ""
            cells.append(found)
            count, missed = count + bool(found), missed + (found == "missed")
        lines.append(f"| {damage.kind} | {' | '.join(cells)} |")
    return "\n".join([f"{len(DAMAGES)} kinds, {count} damages, {missed} missed.", "", *lines, ""])


def faults_table() -> str:
    """The table of faults while watching: what test_faults.py and test_wrapped_models.py run, and their other tests."""
    sys.path.insert(0, str(ROOT / "tests" / "observing"))
    import test_faults
    import test_wrapped_models

    lines = ["| fault while watching | calls recorded | the recording says |", "|---|---|---|"]
    for kind, fault in test_faults.FAULTS.items():
        lines.append(f"| {kind} | {fault.calls} | {fault.missed} |")
    for kind, (_, calls, missed) in test_faults.VALUES.items():
        lines.append(f"| {kind}, passed and returned | {calls} | {missed} |")
    for kind in test_wrapped_models.WRAPPERS:
        lines.append(f"| wrapped: {kind} | {test_wrapped_models.CALLS} |  |")
    for kind in test_wrapped_models.ADAPTERS:
        lines.append(f"| adapted by PEFT: {kind} | {test_wrapped_models.CALLS_OF_PEFT} |  |")
    tabled = {"test_faults_in_the_run", "test_values_that_cannot_be_read"}
    tabled |= {"test_wrapped_models_run_as_without_us", "test_models_of_peft_run_as_without_us"}
    names = (*vars(test_faults), *vars(test_wrapped_models))
    others = [name for name in names if name.startswith("test_") and name not in tabled]
    said = [f"- {name.removeprefix('test_').replace('_', ' ')}" for name in others]
    return "\n".join([*lines, "", "And each by a test of its own:", "", *said, ""])


def written(text: str) -> str:
    """The document with both tables made anew."""
    for name, table in (("damages", damages_table()), ("faults", faults_table())):
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        text = re.sub(pattern, lambda _, new=begin + table + end: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    before = TRUST.read_text(encoding="utf-8")
    after = written(before)
    TRUST.write_text(after, encoding="utf-8")
    sys.exit("0 missed" not in after)
