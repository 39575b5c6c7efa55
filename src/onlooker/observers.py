"""Several modules and methods, watched at once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType, TracebackType
from typing import Any

import torch

from .core.errors import ObservationError, UsageError
from .core.support.kinds import check_kind
from .input_observer import InputObserver
from .observing.wrapping.adapted_model import AdaptedModel
from .observing.wrapping.hook import check_method
from .observing.wrapping.shared_block import shared_blocks
from .program import Program
from .programs import (
    Programs,
    at_entry,
    check_entries,
    check_known,
    check_name,
    each_program,
    refused,
)
from .targets.targets import check_options, keywords_of, target_of

__all__ = ["Observers", "observe"]


@dataclass(frozen=True, slots=True)
class Watched:
    """The method and the object of an entry; the ``blocks`` that are one object live as long."""

    subject: Any
    method: str
    blocks: tuple[Any, ...] = ()


class Observers(Mapping[str, InputObserver]):
    """The observer of each entry, by its name; a block in which all of them watch.

    See :func:`onlooker.observe`, which makes it. Blocks add up.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        *,
        store_n_calls: int = 3,
        max_bytes: int | None = None,
        state: bool = False,
        adapters: bool = False,
    ) -> None:
        self._watched = watched_entries(entries, adapters=adapters)
        self._observers = {
            name: InputObserver(max_bytes=max_bytes, state=state) for name in self._watched
        }
        self._store_n_calls = store_n_calls
        self._blocks: list[contextlib.ExitStack] = []

    def __getitem__(self, name: str) -> InputObserver:
        return self._observers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._observers)

    def __len__(self) -> int:
        return len(self._observers)

    def __enter__(self) -> Observers:
        with contextlib.ExitStack() as stack:
            for name, watched in self._watched.items():
                block = self[name](watched.subject, self._store_n_calls, watched.method)
                with at_entry(name):
                    stack.enter_context(block)
            self._blocks.append(stack.pop_all())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._blocks.pop().__exit__(kind, error, traceback)

    def export(
        self,
        *,
        only: Collection[str] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        **common: Any,
    ) -> Programs:
        """Exports every entry, or those in ``only``; see :meth:`InputObserver.export`.

        ``common`` are options for all entries, ``options`` those of single ones, which come before
        them: ``export(to="onnx", options={"vae": {"static": {"z": [1]}}})``.

        An entry that cannot be exported does not cost the others: the error has their programs. An
        entry that was never called is found before anything is exported.

        :raises UsageError: ``no-such-entry``, ``unknown-option``, ``unknown-target``
        :raises EntriesError: ``entries-refused``, with the error of each entry that has no program
            in ``refusals``, and the programs of the others in ``programs``
        """
        names = self._chosen(only)
        single = check_entries(options, self, "options")
        asked = {name: {**common, **single.get(name, {})} for name in names}
        for name in names:
            _check_options(name, asked[name])
        never = self._never_called(names)
        if never:
            raise refused(
                f"{len(never)} of {len(names)} entries were never called; nothing was exported.",
                "Call them inside the block, or name the others: export(only=[...]).",
                never,
                Programs({}),
            )
        return each_program(
            names,
            lambda name: self[name].export(method_name=self._watched[name].method, **asked[name]),
        )

    def adopted(self, programs: Programs) -> Programs:
        """Programs, loaded perhaps, with what these observers saw; see
        :meth:`InputObserver.adopted`.

        :raises UsageError: ``no-such-entry``, ``different-entry-points``
        :raises ObservationError: ``no-calls``
        """
        check_kind(programs, Programs, "programs", "those that observers.export() gave")
        found: dict[str, Program] = {}
        for name, program in programs.items():
            check_known(name, self, "programs")
            with at_entry(name):
                found[name] = self[name].adopted(program)
        return Programs(found)

    def _chosen(self, only: Collection[str] | None) -> list[str]:
        if only is None:
            return list(self)
        is_list = not isinstance(only, str)
        check_kind(only if is_list else None, Collection, "only", "the names of entries, as a list")
        for name in only:
            check_known(name, self, "only")
        return [name for name in self if name in only]

    def _never_called(self, names: Collection[str]) -> dict[str, Exception]:
        """The error of each entry of which no call was seen."""
        found: dict[str, Exception] = {}
        for name in names:
            try:
                self[name].recording(self._watched[name].method)
            except ObservationError as error:
                found[name] = error
        return found

    def __repr__(self) -> str:
        return f"<onlooker.Observers of {', '.join(self)}>"


def observe(
    *,
    store_n_calls: int = 3,
    max_bytes: int | None = None,
    state: bool = False,
    adapters: bool = False,
    **entries: Any,
) -> Observers:
    """Watches several modules, or methods, inside one block: an observer of each, by its name.

    An entry is a module, whose ``forward`` is watched; another object that is called; a method of
    an object, ``pipe.vae.decode``; or a pair of an object and the name of a method. Two entries may
    be two methods of one object. ``max_bytes`` is the memory that the kept values of each entry may
    take, ``store_n_calls`` the calls of each whose values are kept; ``state`` is for modules that keep
    something from call to call; see :class:`InputObserver`.

    A list of modules, ``model.layers``, is watched as one block with other weights in each call: the
    equal ones among them have one program, whose weights are an argument; see
    :attr:`Program.weights`. With ``adapters``, the adapters of LoRA that PEFT has put into the entries
    are an argument in the same way.

    >>> import torch
    >>> class Autoencoder(torch.nn.Module):
    ...     def encode(self, x):
    ...         return x * 2
    ...     def decode(self, z):
    ...         return z / 2
    >>> vae, unet = Autoencoder(), torch.nn.Linear(4, 4)
    >>> with observe(unet=unet, vae=(vae, "decode")) as observers:
    ...     for size in (2, 3):
    ...         _ = vae.decode(unet(torch.zeros(size, 4)))
    >>> {name: observer.num_obs() for name, observer in observers.items()}
    {'unet': 2, 'vae': 2}

    :raises UsageError: ``no-entries``, ``bad-entry``, ``no-such-method``, ``bad-max-bytes``,
        ``no-adapters``
    :raises UnsupportedError: ``script-module``, ``not-watchable``, ``adapters-not-lifted``,
        ``not-copied``
    """
    return Observers(
        entries,
        store_n_calls=store_n_calls,
        max_bytes=max_bytes,
        state=state,
        adapters=adapters,
    )


