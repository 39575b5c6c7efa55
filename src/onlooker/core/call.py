"""One finished call of the watched method, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .path import Key, Path
from .spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from .structure import Structure, Tree, child_of
from .support.enums import StrEnum
from .surroundings import Surroundings

__all__ = [
    "ARGUMENTS",
    "OUTPUT",
    "STATE",
    "Arguments",
    "Call",
    "ChangedArgument",
    "Join",
    "Parameter",
    "Passed",
    "Passing",
    "Serve",
    "Signature",
    "Values",
    "changed_in",
]

#: the parts of a result that has more than what the method gives: its output, the new state of the
#: model, and the arguments that the call changed
OUTPUT, STATE, ARGUMENTS = "output", "state", "arguments"

#: the arguments of a call, by the names of the parameters
Arguments = dict[str, Any]
#: what takes the arguments of a call and gives its result: a model, a program
Serve = Callable[[Arguments], Any]
#: a value for each leaf of the arguments, by its path
Values = Mapping[Path, Any]


class Passing(StrEnum):
    """The ways in which an argument came to the method."""

    POSITIONAL = "positional"
    KEYWORD = "keyword"
    VAR_POSITIONAL = "*"
    VAR_KEYWORD = "**"


#: the arguments of a call, in their order: the name of each and how it was passed
Passed = tuple[tuple[str, Passing], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the watched method, as its signature has it.

    ``kind`` is the name of an ``inspect.Parameter`` kind, ``annotation`` is text, ``default`` is
    the default where that is a constant, ``default_object`` where that is an enum, a dtype or a
    device, and ``required`` is True where there is none.
    """

    name: str
    kind: str = "POSITIONAL_OR_KEYWORD"
    required: bool = True
    default: ConstantSpec | None = None
    annotation: str = ""
    default_object: OpaqueSpec | None = None

    @property
    def default_spec(self) -> Spec | None:
        """The default, as the leaf of a call that passes it."""
        return self.default_object if self.default is None else self.default


@dataclass(frozen=True, slots=True)
class ChangedArgument:
    """An argument that calls change and do not return: graphs give it beside the result.

    ``written`` are the leaves in it that stay the same tensor and get other values; the others are
    replaced.
    """

    name: str
    written: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """The list at ``path`` counts as the list of one tensor: all of them, concatenated along
    ``dim``. Without a dimension, what stands at ``path`` is objects that are not read, or one.

    ``results`` are places in the result that have the same, as where a model returns an argument:
    objects stand there as they came; lists of tensors count as one tensor too, and are split again
    for the caller.
    """

    path: Path
    dim: int | None
    results: tuple[Path, ...] = ()

    def __str__(self) -> str:
        if self.dim is None:
            return f"{self.path} is not read"
        return f"{self.path} is joined along {self.dim}"


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

    def default_of(self, path: Path) -> Spec | None:
        """The default of a whole argument, as the leaf of a call that passes it; None for a part of
        an argument, and where the recording has none.
        """
        parameter = self.get(path.root) if len(path.entries) == 1 else None
        return None if parameter is None else parameter.default_spec

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
    passed: Passed = ()
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
