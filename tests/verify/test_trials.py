"""Which trials a program gets: sizes, a seed and a number that the user gives, and what is counted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.cli.command_line import main
from onlooker.core.verdict import Focus, Outcome
from onlooker.pytrees.numbers import is_same
from onlooker.pytrees.open import open_arguments
from onlooker.verify.trials import Trial, chosen_trials


class Long(torch.nn.Module):
    """Long inputs are clamped: two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 24:
            return x.clamp(-1, 1)
        return x * 2


def use() -> tuple[torch.nn.Module, Any]:
    """The model for the command line, and its use."""
    model = Long().eval()

    def call() -> None:
        generator = torch.Generator().manual_seed(0)
        for batch, length in ((2, 5), (3, 9), (4, 30)):
            model(torch.randn(batch, length, generator=generator))

    return model, call


@pytest.fixture(scope="module")
def program() -> Program:
    model, call = use()
    observer = InputObserver()
    with observer(model):
        call()
    return observer.export()


def length_of(program: Program) -> str:
    return program.plans[0].symbols[1].name


def trials(program: Program, **more: Any) -> list[Trial]:
    return list(chosen_trials(program.graphs, program._program.samples, program._program.samples, **more))


def are_same(first: Trial, second: Trial) -> bool:
    """True where two trials are the same, value by value and byte by byte."""
    ours, theirs = (open_arguments(trial.arguments).leaves for trial in (first, second))
    names = (first.label, first.sizes, first.focus) == (second.label, second.sizes, second.focus)
    return names and len(ours) == len(theirs) and all(map(_same_leaf, ours, theirs))


def _same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return is_same(one, other) or bool(torch.equal(one.view(torch.int32), other.view(torch.int32)))
    return type(one) is type(other) and one == other


# sizes


def labels(program: Program, focus: Focus) -> list[str]:
    return [check.label for check in program.tally.checks if check.focus is focus]


def test_the_sizes_of_a_mapping_are_tried_in_every_combination(program: Program) -> None:
    length = length_of(program)
    assert program.verify(sizes={"batch": [1, 6], length: [3, 60]}).verified
    wanted = {f"batch={batch}, {length}={size}" for batch in (1, 6) for size in (3, 60)}
    assert wanted <= set(labels(program, Focus.GIVEN))


@pytest.mark.parametrize("sizes", [{"x.shape[1]": [77]}, {"x.shape[1]": 77}, [{"x.shape[1]": 77}]])
def test_an_axis_names_the_symbol_that_it_is(program: Program, sizes: Any) -> None:
    assert program.verify(sizes=sizes).verified
    assert any(label.endswith("=77") for label in labels(program, Focus.GIVEN))


def test_no_sizes_are_no_trials(program: Program) -> None:
    program.verify(sizes={})
    assert Focus.GIVEN not in program.tally.counts


# bounds


def test_both_sides_of_the_bound_are_tried_with_extreme_values(program: Program) -> None:
    assert program.verify().verified
    length = length_of(program)
    found = {check.label for check in program.tally.checks}
    for size in (24, 25):
        assert any(label.endswith(f"{length}={size}") for label in found)
        assert any(f"{length}={size}, extreme values" in label for label in found)
        assert any(f"{length}={size}, infinite values" in label for label in found)
    assert any(label.endswith(f"{length}=23") for label in found)
    assert any(label.endswith(f"{length}=26") for label in found)


def test_a_graph_that_is_wrong_only_at_its_bound_is_not_verified() -> None:
    class Wrong(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting():
                return x.clamp(-100, 100) if x.shape[1] > 40 else x
            return x.clamp(-100, 100) if x.shape[1] > 40 else x if x.shape[1] < 40 else x.clamp(-100, 100)

    model, observer = Wrong().eval(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 9)):
            model(torch.randn(batch, length))
    program = observer.export()
    tally = program.verify()
    failed = {check.label for check in tally.checks if not check.passed}
    assert any(label.endswith("=40, extreme values") for label in failed)
    assert not any("=39" in label or "=41" in label for label in failed)


# the seed


@pytest.mark.parametrize("seed", [0, 1, 2**40, -3])
@pytest.mark.parametrize("most", [None, 150])
def test_the_same_seed_gives_the_same_trials_byte_for_byte(program: Program, seed: int, most: int | None) -> None:
    first = trials(program, seed=seed, most=most)
    torch.rand(7)  # another state of torch's own random numbers
    second = trials(program, seed=seed, most=most)
    assert len(first) == len(second) > 20
    assert all(map(are_same, first, second))