def watched_entries(entries: Mapping[str, Any], *, adapters: bool) -> dict[str, Watched]:
    """The object and the method of each entry.

    :raises UsageError: ``no-entries``, ``bad-entry``, ``no-such-method``
    :raises UnsupportedError: ``script-module``, ``not-watchable``
    """
    if not entries:
        raise UsageError(
            "There is nothing to watch.",
            slug="no-entries",
            hint='Give modules by name: onlooker.observe(unet=pipe.unet, vae=(pipe.vae, "decode")).',
        )
    found: dict[str, Watched] = {}
    by_place: dict[tuple[int, str], str] = {}
    folders: dict[str, str] = {}
    for name, entry in entries.items():
        check_name(name)
        for own, watched in _named(name, entry, adapters).items():
            with at_entry(own):
                check_method(watched.subject, watched.method)
                place = id(watched.subject), watched.method
                _check_new(by_place, place, f"{watched.method} of the same object")
                _check_new(folders, own.lower(), "the same name but for upper and lower case")
            found[own] = watched
            by_place[place] = folders[own.lower()] = own
    return found


def _named(name: str, entry: Any, adapters: bool) -> dict[str, Watched]:
    """What is watched for an entry, by name: for a list of blocks one object for each group of equal
    ones, ``block``, or ``block_0``, ``block_1`` and so on where there are several.

    :raises UsageError: ``bad-entry``, ``no-adapters``
    :raises UnsupportedError: ``adapters-not-lifted``
    """
    with at_entry(name):
        if adapters and isinstance(entry, torch.nn.Module):
            return {name: Watched(AdaptedModel(entry), "forward", (entry,))}
        if not isinstance(entry, (list, torch.nn.ModuleList)):
            return {name: _watched(entry)}
        blocks = tuple(entry)
        if not blocks or not all(isinstance(block, torch.nn.Module) for block in blocks):
            raise _bad_entry("a list of something else than blocks, which are modules")
        groups = [Watched(shared, "forward", blocks) for shared in shared_blocks(blocks)]
    if len(groups) == 1:
        return {name: groups[0]}
    return {f"{name}_{number}": watched for number, watched in enumerate(groups)}


def _check_new(known: Mapping[Any, str], key: Any, what: str) -> None:
    if key in known:
        raise UsageError(
            f"The entry {known[key]} is {what}.",
            slug="bad-entry",
            hint="Leave one of the two out, or name another method, or choose another name.",
        )


def _watched(entry: Any) -> Watched:
    if isinstance(entry, tuple):
        if len(entry) != 2 or not isinstance(entry[1], str):
            raise _bad_entry("a tuple that is no pair of an object and the name of a method")
        return Watched(*entry)
    if isinstance(entry, MethodType):
        return Watched(entry.__self__, _name_of(entry))
    if inspect.isroutine(entry) or inspect.isclass(entry):
        raise _bad_entry("a function or a class, and no object whose calls can be watched")
    if _has(entry, "forward"):
        return Watched(entry, "forward")
    if not _has(entry, "__call__"):
        raise _bad_entry(f"a {type(entry).__name__}, which is not callable")
    return Watched(entry, "__call__")


def _name_of(method: MethodType) -> str:
    """The name under which the object of a method has it: a decorator may give its function another
    one.

    :raises UsageError: ``bad-entry`` for a method that the object does not have, of a base perhaps
    """
    owner = method.__self__
    for cls in type(owner).__mro__:
        for name, value in vars(cls).items():
            if value is method.__func__ and getattr(owner, name, None) == method:
                return name
    raise _bad_entry(f"a method that no call of its {type(owner).__name__} reaches")


def _has(entry: Any, method: str) -> bool:
    """True for an object with this method; one whose attributes cannot be read has none."""
    try:
        return callable(getattr(entry, method, None))
    except Exception:
        return False


def _bad_entry(what: str) -> UsageError:
    return UsageError(
        f"The entry is {what}.",
        slug="bad-entry",
        hint='Give a module, or an object and the name of its method: (pipe.vae, "decode").',
    )


def _check_options(name: str, asked: Mapping[str, Any]) -> None:
    """Passes for options of :meth:`InputObserver.export`; the method is that of the entry.

    :raises UsageError: ``unknown-option``, ``unknown-target``
    """
    own = keywords_of(InputObserver.export)
    with at_entry(name):
        target = target_of(asked.get("to", "torch"))
        if "method_name" in asked:
            raise UsageError(
                "An entry has its method, and takes no method_name.",
                slug="unknown-option",
                hint='Name it where it is watched: onlooker.observe(vae=(pipe.vae, "decode")).',
            )
        of_target = [option for option in asked if option not in own]
        check_options(target, of_target, target.options, InputObserver.export)
