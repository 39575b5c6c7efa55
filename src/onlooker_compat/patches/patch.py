"""A patch as a value: what it replaces, by what, why, and until when; and the patches that a
block applied.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from onlooker.core.errors import OnlookerWarning, warn
from onlooker.patches.swap import swapped

__all__ = ["AppliedPatch", "PatchDetails", "PatchInfo", "applied"]

logger = logging.getLogger(__name__)

_ABSENT = object()
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class PatchInfo:
    """One attribute to replace for a while.

    ``owner`` is a class, a module, or the dotted path of one, which is imported when the patch is
    applied; ``replace`` makes the new attribute from what ``owner`` gives for it now. ``why``,
    ``link`` (upstream), ``versions`` (with which it was seen to be needed) and ``test`` (the one
    that fails without it) are for the reader. ``optional`` is True where nobody misses a target
    that does not exist.
    """

    owner: Any
    name: str
    replace: Callable[[Any], Any]
    family: str = "custom"
    why: str = ""
    link: str = ""
    versions: str = ""
    test: str = ""
    optional: bool = False

    @classmethod
    def make(
        cls,
        patch: Any,
        module_or_class: Any,
        method_or_function_name: str,
        family: str = "custom",
        why: str = "",
    ) -> PatchInfo:
        """A patch that puts ``patch`` in, whatever was there.

        >>> import math
        >>> PatchInfo.make(lambda x: 0.0, math, "sqrt").target
        'math.sqrt'
        """
        return cls(module_or_class, method_or_function_name, lambda _: patch, family, why)

    @property
    def target(self) -> str:
        """The dotted path of what is replaced."""
        owner = self.owner
        if isinstance(owner, type):
            owner = f"{owner.__module__}.{owner.__qualname__}"
        elif not isinstance(owner, str):
            owner = getattr(owner, "__name__", type(owner).__qualname__)
        return f"{owner}.{self.name}"


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """A patch that was put in: where, what was there, and what was put."""

    info: PatchInfo
    owner: Any
    original: Any
    patch: Any

    @property
    def family(self) -> str:
        """``torch``, ``transformers`` or ``custom``."""
        return self.info.family

    @property
    def name(self) -> str:
        """The dotted path of what was replaced."""
        return self.info.target

    def to_dict(self) -> dict[str, Any]:
        """One row of a table."""
        info = self.info
        return {
            "family": info.family,
            "target": info.target,
            "why": info.why,
            "link": info.link,
            "versions": info.versions,
            "test": info.test,
        }

    def made(self, node: Any) -> bool:
        """True for a node of a graph whose stack trace goes through the code that was put in.

        Where one function was put into several classes of modules, the class tells which.
        """
        code = getattr(
            inspect.unwrap(getattr(self.patch, "__func__", self.patch)), "__code__", None
        )
        if code is None:
            return False
        if isinstance(self.owner, type) and issubclass(self.owner, torch.nn.Module):
            modules = {name for _, name in (node.meta.get("nn_module_stack") or {}).values()}
            if not any(
                f"{cls.__module__}.{cls.__qualname__}" in modules
                for cls in _with_derived(self.owner)
            ):
                return False
        lines = {line for _, _, line in code.co_lines() if line is not None}
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        return any(file == code.co_filename and int(line) in lines for file, line in frames)


def _with_derived(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    yield cls
    for child in children:
        yield from _with_derived(child)


@dataclass(slots=True)
class PatchDetails:
    """The patches that a block applied, in their order; they stay listed when the block has
    ended.
    """

    patched: list[AppliedPatch] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.patched)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[AppliedPatch]:
        return iter(self.patched)

    def __getitem__(self, index: int) -> AppliedPatch:
        return self.patched[index]

    @property
    def n_patches(self) -> int:
        """The number of patches."""
        return len(self.patched)

    def data(self) -> list[dict[str, Any]]:
        """One row per patch, for a table."""
        return [patch.to_dict() for patch in self.patched]

    def find(self, name: str) -> AppliedPatch | None:
        """The first patch whose target has this dotted path, or ends with this name."""
        return next((p for p in self.patched if p.name == name or p.info.name == name), None)

    def patches_involved_in_graph(self, graph: Any) -> list[tuple[AppliedPatch, list[Any]]]:
        """Each patch whose code made a node of the graph, with these nodes, by their stack
        traces.
        """
        made = [
            (patch, [node for node in graph.nodes if patch.made(node)]) for patch in self.patched
        ]
        return [(patch, its) for patch, its in made if its]


@contextlib.contextmanager
def applied(
    patches: Iterable[PatchInfo], details: PatchDetails | None = None
) -> Iterator[PatchDetails]:
    """Applies patches, in their order, for as long as the block lasts.

    A patch whose target does not exist is passed over with an :class:`OnlookerWarning` that names
    it (``patch-target-gone``): what it repaired was moved, or does not need it any more.
    """
    details = PatchDetails() if details is None else details
    with contextlib.ExitStack() as stack:
        for info in patches:
            owner, original = _found(info)
            if original is _ABSENT:
                _report(info)
                continue
            replacement = info.replace(original)
            stack.enter_context(swapped(owner, info.name, replacement))
            details.patched.append(AppliedPatch(info, owner, original, replacement))
        yield details


def _report(info: PatchInfo) -> None:
    if info.optional:
        logger.debug("there is no %s to patch", info.target)
        return
    text = f"The {info.family} patch of {info.target} finds nothing of that name to replace."
    hint = "It may not be needed any more: look at its reason" + (
        f", {info.link}." if info.link else "."
    )
    warn(OnlookerWarning(text, slug="patch-target-gone", hint=hint))


def _found(info: PatchInfo) -> tuple[Any, Any]:
    """The object that owns the target, and what is there."""
    owner = _resolved(info.owner) if isinstance(info.owner, str) else info.owner
    return owner, (_ABSENT if owner is None else getattr(owner, info.name, _ABSENT))


def _resolved(path: str) -> Any:
    """The module or class at a dotted path; None when it is gone."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None
