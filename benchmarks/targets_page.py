"""Cells of targets.py -> docs/targets.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweep_page import cause_of
from targets_measure import FACTORS, MEMORY, OWN
from targets_models import MODELS

Row = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Row]

_TOP = f"""# Targets

Tiny models of {len(MODELS)} architectures of transformers with random weights: each is watched in one run of two rows
(one `generate()` for those that generate), exported, and asked the calls of up to three other runs, of other batches,
lengths and paddings. `python benchmarks/targets.py` measures, and `--page` writes this page from
what was measured; [benchmarks/targets.py](../benchmarks/targets.py) has the rules, and
[benchmarks/targets_models.py](../benchmarks/targets_models.py) the models.

**7/7** is the calls whose results are all exact (within 1e-4 of 1 + max|expected|, caches included; `verify()` allows a
tenth of that), of all unseen calls. **t 3/3** is the runs of `generate()` on the program that give the tokens of the
model. **no** is a program that could not be made or asked. A number in brackets is a cause, below. An empty cell was
not measured. `verify()` was not run: nothing on this page is called verified.
"""
_TITLES = {
    "torch": "torch",
    "onnx": "ONNX",
    "aoti": "AOTInductor",
    "openvino": "OpenVINO",
    "executorch": "ExecuTorch, portable",
    "xnnpack": "ExecuTorch, XNNPACK",
}
_PAIRS = (("onnx", "ONNX"), ("openvino", "OpenVINO"), ("xnnpack", "ExecuTorch, XNNPACK"))
_PEERS = {"onnx": "peer-onnx", "openvino": "peer-openvino", "xnnpack": "peer-executorch"}
_COMPARED = """## Beside transformers.exporters

The same models, watched or given the same inputs, and the same unseen calls. `transformers.exporters` is used as its
documentation says: `export_for_generation` for what generates and `export` for the rest, with `dynamic=True` and the
inputs of the watched run; its own runners run the results. For OpenVINO it has `stateful=False`, since single calls
are asked. A mask of ones, which `generate()` leaves out, is given to its programs where they want one. A model of
images and text it splits into parts, and leaves their joining to the caller: each part is asked what that part of the
model is asked. OpenVINO computes in float32 on both sides. Of the peer's logits those of the last token count where
the model
gives no others, and its caches are compared where they have the form of the model's, at tokens that the mask shows.
Left is onlooker, right transformers.exporters ("peer").
"""
_MEMORY = """## Memory that ExecuTorch plans

Bytes beside the weights, of all graphs together, for bounds of 1, 2, 4 and 16 times the greatest size that was
watched (portable). The tables above have bounds of {factor} times the greatest size.
"""


class Causes:
    """Causes by number, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._models: dict[str, list[str]] = {}

    def number(self, row: Row) -> int:
        """The number of the cause of a row."""
        slug, said = cause_of({"message": row["cause"]})
        text = ": ".join(part for part in (slug, said) if part)
        self._models.setdefault(text, []).append(f"{row['model']} ({row['way']})")
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def lines(self) -> Iterator[str]:
        """One line for each cause, with where it was met."""
        for text, number in self._numbers.items():
            where = ", ".join(dict.fromkeys(self._models[text]))
            yield f"{number}. {text.replace('<', '&lt;')}: {where}"


def page_of(rows: Iterable[Row]) -> str:
    """The whole page, as Markdown."""
    cells = {(row["model"], row["way"]): row for row in rows}
    causes = Causes()
    asked = sum(way in OWN for _, way in cells)
    measured = f"{asked} of {len(MODELS) * len(OWN)} cells of the first table are measured.\n"
    parts = [_TOP, measured, "\n".join(_targets(cells, causes))]
    if any(way in _PEERS.values() for _, way in cells):
        parts += [_COMPARED, "\n".join(_compared(cells, causes))]
    if any(way == MEMORY for _, way in cells):
        parts += [_MEMORY.format(factor=FACTORS[0]), "\n".join(_memory(cells))]
    lines = list(causes.lines())
    parts += ["## Causes\n", "\n".join(lines) + "\n"] if lines else []
    return "\n".join(parts)


def _targets(cells: Cells, causes: Causes) -> Iterator[str]:
    ways = [way for way in OWN if any(known == way for _, known in cells)]
    yield "## Every target\n"
    yield "| model | " + " | ".join(_TITLES[way] for way in ways) + " |"
    yield "|---|" + "---|" * len(ways)
    for model in MODELS:
        shown = [_cell(cells.get((model, way)), causes) for way in ways]
        yield f"| {model} | " + " | ".join(shown) + " |"
    yield f"| **whole** | {' | '.join(_whole(cells, way) for way in ways)} |"
    yield ""


def _compared(cells: Cells, causes: Causes) -> Iterator[str]:
    yield "| model | " + " | ".join(f"{title} | peer" for _, title in _PAIRS) + " |"
    yield "|---|" + "---|---|" * len(_PAIRS)
    for model in MODELS:
        shown = [
            _cell(cells.get((model, way)), causes, tokens=False)
            for own, _ in _PAIRS
            for way in (own, _PEERS[own])
        ]
        yield f"| {model} | " + " | ".join(shown) + " |"
    counts = [_whole(cells, way) for own, _ in _PAIRS for way in (own, _PEERS[own])]
    yield f"| **whole** | {' | '.join(counts)} |"
    yield ""


def _cell(row: Row | None, causes: Causes, *, tokens: bool = True) -> str:
    """``7/7, t 3/3``, with the number of the cause where something is missing."""
    if row is None:
        return ""
    parts = ["/".join(map(str, row["calls"]))] if "calls" in row else ["no"]
    if tokens and "tokens" in row:
        parts.append("t " + "/".join(map(str, row["tokens"])))
    cause = f" [{causes.number(row)}]" if row.get("cause") else ""
    return ", ".join(parts) + cause


def is_whole(row: Row) -> bool:
    """True where all calls are exact and all runs give the tokens of the model.

    >>> is_whole({"calls": [7, 7], "tokens": [3, 3]}), is_whole({"calls": [7, 7], "tokens": [2, 3]})
    (True, False)
    >>> is_whole({"calls": [6, 7]}), is_whole({"cause": "ExportError: ..."})
    (False, False)
    """
    counts = [row[key] for key in ("calls", "tokens") if key in row]
    return "calls" in row and all(part == of for part, of in counts)


def _whole(cells: Cells, way: str) -> str:
    rows = [row for (_, known), row in cells.items() if known == way]
    return f"{sum(map(is_whole, rows))} of {len(rows)}"


def _memory(cells: Cells) -> Iterator[str]:
    factors = sorted(FACTORS)
    yield "| model | bounds, 1 time | " + " | ".join(f"x {factor}" for factor in factors) + " |"
    yield "|---|---|" + "---:|" * len(factors)
    for (model, way), row in cells.items():
        if way != MEMORY or "memory" not in row:
            continue
        by_factor = {choice["factor"]: choice for choice in row["memory"]}
        bounds = ", ".join(f"{name} {high}" for name, high in by_factor[1]["bounds"].items())
        sums = [f"{sum(by_factor[factor]['bytes']):,}" for factor in factors]
        yield f"| {model} | {bounds} | " + " | ".join(sums) + " |"
    yield ""
