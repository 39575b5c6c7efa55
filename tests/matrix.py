"""``make matrix``: the demo, the zoo and the fast tests, for each pair of torch and Python that can be had here.

    python tests/matrix.py                                   all cells, each in a virtual environment of its own
    python tests/matrix.py --cell 3.10=2.10 --keep           one cell; its environment stays in .matrix/
    python tests/matrix.py --page                            only writes docs/versions.md again from what is known
    python tests/matrix.py --share 4 --step doctor --step llama --step tests                 where time is short
    python tests/matrix.py --smoke 3.10=2.10 3.13=2          the doctor, one demo, few tests, with the oldest torch and
                                                             with the newest torch 2 that there is; nothing is kept

What was found is kept in tests/matrix.json, cell by cell: a cell that is not run keeps what it said the last time.
Packages are installed by uv where it can be had, which takes a minute for what pip needs nine for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CELLS", "FAST", "MODELS", "Cell", "page"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".matrix"
KEPT = ROOT / "tests" / "matrix.json"
PAGE = ROOT / "docs" / "versions.md"
#: the tests that tell most about torch and Python for their time: a few minutes of one processor
FAST = (
    "tests/core",
    "tests/disk/test_codec.py",
    "tests/contract",
    "tests/infer",
    "tests/graphs/test_guards.py",
    "tests/repairs/test_by_values.py",
    "tests/proofs/test_size_proofs.py",
    "tests/keep/test_keep.py",
    "tests/zoo/test_zoo.py",
    "tests/project/test_torch_internals.py",
)
#: models of the zoo, each watched, exported to torch and to ONNX, and proven, as the demo does
MODELS = ("llama", "gpt2", "bert", "vit")
TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "attrs>=23.1", "optree>=0.13")
SHOWN = ("torch", "transformers", "onnx", "onnxruntime", "numpy", "sympy")
#: seconds after which a step has failed
LIMIT = 3600
#: of the fast tests one of so many is run in a smoke test, by the checksum of its name (tests/conftest.py)
SMOKE_SHARE = 20
#: the most seconds in which a smoke test installs torch; it is skipped where that takes longer
SMOKE_LIMIT = 300
#: the settings of pip that uv has by another name
OF_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A pair of a Python and a torch, as two numbers each: ``3.10``, ``2.10``."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """How it is written on the command line: ``3.10=2.10``."""
        return f"{self.python}={self.torch}"


class AbsentError(Exception):
    """A Python or a torch that cannot be had here."""


#: each end of what is promised, and what is between: the newest torch on the newest Python that it has
CELLS = (
    Cell("3.10", "2.10"),
    Cell("3.12", "2.12"),
    Cell("3.11", "2.13"),
    Cell("3.13", "2.15"),
    Cell("3.14", "2.15"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What is run in a cell: a word for the table, and the arguments of its Python."""

    name: str
    arguments: tuple[str, ...]


def steps(folder: Path, share: int = 1) -> list[Step]:
    """The steps of one cell; ``folder`` is where programs are written, one test of ``share`` is run."""
    demos = [
        Step(name, ("-m", "onlooker", "demo", "--model", name, "--to", "both", "--out", str(folder / name)))
        for name in MODELS
    ]
    # a warning is an error with the versions of constraints.txt alone: other versions have warnings of their own
    options = ("-q", "--tb=short", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "--disable-warnings")
    tests = Step("tests", ("-m", "pytest", *options, f"--share={share}", *FAST))
    return [Step("doctor", ("-m", "onlooker", "doctor")), *demos, tests]


