"""A program as a folder: what comes back, where it comes back, what is stored, and what a fault leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import transformers
from safetensors import safe_open

import onlooker
from onlooker import InputObserver, RejectedCallError, SavedFileError, UnsupportedError, UsageError
from onlooker.core.contents import Outputs
from onlooker.keep.containers import find_class
from onlooker.keep.record import GraphRecord
from onlooker.keep.standin import StandIn
from onlooker.pytrees.open import open_tree
from onlooker.targets.weights import read_tensors, write_tensors
from onlooker.torch_internals.serialized import SYM_OPS, with_sizes_written
from onlooker.torch_internals.sizes import ShapeEnv
from onlooker.trace.graph import Graph


def exported(model, *calls):
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for call in calls:
            model(*call) if isinstance(call, tuple) else model(**call)
    return observer.export()


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()


@pytest.fixture(scope="module")
def program():
    made = exported(mlp(), (torch.randn(2, 4),), (torch.randn(3, 4),))
    made.verify()
    return made


@pytest.fixture(scope="module")
def saved(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keep") / "program"
    program.save(folder)
    return folder


def same(left, right):
    left, right = open_tree(left), open_tree(right)
    return left.structure == right.structure and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(left.leaves, right.leaves, strict=True)
    )


def run(script, *arguments, **options):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False, **options)


def test_what_is_loaded_is_what_was_saved(program, saved):
    loaded = onlooker.load(saved)
    x = torch.randn(7, 4)
    assert same(loaded(x), program(x))
    assert loaded.plans == program.plans
    assert loaded.recording == program.recording
    assert loaded.tally == program.tally
    assert loaded.report == dataclasses.replace(program.report, stages=(), probes=0)
    assert loaded.report.verified
    for bad in (torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.int64)):
        with pytest.raises(RejectedCallError, match="call-refused") as ours:
            loaded(bad)
        with pytest.raises(RejectedCallError) as theirs:
            program(bad)
        assert str(ours.value) == str(theirs.value)


def test_every_field_of_a_graph_is_kept():
    kept = {f.name for f in dataclasses.fields(GraphRecord)}
    assert {f.name for f in dataclasses.fields(Graph)} - kept == {
        "outputs",
        "run",
        "artifact",
        "example",
        "file",
        "blocked",
        "keeps",  # read from the files
        "exported_sizes",  # as texts, in `obtained`
    }
    assert {f.name for f in dataclasses.fields(Outputs)} <= kept


def test_the_folder_holds_no_value_no_source_and_no_pickle(saved):
    assert sorted(os.listdir(saved)) == [
        "main.pt2", "onlooker.json", "plan.json", "recording.json", "report.json", "weights.safetensors",
    ]  # fmt: skip
    with zipfile.ZipFile(saved / "main.pt2") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, content in contents.items() if content.startswith((b"\x80", b"PK"))]
    assert [content for name, content in contents.items() if "sample_inputs" in name] == [b""]
    assert not [name for name, content in contents.items() if b"site-packages" in content or b".py" in content]


def test_torch_alone_reads_the_files(program, saved):
    graph = torch.export.load(saved / "main.pt2")
    with safe_open(saved / "weights.safetensors", framework="pt") as weights:
        state = {name: weights.get_tensor(name) for name in graph.state_dict}
    module = graph.module()
    module.load_state_dict(state, assign=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(module(input=x)[0], program(x))


def test_what_was_loaded_can_be_saved_again(program, saved, tmp_path):
    onlooker.load(saved).save(tmp_path / "again")
    x = torch.randn(2, 4)
    assert same(onlooker.load(tmp_path / "again")(x), program(x))


def test_a_loaded_program_is_verified_with_the_model_and_the_values(program, saved, tmp_path):
    with pytest.raises(UsageError, match="no-model"):
        onlooker.load(saved).verify()
    with pytest.raises(UsageError, match="no-values"):
        onlooker.load(saved).verify(model=mlp())
    program.save(tmp_path / "with values", values=True)
    loaded = onlooker.load(tmp_path / "with values")
    assert loaded.verify(model=mlp()).verified
    other = mlp()
    torch.nn.init.ones_(other[0].weight)
    assert not loaded.verify(model=other).verified


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


@dataclasses.dataclass
class Record:
    total: torch.Tensor
    pair: Pair


class Structured(torch.nn.Module):
    def forward(self, x, flags=None):
        y = x * 2 if flags and flags["double"] else x
        return {"a": [y, None, "text"], 3: Record(y.sum(), Pair(y + 1, y.shape[0]))}


@pytest.mark.slow
def test_results_have_their_own_classes_where_these_are_imported(tmp_path):
    program = exported(
        Structured(),
        {"x": torch.randn(2, 3), "flags": {"double": True}},
        {"x": torch.randn(4, 3), "flags": {"double": True}},
    )
    program.save(tmp_path / "p")
    loaded = onlooker.load(tmp_path / "p")
    call = {"x": torch.randn(5, 3), "flags": {"double": True}}
    assert same(loaded(**call), program(**call))
    assert type(loaded(**call)[3]) is Record
    script = """
        import sys, torch, onlooker
        result = onlooker.load(sys.argv[1])(x=torch.ones(5, 3), flags={"double": True})
        record = result[3]
        assert result["a"][1:] == [None, "text"], result
        assert record.total.item() == 30 and record["total"] is record.total, record
        first, second = record.pair
        assert second == 5 and record.pair.second == 5 and first.shape == (5, 3)
        assert not [name for name in sys.modules if name.startswith(("test_keep", "transformers"))]
        print(repr(record))
    """
    done = run(script, tmp_path / "p")
    assert done.stdout.strip() == "<stand-in for test_keep.Record: total, pair>", done.stderr


def test_a_class_is_found_only_where_it_is_imported_already(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\nclass Trap: pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_class("trap.Trap") is None
    assert find_class("trap") is None
    assert find_class("subprocess.Popen.poll") is None
    assert find_class("collections.OrderedDict").__name__ == "OrderedDict"


def test_a_stand_in_is_no_trap():
    result = StandIn("m.Output", ("logits", "keys"), (1, 2))
    assert (result.logits, result[1], result["keys"], result[-1:]) == (1, 2, 2, (2,))
    assert "logits" in result
    assert dict(result.items()) == {"logits": 1, "keys": 2}
    with pytest.raises(AttributeError, match=r"<stand-in for m.Output: logits, keys> has no 'loss'"):
        _ = result.loss
    with pytest.raises(KeyError):
        result["loss"]


#: what generate() always passes to a llama
FLAGS = {"use_cache": True, "logits_to_keep": 1, "return_dict": True}


@pytest.mark.slow
def test_a_cache_comes_back_as_the_model_gives_it(tmp_path):
    from onlooker.zoo.registry import tiny_model

    tiny, observer = tiny_model("llama"), InputObserver()
    with torch.no_grad(), observer(tiny.model):
        tiny.watch()
    program = observer.export()
    program.save(tmp_path / "llama", values=True)
    loaded = onlooker.load(tmp_path / "llama")
    assert loaded.verify(model=tiny.model).verified
    ids, mask, places = torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.int64), torch.arange(3).expand(2, 3)
    call = {"input_ids": ids, "attention_mask": mask, "position_ids": places, **FLAGS}
    assert same(loaded(**call), program(**call))
    script = f"""
        import sys, torch, onlooker
        program = onlooker.load(sys.argv[1])
        ids, mask = torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.int64)
        first = program(input_ids=ids, attention_mask=mask, position_ids=torch.arange(3).expand(2, 3), **{FLAGS})
        past, last, flags = first.past_key_values, torch.full((2, 1), 3), {FLAGS}
        mask = torch.ones(2, 4, dtype=torch.int64)
        second = program(input_ids=ids[:, :1], attention_mask=mask, past_key_values=past, position_ids=last, **flags)
        assert not [name for name in sys.modules if "modeling_llama" in name]
        past = second.past_key_values
        print(type(second).__name__, type(past).__name__, past.get_seq_length())
        torch.save(second.logits, sys.argv[2])
    """
    done = run(script, tmp_path / "llama", tmp_path / "logits.pt")
    assert done.stdout.split() == ["CausalLMOutputWithPast", "DynamicCache", "4"], done.stderr
    with torch.no_grad():
        past = tiny.model(**call).past_key_values
        step = {"attention_mask": torch.ones(2, 4, dtype=torch.int64), "position_ids": torch.full((2, 1), 3)}
        second = tiny.model(input_ids=ids[:, :1], past_key_values=past, **step, **FLAGS)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), second.logits, atol=1e-5, rtol=1e-5)


def test_tensors_of_every_kind_come_back_with_their_sharing(tmp_path):
    base, weight = torch.arange(20.0), torch.nn.Parameter(torch.randn(3, 4))
    tables = {
        "a": {
            **{"weight": weight, "tied": weight, "transposed": weight.t(), "part": base[3:9], "other": base[5:15:2]},
            **{str(kind): torch.ones(3).to(kind) for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.uint16)},
            **{"bool": torch.tensor([True, False]), "scalar": torch.tensor(5, dtype=torch.int8)},
            **{"empty": torch.zeros(2, 0), "complex": torch.ones(2, dtype=torch.complex128)},
            **{"expanded": torch.zeros(1).expand(4, 4), "columns": torch.arange(12.0).reshape(3, 4)[:, 1:3]},
        },
        "b": {"weight": weight, "part": torch.ones(2)},
    }
    write_tensors(tables, tmp_path / "w.safetensors")
    read = read_tensors(tmp_path / "w.safetensors")
    assert {table: set(names) for table, names in read.items()} == {t: set(n) for t, n in tables.items()}
    for table, names in tables.items():
        for name, tensor in names.items():
            found = read[table][name]
            assert type(found) is type(tensor)
            assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
            assert found.requires_grad == tensor.requires_grad
            torch.testing.assert_close(found.to(torch.complex64), tensor.to(torch.complex64), atol=0, rtol=0)
    assert read["a"]["weight"].data_ptr() == read["b"]["weight"].data_ptr() == read["a"]["tied"].data_ptr()
    read["a"]["part"][2] = 77.0
    assert read["a"]["other"][0] == 77.0
    assert (tmp_path / "w.safetensors").stat().st_size < 4500


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(),
        type("Own", (torch.Tensor,), {})(torch.ones(2)),
        "text",
    ],
    ids=["sparse", "meta", "conjugate", "derived", "no tensor"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_cannot_be_kept_is_refused_by_name(tmp_path, tensor):
    with pytest.raises(UnsupportedError, match=r"layer.w is a .*\[tensor-not-saved\]"):
        write_tensors({"a": {"layer.w": tensor}}, tmp_path / "w.safetensors")


class TwoForms(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(size, 4))

    def forward(self, x, rest=None):
        y = self.table[x]
        return y if rest is None else torch.cat([y, rest], 1).relu()


def two_graphs(size):
    two, three = torch.tensor([1, 0]), torch.tensor([1, 2, 3])
    calls = [{"x": two}, {"x": three}, {"x": two, "rest": torch.randn(2, 5)}, {"x": three, "rest": torch.randn(3, 5)}]
    return exported(TwoForms(size), *calls)


def test_weights_are_stored_once_and_held_once(tmp_path):
    program = two_graphs(4096)
    assert len(program.graphs) == 2
    program.save(tmp_path / "p")
    size = 4096 * 4 * 4
    assert size < sum(path.stat().st_size for path in (tmp_path / "p").iterdir()) < 1.6 * size
    loaded = onlooker.load(tmp_path / "p")
    places = {t.data_ptr() for graph in loaded.graphs for t in graph.artifact.state_dict.values()}
    assert len(places) == 1
    modules = {p.data_ptr() for graph in loaded.graphs for p in graph.artifact.module().parameters()}
    assert modules == places


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of the memory is read from /proc")
def test_a_program_of_two_graphs_takes_the_memory_of_its_weights_once(tmp_path):
    gigabyte = 1 << 30
    two_graphs(gigabyte // 16).save(tmp_path / "p")
    script = """
        import sys, torch, onlooker
        def peak():
            (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
            return int(line.split()[1]) * 1024
        onlooker.load(sys.argv[2])
        before = peak()
        program = onlooker.load(sys.argv[1])
        program(x=torch.tensor([1, 2, 3, 4, 5]))
        print(len(program.graphs), peak() - before)
    """
    two_graphs(16).save(tmp_path / "small")
    done = run(script, tmp_path / "p", tmp_path / "small")
    graphs, more = map(int, done.stdout.split())
    assert graphs == 2
    assert 0.9 * gigabyte < more < 1.1 * gigabyte


def test_a_folder_of_onlooker_is_replaced_and_any_other_is_left_alone(program, tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    program.save(folder)
    program.save(folder, values=True)
    program.save(str(folder))
    assert "values.safetensors" not in os.listdir(folder)
    (folder / "notes.txt").write_text("mine")
    for other in (folder, tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(SavedFileError, match=r"holds something that onlooker did not write.*\[folder-not-ours\]"):
            program.save(other)
    assert (folder / "notes.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "p"]


def test_a_link_to_a_folder_stays_a_link(program, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    program.save(tmp_path / "real")
    program.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert onlooker.load(tmp_path / "link").plans == program.plans


STEPS = [
    "os.rename",
    "os.fsync",
    "os.open",
    "pathlib.Path.write_bytes",
    "safetensors.torch.serialize_file",
    "tempfile.mkdtemp",
]


@pytest.mark.parametrize("moment", range(3))
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_at_any_write_leaves_the_old_folder(program, tmp_path, monkeypatch, step, moment):
    folder = tmp_path / "p"
    program.save(folder)
    before = (folder / "onlooker.json").read_bytes()
    module, _, name = step.rpartition(".")
    owner = Path if module == "pathlib.Path" else importlib.import_module(module)
    original, calls = getattr(owner, name), []

    def fail(*args, **kwargs):
        calls.append(args)
        if len(calls) == moment + 1:
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)
    with contextlib.suppress(SavedFileError):
        program.save(folder, values=True)
        assert len(calls) <= moment
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["p"]
    onlooker.load(folder)
    assert ("values.json" in os.listdir(folder)) or (folder / "onlooker.json").read_bytes() == before


KILLED = """
    import os, signal, sys, onlooker
    folder, program = sys.argv[1], onlooker.load(sys.argv[1])
    originals = {name: getattr(os, name) for name in ("rename", "fsync", "open", "mkdir")}
    calls = [0]

    def killing(name, wanted):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == wanted:
                os.kill(os.getpid(), signal.SIGKILL)
            return originals[name](*args, **kwargs)
        return call

    def outcome(wanted):
        child = os.fork()
        if child:
            return os.WTERMSIG(os.waitpid(child, 0)[1])
        for name in originals:
            setattr(os, name, killing(name, wanted))
        program.save(folder)
        os._exit(0)

    for wanted in range(1, 60):
        if not os.path.exists(folder):
            program.save(folder)
        signalled = outcome(wanted)
        there = os.path.exists(folder)
        if there:
            onlooker.load(folder)
        print(wanted, signalled, there, flush=True)
        if not signalled:
            break
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked for each moment")
def test_a_killed_save_leaves_the_old_folder_or_none(program, tmp_path):
    program.save(tmp_path / "p")
    done = run(KILLED, tmp_path / "p")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[-1][1:] == ["0", "True"], done.stderr
    assert len(rows) > 8
    assert {row[1] for row in rows[:-1]} == {str(int(signal.SIGKILL))}


@pytest.mark.slow
def test_a_save_killed_by_the_clock_leaves_the_old_folder_or_none(program, tmp_path):
    folder = tmp_path / "p"
    program.save(folder)
    script = """
import sys, onlooker
program = onlooker.load(sys.argv[1])
print("ready", flush=True)
while True:
    program.save(sys.argv[1])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.4)
    process.kill()
    process.communicate()
    if folder.exists():
        onlooker.load(folder)


@pytest.mark.filterwarnings("ignore")
def test_onnx_is_kept_too(program, tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = program.to("onnx")
    onnx.save(tmp_path / "p")
    loaded = onlooker.load(tmp_path / "p")
    x = torch.randn(6, 4)
    assert same(loaded(x), onnx(x))
    assert [graph.target for graph in loaded.graphs] == ["onnx"]


def test_machine_code_is_not_run_unless_it_is_asked_for(saved, tmp_path):
    import shutil

    from onlooker.disk.manifest import write_manifest

    folder = tmp_path / "p"
    shutil.copytree(saved, folder)
    text = (folder / "plan.json").read_text().replace('"target":"torch"', '"target":"aoti"')
    (folder / "plan.json").write_text(text)
    names = [name for name in os.listdir(folder) if name != "onlooker.json"]
    write_manifest(folder, "aoti", names)
    with pytest.raises(SavedFileError, match=r"holds machine code.*\[machine-code\]"):
        onlooker.load(folder)
    assert json.loads((folder / "onlooker.json").read_text())["target"] == "aoti"


class Checked(torch.nn.Module):
    """A size that is made from values, and checked to be a number."""

    def forward(self, v: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        rows = torch.repeat_interleave(v, n)
        torch._check(rows.shape[0] == 1)
        return rows.cumsum(0) + torch.nn.functional.pad(rows, (1, 0))[1:]


def test_a_size_that_is_checked_to_be_a_number_is_loaded(tmp_path: Path) -> None:
    observer, model = InputObserver(), Checked()
    with observer(model):
        model(torch.ones(1), torch.tensor([1]))
    observer.export().save(tmp_path / "out")
    program = onlooker.load(tmp_path / "out")
    given = torch.full((1,), 3.0), torch.tensor([1])
    assert torch.equal(program(*given), model(*given))


@pytest.mark.slow
def test_the_range_of_a_sum_of_sizes_keeps_no_program_from_its_file(tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.RobertaConfig(**sizes, intermediate_size=32, is_decoder=True)
    model, observer = transformers.RobertaForCausalLM(config).eval(), InputObserver()
    ids = torch.randint(3, 60, (2, 5))
    with observer(model):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    observer.export().save(tmp_path / "out")
    more = torch.randint(3, 60, (3, 7))
    expected = model.generate(more, max_new_tokens=4, do_sample=False)
    with onlooker.load(tmp_path / "out").installed(model) as served:
        assert torch.equal(model.generate(more, max_new_tokens=4, do_sample=False), expected)
    assert served.eager == 0


class Rounds(torch.nn.Module):
    """Reads as many rows as a rounded share of a size says."""

    def __init__(self, rounded, share):
        super().__init__()
        self.rounded, self.share = rounded, share

    def forward(self, x):
        return x[:, : self.rounded(x.shape[1] * self.share)].sum(1)


@pytest.mark.parametrize("rounded", [math.ceil, math.floor, round])
def test_a_saved_program_rounds_sizes_as_python_does(rounded, tmp_path):
    model = Rounds(rounded, 0.5)
    program = exported(model, (torch.randn(2, 5, 4),), (torch.randn(3, 8, 4),))
    assert program.verify().verified
    program.save(tmp_path / "saved")
    program.save(tmp_path / "one.pt2")
    loaded, alone = onlooker.load(tmp_path / "saved"), torch.export.load(tmp_path / "one.pt2").module()
    for size in range(2, 12):
        x = torch.randn(2, size, 4)
        for result in (program(x), loaded(x), *alone(x=x)):
            torch.testing.assert_close(result, model(x), msg=f"{size}")


def test_roundings_are_written_exactly():
    graph = torch.fx.Graph()
    size = graph.placeholder("size")
    graph.output([graph.call_function(one, (size,)) for one in (math.ceil, math.floor, round)])
    size.meta["val"] = ShapeEnv().create_unbacked_symfloat()
    module = torch.fx.GraphModule({}, graph)
    with with_sizes_written(SimpleNamespace(graph_module=module)):
        targets = {node.target for node in module.graph.nodes}
        written = torch.fx.GraphModule({}, module.graph)
    assert targets <= {"size", "output", *SYM_OPS}
    rng = random.Random(0)
    numbers = [n + part for n in range(-4, 5) for part in (0.0, 0.5, 0.25, 0.49999999999999994, 0.5000000000000001)]
    for number in [*numbers, *(rng.uniform(-1e16, 1e16) for _ in range(200)), 1e300, -1e300, -0.0]:
        assert written(number) == [math.ceil(number), math.floor(number), round(number)], number
