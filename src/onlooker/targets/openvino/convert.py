"""Converts an exported graph to a model of OpenVINO.

The front end of OpenVINO is called itself: ``openvino.convert_model`` does the same, and reports
each conversion to its makers.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...core.errors import ExportError
from ...model_source.lines import place_of_node
from ...repairs.loops.recurrent_steps import steps_stay_sizes
from ...repairs.repeated_operators import conversion_repeats
from ...torch_internals.graph_modules import changed_graphs
from ...trace.graph import Graph
from ...trace.torch_run import without_guards
from ..about import known_of
from ..asserted import assertions_in, conditions_of
from ..exact_numbers import (
    extremes_of_infinite_numbers,
    means_of_no_numbers,
    short_ints_added_up,
)
from ..integers.packed import with_packed_weights, with_unpacked_bits
from ..masked_rows import masked_rows_give_zeros
from ..names import names_of
from ..refused import operator_in, refused_graph
from ..single_floats import int_of_an_argument
from ..taken_apart import derivatives_by_parts, slices_measured_anew, take_apart
from .conversions import CONVERSIONS, RESULTS, extensions
from .loops import TakenScan, take_scans
from .operators import taken_apart, use_known_operators
from .packed import dequantised, take_packed_matrices
from .processor import avoid_wrong_numbers
from .shapes import shape_of

__all__ = ["ASSERTED", "convert_graph"]

#: the output, behind those of the model, that is true where all assertions of the model hold
ASSERTED = "onlooker_asserted"
_MISSING = re.compile(r"No conversion rule found for operations: ([^\n]+)")


def convert_graph(graph: Graph) -> Any:
    """The openvino.Model of a graph of torch, with the names, ranges and numbers of its plan.

    A graph that asserts something of values has one more output, :data:`ASSERTED`.

    :raises ExportError: ``openvino-refused`` with the message of the converter
    """
    if (made := int_of_an_argument(graph.artifact.graph)) is not None:
        raise _refused(
            graph,
            f"the graph makes an int of a float argument ({place_of_node(made)}), and OpenVINO computes floats in 32"
            " bits, in which the int may be another one.",
        )
    try:
        program = with_unpacked_bits(with_packed_weights(graph.artifact, mixed=False))
        program = take_apart(program)
        with (
            warnings.catch_warnings(),
            torch.no_grad(),
            without_guards(program),
            changed_graphs(
                program,
                slices_measured_anew,
                derivatives_by_parts,
                masked_rows_give_zeros,
                means_of_no_numbers,
                extremes_of_infinite_numbers,
                short_ints_added_up,
            ),
            steps_stay_sizes(program),
            conversion_repeats(program),
        ):
            warnings.simplefilter("ignore")
            module = program.run_decompositions(_decompositions()).module(check_guards=False)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        operator = operator_in(str(error), graph.artifact.graph)
        reason = f"{type(error).__name__}: {first[:500]}{operator}"
        raise _refused(graph, reason, error) from None
    assertions = assertions_in(module.graph)  # read while comparisons of sizes are those of Python
    packed = take_packed_matrices(module)
    use_known_operators(module)
    scans = take_scans(module)
    for scan in scans:
        use_known_operators(scan.body)
    outputs = _outputs_of(module)
    conditions = conditions_of(assertions)
    given = [*outputs, *conditions, *(value for scan in scans for value in scan.given)]
    own = {*packed, *(node for scan in scans for node in scan.results.values())}
    _give_computed(module, given)
    try:
        parameters, ports = _converted(module, _shapes_of(module, graph, own), given)
        for node, matrix in packed.items():
            parameters[node].output(0).replace(dequantised(matrix))
        _connect(scans, parameters, ports)
        inputs = [parameters[node] for node in _inputs_of(module, own)]
        held = [condition for scan in scans for condition in scan.held]
        model = _finished(graph, inputs, ports, outputs, [*conditions, *held])
        avoid_wrong_numbers(model)
    except Exception as error:
        raise _refused(graph, _reason(error, module), error) from None
    if (named := _converted_there_and_back(model)) is not None:
        raise _refused(
            graph,
            f"the graph gives {named} after conversions to other floats alone, and the plugin of OpenVINO for"
            " processors writes beyond the memory of such a result.",
        )
    return model


def _converted_there_and_back(model: Any) -> str | None:
    """The name of an input that is a result after two conversions between types of floats, and no other operator;
    None where there is none (OpenVINO 2026.4 ends the process for ``x.half().float()``).
    """
    for result in model.get_results():
        node, n_conversions = result.input_value(0).get_node(), 0
        while node.get_type_name() in ("Convert", "Identity"):
            is_conversion = node.get_type_name() == "Convert"
            if is_conversion and not node.get_output_element_type(0).is_real():
                break
            n_conversions += is_conversion
            node = node.input_value(0).get_node()
        if node.get_type_name() == "Parameter" and n_conversions > 1:
            return str(node.get_friendly_name())
    return None


@cache
def _decompositions() -> dict[Any, Any]:
    """The operators that torch takes apart before: all but those that OpenVINO knows whole."""
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose

    known = {*ops_to_not_decompose(), *CONVERSIONS, *RESULTS}
    table: Any = torch.export.default_decompositions()
    own = {operator: way for operator, way in table.items() if operator not in known}
    return {**own, **taken_apart()}


def _outputs_of(module: GraphModule) -> list[Any]:
    """The nodes and numbers that the graph gives, in their order."""
    (given,) = module.graph.output_node().args
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _give_computed(module: GraphModule, values: Iterable[Any]) -> None:
    """Lets the graph give each computed value once: the front end takes neither an input for an
    output nor one output twice.
    """
    output = module.graph.output_node()
    output.args = (tuple(_computed(values)),)
    module.graph.eliminate_dead_code(_has_effect)
    module.recompile()


def _has_effect(node: Node) -> bool:
    """Inputs stay; an assertion is one of the outputs by now."""
    return node.op in ("placeholder", "output")


def _computed(values: Iterable[Any]) -> list[Node]:
    nodes = [value for value in values if isinstance(value, Node) and value.op != "placeholder"]
    return list(dict.fromkeys(nodes))


def _inputs_of(module: GraphModule, packed: Collection[Node]) -> list[Node]:
    """The inputs of the graph, in the order of the plan: torch writes their names in small letters."""
    return [node for node in module.graph.find_nodes(op="placeholder") if node not in packed]


def _shapes_of(module: GraphModule, graph: Graph, own: Collection[Node]) -> list[Any]:
    """The shapes of the inputs, those of the plan with their ranges; ``own`` are inputs of ours."""
    leaves = dict(zip(_inputs_of(module, own), graph.plan.inputs, strict=True))
    placeholders = module.graph.find_nodes(op="placeholder")
    return [
        _shape(node) if node in own else shape_of(graph.plan, leaves[node]) for node in placeholders
    ]


def _shape(node: Node) -> Any:
    """The shape of a value; any size where it is symbolic."""
    from openvino import PartialShape

    sizes = getattr(node.meta["val"], "shape", ())
    return PartialShape([size if isinstance(size, int) else -1 for size in sizes])


def _converted(
    module: GraphModule, shapes: Sequence[Any], given: Sequence[Any]
) -> tuple[dict[Node, Any], dict[Node, Any]]:
    """The inputs of a graph as the front end makes them, of these shapes, and the outputs of OpenVINO for
    them and for what is ``given``.
    """
    from openvino import opset13
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
    from openvino.frontend.pytorch.utils import pt_to_ov_type_map

    placeholders = module.graph.find_nodes(op="placeholder")
    decoder = TorchFXPythonDecoder(
        module,
        input_shapes=list(shapes),
        input_types=[_dtype_of(node) for node in placeholders],
        dynamic_shapes=True,
    )
    # the signature of forward has no inputs of ours
    decoder._input_signature = [node.name for node in placeholders]
    front_end = FrontEndManager().load_by_framework("pytorch")
    for extension in extensions():
        front_end.add_extension(extension)
    model = front_end.convert(front_end.load(decoder))
    made = model.get_parameters()
    if len(made) < len(placeholders):  # the front end may leave out those that nothing reads
        known = {parameter.get_friendly_name(): parameter for parameter in made}
        made = [
            known.get(node.name)
            or opset13.parameter(shape, pt_to_ov_type_map[str(_dtype_of(node))])
            for node, shape in zip(placeholders, shapes, strict=True)
        ]
    parameters = dict(zip(placeholders, made, strict=True))
    results = dict(zip(_computed(given), model.get_results(), strict=True))
    return parameters, {
        **{node: parameter.output(0) for node, parameter in parameters.items()},
        **{node: result.input_value(0) for node, result in results.items()},
    }


def _connect(
    scans: Iterable[TakenScan], parameters: Mapping[Node, Any], ports: dict[Node, Any]
) -> None:
    """Lets all read the results of the scans, which were inputs while the graph was converted."""
    for scan in scans:
        outputs = _outputs_of(scan.body)
        given = [*outputs, *scan.held]
        _give_computed(scan.body, given)
        shapes = [_shape(node) for node in scan.body.graph.find_nodes(op="placeholder")]
        inputs, made = _converted(scan.body, shapes, given)
        results = scan.results_of(
            [_typed(ports, value) for value in scan.given],
            list(inputs.values()),
            [
                *(_typed(made, value) for value in outputs),
                *(_typed(made, condition, torch.bool) for condition in scan.held),
            ],
        )
        for node, port in results.items():
            if node in parameters:
                parameters[node].output(0).replace(port)
            ports[node] = port


def _dtype_of(node: Node) -> torch.dtype:
    """The dtype of a value in the file: an int is an int64, a float a float64."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return value.dtype
    return torch.float64 if isinstance(value, (float, torch.SymFloat)) else torch.int64


