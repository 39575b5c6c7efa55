"""The packages of an extra, which are asked for where they are needed."""

from __future__ import annotations

from ..errors import MissingPackageError

__all__ = ["require_packages"]


def require_packages(*names: str, purpose: str, extra: str) -> None:
    """Passes when these packages can be imported; ``purpose`` begins the error, ``extra`` is what
    brings them with onlooker.

    :raises MissingPackageError: ``missing-package``
    """
    missing = [name for name in names if not _is_there(name)]
    if missing:
        raise MissingPackageError(
            f"{purpose} needs {', '.join(missing)}.",
            slug="missing-package",
            hint=f"Install it with: pip install 'onlooker[{extra}]'.",
        )


def _is_there(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True
