"""Opens an export of any kind, a file or an object, as something that can be called.

The parts of this file, in their order:

    programs of torch.export      ``.pt2`` files, and programs in memory
    models of OpenVINO            an ``.xml`` with the ``.bin`` beside it
    models of ONNX                run by ONNX Runtime
    folders of transformers       which ``ExportedModel.save_pretrained`` wrote
    programs of ExecuTorch        ``.pte`` files, which keep neither names nor ranges
    packages of AOTInductor       machine code, which keeps no names and no shapes
    any of these                  told apart by the file or the object
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ..core.errors import ArgumentKindError, UsageError
from ..core.support.packages import require_packages
from ..pytrees.registry import register_flattening_functions
from ..targets.inputs import laid
from ..targets.onnx.runtime.model import OnnxModel, is_onnx, onnx_source
from ..targets.openvino.run import openvino_runner
from ..targets.openvino.settings import DeviceSettings
from ..targets.refused import last_words
from ..torch_internals.trees import torch_pytree as pytree
from .exported import Declared, Exported, Port, dtype_named, tensor_for
from .onnx_contents import contents_of_onnx
from .openvino_contents import contents_of_openvino
from .torch_contents import contents_of_program

__all__ = ["is_foreign", "open_exported"]


# -- programs of torch.export
#: torch writes so where a range has no end
_UNBOUNDED_OF_TORCH_PROGRAM = 2**31


def read_program(path: Path) -> torch.export.ExportedProgram:
    """The program in a file, read with the classes of caches registered.

    :raises UsageError: ``model-not-loaded``
    """
    try:
        with register_flattening_functions():
            return torch.export.load(path)
    except Exception as error:
        raise UsageError(
            f"The file {path} cannot be loaded by torch.export: {type(error).__name__}: {error}",
            slug="model-not-loaded",
            hint="Give a file that torch.export.save() of this version of torch wrote.",
        ) from error


def open_program(program: torch.export.ExportedProgram) -> Exported:
    """A program of torch.export, whose inputs are the leaves of its arguments, by their names in
    the graph.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    names = [spec.arg.name for spec in specs]
    constants = {
        spec.arg.name: spec.arg.value for spec in specs if isinstance(spec.arg, ConstantArgument)
    }
    ranges = program.range_constraints
    inputs = tuple(
        _port_of_torch_program(name, nodes[name].meta.get("val"), ranges)
        for name in names
        if name not in constants
    )
    ports = {port.name: port for port in inputs}
    with register_flattening_functions():
        module = program.module()

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        values = {name: _input(given[name], ports[name]) for name in ports}
        flat = [constants[name] if name in constants else values[name] for name in names]
        with register_flattening_functions(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten(flat, program.call_spec.in_spec)
            return [
                leaf
                for leaf in pytree.tree_leaves(module(*args, **kwargs))
                if isinstance(leaf, torch.Tensor)
            ]

    contents = contents_of_program(program)
    outputs = tuple(_outputs(program))
    return Exported("torch.export", inputs, outputs, run, tuple(constants), contents)


def _input(value: Any, port: Port) -> Any:
    return tensor_for(value, port) if port.shape is not None else value


def _outputs(program: torch.export.ExportedProgram) -> Iterator[Port]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        value = values.get(getattr(spec.arg, "name", ""))
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(value, torch.Tensor):
            yield _port_of_torch_program(spec.arg.name, value, program.range_constraints)


def _port_of_torch_program(name: str, value: Any, ranges: Mapping[Any, Any]) -> Port:
    if not isinstance(value, torch.Tensor):
        return Port(name)
    return Port(
        name,
        str(value.dtype),
        tuple(_declared_of_torch_program(size, ranges) for size in value.shape),
    )


def _declared_of_torch_program(size: Any, ranges: Mapping[Any, Any]) -> Declared:
    if isinstance(size, int):
        return Declared("", size, size)
    expression = size.node.expr
    found = ranges.get(expression)
    if found is None:
        return Declared(str(expression))
    is_open = bool(found.upper >= _UNBOUNDED_OF_TORCH_PROGRAM)
    return Declared(str(expression), int(found.lower), None if is_open else int(found.upper))


# -- models of OpenVINO
#: OpenVINO says so where a size has no upper bound
_UNBOUNDED = 2**31 - 1


def is_openvino(model: Any) -> bool:
    """True for an ``openvino.Model``."""
    return type(model).__module__.partition(".")[0] == "openvino" and hasattr(model, "get_ops")


def open_openvino(model: Any) -> Exported:
    """The path of an ``.xml``, or an ``openvino.Model``; it runs in float32 on the CPU.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    require_packages("openvino", purpose="An export to openvino", extra="openvino")
    import openvino

    try:
        read = openvino.Core().read_model(model) if isinstance(model, Path) else model
        compiled = openvino.Core().compile_model(read, "CPU", DeviceSettings().properties)
    except RuntimeError as error:
        said = last_words(error, 300)
        raise UsageError(
            f"{model if isinstance(model, Path) else 'The model'} cannot be loaded by OpenVINO:"
            f" {said}",
            slug="model-not-loaded",
            hint="Give the path of an .xml that has its .bin beside it.",
        ) from error
    inputs = tuple(_port_of_openvino(port, number) for number, port in enumerate(read.inputs))
    outputs = tuple(_port_of_openvino(port, number) for number, port in enumerate(read.outputs))
    places = list(range(len(inputs)))
    runner = openvino_runner(_Numbered(compiled), [str(place) for place in places], len(outputs))

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        return runner([tensor_for(given[port.name], port) for port in inputs])

    contents = contents_of_openvino(read, [port.name for port in inputs])
    return Exported("openvino", inputs, outputs, run, contents=contents)


class _Numbered:
    """A compiled model whose inputs are called by their numbers: some have no name."""

    def __init__(self, compiled: Any) -> None:
        self.inputs = [_NamedPort(str(number)) for number in range(len(compiled.inputs))]
        self.outputs = compiled.outputs
        self.create_infer_request = compiled.create_infer_request


class _NamedPort:
    """A port with one name."""

    def __init__(self, name: str) -> None:
        self.names = (name,)


def _port_of_openvino(port: Any, number: int) -> Port:
    name = min(port.get_names(), default=str(number))
    shape = port.get_partial_shape()
    sizes = tuple(map(_declared_of_openvino, shape)) if shape.rank.is_static else None
    return Port(name, dtype_named(port.get_element_type().to_string()), sizes)


def _declared_of_openvino(dimension: Any) -> Declared:
    high = dimension.get_max_length()
    is_open = high < 0 or high >= _UNBOUNDED
    return Declared("", dimension.get_min_length(), None if is_open else high)


# -- models of ONNX
def open_onnx(model: Any) -> Exported:
    """A path, a ModelProto, or what an exporter to ONNX gives.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    loaded = OnnxModel(model)
    inputs = tuple(_port(*value) for value in loaded.declared_inputs)
    outputs = tuple(_port(*value) for value in loaded.declared_outputs)
    ports = {port.name: port for port in inputs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        return loaded.run({name: tensor_for(value, ports[name]) for name, value in given.items()})

    contents = contents_of_onnx(onnx_source(model))
    return Exported("onnx", inputs, outputs, run, contents=contents)


def _port(name: str, kind: str, shape: Sequence[int | str | None]) -> Port:
    return Port(name, dtype_named(kind), tuple(map(_declared, shape)))


def _declared(size: int | str | None) -> Declared:
    return Declared("", size, size) if isinstance(size, int) else Declared(size or "")


# -- folders of transformers
#: the file that names the components of such a folder
_MANIFEST = "export.json"


def is_exported_model(path: Path) -> bool:
    """True for a folder of transformers' ExportedModel."""
    return (path / _MANIFEST).is_file()


def component_of(path: Path, name: str | None) -> Path:
    """The file of one component; without a name, of the only one.

    :raises UsageError: ``no-such-component``, ``model-not-loaded``
    """
    try:
        manifest: Any = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        files = {key: str(entry["file"]) for key, entry in manifest["components"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path / _MANIFEST} does not name the files of its components ({error!r}).",
            slug="model-not-loaded",
            hint="Give a folder that ExportedModel.save_pretrained() wrote.",
        ) from error
    chosen = name if name is not None else next(iter(files), "")
    if chosen not in files or (name is None and len(files) > 1):
        raise UsageError(
            f"{path} has the components {', '.join(files)}.",
            slug="no-such-component",
            hint="Name one of them with component=, or --component.",
        )
    file = path / files[chosen]
    if file.parent != path:
        raise UsageError(
            f"The component {chosen} of {path} lies outside of it.",
            slug="model-not-loaded",
            hint="Give a folder that ExportedModel.save_pretrained() wrote.",
        )
    return file


# -- programs of ExecuTorch
def open_executorch(path: Path, method: str) -> Exported:
    """One method of a program of ExecuTorch; the only one of the file, where that has another name.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    require_packages("executorch", purpose="An export to executorch", extra="executorch")
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


# -- packages of AOTInductor
def open_aoti(path: Path) -> Exported:
    """A package that ``torch._inductor.aoti_compile_and_package`` wrote. It is run as it is.

    :raises UsageError: ``model-not-loaded``
    """
    from ..torch_internals.compiled import aoti_load_package

    try:
        with register_flattening_functions():
            model = aoti_load_package(str(path))
            in_spec = pytree.treespec_loads(model.loader.get_call_spec()[0])
    except Exception as error:
        raise UsageError(
            f"The package {path} cannot be loaded by AOTInductor: {str(error)[:300]}",
            slug="model-not-loaded",
            hint="Compile it again on this machine, with this version of torch.",
        ) from error
    inputs = tuple(map(Port, _names(in_spec)))

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        flat = [given[port.name] for port in inputs]
        with register_flattening_functions(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten(flat, in_spec)
            result = model(*args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    return Exported("aoti", inputs, (), run)


def _names(in_spec: Any) -> list[str]:
    """A name per leaf: that of its keyword where it is the only leaf there, else its number."""
    names: list[str] = []
    positional, named = in_spec.children()
    names += [str(number) for number in range(positional.num_leaves)]
    for key, child in zip(named.context, named.children(), strict=True):
        count = child.num_leaves
        names += [key] if count == 1 else [f"{key}.{number}" for number in range(count)]
    return names


_SUFFIXES = (".onnx", ".pt2", ".xml", ".pte")


# -- any of these


def is_foreign(path: Path) -> bool:
    """True for a file, or a folder of transformers, that :func:`open_exported` may open."""
    return path.suffix in _SUFFIXES or is_exported_model(path)


def open_exported(
    exported: Any, *, component: str | None = None, machine_code: bool = False
) -> Exported:
    """An export of any maker: a path, or an object of its library.

    ``component`` is that of a folder of transformers, or the method of a ``.pte``. A package of
    AOTInductor is machine code, and runs with ``machine_code`` alone.

    :raises UsageError: ``model-not-loaded``, ``no-such-component``, ``machine-code``
    :raises ArgumentKindError: ``not-a-model``
    :raises MissingPackageError: ``missing-package``
    """
    if isinstance(exported, Exported):
        return exported
    if isinstance(exported, torch.export.ExportedProgram):
        return open_program(exported)
    if is_openvino(exported):
        return open_openvino(exported)
    if not isinstance(exported, (str, os.PathLike)):
        if is_onnx(exported):
            return open_onnx(exported)
        raise ArgumentKindError(
            f"A {type(exported).__name__} is no export that can be run.",
            slug="not-a-model",
            hint="Give a path, a program of torch.export or torch.onnx, or a model of OpenVINO.",
        )
    path = Path(exported)
    if is_exported_model(path):
        path = component_of(path, component)
    if not path.is_file():
        raise UsageError(
            f"There is no file {path}.",
            slug="model-not-loaded",
            hint=f"Give a file that ends in {', '.join(_SUFFIXES)}, or a folder of transformers.",
        )
    return _of_file(path, component, machine_code)


def _of_file(path: Path, component: str | None, machine_code: bool) -> Exported:
    if path.suffix == ".xml":
        return open_openvino(path)
    if path.suffix == ".pte":
        return open_executorch(path, component or "forward")
    if path.suffix == ".pt2":
        if not _is_machine_code(path):
            return open_program(read_program(path))
        if not machine_code:
            raise UsageError(
                f"{path} is machine code that AOTInductor compiled.",
                slug="machine-code",
                hint="Allow it with machine_code=True, or --machine-code, if you trust its maker.",
            )
        return open_aoti(path)
    return open_onnx(path)


def _is_machine_code(path: Path) -> bool:
    """True for a package of AOTInductor, which ends in ``.pt2`` as programs do."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/aotinductor/" in f"/{name}" for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
