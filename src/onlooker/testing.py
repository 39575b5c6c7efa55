"""For tests of those who export models: does an export do what the model does?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .core.support.kinds import as_call
from .foreign.report import ExportReport
from .foreign.verify import verify_export
from .input_observer import InputObserver

__all__ = ["assert_export_holds"]


def assert_export_holds(
    model: Any,
    exported: Any,
    calls: Iterable[Any] | Callable[[], object],
    *,
    method_name: str = "forward",
    **options: Any,
) -> ExportReport:
    """Passes where an export gives what the model gives, for these calls and for others that grow
    from them.

    ``calls`` are calls of the method, each ``(args, kwargs)`` or a dict of arguments by name, or a
    function without arguments that uses the model. Two calls of different sizes say more than one.
    ``exported`` and ``options`` are those of :func:`onlooker.verify_export`. Gives its report.

    :raises AssertionError: where the export does not hold; the message is the report
    :raises OnlookerError: as :func:`onlooker.verify_export`

    >>> import torch
    >>> model = torch.nn.Linear(4, 2)
    >>> dynamic = {"input": {0: torch.export.Dim.DYNAMIC}}
    >>> program = torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=dynamic)
    >>> calls = [((torch.ones(2, 4),), {}), ((torch.ones(5, 4),), {})]
    >>> assert_export_holds(model, program, calls).verdict
    'holds'
    """
    __tracebackhide__ = True
    report = report_of(model, exported, calls, method_name=method_name, **options)
    if not report.holds:
        raise AssertionError(f"the export does not do what the model does\n{report}")
    return report


def report_of(
    model: Any,
    exported: Any,
    calls: Iterable[Any] | Callable[[], object],
    *,
    method_name: str = "forward",
    **options: Any,
) -> ExportReport:
    """The report of :func:`assert_export_holds`, also where the export does not hold."""
    observer = InputObserver()
    with observer(model, method_name=method_name), torch.no_grad():
        if callable(calls):
            calls()
        else:
            for index, call in enumerate(calls):
                args, kwargs = as_call(call, index)
                method = model if method_name == "forward" else getattr(model, method_name)
                method(*args, **kwargs)
    return verify_export(observer, exported, method_name=method_name, **options)
