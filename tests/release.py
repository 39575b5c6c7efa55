"""``make release-check``: builds sdist and wheel twice, and tries them as a user would.

1. sdist and wheel are built in two empty folders, and are the same, byte for byte (SOURCE_DATE_EPOCH is the time of
   the last commit).
2. ``twine check --strict`` reads their description.
3. The wheel is installed into an empty environment without extras: ``onlooker doctor``, and a small model that is
   watched, exported, proven, saved and loaded.
4. With the extras transformers and onnx, the demo runs from the wheel.
5. ``mypy --strict`` and ``pyright`` in its strict mode read the types of the wheel in the code of a user
   (``tests/project/user_code.py``), and find a use that is wrong.
6. ``pipx run`` runs the demo from the wheel, if there is pipx, and ``--pipx`` says so: it installs torch once more.

Where ``ONLOOKER_URL`` is the address of the repository, as in the workflow of a release, the metadata has it, with the
pages that stand below it.

The licences of all that is installed are in docs/licences.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SMALL", "normalised", "with_urls"]

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
ADDRESS = os.environ.get("ONLOOKER_URL", "")
SMALL = """
import tempfile, torch, onlooker

class Scaled(torch.nn.Module):
    def forward(self, x, mask):
        return (x * mask).sum(1)

model, observer = Scaled(), onlooker.InputObserver()
with observer(model):
    for batch, length in ((2, 5), (3, 7)):
        model(torch.randn(batch, length), mask=torch.ones(batch, length))
program = observer.export()
assert program.verify().verified, program.report
with tempfile.TemporaryDirectory() as folder:
    program.save(folder + "/out")
    again = onlooker.load(folder + "/out")
x = torch.randn(4, 9)
assert torch.equal(again(x, mask=torch.ones(4, 9)), model(x, torch.ones(4, 9)))
print("onlooker", onlooker.__version__, "exported, proven, saved and loaded")
"""
FROM_THE_WHEEL = 'assert "site-packages" in onlooker.__file__, onlooker.__file__'


def run(*command: object, cwd: Path = ROOT, more: Mapping[str, str] | None = None) -> str:
    """The output of a command.

    :raises SystemExit: with the output, where the command fails
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(more or {})
    texts = [str(part) for part in command]
    done = subprocess.run(texts, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(texts)}\n{done.stdout}{done.stderr}")
    return done.stdout


def normalised(archive: bytes, moment: int) -> bytes:
    """The same sdist without what differs from build to build: times, owners, and the order of files."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as before,
        gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=moment) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            content = before.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = moment, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, content)
    return made.getvalue()


def with_urls(pyproject: str, address: str) -> str:
    """The settings of a project whose repository is at this address."""
    pages = {
        "Source": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = [f'{name} = "{page}"' for name, page in pages.items()]
    return "\n".join([pyproject.rstrip(), "", "[project.urls]", *lines, ""])


def build(folder: Path, moment: int) -> tuple[Path, Path]:
    """sdist and wheel of what git has, in a folder; the wheel is built from the sdist."""
    tree = folder / "tree"
    tree.mkdir()
    tracked = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tracked)) as archive:
        archive.extractall(tree)
    if ADDRESS:
        settings = tree / "pyproject.toml"
        settings.write_text(with_urls(settings.read_text(), ADDRESS))
    epoch = {"SOURCE_DATE_EPOCH": str(moment)}
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, tree, more=epoch)
    (sdist,) = folder.glob("*.tar.gz")
    sdist.write_bytes(normalised(sdist.read_bytes(), moment))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, unpacked, more=epoch)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_reproducible(folder: Path) -> Path:
    """Builds twice; leaves sdist and wheel in ``dist`` and gives the wheel."""
    moment = int(run("git", "log", "-1", "--format=%ct"))
    made = []
    for name in ("first", "second"):
        place = folder / name
        place.mkdir()
        made.append(build(place, moment))
    for first, second in zip(*made, strict=True):
        if digest(first) != digest(second):
            raise SystemExit(f"{first.name} is another file when it is built again.")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for path in made[0]:
        shutil.copy(path, DIST)
        print(f"built twice, the same: {path.name}  {digest(path)[:16]}", flush=True)
    return DIST / made[0][1].name


def check_installed(wheel: Path, folder: Path) -> None:
    """Installs the wheel without and with extras, and uses it."""
    run(sys.executable, "-m", "venv", folder / "empty")
    inside = folder / "empty" / "bin"
    pip = (inside / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    pins = ("--constraint", ROOT / "constraints.txt")
    run(*pip, *pins, "torch")  # alone and first, as the Makefile does
    run(*pip, *pins, wheel, cwd=folder)
    run(inside / "onlooker", "doctor", cwd=folder)
    print(run(inside / "python", "-W", "error", "-c", SMALL + FROM_THE_WHEEL, cwd=folder).strip(), flush=True)
    run(*pip, *pins, f"{wheel}[transformers,onnx]", cwd=folder)
    print(last(run(inside / "onlooker", "demo", "--out", folder / "demo", cwd=folder)), flush=True)
    check_types(inside, folder)


def check_types(inside: Path, folder: Path) -> None:
    """Lets type checkers read the code of a user, with what is installed beside ``inside``."""
    project = folder / "types"
    project.mkdir()
    shutil.copy(ROOT / "tests" / "project" / "user_code.py", project)
    (project / "wrong.py").write_text("import onlooker\n\nnumber: int = onlooker.InputObserver().export()\n")
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.10"}')
    mypy = ("-m", "mypy", "--strict", "--python-version", "3.10", "--python-executable", inside / "python")
    for command in (mypy, ("-m", "pyright", "--pythonpath", inside / "python")):
        print(command[1], run(sys.executable, *command, "user_code.py", cwd=project).splitlines()[-1], flush=True)
        try:
            run(sys.executable, *command, "wrong.py", cwd=project)
        except SystemExit as error:
            if '"Program"' not in str(error):
                raise
        else:
            raise SystemExit(f"{command[1]} does not see the types of the wheel.")


def last(text: str) -> str:
    """The last line that says something of the programs."""
    return next(line for line in reversed(text.splitlines()) if line.startswith(("onnx:", "torch:")))


def check_pipx(wheel: Path, folder: Path) -> None:
    """Runs the demo by pipx, in an environment that pipx makes."""
    home = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin")}
    spec = f"{wheel}[transformers,onnx]"
    pins = f"--constraint {ROOT / 'constraints.txt'}"
    command = (sys.executable, "-m", "pipx", "run", "--spec", spec, "--pip-args", pins, "onlooker", "demo")
    print("pipx run:", last(run(*command, "--out", folder / "pipx-demo", cwd=folder, more=home)), flush=True)


def main() -> int:
    """0 where all of it passed; the first failure ends it with what was said."""
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--built-only", action="store_true", help="build and read, install nothing")
    parser.add_argument("--pipx", action="store_true", help="run the demo by pipx too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onlooker-release-") as name:
        folder = Path(name)
        wheel = check_reproducible(folder)
        run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
        print("twine check: passed", flush=True)
        if not options.built_only:
            check_installed(wheel, folder)
        if options.pipx:
            check_pipx(wheel, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