def interpreter(version: str) -> str | None:
    """A Python of this version: of the path, of pyenv, or of uv; None where there is none."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    candidates += [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        candidates.append(found.stdout.strip())
    for candidate in filter(None, candidates):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return candidate
    return None


def installer(inside: Path) -> tuple[list[str], dict[str, str]]:
    """The command that installs packages for the Python ``inside``, and its environment: uv, or pip without it."""
    settings = dict(os.environ)
    pip = [str(inside), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    uv = shutil.which("uv") or str(inside.with_name("uv"))
    if not Path(uv).exists() and subprocess.run([*pip, "uv"], check=False).returncode:
        return pip, settings
    settings |= {name: os.environ[of_pip] for of_pip, name in OF_UV.items() if of_pip in os.environ}
    # an index with some packages of torch has old ones of others
    settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return [uv, "pip", "install", "--quiet", "--no-cache", "--python", str(inside)], settings


def environment(cell: Cell, python: str, limit: float | None = None) -> Path:
    """The Python of the virtual environment of a cell, which is made if it is not there.

    torch is installed first and alone, as the Makefile does, within ``limit`` seconds.

    :raises AbsentError: where torch cannot be had, or not so soon
    :raises subprocess.CalledProcessError: where something else cannot be installed
    """
    folder = FOLDER / cell.name
    inside, stamp = folder / "bin" / "python", folder / ".installed"
    if stamp.exists():
        return inside
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    install, settings = installer(inside)
    try:
        subprocess.run([*install, f"torch=={cell.torch}.*"], check=True, env=settings, timeout=limit)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise AbsentError(f"no torch {cell.torch} for it: {error}") from error
    subprocess.run([*install, "--editable", f"{ROOT}[transformers,onnx]", *TOOLS], check=True, env=settings)
    stamp.touch()
    return inside


def run(cell: Cell, asked: Sequence[str] = (), share: int = 1, limit: float | None = None) -> Iterator[dict[str, Any]]:
    """What came of a cell, after each step again: the versions, and for each step whether it passed.

    ``asked`` are the names of steps, all of them by default; one test of ``share`` is run; ``limit`` is that of
    :func:`environment`.
    """
    python = interpreter(cell.python)
    try:
        if python is None:
            raise AbsentError(f"no Python {cell.python} on this machine")
        inside = environment(cell, python, limit)
    except AbsentError as error:
        yield {"absent": str(error)}
        return
    found: dict[str, Any] = {"versions": versions(inside), "steps": {}}
    for step in steps(FOLDER / "out" / cell.name, share):
        if asked and step.name not in asked:
            continue
        start = time.perf_counter()
        passed, lines = call([str(inside), *step.arguments], FOLDER / f"{cell.name}-{step.name}.log")
        said = lines[-1] if lines else ""
        failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        seconds = round(time.perf_counter() - start)
        print(f"  {cell.name} {step.name}: {said} ({seconds} s)", flush=True)
        found["steps"][step.name] = {"passed": passed, "seconds": seconds, "said": said, "failed": failed}
        if step.name == "tests":
            found["steps"][step.name]["share"] = share
        yield found


def smoke(cell: Cell) -> int:
    """Runs the doctor, the first demo and few tests in a cell: 0 where they pass, or where they cannot be run here."""
    was_there = (FOLDER / cell.name).exists()
    *_, found = run(cell, ("doctor", MODELS[0], "tests"), SMOKE_SHARE, SMOKE_LIMIT)
    if not was_there:
        shutil.rmtree(FOLDER / cell.name, ignore_errors=True)
    if "absent" in found:
        print(f"Python {cell.python}, torch {cell.torch}: skipped, {found['absent']}", flush=True)
        return 0
    failed = {name: step for name, step in found["steps"].items() if not step["passed"]}
    for name in failed:
        print((FOLDER / f"{cell.name}-{name}.log").read_text(encoding="utf-8"))
    return int(bool(failed))


def call(command: Sequence[str], log: Path) -> tuple[bool, list[str]]:
    """Whether a command ended with 0, and the lines that it wrote, which go into the log too."""
    settings = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as stream:
        try:
            code = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **settings},
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return False, [f"no end after {LIMIT} seconds"]
    lines = log.read_text(encoding="utf-8").splitlines()
    return code == 0, [line for line in lines if line.strip() and not line.startswith("next:")]


def versions(python: Path) -> dict[str, str]:
    """The versions that are installed in an environment."""
    code = (
        "import json, sys; from importlib.metadata import version;"
        f"print(json.dumps({{'python': sys.version.split()[0], **{{n: version(n) for n in {SHOWN!r}}}}}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


HEAD = """\
# Versions

