"""``onlooker export``: from a function of the user, or a saved model, to a proven program in a
folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console

from ...capture.combine import Seen
from ...capture.export import observer_of, part_of
from ...capture.recorded import read_seen
from ...core.errors import UnsupportedError, UsageError
from ...core.runtimes import RUNTIMES
from ...core.support.progress import kept_when_interrupted
from ...hypotheses.overrides import OBSERVED, OTHERS, RangesOption
from ...input_observer import InputObserver
from ...model_source.user_function import (
    Used,
    load_function,
    load_model,
    names_a_function,
    raised_by_the_user,
    result_of,
)
from ...observers import Observers
from ...program import Program
from ...programs import Programs
from ...targets.onnx.readers.web import WebFile
from ...targets.side_files import side_files
from ...targets.single_file import check_file_name, is_file_name
from ...targets.targets import check_options, target_of
from ..command import Answer, ExitCode, as_options, to_type
from ..commands import FOLDERS, GENAI, SENTENCE_TRANSFORMERS, WEB
from ..entries import entry_name, named_entries, texts_by_entry, watch_entries
from ..low_memory import Request, convert
from ..pipeline import Pipeline, read_pipeline, watch_pipeline, write_pipeline
from ..pretrained import (
    Pretrained,
    how_to_run,
    read_pretrained,
    read_sentence_transformer,
    watch_pretrained,
)
from ..progress import Say, progress
from ..saved import directory_to_write, in_full

__all__ = [
    "called_parts",
    "calls_elsewhere",
    "check_entries",
    "dimensions",
    "pins_of",
    "ranges",
    "read_source",
    "run",
    "watch",
    "watch_source",
]

#: the targets whose files are written weight by weight
_LOW_MEMORY = tuple(name for name, runtime in RUNTIMES.items() if runtime.written_by_weight)
#: what the readers of folders are called
_READERS = {
    GENAI: "ONNX Runtime GenAI",
    SENTENCE_TRANSFORMERS: "sentence-transformers",
    WEB: "transformers.js",
}


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Watches, exports, verifies and saves."""
    is_file = options.out is not None and is_file_name(options.out) and options.to not in FOLDERS
    if not is_file:
        directory_to_write(options.out)
    if options.to == WEB:
        _check_web(options)
    read_source(options)
    captured = calls_elsewhere(options)
    if captured is None:
        check_entries(options)
    if options.low_memory:
        return _with_low_memory(options, stderr)
    out, recording = in_full(options.out), in_full(options.save_recording)
    is_single = captured is not None and len(captured) == 1
    names = [] if is_single else [entry_name(path) for path in options.entry]
    pins, own_pins = pins_of(options, names)
    target = target_of("onnx" if options.to in FOLDERS else str(options.to))
    variant = _variant(options)
    check_options(target, variant, target.options)
    if is_file and out is not None:
        check_file_name(out, target, values=options.values)
    if options.function is None and target.needs_bounds:
        pins.setdefault("ranges", OBSERVED)  # nobody knows the sizes of these two uses before
    asked: dict[str, Any] = {"probe": not options.no_probe, **pins}
    if options.to != WEB:  # its files of several precisions are made of the program of torch
        asked |= {"to": target.name, **variant}
    program: Program | Programs
    saved: Pretrained | Pipeline | None = None
    written: list[Path] = []
    with (
        progress(stderr) as say,
        kept_when_interrupted(lambda: _kept(written, options.out)),
    ):
        observers, saved = watch_source(options, captured, say)
        if options.to in FOLDERS and isinstance(observers, Observers):
            raise UnsupportedError(
                f"A folder for {_READERS[options.to]} has one model, and there are"
                f" {', '.join(observers)}.",
                slug="one-model-only",
                hint="Export to onnx: onlooker.generation() runs these with generate().",
            )
        if recording is not None and isinstance(observers, InputObserver):
            observers.recording(options.method).save(recording)
            written.append(recording)
        say("exporting")
        if isinstance(observers, InputObserver):
            method = options.method if captured is None else captured[0].entry.method
            program = observers.export(method_name=method, **asked)
        else:
            only = [name for name, each in observers.items() if each.num_obs()]
            chosen = only if options.diffusers else None  # a pipeline may leave a part out
            program = observers.export(only=chosen, options=own_pins, **asked)
        if not options.no_verify:
            say("verifying")
            program.verify(**_thresholds(options), **metric_of(options))
        files: list[WebFile] = []
        if out is not None:
            say(f"writing into {options.out}")
            files = _save(program, out, options, saved)
    return _answer(program, options, saved, files)


