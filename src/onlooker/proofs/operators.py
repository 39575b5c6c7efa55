"""The effects of an operator beside its result: it writes to arguments, its result is in the memory
of an argument, it asserts, it draws random numbers, or it refuses some values.

The schema of an operator says most of it: ``add_(Tensor(a!) self, ...) -> Tensor(a!)`` writes to its
first argument and gives it back, and ``view(Tensor(a) self, ...) -> Tensor(a)`` gives other sizes of the
same memory. Of composite operators it says too little: ``type_as(Tensor self, Tensor other) -> Tensor``
gives ``self`` where the types are equal. These stand in a table below.

A node of a graph does what its operator does. A node that runs graphs (a branch of ``torch.cond``, the
body of ``scan``, a block of autocast) does what they do.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from ..pytrees.nodes import SYMBOLIC
from ..torch_internals.operators import DispatchKey, HigherOrderOperator, OpOverload

__all__ = [
    "CASTS",
    "COPIES",
    "DROPOUTS",
    "FATAL_IF_NOT_FINITE",
    "MOVES",
    "Facts",
    "asserts",
    "attribute_of",
    "call_draws",
    "draws",
    "ends_process",
    "facts_of",
    "flat",
    "has_effects",
    "is_cast_to_another",
    "is_view",
    "origin_of",
    "returned_placeholders",
    "shared_by",
    "written_before_refusal",
    "written_by",
    "written_placeholders",
    "written_results",
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
#: operators that end the process where their input is NaN or infinite: LAPACK reads beyond its memory
FATAL_IF_NOT_FINITE = {
    _aten._linalg_eigvals.default,
    _aten.linalg_eig.default,
    _aten.linalg_eigvals.default,
}
#: ``embedding_bag``: its kernels for ``mode="max"`` and for a ``padding_idx`` read beyond their memory where there is
#: no bag
_OF_BAGS = {_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default}
_OFFSETS_OF_BAGS, _MODE_OF_BAGS, _PADDING_OF_BAGS = 2, 4, 8
_LARGEST_OF_BAGS = 2
#: the names of operators that put all elements of a tensor elsewhere, or give them another dtype, and change none
MOVES = frozenset(
    {
        *(
            "_to_copy",
            "_unsafe_view",
            "alias",
            "clone",
            "contiguous",
            "detach",
            "expand",
            "flatten",
        ),
        *("lift_fresh_copy", "permute", "reshape", "squeeze", "t", "to", "transpose", "unflatten"),
        *("unsqueeze", "view"),
    }
)
DROPOUTS = {
    _aten.dropout.default,
    _aten.alpha_dropout.default,
    _aten.feature_dropout.default,
    _aten.feature_alpha_dropout.default,
}
#: composite operators that may give an argument, or a view of it, though their schema does not say so:
#: the place of that argument
_MAY_GIVE = {
    **dict.fromkeys(("type_as", "dropout", "alpha_dropout", "feature_dropout"), 0),
    **dict.fromkeys(("feature_alpha_dropout", "sum_to_size", "to_dense", "conj_physical"), 0),
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors"), 0),
    **dict.fromkeys(("meshgrid", "cartesian_prod", "chain_matmul", "unsafe_chunk"), 0),
    "einsum": 1,
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
    *("equal", "is_nonzero", "_local_scalar_dense", "searchsorted", "unique"),
)
#: arguments of operators by which nothing random is drawn: no dropout, no training
_DROPS = frozenset({"dropout", "dropout_p"})
_TRAINS = frozenset({"train", "training"})


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an operator that comparisons need; arguments are told by their places in the
    schema.

    ``written`` are those that it writes to, ``shared`` those in whose memory a result is, or may be:
    ``is_view`` where it is there for certain. ``gives_written`` is True where the result is the
    argument that was written to. ``is_pure`` is True for an operator of torch that only computes a
    result, whose shape hangs on the shapes of its arguments alone.

    >>> facts_of(torch.ops.aten.add_.Tensor).written, facts_of(torch.ops.aten.view.default).is_view
    ((0,), True)
    """

    arguments: tuple[str, ...] = ()
    written: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    is_view: bool = False
    gives_written: bool = False
    asserts: bool = False
    draws: bool = False
    refuses_values: bool = False
    is_pure: bool = False

    def at(
        self, places: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """The leaves of the arguments at some places of the schema."""
        given = [args[p] if p < len(args) else kwargs.get(self.arguments[p]) for p in places]
        return flat(given)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names in the schema, without defaults."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}


_NOTHING = Facts()


def _is_composite(target: OpOverload) -> bool:
    """True for an operator that calls others; one of TorchScript, as prim::device, is unknown to the dispatcher."""
    try:
        return bool(target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))
    except RuntimeError:
        return False


def ends_process(func: Any, args: Sequence[Any]) -> bool:
    """True for a call of an operator whose kernel ends the process: ``embedding_bag`` of no bag."""
    if func not in _OF_BAGS or args[_OFFSETS_OF_BAGS].numel() > 0:
        return False
    padding = args[_PADDING_OF_BAGS] if len(args) > _PADDING_OF_BAGS else -1
    return bool(args[_MODE_OF_BAGS] == _LARGEST_OF_BAGS or padding >= 0)


