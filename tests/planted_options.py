"""Looks for later calls that a verified program serves wrongly, on the modules of ``planted_options_modules``.

:func:`examine` watches a module as a user would, exports it, verifies the program, and makes later calls of program and
model: results with their types, what a call leaves in its arguments, and the random state are compared. It also looks
whether the model is after ``export()`` and ``verify()`` what it was.

``python tests/planted_options.py --examples 200 --seed 1`` prints what was found. ``--module 17`` repeats number 17 of
that seed alone, ``--shrink`` as the simplest module with the same fault; ``--into FILE`` writes the faults to a file.
"""

from __future__ import annotations

import argparse
import collections
import copy
import logging
import random
import signal
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onlooker import InputObserver, OnlookerError, RejectedCallError
from planted import say, smaller
from planted_modules import Replayed, Unusable, loaded
from planted_options_modules import Call, Case, build, seeded
from red_team import alike

#: Seconds after which an export is taken for one that never ends.
LONGEST = 120


# calls


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of both signs, some of them 0."""
    generator = torch.Generator().manual_seed(seed * 7919 + sum(shape))
    drawn = torch.randn(shape, generator=generator) * 1.5
    return torch.where(drawn.abs() < 0.1, 0.0, drawn)


def holes(*shape: int) -> torch.Tensor:
    """A mask that hides something, and nothing in its first column."""
    found = (rand(*shape, seed=11) > -0.8).float()
    found[:, :1] = 1.0
    return found


def noted(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = True
    return tensor


def arguments_of(case: Case, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, made anew."""
    module = loaded(case.source)
    names = {"rand": rand, "holes": holes, "noted": noted, "torch": torch, "nn": torch.nn, "collections": collections}
    names |= {"pack": lambda *args, **kwargs: (args, kwargs), "Kind": module.Kind}
    return eval(f"pack({call.text})", names)


def new_model(case: Case) -> torch.nn.Module:
    """The module as its file makes it, with the globals of the file as they are at first."""
    module = loaded(case.source)
    sys.modules.pop(module.__name__)
    torch.manual_seed(0)
    random.seed(0)
    return loaded(case.source).Planted().eval()


