"""Looks for calls that a verified program serves wrongly: random modules with hidden branches, and an oracle.

:func:`examine` watches a module of ``planted_modules``, exports it and verifies the program, and then compares program
and model on a dense grid of sizes, with ordinary and with extreme values.

``python tests/planted.py --examples 200 --seed 1`` prints what was found, with the source of the first wrong modules.
``--module 17`` repeats number 17 of that seed alone, with ``--shrink`` as the simplest module that is wrong in the same
way, and ``--file FILE`` a module that was printed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import onlooker
from onlooker import InputObserver, OnlookerError, RejectedCallError
from planted_modules import (
    VALUES,
    Case,
    Replayed,
    Sizes,
    Unusable,
    are_alike,
    arguments,
    build,
    case_of,
    evaluated,
    load_model,
    run,
    seeded,
)

# the grid


def axis_values(case: Case, axis: str) -> list[int]:
    """Sizes around every constant, between the constants, small ones, the watched ones, and some far beyond."""
    if axis == "flag":
        return [0, 1]
    seen = {sizes[axis] for sizes in case.watched}
    limit = 10 if axis == "batch" else 100
    constants = sorted(constant for constant in set(case.constants) if abs(constant) <= limit)
    found = {0, 1, 2, 3, *seen}
    for constant in constants:
        found |= {constant - 1, constant, constant + 1}
    found |= {(a + b) // 2 for a, b in itertools.pairwise(constants)}
    greatest = max([*seen, *constants])
    found |= {greatest + 7, 2 * greatest + 1, 3 * greatest}
    if axis in ("k", "scale"):
        return sorted(found | {-1, -2, -greatest})
    if min(seen) < 0:
        found |= {-1}
    return sorted(size for size in found if size >= 0 or size in seen)


def flips(case: Case, condition: str, axis: str, base: Sizes, upto: int) -> Iterator[Sizes]:
    """Neighbouring sizes of an axis between which a condition changes."""
    before = None
    for size in range(-10 if axis in ("k", "scale") else 0, upto):
        sizes = {**base, axis: size}
        value = bool(evaluated(condition, case.inputs, sizes))
        if before is not None and value != before[1]:
            yield before[0]
            yield sizes
        before = sizes, value


def grid(case: Case, most: int = 140) -> list[Sizes]:
    """The sizes of the calls that are compared, without the watched ones."""
    chooser = random.Random(case.source)
    values = {axis: axis_values(case, axis) for axis in case.axes}
    bases: list[Sizes] = [*case.watched]
    bases += [{axis: chooser.choice(values[axis]) for axis in case.axes} for _ in range(3)]
    changes: list[Sizes] = []
    for condition, base, axis in itertools.product(case.conditions, bases, case.axes):
        found = list(flips(case, condition, axis, base, 16 if axis == "batch" else 120))
        changes += found[:4] + chooser.sample(found, min(len(found), 4))
    along = [{**base, axis: size} for base in case.watched for axis in case.axes for size in values[axis]]
    anywhere = [{axis: chooser.choice(values[axis]) for axis in case.axes} for _ in range(most)]
    chosen: dict[tuple[int, ...], Sizes] = {}
    for group in (changes, along, anywhere):
        chooser.shuffle(group)
        for sizes in group[: most // 2]:
            chosen[tuple(sizes.values())] = sizes
    points = [sizes for sizes in chosen.values() if sizes not in case.watched]
    if are_alike(case.watched):
        points += [{**sizes, "other": sizes["length"]} for sizes in points]
    return points


# the oracle


def difference(expected: Any, got: Any) -> str:
    """How two results differ; empty when they are equal."""
    if type(expected) is not type(got):
        return f"{type(got).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, dict):
        return difference(tuple(expected.items()), tuple(got.items()))
    if isinstance(expected, tuple):
        if len(expected) != len(got):
            return f"{len(got)} results instead of {len(expected)}"
        return next(filter(None, itertools.starmap(difference, zip(expected, got, strict=True))), "")
    if not isinstance(expected, torch.Tensor):
        return "" if expected == got else f"{got!r} instead of {expected!r}"
    return tensor_difference(expected, got)


def tensor_difference(expected: torch.Tensor, got: torch.Tensor) -> str:
    """NaN equals NaN, and an infinity itself; all else within 1e-5 times (1 + the largest finite value)."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{got.dtype} {tuple(got.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if torch.equal(expected, got):
        return ""
    finite = expected.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return "another pattern of NaN or infinities"
    if not torch.equal(expected[~finite].nan_to_num(), got[~finite].nan_to_num()):
        return "another kind of NaN or infinity"
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    worst = (expected[finite] - got[finite]).abs().max().item() if finite.any() else 0.0
    return f"differs by {worst:.6g}, the largest value is {scale:.6g}" if worst > 1e-5 * (1 + scale) else ""


