"""The settings of each runtime as text, from clusters or buckets of calls.

The parts of this file, in their order:

    clusters     the least, the usual and the greatest sizes of groups of calls, such that a graph takes
                 all three
    marks        for torch.compile: a function that marks the arguments of one call, and the same for
                 those who mark by name
    runtimes     the settings of each of them

A box of sizes has corners that no call had. ``batch <= 8`` and ``length <= 2048`` may both be true of every
call where ``batch * length <= 4096``: the corner (8, 2048) is no call. A group whose corners are outside of
the contract is divided until they are inside; one of a single size always is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..core.errors import UsageError
from ..core.path import Name, Path
from ..core.plan import LeafPlan
from ..core.support.kinds import is_int
from ..infer.marks import marks_of
from .buckets import Bucket, best_cuts, buckets_of, share_of_padding
from .specs import spec_lines
from .traffic import Row, Served

__all__ = ["EMITTERS", "Emitted", "clusters_of", "emitted"]


# -- clusters
@dataclass(frozen=True, slots=True)
class Cluster:
    """Sizes in the order of the symbols: the least, the most frequent, and the greatest."""

    low: tuple[int, ...]
    best: tuple[int, ...]
    high: tuple[int, ...]
    calls: int

    @property
    def corners(self) -> tuple[tuple[int, ...], ...]:
        """All three."""
        return (self.low, self.best, self.high)


def clusters_of(served: Served, wanted: int) -> list[Cluster]:
    """So many groups of the calls of one graph, or more where fewer have corners outside of its
    contract; fewer where there are not so many sizes. None for a graph without calls.
    """
    parts = [list(served.rows)] if served.rows else []
    while True:
        broken = [part for part in parts if not _is_valid(served, part)]
        divisible = [part for part in parts if len(part) > 1]
        if broken:
            chosen = broken[0]
        elif len(parts) < wanted and divisible:
            chosen = max(divisible, key=lambda part: _waste(served, part))
        else:
            break
        parts.remove(chosen)
        parts += _divided(served, chosen)
    found = [_cluster(part) for part in parts]
    return sorted(found, key=lambda cluster: (cluster.high, cluster.low))


def _cluster(part: Sequence[Row]) -> Cluster:
    rows = [row for row, _ in part]
    low = tuple(map(min, zip(*rows, strict=True)))
    high = tuple(map(max, zip(*rows, strict=True)))
    best = max(part, key=lambda item: (item[1], item[0]))[0]
    return Cluster(low, best, high, sum(count for _, count in part))


def _is_valid(served: Served, part: Sequence[Row]) -> bool:
    """True where a graph takes both corners, and no axis of any call lies outside of theirs: an axis
    such as ``4096 - past`` falls where ``past`` grows.
    """
    cluster = _cluster(part)
    if not (served.takes(cluster.low) and served.takes(cluster.high)):
        return False
    low, high = served.shapes(cluster.low), served.shapes(cluster.high)
    return all(
        least <= size <= most
        for row, _ in part
        for bounds in zip(low, served.shapes(row), high, strict=True)
        for least, size, most in zip(*bounds, strict=True)
    )


def _waste(served: Served, part: Sequence[Row]) -> int:
    """The work that the calls would cost more if each had the greatest sizes."""
    most = served.work(_cluster(part).high)
    return sum(count * max(0, most - served.work(row)) for row, count in part)


def _divided(served: Served, part: Sequence[Row]) -> list[list[Row]]:
    """Two groups, divided by the size of one symbol such that the least is wasted."""
    choices: list[list[list[Row]]] = []
    for place in range(len(served.names)):
        values = sorted({row[place] for row, _ in part})
        step = max(1, len(values) // 32)
        for value in values[1::step]:
            below = [item for item in part if item[0][place] < value]
            above = [item for item in part if item[0][place] >= value]
            choices.append([below, above])
    return min(choices, key=lambda pair: sum(_waste(served, side) for side in pair))


# -- marks
def marking_lines(graphs: Sequence[Served]) -> list[str]:
    """A function that marks a call, the sources for ``TORCH_COMPILE_DYNAMIC_SOURCES``, and what
    vLLM's ``support_torch_compile`` takes.
    """
    leaves: dict[Path, dict[int, str]] = {}
    for mark in marks_of([served.plan for served in graphs]):
        leaves.setdefault(mark.path, {})[mark.dim] = mark.shape_id
    roots = list(dict.fromkeys(path.root for path in leaves))
    always = [root for root in roots if all(_has(served, root) for served in graphs)]
    optional = [root for root in roots if root not in always]
    arguments = ", ".join([*always, *(f"{root}=None" for root in optional)])
    lines = ["from torch._dynamo import maybe_mark_dynamic", "", "", f"def mark({arguments}, **_):"]
    lines.append('    """Marks the sizes that change, before compiled(...) is called."""')
    for root in roots:
        indent = "    "
        if root in optional:
            lines.append(f"    if {root} is not None:")
            indent = "        "
        for path, sizes in leaves.items():
            if path.root == root:
                lines += [
                    f"{indent}maybe_mark_dynamic({path.code()}, {dim})  # {size}"
                    for dim, size in sizes.items()
                ]
    sources = ",".join(_source(path) for path in leaves)
    lines += ["", "", "# the same without code, for all sizes of these arguments:"]
    lines.append(f'# TORCH_COMPILE_DYNAMIC_SOURCES="{sources}"')
    dims = {path.root: sizes for path, sizes in leaves.items() if len(path.entries) == 1}
    lines.append(f"# vLLM: @support_torch_compile(dynamic_arg_dims={dims})")
    return lines


def _has(served: Served, root: str) -> bool:
    """True where a call of a graph brings the argument."""
    leaves = (leaf for leaf in served.plan.leaves if leaf.path.root == root)
    return any(leaf.fill is None for leaf in leaves)


def _source(path: Path) -> str:
    """The name that torch.compile gives to an argument: ``L['past'].layers[0].keys``."""
    rest = Path(path.entries[1:]).code()
    first = path.entries[0]
    return f"L['{first.name}']{rest}" if isinstance(first, Name) else path.code()


#: the types of Triton, by dtype of torch
_TRITON = {
    **{"torch.float32": "TYPE_FP32", "torch.float64": "TYPE_FP64", "torch.float16": "TYPE_FP16"},
    **{"torch.bfloat16": "TYPE_BF16", "torch.bool": "TYPE_BOOL", "torch.uint8": "TYPE_UINT8"},
    **{"torch.int64": "TYPE_INT64", "torch.int32": "TYPE_INT32", "torch.int16": "TYPE_INT16"},
    "torch.int8": "TYPE_INT8",
}


#: the name of a graph, and sizes by symbol that it takes
Corner = tuple[str, tuple[tuple[str, int], ...]]


# -- runtimes


@dataclass(frozen=True, slots=True)
class Emitted:
    """The settings of one runtime. ``corners`` are the sizes that stand in them, by symbol, with
    the name of their graph; ``notes`` say what is left out.
    """

    kind: str
    text: str
    corners: tuple[Corner, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


#: the lines of one graph, for the groups of its calls
Writer = Callable[[Served, Sequence["Cluster"]], list[str]]
#: the settings of some graphs, in so many profiles or buckets of each
Emitter = Callable[[Sequence[Served], int], Emitted]


def _corners(served: Served, rows: Sequence[tuple[int, ...]]) -> list[Corner]:
    return [(served.plan.name, tuple(served.sizes(row).items())) for row in dict.fromkeys(rows)]


def _of_clusters(
    kind: str,
    graphs: Sequence[Served],
    count: int,
    written: Writer,
) -> Emitted:
    """One part of text for each graph that has calls."""
    lines: list[str] = []
    corners: list[Corner] = []
    notes: list[str] = []
    for served in graphs:
        clusters = clusters_of(served, count)
        if not clusters:
            notes.append(f"{served.plan.name} had no call, and has no profile")
            continue
        if len(clusters) > count:
            notes.append(
                f"{served.plan.name} has {len(clusters)} profiles: corners of fewer are sizes that"
                " it does not take"
            )
        lines += [f"# {served.plan.name}", *written(served, clusters)]
        corners += _corners(served, [c for cluster in clusters for c in cluster.corners])
    return Emitted(kind, "\n".join(lines) + "\n", tuple(corners), tuple(notes))


def tensorrt(served: Served, clusters: Sequence[Cluster]) -> list[str]:
    """``torch_tensorrt.Input`` for each input, with one profile or several."""
    lines = ["inputs = ["]
    for leaf, name in zip(served.plan.inputs, served.inputs, strict=True):
        if not leaf.is_tensor:
            lines.append(f"    # {name} is a number: pass it as an example")
            continue
        profiles = [_shapes_of(served, leaf, cluster) for cluster in clusters]
        if len(profiles) == 1:
            given = ", ".join(f"{key}={value}" for key, value in profiles[0].items())
        else:
            each = (", ".join(f'"{k}": {v}' for k, v in one.items()) for one in profiles)
            given = f"profiles=[{', '.join(f'{{{text}}}' for text in each)}]"
        lines.append(f"    torch_tensorrt.Input({given}, dtype={leaf.dtype}),  # {name}")
    return [*lines, "]"]


def _shapes_of(served: Served, leaf: LeafPlan, cluster: Cluster) -> dict[str, str]:
    names = ("min_shape", "opt_shape", "max_shape")
    shapes = (str(tuple(served.shape(leaf, corner))) for corner in cluster.corners)
    return dict(zip(names, shapes, strict=True))


def _by_name(served: Served, corner: tuple[int, ...]) -> str:
    """``x:2x3,mask:2x5``, as trtexec and ONNX Runtime read it; of a number its value."""
    parts: list[str] = []
    for name, shape in zip(served.inputs, served.shapes(corner), strict=True):
        if shape:
            parts.append(f"{name}:{'x'.join(map(str, shape))}")
    return ",".join(parts)


def trtexec(served: Served, clusters: Sequence[Cluster]) -> list[str]:
    """The flags of trtexec for the ONNX file of each graph."""
    lines = [f"trtexec --onnx={served.plan.name}.onnx"]
    for number, cluster in enumerate(clusters):
        lines += [f"  --profile={number}"] if len(clusters) > 1 else []
        for flag, corner in zip(("min", "opt", "max"), cluster.corners, strict=True):
            lines.append(f"  --{flag}Shapes={_by_name(served, corner)}")
    return [" \\\n".join(lines)]


def ort_trt(served: Served, clusters: Sequence[Cluster]) -> list[str]:
    """Options of the TensorRT provider of ONNX Runtime; an input has a shape for each profile."""
    options = {
        f"trt_profile_{name}_shapes": ",".join(
            _by_name(served, cluster.corners[place]) for cluster in clusters
        )
        for place, name in enumerate(("min", "opt", "max"))
    }
    return [f"provider_options = {json.dumps(options, indent=4)}"]


def openvino(served: Served, clusters: Sequence[Cluster]) -> list[str]:
    """``model.reshape`` with a PartialShape for each input; a model of its own for each profile."""
    lines = []
    for cluster in clusters:
        lines.append("model.reshape({")
        for leaf, name in zip(served.plan.inputs, served.inputs, strict=True):
            if leaf.is_tensor:
                low, high = served.shape(leaf, cluster.low), served.shape(leaf, cluster.high)
                sizes = (str(a) if a == b else f"{a}..{b}" for a, b in zip(low, high, strict=True))
                text = f"[{','.join(sizes)}]"
                lines.append(f'    "{name}": openvino.PartialShape("{text}"),')
        lines.append("})")
    return lines


def executorch(served: Served, clusters: Sequence[Cluster]) -> list[str]:
    """Bounds of each symbol, as ``program.to`` takes them, and the Dims of torch.export."""
    lines = []
    for cluster in clusters:
        bounds = zip(served.plan.symbols, cluster.low, cluster.high, strict=True)
        ranges = []
        for symbol, low, high in bounds:
            ranges.append(f'"{symbol.name}": ({low}, {high})')
            step = symbol.step
            if low == high:
                lines.append(f"{symbol.name} = {low}")
            elif step > 1:
                name = f"{symbol.name}_of_{step}"
                dim = f'torch.export.Dim("{name}", min={low // step}, max={high // step})'
                lines.append(f"{symbol.name} = {step} * {dim}")
            else:
                dim = f'torch.export.Dim("{symbol.name}", min={low}, max={high})'
                lines.append(f"{symbol.name} = {dim}")
        lines.append(f'program.to("executorch", ranges={{{", ".join(ranges)}}})')
    return lines


def vllm(graphs: Sequence[Served], count: int) -> Emitted:
    """Limits and sizes of a server of vLLM, from the first input of ids of each graph: a tensor of
    ints whose two dimensions change.
    """
    rows = [(served, *found) for served in graphs for found in _tokens(served)]
    if not rows:
        return Emitted("vllm", "", (), ("no graph has a tensor of ints with two changing sizes",))
    sequences = max(batch for _, batch, _, _, _ in rows)
    longest = max(whole for _, _, _, whole, _ in rows)
    batched = max(batch * length for _, batch, length, _, _ in rows)
    steps = sorted({batch for _, batch, length, _, _ in rows if length == 1})
    lines = [
        f"max-model-len: {longest}",
        f"max-num-seqs: {sequences}",
        f"max-num-batched-tokens: {max(batched, longest)}",
    ]
    if steps:
        counts: dict[int, int] = {}
        for _, batch, length, _, calls in rows:
            if length == 1:
                counts[batch] = counts.get(batch, 0) + calls
        places = best_sizes(counts, count)
        sizes = json.dumps({"cudagraph_capture_sizes": places})
        lines.append(f"compilation-config: '{sizes}'")
    corners = [c for served in graphs for c in _corners(served, [row for row, _ in served.rows])]
    return Emitted("vllm", "\n".join(lines) + "\n", tuple(corners))


def best_sizes(counts: dict[int, int], count: int) -> list[int]:
    """At most ``count`` of some sizes, to which calls are padded with the least padding."""
    sizes = sorted(counts)
    return [sizes[place] for place in best_cuts([(s, counts[s]) for s in sizes], count)]


def _tokens(served: Served) -> list[tuple[int, int, int, int]]:
    """Per size of the traffic: sequences, new tokens of each, the longest axis that holds them,
    and the calls.
    """
    for leaf in served.plan.inputs:
        is_ids = leaf.dtype in ("torch.int64", "torch.int32") and len(leaf.shape) == 2
        if not is_ids or not all(e.is_symbol for e in leaf.shape):
            continue
        name = str(leaf.shape[1])
        holding = [e for one in served.plan.inputs for e in one.shape if name in e.symbols]
        found = []
        for row, calls in served.rows:
            sizes, (batch, length) = served.sizes(row), served.shape(leaf, row)
            longest = max(expression.evaluate(sizes) for expression in holding)
            found.append((batch, length, longest, calls))
        return found
    return []


def triton(graphs: Sequence[Served], count: int) -> Emitted:
    """``config.pbtxt`` of the ONNX file of each graph.

    Triton batches requests only where all inputs and outputs begin with the same symbol, and
    nothing else depends on it.
    """

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
        batch = _batch_symbol(served)
        place = served.names.index(batch) if batch else 0
        most = max(cluster.high[place] for cluster in clusters) if batch else 0
        lines = [f'name: "{served.plan.name}"', 'platform: "onnxruntime_onnx"']
        lines.append(f"max_batch_size: {most}")
        skipped = 1 if batch else 0
        for leaf, name in zip(served.plan.inputs, served.inputs, strict=True):
            dims = [str(e) if e.is_constant else "-1" for e in leaf.shape[skipped:]]
            lines += _triton_tensor("input", name, leaf.dtype or "torch.int64", dims)
        for name, dtype, rank in served.outputs:
            lines += _triton_tensor("output", name, dtype, ["-1"] * (rank - skipped))
        if batch:
            counts = served.traffic.counts(batch)
            sizes = best_sizes({s: c for s, c in counts.items() if s <= most}, max(count, 4))
            listed = ", ".join(map(str, sizes))
            lines.append(f"dynamic_batching {{ preferred_batch_size: [ {listed} ] }}")
        return lines

    return _of_clusters("triton", graphs, count, written)


def triton_python(graphs: Sequence[Served], count: int) -> Emitted:
    """``config.pbtxt`` of a model in Python that calls the whole program: its inputs are the tensors
    of all graphs, and those that some graph does without are optional.

    An axis is a number where every graph has this number there. Requests are not joined to batches:
    each is a call, and the program chooses its graph.
    """
    inputs: dict[str, list[LeafPlan]] = {}
    outputs: dict[str, list[tuple[str, int]]] = {}
    for served in graphs:
        for name, leaf in zip(served.inputs, served.plan.inputs, strict=True):
            inputs.setdefault(name, []).append(leaf)
        for name, dtype, rank in served.outputs:
            outputs.setdefault(name, []).append((dtype, rank))
    lines, notes = ['backend: "python"', "max_batch_size: 0"], []
    for name, leaves in inputs.items():
        ranks = {len(leaf.shape) for leaf in leaves}
        if len(ranks) > 1:
            notes.append(f"{name} has other dimensions in each graph, and Triton wants one number")
        if not all(leaf.is_tensor for leaf in leaves):
            notes.append(f"{name} is a number: pass it to the program as one")
        if any(len(leaf.path.entries) > 1 for leaf in leaves):
            notes.append(f"{name} is a part of {leaves[0].path.root}, which has to be built of it")
        sizes = zip(*(leaf.shape for leaf in leaves), strict=False)
        dims = [str(s[0]) if s[0].is_constant and len({*s}) == 1 else "-1" for s in sizes]
        more = " optional: true" if len(leaves) < len(graphs) else ""
        lines += _triton_tensor("input", name, leaves[0].dtype or "torch.int64", dims, more)
    for name, kinds in outputs.items():
        dtype, rank = kinds[0]
        if len({*kinds}) > 1:
            notes.append(f"{name} has another dtype or other dimensions in each graph")
        lines += _triton_tensor("output", name, dtype, ["-1"] * rank)
    return Emitted("triton-python", "\n".join(lines) + "\n", (), tuple(notes))


def _triton_tensor(
    kind: str, name: str, dtype: str, dims: Sequence[str], more: str = ""
) -> list[str]:
    """One tensor; one without dimensions is reshaped from one with a single element."""
    reshape = "" if dims else " reshape: { shape: [ ] }"
    listed = ", ".join(dims or ["1"])
    type_ = _TRITON.get(dtype, "TYPE_INVALID")
    return [f'{kind} [ {{ name: "{name}" data_type: {type_} dims: [ {listed} ]{reshape}{more} }} ]']


def _batch_symbol(served: Served) -> str:
    """The symbol that all inputs begin with, and that nothing else has; empty for none."""
    leaves = served.plan.inputs
    if not leaves or not all(leaf.is_tensor and leaf.shape for leaf in leaves):
        return ""
    first = {str(leaf.shape[0]) for leaf in leaves if leaf.shape[0].is_symbol}
    if len(first) != 1 or not all(leaf.shape[0].is_symbol for leaf in leaves):
        return ""
    (name,) = first
    is_elsewhere = any(name in e.symbols for leaf in leaves for e in leaf.shape[1:])
    ranks = [rank for _, _, rank in served.outputs]
    return "" if is_elsewhere or not all(ranks) else name


def buckets(graphs: Sequence[Served], count: int) -> Emitted:
    """Sizes to pad to, with what is wasted."""
    lines: list[str] = []
    corners: list[Corner] = []
    for served in graphs:
        found = buckets_of(served, count)
        if not found:
            continue
        lines.append(
            f"{served.plan.name}: {len(found)} buckets, {100 * share_of_padding(found):.1f} % of"
            " the work is padding"
        )
        lines += [_bucket_line(served, bucket) for bucket in found]
        corners += _corners(served, [bucket.sizes for bucket in found])
    return Emitted("buckets", "\n".join(lines) + "\n", tuple(corners))


def _bucket_line(served: Served, bucket: Bucket) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in served.sizes(bucket.sizes).items())
    share = share_of_padding([bucket])
    return f"  {sizes}: {bucket.calls} calls, {100 * share:.1f} % padding"


def marks(graphs: Sequence[Served], count: int) -> Emitted:
    """Marks for torch.compile, of the axes that change in some graph; of a single graph the sizes as a
    ``ShapesSpec`` too.
    """
    lines = marking_lines(graphs)
    if len(graphs) == 1:
        lines += spec_lines(graphs[0])
    return Emitted("compile", "\n".join(lines) + "\n")


#: the runtimes with profiles by their names, each with what writes those of one graph
PROFILES: dict[str, Writer] = {
    "tensorrt": tensorrt,
    "trtexec": trtexec,
    "ort-trt": ort_trt,
    "openvino": openvino,
    "executorch": executorch,
}
#: every emitter by its name
EMITTERS: dict[str, Emitter] = {
    **{kind: partial(_of_clusters, kind, written=written) for kind, written in PROFILES.items()},
    "vllm": vllm,
    "triton": triton,
    "triton-python": triton_python,
    "buckets": buckets,
    "compile": marks,
}

#: how many profiles, or buckets, where nobody says
_PROFILES, _BUCKETS = 1, 8


def emitted(kind: str, graphs: Sequence[Served], unserved: int, count: int | None) -> Emitted:
    """The settings of one kind.

    :raises UsageError: ``unknown-emitter``, ``bad-count``
    """
    if kind not in EMITTERS:
        raise UsageError(
            f"Nothing is emitted for {kind!r}.",
            slug="unknown-emitter",
            hint=f"There are {', '.join(EMITTERS)}.",
        )
    if not (count is None or (is_int(count) and count >= 1)):
        raise UsageError(
            f"count is {count!r}.",
            slug="bad-count",
            hint="Give the number of profiles or buckets, 1 or more.",
        )
    usual = _BUCKETS if kind in ("buckets", "vllm") else _PROFILES
    found = EMITTERS[kind](graphs, usual if count is None else count)
    outside = sum(g.traffic.calls - sum(count for _, count in g.rows) for g in graphs)
    lost = unserved + outside
    if not lost:
        return found
    return replace(found, notes=(*found.notes, f"{lost} calls are left out: no graph takes them"))