def _finished(
    graph: Graph,
    inputs: Sequence[Any],
    ports: dict[Node, Any],
    outputs: Sequence[Any],
    conditions: Sequence[Node],
) -> Any:
    """The model with all its outputs, its names, and what is known of the graph inside."""
    import openvino
    from openvino import opset13

    names = names_of(graph)
    given = [_typed(ports, value) for value in outputs]
    labels = list(names.outputs)
    if conditions:
        held = [_typed(ports, condition, torch.bool) for condition in conditions]
        whole = held[0]
        for other in held[1:]:
            whole = opset13.logical_and(whole, other).output(0)
        given.append(whole)
        labels.append(ASSERTED)
    for parameter, label in zip(inputs, names.inputs, strict=True):
        _call(parameter, label)
    results = [_result(port, label) for port, label in zip(given, labels, strict=True)]
    model = openvino.Model(results, list(inputs), graph.name)
    for key, value in known_of(graph, "openvino").items():
        model.set_rt_info(json.dumps(value), ["onlooker", key])
    return model


def _typed(ports: dict[Node, Any], value: Any, dtype: torch.dtype | None = None) -> Any:
    """A port of the value in the dtype that the graph of torch gives it, which nothing else names."""
    from openvino import opset13
    from openvino.frontend.pytorch.utils import pt_to_ov_type_map

    if not isinstance(value, Node):
        is_float = isinstance(value, float)
        return opset13.constant(value, dtype="float64" if is_float else "int64").output(0)
    port = ports[value]
    wanted = pt_to_ov_type_map[str(dtype or _dtype_of(value))]
    if port.get_element_type() != wanted:
        port = opset13.convert(port, wanted.to_string()).output(0)
    return port


