"""One finished call of the watched method, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from .enums import StrEnum
from .path import Key, Path
from .spec import ConstantSpec, Spec, TensorSpec
from .structure import Structure, Tree, child_of
from .surroundings import Surroundings

__all__ = [
    "ARGUMENTS",
    "OUTPUT",
    "STATE",
    "Call",
    "ChangedArgument",
    "Parameter",
    "Passing",
    "Signature",
    "changed_in",
]

#: the parts of a result that has more than what the method gives: its output, the new state of the
#: model, and the arguments that the call changed
OUTPUT, STATE, ARGUMENTS = "output", "state", "arguments"


class Passing(StrEnum):
    """How an argument came to the method."""

    POSITIONAL = "positional"
    KEYWORD = "keyword"
    VAR_POSITIONAL = "*"
    VAR_KEYWORD = "**"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the watched method, as its signature has it.

    ``kind`` is the name of an ``inspect.Parameter`` kind, ``annotation`` is text, ``default`` is
    the default where that is a constant, and ``required`` is True where there is none.
    """

    name: str
    kind: str = "POSITIONAL_OR_KEYWORD"
    required: bool = True
    default: ConstantSpec | None = None
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class ChangedArgument:
    """An argument that calls change and do not return: graphs give it beside the result.

    ``written`` are the leaves in it that stay the same tensor and get other values; the others are
    replaced.
    """

    name: str
    written: tuple[Path, ...] = ()


def changed_in(structure: Structure) -> tuple[str, ...]:
    """The arguments that a result with this structure has beside its output."""
    given = child_of(structure, Key(ARGUMENTS))
    entries = () if given is None else given.entries
    return tuple(str(entry.key) for entry in entries if isinstance(entry, Key))


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of the watched method, without ``self``."""

    parameters: tuple[Parameter, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in their order."""
        return tuple(p.name for p in self.parameters)

    def get(self, name: str) -> Parameter | None:
        """The parameter called ``name``, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    def of_kind(self, kind: str) -> str | None:
        """The name of the first parameter of an ``inspect.Parameter`` kind, or None."""
        return next((p.name for p in self.parameters if p.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Call:
    """A finished call: what went in and what came out, by specs, and how long it took.

    ``index`` counts the finished calls of a recording from 0. ``passed`` says of each argument, in
    the order of the signature, how it came. A call that raised is not a Call. ``count`` is the
    number of calls that this one stands for: later calls with the same specs, passed in the same
    way, are counted and not repeated. ``surroundings`` are autocast and gradients as they were when
    the method was called; None where nobody noted them, as in recordings of older versions.
    """

    index: int
    inputs: Tree[Spec]
    outputs: Tree[Spec]
    passed: tuple[tuple[str, Passing], ...] = ()
    seconds: float = 0.0
    count: int = 1
    surroundings: Surroundings | None = None

    @property
    def constants(self) -> tuple[tuple[Path, ConstantSpec], ...]:
        """The inputs that are constants and no sizes: ints are left out, they may count
        something.
        """
        return tuple(
            (path, spec)
            for path, spec in self.inputs.items()
            if isinstance(spec, ConstantSpec) and not spec.is_int
        )

    @property
    def n_tensors(self) -> int:
        """The number of input leaves that are tensors."""
        return sum(isinstance(spec, TensorSpec) for spec in self.inputs.leaves)
