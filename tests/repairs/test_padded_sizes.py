"""A size with its padding is the multiple that it is filled up to."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import Mod, PythonMod

from onlooker.repairs.guard_count import UNGUARDED
from onlooker.repairs.numbers.padded_sizes import without_padding
from onlooker.torch_internals.sizes import shape_config


@pytest.mark.parametrize("remainder", [Mod, PythonMod])
def test_a_size_with_its_padding_is_a_multiple(remainder: Any) -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    of_window, below = remainder(7 - remainder(n, 7), 7), PythonMod(-n, 7)
    assert str(without_padding(n + of_window)) == str(without_padding(n + below)) == "7*(((n + 6)//7))"
    for value in (n + of_window, 3 + n + below, n + m + of_window - 9, n + 3 * m + PythonMod(-n - 3 * m, 7)):
        multiple = without_padding(value)
        assert not multiple.has(Mod, PythonMod)
        for size in range(25):
            sizes = {n: size, m: 2 * size + 1}
            assert multiple.xreplace(sizes) == value.xreplace(sizes), (value, sizes)


def test_other_remainders_stay() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    paddings = (
        PythonMod(n, 7),
        PythonMod(6 - PythonMod(n, 7), 7),
        Mod(7 - Mod(n, 6), 7),
        PythonMod(-n, -7),
        PythonMod(-n, m),
    )
    for padding in paddings:
        assert without_padding(n + padding) is None, padding
    assert without_padding(n + 2 * PythonMod(-n, 7)) is None
    assert without_padding(m + PythonMod(-n, 7)) is None


class Windows(nn.Module):
    """Layers that normalise windows of a picture, which they fill up to whole windows, and halve it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for window in (4, 5):
            batch, height, width, channels = x.shape
            right, below = (window - width % window) % window, -height % window
            filled = nn.functional.pad(x, (0, 0, 0, right, 0, below))
            rows, columns = filled.shape[1] // window, filled.shape[2] // window
            windows = filled.view(batch, rows, window, columns, window, channels)
            windows = windows - windows.mean((2, 4), keepdim=True)
            x = windows.reshape(batch, rows * window, columns * window, channels)[:, :height, :width]
            x = x[:, ::2, ::2]
        return x


def remainders_in(program: torch.export.ExportedProgram) -> set[Any]:
    """The remainders in the sizes of the tensors that are computed."""
    found: set[Any] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                found |= size.node.expr.atoms(Mod, PythonMod)
    return found


@pytest.mark.slow
def test_the_sizes_behind_windows_have_no_padding_in_them() -> None:
    model, x = Windows(), torch.randn(2, 32, 40, 3)
    spec = ({1: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},)
    assert UNGUARDED.block is not None
    with UNGUARDED.block(None):
        short = torch.export.export(model, (x,), dynamic_shapes=spec)
    with shape_config.patch(backed_size_oblivious=True):
        long = torch.export.export(model, (x,), dynamic_shapes=spec)
    assert remainders_in(long)
    assert not remainders_in(short)
    for shape in ((2, 33, 47, 3), (2, 64, 61, 3), (2, 9, 8, 3)):
        other = torch.randn(shape)
        torch.testing.assert_close(short.module()(other), model(other))
