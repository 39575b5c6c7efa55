"""The plan of one graph: symbols, the expression of every axis, relations, presence, with Evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .drawing.alike import first_of, folded, folded_rows
from .drawing.markup import heading, listing, table
from .errors import UsageError
from .experiment import BlindSpot, Experiment
from .float_range import FloatRange
from .path import Path
from .sizes.expression import Expression
from .spec import Axis, ConstantSpec, OpaqueSpec
from .structure import Structure

__all__ = [
    "Evidence",
    "Fill",
    "LeafPlan",
    "Note",
    "Plan",
    "Range",
    "Relation",
    "Symbol",
    "symbol_names",
]

#: the least and the greatest size; None where there is no bound
Range = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The calls or probes that say so, and the number of distinct values that they had."""

    rows: tuple[str, ...] = ()
    distinct: int = 0

    def __str__(self) -> str:
        return f"{', '.join(_shortened(self.rows))} ({self.distinct} distinct)"


def _shortened(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The rows; of more than six the first three, how many are left out, and the last."""
    if len(rows) <= 6:
        return rows
    return (*rows[:3], f"{len(rows) - 4} more", rows[-1])


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may change.

    ``low`` and ``high`` are the least and the greatest size that the symbol may take (``high`` is
    None where nothing limits it), ``step`` divides every size, ``observed`` are the distinct sizes
    that were seen. ``limit`` says what ends at ``high`` where the model itself refuses larger
    sizes: ``128 rows of position_embeddings.weight, model.py:12``. With ``zero_by_trial``, 0 is in
    the range since the model took it in an experiment: no call had it, and nobody asked for it.
    """

    name: str
    observed: tuple[int, ...] = ()
    low: int = 1
    high: int | None = None
    step: int = 1
    evidence: Evidence = Evidence()
    limit: str = ""
    zero_by_trial: bool = False

    @property
    def range(self) -> str:
        """The range in words: ``1 and more``, ``1 to 64``, ``1 to 128 (128 rows of pe, model.py:12)``.

        A size of 0 that an experiment found stands elsewhere: see :attr:`is_empty_too`.
        """
        if self.high is None:
            return f"{self.least} and more"
        limit = f" ({self.limit})" if self.limit else ""
        return f"{self.least} to {self.high}{limit}"

    def conditions(self, variable: str) -> tuple[str, ...]:
        """The range as conditions on a variable that has the size.

        >>> Symbol("n", high=64, step=8).conditions("x.shape[0]")
        ('x.shape[0] >= 1', 'x.shape[0] <= 64', 'x.shape[0] % 8 == 0')
        """
        high = () if self.high is None else (f"{variable} <= {self.high}",)
        step = () if self.step == 1 else (f"{variable} % {self.step} == 0",)
        return (f"{variable} >= {self.low}", *high, *step)

    @property
    def least(self) -> int:
        """The least size, but for a size of 0 that an experiment found."""
        return 1 if self.is_empty_too else self.low

    @property
    def is_empty_too(self) -> bool:
        """True where the size may be 0 since the model took that in an experiment."""
        return self.zero_by_trial and self.low == 0

    def allows(self, size: int) -> bool:
        """True for a size in the range."""
        return self.low <= size and (self.high is None or size <= self.high)

    def takes(self, size: int) -> bool:
        """True for a size in the range that the step divides."""
        return self.allows(size) and size % self.step == 0

    def nearest(self, wanted: int) -> int:
        """The size nearest above ``wanted``, or below it, that the range and the step allow.

        >>> symbol = Symbol("height", low=30, high=100, step=16)
        >>> symbol.nearest(1), symbol.nearest(50), symbol.nearest(500)
        (32, 64, 96)
        """
        least = self._above(self.low)
        size = max(self._above(wanted), least)
        if self.high is None:
            return size
        return max(min(size, self.high // self.step * self.step), least)

    def sizes_up_to(self, most: int) -> Sequence[int]:
        """The sizes that the range and the step allow, up to ``most``."""
        end = most if self.high is None else min(most, self.high)
        return range(self._above(self.low), end + 1, self.step)

    def _above(self, size: int) -> int:
        """The least multiple of the step that is no smaller."""
        return -(-size // self.step) * self.step


@dataclass(frozen=True, slots=True)
class Relation:
    """``left == right`` over the rows that hold both sides; ``left % right == 0`` for a
    divisibility.
    """

    left: Axis
    right: Expression
    family: str
    evidence: Evidence = Evidence()

    def __str__(self) -> str:
        if self.family == "divisible":
            return f"{self.left} % {self.right} == 0"
        return f"{self.left} == {self.right}"


@dataclass(frozen=True, slots=True)
class Fill:
    """The value of a leaf that a call does not have, proven neutral.

    ``kind`` is ``empty`` (size 0 on the axis ``dim``), ``ones``, ``zeros`` (of the planned shape)
    or ``constant`` (an int, given by ``value``).
    """

    kind: str
    dim: int | None = None
    value: int = 0

    def __str__(self) -> str:
        if self.kind == "empty":
            return f"empty along {self.dim}"
        return str(self.value) if self.kind == "constant" else self.kind


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One input of the program.

    ``shape`` has an expression per dimension (empty for an int), ``value`` the expression of an int
    leaf and the constant of a specialized one. ``fill`` is used where a call does not have the leaf;
    without one a call has to bring it, and where it is ``bound``: a graph that was traced without it
    is another one. A constant is ``optional`` where the model does the same
    without it. ``calls`` counts the calls that had it. ``opaque`` is an object that could not be
    opened, which is a constant too.

    A float that changes from call to call is an input as well: ``floats`` are some of the values
    that calls had, the least and the greatest one among them. The graph takes it as a tensor of
    float64 without dimensions. Where the model compares it with numbers, the graph takes those
    ``between`` them alone.

    ``broadcast`` are dimensions that may be of size 1 in a call, where another axis of their symbol has
    its size: the graph gets the tensor expanded, and gives what the model gives.
    """

    path: Path
    dtype: str = ""
    device: str = ""
    shape: tuple[Expression, ...] = ()
    value: Expression | None = None
    constant: ConstantSpec | None = None
    fill: Fill | None = None
    calls: int = 0
    optional: bool = False
    floats: tuple[ConstantSpec, ...] = ()
    opaque: OpaqueSpec | None = None
    bound: bool = False
    broadcast: tuple[int, ...] = ()
    between: FloatRange | None = None

    @property
    def is_tensor(self) -> bool:
        """True for a tensor."""
        return bool(self.dtype)

    @property
    def is_float(self) -> bool:
        """True for a float that is an input."""
        return bool(self.floats)

    @property
    def float_class(self) -> str:
        """The class of a float that is an input: ``float``, or ``float64`` of numpy."""
        return type(self.floats[0].value).__name__ if self.floats else ""

    def takes_float(self, value: object) -> bool:
        """True for a float of the class that calls had, in the range that the graph takes: a scalar of numpy is
        no float of Python.
        """
        if not isinstance(value, float) or type(value).__name__ != self.float_class:
            return False
        return self.between is None or self.between.holds(float(value))

    @property
    def axes(self) -> tuple[tuple[Axis, Expression], ...]:
        """Every axis with its expression: one per dimension, or the one of an int."""
        if self.value is not None:
            return ((Axis(self.path, None), self.value),)
        return tuple(
            (Axis(self.path, dim), expression) for dim, expression in enumerate(self.shape)
        )

    @property
    def sizes(self) -> tuple[Expression, ...]:
        """The expression of each dimension, or the one of an int."""
        return self.shape if self.value is None else (self.value,)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in the sizes."""
        return frozenset(name for size in self.sizes for name in size.symbols)

    @property
    def empty_dim(self) -> int | None:
        """The dimension of size 0 where a call does not have the leaf, as the past of a cache; None
        for a leaf that is filled otherwise, or not at all.
        """
        return self.fill.dim if self.fill is not None and self.fill.kind == "empty" else None

    @property
    def is_constant(self) -> bool:
        """True for a leaf that is a constant of the graph."""
        return not self.dtype and self.value is None and not self.floats


def _of_symbol(symbol: Symbol) -> str:
    observed = ", ".join(map(str, symbol.observed))
    step = f", in steps of {symbol.step}" if symbol.step > 1 else ""
    return f"{symbol.name} was {observed} in {symbol.evidence}; it may be {symbol.range}{step}."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Note:
    """A note about some axes of a plan. A note about the whole plan is a text."""

    text: str
    axes: tuple[Axis, ...]

    def __str__(self) -> str:
        return self.text


def symbol_names(plan: Plan) -> tuple[str, ...]:
    """The names of the symbols of a plan, in their order."""
    return tuple(symbol.name for symbol in plan.symbols)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was inferred about the calls of a recording that one graph can serve.

    ``probes`` are the experiments with the model, the refused ones too, in their order; ``blind``
    says what neither calls nor experiments could tell, each with the run that would. ``needed`` are
    the arguments that no call may leave out though all their parts have fills: the model does
    something else without a cache than with an empty one. ``never_absent`` are sets of arguments such
    that no call may leave out just these, though each has fills. ``asked`` are the axes that the
    user wants to change, by ``dynamic=`` or by a range of their symbol.
    """

    name: str
    structure: Structure
    leaves: tuple[LeafPlan, ...]
    symbols: tuple[Symbol, ...] = ()
    relations: tuple[Relation, ...] = ()
    calls: tuple[int, ...] = ()
    notes: tuple[Note | str, ...] = ()
    method: str = "forward"
    model: str = field(default="")
    probes: tuple[Experiment, ...] = ()
    blind: tuple[BlindSpot | str, ...] = ()
    needed: tuple[str, ...] = ()
    asked: tuple[Axis, ...] = ()
    never_absent: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(symbol_names(self)) or "none"
        return f"<Plan {self.name} of {self.model}.{self.method}: {len(self.inputs)} inputs, sizes {names}>"

    @property
    def inputs(self) -> tuple[LeafPlan, ...]:
        """The leaves that the program takes: tensors, sizes and floats that change, no
        constants.
        """
        return tuple(leaf for leaf in self.leaves if not leaf.is_constant)

    def leaf(self, path: str) -> LeafPlan:
        """The leaf at a path, written as Python; of several, as in ``layers[0..3].keys``, the first
        one.

        :raises UsageError: ``path-not-found``
        """
        wanted = first_of(str(path))
        for leaf in self.leaves:
            if leaf.path.code() in (path, wanted):
                return leaf
        known = ", ".join(folded(leaf.path.code() for leaf in self.inputs))
        raise UsageError(f"The plan has no {path}.", slug="path-not-found", hint=f"It has {known}.")

    def may_be_absent(self, leaf: LeafPlan) -> bool:
        """True for a leaf whose argument a call may leave out, alone or together with others."""
        return (
            leaf.fill is not None and not leaf.bound and (leaf.path.root,) not in self.never_absent
        )

    def symbol(self, name: str) -> Symbol:
        """The symbol called ``name``.

        :raises UsageError: ``no-such-symbol``
        """
        for symbol in self.symbols:
            if symbol.name == name:
                return symbol
        known = ", ".join(symbol_names(self)) or "none"
        raise UsageError(
            f"The plan has no symbol {name!r}.", slug="no-such-symbol", hint=f"It has {known}."
        )

    def axes_of(self, name: str) -> tuple[Axis, ...]:
        """The axes whose size is the symbol called ``name`` itself."""
        return tuple(
            axis
            for leaf in self.inputs
            for axis, expression in leaf.axes
            if str(expression) == name
        )

    def axis_sizes(self, sizes: Mapping[str, int]) -> dict[Axis, int]:
        """The size of the first axis of each symbol, for a size per symbol."""
        found = {}
        for symbol in self.symbols:
            for axis in self.axes_of(symbol.name)[:1]:
                found[axis] = sizes[symbol.name]
        return found

    def symbol_sizes(self, experiment: Experiment) -> dict[str, int] | None:
        """The size of each symbol in an experiment; None where it says nothing of some, or is no
        call of this plan.
        """
        if any(axis.path not in {leaf.path for leaf in self.inputs} for axis in experiment.axes):
            return None
        pairs = [
            (self.expression(axis), size)
            for axis, size in zip(experiment.axes, experiment.sizes, strict=True)
        ]
        if any(
            expression.is_constant and str(expression) != str(size) for expression, size in pairs
        ):
            return None
        found = {str(expression): size for expression, size in pairs if expression.is_symbol}
        return found if len(found) == len(self.symbols) else None

    def explain(self, path: str, dim: int | None = None, *, full: bool = False) -> str:
        """The whole evidence of one axis, as text: what was seen, what follows from what, and who
        says so.

        ``path`` is written as Python (``"past_key_values.layers[0].keys"``), ``dim`` counts from 0
        and is None for an int. With ``full``, each axis is named that an experiment changed, also
        those of items of a list.

        :raises UsageError: ``path-not-found`` for a leaf or a dimension that the plan does not have
        """
        leaf = self.leaf(path)
        path = leaf.path.code()
        constant = leaf.constant or leaf.opaque
        if leaf.is_constant or (leaf.is_tensor and (dim is None or not 0 <= dim < len(leaf.shape))):
            raise UsageError(
                f"{path} has no dimension {dim}.",
                slug="path-not-found",
                hint=(
                    "It is"
                    f" {constant if leaf.is_constant else f'a tensor of {len(leaf.shape)} dimensions'}."
                ),
            )
        if leaf.is_float:
            return self._explained_float(leaf)
        axis = Axis(leaf.path, dim)
        expression = self.expression(axis)
        lines = [f"{axis} is {expression}."]
        if expression.is_constant:
            lines.append("It never changed, in calls and in probes.")
        lines += self._said_of(axis)
        if dim in leaf.broadcast:
            lines.append("It may be 1 where another input has the size: the graph broadcasts it.")
        lines += [_of_symbol(self.symbol(name)) for name in expression.symbols]
        lines += [f"{r} ({r.family}): {r.evidence}." for r in self.relations if r.left == axis]
        lines += [
            f"{experiment.text(full=full)}."
            for experiment in self.probes
            if experiment.is_about(axis)
        ]
        lines.append(f"{leaf.calls} of {len(self.calls)} calls had {path}.")
        if self.may_be_absent(leaf):
            lines.append(
                f"Where a call lacks it, it is {leaf.fill}: the model then gave what it gives"
                " without it."
            )
        return "\n".join(lines if full else folded(lines))

    def _repr_html_(self) -> str:
        """Inputs, symbols and relations, for notebooks."""
        inputs = [
            (
                leaf.path.code(),
                leaf.dtype.removeprefix("torch.") or "number",
                f"[{', '.join(map(str, leaf.shape))}]" if leaf.is_tensor else str(leaf.value),
                f"{leaf.calls} of {len(self.calls)}",
            )
            for leaf in self.inputs
        ]
        symbols = [
            (symbol.name, ", ".join(map(str, symbol.observed)), symbol.range, str(symbol.evidence))
            for symbol in self.symbols
        ]
        relations = [
            f"{relation} ({relation.evidence})"
            for relation in self.relations
            if relation.family != "equal"
        ]
        return (
            heading(f"plan {self.name} of {self.model}.{self.method}")
            + table(("input", "kind", "shape", "calls"), folded_rows(inputs))
            + table(("symbol", "observed or probed", "may be", "evidence"), symbols)
            + listing(folded(relations))
            + listing([str(spot) for spot in self.blind])
        )

    def _explained_float(self, leaf: LeafPlan) -> str:
        path = leaf.path.code()
        lines = [
            f"{path} is a float that is an input: calls had {', '.join(map(str, leaf.floats))}."
        ]
        if leaf.between is not None:
            lines.append(f"The model compares it with a number: the graph takes {leaf.between}.")
        lines += self._said_of(Axis(leaf.path, None))
        lines.append(f"{leaf.calls} of {len(self.calls)} calls had {path}.")
        return "\n".join(lines)

    def _said_of(self, axis: Axis) -> list[str]:
        """Returns the notes about an axis, and what no experiment could tell of it, as sentences."""
        said = [
            one
            for one in (*self.notes, *self.blind)
            if isinstance(one, (Note, BlindSpot)) and axis in one.axes
        ]
        return [_sentence(str(one)) for one in said]

    def expression(self, axis: Axis) -> Expression:
        """The expression of one axis."""
        leaf = self.leaf(axis.path.code())
        if axis.dim is None:
            return leaf.value if leaf.value is not None else Expression.constant(0)
        return leaf.shape[axis.dim]
