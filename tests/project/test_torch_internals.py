"""Private names of torch are imported in one place, and their absence is one clear error."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import onlooker.torch_internals
from onlooker import UnsupportedError
from onlooker.torch_internals import needed as needed_module
from onlooker.torch_internals.needed import needed

SOURCE = Path(onlooker.__file__).parent.parent
OWN = SOURCE / "onlooker" / "torch_internals"
#: asked for where they are used: a function that is not there is passed over
#: or in a process of its own, which imports nothing of onlooker
PASSED_OVER = {
    "onlooker/targets/onnx/operators/assertions.py": {"torch.onnx._internal.exporter._fx_passes"},
    "onlooker/targets/onnx/operators/table.py": {"torch.onnx._internal.exporter._registration.ONNXRegistry"},
    "onlooker/targets/native_process.py": {"torch._inductor", "torch._inductor.aoti_load_package"},
}
#: documented, in spite of their name
PUBLIC = {"torch._check"}


def is_private(name: str) -> bool:
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return parts[0] == "torch" and name not in PUBLIC and (hidden or "experimental" in parts)


def is_of_torch(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "torch"


def names_in(path: Path) -> Iterator[str]:
    """Every name of torch that a file imports, or reads from the module torch."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and is_of_torch(node) and ast.unparse(node).startswith("torch._"):
            yield ast.unparse(node)


def test_private_names_of_torch_are_imported_in_one_place() -> None:
    found = {}
    for path in [*SOURCE.glob("onlooker/**/*.py"), *SOURCE.glob("onlooker_compat/**/*.py")]:
        place = path.relative_to(SOURCE).as_posix()
        names = {name for name in names_in(path) if is_private(name)} - PASSED_OVER.get(place, set())
        if OWN not in path.parents and names:
            found[place] = names
    assert not found


def test_the_search_finds_private_names(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text("from torch._ops import OpOverload\nimport torch\nx = torch._C._nn\ny = torch.nn.Module\n")
    assert {name for name in names_in(file) if is_private(name)} == {
        "torch._ops.OpOverload",
        "torch._C",
        "torch._C._nn",
    }


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules([str(OWN)])))
def test_the_installed_torch_has_all_names(name: str) -> None:
    module = importlib.import_module(f"onlooker.torch_internals.{name}")
    assert not [public for public in module.__all__ if not hasattr(module, public)]


def test_a_name_that_is_gone_is_one_clear_error() -> None:
    words = r"torch .* has not the name that onlooker needs for pytrees: .*no_such_name.*torch 2\.10, .*torch-changed"
    with pytest.raises(UnsupportedError, match=words), needed("pytrees"):
        from torch.utils._pytree import no_such_name  # noqa: F401


def test_a_torch_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed_module, "OLDEST", (99, 0))
    with pytest.raises(UnsupportedError, match=r"onlooker needs 99\.0 or newer.*torch-too-old"), needed("pytrees"):
        pytest.fail("the block is not entered")
