"""Figures of matplotlib, for notebooks: sizes over the calls, and two sizes beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MissingPackageError

__all__ = ["Points", "TriedPair", "figure_of"]

_MOST_PANELS = 8
#: marks that are told apart without colour
_MARKS = "os^Dvp*X"


@dataclass(frozen=True, slots=True)
class Points:
    """The sizes of one symbol or axis, call by call; None for a call that has none."""

    name: str
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TriedPair:
    """Two sizes that were tried together, and whether the trial passed."""

    x: int
    y: int
    passed: bool


def figure_of(
    title: str,
    columns: Sequence[Points],
    groups: Sequence[str],
    pair: tuple[Points, Points] | None = None,
    tried: Sequence[TriedPair] = (),
) -> Any:
    """A ``matplotlib.figure.Figure``: a panel for each column over the calls, coloured by group,
    and one more for a pair of columns with the sizes that were tried.

    :raises MissingPackageError: ``missing-package``
    """
    try:
        import matplotlib.pyplot  # noqa: F401 - notebooks show figures since this import
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MissingPackageError(
            "A figure is drawn by matplotlib, which is not installed.",
            slug="missing-package",
            hint="pip install matplotlib, or write a page without it: onlooker html.",
        ) from error
    shown = columns[:_MOST_PANELS]
    count = len(shown) + (pair is not None)
    height = 1.7 * len(shown) + (3.4 if pair is not None else 0)
    figure = Figure(figsize=(7, max(height, 2)), layout="constrained")
    more = len(columns) - len(shown)
    figure.suptitle(f"{title} ({more} more are not drawn)" if more > 0 else title)
    ratios = [1.0] * len(shown) + ([2.0] if pair is not None else [])
    panels = figure.subplots(max(count, 1), 1, squeeze=False, height_ratios=ratios or None)[:, 0]
    for panel, column in zip(panels, shown, strict=False):
        _draw(panel, range(len(column.sizes)), column.sizes, groups)
        panel.set_ylabel(column.name)
        panel.set_xlabel("call")
    if pair is not None:
        x, y = pair
        _draw(panels[-1], x.sizes, y.sizes, groups)
        _draw_trials(panels[-1], tried)
        panels[-1].set_xlabel(x.name)
        panels[-1].set_ylabel(y.name)
    for panel in panels:
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
            low, high = axis.get_view_interval()
            if high - low < 1:  # one size alone: matplotlib would divide the tenths around it
                axis.set_view_interval(round(low) - 1, round(high) + 1, ignore=True)
    if len(set(groups)) > 1 or tried:
        panels[-1].legend(fontsize="small")
    return figure


def _draw(panel: Any, xs: Sequence[Any], ys: Sequence[Any], groups: Sequence[str]) -> None:
    for place, name in enumerate(dict.fromkeys(groups)):
        own = [(x, y) for x, y, group in zip(xs, ys, groups, strict=True) if group == name]
        known = [(x, y) for x, y in own if x is not None and y is not None]
        mark = _MARKS[place % len(_MARKS)]
        known_xs = [x for x, _ in known]
        known_ys = [y for _, y in known]
        panel.scatter(known_xs, known_ys, s=18, marker=mark, label=name)


def _draw_trials(panel: Any, tried: Sequence[TriedPair]) -> None:
    for passed, mark, colour, label in (
        (True, "+", "black", "tried"),
        (False, "x", "red", "failed"),
    ):
        own = [one for one in tried if one.passed is passed]
        if own:
            xs, ys = [one.x for one in own], [one.y for one in own]
            panel.scatter(xs, ys, s=36, marker=mark, c=colour, linewidths=0.9, label=label)
