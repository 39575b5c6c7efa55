"""Loops over the results of another loop: by an index into their list, with ``zip``, ``enumerate`` or ``sum``."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError

MODEL = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 5)

    def forward(self, x):
        n, h, found = x.shape[1], x.new_zeros(x.shape[0], 5), []
        for t in range(n):
            h = self.cell(x[:, t], h)
            found.append(h)
"""
SERVED = {
    "both directions": """
        h, back = x.new_zeros(x.shape[0], 5), []
        for t in reversed(range(n)):
            h = self.cell(x[:, t], h)
            back.append(h)
        return torch.stack([torch.cat([found[t], back[n - 1 - t]], -1) for t in range(n)], 1)
    """,
    "turned": """
        found.reverse()
        return torch.stack([found[n - 1 - t] + found[t] * 2 for t in range(n)], 1)
    """,
    "neighbours": "return torch.stack([found[t] - found[t - 1] for t in range(1, n)], 1)",
    "two apart": "return torch.stack([found[t] + found[t + 2] for t in range(n - 2)], 1)",
    "from the end": "return torch.stack([found[-1 - t] * x[:, t, :1] for t in range(n)], 1)",
    "attention": """
        keys = torch.stack(found, 1)
        scores = [(keys @ (found[t] + found[-1])[:, :, None]).softmax(1) for t in range(len(found))]
        return torch.stack(scores, 1) * keys[:, None]
    """,
    "a decoder that begins with the last": """
        h, out = found[-1], []
        for t in range(n - 1, -1, -1):
            h = self.cell(x[:, t], h + found[t])
            out.append(h)
        return torch.stack([out[n - 1 - t] * found[t] for t in range(n)], 1)
    """,
    "the greatest": """
        best = found[0]
        for t in range(1, len(found)):
            best = torch.maximum(best, found[t])
        return best
    """,
    "pairs": "return torch.stack([b - a for a, b in zip(found, found[1:])], 1)",
    "pairs with rows": """
        return torch.stack([a * b[:, :1] for a, b in zip(reversed(found), x.unbind(1))], 1)
    """,
    "numbered": """
        total = 0
        for number, one in enumerate(found):
            total = total * 0.5 + one * number
        return total
    """,
    "numbered pairs": """
        total = 0
        for number, (one, row) in enumerate(zip(found, x.unbind(1))):
            total = total + one * row[:, :1] * number
        return total
    """,
    "beside a range": """
        total = 0
        for number, one in zip(range(1, n), found):
            total = total + one * number + x[:, number, :1]
        return total
    """,
    "mean": "return sum(found) / len(found)",
    "without ends": """
        kept = found[1:-1]
        return torch.stack(kept, 1) * len(kept)
    """,
}
NEVER_WRONG = {
    "every second": """
        return torch.stack([found[2 * t] for t in range((n + 1) // 2)], 1)
    """,
    "written over": """
        for t in range(n):
            found[t] = found[t] * 2
        return torch.stack(found, 1)
    """,
    "added to": """
        for t in range(n):
            found[t].add_(1.0)
        return torch.stack(found, 1)
    """,
    "added to in a zip": """
        for a, b in zip(found[::-1], x.unbind(1)):
            a.add_(b[:, :1])
        return torch.stack(found, 1)
    """,
    "beside numbers that are read backwards": """
        weights = [1.0] * 9 + [5.0] * 400
        return torch.stack([found[t] * weights[n - 1 - t] for t in range(n)], 1)
    """,
    "beside a longer list": """
        others = [torch.ones(5)] * 400
        return torch.stack([a * b for a, b in zip(found, others)], 1)
    """,
    "taken out": "return torch.stack([found.pop(0) * x[:, t, :1] for t in range(n)], 1)",
    "a step in the middle": "return torch.stack([found[2] * found[t] for t in range(n)], 1)",
    "cut at a number": "return torch.stack(found[:128], 1)",
    "counted beside": """
        place, total = 0, 0
        for t in range(n):
            total = total + found[place] * t
            place += 1
        return total
    """,
    "a zip that is begun": """
        pairs, total = zip(range(n), found), 0
        next(pairs)
        for place, (number, one) in enumerate(pairs):
            total = total + one * (place + 2 * number)
        return total
    """,
    "a list of pairs": """
        pairs = list(enumerate(tuple(found)))
        return pairs[-1][1] * len(pairs)
    """,
    "of the step before": """
        before, out = h * 0, []
        for t in range(n):
            out.append(found[t] + before)
            before = found[t]
        return torch.stack(out, 1)
    """,
    "twice in the middle": """
        return torch.stack([found[t] * found[n - 1 - t] * found[t] for t in range(n)], 1)
    """,
    "one more at the end": """
        found.append(h * 3)
        return torch.stack([found[n - t] for t in range(n + 1)], 1)
    """,
    "numbers of another input": """
        m = x.shape[0]
        return torch.stack([found[m - 1 - t] * t for t in range(m)], 1) if m <= n else h
    """,
}


def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> tuple[nn.Module, Program]:
    """The model in a file of its own: loops are rolled where their source is."""
    path = tmp_path / "encoders.py"
    path.write_text(MODEL + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n")
    spec = importlib.util.spec_from_file_location("encoders", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "encoders", module)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    torch.manual_seed(0)
    model, observer = module.Encoder().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 6), (3, 8)):
            model(torch.randn(batch, length, 4))
    return model, observer.export()


def served(model: nn.Module, program: Program) -> list[int]:
    """The lengths that the program takes: it gives there what the model gives."""
    found = []
    for length in (1, 2, 3, 5, 11, 40):
        x = torch.randn(4, length, 4)
        try:
            got = program(x)
        except RejectedCallError:
            continue
        with torch.no_grad():
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
        found.append(length)
    return found


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.one_in(18)
def test_any_length_is_served(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, program = exported(monkeypatch, tmp_path, SERVED[name])
    assert served(model, program)[-4:] == [3, 5, 11, 40]
    assert program.verify().verified


@pytest.mark.parametrize("name", NEVER_WRONG)
@pytest.mark.one_in(18)
@pytest.mark.slow
def test_what_is_not_followed_is_right_or_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, program = exported(monkeypatch, tmp_path, NEVER_WRONG[name])
    assert program.verify().verified
    served(model, program)
