"""What a model keeps outside its inputs: attributes that a call overwrites, buffers that it writes.

A model may set its own window size from the last image, or count its calls. Probes and exports run
it again, so what they change is put back; and they begin from what stood there before the model was
watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..pytrees.numbers import is_same
from ..pytrees.unusual import unusual

__all__ = ["Attributes", "changed_since", "kept_state", "read_attributes"]

#: (name of the submodule, name of the attribute) -> value
Attributes = dict[tuple[str, str], Any]

_PLAIN = (bool, int, float, str, type(None), tuple)
#: the mode is the user's own choice, and may change after watching
_NOT_STATE = frozenset({"training"})
_MOST_BUFFER_BYTES = 1 << 26


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, torch.nn.Module):
        yield from model.named_modules()
    else:
        yield "", model


def read_attributes(model: Any) -> Attributes:
    """The plain attributes of a model and of its submodules: numbers, flags, text and tuples."""
    return {
        (path, name): value
        for path, module in _modules(model)
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and name not in _NOT_STATE
    }


def changed_since(before: Attributes, model: Any) -> Attributes:
    """The former values of the attributes that are others now."""
    now = read_attributes(model)
    return {
        key: value for key, value in before.items() if key not in now or not _equal(now[key], value)
    }


def _equal(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and repr(left) == repr(right))


@contextlib.contextmanager
def kept_state(model: Any, former: Mapping[tuple[str, str], Any]) -> Iterator[None]:
    """Inside the block the ``former`` attributes stand; on exit every attribute and buffer is what
    it was.

    Lists and dicts get their contents back; buffers, and tensors that a module holds itself or in a
    list, tuple or dict, their values (up to 64 MiB of them).
    """
    modules = dict(_modules(model))
    saved = [(module, dict(vars(module)), _contents(module)) for module in modules.values()]
    buffers = _kept_buffers(modules.values())
    for (path, name), value in former.items():
        if path in modules:
            vars(modules[path])[name] = value
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            _put_back(vars(module), attributes)
            for container, content in contents:
                _refill(container, content)
        for kept in buffers:
            kept.put_back()


def _put_back(now: dict[str, Any], attributes: dict[str, Any]) -> None:
    if len(now) == len(attributes) and all(
        now.get(name) is value for name, value in attributes.items()
    ):
        return
    now.clear()
    now.update(attributes)


def _contents(module: Any) -> list[tuple[Any, Any]]:
    """The lists and dicts of a module, with copies of what is in them; parameters and hooks are
    among them.
    """
    return [
        (value, type(value)(value))
        for value in vars(module).values()
        if type(value) in (list, dict)
    ]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        if len(container) != len(content) or any(
            a is not b for a, b in zip(container, content, strict=True)
        ):
            container[:] = content
    elif list(container) != list(content) or any(
        container[key] is not content[key] for key in content
    ):
        container.clear()
        container.update(content)


def _held_tensors(module: Any) -> Iterator[torch.Tensor]:
    """The tensors of a module that are no parameters: buffers are in a dict of it."""
    for value in vars(module).values():
        kind = type(value)
        if kind is dict:
            held: Iterable[Any] = value.values()
        else:
            held = value if kind in (list, tuple) else (value,)
        for tensor in held:
            if isinstance(tensor, torch.nn.Parameter) or not isinstance(tensor, torch.Tensor):
                continue
            if unusual(tensor) is None:
                yield tensor


@dataclass(frozen=True, slots=True)
class _KeptBuffer:
    """A buffer, or another tensor of a module, with its values; torch counts the writes to it
    (``version``), but for an inference tensor.
    """

    buffer: torch.Tensor
    version: int | None
    copy: torch.Tensor

    def put_back(self) -> None:
        """Gives the buffer its values again, where it was written."""
        if self.version is not None:
            if self.buffer._version != self.version:
                with torch.no_grad():
                    self.buffer.copy_(self.copy)
        elif not is_same(self.buffer, self.copy):
            with torch.inference_mode():
                self.buffer.copy_(self.copy)


def _kept_buffers(modules: Iterable[Any]) -> list[_KeptBuffer]:
    tensors = {id(tensor): tensor for module in modules for tensor in _held_tensors(module)}
    found = list(tensors.values())
    if sum(buffer.nbytes for buffer in found) > _MOST_BUFFER_BYTES:
        return []
    return [
        _KeptBuffer(b, None if b.is_inference() else b._version, b.detach().clone()) for b in found
    ]
