"""The verdict of trials of a program: one Check per trial, and their sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .distance import OutputDistance
from .drawing.alike import first_few
from .drawing.markup import heading, listing, table
from .support.enums import StrEnum

__all__ = ["Check", "Focus", "Outcome", "Reach", "Scores", "Tallies", "Tally"]


class Outcome(StrEnum):
    """The ways in which one trial can end."""

    EXACT = "exact"
    DIFFERENT = "different"
    REJECTED = "rejected"
    FAILED = "failed"


class Focus(StrEnum):
    """The kinds of trials, by what they look at."""

    OBSERVED = "observed"
    GIVEN = "given"
    SIZES = "sizes"
    BOUNDS = "bounds"
    PADDING = "padding"
    LEFT_OUT = "left-out"
    VALUES = "values"
    LAYOUT = "layout"
    EXTREME = "extreme"
    FLOATS = "floats"
    DRAWN = "drawn"
    REPEATED = "repeated"
    SEQUENCE = "sequence"
    AXES = "axes"
    DISTANCE = "distance"
    METRIC = "metric"


class Reach(StrEnum):
    """The sizes that a verification speaks of."""

    UNSEEN = "unseen"  #: sizes that no call and no export had were tried
    WATCHED_TRIED = "watched-tried"  #: no other size was tried, or the model takes no other one
    WATCHED_SERVED = "watched-served"  #: the graphs take no other size


_WORDS = {
    Focus.OBSERVED: "observed",
    Focus.GIVEN: "of given sizes",
    Focus.SIZES: "of unseen sizes",
    Focus.BOUNDS: "at bounds",
    Focus.PADDING: "with other padding",
    Focus.LEFT_OUT: "with arguments left out",
    Focus.VALUES: "with other values",
    Focus.LAYOUT: "in another layout",
    Focus.EXTREME: "with extreme values",
    Focus.FLOATS: "with other floats",
    Focus.DRAWN: "drawn by the seed",
    Focus.REPEATED: "repeated",
    Focus.SEQUENCE: "in sequence",
    Focus.AXES: "of axes that should change",
    Focus.DISTANCE: "of outputs that are too far",
    Focus.METRIC: "by a metric",
}
#: what a verdict begins with
_LEADS = {
    Reach.UNSEEN: "",
    Reach.WATCHED_TRIED: "tried at the watched sizes alone: ",
    Reach.WATCHED_SERVED: "serves the watched sizes alone: ",
}
#: a program is not advised to be accepted where fewer of its tokens are those of the model
_LEAST_SHARE = 0.5
#: so many axes and sizes are named in a verdict
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Scores:
    """The distance of the scores of a program from those of the model: the largest difference, and
    of how many rows the largest score stands at the same place. For the scores of a language model
    such a row is a token. Scores add up.

    >>> Scores(0.01, 9, 10) + Scores(0.03, 10, 10)
    Scores(difference=0.03, agreeing=19, count=20)
    >>> Scores(0.01, 9, 10).share
    0.9
    """

    difference: float = 0.0
    agreeing: int = 0
    count: int = 0

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            max(self.difference, other.difference),
            self.agreeing + other.agreeing,
            self.count + other.count,
        )

    @property
    def share(self) -> float:
        """The share of rows that agree; 1 where there are none."""
        return self.agreeing / self.count if self.count else 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of a program with the model in eager mode.

    ``kind`` is ``observed`` (a call that was watched) or ``unseen`` (sizes that no call and no
    export had), ``sizes`` the size of each symbol, ``difference`` the largest absolute difference
    of any output (infinite where a structure, dtype or shape differs, or a NaN meets a number).
    ``focus`` says what the trial looks at; a check of an older version has none. ``scores`` are
    measured where a program is no exact copy of the model. ``tolerance`` is the ``atol`` with which such
    a check that fails would hold: infinite where none would do, None where it was not measured.
    ``note`` says why a check failed, ``reason`` what the runtime said where it refused the call.
    """

    kind: str
    label: str
    outcome: Outcome
    sizes: tuple[tuple[str, int], ...] = ()
    difference: float = 0.0
    note: str = ""
    focus: Focus | None = None
    scores: Scores | None = None
    tolerance: float | None = None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """True where the program gave what the model gives."""
        return self.outcome is Outcome.EXACT

    @property
    def cause(self) -> str:
        """The reason for which the check failed: in the words of the runtime, where it refused the
        call.
        """
        return self.reason or self.note


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of checks. Tallies add up.

    ``refused`` are the sizes outside all contracts that were tried too: the model takes them, the
    program refuses them, as it should. They are no checks. ``left_out`` is the number of trials that
    were not made, since each run of a large model is long. ``blocked`` are graphs that cannot be
    run here, each with the reason: nothing was tried then. ``reach`` says which sizes were tried.
    ``watched_alone`` are the axes that calls changed and of which the graphs take the watched sizes alone.
    ``drawn`` are trials in which the model draws random numbers and the program draws others of its
    own: their shapes alone were compared, and they are no checks. ``distances`` are those of a program
    of another ``precision`` than its model, output by output: its floats are judged by these.

    ``verdict`` is the one sentence about a program: the program, its report and the command line
    show the same. It begins with what was left out.

    >>> seen = Check("observed", "call 0", Outcome.EXACT)
    >>> new = Check("unseen", "batch=5", Outcome.DIFFERENT, difference=0.5)
    >>> (Tally((seen,)) + Tally((new,))).verified
    False
    >>> Tally().verified
    False
    >>> Tally(blocked=("main: no kernels",)).summary
    'nothing was tried, since a graph cannot be run here: main: no kernels'
    >>> print((Tally((seen,)) + Tally((new,), ("batch=1",))).summary)
    1 observed, 1 of unseen sizes; 1 outside the contracts, which the program refuses
    >>> Tally((seen, replace(new, outcome=Outcome.EXACT)), left_out=190).verdict
    'verified on 2 of 192 trials'
    >>> Tally((seen, replace(new, outcome=Outcome.EXACT)), drawn=("batch=5, other values",)).verdict
    'verified but for random numbers'
    >>> Tally((seen, new)).verdict
    'not verified: 1 of 2 trials failed'
    >>> Tally((seen, replace(new, outcome=Outcome.EXACT)), precision="int8").verdict
    'verified as int8'
    >>> Tally((seen, replace(new, outcome=Outcome.EXACT)), watched_alone=("x.shape[1]",)).verdict
    'serves the watched sizes of x.shape[1] alone: verified'
    """

    checks: tuple[Check, ...] = ()
    refused: tuple[str, ...] = ()
    left_out: int = 0
    blocked: tuple[str, ...] = ()
    reach: Reach = Reach.UNSEEN
    drawn: tuple[str, ...] = ()
    precision: str = ""
    distances: tuple[OutputDistance, ...] = ()
    watched_alone: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if not self.checks:
            return f"<Tally: {self.summary or 'nothing was tried'}>"
        return f"<Tally: {self._judgement}, {self.passed} of {self.total}: {self.summary}>"

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.checks + other.checks,
            self.refused + other.refused,
            self.left_out + other.left_out,
            self.blocked + other.blocked,
            self.reach if self.reach is other.reach else Reach.UNSEEN,
            self.drawn + other.drawn,
            self.precision or other.precision,
            self.distances + other.distances,
            tuple(dict.fromkeys((*self.watched_alone, *other.watched_alone))),
        )

    @property
    def verdict(self) -> str:
        """The verdict in a sentence that begins with what was left out; and why the program is not
        verified, where it is not.
        """
        if self.blocked:
            return f"not verified, since it cannot be run here: {'; '.join(self.blocked)}"
        if not self.checks:
            return "not verified: nothing was tried"
        return self._judgement if self.verified else f"{self._judgement}: {self._reasons}"

    @property
    def _judgement(self) -> str:
        """``verified`` or ``not verified``, with the share of trials where some were left out."""
        word = "verified" if self.verified else "not verified"
        word += f" as {self.precision}" if self.precision else ""
        word += " but for random numbers" if self.verified and self.drawn else ""
        share = f" on {self.total} of {self.total + self.left_out} trials" if self.left_out else ""
        return f"{self._lead}{word}{share}"

    @property
    def _lead(self) -> str:
        """The beginning of the verdict: the sizes that it speaks of, where these are not all."""
        if self.watched_alone and self.reach is not Reach.WATCHED_SERVED:
            return f"serves the watched sizes of {_named(self.watched_alone)} alone: "
        return _LEADS[self.reach]

    @property
    def _reasons(self) -> str:
        """Returns the reasons for which the program is not verified: axes that stay numbers first,
        then trials that failed.
        """
        failed = [check for check in self.checks if not check.passed]
        axes = [check.label for check in failed if check.focus is Focus.AXES]
        given = [check.label for check in failed if check.focus is Focus.GIVEN]
        measured = [check for check in failed if check.focus in (Focus.DISTANCE, Focus.METRIC)]
        others = len(failed) - len(axes) - len(given) - len(measured)
        reasons = []
        if axes:
            stays = "stays a number" if len(axes) == 1 else "stay numbers"
            reasons.append(f"{_named(axes)} {stays}")
        if given:
            count = "1 given size" if len(given) == 1 else f"{len(given)} given sizes"
            reasons.append(f"{count} failed ({_named(given)})")
        if measured:
            reasons.append(_named([f"{check.label}: {check.note}" for check in measured]))
        if others:
            reasons.append(f"{others} of {self.total} trials failed")
        return "; ".join(reasons) or "only observed calls were tried"

    @property
    def counts(self) -> dict[Focus, int]:
        """The number of checks of each kind, in the order of :class:`Focus`."""
        found = Counter(map(_focus, self.checks))
        return {focus: found[focus] for focus in Focus if found[focus]}

    @property
    def summary(self) -> str:
        """The number of checks of each kind, in words: ``12 of unseen sizes, 8 at bounds``."""
        counted = ", ".join(f"{count} {_WORDS[focus]}" for focus, count in self.counts.items())
        outside = (
            f"{len(self.refused)} outside the contracts, which the program refuses"
            if self.refused
            else ""
        )
        drawn = (
            f"{len(self.drawn)} more draw random numbers of their own: shapes alone were compared"
            if self.drawn
            else ""
        )
        left_out = (
            f"{self.left_out} more were left out, since each run of the model is long: verify again"
            if self.left_out
            else ""
        )
        blocked = (
            f"nothing was tried, since a graph cannot be run here: {', '.join(self.blocked)}"
            if self.blocked
            else ""
        )
        return "; ".join(part for part in (counted, outside, drawn, left_out, blocked) if part)

    def scores(self, kind: str) -> Scores:
        """The scores of all checks of a kind, ``observed`` or ``unseen``, together; of a call that
        is repeated once.
        """
        own = (each for each in self.checks if each.kind == kind)
        counted = (each for each in own if each.focus is not Focus.REPEATED)
        return sum((each.scores for each in counted if each.scores), Scores())

    @property
    def total(self) -> int:
        """The number of checks."""
        return len(self.checks)

    @property
    def passed(self) -> int:
        """The number of checks that hold."""
        return sum(check.passed for check in self.checks)

    @property
    def failed(self) -> int:
        """The number of checks that do not hold."""
        return self.total - self.passed

    @property
    def verified(self) -> bool:
        """True when every graph can be run, there are checks, unseen ones among them, and every
        one holds.
        """
        was_tried = any(check.kind == "unseen" for check in self.checks)
        return was_tried and self.failed == 0 and not self.blocked

    @property
    def difference(self) -> float:
        """The largest difference of any check."""
        return max((check.difference for check in self.checks), default=0.0)

    @property
    def accepting(self) -> dict[str, float]:
        """The arguments of a verification that would accept what was measured, ``atol`` and
        ``agreement``; empty where nothing failed, or where no such arguments can be meant.

        >>> far = Check("unseen", "batch=5", Outcome.DIFFERENT, tolerance=0.0131, scores=Scores(0.2, 306, 316))
        >>> Tally((far,)).accepting
        {'atol': 0.02}
        >>> Tally((far, Check("unseen", "tokens", Outcome.DIFFERENT, tolerance=0.0))).accepting
        {'atol': 0.02, 'agreement': 0.96}
        """
        wanted = [check.tolerance for check in self.checks if not check.passed]
        known = [tolerance for tolerance in wanted if tolerance is not None]
        if not wanted or len(known) < len(wanted) or math.isinf(max(known)):
            return {}
        found = {"atol": _rounded_up(max(known))} if max(known) else {}
        if 0.0 in known:  # the check of the tokens
            share = min(self.scores(kind).share for kind in ("observed", "unseen"))
            if share < _LEAST_SHARE:
                return {}
            found["agreement"] = math.floor(100 * share) / 100
        return found

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the number of checks of each kind that hold, and the checks
        that do not.
        """
        rows = []
        for focus in self.counts:
            own = [check for check in self.checks if _focus(check) is focus]
            passed = sum(check.passed for check in own)
            worst = max(check.difference for check in own)
            rows.append((_WORDS[focus], passed, len(own), f"{worst:.2g}"))
        failed = [(c.label, c.outcome.value, c.note) for c in self.checks if not c.passed]
        told = [f"cannot be run here: {text}" for text in self.blocked]
        told += [f"outside the contracts, and refused: {text}" for text in self.refused]
        told += [f"draws random numbers, not compared: {text}" for text in self.drawn]
        return (
            heading(self.verdict, f"{self.passed} of {self.total} trials passed")
            + table(("trials", "passed", "of", "largest difference"), rows)
            + table(("failed trial", "outcome", "note"), failed)
            + listing(told)
        )


