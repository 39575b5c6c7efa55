"""Each wrong use of docs/wrong_uses.md gets the error that stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onlooker
from wrong_uses import DOCUMENT, Row, outcome, rows, watched

ROWS = tuple(rows(DOCUMENT.read_text(encoding="utf-8")))
MESSAGES = (DOCUMENT.parent / "messages.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[row.code for row in ROWS])
@pytest.mark.one_in(2)
def test_a_wrong_use_gets_its_error(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(row.code, tmp_path) == (row.slug, row.text)
    assert f"\n## {row.slug}\n" in MESSAGES


def test_there_are_enough_and_each_once() -> None:
    assert len({row.code for row in ROWS}) == len(ROWS) >= 40
    assert all(row.slug and row.text for row in ROWS)


def test_every_method_that_can_be_used_wrongly_is_there() -> None:
    """Those that take no argument, or answer whatever they are given, are the exceptions."""
    code = "\n".join(row.code for row in ROWS)
    _, observer, program = watched()
    silent = {"num_obs", "is_empty", "verify_saved", "reset_state", "plot", "served", "sized_calls"}
    for word, value in (("observer|new", observer), ("program|loaded", program)):
        methods = {n for n, v in vars(type(value)).items() if callable(v) and not n.startswith("_")} - silent
        assert methods <= set(re.findall(rf"(?:{word})\.(\w+)\(", code))


def test_every_function_that_is_exported_is_there() -> None:
    code = "\n".join(row.code for row in ROWS)
    functions = {name for name in onlooker._HOMES if name[0].islower()}
    answers_everything = {
        "all_dynamic_shape_from_inputs",
        "all_dynamic_shapes_from_inputs",
        "max_diff",
        "register_flattening_functions",
        "string_type",
    }
    assert functions - answers_everything <= set(re.findall(r"onlooker\.(\w+)\(", code))
