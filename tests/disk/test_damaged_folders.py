"""Folders that were damaged, or made to do harm: every one is an error of ours, and none runs code."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import signal
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onlooker
from fuzz_values import examples
from onlooker import InputObserver, OnlookerError, SavedFileError
from onlooker.core.errors import UnsupportedError
from onlooker.disk.manifest import MANIFEST, write_manifest
from onlooker.disk.text import write_json
from onlooker.targets.torch.check import check_program, is_guard, is_size

CANARY = "canary"


class Opens:
    """What runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    torch.manual_seed(0)
    model, observer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    folder = tmp_path_factory.mktemp("pristine") / "program"
    program = observer.export()
    program.verify()
    program.save(folder, values=True)
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    copy = tmp_path / "program"
    shutil.copytree(pristine, copy)
    return copy


def resigned(folder):
    """Lists the files as they are now, so that what stands behind the digests is reached."""
    names = [name for name in sorted(os.listdir(folder)) if name != MANIFEST and (folder / name).is_file()]
    write_manifest(folder, "torch", names)


def edited(folder, name, change):
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_bytes(write_json(document))
    resigned(folder)


def archive(folder, **members):
    """Writes ``main.pt2`` again with other members."""
    with zipfile.ZipFile(folder / "main.pt2") as old:
        contents = {info.filename: old.read(info) for info in old.infolist()}
    root = next(iter(contents)).partition("/")[0]
    contents |= {f"{root}/{name.replace('__', '/')}": content for name, content in members.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as new:
        for name, content in contents.items():
            new.writestr(name, content)
    (folder / "main.pt2").write_bytes(buffer.getvalue())
    resigned(folder)


def graph_of(folder):
    with zipfile.ZipFile(folder / "main.pt2") as old:
        (name,) = (n for n in old.namelist() if n.endswith("models/model.json"))
        return json.loads(old.read(name))


def with_graph(folder, change):
    document = graph_of(folder)
    change(document)
    archive(folder, **{"models__model.json": write_json(document)})


def refuses(folder, slug, text="program"):
    with pytest.raises(SavedFileError, match=text) as caught:
        onlooker.load(folder)
    assert caught.value.slug == slug


def test_the_pristine_folder_loads(folder):
    resigned(folder)
    archive(folder)
    assert onlooker.load(folder)(torch.zeros(5, 4)).shape == (5, 3)


FAULTS = {
    "absent": (shutil.rmtree, "file-missing"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("x")), "file-missing"),
    "empty": (lambda f: [p.unlink() for p in f.iterdir()], "file-foreign"),
    "no list": (lambda f: (f / MANIFEST).unlink(), "file-foreign"),
    "list of another": (lambda f: (f / MANIFEST).write_text('{"onlooker":"recording"}'), "file-foreign"),
    "newer": (lambda f: (f / MANIFEST).write_text('{"onlooker":"program","schema":2}'), "file-newer"),
    "list is a pipe": (lambda f: ((f / MANIFEST).unlink(), os.mkfifo(f / MANIFEST)), "file-damaged"),
    "list is endless": (lambda f: ((f / MANIFEST).unlink(), (f / MANIFEST).symlink_to("/dev/zero")), "file-damaged"),
    "list changed": (lambda f: _replace(f / MANIFEST, b'"torch"', b'"onnx" '), "file-damaged"),
    "plan lacks": (lambda f: (f / "plan.json").unlink(), "folder-incomplete"),
    "graph lacks": (lambda f: (f / "main.pt2").unlink(), "folder-incomplete"),
    "graph lacks in the list": (lambda f: ((f / "main.pt2").unlink(), resigned(f)), "folder-incomplete"),
    "weights lack in the list": (lambda f: ((f / "weights.safetensors").unlink(), resigned(f)), "folder-incomplete"),
    "shorter": (lambda f: os.truncate(f / "main.pt2", 100), "file-damaged"),
    "longer": (lambda f: (f / "main.pt2").write_bytes((f / "main.pt2").read_bytes() + b"x"), "file-damaged"),
    "link outside": (lambda f: _moved_out(f / "plan.json"), "file-damaged"),
    "a folder": (lambda f: ((f / "plan.json").unlink(), (f / "plan.json").mkdir()), "file-damaged"),
    "pipe": (lambda f: ((f / "plan.json").unlink(), os.mkfifo(f / "plan.json")), "file-damaged"),
    "sparse": (lambda f: os.truncate(f / "weights.safetensors", 1 << 40), "file-damaged"),
}  # fmt: skip