def _rounded_up(number: float) -> float:
    """The next of 0.01, 0.02, 0.05, 0.1 and so on.

    >>> [_rounded_up(number) for number in (0.0131, 0.02, 0.3, 7.0)]
    [0.02, 0.02, 0.5, 10.0]
    """
    digits = -math.floor(math.log10(number))
    steps = (round(step * 10.0**-digits, digits + 1) for step in (1, 2, 5, 10))
    return next(step for step in steps if step >= number)


def _named(labels: Sequence[str]) -> str:
    """The first labels, and how many more there are."""
    return "; ".join(first_few(labels, _MOST_NAMED))


def _focus(check: Check) -> Focus:
    """Returns the focus of a check; one of an older version has it in its kind alone."""
    return check.focus or (Focus.OBSERVED if check.kind == "observed" else Focus.SIZES)


@dataclass(frozen=True, slots=True)
class Tallies:
    """The tallies of several programs, by the name of each, and their sum.

    The sum is verified where every tally is: one program with unseen sizes does not stand for
    another one without.

    >>> seen = Check("observed", "call 0", Outcome.EXACT)
    >>> new = Check("unseen", "batch=5", Outcome.EXACT)
    >>> both = Tallies((("unet", Tally((seen, new))), ("vae", Tally((seen,)))))
    >>> both.total, both.passed, both.verified
    (3, 3, False)
    >>> Tallies((("unet", Tally((seen, new))),)).verified
    True
    """

    tallies: tuple[tuple[str, Tally], ...] = ()

    def __repr__(self) -> str:
        counted = f"{self.passed} of {self.total} checks of {len(self.tallies)} programs"
        return f"<Tallies: {self.verdict}, {counted}>"

    @property
    def verdict(self) -> str:
        """One sentence over all programs: those that are not plainly verified are named, each with
        its own verdict.

        >>> Tallies((("unet", Tally()),)).verdict
        'not verified: unet is not verified: nothing was tried'
        """
        if not self.tallies:
            return "not verified: there is no program"
        word = "verified" if self.verified else "not verified"
        told = [
            f"{name} {'' if tally.reach is not Reach.UNSEEN else 'is '}{tally.verdict}"
            for name, tally in self.tallies
            if tally.verified == self.verified and tally.verdict != "verified"
        ]
        return f"{word}: {'; '.join(told)}" if told else word

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks; the label of each begins with the name of its program."""
        return tuple(
            replace(check, label=f"{name}: {check.label}")
            for name, tally in self.tallies
            for check in tally.checks
        )

    @property
    def total(self) -> int:
        """The number of checks."""
        return sum(tally.total for _, tally in self.tallies)

    @property
    def passed(self) -> int:
        """The number of checks that hold."""
        return sum(tally.passed for _, tally in self.tallies)

    @property
    def failed(self) -> int:
        """The number of checks that do not hold."""
        return self.total - self.passed

    @property
    def verified(self) -> bool:
        """True when there is a tally, and every one is verified."""
        return bool(self.tallies) and all(tally.verified for _, tally in self.tallies)

    @property
    def blocked(self) -> tuple[str, ...]:
        """The graphs that cannot be run here, each with the name of its program."""
        return tuple(f"{name}: {text}" for name, tally in self.tallies for text in tally.blocked)

    @property
    def difference(self) -> float:
        """The largest difference of any check."""
        return max((tally.difference for _, tally in self.tallies), default=0.0)

    @property
    def accepting(self) -> dict[str, float]:
        """The arguments that would accept what was measured of every program; empty where those of
        one would not.
        """
        failed = [tally for _, tally in self.tallies if tally.failed]
        if not all(tally.accepting for tally in failed):
            return {}
        found: dict[str, float] = {}
        for name, loosest in (("atol", max), ("agreement", min)):
            values = [tally.accepting[name] for tally in failed if name in tally.accepting]
            found |= {name: loosest(values)} if values else {}
        return found

    @property
    def summary(self) -> str:
        """The summary of each tally, in a line of its own."""
        return "\n".join(f"{name}: {tally.summary}" for name, tally in self.tallies)