onlooker needs torch 2.10 or newer and Python 3.10 or newer; transformers, where it is used, 5.0 or newer. Written by
`make matrix` (`python tests/matrix.py`), which makes a virtual environment for each row, with the newest packages that
it can have, and runs in it `onlooker doctor`, the demo with four models of the zoo (each exported to torch and to ONNX
and proven on calls it never saw), and the fast part of the tests. Where a row would last more than 25 minutes, fewer
models were run, and one test of so many, chosen by the checksum of its name (`--share`) and by nothing else. "no" has
the last line that was said below the table.
Continuous integration runs the whole suite with the versions of [constraints.txt](../constraints.txt).

torch 2.9 and older are refused (`torch-too-old`): the guards of an exported program are kept elsewhere there. What
onlooker uses of torch beyond its documented names is imported in one folder, `onlooker.torch_internals`; a name that a
torch does not have is one error with the name in it (`torch-changed`).

What is known of torch 2.10 beside this table: some programs are refused, or serve less, that are made with torch 2.13:
a branch on a bool that is computed from values (torch 2.10 writes no assertion, so it is refused with an error that
says so), a float in an exponent (a graph for each of its values), a size that goes through a tensor (the size of the
example alone), models whose masks torch computes otherwise in a trace (refused). Bounds of int32 on products of sizes
are conditions there.

With torch 2.15 operators ask more about memory than with torch 2.13: a graph of a model that cuts windows out of an
image may have more conditions on its sides (`1 % (height // 8) != 0`), and refuse some sizes.
"""


def page(known: Mapping[str, Any]) -> str:
    """The page, from what is known of each cell."""
    columns = ["Python", "torch", "transformers", "onnxruntime", *[step.name for step in steps(FOLDER)]]
    lines = [HEAD, f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    remarks = []
    order = [cell.name for cell in CELLS]
    for name in [*(name for name in order if name in known), *(name for name in known if name not in order)]:
        found = known[name]
        python, torch = name.split("=")
        if "absent" in found:
            lines.append(f"| {python} | {torch} | not run: {found['absent']} |" + " |" * (len(columns) - 3))
            continue
        installed = found["versions"]
        cells = [installed[key] for key in ("python", "torch", "transformers", "onnxruntime")]
        for step in (step.name for step in steps(FOLDER)):
            result = found["steps"].get(step)
            cells.append(mark(step, result) if result else "not run")
            if result and not result["passed"]:
                names = "".join(f"\n  - `{name}`" for name in result["failed"])
                remarks.append(f"- Python {python}, torch {torch}, {step}: {result['said']}{names}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def mark(step: str, result: Mapping[str, Any]) -> str:
    """One field of the table."""
    if step == "tests":
        said = str(result["said"]).split(" in ")[0].strip("= ")
        counted = re.sub(r"\b\d+ (deselected|warnings?)(, )?", "", said).strip(", ")
        return counted if result.get("share", 1) == 1 else f"{counted} (1 test of {result['share']})"
    return "yes" if result["passed"] else "no"


def main() -> int:
    """0 where every cell that could be run passed."""
    parser = argparse.ArgumentParser(prog="matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cell", action="append", metavar="PYTHON=TORCH", help="this one alone, as 3.10=2.10")
    parser.add_argument("--share", type=int, default=1, help="run one fast test of so many")
    parser.add_argument("--step", action="append", metavar="NAME", help="this step alone: doctor, a model, tests")
    parser.add_argument("--keep", action="store_true", help="leave the environments in .matrix/, several GB each")
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument(
        "--smoke", metavar="PYTHON=TORCH", nargs="+", help="a short run of these cells; nothing is kept or written"
    )
    options = parser.parse_args()
    if options.smoke:
        return max([smoke(Cell(*name.split("="))) for name in options.smoke])
    known: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    asked = [Cell(*name.split("=")) for name in options.cell] if options.cell else CELLS
    failed = False
    for cell in () if options.page else asked:
        print(f"Python {cell.python}, torch {cell.torch}", flush=True)
        before = known.get(cell.name, {}) if options.step else {}
        for found in run(cell, options.step or (), options.share):
            if "steps" in found:
                found["steps"] = {**before.get("steps", {}), **found["steps"]}
                failed |= not all(step["passed"] for step in found["steps"].values())
            known[cell.name] = found
            KEPT.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        if not options.keep:
            shutil.rmtree(FOLDER / cell.name, ignore_errors=True)
    PAGE.write_text(page(known), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
