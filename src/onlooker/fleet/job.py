"""A job: a function by its name and its arguments, as JSON holds them, and the folder of its result.

Most jobs are one ``onlooker export``; its options are the fields of the job::

    {"build": "app.py:build", "to": ["torch", "onnx"], "range": ["batch=1:64"], "seconds": 600}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.support.kinds import check_kind, is_number
from ..model_source.user_function import name_of_function

__all__ = ["EXPORT", "Job", "JobsOption", "failed", "jobs_of"]

#: jobs, or jobs by their names
JobsOption = Iterable[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]

#: the function of a job that is an export; as that of any job, it is looked up where the job runs
EXPORT = "onlooker.cli.work.job:export"
#: what is a model, or has one: the fields of an export of which one has to be there
_SOURCES = ("source", "build", "model", "diffusers")
#: what is of the job, and not of the command
_OWN = frozenset({"name", "run", "arguments", "to", "seconds", "memory"})
#: what the sweep itself decides of a command
_DECIDED = frozenset({"out", "json", "quiet", "save-recording", "recording"})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99})*")


@dataclass(frozen=True, slots=True)
class Job:
    """A job: ``run`` names a function, which is called as ``run(folder, note, **arguments)``.

    ``seconds`` are those of the processor, ``memory`` is in GiB of addresses; None is no limit.
    ``directory`` is where the job runs, and where ``app.py`` of ``app.py:build`` is looked for.
    """

    name: str
    run: str
    arguments: Mapping[str, Any]
    folder: Path
    directory: str
    seconds: float | None = None
    memory: float | None = None

    @property
    def digest(self) -> str:
        """Equal for jobs that do the same: their names, limits and places do not matter."""
        text = json.dumps([self.run, self.arguments], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def document(self) -> dict[str, Any]:
        """The job as JSON holds it, for the process that runs it."""
        return {
            "name": self.name,
            "run": self.run,
            "arguments": dict(self.arguments),
            "folder": str(self.folder),
            "directory": self.directory,
            "seconds": self.seconds,
            "memory": self.memory,
            "digest": self.digest,
        }


def failed(status: str, message: str, *, slug: str) -> dict[str, Any]:
    """Returns the words of a row about a job that has not done what it should."""
    return {"status": status, "message": message, "slug": slug}


def jobs_of(
    jobs: JobsOption, into: Path, *, seconds: float | None = None, memory: float | None = None
) -> list[Job]:
    """The jobs that were described; one with several targets is a job for each target.

    ``seconds`` and ``memory`` are the limits of jobs that have none of their own.

    :raises UsageError: ``bad-job``
    """
    described = (
        [{"name": name, **_checked(job)} for name, job in jobs.items()]
        if isinstance(jobs, Mapping)
        else [_checked(job) for job in jobs]
    )
    found: dict[str, Job] = {}
    for fields in described:
        for job in _of_fields({"seconds": seconds, "memory": memory, **fields}, into):
            if job.name in found:
                raise _bad(f"Two jobs are called {job.name!r}", "Give each a name of its own.")
            found[job.name] = job
    return list(found.values())


def _checked(job: Any) -> Mapping[str, Any]:
    check_kind(job, Mapping, "A job", "its fields by name: {'build': 'app.py:build'}")
    fields: Mapping[str, Any] = job
    return fields


def _of_fields(fields: Mapping[str, Any], into: Path) -> Iterator[Job]:
    """The job of some fields, or one for each of its targets."""
    seconds, memory = (_limit(name, fields[name]) for name in ("seconds", "memory"))
    here = os.getcwd()
    if "run" in fields:
        run, given = _name_of(fields["run"]), fields.get("arguments", {})
        others = sorted(fields.keys() - _OWN | fields.keys() & {"to"})
        if others:
            raise _bad(f"The job {run!r} has the field {others[0]!r}", "Put it into 'arguments'.")
        check_kind(given, Mapping, "The arguments of a job", "the arguments by name")
        name = _folder_name(fields.get("name", run.rpartition(":")[2]))
        _check_json(given, name)
        yield Job(name, run, dict(given), into / name, here, seconds, memory)
        return
    sources = [name for name in _SOURCES if fields.get(name) is not None]
    if not sources:
        named = ", ".join(sorted(fields.keys() - {"seconds", "memory"})) or "no field"
        raise _bad(
            f"A job has {named}, and nothing to export",
            "Name what it exports, with 'build', 'source', 'model' or 'diffusers', or a function"
            " of yours with 'run'.",
        )
    name = _folder_name(fields.get("name", _stem_of(_name_of(fields[sources[0]]))))
    targets = fields.get("to", "torch")
    listed = [targets] if isinstance(targets, str) else list(targets)
    for target in listed:
        own = name if len(listed) == 1 else f"{name}/{target}"
        words = [*_words_of(fields), "--to", str(target)]
        yield Job(own, EXPORT, {"words": words}, into / own, here, seconds, memory)


def _words_of(fields: Mapping[str, Any]) -> list[str]:
    """The words of ``onlooker export`` that the fields stand for.

    >>> _words_of({"build": "app.py:build", "no_verify": True, "range": ["batch=1:8"], "atol": 0.1})
    ['--atol', '0.1', '--no-verify', '--range', 'batch=1:8', 'app.py:build']
    """
    given = dict(fields)
    if given.get("source") is None and given.get("build") is not None:
        given["source"] = given.pop("build")
    words: list[str] = []
    for name in sorted(given, key=str):
        value, option = given[name], str(name).replace("_", "-")
        if option in _DECIDED:
            raise _bad(f"A job has the field {name!r}, which the sweep itself decides", "")
        if name in _OWN or value is None or value is False:
            continue
        if name == "source":
            words.append(_name_of(value))
        elif value is True:
            words.append(f"--{option}")
        else:
            each = value if isinstance(value, (list, tuple)) else [value]
            words += [word for one in each for word in (f"--{option}", _name_of(one))]
    return words


def _name_of(value: Any) -> str:
    """A value as a word; a function as the name by which another process finds it.

    :raises UsageError: ``bad-function``
    """
    return name_of_function(value) if callable(value) else str(value)


def _stem_of(source: str) -> str:
    """A name for a job without one, from what it exports.

    >>> _stem_of("app.py:build"), _stem_of("models/llama/"), _stem_of("org/tiny model")
    ('build', 'llama', 'tiny_model')
    """
    last = re.split(r"[:/\\]", source.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", last).lstrip(".+-") or "job"


def _folder_name(name: Any) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise _bad(
        f"A job is called {name!r}, which is no name for a folder",
        "Use letters, digits, '_', '.' and '-', and '/' between folders.",
    )


def _limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if is_number(value) and value > 0:
        return float(value)
    raise _bad(f"The limit {name} of a job is {value!r}", "Give a number, more than 0.")


def _check_json(arguments: Mapping[str, Any], name: str) -> None:
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _bad(f"The arguments of {name} cannot be written as JSON ({error})", "") from error


def _bad(problem: str, hint: str) -> UsageError:
    return UsageError(f"{problem}.", slug="bad-job", hint=hint)
