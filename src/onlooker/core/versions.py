"""The version of onlooker, which pyproject.toml reads here, and those of the packages beside it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "installed_version", "version_of"]

__version__ = "0.1.0"


def version_of(package: str) -> str:
    """The version of a package, as files say it; ``unknown`` where it is not installed.

    >>> version_of("onlooker") == __version__
    True
    """
    return installed_version(package) or "unknown"


def installed_version(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    if package == "onlooker":
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None