def _result(port: Any, label: str) -> Any:
    """A result of this name. A value that has a name already, an input or another result, is given
    one more: the names of a value go with it everywhere.
    """
    from openvino import opset13, opset16

    if port.get_names():
        port = opset16.identity(port).output(0)
    result = opset13.result(port)
    _call(result, label)
    return result


def _call(node: Any, label: str) -> None:
    node.set_friendly_name(label)
    node.output(0).get_tensor().set_names({label})


def _reason(error: BaseException, module: GraphModule) -> str:
    """Returns the reason that the converter gives: the operators that it does not know, with the
    lines that call them, or its last words.
    """
    text = str(error)
    missing = _MISSING.search(text)
    if missing is None:
        operator = operator_in(text, module.graph)
        return f"{type(error).__name__}: {' '.join(text.split())[-500:]}{operator}"
    names = [name.strip() for name in missing[1].split(",")]
    return f"OpenVINO has no operators for {'; '.join(_placed(name, module) for name in names)}."


def _placed(name: str, module: GraphModule) -> str:
    for node in module.graph.nodes:
        place = place_of_node(node) if str(node.target) == name else ""
        if place:
            return f"{name} (at {place})"
    return name


def _refused(graph: Graph, reason: str, cause: BaseException | None = None) -> ExportError:
    error = ExportError(f"cannot be converted to OpenVINO: {reason}", slug="openvino-refused")
    return refused_graph(graph, error, cause)
