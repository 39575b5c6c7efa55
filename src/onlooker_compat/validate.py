"""``validate_ep``: an exported program against its model, on its inputs and on others grown from
them.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onlooker.core.errors import ExportError, UsageError
from onlooker.core.support.kinds import ArgsKwargs
from onlooker.pytrees.deepcopy import torch_deepcopy
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.registry import register_flattening_functions

from .shapes.couple import CoupleInputsDynamicShapes
from .trees.compare import max_diff, string_diff

__all__ = ["validate_ep"]

Row = dict[str, Any]


def validate_ep(
    ep: torch.export.ExportedProgram | torch.nn.Module,
    mod: Callable[..., Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    copy: bool = False,
    dynamic_shapes: Any = None,
    values_to_try: Mapping[str, Sequence[int]] | None = None,
    exc: bool = True,
    atol: float = 1e-2,
    rtol: float = 1e-1,
) -> list[Row]:
    """Runs a program, and the model beside it, on the given inputs and on every combination of
    other sizes.

    :param ep: the exported program, or the module that it gives
    :param mod: the model, which gives the expected values; without it the program is only run
    :param args: the positional arguments
    :param kwargs: the named arguments
    :param copy: gives each of the two its own copy of the inputs; inputs other than tensors, such
        as a cache, are copied in any case, since a model changes them in place
    :param dynamic_shapes: the shapes that belong to the arguments, with names
    :param values_to_try: the sizes to try by name; all combinations are run, any other dimension
        with a name gets its size + 1
    :param exc: raises at the first failure, which is a row with ``"error"`` otherwise
    :param atol: the largest absolute difference that passes
    :param rtol: the largest relative difference that passes; a NaN against a number never does
    :return: one row per run: ``args``, ``kwargs``, ``sizes`` (those that were asked for), ``got``,
        and with a model ``expected``, ``diff`` (see :func:`onlooker.max_diff`) and ``SUCCESS``
    :raises ExportError: ``program-differs`` when the program fails or differs, and ``exc`` is True
    :raises UsageError: ``sizes-without-shapes`` when only one of ``dynamic_shapes`` and
        ``values_to_try`` is given

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> x, dynamic = torch.ones(3, 2), torch.export.Dim.DYNAMIC
    >>> ep = torch.export.export(Double(), (x,), dynamic_shapes=({0: dynamic},))
    >>> rows = validate_ep(ep, Double(), (x,), dynamic_shapes=({0: "n"},), values_to_try={"n": [2, 7]})
    >>> [(row["sizes"], row["SUCCESS"]) for row in rows]
    [({}, True), ({'n': 2}, True), ({'n': 7}, True)]
    """
    if bool(dynamic_shapes) != bool(values_to_try):
        raise UsageError(
            "validate_ep was given dynamic_shapes or values_to_try, and needs both or none of"
            " them.",
            slug="sizes-without-shapes",
            hint="The names in dynamic_shapes are the keys of values_to_try.",
        )
    with register_flattening_functions():
        program = ep.module() if isinstance(ep, torch.export.ExportedProgram) else ep
        given = tuple(args or ()), dict(kwargs or {})
        run = _ValidatedRun(program, mod, copy, atol, rtol)
        rows = []
        for sizes, inputs in _all_inputs(
            getattr(mod or program, "forward", mod), given, dynamic_shapes, values_to_try or {}
        ):
            row = run(sizes, inputs)
            if exc and "error" in row:
                _fail(row)
            rows.append(row)
    return rows


def _all_inputs(
    forward: Any, given: ArgsKwargs, shapes: Any, values: Mapping[str, Sequence[int]]
) -> Iterator[tuple[dict[str, int], ArgsKwargs]]:
    yield {}, given
    if not values:
        return
    args, kwargs = given
    names = list(inspect.signature(forward).parameters) if args and kwargs else None
    couple = CoupleInputsDynamicShapes(args, kwargs, shapes, args_names=names)
    for combination in itertools.product(*values.values()):
        sizes = dict(zip(values, combination, strict=True))
        yield sizes, couple.change_dynamic_dimensions(sizes, args_kwargs=True)


@dataclass(frozen=True, slots=True)
class _ValidatedRun:
    """One row from one set of inputs."""

    program: Callable[..., Any]
    model: Callable[..., Any] | None
    copy: bool
    atol: float
    rtol: float

    def __call__(self, sizes: dict[str, int], inputs: ArgsKwargs) -> Row:
        args, kwargs = inputs
        row: Row = {"args": args, "kwargs": kwargs, "sizes": sizes}
        try:
            with torch.no_grad():
                row["got"] = self._called(self.program, inputs)
        except Exception as error:
            row["got"], row["SUCCESS"] = None, False
            row["error"] = f"the program fails: {type(error).__name__}: {error}"
            return row
        if self.model is None:
            return row
        with torch.no_grad():
            row["expected"] = self._called(self.model, inputs)
        row["diff"] = diff = max_diff(row["expected"], row["got"])
        row["SUCCESS"] = bool(
            diff["abs"] <= self.atol and diff["rel"] <= self.rtol and not diff.get("dnan")
        )
        if not row["SUCCESS"]:
            row["error"] = f"the program differs from the model: {string_diff(diff)}"
        return row

    def _called(self, function: Callable[..., Any], inputs: ArgsKwargs) -> Any:
        plain = all(isinstance(value, torch.Tensor) for value in (*inputs[0], *inputs[1].values()))
        args, kwargs = torch_deepcopy(inputs) if self.copy or not plain else inputs
        return function(*args, **kwargs)


def _fail(row: Row) -> None:
    sizes = ", ".join(f"{name}={size}" for name, size in row["sizes"].items()) or "the given inputs"
    raise ExportError(
        f"At {sizes}, {row['error']}. The arguments are"
        f" {string_type((row['args'], row['kwargs']), with_shape=True)}.",
        slug="program-differs",
        hint="With exc=False the failure is a row of the result.",
    )
