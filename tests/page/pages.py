"""Pages of the tests, made from real recordings and programs, and how their data are read again."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import onlooker
from onlooker import Program, Recording
from onlooker.capture.combine import Captured, read_captured
from onlooker.capture.reader import Part, ProcessFile, Run
from onlooker.page.page import page_of
from recorded import written
from tiny_pipeline import Pipeline

#: what ends a script, begins a tag, or would load something, if a page took texts for more than texts
HOSTILE = "</script><img src=https://example.com/x onerror=document.title='taken'><!--"


class Branching(torch.nn.Module):
    """One graph below 24 columns and another one above, with a relation between two sizes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 24:
            return x * 2 + y.mean(1, keepdim=True)
        return x + y.mean(1, keepdim=True)


SIZES = ((1, 3), (2, 5), (2, 5), (4, 40), (3, 30), (1, 26), (2, 5))


def program() -> Program:
    """A verified program of two graphs, made from seven calls."""
    model, observer = Branching(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, width in SIZES:
            model(torch.ones(batch, width), torch.ones(batch, 2 * width))
    made = observer.export()
    assert made.verify(trials=40).verified
    return made


def watched(folder: Path) -> Captured:
    """A folder with two processes: a pipeline, and a model whose argument has a hostile name."""
    pipe = Pipeline()
    written(folder, pipe.unet, pipe.use)

    class Named(torch.nn.Module):
        def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
            return parts[HOSTILE] * 2

    model = Named()
    written(folder, model, lambda: [model({HOSTILE: torch.ones(size, 3)}) for size in (2, 5, 5)])
    return read_captured(folder)


def very_many(folder: Path) -> Captured:
    """100,000 calls of which 4,000 are different, in an order that never repeats one at once."""
    model = torch.nn.Linear(4, 2)
    written(folder, model, lambda: [model(torch.zeros(2, size, 4)) for size in (3, 5)])
    (process,) = read_captured(folder).processes
    (part,) = process.parts
    first = part.calls[0]
    calls = tuple(_resized(first, 1 + number % 8, 1 + number) for number in range(4000))
    counted = tuple(replace(call, index=index, count=25) for index, call in enumerate(calls))
    runs = tuple(Run(number * 7 % 4000, 1, 1e-4, number / 1000) for number in range(100_000))
    many: Part = replace(part, calls=counted, runs=runs)
    made: ProcessFile = replace(process, parts=(many,))
    return Captured((made,))


def _resized(call: Any, batch: int, length: int) -> Any:
    def changed(tree: Any, width: int) -> Any:
        (leaf,) = tree.leaves
        return replace(tree, leaves=(replace(leaf, shape=(batch, length, width)),))

    return replace(call, inputs=changed(call.inputs, 4), outputs=changed(call.outputs, 2))


def data_of(page: str) -> dict[str, Any]:
    """The block of data of a page."""
    found: dict[str, Any] = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    return found


def page_file(folder: Path, found: Captured | Program | Recording, title: str) -> Path:
    """The page as a file."""
    path = folder / "report.html"
    path.write_text(page_of(found, title), "utf-8")
    return path


def chromium() -> str | None:
    """The browser of this machine."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)
