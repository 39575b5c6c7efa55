"""Reads what a node of a graph does beside giving a result: it writes to its arguments, it asserts
that something holds, it draws random numbers, or it runs graphs that do so.

Two graphs of one model are only the same computation if they also do these things alike. A graph
that asserts ``x.sum() > 0`` refuses calls that a graph without the assertion serves. A graph that
draws one tensor more than another leaves other random numbers for whatever is drawn next.

A graph inside a graph (a branch of ``torch.cond``, the body of ``scan``, a block of autocast) is
told from others by its content: operators with their arguments in their order, inner graphs
likewise, and constants by their values. Names of nodes and of modules tell nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from ..pytrees.digest import digest_of
from ..torch_internals.operators import HigherOrderOperator, OpOverload

__all__ = [
    "CASTS",
    "COPIES",
    "asserts",
    "attribute_of",
    "content_of",
    "digest",
    "draws",
    "flat",
    "is_cast_to_another",
    "kind_of",
    "shared_by",
    "tensors_of",
    "written_before_refusal",
    "written_by",
    "written_placeholders",
]

_aten = torch.ops.aten

#: operators that give their first argument, or a copy of it
COPIES = {
    _aten.alias.default,
    _aten.clone.default,
    _aten.contiguous.default,
    _aten.detach.default,
    _aten.detach_.default,
    _aten.lift_fresh.default,
    _aten.lift_fresh_copy.default,
}
CASTS = {
    _aten.to.dtype,
    _aten.to.device,
    _aten.to.dtype_layout,
    _aten._to_copy.default,
    _aten.type_as.default,
}
#: operators that end the call where something does not hold, and what torch's passes make of them
_ASSERTIONS = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_scalar",
        "aten::_functional_assert_async",
        "aten::_functional_assert_scalar",
        "aten::_functional_sym_constrain_range",
        "aten::_functional_sym_constrain_range_for_size",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)
#: the beginnings of the names of operators of torch that refuse some values: ids, indices, matrices
_BY_VALUES = (
    *("item", "index", "_index", "embedding", "_embedding", "gather", "scatter", "take", "put"),
    *("masked_scatter", "one_hot", "bincount", "nll_loss", "cross_entropy", "multinomial"),
    *("repeat_interleave", "linalg", "_linalg", "cholesky", "inverse", "bernoulli", "normal"),
    *("equal", "is_nonzero", "_local_scalar_dense", "searchsorted", "unique", "where.self"),
)
#: arguments of operators by which nothing random is drawn: no dropout, no training
_DROPS = frozenset({"dropout", "dropout_p"})
_TRAINS = frozenset({"train", "training"})


def asserts(node: torch.fx.Node) -> bool:
    """True for a node that may end the call, by itself or in a graph that it runs."""
    if isinstance(node.target, HigherOrderOperator):
        return any(map(asserts, _inner_nodes(node)))
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in _ASSERTIONS


def draws(node: torch.fx.Node) -> bool:
    """True for a node that draws random numbers, by itself or in a graph that it runs.

    An operator with dropout draws nothing where its probability is 0, or where it does not train.
    """
    if isinstance(node.target, HigherOrderOperator):
        return any(map(draws, _inner_nodes(node)))
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = _given(node)
    has_no_dropout = any(given.get(name) == 0 for name in _DROPS)
    does_not_train = any(given.get(name) is False for name in _TRAINS)
    return not (has_no_dropout or does_not_train)


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a node writes to; of a graph inside the graph that writes, all, and of a
    function of Python whose code is not torch's.
    """
    if isinstance(node.target, HigherOrderOperator):
        is_quiet = _runs_function_of_torch(node) or not any(map(_writes, _inner_modules(node)))
        return [] if is_quiet else tensors_of(node)
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or node.target in COPIES:
        return []
    found: list[torch.fx.Node] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            found += [item for item in flat(value) if isinstance(item, torch.fx.Node)]
    return found


