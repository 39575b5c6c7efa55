"""Programs of ExecuTorch: ``.pte`` files, which keep neither names nor ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..targets.inputs import laid
from ..targets.packages import require_packages
from .exported import Exported, Port

__all__ = ["open_executorch"]


def open_executorch(path: Path, method: str = "forward") -> Exported:
    """One method of a program of ExecuTorch; the only one of the file, where that has another name.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    require_packages("executorch", target="executorch", extra="executorch")
    from ..targets.executorch.run import Pte, load_pte

    pte = Pte(path.read_bytes())
    try:
        load_pte(pte, path.name)
        names = sorted(pte.program.method_names)
        chosen = names[0] if len(names) == 1 else method
        loaded = pte.program.load_method(chosen)
        about = loaded.metadata
    except Exception as error:
        raise UsageError(
            f"The file {path} cannot be loaded by ExecuTorch: {str(error)[:300]}",
            slug="model-not-loaded",
            hint=f"Give a .pte that has a method {method!r}.",
        ) from error
    inputs = tuple(Port(str(number)) for number in range(about.num_inputs()))
    outputs = tuple(Port(str(number)) for number in range(about.num_outputs()))

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        return pte.run(loaded, [laid(given[port.name], "", None) for port in inputs])

    return Exported("executorch", inputs, outputs, run)
