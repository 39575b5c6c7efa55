"""From example inputs to one file, whose inputs, outputs and axes are called as the user says."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import torch

from ..core.errors import ExportError, UnsupportedError, UsageError
from ..core.path import Path
from ..core.sizes.formula import symbols_in
from ..core.spec import Axis
from ..core.structure import Tree
from ..core.support.kinds import ArgsKwargs, as_path, check_kind
from ..hypotheses.overrides import RangesOption
from ..infer.sizes import is_possible
from ..input_observer import InputObserver
from ..keep.files import graphs_in_one_file
from ..materialise.arguments import Calls
from ..model_source.lines import place_of_error
from ..observing.bind import bind, read_signature
from ..program import Program
from ..pytrees.open import open_arguments
from ..targets.onnx.names import order_inputs
from ..targets.single_file import write_one
from ..trace.graph import Graph
from .axes import AskedAxes, asked_by_axes, asked_by_calls, asked_by_shapes, tensors_of
from .calls import as_calls, sizes_by_call, watched

__all__ = ["FileRequest", "evaluated", "export_file"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """The request for a file, in the words of ``torch.onnx.export``."""

    args: Any
    kwargs: Mapping[str, Any] | None
    more_calls: Any
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    dynamic_axes: Any
    dynamic_shapes: Any
    ranges: RangesOption | None
    atol: float | None
    agreement: float | None

    def calls(self) -> list[ArgsKwargs]:
        """The example, and the calls beside it."""
        more = () if self.more_calls is None else self.more_calls
        others = as_calls(more) if not isinstance(more, (list, tuple)) or more else []
        return [_example(self.args, self.kwargs), *others]


def _example(args: Any, kwargs: Mapping[str, Any] | None) -> ArgsKwargs:
    """The arguments of the example; a dict at the end of ``args`` has arguments by name."""
    check_kind(kwargs, (Mapping, type(None)), "kwargs", "arguments by name, as a dict")
    if isinstance(args, Mapping):
        args = (args,)
    given = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if not kwargs and given and isinstance(given[-1], Mapping):
        return given[:-1], dict(given[-1])
    return given, dict(kwargs or {})


def export_file(
    model: Any, request: FileRequest, f: Any, target: str, options: Mapping[str, Any]
) -> Program:
    """The program of a target as one file at ``f``, a path or a file that is open for writing bytes;
    nothing is written for None.

    :raises ExportError: ``axis-not-dynamic``, ``not-verified``, and those of the export
    :raises UsageError: ``bad-names``, and those of the axes
    :raises SavedFileError: ``not-written``
    """
    check_kind(model, torch.nn.Module, "The model", "a torch.nn.Module")
    path = _check_place(f)
    names = tuple(_check_names("input_names", request.input_names))
    output_names = tuple(_check_names("output_names", request.output_names))
    if request.dynamic_axes and request.dynamic_shapes:
        raise UsageError(
            "dynamic_axes and dynamic_shapes are given at once.",
            slug="bad-dynamic-axes",
            hint="Give one of them: both say which axes change.",
        )
    calls = request.calls()
    observer = watched(model, calls)
    recording = observer.recording("forward")
    trees = [call.inputs for call in recording.calls]
    arguments = bind(read_signature(model.forward)[0], *calls[0])[0]
    places = {
        id(value): path
        for path, value in open_arguments(arguments).items()
        if isinstance(value, torch.Tensor)
    }
    tensors = tensors_of(trees[0], calls[0], places)
    _check_count(names, tensors)
    shapes = sizes_by_call(trees)
    changing = asked_by_calls(shapes)
    if request.dynamic_axes:
        asked = asked_by_axes(request.dynamic_axes, trees[0], tensors, names, output_names)
    elif request.dynamic_shapes:
        asked = asked_by_shapes(request.dynamic_shapes, arguments, places)
    else:
        asked = changing
    _check_changing(changing, asked, shapes)
    program = _exported(observer, asked, trees, request.ranges)
    program = Program(program._program.with_graphs(_of_one_form(program)))
    _check_dynamic(program, asked)
    program = _named(program, asked, dict(zip(tensors, names, strict=False)), output_names)
    wanted = dict(options)
    if target == "onnx" and len(program.graphs) > 1:
        wanted["merged"] = True
    made = program.to(target, **wanted)
    if target == "onnx":
        order_inputs(made.graphs[0].artifact.model, _labels(made.graphs[0], tensors))
    made.verify(atol=request.atol, agreement=request.agreement)
    _check_verified(made, path)
    _write(made, f, path)
    return made


def _check_place(f: Any) -> FilePath | None:
    """The path of the file; None for a file that is open, and for none.

    :raises ArgumentKindError: ``wrong-kind``
    :raises UsageError: ``not-a-file``, ``bad-path``
    """
    if f is None or callable(getattr(f, "write", None)):
        return None
    path = as_path(f, "The file f")
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", slug="not-a-file", hint="Name a file in it.")
    return path


def _check_names(what: str, names: Any) -> list[str]:
    """Names of inputs or outputs, each once.

    :raises UsageError: ``bad-names``
    """
    if names is None:
        return []
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"{what} is {str(names)[:100]!r}.", slug="bad-names", hint="Give a list of names."
        )
    doubled = next((name for name in names if list(names).count(name) > 1), None)
    if doubled is not None:
        raise UsageError(
            f"{what} has {doubled!r} twice.",
            slug="bad-names",
            hint="Each name stands for one value.",
        )
    return list(names)


def _check_count(names: Sequence[str], tensors: Sequence[Path]) -> None:
    """Passes for at most one name for each tensor of the call.

    :raises UsageError: ``bad-names``
    """
    if len(names) > len(tensors):
        raise UsageError(
            f"input_names has {len(names)} names, and the example {len(tensors)} tensors:"
            f" {', '.join(path.code() for path in tensors)}.",
            slug="bad-names",
            hint="Give a name for each tensor of the call, in the order of the arguments.",
        )


def _check_changing(
    changing: AskedAxes, asked: AskedAxes, shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> None:
    """Passes where every axis that differs between the calls is asked to change.

    :raises UsageError: ``axis-not-named``
    """
    for path, dims in changing.dynamic.items():
        known = asked.moving(path)
        for dim in dims:
            if dim in known:
                continue
            sizes = ", ".join(dict.fromkeys(str(shape[dim]) for shape in shapes[path]))
            raise UsageError(
                f"{path}.shape[{dim}] has the sizes {sizes} in the calls, and is not among the axes"
                " that change.",
                slug="axis-not-named",
                hint="Name it in dynamic_axes= or dynamic_shapes=, or give calls of one size.",
            )


def _exported(
    observer: InputObserver,
    asked: AskedAxes,
    trees: Sequence[Tree[Any]],
    ranges: RangesOption | None,
) -> Program:
    """The program of torch in which the axes of the user change, and no others."""
    symbols = asked.symbols
    limits = {symbols[name]: limit for name, limit in asked.ranges.items() if name in symbols}
    given: Any = ranges
    if isinstance(ranges, Mapping):
        given = {symbols.get(name, name): limit for name, limit in ranges.items()}
    if limits and not isinstance(ranges, str):
        given = {**limits, **(given or {})}
    return observer.export(
        dynamic=asked.dynamic,
        static=asked.static(sizes_by_call(trees)),
        names={
            path: {dim: symbols[name] for dim, name in own.items()}
            for path, own in asked.names.items()
        },
        ranges=given,
    )


def _of_one_form(program: Program) -> tuple[Graph, ...]:
    """The graphs that one file can choose from by the sizes of a call.

    :raises UnsupportedError: ``several-graphs`` for calls of several forms
    """
    graphs = graphs_in_one_file(program._program)
    other = next((graph for graph in graphs if graph.form != graphs[0].form), None)
    if other is None:
        return graphs
    raise UnsupportedError(
        f"The calls need several graphs: {graphs[0].name} and {other.name} take other arguments or"
        " constants.",
        slug="several-graphs",
        hint=(
            "Give calls with the same arguments, of other sizes; or onlooker.export(model, calls), whose"
            " program has a graph for each."
        ),
    )


def _check_dynamic(program: Program, asked: AskedAxes) -> None:
    """Passes where every axis that has to change does.

    :raises ExportError: ``axis-not-dynamic``
    """
    found: list[tuple[str, str]] = []
    for path, dims in asked.dynamic.items():
        for dim in dims:
            axis = f"{path}.shape[{dim}]"
            sizes = [
                str(size)
                for graph in program.graphs
                for own, _, size in graph.fixed_axes
                if str(own) == axis
            ]
            if len(sizes) < len(program.graphs):
                continue
            name = asked.names.get(path, {}).get(dim)
            called = f" ({name!r})" if name else ""
            text = f"{axis}{called} cannot change: the model takes {' or '.join(sorted(set(sizes)))} there."
            found.append((text, _why_fixed(program, axis)))
    if not found:
        return
    # where torch makes a number of one axis, it may do so of those beside it
    text, why = next((row for row in found if row[1]), found[0])
    raise ExportError(
        f"{text}{why}",
        slug="axis-not-dynamic",
        hint="Change that line of the model, or leave the axis out of those that change.",
    )


def _why_fixed(program: Program, axis: str) -> str:
    """The line of the model that wants one size: the condition of a graph, else where the model
    refuses another size.
    """
    for graph in program.graphs:
        symbols = {
            name
            for leaf in graph.plan.inputs
            for own, expression in leaf.axes
            if str(own) == axis
            for name in expression.symbols
        }
        for region in graph.contract.regions:
            for constraint in region.constraints:
                if constraint.line and symbols & symbols_in(constraint.formula):
                    return f" The model decides by {constraint.line}."
        refused = _refused_at(program, graph, symbols)
        if refused:
            return f" With another size it raises {refused}."
    return ""


def _refused_at(program: Program, graph: Graph, symbols: set[str]) -> str:
    """Returns the error of the model for a call of another size, with its line; empty where the
    model takes that call.
    """
    basis = program._program.beside_model()
    for name in symbols:
        sizes = {**graph.sizes, name: graph.sizes.get(name, 1) + 1}
        if not is_possible(graph.plan, sizes):
            continue
        arguments = Calls(graph.plan, basis.kept).arguments(sizes)
        try:
            basis.subject.try_out(arguments)
        except Exception as error:
            line = place_of_error(error)
            cause = error.__cause__ or error
            where = f", at {line}" if line else ""
            return f"{type(cause).__name__}: {str(cause).splitlines()[0][:200]}{where}"
    return ""


def _named(
    program: Program,
    asked: AskedAxes,
    own: Mapping[Path, str],
    output_names: Sequence[str],
) -> Program:
    """The program with the names of the user for inputs, outputs and axes; ``own`` are those of
    inputs by their paths.

    :raises UsageError: ``bad-names``, ``no-such-dimension``
    """
    given = {*own.values(), *output_names}
    graphs = []
    for graph in program.graphs:
        labels = [
            own.get(leaf.path, label)
            for leaf, label in zip(graph.plan.inputs, graph.labels, strict=True)
        ]
        results = _output_labels(graph, output_names)
        flags = zip(results, graph.outputs.dynamic, strict=True)
        both = [*labels, *(name for name, flag in flags if flag)]
        doubled = next((name for name in given if both.count(name) > 1), None)
        if doubled is not None:
            raise UsageError(
                f"{doubled!r} would be the name of two values.",
                slug="bad-names",
                hint="Give other input_names or output_names.",
            )
        made = replace(
            graph,
            input_names=tuple(labels),
            outputs=replace(graph.outputs, labels=tuple(results)),
        )
        graphs.append(replace(made, axis_names=_axis_names(made, asked)))
    return Program(program._program.with_graphs(graphs))


def _labels(graph: Graph, paths: Sequence[Path]) -> list[str]:
    """The names of the inputs of these paths, in this order."""
    inputs = [leaf.path for leaf in graph.plan.inputs]
    label_of = dict(zip(inputs, graph.labels, strict=True))
    return [label_of[path] for path in paths if path in label_of]


def _output_labels(graph: Graph, output_names: Sequence[str]) -> list[str]:
    """The label of every leaf of the result: those that the graph gives are called as the user
    says, in their order.
    """
    given = graph.outputs.names
    if len(output_names) > len(given):
        raise UsageError(
            f"output_names has {len(output_names)} names, and the model gives {len(given)} values:"
            f" {', '.join(given)}.",
            slug="bad-names",
            hint="Give a name for each tensor of the result, in its order.",
        )
    rest = iter(output_names)
    pairs = zip(graph.outputs.labels, graph.outputs.dynamic, strict=True)
    return [next(rest, label) if flag else label for label, flag in pairs]


def _axis_names(graph: Graph, asked: AskedAxes) -> dict[str, dict[int, str]]:
    """Returns the names of axes in the file: those of inputs as the user gives them, those of
    outputs as the user gives them or as the inputs of the same size have them.
    """
    found: dict[str, dict[int, str]] = {}
    spelled: dict[str, str] = {}
    for leaf, label in zip(graph.plan.inputs, graph.labels, strict=True):
        for dim, name in asked.names.get(leaf.path.code(), {}).items():
            if graph.fixed_size(Axis(leaf.path, dim)) is not None:
                continue
            found.setdefault(label, {})[dim] = name
            spelled.setdefault(str(leaf.shape[dim]), name)
    kinds = graph.outputs.kinds
    names = graph.outputs.names
    for name, kind in zip(names, kinds, strict=True) if len(kinds) == len(names) else ():
        given = asked.outputs.get(name, {})
        shape = kind[1]
        for dim, text in enumerate(shape):
            if text in spelled:
                found.setdefault(name, {})[dim] = spelled[text]
        for dim, text in given.items():
            if not -len(shape) <= dim < len(shape):
                raise UsageError(
                    f"dynamic_axes names dimension {dim} of {name}, which has {len(shape)}.",
                    slug="no-such-dimension",
                    hint="Dimensions count from 0.",
                )
            is_other = text in spelled.values() and spelled.get(shape[dim]) != text
            if is_other:
                logger.warning(
                    "%s.shape[%d] is %s, and not %s, as dynamic_axes says: the file says the former",
                    *(name, dim, shape[dim], text),
                )
                continue
            found.setdefault(name, {})[dim % len(shape)] = text
    return found


def _check_verified(program: Program, path: FilePath | None) -> None:
    """Passes for a program that is verified.

    :raises ExportError: ``not-verified``, which has the program as ``program``
    """
    report = program.report
    if report.verified:
        return
    failed = [check for check in report.tally.checks if not check.passed]
    accepting = report.tally.accepting
    given = ", ".join(f"{name}={value:g}" for name, value in accepting.items())
    first = f" First: {failed[0].label}: {failed[0].note}." if failed else ""
    what = "Nothing was written" if path is None else f"{path} was not written"
    error = ExportError(
        f"{what}: {report.verdict}.{first}",
        slug="not-verified",
        hint=(
            f"{f'Give {given} to accept these differences. ' if given else ''}error.program is the"
            " program, print(error.program.report) says all of it."
        ),
    )
    error.program = program
    raise error


def _write(program: Program, f: Any, path: FilePath | None) -> None:
    """Writes the one file."""
    if f is None:
        return
    if path is not None:
        files = write_one(program.graphs, path)
        logger.info("wrote %s", ", ".join(map(str, files)))
        return
    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        files = write_one(program.graphs, FilePath(folder, "model"))
        if len(files) > 1:
            raise UnsupportedError(
                f"The program has {len(files)} files, which one open file cannot hold.",
                slug="no-single-file",
                hint="Give a path: the weights are written beside it.",
            )
        f.write(files[0].read_bytes())


@contextlib.contextmanager
def evaluated(model: Any, *, as_it_is: bool) -> Iterator[None]:
    """Inside the block the model is in evaluation mode, unless it is to stay ``as_it_is``; each of
    its parts is in its own mode afterwards.
    """
    if as_it_is or not isinstance(model, torch.nn.Module):
        yield
        return
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
