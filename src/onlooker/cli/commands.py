"""Every command: its help and its options. The work of each is in the module of its name.

Nothing here imports torch, so that the help and a mistyped command are answered at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import SavedFileError, UsageError
from .command import Command
from .options import (
    AGREEMENT,
    ATOL,
    BUILD,
    ENTRY,
    ENTRY_OF_RUN,
    FULL,
    METHOD,
    NO_PROBE,
    OUT,
    RANGE,
    RECORDING,
    TO,
    add_pins,
    add_program,
    formerly,
)
from .user_function import check_name, names_a_function

__all__ = ["COMMANDS", "EMITTED", "GENAI", "TARGETS", "TINY_MODELS"]

#: a program of ONNX, in the files of ONNX Runtime GenAI
GENAI = "genai"
#: the names of the targets, of what is emitted and of the tiny models; those of the code are equal
TARGETS = ("torch", "onnx", "aoti", "openvino", "executorch")
EMITTED = (
    "tensorrt",
    "trtexec",
    "ort-trt",
    "openvino",
    "executorch",
    "vllm",
    "triton",
    "buckets",
    "compile",
)
TINY_MODELS = ("llama", "gpt2", "bert", "vit")
PRECISIONS = ("fp16", "int8", "int4")
PROVIDERS = ("cpu", "cuda", "webgpu")
#: what weights are read as; runtimes have kernels for the first one everywhere
DTYPES = ("float32", "float16", "bfloat16")
#: where `onlooker run` and `onlooker combine` write
RUN_FOLDER = Path("onlooker-run")


def _check_place(place: Path) -> None:
    """Passes where there is a file or a folder.

    :raises SavedFileError: ``file-missing``
    """
    if not place.exists():
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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "tiny",
            choices=TINY_MODELS,
            nargs="?",
            metavar="NAME",
            help=f"{', '.join(TINY_MODELS)}; default: llama",
        )
        TO.add(parser, choices=("torch", "onnx", "both"), default="both")
        OUT.add(parser, help="write the .pt2 and .onnx files there")
        FULL.add(parser)
        formerly(parser, "--model", "the name alone", "former_tiny", choices=TINY_MODELS)


class Run(Command):
    """Runs a program and records the calls of its models, in all of its processes.

    SCRIPT is a Python file; `-m MODULE` runs a module, and `-- COMMAND` any command: torchrun, a
    server. Everything after it belongs to the program, and so do its standard streams, signals and
    exit code. Outermost calls of modules are recorded: numbers, times, and the shapes of arguments,
    no values. The files grow while the program runs; `onlooker report` reads them at any time.
    """

    name = "run"
    example = "run --out calls serve.py --port 8000"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        OUT.add(
            parser,
            default=RUN_FOLDER,
            help="the folder for the files, one a process; default: %(default)s",
        )
        parser.add_argument(
            "--watch",
            action="append",
            default=[],
            metavar="PATTERN",
            help=(
                "record this class of modules, or this method of one, also inside of other calls:"
                " AutoencoderKL.decode"
            ),
        )
        parser.add_argument(
            "--keep-values", action="store_true", help="keep the values of the first calls"
        )
        parser.add_argument(
            "--at-exit",
            nargs="?",
            const="torch",
            metavar="TARGET",
            choices=TARGETS,
            help="export what --watch names when the program ends, into DIR/programs; default: torch",
        )
        parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module")
        parser.add_argument(
            "program", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="or -- COMMAND ..."
        )
        formerly(parser, "--into", "--out", "out", type=Path)
        formerly(parser, "--entry", "--watch", "watch", appends=True)
        formerly(parser, "--values", "--keep-values", "former_values", choices=("none", "first"))


class ReportRun(_OfPlace):
    """Shows what the processes of a watched program saw, also while it runs.

    Entry points with calls, processes and time; the axes of their arguments; how many graphs they
    need; what the calls could not tell; processes in which nothing was called.
    """

    name = "report"
    example = "report onlooker-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("place", type=Path, metavar="RUN", help="the folder of `onlooker run`")
        FULL.add(parser)


class Combine(Command):
    """Puts what `onlooker run` wrote into several folders, on several machines perhaps, into one.

    Each process keeps its file, with its host, pid and rank. The order of the folders does not
    matter, nor whether one is given twice; of a file that was copied while its process ran, the
    longer one is kept.
    """

    name = "combine"
    example = "combine rank0 rank1 --out all"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "places", type=Path, nargs="+", metavar="RUN", help="folders of `onlooker run`"
        )
        OUT.add(parser, default=RUN_FOLDER, help="default: %(default)s")
        formerly(parser, "--into", "--out", "out", type=Path)

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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser, metavar="PROGRAM|RECORDING", help="a program, or a recording")
        OUT.add(
            parser,
            default=Path("report.html"),
            metavar="FILE",
            help="the file to write; default: %(default)s",
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


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Declares SOURCE, and the saved models that may stand in its place."""
    parser.add_argument("source", metavar="SOURCE", nargs="?", help=_SOURCE)
    BUILD.add(parser)
    parser.add_argument(
        "--model",
        metavar="PATH_OR_ID",
        help=(
            "a saved model of transformers instead: its folder, or its id where the cache of"
            " the hub has it; nothing is downloaded"
        ),
    )
    parser.add_argument(
        "--diffusers", metavar="PATH_OR_ID", help="a saved pipeline of diffusers instead"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="what weights that are read from files are read as; default: %(default)s",
    )


