"""Folders at the URLs of fsspec (``s3://bucket/calls``): read from a copy here, written file by file, each whole.

A file system without an append, as object stores are, takes whole files only. fsspec comes with torch,
and is imported when a URL is used.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..core.errors import SavedFileError

__all__ = ["Place", "check_url", "copied_here", "is_url", "place_of", "put"]

#: a folder here, or the URL of one
Place = Path | str


def is_url(place: Place) -> bool:
    """True for the URL of a folder.

    >>> is_url("s3://bucket/calls"), is_url("calls"), is_url(Path("calls"))
    (True, False, False)
    """
    return isinstance(place, str) and "://" in place


def place_of(text: str) -> Place:
    """A URL as it is, any other text as a path."""
    return text if is_url(text) else Path(text)


def check_url(url: str) -> None:
    """Makes the folder of a URL, where the file system has folders.

    :raises SavedFileError: ``url-not-reached``
    """
    with _reached(url) as (system, root):
        system.makedirs(root, exist_ok=True)


@contextlib.contextmanager
def copied_here(place: Place, patterns: Iterable[str]) -> Iterator[Path]:
    """A folder with the files of a place whose names have one of the patterns: the place itself where
    it is here, a copy of a URL for the time of the block.

    :raises SavedFileError: ``url-not-reached``
    """
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="onlooker-") as name:
        here = Path(name)
        with _reached(str(place)) as (system, root):
            for pattern in patterns:
                for found in system.glob(f"{root}/{pattern}"):
                    system.get_file(found, str(here / found.rpartition("/")[2]))
        yield here


def put(files: Iterable[Path], url: str) -> None:
    """Writes files into the folder of a URL, under their names; each is whole or not there, where the
    file system has that.

    :raises SavedFileError: ``url-not-reached``
    """
    with _reached(url) as (system, root):
        system.makedirs(root, exist_ok=True)
        for file in files:
            system.put_file(str(file), f"{root}/{file.name}")


@contextlib.contextmanager
def _reached(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the path of its folder there.

    :raises SavedFileError: ``url-not-reached``
    """
    try:
        from fsspec.core import url_to_fs

        system, root = url_to_fs(url)
        yield system, str(root).rstrip("/")
    except Exception as error:  # each file system has its own errors
        raise SavedFileError(
            f"{url} cannot be reached by fsspec: {type(error).__name__}: {error}.",
            slug="url-not-reached",
            hint="Give the URL of a folder, and install the package of its file system: s3fs, gcsfs.",
        ) from error
