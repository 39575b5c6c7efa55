"""Folders of ONNX that were made to do harm: no file is read but those of the folder, every fault is one of ours."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onlooker
from fuzz_values import examples
from onlooker import InputObserver, OnlookerError
from onlooker.disk.manifest import MANIFEST, write_manifest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = "secret.bin"
EVIL = "__import__('os').system('touch canary')"


class TwoForms(torch.nn.Module):
    """Two graphs that share one weight, which is kept outside of both."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(64, 8))

    def forward(self, x: torch.Tensor, rest: torch.Tensor | None = None) -> torch.Tensor:
        y = self.table[x]
        return y if rest is None else torch.cat([y, rest], 1).relu()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, observer = TwoForms().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for n in (2, 3):
            model(x=torch.arange(n))
            model(x=torch.arange(n), rest=torch.randn(n, 5))
    folder = tmp_path_factory.mktemp("onnx") / "program"
    observer.export(to="onnx").save(folder)
    (folder.parent / SECRET).write_bytes(bytes(range(256)) * 64)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "program")
    shutil.copy(pristine.parent / SECRET, tmp_path)
    return tmp_path / "program"


def resigned(folder: Path) -> None:
    write_manifest(folder, "onnx", sorted(name for name in os.listdir(folder) if name != MANIFEST))


def model_of(folder: Path) -> Path:
    return sorted(folder.glob("*.onnx"))[0]


def changed(folder: Path, change: Callable[[Any], object]) -> None:
    path = model_of(folder)
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    resigned(folder)


def outside(model: Any) -> Any:
    """The weight that stands outside of the model."""
    return next(t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)


def placed(tensor: Any, **places: object) -> Any:
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def external(location: str) -> Any:
    tensor = onnx.TensorProto(name="read", data_type=onnx.TensorProto.UINT8, dims=[16])
    return placed(tensor, location=location, offset=0, length=16)


def through_a_constant(model: Any, location: str) -> None:
    node = onnx.helper.make_node("Constant", [], ["read"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=external(location))
    model.graph.node.insert(0, node)
    model.graph.output.append(onnx.helper.make_tensor_value_info("read", onnx.TensorProto.UINT8, [16]))


def through_a_branch(model: Any, location: str) -> None:
    out = onnx.helper.make_tensor_value_info("found", onnx.TensorProto.UINT8, [16])
    copy = onnx.helper.make_node("Identity", ["read"], ["found"])
    branch = onnx.helper.make_graph([copy], "branch", [], [out], [external(location)])
    true = onnx.helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True])
    model.graph.initializer.append(true)
    model.graph.node.append(onnx.helper.make_node("If", ["yes"], ["all"], then_branch=branch, else_branch=branch))