@dataclass(frozen=True)
class Wrong:
    """A call that a program served with other results than the model gives."""

    sizes: Sizes
    values: str
    text: str

    def __str__(self) -> str:
        return f"{dict(self.sizes)}, {self.values} values: {self.text}"


@dataclass
class Finding:
    """What examining one module gave; the calls are counted by what became of them."""

    case: Case
    verified: bool = False
    error: str = ""
    is_crash: bool = False
    watched_served: bool = False
    graphs: int = 0
    conditions: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """True when the program is verified, and served a call with other numbers than the model."""
        return self.verified and bool(self.wrong)

    @property
    def place(self) -> str:
        """Where the wrong calls are, named by the least unusual of them."""
        sizes = [[size for axis, size in wrong.sizes.items() if axis not in NUMBERS_GIVEN] for wrong in self.wrong]
        if any(wrong.sizes in self.case.watched for wrong in self.wrong):
            return "at watched sizes, for other values"
        if all(0 in call for call in sizes):
            return "only where a size is 0"
        if all(0 in call or 1 in call for call in sizes):
            return "only where a size is 0 or 1"
        if all(len(set(call)) < len(call) for call in sizes):
            return "only where two sizes are equal, or one is 0"
        if all(wrong.values != "ordinary" for wrong in self.wrong):
            return "at other sizes, for extreme values"
        return "at other sizes, for ordinary values"


#: Axes that are numbers of Python.
NUMBERS_GIVEN = ("k", "flag", "scale")


def outcome(model: Callable[..., Any], program: Callable[..., Any], call: tuple[Any, ...]) -> tuple[str, str]:
    """What became of a call: equal, differs, refused, crashed, or what the program did where the model refuses."""
    expected = run(model, call)
    try:
        with torch.no_grad():
            got = program(*call)
    except RejectedCallError:
        return ("model refuses" if expected is None else "refused"), ""
    except Exception as error:
        return ("model refuses" if expected is None else "crashed"), f"{type(error).__name__}: {error}"
    if expected is None:
        return "served where the model refuses", ""
    found = difference(expected, got)
    return ("differs", found) if found else ("equal", "")


def watch(case: Case, model: torch.nn.Module) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for sizes in case.watched:
            model(*arguments(case, sizes))
    return observer


#: Every size is tried with large values, and with one of these.
SECOND_VALUES = ("ordinary", "special", "ordinary", "special", "zero", "ordinary", "transposed")


def compare(finding: Finding, model: torch.nn.Module, program: Callable[..., Any]) -> None:
    """Runs model and program on the watched calls and on the grid."""
    case = finding.case
    served = [outcome(model, program, arguments(case, sizes))[0] for sizes in case.watched]
    finding.watched_served = set(served) <= {"equal", "differs"}
    points = [(sizes, values) for sizes in case.watched for values in VALUES]
    for number, sizes in enumerate(grid(case)):
        points.append((sizes, "large"))
        points.append((sizes, SECOND_VALUES[number % len(SECOND_VALUES)]))
    for sizes, values in points:
        kind, text = outcome(model, program, arguments(case, sizes, values))
        finding.calls[kind] += 1
        if kind == "differs":
            finding.wrong.append(Wrong(sizes, values, text))
        elif kind == "crashed" and not finding.error:
            finding.error = text


