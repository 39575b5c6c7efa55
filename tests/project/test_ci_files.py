"""What GitHub and pre-commit run is what the Makefile runs, and nothing that is not there."""

from __future__ import annotations

import re
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import matrix
import release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def test_a_smoke_run_without_its_python_is_skipped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    assert matrix.smoke(matrix.Cell("3.10", "2.10")) == 0
    assert capsys.readouterr().out == "Python 3.10, torch 2.10: skipped, no Python 3.10 on this machine\n"


@pytest.mark.parametrize("passed", [True, False])
def test_a_smoke_run_is_as_good_as_its_steps(
    passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"steps": {"doctor": {"passed": True}, "tests": {"passed": passed}}}
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    monkeypatch.setattr(matrix, "run", lambda *_: iter([{"steps": {}}, found]))
    (tmp_path / "3.10=2.10-tests.log").write_text("what failed")
    assert matrix.smoke(matrix.Cell("3.10", "2.10")) == int(not passed)
    assert not (tmp_path / "3.10=2.10").exists()
    assert ("what failed" in capsys.readouterr().out) is not passed


def test_a_share_of_the_tests_is_the_same_whatever_is_added(pytestconfig: pytest.Config) -> None:
    # by its file: a folder of tests may have a conftest of its own under the same name
    (own,) = (
        plugin
        for _, plugin in pytestconfig.pluginmanager.list_name_plugin()
        if getattr(plugin, "__file__", None) == str(Path(__file__).parents[1] / "conftest.py")
    )
    chosen_by = own.pytest_collection_modifyitems

    def chosen(names: list[str], share: int) -> list[str]:
        items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
        left_out: list[Any] = []
        hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
        config: Any = SimpleNamespace(getoption=lambda name: share, hook=hook)
        chosen_by(config, items)
        assert len(items) + len(left_out) == len(names)
        return [item.nodeid for item in items]

    names = [f"tests/test_x.py::test_{number}" for number in range(400)]
    assert chosen(names, 1) == names
    some = chosen(names, 4)
    assert 50 < len(some) < 150
    assert chosen(names[100:], 4) == [name for name in some if name in names[100:]]


def test_a_row_says_which_share_of_the_tests_was_run() -> None:
    result = {"said": "90 passed, 640 deselected, 2 warnings in 3.00s", "passed": True, "share": 8}
    assert matrix.mark("tests", result) == "90 passed (1 test of 8)"
    assert matrix.mark("tests", {**result, "share": 1}) == "90 passed"


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


def test_the_metadata_of_a_release_has_the_address_of_its_repository() -> None:
    address = "https://example.org/onlooker"
    settings = (release.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    urls = tomllib.loads(release.with_urls(settings, address))["project"]["urls"]
    assert urls["Source"] == address
    assert all(page.startswith(address) for page in urls.values())
    pages = [urls[name].removeprefix(f"{address}/blob/main/") for name in ("Documentation", "Changelog")]
    assert all((release.ROOT / page).is_file() for page in pages)
