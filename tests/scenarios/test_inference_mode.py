"""Everything that runs inside of ``torch.inference_mode()``, whose tensors count no writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, make_dynamic_cache
from onlooker.pytrees.open import open_tree


class Holder:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Steps(torch.nn.Module):
    """Counts its calls in a buffer, and may write to what it is given."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("count", torch.zeros(2))

    def forward(self, batch: Any, mask: torch.Tensor | None = None) -> Any:
        x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch.x
        self.count += 1
        if self.writes:
            x.add_(1.0)
            return {"batch": batch, "y": x * 2}
        return {"y": x * 2 if mask is None else x * mask}


ARGUMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dict": lambda x: {"x": x},
    "list": lambda x: [x],
    "object": Holder,
}
MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "nothing": contextlib.nullcontext}


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.one_in(14)
def test_a_program_stands_in_for_its_model(mode: str, made_inside: bool, argument: str, writes: bool) -> None:
    make = ARGUMENTS[argument]
    with MODES[mode]() if made_inside else contextlib.nullcontext():
        model, observer = Steps(writes=writes), InputObserver()
    with MODES[mode]():
        with observer(model):
            model(make(torch.arange(6.0).reshape(2, 3)))
            model(make(torch.arange(9.0).reshape(3, 3)))
        counted = model.count.clone()
        program = observer.export()
        assert program.verify().verified
        assert torch.equal(model.count, counted)
        x = torch.full((4, 3), float("nan"))
        x[0] = 5.0
        ours, theirs = make(x.clone()), make(x.clone())
        with program.installed(model) as served:
            got = model(ours)
        expected = model(theirs)
        assert served.calls["main"] == 1
        assert torch.equal(got["y"].nan_to_num(), expected["y"].nan_to_num())
        if writes:
            assert got["batch"] is ours
        left, right = (open_tree(value).leaves[0] for value in (ours, theirs))
        assert torch.equal(left.nan_to_num(), right.nan_to_num())


def test_the_rest_of_the_house(tmp_path: Path) -> None:
    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: Any) -> Any:
            keys, _ = cache.update(x, x, 0)
            return keys.sum(2), cache

    with torch.inference_mode():
        model, observer = Attends(), InputObserver()
        with observer(model):
            for n in (1, 4):
                past = torch.ones(2, 2, n, 3)
                model(torch.ones(2, 2, 2, 3), make_dynamic_cache([(past, past)]))
        assert observer.infer_dynamic_shapes()
        assert observer.infer_arguments()
        program = observer.export()
        program.save(tmp_path / "program")
        for served in (program, onlooker.load(tmp_path / "program"), program.to("onnx")):
            past = torch.ones(3, 2, 5, 3)
            result, cache = served(torch.ones(3, 2, 1, 3), make_dynamic_cache([(past, past)]))
            assert torch.equal(result, torch.full((3, 2, 3), 6.0))
            assert cache.get_seq_length() == 6
        assert all(row["SUCCESS"] for row in observer.check_discrepancies(program))