class PlanExport(_OfSource):
    """Says what an export would do, in seconds: nothing is traced.

    How many graphs the calls need, for which sizes, what stays as it is and how to change that, and
    about how long the export takes. With a function, or with --build, the model is run for
    experiments; of a recording alone, the plan is what the calls say.
    """

    name = "plan"
    example = "plan app.py:build"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        _add_source(parser)
        TO.add(parser, choices=TARGETS)
        ENTRY.add(parser)
        METHOD.add(parser)
        add_pins(parser)
        NO_PROBE.add(parser)
        FULL.add(parser)
        parser.set_defaults(save_recording=None, keep=3)


class Recompiles(_OfSource):
    """Counts how often torch.compile compiles your model for its calls, why, and how to stop it.

    A copy of the model is compiled by a backend that generates no code, and the calls run on it again:
    as the model is, with dynamic=True, and with marks on the sizes that change. SOURCE is a function
    that returns the model and a callable which uses it, or a recording, for which --build names the
    function of the model.
    """

    name = "recompiles"
    example = "recompiles app.py:build"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        _add_source(parser)
        ENTRY.add(parser)
        METHOD.add(parser)
        parser.add_argument(
            "--calls",
            type=int,
            default=64,
            metavar="N",
            help="kinds of calls that are run again; default: 64",
        )
        NO_PROBE.add(parser)
        parser.set_defaults(save_recording=None, keep=3)


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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        _add_source(parser)
        TO.add(parser, choices=(*TARGETS, GENAI))
        served = parser.add_argument_group("for onnx and genai")
        served.add_argument("--opset", type=int, metavar="N", help="the opset of the ONNX files")
        served.add_argument(
            "--merged", action="store_true", help="one ONNX file that holds all graphs"
        )
        served.add_argument("--precision", choices=PRECISIONS, help="smaller weights")
        served.add_argument(
            "--fuse", choices=PROVIDERS, help="operators of ONNX Runtime in place of several"
        )
        served.add_argument(
            "--in-place-cache", action="store_true", help="the cache is updated in place"
        )
        ATOL.add(served)
        AGREEMENT.add(served)
        OUT.add(parser, help="save the program there")
        parser.add_argument(
            "--values", action="store_true", help="save the values of the kept calls as well"
        )
        parser.add_argument(
            "--save-recording", type=Path, metavar="FILE", help="save the specs of all calls there"
        )
        METHOD.add(parser)
        ENTRY.add(parser)
        parser.add_argument(
            "--keep",
            type=int,
            default=3,
            metavar="N",
            help="calls whose values are kept; default: 3",
        )
        NO_PROBE.add(parser)
        parser.add_argument("--no-verify", action="store_true", help="do not try the program")
        FULL.add(parser)
        add_pins(parser)
        formerly(parser, "--recording", "--save-recording", "save_recording", type=Path)


class Show(_OfPlace):
    """Shows a saved program, or several, with their proof, or the calls of a recording."""

    name = "show"
    example = "show program"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser, metavar="PROGRAM|RECORDING", help="a program, or a recording")
        FULL.add(parser)


