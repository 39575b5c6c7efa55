"""Models of ONNX as a folder that transformers.js loads, in a browser or in node: one file for each
dtype that its ``from_pretrained(folder, {dtype})`` knows, the configuration and the tokenizer.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.errors import UnsupportedError, UsageError
from ....core.support.kinds import as_path
from ....core.verdict import Tally
from ....trace.graph import Graph
from ...side_files import copy_tokenizer, write_json
from .handed_over import handed_over

__all__ = ["DTYPES", "WebFile", "check_for_web", "checked_dtypes", "write_model", "write_settings"]

#: what transformers.js calls a dtype: the precision that onlooker makes for it, and how its file ends
DTYPES: Mapping[str, tuple[str, str]] = {
    "fp32": ("", ""),
    "fp16": ("fp16", "_fp16"),
    "q8": ("int8", "_quantized"),
    "q4": ("int4", "_q4"),
}
_CONFIG = "config.json"
#: the axis that transformers.js gives its size to where it makes an empty cache; others are 0
_BATCH = "batch_size"


@dataclass(frozen=True, slots=True)
class WebFile:
    """One model in a folder for transformers.js: where it is, its dtype in the words of transformers.js,
    its bytes with those of its weights, and the trials that compared it with the watched model; none
    where nothing was compared. ``is_judged`` is true where somebody said how near it has to come.

    >>> WebFile(Path("onnx/model_q4.onnx"), "q4", 4096).verdict
    'not compared with the model'
    """

    path: Path
    dtype: str
    size: int
    tally: Tally | None = None
    is_judged: bool = False

    @property
    def holds(self) -> bool:
        """True where it was compared, and no trial failed."""
        if self.tally is None:
            return False
        return (
            self.tally.verified
            if self.is_judged
            else bool(self.tally.total) and not self.tally.failed
        )

    @property
    def verdict(self) -> str:
        """The distance of the file from the model, in words; never "verified" where nobody said how
        near it has to come.
        """
        if self.tally is None:
            return "not compared with the model"
        if not self.holds or self.is_judged:
            verdict = self.tally.verdict
            return f"{verdict}, largest difference {self.tally.difference:.2g}"
        scores = self.tally.scores("observed") + self.tally.scores("unseen")
        same = f"; the largest number of a row stands at the same place in {scores.agreeing} of {scores.count}"
        return (
            f"differs from the model by up to {self.tally.difference:.2g} in {self.tally.total} trials"
            f"{same if scores.count else ''}"
        )

    def to_dict(self) -> dict[str, object]:
        """Returns the file as JSON takes it."""
        difference = None if self.tally is None else self.tally.difference
        return {
            "path": str(self.path),
            "dtype": self.dtype,
            "bytes": self.size,
            "holds": self.holds,
            "difference": difference if difference is None or math.isfinite(difference) else None,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        return f"{self.path} ({self.dtype}, {self.size / 1e6:.1f} MB): {self.verdict}"


def checked_dtypes(dtypes: Any) -> tuple[str, ...]:
    """The dtypes that a user asked for, each once.

    :raises UsageError: ``bad-variant``
    """
    given = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
    unknown = [dtype for dtype in given if dtype not in DTYPES]
    if unknown or not given:
        raise UsageError(
            f"dtypes is {dtypes!r}.",
            slug="bad-variant",
            hint=f"Give some of {', '.join(DTYPES)}: the words of transformers.js.",
        )
    return tuple(dict.fromkeys(given))


def check_for_web(config: Any) -> None:
    """Passes for what may be the configuration of a model that transformers.js runs as one file.

    :raises UnsupportedError: ``not-for-web`` with the reason
    """
    if config is None:
        raise _refused(
            "its model has no configuration",
            "transformers.js runs models of transformers, by the model_type of their config.json; give"
            ' one as config=. onnxruntime-web runs the file of program.save("model.onnx") as it is.',
        )
    if getattr(config, "is_encoder_decoder", False):
        raise _refused(
            "it generates with an encoder, for which transformers.js wants a file of its own",
            "onlooker.generation() runs the programs of both with transformers.",
        )


def _refused(reason: str, hint: str) -> UnsupportedError:
    return UnsupportedError(
        f"transformers.js cannot run this program: {reason}.", slug="not-for-web", hint=hint
    )


def write_model(graphs: Sequence[Graph], folder: Path, dtype: str) -> tuple[Path, list[Path]]:
    """Writes the model of one dtype, and gives its path in ``folder`` and those of all its files.

    :raises UnsupportedError: ``not-for-web``
    :raises ExportError: ``not-mergeable``
    """
    made = handed_over(graphs)
    if made.takes_a_choice:
        raise _refused(
            f"its {len(graphs)} graphs take different inputs",
            "Watch calls with the same arguments, so that one graph, or several of one form, serve them.",
        )
    made.name_first_axes(_BATCH)
    path = Path("onnx", f"model{DTYPES[dtype][1]}.onnx")
    names = made.write(folder / path)
    return path, [path.with_name(name) for name in names]


def write_settings(
    folder: Path,
    config: Any,
    generation_config: Any,
    tokenizer: Any,
    architecture: str,
    outside: Sequence[str],
) -> None:
    """Writes ``config.json``, the settings of a generation, and the files of the tokenizer.

    ``config`` is a configuration of transformers, or a folder that has one. ``outside`` are the files
    of ONNX that have their weights beside them: transformers.js has to be told.

    :raises UsageError: ``bad-config``, ``no-tokenizer``
    """
    path = folder / _CONFIG
    if callable(getattr(config, "save_pretrained", None)):
        config.save_pretrained(folder)
    else:
        source = as_path(config, "The configuration") / _CONFIG
        if not source.is_file():
            raise UsageError(
                f"The configuration {config} cannot be used: there is no {_CONFIG}.",
                slug="bad-config",
                hint="Give the model's own configuration, or the folder that model.save_pretrained wrote.",
            )
        shutil.copyfile(source, path)
    if generation_config is not None:
        generation_config.save_pretrained(folder)
    if tokenizer is not None:
        copy_tokenizer(tokenizer, folder)
    settings = json.loads(path.read_text(encoding="utf-8"))
    if not settings.get("architectures"):
        settings["architectures"] = [architecture]
    if outside:
        own = settings.setdefault("transformers.js_config", {})
        own["use_external_data_format"] = dict.fromkeys(outside, 1)
    write_json(path, settings)
