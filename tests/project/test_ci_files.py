"""What GitHub and pre-commit run is what the Makefile runs, and nothing that is not there."""

from __future__ import annotations

import re
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

import matrix
import release

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    return [step["run"] for job in read(path)["jobs"].values() for step in job["steps"] if "run" in step]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    recipe = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    made = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines() if line.startswith("\t")]
    sources = re.search(r"^SOURCES := (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert sources is not None
    made = [line.replace("$(SOURCES)", sources.group(1)) for line in made]
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == made


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_an_end(path: Path) -> None:
    found = read(path)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert "timeout-minutes" in job or "environment" in job
        assert set(job.get("permissions", {})) <= {"id-token"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(path: Path) -> None:
    for command in commands(path):
        for name in re.findall(r"\b(?:tests|\.ci)/[\w./]+", command):
            assert (ROOT / name).exists()
        for target in re.findall(r"\bmake ([\w-]+)", command):
            # the documentation has a target of its own
            assert target == "docs" or re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE)


def test_the_workflow_of_the_matrix_has_its_cells() -> None:
    found = read(ROOT / ".github" / "workflows" / "matrix.yml")
    assert found["jobs"]["cell"]["strategy"]["matrix"]["cell"] == [cell.name for cell in matrix.CELLS]


def test_the_first_thing_a_report_of_a_fault_asks_for_is_the_doctor() -> None:
    first = read(ROOT / ".github" / "ISSUE_TEMPLATE" / "fault.yml")["body"][0]
    assert first["attributes"]["label"] == "onlooker doctor"
    assert first["validations"]["required"]


def test_the_fast_tests_of_the_matrix_exist() -> None:
    assert not [name for name in matrix.FAST if not (ROOT / name).exists()]


def test_the_page_of_versions_is_made_of_what_was_found() -> None:
    known = matrix.json.loads(matrix.KEPT.read_text(encoding="utf-8"))
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(known)


def archive(moment: int, names: list[str]) -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = 3, moment, f"user {moment}"
            packed.addfile(member, BytesIO(name[:3].encode()))
    return made.getvalue()


def test_an_sdist_is_the_same_whoever_builds_it_and_when() -> None:
    first, second = archive(1, ["p/aaa", "p/bbb"]), archive(2, ["p/bbb", "p/aaa"])
    assert first != second
    assert release.normalised(first, 9) == release.normalised(second, 9)
    assert release.normalised(first, 9) != release.normalised(archive(1, ["p/aaa"]), 9)