def _replace(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def _moved_out(path):
    path.rename(path.parent.parent / "outside")
    path.symlink_to("../outside")


@pytest.mark.parametrize(("damage", "slug"), FAULTS.values(), ids=FAULTS)
def test_each_fault_has_an_error_of_its_own(folder, damage, slug):
    damage(folder)
    refuses(folder, slug)


NAMES = [
    "../x",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "",
    "a\\b",
    "a\0b",
    "C:x",
    MANIFEST,
    "é",
    "x" * 300,
    ".hidden",
    "a\nb",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_refused(folder, name, monkeypatch):
    import onlooker.disk.manifest as manifest

    document = json.loads((folder / MANIFEST).read_text())
    document.pop("sha256")
    document["files"][name] = {"bytes": 1, "sha256": ""}
    (folder / MANIFEST).write_bytes(write_json({**document, "sha256": manifest._own_digest(document)}))
    refuses(folder, "file-damaged", "is no name of a file in this folder")


def test_a_graph_with_a_name_that_leads_elsewhere_is_refused(folder):
    edited(folder, "plan.json", lambda d: d["value"]["graphs"][0]["plan"].update(name="../main"))
    refuses(folder, "file-damaged", "cannot be a file")


def node(**changes):
    return lambda d: d["graph_module"]["graph"]["nodes"][0].update(changes)


EVIL = "__import__('os').system('touch canary')"
ATTACKS = {
    "operator of torch": node(target="torch.load"),
    "operator of Python": node(target="_operator.call"),
    "operator with a caller": node(target="_operator.methodcaller"),
    "operator that reads files": node(target="torch.ops.aten.from_file.default"),
    "higher-order": node(target="torch.ops.higher_order.triton_kernel_wrapper_functional"),
    "hub": node(target="torch.hub.load"),
    "through a namespace": node(target="torch.ops.aten.__class__"),
    "through an operator": node(target="torch.ops.aten.add.decompose"),
    "without an overload": node(target="torch.ops.aten.add"),
    "extension": node(target="#evil:run"),
    "name with code": node(name=f"x = {EVIL}\n"),
    "dotted name": node(name="torch.load"),
    "metadata": node(metadata={"from_node": "[]"}),
    "metadata with lines": node(metadata={"torch_fn": f"a\n{EVIL}"}),
    "guard": lambda d: d.update(guards_code=[EVIL]),
    "guard that ends a text": lambda d: d.update(guards_code=[f"L['x'].size()[0] == 1 or '\", {EVIL}, \"'"]),
    "guard with a comment": lambda d: d.update(guards_code=["1 == 1 # )"]),
    "size": lambda d: _sizes(d, EVIL),
    "size that is large": lambda d: _sizes(d, "Pow(Pow(Integer(9), Integer(64)), Integer(64))"),
    "size of Python": lambda d: _sizes(d, "9**9**9"),
    "size with a lambda": lambda d: _sizes(d, "(lambda: 3)()"),
    "tree": lambda d: _tree(d, "collections.defaultdict", '{"default_factory_module": "this"}'),
    "tree with an enum": lambda d: _tree(d, "builtins.list", '[{"__enum__": true, "fqn": "this:x", "name": "y"}]'),
    "parameter": lambda d: _spec(d)["parameter"].update(parameter_name=f'a"); {EVIL}; ("'),
    "argument name": lambda d: _root(d).update(forward_arg_names=[f"x={EVIL}"]),
    "object": lambda d: d["graph_module"]["graph"].update(custom_obj_values={"a": {"name": "a", "class_fqn": "b"}}),
}  # fmt: skip


def _sizes(document, text):
    for value in document["graph_module"]["graph"]["tensor_values"].values():
        value["sizes"] = [{"as_expr": {"expr_str": text, "hint": None}}] * len(value["sizes"])


def _tree(document, kind, context):
    tree = [1, {"type": kind, "context": context, "children_spec": []}]
    _root(document)["out_spec"] = json.dumps(tree)


def _root(document):
    return document["graph_module"]["module_call_graph"][0]["signature"]


def _spec(document):
    return document["graph_module"]["signature"]["input_specs"][0]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_graph_that_would_run_code_is_refused_before_torch_sees_it(folder, attack, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with_graph(folder, attack)
    monkeypatch.setattr("torch._export.serde.serialize.deserialize", lambda *args: pytest.fail("torch saw it"))
    refuses(folder, "file-damaged", "main.pt2")
    assert not Path(CANARY).exists()


def test_an_operator_of_others_is_refused_before_torch_sees_it(folder, monkeypatch):
    with_graph(folder, node(target="torch.ops.mylib.run.default"))
    monkeypatch.setattr("torch._export.serde.serialize.deserialize", lambda *args: pytest.fail("torch saw it"))
    refuses(folder, "foreign-operator", "main.pt2")


def test_a_pickle_in_a_graph_is_never_read(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps(Opens(str(tmp_path / CANARY)))
    archive(
        folder,
        **{"data__sample_inputs__model.pt": evil, "data__weights__model.pt": evil, "data__constants__model.pt": evil},
    )
    assert onlooker.load(folder)(torch.zeros(5, 4)).shape == (5, 3)
    for name in ("weights.safetensors", "values.safetensors", "main.pt2", "plan.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(evil)
        resigned(folder)
        refuses(folder, "file-damaged", name)
        (folder / name).write_bytes(before)
    assert not (tmp_path / CANARY).exists()
    pickle.loads(evil).close()
    assert (tmp_path / CANARY).exists()


def test_an_operator_of_others_is_called_when_it_is_allowed(tmp_path):
    @torch.library.custom_op("keeptest::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.keeptest.double(x)

    model, observer = Model().eval(), InputObserver()
    with observer(model):
        model(torch.zeros(2, 3))
        model(torch.zeros(4, 3))
    observer.export().save(tmp_path / "p")
    refuses(tmp_path / "p", "foreign-operator", "torch.ops.keeptest.double")
    loaded = onlooker.load(tmp_path / "p", operators=("keeptest",))
    assert torch.equal(loaded(torch.ones(5, 3)), torch.full((5, 3), 2.0))


def test_what_cannot_be_checked_is_not_saved_either(tmp_path):
    model, observer = torch.nn.Linear(2, 2).eval(), InputObserver()
    with observer(model):
        model(torch.zeros(2, 2))
        model(torch.zeros(3, 2))
    program = observer.export()
    program.graphs[0].artifact._guards_code.append("print(1) == 2")
    with pytest.raises(UnsupportedError, match=r"main.pt2 cannot be saved: .*print\(1\).*\[program-not-saved\]"):
        program.save(tmp_path / "p")
    assert os.listdir(tmp_path) == []


GUARDS = ["L['x'].size()[0] >= 2", "Eq(Mod(L['a_b'].size()[1], 8), 0)", "2*L['n'] <= 4096 and not L['x'].dim() == 3"]
TEXTS = {
    "attribute": "x.y",
    "format": "f'{x}'",
    "comprehension": "[1 for _ in x]",
    "method": "L['x'].data_ptr()",
    "key": "L[x]",
    "no call": "L['x'].size",
    "choice": "1 if x else 2",
    "assignment": "x := 3",
    "text": "'a'",
    "parentheses": "(" * 5000,
    "signs": "-" * 9000 + "1",
    "nothing": "",
}


@pytest.mark.parametrize("text", GUARDS)
def test_what_torch_writes_is_a_guard(text):
    assert is_guard(text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_no_arithmetic_is_no_guard_and_no_size(text):
    assert not is_guard(text)
    assert not is_size(text)


def test_a_document_of_any_depth_is_refused(folder):
    archive(folder, **{"models__model.json": b"[" * 100_000 + b"]" * 100_000})
    refuses(folder, "file-damaged", "main.pt2")
    deep: object = []
    for _ in range(800):
        deep = [deep]
    with pytest.raises(OnlookerError):
        check_program({"target": deep, "as_operator": "torch.load"}, "here")


JUNK = [
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "x",
    "__import__('os')",
    "../..",
    [],
    {},
    [[]],
    {"is": "x"},
    0,
    "torch.float32",
    "leaf",
]


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def mutate(document, rng):
    path = rng.choice(list(places(document))[1:])
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.randrange(3)
    if kind == 0:
        parent[path[-1]] = rng.choice(JUNK)
    elif kind == 1:
        del parent[path[-1]]
    elif isinstance(parent, list):
        parent.insert(path[-1], json.loads(json.dumps(parent[path[-1]])))
    else:
        parent[rng.choice(["extra", "is", "value", "é\n"])] = parent[path[-1]]


def flip(folder, rng):
    path = folder / rng.choice(sorted(os.listdir(folder)))
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)


def cut(folder, rng):
    path = folder / rng.choice(sorted(os.listdir(folder)))
    os.truncate(path, rng.randrange(path.stat().st_size))


def remove(folder, rng):
    (folder / rng.choice(sorted(os.listdir(folder)))).unlink()


def swap(folder, rng):
    first, second = rng.sample(sorted(os.listdir(folder)), 2)
    os.rename(folder / first, folder / "t")
    os.rename(folder / second, folder / first)
    os.rename(folder / "t", folder / second)


def relink(folder, rng):
    path = folder / rng.choice(sorted(os.listdir(folder)))
    path.unlink()
    path.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", "..", path.name, "absent", "plan.json"]))


def mutate_json(folder, rng):
    name = rng.choice(["plan.json", "recording.json", "values.json"])
    document = json.loads((folder / name).read_text())
    for _ in range(rng.randint(1, 3)):
        mutate(document, rng)
    (folder / name).write_bytes(json.dumps(document).encode())


def mutate_graph(folder, rng):
    document = graph_of(folder)
    for _ in range(rng.randint(1, 3)):
        mutate(document, rng)
    archive(folder, **{"models__model.json": json.dumps(document).encode()})


def mutate_weights(folder, rng):
    path = folder / rng.choice(["weights.safetensors", "values.safetensors"])
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])
    inner = json.loads(head["__metadata__"]["onlooker"])
    mutate(inner if rng.random() < 0.7 else head, rng)
    if isinstance(head.get("__metadata__"), dict) and "onlooker" in head["__metadata__"]:
        head["__metadata__"]["onlooker"] = json.dumps(inner)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


DAMAGES = [flip, cut, remove, swap, relink, mutate_json, mutate_json, mutate_graph, mutate_graph, mutate_weights]


def hangs(signum, frame):
    pytest.fail("the folder hangs")


def check_damages(pristine, base, seeds):
    loaded = 0
    before = signal.signal(signal.SIGALRM, hangs)
    try:
        for seed in seeds:
            rng, folder = random.Random(seed), base / str(seed)
            shutil.copytree(pristine, folder)
            rng.choice(DAMAGES)(folder, rng)
            if rng.random() < 0.8 and (folder / MANIFEST).is_file():
                resigned(folder)
            signal.alarm(20)
            try:
                program = onlooker.load(folder)
                loaded += 1
                program(torch.zeros(5, 4))
            except OnlookerError:
                continue
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
            finally:
                signal.alarm(0)
                shutil.rmtree(folder)
    finally:
        signal.signal(signal.SIGALRM, before)
    return loaded


@pytest.mark.filterwarnings("ignore")
def test_damaged_folders_give_errors_of_ours(pristine, tmp_path):
    assert check_damages(pristine, tmp_path, range(150)) < 75


@pytest.mark.filterwarnings("ignore")
@given(st.integers(2**20, 2**60))
@examples(5)
def test_any_damage_gives_an_error_of_ours(pristine, tmp_path_factory, seed):
    check_damages(pristine, tmp_path_factory.mktemp("damaged"), [seed])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_damaged_folders_give_errors_of_ours(pristine, tmp_path):
    assert check_damages(pristine, tmp_path, range(150, 2150)) < 1000
