"""What is installed: few dependencies, pinned and with their licences, and a wheel that holds what is used, no more."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import licences
import release

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache", "build", "dist", "out", ".hypothesis")
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "upstream")
PARTS = (*FOLDERS, ".importlinter", "pyproject.toml", "MANIFEST.in", "Makefile")
FILES = ("README.md", "LICENSE", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "constraints.txt")


def run(*arguments: object, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, folder: Path) -> Path:
    """What the build backend makes of a folder, without a network and without an environment of its own."""
    script = f"import setuptools.build_meta as b; print(b.build_{kind}('made'))"
    (folder / "made").mkdir(exist_ok=True)
    return folder / "made" / run(sys.executable, "-c", script, cwd=folder).split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a copy of this tree."""
    pytest.importorskip("setuptools")
    tree = tmp_path_factory.mktemp("tree")
    for name in (*PARTS, *FILES):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=IGNORED)
        else:
            shutil.copy(ROOT / name, tree)
    return built("sdist", tree)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    return built("wheel", folder / sdist.name.removesuffix(".tar.gz"))


def test_the_sdist_holds_all_that_a_build_and_a_test_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {*FILES, *PARTS, "tests/conftest.py", "tests/damages.py", "src/onlooker/py.typed"}
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", "shared", ".venv"))]


def test_the_wheel_holds_what_is_used_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    about = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    configs = SOURCE / "onlooker_compat" / "untrained" / "configs"
    used = {path.relative_to(SOURCE).as_posix() for path in [*SOURCE.rglob("*.py"), *configs.iterdir()]}
    used |= {f"onlooker/page/page.{kind}" for kind in ("html.j2", "css", "js")}
    used |= {"onlooker/core/messages.md"}
    assert {name for name in names if ".dist-info/" not in name} == used | {
        "onlooker/py.typed",
        "onlooker_compat/py.typed",
    }


def test_the_wheel_is_installed_without_a_network_and_runs(wheel: Path, tmp_path: Path) -> None:
    try:
        version("pip")
    except PackageNotFoundError:
        pytest.skip("there is no pip here")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-index", "--no-deps", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    # the folder stands before all others, so that nothing is taken from this tree
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import onlooker; print(onlooker.__file__)"
    assert run(sys.executable, "-c", script, cwd=tmp_path).strip().startswith(str(tmp_path))
    main = "import sys; sys.argv = ['onlooker', '--help']; from onlooker.__main__ import main; sys.exit(main())"
    text = run(sys.executable, "-c", f"{script}; {main}", cwd=tmp_path)
    assert "usage: onlooker" in text
    names = "from onlooker.compat import string_type; from onlooker_compat.untrained import preinstalled"
    use = f"{script}; {names}; print(string_type(5), len(preinstalled()) > 50)"
    assert run(sys.executable, "-c", use, cwd=tmp_path).splitlines()[-1] == "int True"
    explain = main.replace("'--help'", "'explain', 'no-calls'")
    explained = run(sys.executable, "-c", f"{script}; {explain}", cwd=tmp_path)
    assert "**What to do.**" in explained
    assert (tmp_path / "site" / "bin" / "onlooker").is_file()


def test_the_dependencies_are_few() -> None:
    found = licences.requirements()
    assert found[""] == ["torch", "numpy", "sympy", "rich", "safetensors", "jinja2", "filelock"]
    extras = {"transformers", "onnx", "openvino", "genai", "sentence-transformers", "precision", "cli", "dev"}
    assert set(found) == {"", *extras}


@pytest.mark.slow
def test_without_extras_a_model_is_exported_proven_saved_and_loaded(tmp_path: Path) -> None:
    """Packages that only the extras of users bring are hidden, whatever is installed here."""
    found = licences.requirements()
    extra = {name for kind, names in found.items() if kind not in ("", "dev") for name in names}
    hidden = set(licences.brought(extra)) - set(licences.brought(found[""]))
    homes = packages_distributions().items()
    modules = sorted(module for module, names in homes if {canonicalize_name(name) for name in names} <= hidden)
    assert {"transformers", "onnx", "onnxruntime", "openvino"} <= set(modules)
    script = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{release.SMALL}"
    assert run(sys.executable, "-W", "error", "-c", script, cwd=tmp_path).endswith("saved and loaded\n")


def closure() -> list[str]:
    names = [name for names in licences.requirements().values() for name in names]
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    return licences.brought(names)


def test_all_that_is_installed_for_onlooker_is_pinned_to_a_version() -> None:
    pins = licences.pinned()
    assert [name for name in closure() if name not in pins] == []
    assert [pin for pin in pins.values() if not re.fullmatch(r"\d+(\.\d+)*(\.?(post|rc|a|b)\d+)?", pin)] == []


def test_nothing_is_pinned_that_is_not_needed() -> None:
    needed = set(closure())
    if sys.platform == "linux" and sys.version_info[:2] == (3, 11):
        assert set(licences.pinned()) <= needed


def table() -> dict[str, list[str]]:
    """The sections of the page: the direct dependencies of each, and the rows below them."""
    text = (ROOT / "docs" / "licences.md").read_text()
    assert text.startswith(licences.HEAD)
    return {part.partition("\n")[0]: part.splitlines() for part in text.split("\n## ")[1:]}


def test_the_page_of_licences_lists_the_dependencies_of_the_project() -> None:
    found = {}
    for title, lines in table().items():
        (direct,) = (line for line in lines if line.startswith("Directly: "))
        found[title] = direct.removeprefix("Directly: ").rstrip(".").split(", ")
        rows = [row[2:].split(" | ")[0] for row in lines if row.startswith("| ") and "package" not in row]
        assert rows[: len(found[title])] == found[title]
    assert found == {licences.TITLES[extra]: names for extra, names in licences.requirements().items()}


def test_the_page_of_licences_says_what_the_packages_say() -> None:
    rows = [row[2:-2].split(" | ") for lines in table().values() for row in lines if row.startswith("| ")]
    known = dict(row for row in rows if row[0] != "package")
    pins = licences.pinned()
    here = [name for name in closure() if version(name).partition("+")[0] == pins[name]]
    assert {name: known.get(name) for name in here} == {name: licences.licence(name) for name in here}
