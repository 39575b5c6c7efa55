"""The limits of torch and its converters: every script is on the page, and says what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules_of_files import module_of

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")


RUN = module_of(ROOT / "upstream" / "run.py", "upstream_run")
SCRIPTS = RUN.scripts()


def test_the_page_has_every_script() -> None:
    assert len(SCRIPTS) >= 15
    assert SCRIPTS[0].name == "torch_size_one_branch"
    titles = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    assert titles == [script.title.rstrip(".") for script in SCRIPTS]


def test_a_script_says_where_with_what_and_in_which_thread() -> None:
    for script in SCRIPTS:
        assert set(script.fields) == set(RUN.FIELDS), script.name
        assert all(f"- **{field}**: {text}" in PAGE for field, text in script.fields.items()), script.name


def test_no_script_uses_onlooker() -> None:
    for script in SCRIPTS:
        source = (ROOT / "upstream" / f"{script.name}.py").read_text(encoding="utf-8")
        assert "onlooker" not in source.split('"""', 2)[2], script.name


@pytest.mark.slow
@pytest.mark.parametrize("name", [script.name for script in SCRIPTS])
def test_what_is_repaired_in_the_installed_versions(name: str) -> None:
    """Passes for a limit that is repaired: what onlooker does about it may go. ``pytest -rA`` lists all."""
    line = RUN.outcome(name)
    assert line.startswith(RUN.VERDICTS), line
    if line.startswith("still there"):
        pytest.xfail(line)
    if line.startswith("not run"):
        pytest.skip(line)
