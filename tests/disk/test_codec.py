"""Recordings, plans and tallies as JSON: what is read is what was written, and nothing else is read."""

from __future__ import annotations

import enum
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import InputObserver, OnlookerError, Recording
from onlooker.core.call import Call, Parameter, Passing, Signature
from onlooker.core.errors import SavedFileError, UnsupportedError, UsageError
from onlooker.core.path import Attr, Index, Key, Name
from onlooker.core.plan import Note, Plan
from onlooker.core.spec import ConstantSpec, OpaqueSpec, TensorSpec
from onlooker.core.structure import Structure, Tree
from onlooker.core.surroundings import Autocast, Gradients, Surroundings
from onlooker.core.verdict import Check, Outcome, Tally
from onlooker.disk.codec import read_document, write_document
from onlooker.disk.text import read_json, write_json

TEXTS = st.text(alphabet=st.characters(), max_size=6) | st.sampled_from(["\ud800\udc00", "\udfff", "é\0", "𝄞", ""])
INTS = st.integers() | st.sampled_from([2**63, -(2**63)])
FLOATS = st.floats(allow_nan=True) | st.sampled_from([-0.0, math.inf, -math.inf, 5e-324])
CONSTANTS = st.none() | st.booleans() | INTS | FLOATS | TEXTS
KEYS = TEXTS | st.integers(2, 9) | st.tuples(TEXTS, st.integers(2, 9))
SPECS = st.one_of(
    st.builds(TensorSpec, st.lists(st.integers(0, 2**70), max_size=4).map(tuple), TEXTS, TEXTS),
    st.builds(ConstantSpec, CONSTANTS),
    st.builds(OpaqueSpec, TEXTS),
)
ENTRIES = st.builds(Name, TEXTS) | st.builds(Attr, TEXTS) | st.builds(Key, KEYS) | st.builds(Index, st.integers(0, 9))


def containers(children):
    return st.lists(st.tuples(ENTRIES, children), max_size=3).flatmap(
        lambda rows: st.builds(
            Structure,
            TEXTS.filter(lambda kind: kind != "leaf"),
            st.just(tuple(entry for entry, _ in rows)),
            st.just(tuple(child for _, child in rows)),
            TEXTS,
        )
    )


STRUCTURES = st.recursive(st.just(Structure()), containers, max_leaves=6)


@st.composite
def trees(draw):
    structure = draw(STRUCTURES)
    return Tree(structure, tuple(draw(SPECS) for _ in range(structure.n_leaves)))


SURROUNDINGS = st.builds(
    Surroundings,
    st.lists(
        st.builds(Autocast, st.sampled_from(["cpu", "cuda"]), st.just("torch.bfloat16"), st.booleans()), max_size=2
    ).map(tuple),
    st.sampled_from(Gradients),
)
CALLS = st.builds(
    Call,
    st.integers(0, 4),
    trees(),
    trees(),
    st.lists(st.tuples(TEXTS, st.sampled_from(Passing)), max_size=2).map(tuple),
    st.floats(0, 2, allow_nan=False),
    surroundings=st.none() | SURROUNDINGS,
)
SIGNATURES = st.builds(
    Signature,
    st.lists(
        st.builds(Parameter, TEXTS, TEXTS, st.booleans(), st.none() | st.builds(ConstantSpec, CONSTANTS), TEXTS),
        max_size=2,
    ).map(tuple),
)
RECORDINGS = st.builds(
    Recording, TEXTS, TEXTS, SIGNATURES, st.lists(CALLS, max_size=3).map(tuple), st.lists(TEXTS, max_size=2).map(tuple)
)
#: recordings of one method, which can be merged
SAME = st.builds(
    Recording, st.just("m"), calls=st.lists(CALLS, max_size=3).map(tuple), missed=st.lists(TEXTS, max_size=2).map(tuple)
)


def there_and_back(declared, value):
    content = write_json(write_document("thing", declared, value))
    return read_document(read_json(content, "file"), "thing", declared, "file")


@given(RECORDINGS)
@settings(max_examples=60)
def test_a_recording_survives_json_exactly(recording):
    read = there_and_back(Recording, recording)
    assert read == recording
    assert hash(read) == hash(recording)
    assert str(read) == str(recording)


@given(SAME, SAME, SAME)
@settings(max_examples=40)
def test_merging_is_associative_commutative_and_idempotent(a, b, c):
    assert (a | b) | c == a | (b | c)
    assert a | b == b | a
    assert a | a == a
    assert a | (a | b) == a | b


@given(SAME, SAME)
@settings(max_examples=20)
def test_merging_and_saving_can_be_exchanged(a, b):
    assert there_and_back(Recording, a | b) == there_and_back(Recording, a) | there_and_back(Recording, b)


def test_a_number_that_python_does_not_write_survives():
    spec = ConstantSpec(-(10**5000))
    assert there_and_back(ConstantSpec, spec) == spec
    assert hash(spec) == hash(ConstantSpec(-(10**5000)))


