"""The public names: none changes by accident, each has a text, and a deprecated one says what to do."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch

import api
import onlooker
from onlooker.core.support.deprecation import OnlookerDeprecationWarning, deprecated
from onlooker.zoo import tiny_model

ROOT = Path(__file__).parent.parent.parent


def test_the_public_names_are_those_that_are_listed() -> None:
    """When this fails: python tests/api.py, and a line in CHANGELOG.md; a name that goes is deprecated first."""
    assert api.FILE.read_text(encoding="utf-8") == api.listing()


def test_every_public_name_has_a_text_of_its_own() -> None:
    values = [
        (name, getattr(module, name))
        for title, names in api.public_names()
        for module in [importlib.import_module(title.partition(",")[0])]
        for name in names
        if callable(getattr(module, name))
    ]
    assert not [name for name, value in values if not (inspect.getdoc(value) or "").strip()]


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(1)


def test_the_short_texts_of_objects_are_worth_reading() -> None:
    model, observer = Masked(), onlooker.InputObserver()
    assert repr(observer) == "<onlooker.InputObserver: nothing watched yet>"
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length), mask=torch.ones(batch, length))
    program = observer.export()
    assert repr(observer) == "<onlooker.InputObserver: 2 calls of forward>"
    assert repr(observer.info) == "<InputObserverInfo: 2 kept calls>"
    assert repr(observer.recording()).endswith("Masked.forward: 2 calls>")
    assert repr(program.plans[0]).endswith("Masked.forward: 2 inputs, sizes batch, sequence>")
    assert repr(program).endswith("Masked.forward as torch: main, not verified: nothing was tried>")
    assert repr(program.tally) == "<Tally: nothing was tried>"
    assert repr(program.report).endswith("Masked.forward: not verified: nothing was tried>")
    objects = [observer.info.inputs[0], program, program.experiments, onlooker.Programs({"main": program})]
    assert repr(program.graphs[0]) == "<Graph main of torch: 2 inputs>"
    assert repr(tiny_model("vit")).startswith("<TinyModel vit: ")
    objects += [program.graphs[0], tiny_model("vit")]
    tally = program.verify()
    assert repr(tally).startswith(f"<Tally: verified, {tally.total} of {tally.total}: 2 observed, ")
    assert repr(program).endswith("Masked.forward as torch: main, verified>")
    assert not [repr(one) for one in objects if " at 0x" in repr(one) or len(repr(one)) > 200]


def test_the_version_has_one_source() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = \{ attr = "onlooker\.core\.versions\.__version__" \}$', project, flags=re.MULTILINE)
    assert not re.search(r'^version = "', project, flags=re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z]+\d+)?", onlooker.__version__)


def test_a_deprecated_function_works_and_says_what_to_call() -> None:
    @deprecated("onlooker.new", since="0.2", removed_in="0.4")
    def old(x: int, *, y: int = 1) -> int:
        """The sum."""
        return x + y

    words = r"old is deprecated since onlooker 0\.2.*gone in 0\.4.*Use onlooker\.new\..*\[deprecated\]"
    with pytest.warns(OnlookerDeprecationWarning, match=words) as told:
        assert old(2, y=3) == 5
    assert told[0].filename == __file__, "the warning is at the line of the caller"
    assert list(inspect.signature(old).parameters) == ["x", "y"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        with pytest.raises(DeprecationWarning):
            old(1)