def tensors_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments of a node that are no graphs."""
    return [other for other in node.all_input_nodes if other.op != "get_attr"]


def written_before_refusal(program: torch.export.ExportedProgram) -> frozenset[str]:
    """The names of the placeholders that hold what the graph wrote there, where a later node may
    refuse the call.
    """
    written: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    for node, names in _placeholders_written(program):
        if node.op == "call_function" and _may_refuse(node):
            found |= written
            written = frozenset()
        written |= names
    return found


def written_placeholders(program: torch.export.ExportedProgram) -> frozenset[str]:
    """The names of the placeholders whose tensors a graph writes to."""
    return frozenset().union(*(names for _, names in _placeholders_written(program)))


def _placeholders_written(
    program: torch.export.ExportedProgram,
) -> Iterator[tuple[torch.fx.Node, frozenset[str]]]:
    """Each node, and the names of the placeholders in whose memory it writes."""
    places: dict[torch.fx.Node, frozenset[str]] = {}
    for node in program.graph.nodes:
        shared = [] if node.op in ("placeholder", "output", "get_attr") else shared_by(node)
        parts = [] if is_cast_to_another(node) else [places[other] for other in shared]
        own = [frozenset({node.name})] if node.op == "placeholder" else []
        places[node] = frozenset().union(*own, *parts)
        yield node, frozenset().union(*(places[other] for other in written_by(node)))


def _may_refuse(node: torch.fx.Node) -> bool:
    """True for a node that may end a call by its values: sizes are those of the contract."""
    if asserts(node) or isinstance(node.target, HigherOrderOperator):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    namespace, _, name = node.target._schema.name.partition("::")
    return namespace != "aten" or name.startswith(_BY_VALUES)


def attribute_of(module: torch.nn.Module, target: Any) -> Any:
    """What a node reads from the module of its graph, by a dotted name; None where it has none."""
    value: Any = module
    for name in str(target).split("."):
        value = getattr(value, name, None)
    return value


def content_of(value: Any) -> str:
    """A text that two attributes of graphs share only if they hold the same: of a graph what it
    computes, of a tensor its values.
    """
    if isinstance(value, torch.fx.GraphModule):
        return hashlib.sha256(repr(_content_of_graph(value)).encode()).hexdigest()
    return digest(value) if isinstance(value, torch.Tensor) else f"{type(value).__name__} {value!r}"


def digest(value: Any) -> str:
    """The content of a tensor, with its dtype, shape and strides; any other object is only equal to
    itself.
    """
    try:
        return digest_of(value).hex()
    except (TypeError, RuntimeError, NotImplementedError):
        return f"object {id(value)}"


def flat(value: Any) -> list[Any]:
    """The leaves of lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [value]


def _content_of_graph(module: torch.fx.GraphModule) -> list[Any]:
    """One row per node: the operator and its arguments, in which a node is its row."""
    rows: dict[torch.fx.Node, int] = {}
    content: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            row: Any = ("input",)
        elif node.op == "get_attr":
            row = ("attribute", content_of(attribute_of(module, node.target)))
        else:
            args = node.args
            if isinstance(node.target, OpOverload) and asserts(node):
                # the message names symbols of one trace
                args = tuple(value for value in args if not isinstance(value, str))
            row = (str(node.target), _written_out(args, rows), _written_out(node.kwargs, rows))
        rows[node] = len(content)
        content.append(row)
    return content


def _written_out(value: Any, rows: dict[torch.fx.Node, int]) -> Any:
    """An argument as a value whose text tells all that it holds."""
    if isinstance(value, torch.fx.Node):
        return ("row", rows[value])
    if isinstance(value, (list, tuple)):
        return tuple(_written_out(item, rows) for item in value)
    if isinstance(value, dict):
        return tuple((name, _written_out(item, rows)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _written_out((value.start, value.stop, value.step), rows))
    return (type(value).__name__, repr(value))


def _inner_modules(node: torch.fx.Node) -> list[Any]:
    """What a node that runs graphs reads from its module: these graphs, and other attributes."""
    module: Any = node.graph.owning_module
    read = [other for other in node.all_input_nodes if other.op == "get_attr"]
    return [attribute_of(module, other.target) for other in read]


def _inner_nodes(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    for module in _inner_modules(node):
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _runs_function_of_torch(node: torch.fx.Node) -> bool:
    """True for a node that runs a function by its name, as ``torch.vmap`` does with an index."""
    return any(isinstance(value, str) and value.startswith("torch.") for value in node.args)


def _writes(module: Any) -> bool:
    """True for a graph inside a graph that writes to a tensor, or holds what is no graph."""
    if not isinstance(module, torch.fx.GraphModule):
        return True
    return any(
        getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        and node.target not in COPIES
        for inner in module.modules()
        if isinstance(inner, torch.fx.GraphModule)
        for node in inner.graph.nodes
    )


def _given(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of an operator by name, its defaults included."""
    given: dict[str, Any] = {}
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        default = argument.default_value if argument.has_default_value() else None
        value = node.kwargs.get(argument.name, default)
        given[argument.name] = node.args[place] if place < len(node.args) else value
    return given


def shared_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments whose memory the result of a node has, or may have."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # an item of several results, or a graph inside the graph
        return tensors_of(node)
    if (
        node.target is _aten.type_as.default
    ):  # which gives its argument, though its schema has no alias
        return tensors_of(node)[:1]
    if all(result.alias_info is None for result in schema.returns):
        return []
    found: list[torch.fx.Node] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            found += [item for item in flat(value) if isinstance(item, torch.fx.Node)]
    return found


def is_cast_to_another(node: torch.fx.Node) -> bool:
    """True for a cast that copies: dtype or device change."""
    is_cast = node.target in CASTS and isinstance(node.args[0], torch.fx.Node)
    kinds = (kind_of(node.args[0]), kind_of(node)) if is_cast else (None, None)
    return None not in kinds and kinds[0] != kinds[1]


def kind_of(node: Any) -> tuple[Any, ...] | None:
    """Dtype, device and layout of a tensor; None where they are not known."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (value.dtype, value.device, value.layout) if isinstance(value, torch.Tensor) else None
