"""Every command: its help and its options. The work of each is in the module of its name.

Nothing here imports torch, so that the help and a mistyped command are answered at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import SavedFileError, UsageError
from ..core.precision import PRECISIONS
from ..core.runtimes import RUNTIMES
from ..disk.urls import Place, place_of
from ..model_source.user_function import check_name, names_a_function
from .command import Command
from .options import (
    AGREEMENT,
    ATOL,
    AXES,
    BUILD,
    ENTRY,
    ENTRY_OF_RUN,
    FULL,
    KEEP,
    METHOD,
    METRIC,
    NO_PROBE,
    OUT,
    RANGE,
    RECORDING,
    SAVE_RECORDING,
    SECONDS,
    TO,
    WORKERS,
    Group,
    formerly,
    option,
    program_options,
)

__all__ = [
    "COMMANDS",
    "EMITTED",
    "FOLDERS",
    "GENAI",
    "SENTENCE_TRANSFORMERS",
    "TARGETS",
    "TINY_MODELS",
    "WEB",
]

#: programs of ONNX in the folders that other readers load: ONNX Runtime GenAI, sentence-transformers,
#: transformers.js
GENAI, SENTENCE_TRANSFORMERS, WEB = "genai", "sentence-transformers", "web"
FOLDERS = (GENAI, SENTENCE_TRANSFORMERS, WEB)
#: the names of the targets, of what is emitted and of the tiny models; those of the code are equal
TARGETS = tuple(RUNTIMES)
EMITTED = (
    "tensorrt",
    "trtexec",
    "ort-trt",
    "openvino",
    "executorch",
    "vllm",
    "triton",
    "triton-python",
    "buckets",
    "compile",
)
TINY_MODELS = ("llama", "gpt2", "bert", "vit")
PRECISION_NAMES = tuple(precision.name for precision in PRECISIONS)
PROVIDERS = ("cpu", "cuda", "webgpu")
#: what weights are read as; runtimes have kernels for the first one everywhere
DTYPES = ("float32", "float16", "bfloat16")
#: where `onlooker run` and `onlooker combine` write
RUN_FOLDER = Path("onlooker-run")


def _check_place(place: Place) -> None:
    """Passes where there is a file or a folder; a URL is looked at when it is read.

    :raises SavedFileError: ``file-missing``
    """
    if isinstance(place, Path) and not place.exists():
        raise SavedFileError(
            f"There is no file and no folder {place}.",
            slug="file-missing",
            hint="Give the place of what was saved: a file, or a whole folder.",
        )


class _OfPlace(Command):
    """A command about what was saved."""

    def check(self, options: argparse.Namespace) -> None:
        """Passes where what was saved is there, and the function of the user may be."""
        places = (getattr(options, name, None) for name in ("place", "recording"))
        for place in places:
            if place is not None:
                _check_place(place)
        build = getattr(options, "build", None)
        if build is not None:
            check_name(build)


class Demo(Command):
    """Watches a tiny model, exports it, and proves the program on calls it never saw.

    The model has random weights and a real use (a decoder runs its own generate()); nothing is
    downloaded.
    """

    name = "demo"
    example = "demo vit --to torch"
    options = (
        option(
            "tiny",
            choices=TINY_MODELS,
            nargs="?",
            metavar="NAME",
            help=f"{', '.join(TINY_MODELS)}; default: llama",
        ),
        TO.changed(choices=("torch", "onnx", "both"), default="both"),
        OUT.changed(help="write the .pt2 and .onnx files there"),
        FULL,
        formerly("--model", "the name alone", "former_tiny", choices=TINY_MODELS),
    )


class RunProgram(Command):
    """Runs a program and records the calls of its models, in all of its processes.

    SCRIPT is a Python file; `-m MODULE` runs a module, and `-- COMMAND` any command: torchrun, a
    server. Everything after it belongs to the program, and so do its standard streams, signals and
    exit code. Outermost calls of modules are recorded: numbers, times, and the shapes of arguments,
    no values. The files grow while the program runs; `onlooker report` reads them at any time.
    """

    name = "run"
    example = "run --out calls serve.py --port 8000"
    options = (
        OUT.changed(
            type=place_of,
            default=RUN_FOLDER,
            help="the folder for the files, one a process, or its URL; default: %(default)s",
        ),
        option(
            "--watch",
            action="append",
            default=[],
            metavar="PATTERN",
            help="record this class of modules, or this method of one, also inside of other calls:"
            " AutoencoderKL.decode",
        ),
        option("--keep-values", action="store_true", help="keep the values of the first calls"),
        option(
            "--at-exit",
            nargs="?",
            const="torch",
            metavar="TARGET",
            choices=TARGETS,
            help="export what --watch names when the program ends, into DIR/programs; default: torch",
        ),
        option(
            "--metrics",
            action="store_true",
            help="the sizes of calls as metrics of OpenTelemetry too, where the program sets it up",
        ),
        option("-m", dest="module", metavar="MODULE", help="run a module"),
        option("program", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="or -- COMMAND ..."),
        formerly("--into", "--out", "out", type=place_of),
        formerly("--entry", "--watch", "watch", appends=True),
        formerly("--values", "--keep-values", "former_values", choices=("none", "first")),
    )


class ReportRun(_OfPlace):
    """Shows what the processes of a watched program saw, also while it runs.

    Entry points with calls, processes and time; the axes of their arguments; how many graphs they
    need; what the calls could not tell; processes in which nothing was called.
    """

    name = "report"
    example = "report onlooker-run"
    options = (
        option(
            "place", type=place_of, metavar="RUN", help="the folder of `onlooker run`, or its URL"
        ),
        FULL,
    )


class Combine(Command):
    """Puts what `onlooker run` wrote into several folders, on several machines perhaps, into one.

    Each process keeps its file, with its host, pid and rank. The order of the folders does not
    matter, nor whether one is given twice; of a file that was copied while its process ran, the
    longer one is kept. Folders may be URLs of fsspec: s3://bucket/calls. With --parquet, tables of all
    calls, of their sizes and of the processes are written instead of the files of processes.
    """

    name = "combine"
    example = "combine rank0 rank1 --out all"
    options = (
        option(
            "places",
            type=place_of,
            nargs="+",
            metavar="RUN",
            help="folders of `onlooker run`, or their URLs",
        ),
        OUT.changed(
            type=place_of, default=RUN_FOLDER, help="a folder, or its URL; default: %(default)s"
        ),
        option("--parquet", action="store_true", help="write tables there, as Parquet"),
        formerly("--into", "--out", "out", type=place_of),
    )

    def check(self, options: argparse.Namespace) -> None:
        """Passes where all folders are there."""
        for place in options.places:
            _check_place(place)


class Html(_OfPlace):
    """Writes one HTML file about what `onlooker run` recorded, a saved program, or a recording.

    It has the axes over the calls, sizes that come together with the exported ranges and the sizes
    that were proven, relations, guards with the line of the model, entry points, padding, and all of
    it in tables with a search. The file loads nothing from anywhere.
    """

    name = "html"
    example = "html program --out report.html"
    options = (
        *program_options(metavar="PROGRAM|RECORDING", help="a program, or a recording"),
        OUT.changed(
            default=Path("report.html"),
            metavar="FILE",
            help="the file to write; default: %(default)s",
        ),
    )


#: what is said of the argument of export and plan
_SOURCE = (
    "a function that returns a model and a callable which uses it, package.module:name or"
    " file.py:name; or, with --build, a recording: a file of JSON, the folder of `onlooker run` or of"
    " a program"
)


class _OfSource(Command):
    """A command about what has calls: a function of the user, or a recording."""

    def check(self, options: argparse.Namespace) -> None:
        """Passes where there is one source, and its files are there."""
        source = options.build if options.source is None else options.source
        if sum(each is not None for each in (source, options.model, options.diffusers)) != 1:
            raise UsageError(
                "Give one of SOURCE, --model PATH_OR_ID and --diffusers PATH_OR_ID.",
                slug="bad-command-line",
                hint=f"See: onlooker {self.name} --help.",
            )
        if options.build is not None:
            check_name(options.build)
        if options.source is None:
            return
        if names_a_function(options.source):
            check_name(options.source)
        else:
            _check_place(Path(options.source))


#: SOURCE, and the saved models that may stand in its place
_SOURCE_OPTIONS = (
    option("source", metavar="SOURCE", nargs="?", help=_SOURCE),
    BUILD,
    option(
        "--model",
        metavar="PATH_OR_ID",
        help="a saved model of transformers instead: its folder, or its id where the cache of"
        " the hub has it; nothing is downloaded",
    ),
    option("--diffusers", metavar="PATH_OR_ID", help="a saved pipeline of diffusers instead"),
    option(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="what weights that are read from files are read as; default: %(default)s",
    ),
)


class PlanExport(_OfSource):
    """Says what an export would do, in seconds: nothing is traced.

    How many graphs the calls need, for which sizes, what stays as it is and how to change that, and
    about how long the export takes. With a function, or with --build, the model is run for
    experiments; of a recording alone, the plan is what the calls say.
    """

    name = "plan"
    example = "plan app.py:build"
    options = (
        *_SOURCE_OPTIONS,
        TO.changed(choices=TARGETS),
        SAVE_RECORDING,
        ENTRY,
        METHOD,
        *AXES,
        NO_PROBE,
        FULL,
    )
    defaults = (("keep", 3),)


class CountRecompiles(_OfSource):
    """Counts how often torch.compile compiles your model for its calls, why, and how to stop it.

    A copy of the model is compiled by a backend that generates no code, and the calls run on it again:
    as the model is, with dynamic=True, and with marks on the sizes that change. SOURCE is a function
    that returns the model and a callable which uses it, or a recording, for which --build names the
    function of the model.
    """

    name = "recompiles"
    example = "recompiles app.py:build"
    options = (
        *_SOURCE_OPTIONS,
        ENTRY,
        METHOD,
        option(
            "--calls",
            type=int,
            default=64,
            metavar="N",
            help="kinds of calls that are run again; default: 64",
        ),
        NO_PROBE,
    )
    defaults = (("save_recording", None), ("keep", 3))


class Export(_OfSource):
    """Watches your model in your code, exports it, and proves the program on calls it never saw.

    SOURCE is a function that returns the model and a callable without arguments, which uses the model
    as it is really used. With --entry it may return a pipeline instead: each part that is named gets a
    program, and all programs go into one folder.

    With --model in place of SOURCE, a saved model of transformers is used twice, once with padding, and
    the files beside its weights are copied. With --diffusers, each part of a saved pipeline becomes a
    folder with one file of the target, as diffusers lays them out.

    SOURCE may also be a recording, such as the folder that `onlooker run` wrote. The calls are then
    those that were recorded, --build names a function that returns the model, or a pipeline that holds
    it, and --entry the entry point. With several, all programs go into one folder.
    """

    name = "export"
    example = "export app.py:build --out program --save-recording calls.json"
    options = (
        *_SOURCE_OPTIONS,
        TO.changed(choices=(*TARGETS, *FOLDERS)),
        option(
            "--precision",
            choices=PRECISION_NAMES,
            help="smaller numbers; which ones a target has, the error of another one says",
        ),
        option(
            "--calibration",
            type=Path,
            metavar="FOLDER",
            help="the values of calls that int8-static is calibrated on, as `onlooker run"
            " --keep-values` wrote them; default: half of the kept calls",
        ),
        Group(
            "for onnx, genai and sentence-transformers",
            (
                option("--opset", type=int, metavar="N", help="the opset of the ONNX files"),
                option("--merged", action="store_true", help="one ONNX file that holds all graphs"),
                option(
                    "--fuse",
                    choices=PROVIDERS,
                    help="operators of ONNX Runtime in place of several",
                ),
                option(
                    "--in-place-cache", action="store_true", help="the cache is updated in place"
                ),
            ),
        ),
        option(
            "--low-memory",
            action="store_true",
            help="with --model, for torch, onnx and openvino: weights go from the folder of the model into"
            " that of --out one at a time, and the proof is one of a twin with few layers",
        ),
        ATOL,
        AGREEMENT,
        *METRIC,
        OUT.changed(help="save the program there"),
        option("--values", action="store_true", help="save the values of the kept calls as well"),
        SAVE_RECORDING,
        METHOD,
        ENTRY,
        KEEP,
        NO_PROBE,
        option("--no-verify", action="store_true", help="do not try the program"),
        FULL,
        *AXES,
        formerly("--recording", "--save-recording", "save_recording", type=Path),
    )


class Sweep(_OfPlace):
    """Exports many models: each in a process and a folder of its own, with limits, and one table.

    JOBS is a file of TOML or JSON with a table for each job, whose fields are the options of
    `onlooker export`. A folder that is whole is kept, so that the same command goes on where it was
    ended; a process that dies costs its job alone.
    """

    name = "sweep"
    example = "sweep jobs.json --workers 4 --out programs"
    options = (
        option("place", type=Path, metavar="JOBS", help="the jobs: jobs.toml, or jobs.json"),
        OUT.changed(
            default=Path("onlooker-sweep"),
            help="a folder for the folders of the jobs, and for the table; default: %(default)s",
        ),
        WORKERS,
        SECONDS.changed(help="seconds of the processor that each job may take"),
        option("--memory", type=float, metavar="GIB", help="memory that each job may address"),
        option("--redo", action="store_true", help="also the jobs whose folders are whole"),
        FULL,
    )


class Show(_OfPlace):
    """Shows a saved program, or several, with their proof, or the calls of a recording."""

    name = "show"
    example = "show program"
    options = (
        *program_options(metavar="PROGRAM|RECORDING", help="a program, or a recording"),
        FULL,
    )


class Explain(Command):
    """Says why an axis of a saved program is what it is, or what an error means.

    `onlooker explain PROGRAM PATH DIM` lists the calls and experiments about an axis. PATH is
    written as Python, as the report has it; an int needs no DIM. `onlooker explain SLUG` prints what is
    known of an error that ends with [SLUG]: what happened, why, and what to do.
    """

    name = "explain"
    example = "explain program x 0"
    options = (
        *program_options(
            metavar="PROGRAM|SLUG", help="the folder of a program, or the word of an error"
        ),
        FULL,
        option(
            "path",
            metavar="PATH",
            nargs="?",
            help="an argument, or a part: past_key_values.layers[0].keys",
        ),
        option("dim", metavar="DIM", type=int, nargs="?", help="the dimension, from 0"),
    )

    def check(self, options: argparse.Namespace) -> None:
        """Passes where the program is there; the word of an error needs none."""
        if options.path is not None:
            _check_place(options.place)


class Verify(_OfPlace):
    """Proves a saved program again: against your model, or against the values that were saved with
    it.

    With --build, the model is watched in its use, and the program is tried on these calls and on
    sizes that no call had. Without it there is no model: the files are checked, and the calls that
    were saved with their values. Programs of several entries want the same --entry as the export.

    PROGRAM may also be a file that another tool exported, which is compared with the model axis by
    axis.
    """

    name = "verify"
    example = "verify program --build app.py:build"
    options = (
        *program_options(help="the folder of a program, or the export of another maker"),
        BUILD,
        FULL,
        ENTRY,
        Group(
            "for the export of another maker",
            (
                RECORDING.changed(help="try the sizes of these calls as well"),
                METHOD,
                option(
                    "--graph",
                    action="append",
                    default=[],
                    metavar="NAME",
                    help="the calls that the file stands for, where the model needs several graphs",
                ),
                option(
                    "--component",
                    metavar="NAME",
                    help="of a folder of transformers; the method of a .pte",
                ),
                RANGE,
            ),
        ),
        ATOL,
        AGREEMENT,
        *METRIC,
        option(
            "--sizes",
            action="append",
            metavar="NAME=SIZES",
            help="sizes of a symbol or an axis to try as well, beside those of other names:"
            " sequence=3,500",
        ),
        option("--seed", type=int, help="decides the sizes and values that are chosen; default: 0"),
        option("--trials", type=int, metavar="N", help="the most trials"),
        SECONDS.changed(help="the time after which no trial is begun"),
        WORKERS.changed(help="processes that make the trials, with this one; default: 1"),
        formerly("function", "--build MODULE:FUNCTION", "build"),
    )


class Tune(_OfPlace):
    """Finds the smallest program of a target that holds a bound: a precision, with the layers in floats
    that hurt most.

    PROGRAM is one of torch, as `onlooker export` saves it. Each step is a conversion that is proven against
    your model; the table has its size, its time beside floats and its distance. CALLS is the folder of
    `onlooker run --keep-values`: calls to calibrate on. With --out the chosen program is saved in
    DIR/program, and the steps in DIR/tuning.json, where the next search for the same bound goes on.
    Exits with 0 when a step holds, with 2 when none does.
    """

    name = "tune"
    example = "tune program --build app.py:build --to onnx --agreement 0.99 --out tuned"
    options = (
        *program_options(),
        option(
            "calibration",
            nargs="?",
            type=Path,
            metavar="CALLS",
            help="the folder of `onlooker run --keep-values`; default: half of the kept calls",
        ),
        BUILD,
        TO.changed(choices=TARGETS),
        OUT,
        ENTRY,
        KEEP.changed(default=64),
        AGREEMENT,
        option(
            "--error",
            type=float,
            metavar="X",
            help="largest mean error of an output, relative to its spread: 0.05",
        ),
        ATOL,
        *METRIC,
        option(
            "--precisions",
            metavar="NAMES",
            help="precisions to try, with commas between them; default: all that need no calibration",
        ),
        option(
            "--runs",
            type=int,
            default=12,
            metavar="N",
            help="the most programs that are made; default: %(default)s",
        ),
        option("--trials", type=int, metavar="N", help="the most trials"),
    )


class CheckCalls(_OfPlace):
    """Checks recorded calls against a saved program: which fall outside, by which axis or argument.

    Exits with 0 when a graph serves every call, with 2 when one falls outside.
    """

    name = "check"
    example = "check program calls.json"
    options = (
        *program_options(),
        FULL,
        option("recording", type=Path, metavar="RECORDING", help=str(RECORDING.settings["help"])),
        ENTRY_OF_RUN,
    )


class CheckInRunner(_OfPlace):
    """Checks a program in continuous integration: against recorded calls, and against its model.

    It is `check` with --recording and `verify` with --build, with one line for each fault. A runner of
    GitHub shows the lines at the code, and has them in the summary of the job.
    """

    name = "ci"
    example = "ci program --recording calls.json --build app.py:build"
    options = (
        *program_options(),
        RECORDING.changed(help="calls that the program has to serve"),
        ENTRY_OF_RUN,
        BUILD,
        ATOL,
        OUT.changed(metavar="FILE", help="write the page of `onlooker html` there"),
    )


class Code(_OfPlace):
    """Prints a Python script that exports the model of a saved program again, without onlooker.

    The script builds arguments and dynamic shapes; the model is a function to fill in, or that of
    --build.
    """

    name = "code"
    example = "code program --build app.py:build"
    options = (
        *program_options(metavar="PROGRAM|RECORDING", help="a program; with --build a recording"),
        TO.changed(
            choices=("torch", "onnx"),
            default=None,
            help="default: what the program was exported to",
        ),
        BUILD,
        ENTRY_OF_RUN,
        formerly("--model", "--build", "build"),
    )


class Emit(_OfPlace):
    """Prints the settings of another runtime for a saved program: profiles, bounds, buckets.

    Every size in them is one that the program takes, looked at together with the others. The sizes
    are those of the calls that the program was made from, or of --recording.
    """

    name = "emit"
    example = "emit trtexec program --recording calls.json"
    options = (
        option("kind", choices=EMITTED, metavar="RUNTIME", help=f"one of {', '.join(EMITTED)}"),
        *program_options(),
        RECORDING,
        ENTRY_OF_RUN,
        option(
            "--count",
            type=int,
            metavar="N",
            help="profiles of each graph, default: 1; buckets and captured sizes, default: 8",
        ),
        formerly("calls", "--recording RECORDING", "recording", type=Path),
    )


#: where a contract is published
_REPOSITORY = option(
    "repository",
    metavar="REPOSITORY",
    help="the folder of a model, or its repository in the hub: hf://ORGANISATION/NAME",
)


class Push(_OfPlace):
    """Publishes the contract of a program, or a recording, beside the weights of a model.

    It is the folder `onlooker` in the folder of the model, or in its repository: plan, report and the
    specs of calls, without graphs, weights and values. Texts that calls were given are constants of
    calls; they are published, and named.
    """

    name = "push"
    example = "push program models/scorer"
    options = (
        option("place", type=Path, metavar="PROGRAM|RECORDING", help="a program, or a recording"),
        _REPOSITORY,
        ENTRY_OF_RUN,
    )


class Pull(Command):
    """Reads what was published beside the weights of a model, and writes it as a folder.

    `onlooker check`, `show`, `explain` and `emit` read the folder of a contract as that of a program.
    """

    name = "pull"
    example = "pull models/scorer --out contract"
    options = (
        _REPOSITORY,
        OUT.changed(default=Path("contract"), help="the folder to write; default: %(default)s"),
    )


class ServeTools(Command):
    """Serves five tools to an agent, over the Model Context Protocol: record, plan, export, verify and
    explain.

    A tool is the command of its name, and answers with its report. CODE names the functions and the
    scripts that tools may run: no tool runs others, nor machine code, nor custom operators. They write
    below --out alone. The server speaks on its standard input and output, and ends with its input.
    """

    name = "mcp"
    example = "mcp app.py:build serve.py --out programs"
    options = (
        option(
            "code",
            nargs="*",
            metavar="CODE",
            help="what may be run: functions, as SOURCE and --build take them, and Python scripts",
        ),
        OUT.changed(
            default=Path("onlooker-mcp"),
            help="the folder for recordings and programs; default: %(default)s",
        ),
        SECONDS.changed(
            default=600.0, help="the time after which a tool is ended; default: %(default)s"
        ),
    )

    def check(self, options: argparse.Namespace) -> None:
        """Passes where each function has its file, and each script is there."""
        for code in options.code:
            if not Path(code).is_file():
                check_name(code)


class Doctor(Command):
    """Shows versions, what is installed, and which targets, compilers and devices work here.

    It is the first thing to put into a report of a fault. It has no paths and no variables of the
    environment. A target whose packages are not installed is no fault; the exit code is 1 where
    torch lacks what onlooker needs.
    """

    name = "doctor"
    example = "doctor"


#: every command, in the order of the help
COMMANDS: tuple[Command, ...] = (
    Demo(),
    RunProgram(),
    ReportRun(),
    Combine(),
    Html(),
    PlanExport(),
    Export(),
    Sweep(),
    Show(),
    Explain(),
    Verify(),
    Tune(),
    CheckCalls(),
    CheckInRunner(),
    Code(),
    Emit(),
    CountRecompiles(),
    Push(),
    Pull(),
    ServeTools(),
    Doctor(),
)
