"""Contracts and recordings that are published beside the weights of a model, and checked against."""

from __future__ import annotations

import inspect
import io
import json
import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker.cli import main
from onlooker.keep.publish import pull, push_program

PUBLISHED = {"onlooker.json", "plan.json", "recording.json", "report.json"}
SECRET = 424243.0


class Scorer(torch.nn.Module):
    """Its weights and its inputs have a number that must not be published."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(500_000, 2)

    def forward(self, ids: torch.Tensor, mode: str = "mean") -> torch.Tensor:
        found = self.layer(ids)
        return found.mean(1) if mode == "mean" else found.sum(1)


def watched(*sizes: tuple[int, int], **options: Any) -> Any:
    torch.manual_seed(0)
    model, observer = Scorer().eval(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for size in sizes:
            model(torch.full(size, int(SECRET)), **options)
    return observer


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("program") / "program"
    found = watched((2, 5), (3, 7), mode="mean").export(ranges={"batch": (1, 8)})
    assert found.verify().verified
    found.save(place, values=True)
    return place


def run(*words: str) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main(words, stdout, stderr), stdout.getvalue(), stderr.getvalue()


def test_a_contract_checks_calls_as_its_program_does(program: Path, tmp_path: Path) -> None:
    code, said, _ = run("push", str(program), str(tmp_path / "model"))
    assert code == 0
    assert "calls were given the text 'mean', which is published too" in said
    published = tmp_path / "model" / "onlooker"
    assert {path.name for path in published.iterdir()} == PUBLISHED
    text = "".join(path.read_text() for path in published.iterdir())
    assert str(int(SECRET)) not in text, "no values"
    assert str(int(SECRET)) in (program / "plan.json").read_text(), "as a limit of ids, for a script"

    assert run("pull", str(tmp_path / "model"), "--out", str(tmp_path / "contract"))[0] == 0
    contract, own = onlooker.load(tmp_path / "contract"), onlooker.load(program)
    for sizes in ([(4, 9)], [(4, 9), (9, 9)]):
        calls = watched(*sizes, mode="mean").recording()
        found = contract.check(calls)
        assert found == own.check(calls)
        assert found.holds == (len(sizes) == 1)
        calls.save(tmp_path / "calls.json")
        code = run("check", str(tmp_path / "contract"), str(tmp_path / "calls.json"))[0]
        assert code == (0 if found.holds else 2)
    assert contract.report.verified, "of the program that was proven"
    for words in (["show"], ["explain", "ids", "0"], ["emit"]):
        place = [words[0], "trtexec"] if words[0] == "emit" else [words[0]]
        assert run(*place, str(tmp_path / "contract"), *words[1:])[0] == 0


def test_a_contract_runs_nothing(program: Path, tmp_path: Path) -> None:
    push_program(program, str(tmp_path))
    contract = onlooker.load(tmp_path / "onlooker")
    for use in (
        lambda: contract(torch.zeros(2, 5, dtype=torch.int64), mode="mean"),
        lambda: contract.save(tmp_path / "again"),
        lambda: contract.save_graphs(tmp_path / "graphs"),
        lambda: contract.to("onnx"),
    ):
        with pytest.raises(onlooker.OnlookerError, match="the contract of a program, which has no graphs") as caught:
            use()
        assert caught.value.slug == "no-graphs"
    with pytest.raises(onlooker.OnlookerError, match="no values of calls"):
        contract.verify(model=Scorer())
    assert not (tmp_path / "again").exists()


def test_it_is_published_again_and_no_other_file_is_touched(program: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for _ in range(2):
        push_program(program, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "onlooker"]


def test_a_recording_is_published_alone(program: Path, tmp_path: Path) -> None:
    calls = watched((4, 9), mode="mean").recording()
    calls.save(tmp_path / "calls.json")
    assert run("push", str(tmp_path / "calls.json"), str(tmp_path / "model"))[0] == 0
    code, said, _ = run("pull", str(tmp_path / "model"), "--out", str(tmp_path / "pulled"))
    assert (code, said.splitlines()[0]) == (0, f"the recording is in {tmp_path / 'pulled'}")
    found = onlooker.Recording.load(tmp_path / "pulled" / "recording.json")
    assert [call.inputs for call in found.calls] == [call.inputs for call in calls.calls]
    assert not any(call.seconds for call in found.calls)
    assert run("check", str(program), str(tmp_path / "pulled"))[0] == 0


def test_several_programs_are_published_together(tmp_path: Path) -> None:
    one, two = torch.nn.Linear(4, 2).eval(), torch.nn.Linear(2, 4).eval()
    with onlooker.observe(one=one, two=two) as observers, torch.no_grad():
        for batch in (2, 3):
            two(one(torch.randn(batch, 4)))
    observers.export().save(tmp_path / "programs")
    push_program(tmp_path / "programs", str(tmp_path / "model"))
    assert pull(str(tmp_path / "model"), tmp_path / "pulled")
    found = onlooker.load(tmp_path / "pulled")
    assert list(found) == ["one", "two"]
    assert found["two"].check(observers["two"].recording()).holds


def test_what_is_damaged_or_not_there_is_not_pulled(program: Path, tmp_path: Path) -> None:
    push_program(program, str(tmp_path / "model"))
    plan = tmp_path / "model" / "onlooker" / "plan.json"
    plan.write_text(plan.read_text().replace('"batch"', '"bitch"', 1))
    for source, slug in (("model", "file-damaged"), ("empty", "nothing-published")):
        (tmp_path / source).mkdir(exist_ok=True)
        code, _, stderr = run("pull", str(tmp_path / source), "--out", str(tmp_path / "pulled"))
        assert code == 1
        assert f"[{slug}]" in stderr
    assert not (tmp_path / "pulled").exists()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the hub: its repositories are folders, and its cache has links."""
    place = tmp_path / "hub"
    real = pytest.importorskip("huggingface_hub")
    uploading, downloading = map(inspect.signature, (real.HfApi.upload_folder, real.snapshot_download))

    class HfApi:
        def upload_folder(self, **given: Any) -> None:
            uploading.bind(self, **given)
            if given["repo_id"] == "org/absent":
                raise FileNotFoundError("404: org/absent")
            shutil.copytree(given["folder_path"], place / given["repo_id"] / given["path_in_repo"], dirs_exist_ok=True)

    def snapshot_download(**given: Any) -> str:
        downloading.bind(**given)
        cache = tmp_path / "cache"
        assert given["allow_patterns"] == ["onlooker/*"]
        for file in (place / given["repo_id"]).rglob("*.json"):
            link = cache / file.relative_to(place / given["repo_id"])
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(file, link)
        return str(cache)

    stand_in = types.ModuleType("huggingface_hub")
    vars(stand_in).update(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return place


def test_a_repository_of_the_hub_is_a_place_as_well(program: Path, hub: Path, tmp_path: Path) -> None:
    code, said, _ = run("push", str(program), "hf://org/scorer", "--json")
    assert (code, json.loads(said).get("published")) == (0, "hf://org/scorer"), said
    assert {path.name for path in (hub / "org/scorer/onlooker").iterdir()} == PUBLISHED
    assert run("pull", "hf://org/scorer", "--out", str(tmp_path / "pulled"))[0] == 0
    assert not any(path.is_symlink() for path in (tmp_path / "pulled").iterdir())
    assert onlooker.load(tmp_path / "pulled").check(watched((2, 3), mode="mean").recording()).holds


@pytest.mark.parametrize(("place", "slug"), [("hf://org/absent", "hub-failed"), ("hf://scorer", "bad-command-line")])
def test_a_repository_that_cannot_be_reached_is_an_error(program: Path, hub: Path, place: str, slug: str) -> None:
    code, _, stderr = run("push", str(program), place)
    assert code == 1
    assert f"[{slug}]" in stderr


def test_without_the_package_of_the_hub_there_is_an_error(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in run("push", str(program), "hf://org/scorer")[2]