class Side(enum.Enum):
    LEFT = "left"


class Mode(str, enum.Enum):
    FAST = "fast"


@pytest.mark.parametrize(
    "value", [Mode.FAST, enum.IntEnum("Level", "LOW HIGH").HIGH, type("Real", (float,), {})(1.5)], ids=repr
)
def test_an_instance_of_a_derived_class_stays_another_constant_than_its_value(value):
    spec = ConstantSpec(value)
    read = there_and_back(ConstantSpec, spec)
    assert read == spec
    assert hash(read) == hash(spec)
    assert read != ConstantSpec(value.value if isinstance(value, enum.Enum) else float(value))


def test_a_key_that_json_cannot_hold_is_refused_by_name():
    structure = Structure("dict", (Key(Side.LEFT),), (Structure(),))
    with pytest.raises(UnsupportedError, match=r"A test_codec.Side cannot be written.*\[not-saved\]"):
        write_document("thing", Structure, structure)


def test_a_tally_survives_json():
    tally = Tally(
        (Check("unseen", "b=2", Outcome.DIFFERENT, (("b", 2),), math.inf, "x"), Check("observed", "", Outcome.EXACT))
    )
    assert there_and_back(Tally, tally) == tally


def plans() -> tuple[Plan, ...]:
    class Model(torch.nn.Module):
        def forward(self, x, pair, scale=2):
            return x @ torch.cat(pair, 1).T * scale

    model, observer = Model().eval(), InputObserver()
    with observer(model):
        for n, m in ((2, 3), (4, 5)):
            model(torch.zeros(n, 6), [torch.zeros(m, 2), torch.zeros(m, 4)])
    return observer.plans()


def test_a_plan_survives_json():
    for plan in plans():
        assert there_and_back(Plan, plan) == plan


def test_a_note_about_axes_and_a_note_of_text_survive_json() -> None:
    (plan, *_) = plans()
    (axis, _), *_ = plan.inputs[0].axes
    noted = replace(plan, notes=(Note("it is pinned static", (axis,)), "a large model"))
    assert there_and_back(Plan, noted) == noted


def test_saving_is_atomic_and_loading_gives_the_same(tmp_path):
    model, observer = torch.nn.Linear(3, 2), InputObserver()
    with observer(model):
        model(torch.zeros(2, 3))
    path = tmp_path / "calls.json"
    path.write_text("old")
    observer.recording().save(path)
    assert Recording.load(path) == observer.recording()
    assert os.listdir(tmp_path) == ["calls.json"]


@pytest.mark.parametrize("failing", ["open", "replace", "fsync"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch, failing):
    path = tmp_path / "calls.json"
    Recording("a").save(path)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*(("builtins.open", fail) if failing == "open" else (f"os.{failing}", fail)))
    with pytest.raises(SavedFileError, match=r"cannot be written: No space left on device.*\[not-written\]"):
        Recording("b").save(path)
    monkeypatch.undo()
    assert Recording.load(path).model == "a"
    assert os.listdir(tmp_path) == ["calls.json"]


def document(**changes) -> dict:
    return {**write_document("recording", Recording, Recording("m", calls=())), **changes}


def value(**changes) -> dict:
    content = document()
    return {**content, "value": {**content["value"], **changes}}


CALL = {"index": 0, "inputs": {"structure": 0, "leaves": []}, "outputs": {"structure": 0, "leaves": []}}
DOUBLING = [["leaf", "", [], []]] + [["list", "", [{"index": 0}, {"index": 1}], [n, n]] for n in range(62)]
DEEP = [["leaf", "", [], []]] + [["list", "", [{"index": 0}], [n]] for n in range(500)]

