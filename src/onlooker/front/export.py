"""One function from a model and its calls to a verified program."""

from __future__ import annotations

from typing import Any

from ..hypotheses.overrides import AxisNames, Dims, RangesOption, overrides_of
from ..lab.budget import BUDGET, BudgetOption
from ..program import Program
from ..targets.targets import check_options, target_of
from ..verify.request import SizesOption
from .calls import watched

__all__ = ["export"]


def export(
    model: Any,
    calls: Any,
    *,
    to: str = "torch",
    method: str = "forward",
    static: Dims | None = None,
    dynamic: Dims | None = None,
    ranges: RangesOption | None = None,
    names: AxisNames | None = None,
    budget: BudgetOption = BUDGET,
    atol: float | None = None,
    sizes: SizesOption = (),
    seed: int = 0,
    trials: int | None = None,
    seconds: float | None = None,
    agreement: float | None = None,
    **options: Any,
) -> Program:
    """The program of a model, verified: ``program.report.verified`` says whether it does what the
    model does, also at sizes that no call had.

    ``calls`` are example inputs. One call is enough: a tensor, a tuple of arguments, a dict of
    arguments by name, or ``(args, kwargs)``. A list has several calls, of several sizes perhaps; a
    function uses the model itself, ``lambda: model.generate(ids)``, and is given the model where it
    takes an argument. They run without gradients, in the mode in which the model is.

    ``to``, ``static``, ``dynamic``, ``ranges``, ``names`` and ``budget`` are as in
    :meth:`InputObserver.export`, ``method`` is the method of the model that becomes the program.
    ``atol``, ``sizes``, ``seed``, ``trials``, ``seconds`` and ``agreement`` are as in
    :meth:`Program.verify`. Other ``options`` are those of the target, as in :meth:`Program.to`:
    ``opset=21``, ``precision="int8"``.

    :raises UsageError: ``call-raised`` for a call that the model refuses, ``unknown-target``,
        ``unknown-option``, and as :meth:`InputObserver.export` and :meth:`Program.verify`
    :raises ArgumentKindError: ``wrong-kind`` for what is no call
    :raises ObservationError: ``no-calls``
    :raises ExportError: as :meth:`InputObserver.export` and :meth:`Program.to`

    >>> import torch, onlooker
    >>> program = onlooker.export(torch.nn.Linear(4, 2), torch.ones(1, 4))
    >>> program.report.verified, program(torch.ones(7, 4)).shape
    (True, torch.Size([7, 2]))
    """
    target = target_of(to)
    check_options(target, options, target.options, export)
    overrides_of(static, dynamic, ranges, names=names)
    observer = watched(model, calls, method)
    program = observer.export(
        to=to,
        method_name=method,
        static=static,
        dynamic=dynamic,
        ranges=ranges,
        names=names,
        budget=budget,
        **options,
    )
    program.verify(
        atol=atol, sizes=sizes, seed=seed, trials=trials, seconds=seconds, agreement=agreement
    )
    return program
