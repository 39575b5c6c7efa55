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

__all__ = ["ArgumentsOf", "marked", "replaced_method"]


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
    kind = found.kind
    if kind is None:
        yield
        return

    def with_marks(compiled: Callable[..., Any], arguments_of: ArgumentsOf) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with marked_call(arguments_of(args, kwargs), found.marks, kind):
                return compiled(*args, **kwargs)

        return run

    with replaced_method(model, found.entry.rpartition(".")[2], with_marks):
        yield


#: gives the arguments of a call by name, none for a call that the method itself refuses
ArgumentsOf = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]


@contextlib.contextmanager
def replaced_method(
    model: Any,
    method: str,
    wrapped: Callable[[Callable[..., Any], ArgumentsOf], Callable[..., Any]],
) -> Iterator[None]:
    """Inside the block another function stands in the place of a compiled method: ``wrapped`` makes it of
    the compiled one.

    :raises UsageError: ``not-compiled``
    """
    owner, name = _compiled_place(model, method)
    compiled = getattr(owner, name)
    own = getattr(model, "_orig_mod", model)
    signature, _ = read_signature(getattr(type(own), method).__get__(own))

    def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return bind(signature, args, kwargs)[0]
        except TypeError:
            return {}

    setattr(owner, name, wrapped(compiled, arguments_of))
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
