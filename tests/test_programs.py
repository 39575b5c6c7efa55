"""The programs of several modules: one proof, one report, one folder, installed together."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import EntriesError, OnlookerError, Program, Programs, RejectedCallError, SavedFileError, UsageError
from test_observers import watched

IDS = torch.arange(14).reshape(2, 7)


@pytest.fixture(scope="module")
def programs() -> Programs:
    _, _, made = watched()
    made.verify()
    return made


@pytest.fixture(scope="module")
def saved(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs") / "pipeline"
    programs.save(folder, values=True)
    return folder


def models() -> dict[str, Any]:
    pipe = watched()[0]
    return {"unet": pipe.unet, "vae": pipe.vae, "text": pipe.text_encoder}


def test_the_sum_of_the_tallies(programs: Programs) -> None:
    tallies = programs.verify(trials=8)
    assert tallies.verified
    assert [name for name, _ in tallies.tallies] == ["unet", "vae", "text"]
    assert tallies.total == tallies.passed == len(tallies.checks) == sum(t.total for _, t in tallies.tallies)
    assert programs.tally == tallies
    assert {check.label.partition(":")[0] for check in tallies.checks} == {"unet", "vae", "text"}
    programs.verify()


def test_one_program_that_is_not_verified_is_enough(programs: Programs) -> None:
    untried = Programs({"unet": programs["unet"], "vae": watched()[1].export(only=["vae"])["vae"]})
    assert untried["unet"].report.verified
    assert not untried.report.verified
    assert not untried.tally.verified
    assert untried.report.verdict == "not verified: vae is not verified: nothing was tried"
    assert untried.report.verdict in str(untried.report)
    assert not Programs({}).report.verified


def test_options_of_verify_are_common_or_of_one(programs: Programs) -> None:
    programs.verify(trials=4, options={"unet": {"sizes": {"batch": [9]}, "trials": 30}})
    sizes = {dict(check.sizes).get("batch") for check in programs["unet"].tally.checks}
    assert 9 in sizes
    assert programs["vae"].tally.total <= 4
    with pytest.raises(UsageError, match=r"^vae: sizes names 'length'"):
        programs.verify(options={"vae": {"sizes": {"length": [9]}}})
    programs.verify()


def test_one_report_over_all(programs: Programs) -> None:
    report = programs.report
    assert report.verified
    assert report.verdict == "verified"
    found = json.loads(json.dumps(report.to_dict()))
    assert list(found["programs"]) == ["unet", "vae", "text"]
    assert found["programs"]["vae"]["method"] == "decode"
    text = report.text()
    for name, each in report.reports:
        assert f"\n{each.text()}\n" in text
        assert f"\n{name}:\n" in f"\n{text}"
    assert text.startswith("verdict: verified")


def test_what_is_loaded_is_what_was_saved(programs: Programs, saved: Path) -> None:
    loaded = onlooker.load(saved)
    assert isinstance(loaded, Programs)
    assert list(loaded) == list(programs)
    assert {name: each.plans for name, each in loaded.items()} == {n: each.plans for n, each in programs.items()}
    assert loaded.report.verified
    pipe = watched()[0]
    expected = pipe(IDS, size=5, steps=3)
    with loaded.installed(models()) as served:
        assert torch.equal(pipe(IDS, size=5, steps=3), expected)
    assert all(sum(each.calls.values()) for each in served.values())
    assert loaded.verify_saved().passed == loaded.verify_saved().total == 7
    assert loaded.verify(models(), trials=6).verified


def test_each_program_of_a_folder_is_a_program(programs: Programs, saved: Path) -> None:
    alone = onlooker.load(saved / "vae")
    assert isinstance(alone, Program)
    assert alone.plans == programs["vae"].plans
    assert sorted(os.listdir(saved)) == ["onlooker.json", "text", "unet", "vae"]


def test_loaded_programs_want_models(saved: Path) -> None:
    loaded = onlooker.load(saved)
    with pytest.raises(UsageError, match=r"^unet: A program that was loaded has no model\..*no-model"):
        loaded.verify()
    with pytest.raises(UsageError, match=r"^text: .*no-model"), loaded.installed({"unet": 1, **models(), "text": None}):
        pass
    with pytest.raises(UsageError, match="models names 'unte', which is no entry"):
        loaded.verify({"unte": None})
    with pytest.raises(UsageError, match=r"models is 3\."), loaded.installed(3):
        pass


def state() -> list[dict[str, Any]]:
    objects = list(models().values())
    return [dict(vars(each)) for each in (*objects, *map(type, objects))]


def test_all_programs_are_taken_back_after_an_exception(programs: Programs) -> None:
    before = state()
    with programs.installed():
        assert state() != before
    with pytest.raises(ZeroDivisionError), programs.installed():
        raise ZeroDivisionError
    assert state() == before


def test_no_program_stays_where_another_cannot_be_installed(programs: Programs) -> None:
    before = state()
    with pytest.raises(UsageError, match=r"^vae: "), programs.installed({"vae": torch.nn.Linear(2, 2)}):
        pass
    assert state() == before


def test_a_call_outside_runs_on_the_model_with_fallback(programs: Programs) -> None:
    pipe = watched()[0]
    call = (torch.ones(2, 4, 3, 3), torch.tensor(0.5), torch.ones(2, 3, 8))  # the timestep was an int
    with pytest.raises(RejectedCallError), programs.installed():
        pipe.unet(*call)
    with programs.installed(fallback=True) as served:
        pipe.unet(*call)
    assert served["unet"].eager == 1


def test_programs_for_another_target(programs: Programs, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = programs.to("onnx")
    assert {graph.target for each in onnx.values() for graph in each.graphs} == {"onnx"}
    onnx.save(tmp_path / "onnx")
    pipe = watched()[0]
    expected = pipe(IDS, size=5)
    with onlooker.load(tmp_path / "onnx").installed(models()):
        torch.testing.assert_close(pipe(IDS, size=5), expected)
    with pytest.raises(UsageError, match="There is no target 'tensorrt'"):
        programs.to("tensorrt")
    with pytest.raises(EntriesError, match="unknown-option") as caught:
        programs.to("onnx", opste=3)
    assert list(caught.value.refusals) == ["unet", "vae", "text"]


def test_new_observers_prove_loaded_programs(saved: Path) -> None:
    pipe = watched()[0]
    with onlooker.observe(unet=pipe.unet, vae=pipe.vae.decode, text=pipe.text_encoder) as observers:
        pipe(IDS, size=2, steps=1)
    adopted = observers.adopted(onlooker.load(saved))
    assert adopted.verify(trials=6).verified
    with onlooker.observe(unet=pipe.unet) as fewer:
        pipe(IDS, size=2, steps=1)
    with pytest.raises(UsageError, match="programs names 'vae', which is no entry"):
        fewer.adopted(onlooker.load(saved))


def test_programs_are_made_of_programs_with_names(programs: Programs, tmp_path: Path) -> None:
    one = Programs({"vae": programs["vae"]})
    assert repr(one) == f"<onlooker.Programs of vae: {one.tally.verdict}>"
    with pytest.raises(UsageError, match="is no name of an entry"):
        Programs({"../vae": programs["vae"]})
    with pytest.raises(UsageError, match="vae is 3"):
        Programs({"vae": 3})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="no-entries"):
        Programs({}).save(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_folder_is_replaced_whole_or_not_at_all(programs: Programs, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "out"
    programs["vae"].save(folder)
    Programs({"vae": programs["vae"]}).save(folder)
    programs.save(folder)
    assert list(onlooker.load(folder)) == ["unet", "vae", "text"]

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("onlooker.keep.folder.write_index", full)
        with pytest.raises(SavedFileError, match=rf"{folder} cannot be written: No space left"):
            Programs({"unet": programs["unet"]}).save(folder)
    assert list(onlooker.load(folder)) == ["unet", "vae", "text"]
    assert os.listdir(tmp_path) == ["out"]
    programs["vae"].save(folder)  # and one program takes the place of several
    assert isinstance(onlooker.load(folder), Program)


def test_a_folder_that_somebody_stands_in_is_filled(programs: Programs, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    programs.save(".")
    programs.save(".")
    assert sorted(os.listdir(tmp_path)) == ["onlooker.json", "text", "unet", "vae"]
    assert isinstance(onlooker.load("."), Programs)


def test_a_folder_with_a_file_of_somebody_else_is_left_alone(programs: Programs, tmp_path: Path) -> None:
    for place in ("note.txt", "vae/note.txt"):
        folder = tmp_path / place.replace("/", "_")
        programs.save(folder)
        (folder / place).write_text("mine")
        with pytest.raises(SavedFileError, match="folder-not-ours"):
            programs.save(folder)
        assert (folder / place).read_text() == "mine"


@pytest.mark.slow
def test_two_saves_are_the_same_but_for_timings(programs: Programs, tmp_path: Path) -> None:
    programs.save(tmp_path / "one")
    _, observers, _ = watched()
    again = observers.export()
    again.verify()
    again.save(tmp_path / "two")
    assert (tmp_path / "one" / "onlooker.json").read_bytes() == (tmp_path / "two" / "onlooker.json").read_bytes()


def edited(document: dict[str, Any], **changes: Any) -> bytes:
    """The list with other content, and the digest of that."""
    from onlooker.disk.manifest import _own_digest

    changed = {name: value for name, value in {**document, **changes}.items() if name != "sha256"}
    return json.dumps({**changed, "sha256": _own_digest(changed)}).encode()


def damages(folder: Path) -> dict[str, Any]:
    """Ways to damage a folder of programs, each a function without arguments."""
    index = folder / "onlooker.json"
    document = json.loads(index.read_bytes())
    listed = document["programs"]
    outside = folder.parent / "outside"

    def linked() -> None:
        (folder / "vae").rename(outside)
        (folder / "vae").symlink_to(outside)

    def swapped() -> None:
        (folder / "vae").rename(folder / "other")
        (folder / "unet").rename(folder / "vae")
        (folder / "other").rename(folder / "unet")

    def file_in_the_place() -> None:
        (folder / "vae").rename(outside)
        (folder / "vae").write_text("file")

    return {
        "no index": lambda: index.unlink(),
        "no json": lambda: index.write_bytes(b"{"),
        "a list": lambda: index.write_bytes(b"[]"),
        "one byte": lambda: index.write_bytes(index.read_bytes().replace(b'"vae"', b'"vea"')),
        "no digest": lambda: index.write_bytes(json.dumps({**document, "sha256": 3}).encode()),
        "another key": lambda: index.write_bytes(edited(document, more=1)),
        "no programs": lambda: index.write_bytes(edited(document, programs={})),
        "programs as a list": lambda: index.write_bytes(edited(document, programs=["vae"])),
        "a number as digest": lambda: index.write_bytes(edited(document, programs={**listed, "vae": 3})),
        "a place elsewhere": lambda: index.write_bytes(edited(document, programs={"../outside": listed["vae"]})),
        "an absolute place": lambda: index.write_bytes(edited(document, programs={"/etc": listed["vae"]})),
        "newer": lambda: index.write_bytes(edited(document, schema=99)),
        "one is missing": lambda: (folder / "vae").rename(outside),
        "one is a link": linked,
        "one is a file": file_in_the_place,
        "two are swapped": swapped,
        "a file of one": lambda: (folder / "vae" / "plan.json").write_bytes(b"{}"),
        "a file of one is missing": lambda: (folder / "vae" / "main.pt2").unlink(),
        "an index in an index": lambda: (folder / "vae" / "onlooker.json").write_bytes(index.read_bytes()),
    }


DAMAGES = (
    "no index", "no json", "a list", "one byte", "no digest", "another key", "no programs", "programs as a list",
    "a number as digest", "a place elsewhere", "an absolute place", "newer", "one is missing", "one is a link",
    "one is a file", "two are swapped", "a file of one", "a file of one is missing", "an index in an index",
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(programs: Programs, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "out"
    Programs({"vae": programs["vae"], "unet": programs["unet"]}).save(folder)
    assert set(damages(folder)) == set(DAMAGES)
    damages(folder)[damage]()
    with pytest.raises(SavedFileError) as caught:
        onlooker.load(folder)
    assert caught.value.slug in ("file-damaged", "file-foreign", "file-newer", "folder-incomplete")


def test_a_save_that_was_killed_is_found(programs: Programs, tmp_path: Path) -> None:
    """A killed run has moved the old folder away, and not yet the new one to its place."""
    folder, beside = tmp_path / "out", tmp_path / ".out.killed"
    programs.save(folder)
    beside.mkdir()
    (beside / "onlooker.lock").touch()
    folder.rename(beside / "old")
    with pytest.raises(SavedFileError, match="save-was-killed"):
        onlooker.load(folder)
    programs.save(folder)
    assert not beside.exists()
    assert isinstance(onlooker.load(folder), Programs)


def test_a_save_that_was_killed_between_two_moves_is_found(programs: Programs, tmp_path: Path) -> None:
    """The folder is one that has to stay; one program of several has come back already."""
    folder = tmp_path / "out"
    programs.save(folder)
    old = folder / ".onlooker-killed" / "old"
    old.mkdir(parents=True)
    (old.parent / "onlooker.lock").touch()
    for name in ("onlooker.json", "text", "vae"):
        (folder / name).rename(old / name)
    with pytest.raises(SavedFileError, match="file-foreign"):
        onlooker.load(folder)
    programs.save(folder)
    assert sorted(os.listdir(folder)) == ["onlooker.json", "text", "unet", "vae"]
    assert isinstance(onlooker.load(folder), Programs)


def test_the_name_of_an_entry_is_before_each_error() -> None:
    error = OnlookerError("It failed.", slug="x", hint="Try again.")
    with contextlib.suppress(OnlookerError):
        raise error
    error.happened_at("vae")
    assert (str(error), error.message) == ("vae: It failed. Try again. [x]", "vae: It failed.")
