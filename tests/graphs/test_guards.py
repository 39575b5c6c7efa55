"""Conditions that a proof shows needless are dropped; the others stay, and lead to graphs of their own."""

import sys

import pytest
import torch
from torch import nn

from onlooker import ExportError, InputObserver, RejectedCallError
from onlooker.repairs.guard_count import GuardCount, TooManyGuardsError, usual_guards
from onlooker.repairs.trace_mode import reading
from onlooker.trace import flat


class PadsToMultiple(nn.Module):
    """Pads to a multiple of 4, works on groups of 4, and crops: a pad of 0 is the same graph as a pad of 3."""

    def forward(self, x):
        batch, length = x.shape
        pad = (4 - length % 4) % 4
        padded = nn.functional.pad(x, (0, pad))
        groups = padded.view(batch, -1, 4)
        out = (groups + groups.mean(dim=1, keepdim=True)).view(batch, -1)
        if pad > 0:
            out = out[:, :length]
        return out


class TwoFormulas(nn.Module):
    """Another formula for long inputs: the guard must stay."""

    def forward(self, x):
        return x.cumsum(1) if x.shape[1] > 20 else x * 2 + 1


def watched(model, *inputs):
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for x in inputs:
            model(x)
    return observer


def same(model, program, x):
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(program(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seen", [(8, 12), (9, 10), (8, 9)], ids=str)
def test_one_graph_serves_both_sides_of_a_pad(seen):
    is_one_side = len({length % 4 == 0 for length in seen}) == 1
    if is_one_side and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 does not say where a branch stands: the side that no watched size has is refused")
    model = PadsToMultiple()
    program = watched(model, torch.randn(2, seen[0]), torch.randn(2, seen[1])).export()
    for length in (4, 5, 6, 7, 8, 11, 16, 21):
        same(model, program, torch.randn(2, length))
        same(model, program, torch.randn(1, length))
    assert len(program.graphs) <= 2


def test_a_guard_that_chooses_a_formula_stays():
    model = TwoFormulas()
    program = watched(model, torch.randn(2, 5), torch.randn(3, 30)).export()
    for length in (3, 19, 20, 21, 40):
        same(model, program, torch.randn(2, length))
    assert len(program.graphs) == 2
    assert not any("20" in dropped.formula for graph in program.graphs for dropped in graph.contract.dropped)


def test_a_graph_of_one_side_refuses_the_other():
    model = TwoFormulas()
    observer = watched(model, torch.randn(2, 5), torch.randn(3, 6))
    program = observer.export()
    for length in (3, 20, 21, 40):
        x = torch.randn(2, length)
        try:
            got = program(x)
        except RejectedCallError:
            continue
        torch.testing.assert_close(got, model(x))


def test_a_trace_that_meets_too_many_guards_is_asked_without_those_on_0_and_1(monkeypatch):
    monkeypatch.setattr(flat, "usual_guards", lambda n_inputs: 1)
    model = PadsToMultiple()
    program = watched(model, torch.randn(2, 8), torch.randn(2, 12)).export()
    assert program.graphs[0].oblivious
    assert any("without guards on 0 and 1" in note for note in program.graphs[0].notes)
    for batch, length in ((1, 24), (3, 30), (2, 5), (1, 1)):
        same(model, program, torch.randn(batch, length))


def test_the_count_of_guards_ends_a_trace():
    class Many(nn.Module):
        def forward(self, x):
            with reading(GuardCount([x], 3)):
                for size in range(100, 110):
                    if x.shape[0] == size:
                        x = x + 1
                    x = x * 2
            return x

    with pytest.raises(TooManyGuardsError, match="more than 3 guards"):
        torch.export.export(Many(), (torch.zeros(5),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    assert usual_guards(1) > 3


@pytest.mark.parametrize(("sizes", "step"), [((32, 64), 1), ((32, 64, 48), 1), ((28, 56), 14)], ids=str)
def test_sizes_that_were_multiples_by_chance_are_no_steps(sizes, step):
    patch = 14 if step > 1 else 1

    class Patches(nn.Module):
        def forward(self, x):
            return x.view(x.shape[0], -1, patch).sum(2).cumsum(1)

    observer = watched(Patches(), *(torch.randn(2 + i, size) for i, size in enumerate(sizes)))
    (plan,) = observer.plans()
    (symbol,) = [s for s in plan.symbols if s.name != "batch"]
    assert symbol.step == step


class OneRow(nn.Module):
    """A guard about batch 1 that says nothing of the result, and one about length 7 that does."""

    def forward(self, x):
        x = x + 1 if x.shape[0] != 1 else 1 + x
        return x.cumsum(1) if x.shape[1] != 7 else x * 2


@pytest.mark.parametrize("rows", [(2, 2), (2, 3)], ids=["one symbol", "two symbols"])
def test_sizes_on_the_other_side_of_a_guard_are_served_right(rows):
    model = OneRow()
    program = watched(model, torch.randn(rows[0], 5), torch.randn(rows[1], 6)).export(ranges={})
    for shape in ((1, 5), (1, 9), (4, 8), (1, 1)):
        same(model, program, torch.randn(shape))
    seven = torch.randn(1, 7)
    try:
        got = program(seven)
    except RejectedCallError:
        return
    torch.testing.assert_close(got, model(seven))


class Four(nn.Module):
    def forward(self, x):
        return nn.functional.pad(x.cumsum(1), (0, 0)) if x.shape[0] != 4 else x.cumsum(1)


class Clamped(nn.Module):
    """The two sides differ for some values only."""

    def forward(self, x):
        return x.clamp(max=50) if x.shape[0] != 4 else x


def test_a_condition_goes_only_where_both_sides_are_the_same_for_all_values():
    program = watched(Four(), torch.randn(2, 5), torch.randn(3, 5)).export(static={"x": [1]})
    same(Four(), program, torch.randn(4, 5))
    assert len(program.graphs) == 1
    assert any("same graph" in dropped.evidence for dropped in program.graphs[0].contract.dropped)
    calls = torch.full((2, 5), 3.0), torch.full((3, 5), 99.0)
    program = watched(Clamped(), *calls).export(static={"x": [1]}, ranges={"batch": (1, None)})
    for rows in (2, 4, 5):
        same(Clamped(), program, torch.full((rows, 5), 99.0))


def test_a_size_of_1_that_torch_took_for_granted_has_a_graph_of_its_own():
    class Signed(nn.Module):
        """The two sides differ for some values only."""

        def forward(self, x):
            return x.clamp(max=50) if x.shape[0] != 1 else x

    model = Signed()
    program = watched(model, torch.full((2, 5), 3.0), torch.full((3, 5), 99.0)).export(static={"x": [1]})
    same(model, program, torch.full((2, 5), 99.0))
    same(model, program, torch.full((1, 5), 99.0))


class Squeezed(nn.Module):
    """The rank hangs on a size that is computed, which only the operator asks about."""

    def forward(self, x):
        y = x[:, ::4].squeeze(1)
        return y * 2 if y.dim() == 1 else y.cumsum(1)


@pytest.mark.parametrize("seen", [(9, 14), (6, 9), (3, 9)], ids=str)
def test_a_computed_size_of_1_that_an_operator_decides_about_is_tried(seen):
    model = Squeezed()
    program = watched(model, *(torch.randn(3, n) for n in seen)).export()
    for length in (1, 2, 3, 4, 5, 6, 9, 14, 40):
        x = torch.randn(3, length)
        if program.check([((x,), {})]).holds:
            same(model, program, x)
        else:
            assert length not in seen


class EmptyAtOnce(nn.Module):
    """The model itself asks whether a cache is empty, and does something else then."""

    def forward(self, x, past):
        return x * 3 if past.numel() == 0 else torch.cat([past, x], 1).cumsum(1)


def test_the_least_size_that_torch_assumes_answers_no_decision_of_the_model():
    model = EmptyAtOnce()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 3), torch.randn(2, 4))
        model(torch.randn(3, 5), torch.randn(3, 7))
    program = observer.export()
    for past in (0, 1, 2, 9):
        x, before = torch.randn(2, 3), torch.randn(2, past)
        try:
            got = program(x, before)
        except RejectedCallError:
            continue
        torch.testing.assert_close(got, model(x, before))


class Strided(nn.Module):
    """Operators ask about sizes that are computed by a convolution, and the kernel wants a least size."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 8, stride=4)

    def forward(self, x):
        return self.patches(x).flatten(2).transpose(1, 2).mean(1)


def test_what_operators_ask_about_computed_sizes_leaves_only_the_least_sizes():
    model = Strided().eval()
    program = watched(model, torch.randn(2, 3, 40, 40), torch.randn(2, 3, 52, 68)).export()
    (graph,) = program.graphs
    formulas = {c.formula for c in graph.contract.constraints}
    if torch.__version__.startswith("2.10."):  # it asks whether products of sizes fit into int32
        formulas = {formula for formula in formulas if not formula.endswith("<= 2147483647")}
    assert formulas == {"x_dim_2 >= 8", "x_dim_3 >= 8"}
    for height, width in ((8, 8), (8, 60), (60, 8), (9, 11), (40, 41)):
        for rows in (1, 3):
            same(model, program, torch.randn(rows, 3, height, width))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 3, 7, 40))


class DecidesBySides(nn.Module):
    """Many decisions on the sides of an image, none on the length of the rows beside it."""

    def forward(self, image, rows):
        for divisor in range(3, 40):
            for side in image.shape[2:]:
                image = image + 1 if side % divisor == 0 else image
        return image.mean((2, 3)) + rows.softmax(2).sum(2)


def test_axes_of_few_guards_change_beside_those_of_many():
    model, observer = DecidesBySides(), InputObserver()
    with observer(model):
        for batch in (2, 3):
            model(torch.randn(batch, 4, 32, 32), torch.randn(batch, 4, 7))
    program = observer.export()
    image, rows = torch.randn(5, 4, 32, 32), torch.randn(5, 4, 9)
    torch.testing.assert_close(program(image, rows), model(image, rows))
    with pytest.raises(RejectedCallError):
        program(torch.randn(5, 4, 30, 32), rows)


class ByAPower(nn.Module):
    def forward(self, x):
        return x * 2 if 2 ** x.shape[0] < 100 else -x


def test_a_condition_with_a_power_of_a_size_is_refused_with_its_line():
    with pytest.raises(
        ExportError, match=r"decides by 2 \*\* batch < 100, at .*test_guards.py:\d+ in forward"
    ) as caught:
        watched(ByAPower(), torch.randn(2, 3), torch.randn(4, 5)).export()
    assert caught.value.slug == "guard-not-known"
