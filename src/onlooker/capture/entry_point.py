"""Entry points: a call belongs to one by its class and code, not by its object."""

from __future__ import annotations

import hashlib
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from ..core.call import Signature
from ..observing.bind import read_signature
from ..observing.wrapped_model import model_inside

__all__ = ["EntryPoint", "entry_point", "real_class"]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A method of a class.

    ``model`` is the qualified name of the class, with the name of the file in the place of
    ``__main__``. ``code`` is a digest of the method's code: classes of one name with other code are
    other entry points. ``source`` is the file, and the line, of the method.
    """

    model: str
    method: str
    code: str
    source: str = ""
    signature: Signature = field(default_factory=Signature)

    @property
    def name(self) -> str:
        """The class and, unless it is ``forward``, the method: ``AutoencoderKL.decode``."""
        short = self.model.rpartition(".")[2]
        return short if self.method == "forward" else f"{short}.{self.method}"


def real_class(model: Any) -> type:
    """The class that was written: FSDP and DDP put other ones, or other objects, around it."""
    cls = type(model_inside(model))
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if isinstance(fsdp, type) and issubclass(cls, fsdp) and len(cls.__bases__) > 1:
        return cls.__bases__[1]  # fully_shard() derives a class from FSDPModule and the one written
    return cls


def entry_point(model: Any, method: str) -> tuple[EntryPoint, inspect.Signature]:
    """The entry point of a method of an object, and the signature that binds its calls."""
    inner = model_inside(model)
    cls = real_class(model)
    signature, value = read_signature(getattr(inner, method))
    function = inspect.unwrap(getattr(cls, method))
    code = getattr(function, "__code__", None)
    source = f"{_short(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
    name = f"{_module_of(cls)}.{cls.__qualname__}"
    return EntryPoint(name, method, _digest(code), source, value), signature


def _module_of(cls: type) -> str:
    """The module of a class; of the program itself the name that an import would give it."""
    module = cls.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


def _digest(code: CodeType | None) -> str:
    digest = hashlib.blake2b(digest_size=6)
    waiting = [code] if code is not None else []
    while waiting:
        one = waiting.pop()
        digest.update(one.co_code)
        digest.update(repr((one.co_names, one.co_varnames)).encode())
        for constant in one.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            elif not isinstance(constant, frozenset):  # its order is another one in each process
                digest.update(repr(constant).encode())
    return digest.hexdigest()