def test_another_seed_gives_other_sizes_and_other_values(program: Program) -> None:
    usual, other = trials(program), trials(program, seed=5)
    assert {t.sizes for t in usual if t.focus is Focus.SIZES} != {t.sizes for t in other if t.focus is Focus.SIZES}
    values = [[t.arguments["x"] for t in found if t.focus is Focus.VALUES] for found in (usual, other)]
    assert not any(is_same(a, b) for a, b in zip(*values, strict=True) if a.numel() > 1)


def test_every_seed_keeps_the_bounds(program: Program) -> None:
    bounds = [{t.sizes for t in trials(program, seed=seed) if t.focus is Focus.BOUNDS} for seed in (0, 5)]
    length = length_of(program)
    for found in bounds:
        assert {24, 25} <= {dict(sizes)[length] for sizes in found} | {
            dict(t.sizes)[length] for t in trials(program, seed=0) if t.sizes
        }


def test_a_program_is_verified_with_any_seed(program: Program) -> None:
    assert all(program.verify(seed=seed).verified for seed in (1, 2, 3))


# the number


@pytest.mark.parametrize("most", [1, 2, 10, 25, 400])
def test_at_most_so_many_trials(program: Program, most: int) -> None:
    tally = program.verify(trials=most)
    tried = [check for check in tally.checks if "raise trials" not in check.note]
    assert len(tried) <= most
    if most >= 10:
        assert tally.verified
        assert len(tried) + len(tally.refused) >= most * 0.4


def test_a_few_trials_are_of_every_kind_and_of_every_graph(program: Program) -> None:
    usual = trials(program)
    few = trials(program, most=20)
    assert {t.focus for t in few} == {t.focus for t in usual}
    assert {t.plan.name for t in few if t.plan} == {graph.name for graph in program.graphs}
    positions = [next(i for i, t in enumerate(usual) if are_same(t, f) and t.plan == f.plan) for f in few]
    assert positions == sorted(positions)


def test_too_few_trials_for_every_graph_are_no_proof(program: Program) -> None:
    tally = program.verify(trials=2)
    assert not tally.verified
    assert any(check.note == "no unseen call of this graph was tried: raise trials=" for check in tally.checks)


def test_more_trials_than_usual_are_drawn(program: Program) -> None:
    usual = trials(program)
    more = trials(program, most=len(usual) + 40)
    assert [t.label for t in more[: len(usual)]] == [t.label for t in usual]
    drawn = more[len(usual) :]
    assert {t.focus for t in drawn} == {Focus.DRAWN}
    assert len(drawn) == 40
    assert len({t.sizes for t in drawn}) > 10


def test_the_drawing_ends_where_nothing_is_left_to_draw() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ~x

    model, observer = Fixed(), InputObserver()
    with observer(model):
        model(torch.tensor([[True, False]]))
    program = observer.export(static={"x": [0, 1]})
    assert 1 <= program.verify(trials=500).total < 20


# what is counted


def test_the_tally_says_how_many_trials_there_were_of_each_kind(program: Program) -> None:
    tally = program.verify(sizes={"batch": 6}, trials=300)
    assert sum(tally.counts.values()) == tally.total
    assert {Focus.OBSERVED, Focus.GIVEN, Focus.SIZES, Focus.BOUNDS, Focus.EXTREME, Focus.DRAWN} <= set(tally.counts)
    assert tally.summary.startswith(f"{tally.counts[Focus.OBSERVED]} observed, ")
    assert f"{tally.counts[Focus.BOUNDS]} at bounds" in tally.summary
    assert f"tried: {tally.summary[:30]}" in program.report.text(full=True)
    data = program.report.to_dict()
    assert data["tally"] == {focus.value: count for focus, count in tally.counts.items()}
    assert {trial["focus"] for trial in data["trials"]} == {focus.value for focus in tally.counts}  # type: ignore[attr-defined]
    assert json.loads(json.dumps(data)) == data


