"""What a script needs of one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.contract import Contract
from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Structure
from ..core.surroundings import Autocast

__all__ = ["GraphCode"]


@dataclass(frozen=True, slots=True)
class GraphCode:
    """One graph, as far as a script needs it.

    ``dynamic`` says per leaf of the result whether the graph gives it, ``sizes`` are those of the
    export, ``obtained`` what the program holds, ``contract`` for which sizes it is proven,
    ``named`` the expressions that torch took by name, with their bounds, and ``limits`` the least
    and the greatest value that was seen of a leaf of ints. ``oblivious`` is True where torch was
    asked to keep no guards on 0 and 1; ``autocast`` is what the calls were made in; ``hidden`` has,
    by container and attribute, the numbers and the dtype of tensors that are no leaves. Where calls
    change arguments and do not return them, ``changed`` are those that this graph gives beside the
    result.
    """

    plan: Plan
    outputs: Structure
    dynamic: tuple[bool, ...]
    output_names: tuple[str, ...]
    sizes: Mapping[str, int]
    obtained: Mapping[str, str] = field(default_factory=dict)
    contract: Contract = field(default_factory=Contract)
    named: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    oblivious: bool = False
    hidden: Mapping[Path, Mapping[str, tuple[object, str]]] = field(default_factory=dict)
    limits: Mapping[Path, tuple[float, float]] = field(default_factory=dict)
    autocast: tuple[Autocast, ...] = ()
    changed: tuple[str, ...] | None = None