def _with_low_memory(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Converts a saved model whose weights are read one at a time."""
    _check_low_memory(options)
    pins, _ = pins_of(options, [])
    target = target_of(options.to)
    variant = _variant(options)
    check_options(target, variant, target.options)
    request = Request(
        target.name,
        getattr(torch, options.dtype),
        variant,
        {"probe": not options.no_probe, **pins},
        _thresholds(options),
        options.keep,
    )
    out = Path(in_full(options.out) or options.out)
    with progress(stderr) as say, kept_when_interrupted(lambda: _kept([], options.out)):
        made = convert(options.model, out, request, say)
    lines = how_to_run(made.program, made.saved, options.to, str(options.out))

    def show(console: Console) -> None:
        console.print(made.twin.report.tables(full=options.full))
        console.file.write(f"\n{made}\nwrote {options.out}\n\nto run it in Python:\n")
        console.file.writelines(f"    {line}\n" for line in lines)

    def data() -> dict[str, object]:
        known = {"twin": {"layers": made.twin.layers, "verified": made.verified}, "said": str(made)}
        whole = {"verified": False, "files": [str(options.out)], **known}
        return {**whole, "report": made.program.report.to_dict()}

    code = ExitCode.of(made.verified)
    return Answer(code, show, data, to_type("show", str(options.out)))


def _check_low_memory(options: argparse.Namespace) -> None:
    """Passes for a saved model and a folder to write.

    :raises UsageError: ``bad-command-line``
    """
    wrong = [
        ("--low-memory needs --model", options.model is None),
        ("--low-memory needs --out", options.out is None),
        (f"--low-memory is not for --to {options.to}", options.to not in _LOW_MEMORY),
        ("--low-memory writes a folder", options.out is not None and is_file_name(options.out)),
        (
            f"--precision {options.precision} is not for --low-memory --to openvino, whose converter"
            " (NNCF) holds all weights: --dtype float16 halves them",
            options.to == "openvino" and options.precision is not None,
        ),
        ("--no-verify is not for --low-memory", options.no_verify),
        ("--values is not for --low-memory", options.values),
        ("--metric is not for --low-memory", options.metric is not None),
        ("--precision int8-static is not for --low-memory", options.precision == "int8-static"),
        ("--save-recording is not for --low-memory", options.save_recording is not None),
        ("--merged is not for --low-memory", options.merged),
    ]
    for said, is_wrong in wrong:
        if is_wrong:
            raise UsageError(
                f"Argument {said}.", slug="bad-command-line", hint="See: onlooker export --help."
            )


def _kept(written: Sequence[Path], out: Path | None) -> str:
    """Returns a sentence that says what an interrupted export leaves."""
    found = [f"{path} was written." for path in written]
    found += [f"{out} is as it was."] if out is not None else []
    return " ".join(found or ["Nothing was written."])


def watch_source(
    options: argparse.Namespace, captured: Sequence[Seen] | None, say: Say
) -> tuple[InputObserver | Observers, Pretrained | Pipeline | None]:
    """Runs the use of the model, and returns what it recorded, with the saved model where there is
    one.
    """
    if options.model is not None:
        read = read_pretrained
        if options.to == SENTENCE_TRANSFORMERS:
            read = read_sentence_transformer
        saved = read(options.model, options.dtype, say)
        say(f"watching two uses: {saved.use.story}")
        return watch_pretrained(saved, options.keep), saved
    if options.diffusers is not None:
        pipeline = read_pipeline(options.diffusers, options.dtype, say)
        say("watching two runs")
        return watch_pipeline(pipeline, options.keep), pipeline
    say(f"running {options.build or options.function}")
    if captured is not None:
        return _of_captured(captured, options, say), None
    used = load_function(options.function)
    say("watching its use")
    if options.entry:
        return watch_entries(used, options.entry, options.keep), None
    return watch(used, options.method, options.keep), None


def called_parts(watched: InputObserver | Observers) -> dict[str, InputObserver]:
    """The observer of each part that was called, by its name; "" for a model that is watched alone."""
    observers = {"": watched} if isinstance(watched, InputObserver) else dict(watched)
    return {name: one for name, one in observers.items() if not one.is_empty()}


def _variant(options: argparse.Namespace) -> dict[str, Any]:
    """The options of :meth:`~onlooker.Program.to` that were given."""
    in_place = options.in_place_cache or None
    given = {"precision": options.precision, "fuse": options.fuse, "in_place_cache": in_place}
    given |= {"opset": options.opset, "merged": options.merged or None}
    given |= {"calibration": options.calibration}
    return {name: value for name, value in given.items() if value is not None}


def _thresholds(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the differences that the options allow, where they say any."""
    given = {"atol": options.atol, "agreement": options.agreement}
    return {name: value for name, value in given.items() if value is not None}


def metric_of(options: argparse.Namespace) -> dict[str, Any]:
    """The metric of the user, and the least that it may be."""
    given = {"at_least": options.at_least}
    given |= {"metric": None if options.metric is None else result_of(options.metric)}
    return {name: value for name, value in given.items() if value is not None}


def _check_web(options: argparse.Namespace) -> None:
    """Passes where a folder is named, and nothing is asked of its files that they cannot have.

    :raises UsageError: ``bad-command-line``
    """
    if options.out is None:
        raise UsageError(
            "Argument --to web writes a folder, and none is named.",
            slug="bad-command-line",
            hint="Name it: --out out.",
        )
    given = [f"--{name.replace('_', '-')}" for name in _variant(options)]
    if given:
        raise UsageError(
            f"Argument {given[0]} is not for --to web, which writes a file of each precision.",
            slug="bad-command-line",
            hint=f"Leave it out, or export one file: --to onnx {given[0]} ... --out model.onnx.",
        )


def _save(
    program: Program | Programs,
    out: Path,
    options: argparse.Namespace,
    saved: Pretrained | Pipeline | None,
) -> list[WebFile]:
    """Writes the folder, with the files that stood beside the weights of a saved model; gives those
    for the web.
    """
    folder = None if saved is None else saved.folder
    if isinstance(program, Program) and options.to == GENAI:
        program.save_genai(out, folder)
        return []
    if isinstance(program, Program) and options.to == SENTENCE_TRANSFORMERS:
        program.save_sentence_transformers(out)
        return []
    if isinstance(program, Program) and options.to == WEB:
        return program.save_web(out, folder, verify=not options.no_verify, **_thresholds(options))
    if isinstance(saved, Pipeline) and isinstance(program, Programs):
        prefix = "openvino_model" if options.to == "openvino" else "model"
        write_pipeline(program, saved, out, prefix)
        return []
    beside = [] if saved is None or is_file_name(out) else side_files(saved.folder)
    program.save(out, values=options.values, beside=beside)
    return []


def read_source(options: argparse.Namespace) -> None:
    """Sets ``options.function``: the function to watch, or the place of a recording; None for a saved
    model. ``options.build`` stays where a recording wants it.

    :raises UsageError: ``bad-command-line``
    """
    options.function = options.source
    if options.source is None and options.build is not None:
        options.function, options.build = options.build, None
    if options.build is not None and (
        options.function is None or names_a_function(options.function)
    ):
        raise UsageError(
            "Argument --build is for a recording, which has no model.",
            slug="bad-command-line",
            hint="Give the function alone: onlooker export app.py:build.",
        )
    of_function = options.entry or options.method != "forward"
    if options.function is None and of_function:
        raise UsageError(
            "Arguments --entry and --method are for a function, which others have not.",
            slug="bad-command-line",
            hint="See: onlooker export --help.",
        )


def calls_elsewhere(options: argparse.Namespace) -> list[Seen] | None:
    """The entry points of a recording, in the order of --entry; None where a function is to be
    watched.

    :raises UsageError: ``bad-command-line``, ``no-such-entry``
    """
    if options.function is None or names_a_function(options.function):
        return None
    if options.build is None or options.save_recording is not None:
        raise UsageError(
            "A recording is exported with --build MODULE:FUNCTION, which returns the model,"
            " and without --save-recording.",
            slug="bad-command-line",
            hint="See: onlooker export --help.",
        )
    return read_seen(Path(options.function), options.entry)


def _of_captured(
    captured: Sequence[Seen], options: argparse.Namespace, say: Callable[[str], None]
) -> InputObserver | Observers:
    """The observer of a model that is built here, with the calls that were recorded elsewhere; of
    several entry points, the observer of each.

    :raises UsageError: ``bad-entry``
    """
    built = load_model(options.build)
    paths: list[str | None] = options.entry or [None]
    parts = [part_of(built, seen, path) for seen, path in zip(captured, paths, strict=True)]
    if len(captured) == 1:
        return _filled(InputObserver(), captured[0], parts[0], options, say)
    pairs = [(part, seen.entry.method) for part, seen in zip(parts, captured, strict=True)]
    observers = Observers(named_entries(options.entry, pairs))
    for observer, seen, part in zip(observers.values(), captured, parts, strict=True):
        _filled(observer, seen, part, options, say)
    return observers


def _filled(
    observer: InputObserver,
    seen: Seen,
    part: Any,
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> InputObserver:
    say(f"calling it as {seen.n_calls} recorded calls of {seen.name} did")
    return observer_of(seen, part, [Path(options.function)], observer)


def check_entries(options: argparse.Namespace) -> None:
    """Passes where no option is of one method alone, beside entries.

    :raises UsageError: ``bad-command-line``
    """
    alone = [
        option
        for option, given in (
            ("--method", options.method != "forward"),
            ("--save-recording", options.save_recording is not None),
        )
        if given
    ]
    if options.entry and alone:
        raise UsageError(
            f"Argument {alone[0]} is for one method, and --entry names its own.",
            slug="bad-command-line",
            hint=(
                "Write the method into the entry, as in vae.decode. The folder of each entry has"
                " its recording.json."
            ),
        )


def pins_of(
    options: argparse.Namespace, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Reads the options about axes: those of all entries, and those of single ones by their names."""
    found: dict[str, dict[str, Any]] = {}
    for pin, texts in (("static", options.static), ("dynamic", options.dynamic)):
        for name, own in texts_by_entry(texts, names).items():
            found.setdefault(name, {})[pin] = dimensions(own, f"--{pin}")
    for name, own in texts_by_entry(options.range, names).items():
        found.setdefault(name, {})["ranges"] = ranges(own)
    return found.pop("", {}), found


def watch(used: Used, method: str, keep: int = 3) -> InputObserver:
    """The observer of one use of a model.

    :raises FunctionRaisedError: ``function-raised`` when the use raises
    """
    observer = InputObserver()
    with (
        observer(used.model, store_n_calls=keep, method_name=method),
        torch.no_grad(),
        raised_by_the_user(f"the callable of {used.name}"),
    ):
        used.use()
    return observer


def dimensions(texts: Sequence[str], option: str) -> dict[str, list[int]]:
    """``x:0,2`` as ``{"x": [0, 2]}``.

    :raises UsageError: ``bad-command-line``
    """
    return numbers_by_name(texts, ":", option, "ARG:DIMS, as in x:0,2")


def numbers_by_name(
    texts: Sequence[str], mark: str, option: str, form: str, command: str = "export"
) -> dict[str, list[int]]:
    """The numbers of each name, which stand behind a ``mark``; ``form`` says in words how.

    :raises UsageError: ``bad-command-line``
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, listed = text.rpartition(mark)
        numbers = listed.split(",")
        if not name or not all(number.strip().isdigit() for number in numbers):
            raise _bad(text, option, form, command)
        found.setdefault(name, []).extend(map(int, numbers))
    return found


def ranges(texts: Sequence[str]) -> RangesOption:
    """``batch=1:64`` as ``{"batch": (1, 64)}``; a side that is left out has no limit. ``observed``
    alone stays as it is, and beside others it stands for all symbols that they do not name.

    :raises UsageError: ``bad-command-line``
    """
    if set(texts) == {OBSERVED}:
        return OBSERVED
    found: dict[str, Any] = {}
    for text in texts:
        name, _, limits = text.rpartition("=")
        if limits == OBSERVED and (name or text == OBSERVED):
            found[name or OTHERS] = OBSERVED
            continue
        low, colon, high = limits.partition(":")
        if not name or not colon or not all(side == "" or side.isdigit() for side in (low, high)):
            raise _bad(text, "--range", "SYMBOL=LOW:HIGH, as in batch=1:64, or observed")
        found[name] = (int(low) if low else None, int(high) if high else None)
    return found


def _bad(text: str, option: str, form: str, command: str = "export") -> UsageError:
    return UsageError(
        f"Argument {option}: {text!r} is not {form}.",
        slug="bad-command-line",
        hint=f"See: onlooker {command} --help.",
    )


def _answer(
    program: Program | Programs,
    options: argparse.Namespace,
    saved: Pretrained | Pipeline | None,
    files: Sequence[WebFile],
) -> Answer:
    report = program.report
    verified = report.verified and all(file.holds for file in files)
    code = ExitCode.of(verified or options.no_verify)
    written = [str(place) for place in (options.out, options.save_recording) if place is not None]

    def show(console: Console) -> None:
        console.print(report.tables(full=options.full))
        console.file.writelines(f"{file}\n" for file in files)
        console.file.writelines(f"wrote {place}\n" for place in written)
        if isinstance(saved, Pretrained) and options.out is not None:
            lines = how_to_run(program, saved, options.to, str(options.out))
            language = "JavaScript" if options.to == WEB else "Python"
            console.file.write(f"\nto run it in {language}:\n")
            console.file.writelines(f"    {line}\n" for line in lines)

    def data() -> dict[str, object]:
        web = {"web": [file.to_dict() for file in files]} if options.to == WEB else {}
        return {"verified": verified, "files": written, **web, "report": report.to_dict()}

    accepting = {} if verified else program.tally.accepting
    return Answer(code, show, data, to_type(*_following(options, saved, accepting)))


def _following(
    options: argparse.Namespace,
    saved: Pretrained | Pipeline | None,
    accepting: Mapping[str, float],
) -> list[str]:
    """The command that goes on from here, as it can be typed; ``accepting`` would accept what differs."""
    if accepting and not options.no_verify:
        return [*options.argv, *as_options(accepting)]
    if options.out is None:
        return [*options.argv, "--out", "program"]
    out = str(options.out)
    if options.to in FOLDERS or isinstance(saved, Pipeline):
        return ["doctor"]  # a folder of another maker's layout
    if options.no_verify and saved is None and options.build is None:
        entries = [part for path in options.entry for part in ("--entry", path)]
        return ["verify", out, "--build", options.function, *entries]
    if is_file_name(options.out):  # it holds no plan, which `show` and `check` read
        return ["verify", out, "--build", options.build or options.function or "app.py:build"]
    if options.save_recording is not None:
        return ["check", out, str(options.save_recording)]
    return ["show", out]