def conditions_of(program: onlooker.Program) -> Counter[str]:
    """The conditions of all graphs: those that stayed by their origin, those that went by their evidence."""
    found: Counter[str] = Counter()
    for graph in program.graphs:
        stayed = {(c.formula, c.origin) for region in graph.contract.regions for c in region.constraints}
        found.update(f"stayed, {origin.value}" for _, origin in stayed)
        found.update(f"dropped, {kind_of(dropped.evidence)}" for dropped in graph.contract.dropped)
    return found


def kind_of(evidence: str) -> str:
    """The evidence without the sizes in it: all digits, names and what follows a colon are left out."""
    return re.sub(r"\s+", " ", re.sub(r"\b[a-z_0-9]+ = -?\d+,?|-?\d+", "", evidence.partition(":")[0])).strip()


def examine(case: Case) -> Finding:
    """Watches, exports and verifies a module, and compares program and model on the grid."""
    finding = Finding(case)
    model = load_model(case)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = watch(case, model).export()
            finding.seconds["export"] = time.process_time() - started
            finding.verified = bool(program.verify().verified)
            finding.graphs = len(program.graphs)
            finding.conditions = conditions_of(program)
        except Exception as error:
            finding.error = f"{type(error).__name__}: {error}"
            finding.is_crash = not isinstance(error, OnlookerError)
            finding.seconds["export"] = time.process_time() - started
            return finding
        finally:
            finding.seconds["total"] = time.process_time() - started
        compare(finding, model, program)
    finding.seconds["total"] = time.process_time() - started
    return finding


# what is reported


