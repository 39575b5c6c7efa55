"""The settings of ONNX Runtime: the options of its sessions, and its providers.

They belong to one process and one machine: no file that is saved holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.errors import UsageError

__all__ = ["DEFAULT", "SETTINGS", "SessionSettings", "settings_of"]

#: the keywords that users give
SETTINGS = ("session_options", "providers")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings that the sessions of one program share.

    ``options`` is a SessionOptions of the user, which is used as it is, or values by the names of
    its attributes and by the keys of config entries. ``providers`` are as InferenceSession takes
    them: names, or ``(name, options)``.
    """

    options: Any = None
    providers: tuple[Any, ...] = ("CPUExecutionProvider",)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(one if isinstance(one, str) else one[0] for one in self.providers)

    @property
    def is_users(self) -> bool:
        """True where the user made the object of the options: it is not changed."""
        import onnxruntime

        return isinstance(self.options, onnxruntime.SessionOptions)

    @property
    def picklable_options(self) -> dict[str, Any]:
        """The options as values, for another process; those of an object of the user cannot be read.

        Unless the user says otherwise, a session has as many threads as torch, and they sleep between
        runs: those of torch work in the same process meanwhile.
        """
        if self.is_users:
            return {}
        threads = {
            "intra_op_num_threads": torch.get_num_threads(),
            "session.intra_op.allow_spinning": "0",
        }
        return {**threads, **(self.options or {})}

    def new_options(self) -> Any:
        """The SessionOptions of one session.

        :raises UsageError: ``bad-session-options``
        """
        import onnxruntime

        if self.is_users:
            return self.options
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # an error is raised, and need not be printed too
        for name, value in self.picklable_options.items():
            _set(options, name, value)
        return options


DEFAULT = SessionSettings()


def settings_of(session_options: Any = None, providers: Any = None) -> SessionSettings:
    """Checks the settings that a user gave before any work is done with them; None stands for the
    default.

    :raises UsageError: ``bad-session-options``, ``bad-providers``
    """
    import onnxruntime

    if session_options is not None and not isinstance(
        session_options, (onnxruntime.SessionOptions, Mapping)
    ):
        raise _bad_options(f"session_options is of the type {type(session_options).__name__}.")
    chosen = DEFAULT.providers if providers is None else _checked_providers(providers)
    settings = SessionSettings(session_options, chosen)
    settings.new_options()
    return settings


def _set(options: Any, name: Any, value: Any) -> None:
    """Sets an attribute, or adds a config entry, whose keys have dots."""
    known = [each for each, kind in vars(type(options)).items() if isinstance(kind, property)]
    is_entry = isinstance(name, str) and "." in name
    if not is_entry and name not in known:
        raise UsageError(
            f"SessionOptions of ONNX Runtime has no {name!r}.",
            slug="bad-session-options",
            hint=f"It has {', '.join(sorted(known))}. Keys with a dot are config entries.",
        )
    is_negative = str(name).endswith("_num_threads") and isinstance(value, int) and value < 0
    try:
        if is_negative:
            raise ValueError("a number of threads is 0 or more")
        if is_entry:
            options.add_session_config_entry(name, value)
        else:
            setattr(options, name, value)
    except Exception as error:
        raise _bad_options(
            f"session_options has {name}={value!r}, which ONNX Runtime does not take."
        ) from error


def _bad_options(message: str) -> UsageError:
    return UsageError(
        message,
        slug="bad-session-options",
        hint=(
            "Give an onnxruntime.SessionOptions, or values by the names of its attributes:"
            " {'intra_op_num_threads': 4, 'execution_mode': onnxruntime.ExecutionMode.ORT_PARALLEL}."
        ),
    )


def _checked_providers(providers: Any) -> tuple[Any, ...]:
    """ONNX Runtime would take what it has, print the rest, and run on the CPU."""
    import onnxruntime

    is_list = isinstance(providers, Sequence) and not isinstance(providers, str)
    if not is_list or not providers or not all(map(_is_provider, providers)):
        raise UsageError(
            f"providers is {providers!r}, which ONNX Runtime does not take.",
            slug="bad-providers",
            hint="Give a list of names, or of (name, options), the preferred one first.",
        )
    settings = SessionSettings(None, tuple(providers))
    available = onnxruntime.get_available_providers()
    absent = [name for name in settings.names if name not in available]
    if absent:
        raise UsageError(
            f"ONNX Runtime has no provider {', '.join(absent)} here.",
            slug="bad-providers",
            hint=f"It has {', '.join(available)}.",
        )
    return settings.providers


def _is_provider(value: Any) -> bool:
    if isinstance(value, str):
        return True
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and isinstance(value[0], str) and isinstance(value[1], Mapping)