BROKEN = {
    "not an object": ([], "file-foreign", "is not a recording"),
    "another kind": (document(onlooker="program"), "file-foreign", "is not a recording"),
    "no kind": ({}, "file-foreign", "is not a recording"),
    "newer": (document(schema=99), "file-newer", "format 99"),
    "no version": (document(schema=None), "file-damaged", "at schema"),
    "true as version": (document(schema=True), "file-damaged", "at schema"),
    "another part": (document(more=1), "file-damaged", "other parts"),
    "no structures": (document(structures=3), "file-damaged", "at structures: a list"),
    "structure of text": (document(structures=["x"]), "file-damaged", r"structures\[0\]"),
    "child after": (document(structures=[["list", "", [{"index": 0}], [0]]]), "file-damaged", "number of a structure"),
    "leaf with child": (
        document(structures=[["leaf", "", [], []], ["leaf", "", [{"index": 0}], [0]]]),
        "file-damaged",
        "a leaf has none",
    ),
    "doubling": (document(structures=DOUBLING), "file-damaged", "larger, or deeper"),
    "deep": (document(structures=DEEP), "file-damaged", "larger, or deeper"),
    "unknown step": (
        document(structures=[["leaf", "", [], []], ["x", "", [{"call": "f"}], [0]]]),
        "file-damaged",
        "step",
    ),
    "text as index": (
        document(structures=[["leaf", "", [], []], ["x", "", [{"index": "f"}], [0]]]),
        "file-damaged",
        "step",
    ),
    "value is a list": (document(value=[]), "file-damaged", "a Recording is wanted"),
    "unknown field": (value(extra=1), "file-damaged", "a Recording has no 'extra'"),
    "number as text": (value(model=3), "file-damaged", r"value.model: str is wanted here, and there is int"),
    "null as text": (value(method=None), "file-damaged", r"value.method"),
    "object as tuple": (value(missed={}), "file-damaged", r"value.missed: a list is wanted"),
    "missing field": (value(calls=[{"index": 0}]), "file-damaged", r"calls\[0\]: inputs is missing"),
    "no such structure": (value(calls=[CALL]), "file-damaged", r"calls\[0\].inputs.structure"),
    "leaf that is none": (
        {**value(calls=[CALL]), "structures": [["list", "", [], []], ["leaf", "", [], []]]}
        | {"value": {**value()["value"], "calls": [{**CALL, "inputs": {"structure": 0, "leaves": [1]}}]}},
        "file-damaged",
        "TensorSpec or ConstantSpec",
    ),
    "leaves that lack": (
        {**value(calls=[{**CALL, "inputs": {"structure": 0, "leaves": []}}]), "structures": [["leaf", "", [], []]]},
        "file-damaged",
        "1 leaves are wanted here, and there are 0",
    ),
    "unknown constant": (value(model={"int": "xyz"}), "file-damaged", "value.model"),
    "unknown class": (
        value(model={"class": "C", "of": "list", "text": "", "value": []}),
        "file-damaged",
        "value.model",
    ),
}


@pytest.mark.parametrize(("content", "slug", "text"), BROKEN.values(), ids=BROKEN)
def test_a_document_that_cannot_be_meant_is_one_clear_error(tmp_path, content, slug, text):
    path = tmp_path / "calls.json"
    path.write_bytes(write_json(content))
    with pytest.raises(SavedFileError, match=text) as caught:
        Recording.load(path)
    assert caught.value.slug == slug
    assert str(path) in str(caught.value)


RAW = {
    "nothing": b"",
    "half": b'{"onlooker":"rec',
    "no utf-8": b'{"onlooker":"\xff\xfe"}',
    "nan": b'{"onlooker":NaN}',
    "infinity": b'{"onlooker":-Infinity}',
    "key twice": b'{"onlooker":"recording","onlooker":"recording"}',
    "long number": b'{"onlooker":' + b"9" * 5000 + b"}",
    "deep": b"[" * 200_000,
    "deep and closed": b"[" * 200_000 + b"]" * 200_000,
}


@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_what_is_no_json_is_refused(tmp_path, content):
    path = tmp_path / "calls.json"
    path.write_bytes(content)
    with pytest.raises(SavedFileError, match=r"\[file-(damaged|foreign)\]"):
        Recording.load(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", tmp_path / "loop", Path("/dev/zero")):
        with pytest.raises(SavedFileError, match=r"\[file-(missing|damaged)\]"):
            Recording.load(path)
    with pytest.raises(UsageError, match=r"\[bad-path\]"):
        Recording.load("a\0b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
SAVED = write_document(
    "recording",
    Recording,
    replace(
        Recording("m"),
        calls=(Call(0, Tree(Structure(), (TensorSpec((2,), "f"),)), Tree(Structure(), (ConstantSpec(1),))),),
    ),
)


def places(node, path=()):
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(node, path, content):
    if not path:
        return content
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = changed(node[path[0]], path[1:], content)
    return copy


@given(st.sampled_from(list(places(SAVED))), JSON)
@settings(max_examples=150)
def test_another_value_at_any_node_gives_a_recording_or_an_error_of_ours(path, content):
    try:
        read = read_document(json.loads(json.dumps(changed(SAVED, path, content))), "recording", Recording, "file")
    except OnlookerError:
        return
    assert isinstance(read, Recording)
    assert isinstance(hash(read), int)
    assert all(isinstance(call, Call) for call in read.calls)


def test_a_dtype_of_autocast_is_a_name() -> None:
    """Scripts are written of it."""
    surroundings = Surroundings((Autocast("cpu", "torch.bfloat16"),))
    document = write_document("recording", Surroundings, surroundings)
    assert read_document(document, "recording", Surroundings, "a file") == surroundings
    document["value"]["autocast"][0]["dtype"] = "torch.bfloat16), print(1"
    with pytest.raises(SavedFileError) as caught:
        read_document(document, "recording", Surroundings, "a file")
    assert caught.value.slug == "file-damaged"
