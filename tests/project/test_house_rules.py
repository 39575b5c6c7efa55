"""The rules of the house, held by a tool instead of a reviewer. See CONTRIBUTING.md."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "onlooker"
COMPAT = ROOT / "src" / "onlooker_compat"
SOURCES = sorted([*PACKAGE.rglob("*.py"), *COMPAT.rglob("*.py")])
CORE_MODULES = sorted(
    ".".join(path.relative_to(PACKAGE / "core").with_suffix("").parts)
    for path in (PACKAGE / "core").rglob("*.py")
    if path.stem != "__init__"
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "src").as_posix()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_imports_only_go_down() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = run(sys.executable, "-c", code, "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_two_modules_of_tests_have_one_name() -> None:
    """pytest imports a module of a folder without ``__init__.py`` by its name alone, and refuses the second."""
    modules = [path for path in sorted((ROOT / "tests").rglob("*.py")) if not (path.parent / "__init__.py").exists()]
    # the tests of a GPU are collected where there is one, so that machine has to find no second name either
    names = collections.Counter(path.name for path in modules if path.name != "conftest.py")
    assert not [path.relative_to(ROOT).as_posix() for path in modules if names[path.name] > 1]


@functools.cache
def nodes() -> Mapping[Path, list[ast.arg | ast.keyword]]:
    """The parameters of functions, and the arguments of calls that are passed by name, of each file."""
    return {
        path: [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
            if isinstance(node, ast.arg | ast.keyword)
        ]
        for path in SOURCES
    }


def test_no_function_has_a_verbose_flag() -> None:
    """But among the names of other packages, whose users may pass it by name."""
    others = ((path, found) for path, found in nodes().items() if path != COMPAT / "names.py")
    arguments = ((path, node) for path, found in others for node in found if isinstance(node, ast.arg))
    assert not [f"{name_of(path)}:{a.lineno}" for path, a in arguments if a.arg == "verbose"]


def slugs_in(path: Path) -> Iterator[str]:
    """Every ``slug="..."``; anything but a literal could not be looked up."""
    for node in nodes()[path]:
        if isinstance(node, ast.keyword) and node.arg == "slug":
            assert isinstance(node.value, ast.Constant), f"{name_of(path)}:{node.value.lineno}: not a literal"
            yield str(node.value.value)


def messages() -> dict[str, str]:
    """Slug -> text of its entry, in the order of the document."""
    text = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    titles_and_texts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def test_every_slug_has_its_message() -> None:
    assert {slug for path in SOURCES for slug in slugs_in(path)} == set(messages())


def test_messages_are_sorted_and_say_what_to_do() -> None:
    entries = messages()
    assert list(entries) == sorted(entries)
    assert not [slug for slug, text in entries.items() if "**What to do.**" not in text]


def names_at_the_top() -> set[str]:
    """The names that ``onlooker/__init__.py`` binds without an underscore."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("onlooker")):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in bound if not name.startswith("_")}


def test_all_is_what_is_public() -> None:
    import onlooker

    assert onlooker.__all__ == sorted(set(onlooker.__all__))
    assert dir(onlooker) == sorted([*onlooker.__all__, "__version__"])
    assert set(onlooker.__all__) <= set(onlooker._HOMES)
    names_of_others = {name for name, home in onlooker._HOMES.items() if home.startswith("onlooker_compat")}
    assert not names_of_others & set(onlooker.__all__)


def test_every_name_at_the_top_is_there_for_type_checkers_too() -> None:
    import onlooker

    assert set(onlooker._HOMES) == names_at_the_top()
    assert not [name for name in onlooker._HOMES if not hasattr(onlooker, name)]
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        onlooker.no_such_name  # noqa: B018


def test_no_module_hides_a_name_at_the_top() -> None:
    """Importing ``onlooker.load`` as a module would put the module in the place of the function."""
    import onlooker

    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not modules & set(onlooker._HOMES)


def is_frozen_and_slotted(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen) and "__slots__" in vars(cls)


@pytest.mark.parametrize("module", CORE_MODULES)
def test_core_is_made_of_frozen_values(module: str) -> None:
    loaded = importlib.import_module(f"onlooker.core.{module}")
    own = [v for v in vars(loaded).values() if isinstance(v, type) and v.__module__ == loaded.__name__]
    assert not [c.__name__ for c in own if dataclasses.is_dataclass(c) and not is_frozen_and_slotted(c)]


def test_importing_onlooker_imports_no_optional_package() -> None:
    optional = {"transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "executorch"}
    result = run(sys.executable, "-c", f"import sys, onlooker; print({optional} & sys.modules.keys())")
    assert result.stdout == "set()\n", result.stdout + result.stderr


def test_the_version_is_said_without_torch() -> None:
    said = "import sys; from onlooker.__main__ import main; sys.argv[1:] = ['--version']; main()"
    result = run(sys.executable, "-c", f"{said}; print('torch' in sys.modules)")
    assert re.fullmatch(r"onlooker \d+\.\d+\S*\nFalse\n", result.stdout), result.stdout + result.stderr


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (COMPAT / "py.typed").exists()


def named_in_architecture() -> list[str]:
    """The names of modules, classes and functions on the page, as ``core.plan.Plan``."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("_")}
    names = re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?`", text)
    return sorted({name for name in names if name.partition(".")[0] in rooms - {"program"}})


def references(path: Path) -> Iterator[tuple[int, str]]:
    """The modules and names that docstrings refer to, whole: ``.calls.replay`` is below the package of a file."""
    text = path.read_text(encoding="utf-8")
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    for found in re.finditer(r":(?:mod|class|func|meth|attr|data):`~?(\.*)([\w.]+)`", text):
        dots, name = found.groups()
        line = text[: found.start()].count("\n") + 1
        if dots:
            yield line, ".".join((*parts[: -len(dots)], name))
        elif name.startswith("onlooker"):
            yield line, name


def is_there(name: str) -> bool:
    """True for a module, or for a word in the innermost module of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = (ROOT / "src").joinpath(*parts[:count])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.exists():
                words = file.read_text(encoding="utf-8")
                return count == len(parts) or re.search(rf"\b{parts[count]}\b", words) is not None
    return False


def test_docstrings_refer_to_what_there_is() -> None:
    found = [(path, line, name) for path in SOURCES for line, name in references(path)]
    assert [f"{name_of(path)}:{line}: {name}" for path, line, name in found if not is_there(name)] == []
    assert len(found) > 50


def test_the_architecture_names_what_there_is() -> None:
    missing = []
    for name in named_in_architecture():
        found: Any = importlib.import_module("onlooker")
        for part in name.split("."):
            module = f"{getattr(found, '__name__', '')}.{part}"
            try:
                found = getattr(found, part, None) or importlib.import_module(module)
            except ModuleNotFoundError:
                missing.append(name)
                break
    assert missing == []
    assert len(named_in_architecture()) > 100