def test_sizes_outside_all_contracts_are_told_and_no_checks() -> None:
    class Refusing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting() and x.shape[1] > 40:
                raise ValueError("not while it is exported")
            return x.clamp(-1, 1) if x.shape[1] > 40 else x * 2

    model, observer = Refusing().eval(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 9)):
            model(torch.randn(batch, length))
    program = observer.export()
    tally = program.verify()
    assert tally.verified
    assert any(text.endswith("=41") for text in tally.refused)
    assert tally.summary.endswith(f"{len(tally.refused)} outside the contracts, which the program refuses")
    assert any("outside the contracts, and refused:" in remark for remark in program.report.remarks)
    assert program.report.to_dict()["refused"] == list(tally.refused)
    asked = program.verify(sizes={"x.shape[1]": [60]})
    (check,) = (check for check in asked.checks if check.focus is Focus.GIVEN)
    assert check.outcome is Outcome.REJECTED
    assert not asked.verified


def test_the_counts_are_kept_in_a_folder(program: Program, tmp_path: Path) -> None:
    tally = program.verify(trials=30)
    program.save(tmp_path / "program")
    assert onlooker.load(tmp_path / "program").tally == tally


# the command line


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved") / "program"
    program.save(place, values=True)
    return place


def command(*words: str) -> tuple[int, dict[str, Any], str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main([*words, "--json"], stdout, stderr)
    return code, json.loads(stdout.getvalue() or "{}"), stderr.getvalue()


def test_the_command_takes_sizes_a_seed_and_a_number(folder: Path) -> None:
    options = ["--sizes", "batch=1,6", "--sizes", "x.shape[1]=3", "--sizes", "x.shape[1]=60"]
    options += ["--seed", "4", "--trials", "40"]
    code, data, _ = command("verify", str(folder), "--build", f"{__file__}:use", *options)
    assert code == 0
    assert data["total"] <= 40
    assert data["report"]["tally"]["given"] == 4
    _, again, _ = command("verify", str(folder), "--build", f"{__file__}:use", *options)
    assert again["report"]["trials"] == data["report"]["trials"]


@pytest.mark.parametrize("options", [["--seed", "1"], ["--trials", "5"], ["--sizes", "batch=1"]])
def test_the_command_needs_the_model_for_them(folder: Path, options: list[str]) -> None:
    code, _, stderr = command("verify", str(folder), *options)
    assert code == 1
    assert options[0] in stderr
    assert "[no-model]" in stderr


class Rows(torch.nn.Module):
    """As many rows as a tensor without axes says, of one to five."""

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 5)
        return torch.ones(count, 3)


class Late(torch.nn.Module):
    """Does something else from the fifth step on."""

    def forward(self, step: torch.Tensor) -> torch.Tensor:
        return torch.arange(4) * (step if step.item() < 5 else -step)


@pytest.mark.parametrize(("model", "number", "is_verified"), [(Rows(), 3, True), (Rows(), 5, True), (Late(), 4, False)])
def test_numbers_beside_a_single_int_are_tried_where_no_size_changes(
    model: torch.nn.Module, number: int, is_verified: bool
) -> None:
    observer = InputObserver()
    with observer(model):
        model(torch.tensor(number))
    program = observer.export()
    assert program.verify().verified is is_verified
    others = [check for check in program.report.tally.checks if check.focus is Focus.VALUES]
    assert [check.passed for check in others].count(False) == (not is_verified)
    assert others


class Eigenvalues(torch.nn.Module):
    """torch ends the process where a number is not finite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x).abs().sum(-1)


def test_eigenvalues_are_tried_with_finite_numbers() -> None:
    torch.manual_seed(0)
    observer = InputObserver()
    model = Eigenvalues()
    with observer(model):
        for batch, n in ((1, 5), (2, 7), (4, 10)):
            model(torch.randn(batch, n, n))
    verdict = observer.export().verify()
    assert verdict.verified
    assert Focus.EXTREME not in {check.focus for check in verdict.checks}


class ByLayout(torch.nn.Module):
    """Asks a result how it lies in memory: that of images whose channels come last lies as they do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.interpolate(x, scale_factor=2.0)
        return 2 * y if y.is_contiguous() else y


def test_images_are_tried_with_their_channels_last() -> None:
    observer = InputObserver()
    with observer(model := ByLayout()):
        model(torch.randn(2, 3, 4, 5))
        model(torch.randn(3, 3, 6, 7))
    program = observer.export()
    assert not program.verify().verified
    assert [check.focus for check in program.tally.checks if not check.passed] == [Focus.LAYOUT]