@dataclass
class Summary:
    """The findings of many modules, and what they come to."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_wrong]

    @property
    def watched_share(self) -> float:
        """The share of modules of which every watched call is served."""
        return share(sum(finding.watched_served for finding in self.findings), len(self.findings))

    def calls(self, only_same: bool = False) -> Counter[str]:
        found: Counter[str] = Counter()
        for finding in self.findings:
            if not only_same or has_same_arms(finding.case):
                found.update(finding.calls)
        return found

    def lines(self) -> Iterator[str]:
        """The figures, one a line."""
        n_modules = len(self.findings)
        yield f"modules                     {n_modules}"
        yield f"verified                    {sum(f.verified for f in self.findings)}"
        yield f"wrong although verified     {len(self.wrong)}"
        unverified = sum(bool(f.wrong) and not f.verified for f in self.findings)
        yield f"wrong and not verified      {unverified}"
        yield f"no program                  {sum(not f.calls for f in self.findings)}"
        yield f"export or verify crashes    {sum(f.is_crash for f in self.findings)}"
        yield f"every watched call served   {self.watched_share:.1%}"
        for title, only_same in (("all modules", False), ("modules whose arms are the same", True)):
            counted = self.calls(only_same)
            taken = sum(counted[kind] for kind in ("equal", "differs", "refused", "crashed"))
            served = counted["equal"] + counted["differs"]
            yield f"served of the grid          {share(served, taken):.1%} ({title})"
        yield f"calls                       {dict(self.calls())}"
        conditions: Counter[str] = sum((f.conditions for f in self.findings), Counter())
        yield from (f"conditions {kind:<16} {count:>5}" for kind, count in conditions.most_common())
        yield f"graphs                      {dict(sorted(Counter(f.graphs for f in self.findings).items()))}"
        for kind in ("export", "total"):
            seconds = sum(f.seconds.get(kind, 0.0) for f in self.findings)
            yield f"seconds a module, {kind:<9} {seconds / max(n_modules, 1):.2f}"

    def places(self) -> Iterator[str]:
        """Where the wrong calls of the wrong modules are."""
        for place, count in Counter(finding.place for finding in self.wrong).most_common():
            yield f"  {place:<44} {count:>4}"

    def classes(self) -> Iterator[str]:
        """Each feature with how many of its modules are wrong."""
        planted: Counter[str] = Counter(name for f in self.findings for name in f.case.features)
        found: Counter[str] = Counter(name for f in self.wrong for name in f.case.features)
        for name, count in sorted(planted.items()):
            yield f"  {name:<32} {found[name]:>4} of {count}"


def share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def has_same_arms(case: Case) -> bool:
    """True when no planted branch and no step changes the result."""
    kinds = {name for name in case.features if name.startswith(("arms", "step"))}
    return kinds <= {"arms same", "step needless"}


def described(finding: Finding) -> str:
    """The source of a module with what was watched, and which calls went wrong; ``--file`` reads it again."""
    case = finding.case
    lines = [
        case.source,
        f"# inputs: {case.inputs!r}",
        f"# watched: {[dict(sizes) for sizes in case.watched]}",
        f"# conditions: {case.conditions}",
        f"# constants: {case.constants}",
        f"# verified: {finding.verified}, graphs: {finding.graphs}, calls: {dict(finding.calls)}",
    ]
    lines += [f"# wrong at {wrong}" for wrong in finding.wrong[:6]]
    if finding.error:
        lines.append("# " + finding.error.replace("\n", "\n# "))
    return "\n".join(lines)


def read_case(text: str) -> Case:
    """The module that was printed."""
    fields = {}
    for name in ("inputs", "watched", "conditions", "constants"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"# {name}: ")]
        fields[name] = ast.literal_eval(line.partition(": ")[2])
    watched = tuple(fields["watched"])
    return Case(text, fields["inputs"], watched, fields["conditions"], fields["constants"])


def examined(n_modules: int, seed: int, progress: Callable[[int, Finding], None] | None = None) -> Summary:
    """Examines the modules of a seed."""
    summary = Summary()
    for number in range(n_modules):
        finding = examine(case_of(seed, number))
        summary.findings.append(finding)
        if progress is not None:
            progress(number, finding)
    return summary


# smaller modules


def smaller(indices: Sequence[int]) -> Iterator[list[int]]:
    """The choices of simpler modules: some are left out, or replaced by the simplest option, or by a simpler one."""
    for width in (32, 16, 8, 4, 2, 1):
        for start in range(0, len(indices), width):
            end = start + width
            yield [*indices[:start], *indices[end:]]
            yield [*indices[:start], *[0] * len(indices[start:end]), *indices[end:]]
            if width == 1:
                yield [*indices[:start], indices[start] // 2, *indices[end:]]


def shrunk(indices: Sequence[int], most: int = 150) -> Finding:
    """The simplest module that is wrong in the same place: the choices are simplified as long as it stays wrong."""
    chooser = Replayed(indices)
    best, best_indices = examine(build(chooser)), chooser.taken
    tried = {best.case.source}
    improved = True
    while improved and len(tried) < most:
        improved = False
        for candidate in smaller(best_indices):
            chooser = Replayed(candidate)
            try:
                case = build(chooser)
            except Unusable:
                continue
            if case.source in tried or len(case.source) > len(best.case.source) or len(tried) >= most:
                continue
            tried.add(case.source)
            finding = examine(case)
            if finding.is_wrong and finding.place == best.place:
                best, best_indices, improved = finding, chooser.taken, True
                break
    return best


# the command


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="how many modules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=3, help="how many wrong modules are printed")
    parser.add_argument("--module", type=int, default=None, help="only this number of the seed")
    parser.add_argument("--shrink", action="store_true", help="print the simplest module that is wrong like --module")
    parser.add_argument("--file", type=Path, default=None, help="only the module that was printed into this file")
    options = parser.parse_args(words)
    logging.getLogger(torch.__name__).setLevel(logging.CRITICAL)
    if options.file is not None:
        return shown(examine(read_case(options.file.read_text(encoding="utf-8"))))
    if options.module is not None:
        chooser = seeded(options.seed, options.module)
        return shown(shrunk(chooser.left[::-1]) if options.shrink else examine(build(chooser)))
    n_printed = 0

    def progress(number: int, finding: Finding) -> None:
        nonlocal n_printed
        if finding.is_wrong and n_printed < options.show:
            n_printed += 1
            say(f"# ---- --seed {options.seed} --module {number}: wrong although verified\n{described(finding)}\n")

    summary = examined(options.examples, options.seed, progress)
    say("\n".join(summary.lines()))
    say("where the wrong calls are:\n" + "\n".join(summary.places()))
    say("wrong modules by what was planted:\n" + "\n".join(summary.classes()))
    return int(bool(summary.wrong))


def shown(finding: Finding) -> int:
    """Prints one finding; 1 when it is wrong."""
    say(described(finding))
    return int(finding.is_wrong)


if __name__ == "__main__":
    sys.exit(main())
