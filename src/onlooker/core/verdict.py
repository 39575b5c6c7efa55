"""What trials of a program say: one Check per trial, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .enums import StrEnum
from .markup import heading, listing, table

__all__ = ["Check", "Focus", "Outcome", "Reach", "Scores", "Tallies", "Tally"]


class Outcome(StrEnum):
    """How one trial ended."""

    EXACT = "exact"
    DIFFERENT = "different"
    REJECTED = "rejected"
    FAILED = "failed"


class Focus(StrEnum):
    """What a trial looks at."""

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


class Reach(StrEnum):
    """Which sizes a verification speaks of."""

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
}
#: what a verdict begins with
_LEADS = {
    Reach.UNSEEN: "",
    Reach.WATCHED_TRIED: "tried at the watched sizes alone: ",
    Reach.WATCHED_SERVED: "serves the watched sizes alone: ",
}
#: so many axes and sizes are named in a verdict
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Scores:
    """How near the scores of a program come to those of the model: the largest difference, and of
    how many rows the largest score stands at the same place. For the scores of a language model such
    a row is a token. Scores add up.

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
    measured where a program is no exact copy of the model.
    """

    kind: str
    label: str
    outcome: Outcome
    sizes: tuple[tuple[str, int], ...] = ()
    difference: float = 0.0
    note: str = ""
    focus: Focus | None = None
    scores: Scores | None = None

    @property
    def passed(self) -> bool:
        """True where the program gave what the model gives."""
        return self.outcome is Outcome.EXACT


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of checks. Tallies add up.

    ``refused`` are the sizes outside all contracts that were tried too: the model takes them, the
    program refuses them, as it should. They are no checks. ``left_out`` is the number of trials that
    were not made, since each run of a large model is long. ``blocked`` are graphs that cannot be
    run here, each with the reason: nothing was tried then. ``reach`` says which sizes were tried.

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
    >>> Tally((seen, new)).verdict
    'not verified: 1 of 2 trials failed'
    """

    checks: tuple[Check, ...] = ()
    refused: tuple[str, ...] = ()
    left_out: int = 0
    blocked: tuple[str, ...] = ()
    reach: Reach = Reach.UNSEEN

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
        )

    @property
    def verdict(self) -> str:
        """Whether the program is verified, in a sentence that begins with what was left out; and why
        not, where it is not.
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
        share = f" on {self.total} of {self.total + self.left_out} trials" if self.left_out else ""
        return f"{_LEADS[self.reach]}{word}{share}"

    @property
    def _reasons(self) -> str:
        """Why the program is not verified: axes that stay numbers first, then trials that failed."""
        failed = [check for check in self.checks if not check.passed]
        axes = [check.label for check in failed if check.focus is Focus.AXES]
        given = [check.label for check in failed if check.focus is Focus.GIVEN]
        others = len(failed) - len(axes) - len(given)
        reasons = []
        if axes:
            stays = "stays a number" if len(axes) == 1 else "stay numbers"
            reasons.append(f"{_named(axes)} {stays}")
        if given:
            count = "1 given size" if len(given) == 1 else f"{len(given)} given sizes"
            reasons.append(f"{count} failed ({_named(given)})")
        if others:
            reasons.append(f"{others} of {self.total} trials failed")
        return "; ".join(reasons) or "only observed calls were tried"

    @property
    def counts(self) -> dict[Focus, int]:
        """How many checks there are of each kind, in the order of :class:`Focus`."""
        found = Counter(map(_focus, self.checks))
        return {focus: found[focus] for focus in Focus if found[focus]}

    @property
    def summary(self) -> str:
        """How many checks there are of each kind, in words: ``12 of unseen sizes, 8 at bounds``."""
        counted = ", ".join(f"{count} {_WORDS[focus]}" for focus, count in self.counts.items())
        outside = (
            f"{len(self.refused)} outside the contracts, which the program refuses"
            if self.refused
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
        return "; ".join(part for part in (counted, outside, left_out, blocked) if part)

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

    def _repr_html_(self) -> str:
        """How many checks of each kind hold, and those that do not, for notebooks."""
        rows = []
        for focus in self.counts:
            own = [check for check in self.checks if _focus(check) is focus]
            passed = sum(check.passed for check in own)
            worst = max(check.difference for check in own)
            rows.append((_WORDS[focus], passed, len(own), f"{worst:.2g}"))
        failed = [(c.label, c.outcome.value, c.note) for c in self.checks if not c.passed]
        told = [f"cannot be run here: {text}" for text in self.blocked]
        told += [f"outside the contracts, and refused: {text}" for text in self.refused]
        return (
            heading(self.verdict, f"{self.passed} of {self.total} trials passed")
            + table(("trials", "passed", "of", "largest difference"), rows)
            + table(("failed trial", "outcome", "note"), failed)
            + listing(told)
        )


def _named(labels: Sequence[str]) -> str:
    """The first labels, and how many more there are."""
    more = len(labels) - _MOST_NAMED
    return "; ".join([*labels[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _focus(check: Check) -> Focus:
    """What a check looks at; one of an older version says it by its kind alone."""
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
    def summary(self) -> str:
        """The summary of each tally, in a line of its own."""
        return "\n".join(f"{name}: {tally.summary}" for name, tally in self.tallies)