@functools.cache
def facts_of(target: Any) -> Facts:
    """Returns the facts of an operator; nothing is known of what is no operator."""
    if not isinstance(target, OpOverload):
        return _NOTHING
    schema = target._schema
    namespace, _, name = schema.name.partition("::")
    aliases = [argument.alias_info for argument in schema.arguments]
    results = [result.alias_info for result in schema.returns if result.alias_info is not None]
    written = _places(alias is not None and alias.is_write for alias in aliases)
    if target in COPIES:  # detach_() writes to no number
        written = ()
    shared = _places(alias is not None for alias in aliases) if results else ()
    if namespace == "aten" and name in _MAY_GIVE:
        shared = (_MAY_GIVE[name],)
    is_composite = _is_composite(target)
    is_by_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return Facts(
        tuple(argument.name for argument in schema.arguments),
        written,
        shared,
        is_view=bool(results) and not is_composite,
        gives_written=bool(written)
        and len(schema.returns) == len(results) == 1
        and results[0].is_write,
        asserts=schema.name in _ASSERTIONS,
        draws=torch.Tag.nondeterministic_seeded in target.tags,
        refuses_values=namespace != "aten" or name.startswith(_BY_VALUES),
        is_pure=namespace in ("aten", "prims")
        and not schema.is_mutable
        and is_by_values.isdisjoint(target.tags)
        and target is not _aten.lift_fresh.default,
    )


def _places(flags: Any) -> tuple[int, ...]:
    return tuple(place for place, flag in enumerate(flags) if flag)


# -- what a node of a graph does


def asserts(node: Node) -> bool:
    """True for a node that may end the call, by itself or in a graph that it runs."""
    return facts_of(node.target).asserts or any(map(asserts, _inner_nodes(node)))


def draws(node: Node) -> bool:
    """True for a node that draws random numbers, by itself or in a graph that it runs.

    An operator with dropout draws nothing where its probability is 0, or where it does not train.
    """
    if not facts_of(node.target).draws:
        return any(map(draws, _inner_nodes(node)))
    return call_draws(node.target, node.args, node.kwargs)


def call_draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a call of an operator that draws random numbers."""
    if not facts_of(func).draws:
        return False
    given = _given(func, args, kwargs)
    has_no_dropout = any(given.get(name) == 0 for name in _DROPS)
    return not (has_no_dropout or _does_not_train(given))


def _does_not_train(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is False for name in _TRAINS)


#: norms: the fourth and the fifth argument are the running statistics, the sixth says whether a batch changes them
_NORMS = frozenset({torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default})


def written_by(node: Node) -> list[Node]:
    """The arguments that a node writes to; of a graph inside the graph that writes, all, and of a
    function of Python whose code is not torch's. Norms write their running statistics, which the schema hides.
    """
    if isinstance(node.target, HigherOrderOperator):
        is_quiet = _runs_function_of_torch(node) or not any(map(_writes, _inner_modules(node)))
        return [] if is_quiet else _tensors_of(node)
    if node.target in _NORMS and len(node.args) > 5:
        mean, spread, is_of_batch = node.args[3:6]
        return _nodes_among([mean, spread]) if is_of_batch else []
    facts = facts_of(node.target)
    return _nodes_among(facts.at(facts.written, node.args, node.kwargs))


def shared_by(node: Node) -> list[Node]:
    """The arguments whose memory the result of a node has, or may have."""
    if not isinstance(node.target, OpOverload):  # a part of a result, or a graph inside the graph
        return _tensors_of(node)
    facts = facts_of(node.target)
    return _nodes_among(facts.at(facts.shared, node.args, node.kwargs))


def origin_of(value: Any) -> Any:
    """The node whose memory a tensor may be in."""
    while isinstance(value, Node) and value.op == "call_function" and (shared := shared_by(value)):
        value = shared[0]
    return value


def is_view(node: Node) -> bool:
    """True where the result is in the memory of its argument for certain: a composite operator
    may copy, but for a cast to what the argument is.
    """
    is_part = node.target is operator.getitem
    drops_nothing = node.target in DROPOUTS and not draws(node)
    is_given_back = drops_nothing or _is_cast_to_the_same(node)
    return is_part or is_given_back or facts_of(node.target).is_view


def has_effects(node: Node) -> bool:
    """True for a node that writes, asserts or draws random numbers."""
    return asserts(node) or draws(node) or bool(written_by(node))


def is_cast_to_another(node: Node) -> bool:
    """True for a cast that copies: dtype or device change."""
    is_cast = node.target in CASTS and isinstance(node.args[0], Node)
    kinds = (_kind_of(node.args[0]), _kind_of(node)) if is_cast else (None, None)
    return None not in kinds and kinds[0] != kinds[1]


def _is_cast_to_the_same(node: Node) -> bool:
    """True for a cast that gives its argument itself: neither dtype nor device change, and nobody
    asks for a copy or for an order of its elements.
    """
    if node.target not in CASTS or node.target is _aten._to_copy.default:
        return False
    given, kind = _given(node.target, node.args, node.kwargs), _kind_of(node)
    is_plain = not given.get("copy") and given.get("memory_format") is None
    return is_plain and kind is not None and _kind_of(node.args[0]) == kind


def _kind_of(node: Any) -> tuple[Any, ...] | None:
    """Dtype, device and layout of a tensor; None where they are not known."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (value.dtype, value.device, value.layout) if isinstance(value, torch.Tensor) else None


