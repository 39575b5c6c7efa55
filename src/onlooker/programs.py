"""The programs of several modules that were watched together, as one value."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from .core.errors import EntriesError, OnlookerError, SavedFileError, UsageError
from .core.support.kinds import as_path, check_kind
from .core.verdict import Tallies
from .disk.manifest import is_entry_name
from .keep.folder import load_folder, save_folders
from .patches.quiet import quietly
from .program import Program
from .report.reports import Reports
from .serve.installed import Installed
from .serve.runnable import RunnableProgram
from .targets.single_file import is_file_name
from .targets.targets import target_of

__all__ = [
    "Programs",
    "at_entry",
    "check_entries",
    "check_known",
    "check_name",
    "each_program",
    "load",
    "refused",
]


class Programs(Mapping[str, Program]):
    """The program of each entry, by its name; each is also a program of its own.

    :raises UsageError: ``bad-entry`` for a name that is no identifier of Python
    :raises ArgumentKindError: ``wrong-kind``
    """

    def __init__(self, programs: Mapping[str, Program]) -> None:
        check_kind(programs, Mapping, "programs", "a program by each name, as a dict")
        for name, program in programs.items():
            check_name(name)
            check_kind(program, Program, name, "a program that observer.export() gave")
        self._programs = dict(programs)

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    @contextlib.contextmanager
    def installed(
        self, models: Mapping[str, Any] | None = None, *, fallback: bool = False
    ) -> Iterator[dict[str, Installed]]:
        """Inside the block every watched method runs on its program; see
        :meth:`Program.installed`.

        ``models`` are the objects to install programs in, by the name of the entry; by default
        those that were watched, which loaded programs lack. On exit, also after an exception, all
        programs are taken back. Gives what each program served, by its name.

        :raises UsageError: ``no-such-entry``, and as :meth:`Program.installed`
        """
        given = self._by_entry(models, "models")
        with contextlib.ExitStack() as stack:
            served = {}
            for name, program in self.items():
                with at_entry(name):
                    block = program.installed(given.get(name), fallback=fallback)
                    served[name] = stack.enter_context(block)
            yield served

    def verify(
        self,
        models: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> Tallies:
        """Verifies each program, and gives the tally of each with their sum; see
        :meth:`Program.verify`.

        ``common`` are options for all programs, ``options`` those of single ones:
        ``verify(seed=1, options={"unet": {"sizes": {"batch": [5]}}})``. ``models`` are the objects
        to compare with, by the name of the entry; by default those that were watched.

        :raises UsageError: ``no-such-entry``, and as :meth:`Program.verify`
        """
        given = self._by_entry(models, "models")
        single = check_entries(options, self, "options")
        tallies = []
        for name, program in self.items():
            asked = {"model": given.get(name), **common, **single.get(name, {})}
            with at_entry(name):
                tallies.append((name, program.verify(**asked)))
        return Tallies(tuple(tallies))

    def verify_saved(self, *, atol: float | None = None) -> Tallies:
        """Runs the kept calls of each program, and compares with the results that were observed;
        see :meth:`Program.verify_saved`.
        """
        found = ((name, program.verify_saved(atol=atol)) for name, program in self.items())
        return Tallies(tuple(found))

    @property
    def tally(self) -> Tallies:
        """The tallies of all programs so far."""
        return Tallies(tuple((name, program.tally) for name, program in self.items()))

    @property
    def report(self) -> Reports:
        """The report of each program, and one verdict over all: prints as tables, ``to_dict()`` for
        JSON.
        """
        return Reports(tuple((name, program.report) for name, program in self.items()))

    def to(self, target: str, **options: Any) -> Programs:
        """All programs for another target; see :meth:`Program.to`.

        :raises UsageError: ``unknown-target``
        :raises EntriesError: ``entries-refused`` where some cannot be turned into it; the error has
            the others
        """
        target_of(target)
        return each_program(self, lambda name: self[name].to(target, **options))

    def save(
        self,
        directory: str | FilePath,
        *,
        values: bool = False,
        beside: Sequence[FilePath] = (),
    ) -> None:
        """Writes all programs as one folder, which :func:`load` reads, with a folder for each: that
        one can be loaded alone. ``beside`` are copied into the folder of the first one.

        See :meth:`Program.save` for what it holds. It appears when it is complete.

        :raises UsageError: ``no-entries`` where there is no program, ``folder-only`` for the name of
            one file
        :raises SavedFileError: ``folder-not-ours``, ``not-written``
        :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``
        """
        folder = as_path(directory, "The folder of programs")
        if is_file_name(folder):
            raise UsageError(
                f"{folder} is the name of one file, and there are {len(self)} programs.",
                slug="folder-only",
                hint="Save a folder, or each program into a file: programs[name].save(...).",
            )
        if not self:
            raise UsageError(
                "There is no program to save.",
                slug="no-entries",
                hint="Save what observers.export() gave.",
            )
        programs = {name: (each._program, each.report.to_dict()) for name, each in self.items()}
        save_folders(programs, folder, values=values, beside=beside)

    def _by_entry(self, values: Mapping[str, Any] | None, what: str) -> Mapping[str, Any]:
        return check_entries(values, self, what, of_options=False)

    def __repr__(self) -> str:
        return f"<onlooker.Programs of {', '.join(self)}: {self.tally.verdict}>"


@contextlib.contextmanager
def at_entry(name: str) -> Iterator[None]:
    """Inside the block an error of onlooker names the entry."""
    try:
        yield
    except OnlookerError as error:
        error.happened_at(name)
        raise


def check_name(name: object) -> None:
    """Passes for what can be the name of an entry.

    :raises UsageError: ``bad-entry``
    """
    if not isinstance(name, str) or not is_entry_name(name):
        raise UsageError(
            f"{name!r} is no name of an entry.",
            slug="bad-entry",
            hint="Give an identifier of Python, of ASCII characters: unet=pipe.unet.",
        )


def check_entries(
    values: Mapping[str, Any] | None,
    known: Collection[str],
    what: str,
    *,
    of_options: bool = True,
) -> Mapping[str, Any]:
    """Checks the values that a caller gave by the names of entries; nothing for None. With
    ``of_options`` each value has to be a mapping.

    :raises UsageError: ``no-such-entry``
    :raises ArgumentKindError: ``wrong-kind``
    """
    if values is None:
        return {}
    check_kind(values, Mapping, what, "a value by the name of an entry, as a dict")
    for name, value in values.items():
        check_known(name, known, what)
        if of_options:
            check_kind(value, Mapping, f"{what} of {name}", "options by name, as a dict")
    return values


def check_known(name: object, known: Collection[str], what: str) -> None:
    """Passes for the name of an entry.

    :raises UsageError: ``no-such-entry``
    """
    if name not in known:
        raise UsageError(
            f"{what} names {name!r}, which is no entry.",
            slug="no-such-entry",
            hint=f"The entries are {', '.join(known)}.",
        )


def each_program(names: Iterable[str], make: Callable[[str], Program]) -> Programs:
    """The programs of all names; one that cannot be made does not cost the others.

    :raises EntriesError: ``entries-refused``, with all refusals and all programs
    """
    made: dict[str, Program] = {}
    refusals: dict[str, Exception] = {}
    for name in names:
        try:
            made[name] = make(name)
        except Exception as error:  # a bug that one entry meets must not lose the other programs
            refusals[name] = error
    if refusals:
        rest = f", error.programs those of {', '.join(made)}" if made else ""
        raise refused(
            f"{len(refusals)} of {len(refusals) + len(made)} entries have no program.",
            f"error.refusals has the error of each{rest}.",
            refusals,
            Programs(made),
        )
    return Programs(made)


def refused(
    message: str, hint: str, refusals: Mapping[str, Exception], programs: Programs
) -> EntriesError:
    """The error for entries that have no program: with a line for each, and all tracebacks."""
    lines = [f"{name}: {_said(error)}" for name, error in refusals.items()]
    error = EntriesError("\n".join([message, *lines, ""]), slug="entries-refused", hint=hint)
    error.refusals, error.programs = dict(refusals), programs
    error.__cause__ = _together(list(refusals.values()))
    error.details = "\n".join(filter(None, (getattr(e, "details", "") for e in refusals.values())))
    return error


def _together(errors: list[Exception]) -> Exception:
    """All errors as one, whose traceback has those of all; Python 3.10 shows that of the first."""
    if sys.version_info >= (3, 11):
        return builtins.ExceptionGroup("entries that have no program", errors)
    return errors[0]


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, OnlookerError) else f"{type(error).__name__}: {error}"


@quietly
def load(
    directory: str | FilePath,
    *,
    operators: Collection[str] = (),
    machine_code: bool = False,
    session_options: Any = None,
    providers: Any = None,
) -> Program | Programs:
    """The program that :meth:`Program.save` wrote, or the programs that :meth:`Programs.save`
    wrote; the model's source is not needed.

    Every file is compared with its digest, every text is checked before torch sees it, nothing is
    unpickled and no module is imported because a file names it. Results have the classes of the
    model where their modules are imported already, or are outputs and caches of transformers; else
    they are stand-ins with the same fields.

    ``operators`` are namespaces of custom operators that the program may call, which somebody has
    registered. ``machine_code`` allows what AOTInductor has compiled: loading it runs it.
    ``session_options`` and ``providers`` say how ONNX Runtime runs a program of ONNX, as in
    :meth:`Program.to`.

    :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``,
        ``folder-incomplete``, ``device-missing``, ``machine-code``, ``single-file`` for one file,
        which has graphs and no plan
    :raises UsageError: ``unknown-option``, ``bad-session-options``, ``bad-providers``
    :raises MissingPackageError: ``missing-package``
    """
    place = as_path(directory, "The folder of a program")
    if is_file_name(place) and not place.is_dir():
        raise _of_one_file(place)
    check_kind(operators, Collection, "operators", "the names of namespaces, as a list")
    options = {
        "operators": operators or None,
        "session_options": session_options,
        "providers": providers,
    }
    loaded = load_folder(
        place,
        machine_code=machine_code,
        options={name: value for name, value in options.items() if value is not None},
    )
    if isinstance(loaded, RunnableProgram):
        return Program(loaded)
    return Programs({name: Program(each) for name, each in loaded.items()})


#: how one file is run without onlooker, by its suffix
_RUNS = {
    ".onnx": "onnxruntime.InferenceSession({path!r})",
    ".xml": "openvino.Core().compile_model({path!r})",
    ".pte": "executorch.runtime.Runtime.get().load_program({path!r})",
    ".pt2": "torch.export.load({path!r}).module()",
}


def _of_one_file(path: FilePath) -> SavedFileError:
    """The error for a file: it says how to run it, and what can be loaded."""
    if not path.exists():
        return SavedFileError(
            f"{path} cannot be read: there is no such file.",
            slug="file-missing",
            hint="Give the folder that program.save(folder) wrote.",
        )
    runs = _RUNS[path.suffix].format(path=str(path))
    return SavedFileError(
        f"{path} is one file: it has the graph, and not the plan and the classes of a program.",
        slug="single-file",
        hint=(
            f"Run it with {runs}, compare it with the model by onlooker.verify_export, or load the"
            " folder that program.save(folder) writes."
        ),
    )