def made(case: Case, function: Callable[..., Any], call: Call) -> tuple[Any, Any]:
    """What a call gives, and the arguments as it leaves them; an exception is a result."""
    args, kwargs = arguments_of(case, call)
    torch.manual_seed(len(call.text))
    with torch.set_grad_enabled(call.is_grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            return error, None
    return copy.deepcopy(plain(result)), (plain(args), plain(kwargs), torch.get_rng_state())


def plain(value: Any) -> Any:
    """The value with detached tensors, which can be copied."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return type(value)((key, plain(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return tuple(value) if isinstance(value, torch.Size) else value


def watched_calls_run(case: Case) -> bool:
    """True when the module serves its watched calls."""
    try:
        model = new_model(case)
    except Exception:
        return False
    return not any(isinstance(made(case, model, call)[0], Exception) for call in case.watched)


def case_of(seed: int, number: int) -> Case:
    """Module ``number`` of a seed."""
    return build(seeded(seed, number, watched_calls_run), watched_calls_run)


# what the model holds


def held(value: Any, seen: dict[int, str] | None = None, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """All that stands in a value, by path, as text: attributes, items, closures, what iterators come next."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield path, f"{type(value).__name__} {value.dtype} {value.requires_grad} {value.grad is None} {value.tolist()}"
        return
    if isinstance(value, torch.Generator):
        yield path, str(value.get_state().tolist())
        return
    if value is None or isinstance(value, (bool, int, float, str, type, types.ModuleType)):
        yield path, repr(value)
        return
    if id(value) in seen or depth > 9:
        yield path, f"as {seen.get(id(value))}"
        return
    seen[id(value)] = path
    yield path, type(value).__name__
    for name, item in inside(value):
        yield from held(item, seen, f"{path}{name}", depth + 1)


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name."""
    if isinstance(value, random.Random):
        yield "", str(value.getstate())
    elif isinstance(value, (dict, types.MappingProxyType)):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, collections.deque, set)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from ((f".cell{n}", cell.cell_contents) for n, cell in enumerate(value.__closure__ or ()))
        yield ".defaults", value.__defaults__
    elif isinstance(value, types.GeneratorType):
        yield "", str(value.gi_frame.f_locals if value.gi_frame else None)
    elif type(value).__module__ in ("itertools", "builtins"):
        yield "", repr(value)
    elif hasattr(value, "__dict__"):
        yield from ((f".{name}", item) for name, item in vars(value).items())


def standing(case: Case, model: torch.nn.Module) -> dict[str, str]:
    """Model, globals of its file, its class, and random states."""
    module = loaded(case.source)
    names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    found = dict(held(model, path="model"))
    for name, value in names.items():
        inside = dict(vars(value)) if isinstance(value, type) else value
        found |= dict(held(inside, path=name))
    found["torch"] = str(torch.get_rng_state().tolist())
    found["random"] = str(random.getstate())
    return {path: text for path, text in found.items() if not path.endswith("['__dict__']")}


# the oracle


@dataclass
class Finding:
    """What examining one module gave."""

    case: Case
    verified: bool = False
    error: str = ""
    is_crash: bool = False
    harm: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        """The kinds of faults of the module."""
        kinds = {"wrong": self.wrong, "harmed": self.harm, "crash": self.is_crash, "unserved": self.unserved}
        return [kind for kind, found in kinds.items() if found]

    @property
    def fault(self) -> str:
        return " and ".join(self.faults)


def examine(case: Case) -> Finding:
    """Watches, exports, verifies, and compares program and model on later calls."""
    finding = Finding(case)
    model = new_model(case)
    first = model_copy(model)
    started = time.process_time()
    signal.signal(signal.SIGALRM, _ended)
    signal.alarm(LONGEST)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _examined(case, model, first, finding)
    finally:
        signal.alarm(0)
    finding.seconds = time.process_time() - started
    return finding


def model_copy(model: torch.nn.Module) -> torch.nn.Module | None:
    """A copy; None where the model holds what has none, as a generator."""
    try:
        return copy.deepcopy(model)
    except TypeError:
        return None


def _ended(*_: Any) -> None:
    raise TimeoutError(f"longer than {LONGEST} seconds")


def _examined(case: Case, model: torch.nn.Module, first: torch.nn.Module | None, finding: Finding) -> None:
    observer = InputObserver(state=case.state)
    program = None
    with observer(model):
        for call in case.watched:
            made(case, model, call)
    before = standing(case, model)
    try:
        program = observer.export()
        finding.verified = bool(program.verify().verified)
    except Exception as error:
        finding.error = f"{type(error).__name__}: {error}"
        finding.is_crash = not isinstance(error, OnlookerError)
    after = standing(case, model)
    finding.harm = [
        f"{path}: {before.get(path, 'nothing')[:90]} became {after.get(path, 'nothing')[:90]}"
        for path in (before | after)
        if before.get(path) != after.get(path)
    ]
    beginning = first if case.state else model
    if program is not None and finding.verified and beginning is not None:
        compare(case, finding, beginning, program)


def compare(case: Case, finding: Finding, model: torch.nn.Module, program: Any) -> None:
    """Makes the watched calls and the later ones, in a row, of program and model."""
    if case.state:
        program.reset_state()
    for number, call in enumerate((*case.watched, *case.later)):
        got, left = made(case, program, call)
        if isinstance(got, RejectedCallError):
            finding.calls["refused"] += 1
            if number < len(case.watched) and "random" not in case.features:
                finding.unserved.append(f"{call}: {got}")
            continue
        expected, leaves = made(case, model, call)
        text = difference(expected, leaves, got, left)
        finding.calls[text.partition(":")[0] if text else "equal"] += 1
        if text not in FREE:
            finding.wrong.append(f"call {number}, {call}: {text}")


#: what is no fault
FREE = ("", "both raise", "served in another layout")


def difference(expected: Any, leaves: Any, got: Any, left: Any) -> str:
    """How a call of the program differs from one of the model; empty where it does not."""
    if isinstance(expected, Exception):
        if isinstance(got, Exception):
            return "both raise"
        if "view size is not compatible" in str(expected):  # the program may copy such a tensor first
            return "served in another layout"
        return f"served where the model raises: {type(expected).__name__}: {expected}, got {short(got)}"
    if isinstance(got, Exception):
        return f"raises: {type(got).__name__}: {got}"
    if not alike(expected, got):
        return f"differs: the model gives {short(expected)}, the program {short(got)}"
    if not alike(leaves[:2], left[:2]):
        return f"leaves other arguments: {short(leaves[:2])}, the program {short(left[:2])}"
    return "" if leaves[2].equal(left[2]) else "leaves another random state: "


def short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 160 else f"{text[:150]}..."


# what is reported


def described(finding: Finding) -> str:
    """The source of a module with its calls and faults."""
    case = finding.case
    body = case.source.partition("MISSING = object()\n")[2].strip()
    lines = [body, *(f"# watched: {call}" for call in case.watched)]
    lines.append(
        f"# {finding.fault or 'no fault'}; verified: {finding.verified}, state: {case.state}, {dict(finding.calls)}"
    )
    if finding.error:
        lines.append("# error: " + finding.error.replace("\n", "\n# "))
    for name in ("wrong", "harm", "unserved"):
        lines += [f"# {name}: {text}" for text in getattr(finding, name)[:5]]
    return "\n".join(lines)


def lines_of(findings: Sequence[Finding]) -> Iterator[str]:
    """The figures, one a line."""
    total = max(len(findings), 1)
    verified = sum(f.verified for f in findings)
    yield f"modules {len(findings)}, verified {verified} ({verified / total:.0%})"
    for kind in ("wrong", "harmed", "crash", "unserved"):
        yield f"{kind:<9} {sum(kind in f.faults for f in findings)}"
    calls: Counter[str] = sum((f.calls for f in findings), Counter())
    yield f"calls {dict(calls)}, {sum(f.seconds for f in findings) / total:.2f} s a module"
    kinds = {name for f in findings for name in f.case.features}
    for name in sorted(kinds):
        those = [f for f in findings if name in f.case.features]
        faulty = sum(bool(f.faults) for f in those)
        yield f"  {name:<18} {len(those):>4}, verified {sum(f.verified for f in those):>4}, faults {faulty}"


def shrunk(indices: Sequence[int], most: int = 60) -> Finding:
    """The simplest module with the same fault."""
    chooser = Replayed(indices)
    best, best_indices = examine(build(chooser, watched_calls_run)), chooser.taken
    tried = {best.case.source}
    improved = True
    while improved and len(tried) < most:
        improved = False
        for candidate in smaller(best_indices):
            chooser = Replayed(candidate)
            try:
                case = build(chooser, watched_calls_run)
            except Unusable:
                continue
            if case.source in tried or len(case.source) > len(best.case.source) or len(tried) >= most:
                continue
            tried.add(case.source)
            finding = examine(case)
            if finding.fault == best.fault:
                best, best_indices, improved = finding, chooser.taken, True
                break
    return best


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="how many modules")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", type=int, default=None, help="only this number of the seed")
    parser.add_argument("--shrink", action="store_true", help="print the simplest module with the fault of --module")
    parser.add_argument("--into", type=Path, default=None, help="the faults are written to this file")
    options = parser.parse_args(words)
    logging.getLogger(torch.__name__).setLevel(logging.CRITICAL)
    if options.module is not None:
        chooser = seeded(options.seed, options.module, watched_calls_run)
        finding = shrunk(chooser.left[::-1]) if options.shrink else examine(build(chooser, watched_calls_run))
        say(described(finding))
        return int(bool(finding.faults))
    findings = []
    for number in range(options.first, options.first + options.examples):
        finding = examine(case_of(options.seed, number))
        findings.append(finding)
        if finding.faults:
            text = f"# ---- --seed {options.seed} --module {number}: {finding.fault}\n{described(finding)}\n"
            if options.into is None:
                say(text)
            else:
                with options.into.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
    say("\n".join(lines_of(findings)))
    return int(any(finding.faults for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