class Explain(Command):
    """Says why an axis of a saved program is what it is, or what an error means.

    `onlooker explain PROGRAM PATH DIM` lists the calls and experiments about an axis. PATH is
    written as Python, as the report has it; an int needs no DIM. `onlooker explain SLUG` prints what is
    known of an error that ends with [SLUG]: what happened, why, and what to do.
    """

    name = "explain"
    example = "explain program x 0"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(
            parser, metavar="PROGRAM|SLUG", help="the folder of a program, or the word of an error"
        )
        FULL.add(parser)
        parser.add_argument(
            "path",
            metavar="PATH",
            nargs="?",
            help="an argument, or a part: past_key_values.layers[0].keys",
        )
        parser.add_argument("dim", metavar="DIM", type=int, nargs="?", help="the dimension, from 0")

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

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser, help="the folder of a program, or the export of another maker")
        BUILD.add(parser)
        FULL.add(parser)
        ENTRY.add(parser)
        foreign = parser.add_argument_group("for the export of another maker")
        RECORDING.add(foreign, help="try the sizes of these calls as well")
        METHOD.add(foreign)
        foreign.add_argument(
            "--graph",
            action="append",
            default=[],
            metavar="NAME",
            help="the calls that the file stands for, where the model needs several graphs",
        )
        foreign.add_argument(
            "--component", metavar="NAME", help="of a folder of transformers; the method of a .pte"
        )
        RANGE.add(foreign)
        ATOL.add(parser, default=1e-5)
        AGREEMENT.add(parser)
        parser.add_argument(
            "--sizes",
            action="append",
            metavar="NAME=SIZES",
            help=(
                "sizes of a symbol or an axis to try as well, beside those of other names:"
                " sequence=3,500"
            ),
        )
        parser.add_argument(
            "--seed", type=int, help="decides the sizes and values that are chosen; default: 0"
        )
        parser.add_argument("--trials", type=int, metavar="N", help="the most trials")
        parser.add_argument(
            "--seconds", type=float, metavar="N", help="the time after which no trial is begun"
        )
        formerly(parser, "function", "--build MODULE:FUNCTION", "build")


class Check(_OfPlace):
    """Checks recorded calls against a saved program: which fall outside, by which axis or argument.

    Exits with 0 when a graph serves every call, with 2 when one falls outside.
    """

    name = "check"
    example = "check program calls.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser)
        FULL.add(parser)
        parser.add_argument(
            "recording", type=Path, metavar="RECORDING", help=str(RECORDING.settings["help"])
        )
        ENTRY_OF_RUN.add(parser)


class Code(_OfPlace):
    """Prints a Python script that exports the model of a saved program again, without onlooker.

    The script builds arguments and dynamic shapes; the model is a function to fill in, or that of
    --build.
    """

    name = "code"
    example = "code program --build app.py:build"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser, metavar="PROGRAM|RECORDING", help="a program; with --build a recording")
        TO.add(
            parser,
            choices=("torch", "onnx"),
            default=None,
            help="default: what the program was exported to",
        )
        BUILD.add(parser)
        ENTRY_OF_RUN.add(parser)
        formerly(parser, "--model", "--build", "build")


class Emit(_OfPlace):
    """Prints the settings of another runtime for a saved program: profiles, bounds, buckets.

    Every size in them is one that the program takes, looked at together with the others. The sizes
    are those of the calls that the program was made from, or of --recording.
    """

    name = "emit"
    example = "emit trtexec program --recording calls.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "kind", choices=EMITTED, metavar="RUNTIME", help=f"one of {', '.join(EMITTED)}"
        )
        add_program(parser)
        RECORDING.add(parser)
        ENTRY_OF_RUN.add(parser)
        parser.add_argument(
            "--count",
            type=int,
            metavar="N",
            help="profiles of each graph, default: 1; buckets and captured sizes, default: 8",
        )
        formerly(parser, "calls", "--recording RECORDING", "recording", type=Path)


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
    Run(),
    ReportRun(),
    Combine(),
    Html(),
    PlanExport(),
    Export(),
    Show(),
    Explain(),
    Verify(),
    Check(),
    Code(),
    Emit(),
    Recompiles(),
    Doctor(),
)