def through_a_function(model: Any, location: str) -> None:
    node = onnx.helper.make_node("Constant", [], ["read"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=external(location))
    opsets = [onnx.helper.make_opsetid("", 20)]
    model.functions.append(onnx.helper.make_function("own", "Read", [], ["read"], [node], opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.graph.node.append(onnx.helper.make_node("Read", [], ["unused"], domain="own"))


def through_a_sparse_weight(model: Any, location: str) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[16])
    sparse.values.CopyFrom(external(location))
    sparse.indices.CopyFrom(onnx.helper.make_tensor("at", onnx.TensorProto.INT64, [16], range(16)))


def through_a_weight(model: Any, location: str) -> None:
    placed(outside(model), location=location, offset=0, length=2048)


WAYS = [through_a_weight, through_a_constant, through_a_branch, through_a_function, through_a_sparse_weight]
LOCATIONS = [
    "../" + SECRET,
    "/etc/passwd",
    "x/../../" + SECRET,
    "..\\" + SECRET,
    "./../" + SECRET,
    "/dev/zero",
    "plan.json",
]


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_file_is_read_but_the_weights_of_the_folder(
    folder: Path, way: Callable[[Any, str], None], location: str
) -> None:
    changed(folder, lambda model: way(model, location))
    with pytest.raises(OnlookerError, match=r"\[file-damaged\]"):
        onlooker.load(folder)


def test_an_absolute_path_to_the_right_file_is_refused(folder: Path) -> None:
    weights = next(path for path in folder.iterdir() if path.name == "weights.bin")
    changed(folder, lambda model: through_a_weight(model, str(weights)))
    with pytest.raises(OnlookerError, match=r"\[file-damaged\]"):
        onlooker.load(folder)


def test_weights_that_are_a_link_are_refused(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(f"../{SECRET}")
    resigned(folder)
    with pytest.raises(OnlookerError, match=r"\[file-damaged\]"):
        onlooker.load(folder)


def foreign(model: Any) -> None:
    node = model.graph.node[0]
    node.domain, node.op_type = "evil.domain", "Run"
    model.opset_import.append(onnx.helper.make_opsetid("evil.domain", 1))


FAULTS: dict[str, Callable[[Any], object]] = {
    "before the file": lambda m: placed(outside(m), location="weights.bin", offset=-4096, length=2048),
    "behind the file": lambda m: placed(outside(m), location="weights.bin", offset=2**62, length=2048),
    "longer than the file": lambda m: placed(outside(m), location="weights.bin", offset=0, length=2**40),
    "no number": lambda m: placed(outside(m), location="weights.bin", offset="x", length="y"),
    "huge": lambda m: outside(m).dims.__setitem__(0, 2**40),
    "huger": lambda m: outside(m).dims.extend([2**62, 2**62]),
    "negative": lambda m: outside(m).dims.__setitem__(0, -1),
    "no such type": lambda m: setattr(outside(m), "data_type", 99),
    "texts": lambda m: setattr(outside(m), "data_type", onnx.TensorProto.STRING),
    "huge inside": lambda m: m.graph.initializer.add(name="w", data_type=1, dims=[2**40]),
    "operator of others": foreign,
    "no inputs": lambda m: m.graph.ClearField("input"),
    "no nodes": lambda m: m.graph.ClearField("node"),
    "no graph": lambda m: m.ClearField("graph"),
    "no version": lambda m: m.ClearField("opset_import"),
    "no metadata": lambda m: m.ClearField("metadata_props"),
    "other metadata": lambda m: [setattr(row, "value", EVIL) for row in m.metadata_props],
    "input of another type": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 10),
}  # fmt: skip


def check_loaded(folder: Path, pristine: Path) -> None:
    """An error of ours, or a program that runs, or refuses a call as a program does; nothing is left behind."""
    try:
        program = onlooker.load(folder)
        program(x=torch.arange(4))
    except OnlookerError:
        pass
    assert not (folder.parent / "canary").exists()
    assert sorted(os.listdir(folder)) == sorted(os.listdir(pristine))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_model_that_cannot_be_meant_is_an_error_of_ours(
    folder: Path, pristine: Path, fault: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    changed(folder, fault)
    check_loaded(folder, pristine)


CONTENTS = {
    "nothing": b"",
    "text": b"hello",
    "pickle": pickle.dumps({"x": os.getcwd}),
    "zip": b"PK\3\4" + bytes(100),
    "zeros": bytes(5000),
    "tags": b"\x3a\xff\xff\xff\xff\x07" + bytes(20),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["model", "weights.bin"])
def test_a_foreign_file_is_an_error_of_ours(folder: Path, pristine: Path, name: str, content: bytes) -> None:
    path = model_of(folder) if name == "model" else folder / name
    path.write_bytes(content)
    resigned(folder)
    if name == "model" and content != b"":
        with pytest.raises(OnlookerError):
            onlooker.load(folder)
    check_loaded(folder, pristine)


@given(st.data())
@examples(40)
def test_any_bytes_of_a_model_give_errors_of_ours(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("changed") / "program"
    shutil.copytree(pristine, folder)
    path = folder / data.draw(
        st.sampled_from(sorted(p.name for p in folder.iterdir() if p.suffix in (".onnx", ".bin")))
    )
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))])
    resigned(folder)
    check_loaded(folder, pristine)
    shutil.rmtree(folder.parent)


# models that are small as files


def opsets(*names: str) -> list[Any]:
    return [onnx.helper.make_opsetid("", 20), *(onnx.helper.make_opsetid(name, 1) for name in names)]


def called(name: str, given: str, made: str) -> Any:
    return onnx.helper.make_node(name, [given], [made], domain="own")


def in_a_branch(name: str, given: str, made: str) -> Any:
    out = onnx.helper.make_tensor_value_info(f"{made}_in", onnx.TensorProto.FLOAT, ["n"])
    branch = onnx.helper.make_graph([called(name, given, f"{made}_in")], "branch", [], [out])
    return onnx.helper.make_node("If", ["yes"], [made], then_branch=branch, else_branch=branch)


def doubling(call: Callable[[str, str, str], Any], depth: int, model: Any) -> None:
    """Functions of which each calls the one before it twice."""
    bodies = [[onnx.helper.make_node("Neg", ["x"], ["y"])]]
    bodies += [[call(f"F{i}", "x", "m"), call(f"F{i}", "m", "y")] for i in range(depth)]
    for i, nodes in enumerate(bodies):
        constant = onnx.helper.make_node("Constant", [], ["yes"], value=onnx.helper.make_tensor("v", 9, [], [True]))
        made = onnx.helper.make_function("own", f"F{i}", ["x"], ["y"], [constant, *nodes], opsets("own"))
        model.functions.append(made)
    started(model, called(f"F{depth}", "start", "more"))


def in_a_circle(model: Any) -> None:
    for name, other in (("A", "B"), ("B", "A")):
        model.functions.append(
            onnx.helper.make_function("own", name, ["x"], ["y"], [called(other, "x", "y")], opsets("own"))
        )
    started(model, called("A", "start", "more"))


