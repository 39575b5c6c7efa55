"""The block in which the calls of a compiled model are marked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..core.errors import UsageError
from ..core.support.kinds import check_kind
from ..observing.bind import bind, read_signature
from .marks import marked_call
from .recompiles import Recompiles

__all__ = ["marked"]


@contextlib.contextmanager
def marked(model: Any, found: Recompiles) -> Iterator[None]:
    """Inside the block the calls of a compiled model are marked before they run, as ``found`` says.

    ``model`` is what ``torch.compile(model)`` returned, or a model after ``model.compile()``, or one
    whose method is compiled (``model.forward = torch.compile(model.forward)``). A call that the marks
    do not fit is not marked. Where no marks compile less, nothing is marked. On exit the model is as
    it was; tensors of the calls keep no mark.

    :raises UsageError: ``not-compiled``
    :raises ArgumentKindError: ``wrong-kind``

    >>> import torch, onlooker
    >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    >>> with observer(model), torch.no_grad():
    ...     _ = [model(torch.ones(size, 4)) for size in (2, 3, 1)]
    >>> compiled = torch.compile(model, backend="eager")
    >>> with onlooker.marked(compiled, observer.recompiles()), torch.no_grad():
    ...     [tuple(compiled(torch.ones(size, 4)).shape) for size in (5, 1)]
    [(5, 2), (1, 2)]
    """
    check_kind(found, Recompiles, "found", "the result of observer.recompiles()")
    method = found.entry.rpartition(".")[2]
    owner, name = _compiled_place(model, method)
    compiled = getattr(owner, name)
    own = getattr(model, "_orig_mod", model)
    signature, _ = read_signature(getattr(type(own), method).__get__(own))
    marks = found.marks
    if found.kind is None:
        yield
        return
    kind = found.kind

    def run_marked(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments, _ = bind(signature, args, kwargs)
        except TypeError:  # the method itself refuses such a call
            arguments = {}
        with marked_call(arguments, marks, kind):
            return compiled(*args, **kwargs)

    setattr(owner, name, run_marked)
    try:
        yield
    finally:
        setattr(owner, name, compiled)


def _compiled_place(model: Any, method: str) -> tuple[Any, str]:
    """The object and the attribute that hold the compiled method."""
    if method == "forward" and getattr(model, "_compiled_call_impl", None) is not None:
        return model, "_compiled_call_impl"
    if _is_compiled(vars(model).get(method)):
        return model, method
    raise UsageError(
        f"{type(model).__name__}.{method} is not compiled.",
        slug="not-compiled",
        hint="Give what torch.compile(model) returned, or call model.compile() first.",
    )


def _is_compiled(function: Callable[..., Any] | None) -> bool:
    """True for what torch.compile gave: it keeps the function that it compiles."""
    return function is not None and hasattr(function, "_torchdynamo_orig_callable")