def _given(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name, its defaults included."""
    given: dict[str, Any] = {}
    for place, argument in enumerate(func._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        value = kwargs.get(argument.name, default)
        given[argument.name] = args[place] if place < len(args) else value
    return given


def _tensors_of(node: Node) -> list[Node]:
    """The arguments of a node that are neither graphs nor sizes."""
    return [
        other
        for other in node.all_input_nodes
        if other.op != "get_attr" and not isinstance(other.meta.get("val"), SYMBOLIC)
    ]


def _nodes_among(values: Sequence[Any]) -> list[Node]:
    return [value for value in values if isinstance(value, Node)]


# -- what a program does to its inputs


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


def returned_placeholders(program: torch.export.ExportedProgram) -> frozenset[str]:
    """The names of the placeholders whose tensors, or parts of them, may be results of a graph."""
    sources = map(origin_of, program.graph.output_node().args[0])
    return frozenset(
        one.name for one in sources if isinstance(one, Node) and one.op == "placeholder"
    )


def written_results(program: torch.export.ExportedProgram) -> tuple[tuple[int, int], ...]:
    """The results that are an input to which the graph writes: for each its place among the results, and
    that of the input.
    """
    signature = program.graph_signature
    inputs = {name: number for number, name in enumerate(signature.user_inputs)}
    written = written_placeholders(program)
    results = program.graph.output_node().args[0]
    pairs = zip(signature.output_specs, results, strict=True)
    own = [node for spec, node in pairs if spec.kind is OutputKind.USER_OUTPUT]
    found = []
    for place, node in enumerate(own):
        source = _written_tensor(node) if isinstance(node, Node) else None
        if source is not None and source.name in written and source.name in inputs:
            found.append((place, inputs[source.name]))
    return tuple(found)


def _written_tensor(node: Node) -> Node:
    """The placeholder that operators in place give back, or the node itself: of the shape that it began with."""
    source = node
    while isinstance(source.target, OpOverload):
        returned = source.target._schema.returns
        is_in_place = len(returned) == 1 and getattr(returned[0].alias_info, "is_write", False)
        if not is_in_place or not isinstance(source.args[0], Node):
            return source
        source = source.args[0]
    shapes = [str(getattr(one.meta.get("val"), "shape", None)) for one in (node, source)]
    return source if shapes[0] == shapes[1] else node


def _placeholders_written(
    program: torch.export.ExportedProgram,
) -> Iterator[tuple[Node, frozenset[str]]]:
    """Each node, and the names of the placeholders in whose memory it writes."""
    places: dict[Node, frozenset[str]] = {}
    for node in program.graph.nodes:
        shared = [] if node.op in ("placeholder", "output", "get_attr") else shared_by(node)
        parts = [] if is_cast_to_another(node) else [places[other] for other in shared]
        own = [frozenset({node.name})] if node.op == "placeholder" else []
        places[node] = frozenset().union(*own, *parts)
        yield node, frozenset().union(*(places[other] for other in written_by(node)))


def _may_refuse(node: Node) -> bool:
    """True for a node that may end a call by its values: sizes are those of the contract."""
    runs_graphs = isinstance(node.target, HigherOrderOperator)
    return asserts(node) or runs_graphs or facts_of(node.target).refuses_values


# -- graphs inside of a graph


def attribute_of(module: torch.nn.Module, target: Any) -> Any:
    """Returns the attribute that a node reads from the module of its graph, by a dotted name; None
    where it has none.
    """
    value: Any = module
    for name in str(target).split("."):
        value = getattr(value, name, None)
    return value


def flat(value: Any) -> list[Any]:
    """The leaves of lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [value]


def _inner_modules(node: Node) -> list[Any]:
    """Returns the attributes that a node that runs graphs reads from its module: these graphs, and
    others.
    """
    module: Any = node.graph.owning_module
    read = [other for other in node.all_input_nodes if other.op == "get_attr"]
    return [attribute_of(module, other.target) for other in read]


def _inner_nodes(node: Node) -> Iterator[Node]:
    """The nodes of the graphs that a node runs."""
    for module in _inner_modules(node) if isinstance(node.target, HigherOrderOperator) else ():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _runs_function_of_torch(node: Node) -> bool:
    """True for a node that runs a function by its name, as ``torch.vmap`` does with an index."""
    return any(isinstance(value, str) and value.startswith("torch.") for value in node.args)


def _writes(module: Any) -> bool:
    """True for a graph inside a graph that writes to a tensor, or holds what is no graph."""
    if not isinstance(module, GraphModule):
        return True
    inner = [one for one in module.modules() if isinstance(one, GraphModule)]
    return any(facts_of(node.target).written for one in inner for node in one.graph.nodes)
