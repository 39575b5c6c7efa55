"""The settings of each runtime as text, from clusters or buckets of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core.errors import UsageError
from ..core.plan import LeafPlan
from .buckets import Bucket, best_cuts, buckets_of
from .clusters import Cluster, clusters_of
from .compiling import marking_lines
from .traffic import Served

__all__ = ["EMITTERS", "Emitted", "emitted"]

#: the types of Triton, by dtype of torch
_TRITON = {
    **{"torch.float32": "TYPE_FP32", "torch.float64": "TYPE_FP64", "torch.float16": "TYPE_FP16"},
    **{"torch.bfloat16": "TYPE_BF16", "torch.bool": "TYPE_BOOL", "torch.uint8": "TYPE_UINT8"},
    **{"torch.int64": "TYPE_INT64", "torch.int32": "TYPE_INT32", "torch.int16": "TYPE_INT16"},
    "torch.int8": "TYPE_INT8",
}


@dataclass(frozen=True, slots=True)
class Emitted:
    """The settings of one runtime. ``corners`` are the sizes that stand in them, by symbol, with
    the name of their graph; ``notes`` say what is left out.
    """

    kind: str
    text: str
    corners: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


#: the settings of some graphs, in so many profiles or buckets of each
Emitter = Callable[[Sequence[Served], int], Emitted]


def _corners(
    served: Served, rows: Sequence[tuple[int, ...]]
) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    return [(served.plan.name, tuple(served.sizes(row).items())) for row in dict.fromkeys(rows)]


def _of_clusters(
    kind: str,
    graphs: Sequence[Served],
    count: int,
    written: Callable[[Served, Sequence[Cluster]], list[str]],
) -> Emitted:
    """One part of text for each graph that has calls."""
    lines: list[str] = []
    corners: list[tuple[str, tuple[tuple[str, int], ...]]] = []
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


def _tuple(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def tensorrt(graphs: Sequence[Served], count: int) -> Emitted:
    """``torch_tensorrt.Input`` for each input, with one profile or several."""

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
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

    return _of_clusters("tensorrt", graphs, count, written)


def _shapes_of(served: Served, leaf: LeafPlan, cluster: Cluster) -> dict[str, str]:
    names = ("min_shape", "opt_shape", "max_shape")
    shapes = (_tuple(served.shape(leaf, corner)) for corner in cluster.corners)
    return dict(zip(names, shapes, strict=True))


def _by_name(served: Served, corner: tuple[int, ...]) -> str:
    """``x:2x3,mask:2x5``, as trtexec and ONNX Runtime read it; of a number its value."""
    pairs = zip(served.inputs, served.shapes(corner), strict=True)
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in pairs if shape)


def trtexec(graphs: Sequence[Served], count: int) -> Emitted:
    """The flags of trtexec for the ONNX file of each graph."""

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
        lines = [f"trtexec --onnx={served.plan.name}.onnx"]
        for number, cluster in enumerate(clusters):
            lines += [f"  --profile={number}"] if len(clusters) > 1 else []
            for flag, corner in zip(("min", "opt", "max"), cluster.corners, strict=True):
                lines.append(f"  --{flag}Shapes={_by_name(served, corner)}")
        return [" \\\n".join(lines)]

    return _of_clusters("trtexec", graphs, count, written)


def ort_trt(graphs: Sequence[Served], count: int) -> Emitted:
    """Options of the TensorRT provider of ONNX Runtime; an input has a shape for each profile."""

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
        options = {
            f"trt_profile_{name}_shapes": ",".join(
                _by_name(served, cluster.corners[place]) for cluster in clusters
            )
            for place, name in enumerate(("min", "opt", "max"))
        }
        return [f"provider_options = {json.dumps(options, indent=4)}"]

    return _of_clusters("ort-trt", graphs, count, written)


def openvino(graphs: Sequence[Served], count: int) -> Emitted:
    """``model.reshape`` with a PartialShape for each input; a model of its own for each profile."""

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
        lines = []
        for cluster in clusters:
            lines.append("model.reshape({")
            for leaf, name in zip(served.plan.inputs, served.inputs, strict=True):
                if leaf.is_tensor:
                    low, high = served.shape(leaf, cluster.low), served.shape(leaf, cluster.high)
                    sizes = (
                        str(a) if a == b else f"{a}..{b}" for a, b in zip(low, high, strict=True)
                    )
                    text = f"[{','.join(sizes)}]"
                    lines.append(f'    "{name}": openvino.PartialShape("{text}"),')
            lines.append("})")
        return lines

    return _of_clusters("openvino", graphs, count, written)


def executorch(graphs: Sequence[Served], count: int) -> Emitted:
    """Bounds of each symbol, as ``program.to`` takes them, and the Dims of torch.export."""

    def written(served: Served, clusters: Sequence[Cluster]) -> list[str]:
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

    return _of_clusters("executorch", graphs, count, written)


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


def _triton_tensor(kind: str, name: str, dtype: str, dims: Sequence[str]) -> list[str]:
    """One tensor; one without dimensions is reshaped from one with a single element."""
    reshape = "" if dims else " reshape: { shape: [ ] }"
    listed = ", ".join(dims or ["1"])
    type_ = _TRITON.get(dtype, "TYPE_INVALID")
    return [f'{kind} [ {{ name: "{name}" data_type: {type_} dims: [ {listed} ]{reshape} }} ]']


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
    corners: list[tuple[str, tuple[tuple[str, int], ...]]] = []
    for served in graphs:
        found = buckets_of(served, count)
        if not found:
            continue
        wasted, work = sum(b.wasted for b in found), sum(b.work for b in found)
        lines.append(
            f"{served.plan.name}: {len(found)} buckets, {100 * wasted / (wasted + work):.1f} % of"
            " the work is padding"
        )
        lines += [_bucket_line(served, bucket) for bucket in found]
        corners += _corners(served, [bucket.sizes for bucket in found])
    return Emitted("buckets", "\n".join(lines) + "\n", tuple(corners))


def _bucket_line(served: Served, bucket: Bucket) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in served.sizes(bucket.sizes).items())
    share = 100 * bucket.wasted / (bucket.wasted + bucket.work)
    return f"  {sizes}: {bucket.calls} calls, {share:.1f} % padding"


def marks(graphs: Sequence[Served], count: int) -> Emitted:
    """Marks for torch.compile, of the axes that change in some graph."""
    return Emitted("compile", "\n".join(marking_lines(graphs)) + "\n")


#: every emitter by its name
EMITTERS: dict[str, Emitter] = {
    "tensorrt": tensorrt,
    "trtexec": trtexec,
    "ort-trt": ort_trt,
    "openvino": openvino,
    "executorch": executorch,
    "vllm": vllm,
    "triton": triton,
    "buckets": buckets,
    "compile": marks,
}

#: how many profiles, or buckets, where nobody says
_PROFILES, _BUCKETS = 1, 8


def emitted(
    kind: str, graphs: Sequence[Served], unserved: int = 0, count: int | None = None
) -> Emitted:
    """The settings of one kind.

    :raises UsageError: ``unknown-emitter``, ``bad-count``
    """
    if kind not in EMITTERS:
        raise UsageError(
            f"Nothing is emitted for {kind!r}.",
            slug="unknown-emitter",
            hint=f"There are {', '.join(EMITTERS)}.",
        )
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise UsageError(
            f"count is {count!r}.",
            slug="bad-count",
            hint="Give the number of profiles or buckets, 1 or more.",
        )
    usual = _BUCKETS if kind in ("buckets", "vllm") else _PROFILES
    found = EMITTERS[kind](graphs, usual if count is None else count)
    outside = sum(g.traffic.calls - sum(count for _, count in g.rows) for g in graphs)
    lost = unserved + outside
    return replace(found, notes=(*found.notes, *_lost(lost)))


def _lost(calls: int) -> list[str]:
    return [f"{calls} calls are left out: no graph takes them"] if calls else []