def heavy(model: Any) -> None:
    """A function with a constant of 1 MB, which is called forty times."""
    weight = onnx.numpy_helper.from_array(torch.ones(2**18).numpy(), "v")
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=weight),
        onnx.helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model.functions.append(onnx.helper.make_function("own", "H", ["x"], ["y"], nodes, opsets()))
    steps = ["start", *(f"h{i}" for i in range(39)), "more"]
    started(model, *(called("H", a, b) for a, b in itertools.pairwise(steps)))


def started(model: Any, *nodes: Any) -> None:
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.graph.initializer.append(onnx.helper.make_tensor("start", onnx.TensorProto.FLOAT, [1], [1.0]))
    model.graph.node.extend(nodes)
    model.graph.output.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, ["n"]))


def sparse(model: Any) -> None:
    wide = model.graph.sparse_initializer.add(dims=[2**20, 2**20])
    wide.values.CopyFrom(onnx.helper.make_tensor("wide", onnx.TensorProto.FLOAT, [1], [1.0]))
    wide.indices.CopyFrom(onnx.helper.make_tensor("at", onnx.TensorProto.INT64, [1], [0]))


EXPANDING: dict[str, Callable[[Any], None]] = {
    "functions that call each other twice": lambda m: doubling(called, 15, m),
    "so many that nobody can count them": lambda m: doubling(called, 3000, m),
    "in branches": lambda m: doubling(in_a_branch, 15, m),
    "in a circle": in_a_circle,
    "a heavy function": heavy,
    "a sparse weight": sparse,
}


@pytest.mark.parametrize("way", EXPANDING.values(), ids=EXPANDING)
def test_what_grows_when_it_is_loaded_is_refused(folder: Path, way: Callable[[Any], None]) -> None:
    changed(folder, way)
    with pytest.raises(OnlookerError, match=r"\[file-damaged\]"):
        onlooker.load(folder)


def test_functions_that_do_not_grow_are_taken(folder: Path, pristine: Path) -> None:
    changed(folder, lambda model: doubling(called, 5, model))
    check_loaded(folder, pristine)
    assert torch.equal(onlooker.load(folder)(x=torch.arange(4)), onlooker.load(pristine)(x=torch.arange(4)))


#: what no machine has room for, or time, made of constants alone
ENDLESS: dict[str, list[tuple[str, list[str], str]]] = {
    "ConstantOfShape": [("ConstantOfShape", ["shape"], "big")],
    "Expand": [("Expand", ["one", "shape"], "big")],
    "Tile": [("Expand", ["one", "ones"], "wide"), ("Tile", ["wide", "shape"], "big")],
    "Range": [("Range", ["zero", "many", "one"], "big")],
    "forty large products": [
        ("ConstantOfShape", ["square"], "m0"),
        *(("MatMul", [f"m{i}", f"m{i}"], f"m{i + 1}") for i in range(40)),
        ("Identity", ["m40"], "big"),
    ],
    "of the shape of an input": [
        ("Shape", ["x"], "rank"),
        ("Size", ["rank"], "few"),
        ("Mul", ["few", "many_ints"], "more_ints"),
        ("Unsqueeze", ["more_ints", "first"], "shape_of_x"),
        ("ConstantOfShape", ["shape_of_x"], "big"),
    ],
}


@pytest.mark.parametrize("steps", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("inside", [False, True], ids=["in the graph", "in a function"])
def test_nothing_is_computed_before_the_first_run(
    folder: Path, steps: list[tuple[str, list[str], str]], inside: bool
) -> None:
    ints, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    constants = [
        onnx.helper.make_tensor("shape", ints, [2], [2**23, 2**23]),
        onnx.helper.make_tensor("square", ints, [2], [8192, 8192]),
        onnx.helper.make_tensor("ones", ints, [2], [1, 1]),
        onnx.helper.make_tensor("one", floats, [], [1.0]),
        onnx.helper.make_tensor("zero", floats, [], [0.0]),
        onnx.helper.make_tensor("many", floats, [], [2.0**46]),
        onnx.helper.make_tensor("many_ints", ints, [], [2**46]),
        onnx.helper.make_tensor("first", ints, [1], [0]),
    ]

    def change(model: Any) -> None:
        nodes = [onnx.helper.make_node(op, given, [made]) for op, given, made in steps]
        nodes.append(onnx.helper.make_node("ReduceSum", ["big"], ["more"], keepdims=0))
        x = model.graph.input[0].name
        if inside:
            held = [onnx.helper.make_node("Constant", [], [c.name], value=c) for c in constants]
            made = onnx.helper.make_function("own", "Big", ["x"], ["more"], [*held, *nodes], opsets())
            model.functions.append(made)
            started(model, onnx.helper.make_node("Big", [x], ["more"], domain="own"))
        else:
            model.graph.initializer.extend(constants)
            for node in nodes:
                node.input[:] = [x if name == "x" else name for name in node.input]
            started(model, *nodes)

    changed(folder, change)
    assert onlooker.load(folder).graphs
