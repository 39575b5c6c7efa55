"""Models whose users went back to ``torch.onnx.export(dynamo=False)``, exported by one and the same
script: with onlooker, with ``torch.onnx.export`` as it is, and with the legacy one.

    python benchmarks/fell_back.py [--only NAME/EXPORTER,...] [--redo]
    python benchmarks/fell_back.py --page

Each model and exporter has a process of its own with a limit of processor time, and a line in
``benchmarks/rows/fell_back.jsonl`` unless ``--out`` says otherwise; what the file has is not run
again (``--redo`` does). Models of a package that cannot be imported are *not-installed*. ``--page``
writes ``docs/fell_back.md``.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch
from fell_back_models import Entry, Script, entries
from sweep import Architecture, rows_of, run

PAGE = Path(__file__).parent.parent / "docs" / "fell_back.md"
ROWS = Path(__file__).parent / "rows" / "fell_back.jsonl"
EXPORTERS = ("onlooker", "dynamo", "legacy")


def architectures() -> list[Architecture]:
    """One for each model and exporter."""
    return [
        Architecture(
            entry.name,
            exporter,
            entry.package,
            entry.build,
            functools.partial(measure, entry, exporter),
        )
        for entry in entries()
        for exporter in EXPORTERS
    ]


def measured(folder: Path, note: Callable[[dict[str, Any]], None], label: str) -> dict[str, Any]:
    """The row of a model and exporter, in the process of its job."""
    found = {one.label: one for one in architectures()}
    return found[label].measured(note)


def measure(
    entry: Entry,
    exporter: str,
    build: Callable[[], Script],
    row: dict[str, Any],
    send: Callable[[Any], None],
) -> None:
    """Fills the row: was a file written, and what does ONNX Runtime give for each call?"""
    begin_stage(row, "build", send)
    torch.manual_seed(0)
    try:
        script = build()
    except ImportError as error:
        row.update(status="not-installed", message=text_of(error))
        row.pop("stage", None)
        return
    with torch.no_grad():
        expected = [leaves_of(script.model(*call)) for call in script.calls]
    begin_stage(row, "export", send)
    os.chdir(tempfile.gettempdir())
    file = Path("model.onnx")
    begin = processor_seconds()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(script, exporter, file)
    except Exception as error:
        traceback.print_exc()
        row.update(status="refused", message=text_of(error), slug=getattr(error, "slug", None))
    row["export_seconds"] = round(processor_seconds() - begin, 1)
    if row["status"] is None:
        row["files"] = len(list(Path().glob("model*")))
        row["kilobytes"] = sum(one.stat().st_size for one in Path().glob("model*")) // 1000
        begin_stage(row, "run", send)
        compare(script, expected, file, row)
    row.pop("stage", None)


def begin_stage(row: dict[str, Any], stage: str, send: Callable[[Any], None]) -> None:
    """Tells the parent what is going on, should the process die in it."""
    row["stage"] = stage
    send(row)


def processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write(script: Script, exporter: str, file: Path) -> None:
    """The call of the script. Only its first word differs between the exporters."""
    if exporter == "onlooker":
        import onlooker

        export: Callable[..., Any] = onlooker.onnx_export
    else:
        export = functools.partial(torch.onnx.export, dynamo=exporter == "dynamo")
    axes = {name: dict(of_input) for name, of_input in script.axes.items()}
    names = list(script.names)
    export(
        script.model,
        script.calls[0],
        str(file),
        input_names=names,
        dynamic_axes=axes,
        opset_version=18,
    )


def compare(
    script: Script, expected: list[list[torch.Tensor]], file: Path, row: dict[str, Any]
) -> None:
    """Asks the file for the example and for every call that the exporter did not see."""
    import onnxruntime

    found: list[str] = []
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:
        traceback.print_exc()
        row.update(status="unreadable", message=text_of(error))
        return
    names = [port.name for port in session.get_inputs()]
    for call, wanted in zip(script.calls, expected, strict=True):
        given = dict(zip(script.names, leaves_of(call), strict=True))
        try:
            got = session.run(None, {name: given[name].numpy() for name in names})
            found.append(difference(wanted, got, script.tolerance))
        except Exception as error:
            found.append(text_of(error))
    failed = [text for text in found[1:] if text]
    row["right"] = [len(found) - 1 - len(failed), len(found) - 1]
    row["status"] = "ok" if not any(found) else "wrong"
    row["message"] = f"the example: {found[0]}" if found[0] else (failed[0] if failed else "")


def difference(wanted: list[torch.Tensor], got: list[Any], tolerance: float) -> str:
    """What is not as in the model; empty where nothing is."""
    if len(wanted) != len(got):
        return f"{len(got)} outputs instead of {len(wanted)}"
    for one, other in zip(wanted, map(torch.as_tensor, got), strict=True):
        if one.shape != other.shape:
            return f"an output of shape {list(other.shape)} instead of {list(one.shape)}"
        apart = (one.double() - other.double()).abs()
        worst = float((apart / (1 + one.double().abs().max())).max()) if apart.numel() else 0.0
        if not worst <= tolerance:
            return f"an output that is {worst:.2g} of 1 + max|expected| apart"
    return ""


def leaves_of(value: Any) -> list[torch.Tensor]:
    """Its tensors, in the order of ``torch.onnx.export``."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def text_of(error: BaseException) -> str:
    """What an error says, on one line; of one of ``torch.onnx``, which has advice, what caused it."""
    while type(error).__module__.startswith("torch.onnx") and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> int:
    """0 when all that was asked for has a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROWS, help="one line each")
    parser.add_argument("--only", help="NAME or NAME/EXPORTER, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=int, default=150, help="processor seconds for each (150)")
    parser.add_argument("--memory", type=float, default=16, help="GiB of addresses for each (16)")
    parser.add_argument("--redo", action="store_true", help="also what the file has already")
    parser.add_argument("--page", action="store_true", help="write docs/fell_back.md, run nothing")
    options = parser.parse_args()
    if options.page:
        from fell_back_page import page_of

        PAGE.write_text(page_of(list(rows_of(options.out).values())))
        print(f"written: {PAGE}")
        return 0
    asked = options.only.split(",") if options.only else None
    done = set() if options.redo else set(rows_of(options.out))
    todo = [
        one
        for one in architectures()
        if one.label not in done and (asked is None or one.label in asked or one.library in asked)
    ]
    begin = time.monotonic()
    run(todo, options, f"{Path(__file__).absolute()}:measured")
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
