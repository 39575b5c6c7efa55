"""Whole trees of processes: every call that returned is in the files, and the program is as it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import captured, counts, ran, started

MAIN = """
if __name__ == "__main__":
    net = Net()
    for size in (2, 3, 3):
        net(torch.zeros(size, 4))
"""


def test_calls_of_a_script_are_recorded_and_its_streams_are_its_own(tmp_path: Path) -> None:
    done = ran(tmp_path, MAIN + "    print('out', sys.argv[1:], file=sys.stdout)\n    sys.exit(7)", "--values", "x")
    assert (done.stdout, done.stderr, done.returncode) == ("out ['--values', 'x']\n", "", 7)
    (seen,) = captured(tmp_path).seen
    assert (seen.name, seen.n_calls, seen.entry.model, seen.places) == ("Net", 3, "app.Net", ("net",))
    assert [(call.count, call.inputs.leaves[0].shape) for call in seen.recording.calls] == [(1, (2, 4)), (2, (3, 4))]


@pytest.mark.slow
def test_exceptions_pass_and_a_call_that_raises_is_none(tmp_path: Path) -> None:
    code = "\nnet = Net()\nnet(torch.zeros(2, 4))\nnet(torch.zeros(2, 5))"
    done = ran(tmp_path, code)
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr.splitlines()[-1]
    assert done.stderr.count("onlooker") <= 2, "one frame of ours, with its line"
    assert counts(tmp_path) == {"Net": 1}


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(one, marks=pytest.mark.slow) for one in ("spawn", "forkserver"))]
)
def test_workers_of_a_loader(tmp_path: Path, method: str) -> None:
    code = """
class Data(torch.utils.data.Dataset):
    def __init__(self, net): self.net = net
    def __len__(self): return 6
    def __getitem__(self, i): return self.net(torch.zeros(i + 1, 4)).shape[0]

if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    net = Net()
    net(torch.zeros(9, 4))
    loader = torch.utils.data.DataLoader(Data(net), num_workers=2, multiprocessing_context=sys.argv[1])
    print(sorted(int(x) for x in loader))
"""
    done = ran(tmp_path, code, method)
    assert done.stdout == "[1, 2, 3, 4, 5, 6]\n", done.stderr
    assert counts(tmp_path) == {"Net": 7}
    assert sorted(
        len(process.parts) and process.n_calls for process in captured(tmp_path).processes if process.parts
    ) == [1, 3, 3]


@pytest.mark.slow
def test_children_of_every_kind_have_files_of_their_own(tmp_path: Path) -> None:
    code = """
from concurrent.futures import ProcessPoolExecutor
import subprocess

def work(size):
    return Net()(torch.zeros(size, 4)).shape[0]

if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]))
        sys.exit()
    subprocess.run([sys.executable, "app.py", "1"], check=True)
    os.system(f"{sys.executable} -m app 2")
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(work, [3, 4, 5, 6])))
"""
    done = ran(tmp_path, code)
    assert done.stdout == "[3, 4, 5, 6]\n", done.stderr
    assert counts(tmp_path) == {"Net": 6}
    silent = [process for process in captured(tmp_path).processes if not process.n_calls]
    assert len(silent) == 1, "the first process imported torch and called nothing"


@pytest.mark.slow
def test_ranks_of_torchrun_are_told_apart_and_are_one_model(tmp_path: Path) -> None:
    code = """
import torch.distributed as dist
if __name__ == "__main__":
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(Net())
    for size in range(2, 5):
        net(torch.zeros(size + 3 * dist.get_rank(), 4)).sum().backward()
    dist.destroy_process_group()
    # A thread of gloo takes the lock of Python to drop its last tensor, and aborts a process whose
    # interpreter ends at that moment, watched or not. It gets the lock while this thread sleeps.
    time.sleep(1)
"""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "app.py"]
    done = ran(tmp_path, code, command=torchrun)
    assert done.returncode == 0, done.stderr
    (seen,) = captured(tmp_path).seen
    assert (seen.name, seen.n_calls) == ("Net", 6)
    assert sorted((process.rank, part.n_calls) for process, part in seen.parts) == [(0, 3), (1, 3)]
    assert {call.inputs.leaves[0].shape[0] for call in seen.recording.calls} == {2, 3, 4, 5, 6, 7}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "os._exit"])
@pytest.mark.slow
def test_a_server_that_is_ended_has_all_calls_but_those_of_the_last_seconds(tmp_path: Path, end: str) -> None:
    code = """
import http.server, threading
net = Net()
done = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global done
        net(torch.zeros(2 + done % 5, 4))
        done += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(done).encode())
        if self.path == "/exit":
            os._exit(3)

    def log_message(self, *args): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
    process = started(tmp_path, code)
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    load = "import sys, urllib.request as u\nfor _ in range(40): u.urlopen(f'http://127.0.0.1:{sys.argv[1]}/').read()"
    clients = [subprocess.Popen([sys.executable, "-c", load, port]) for _ in range(2)]
    assert [client.wait(120) for client in clients] == [0, 0]
    wait_for(lambda: counts(tmp_path).get("Net") == 80)  # read while it runs
    if end == "os._exit":
        ask = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/exit').read()"
        subprocess.run([sys.executable, "-c", ask], check=True)
    else:
        process.send_signal(getattr(signal, end))
    code_of_end = process.wait(60)
    process.communicate()
    assert code_of_end == (3 if end == "os._exit" else -getattr(signal, end))
    assert counts(tmp_path)["Net"] >= 80
    assert [one.ended for one in captured(tmp_path).processes] == [None]


def wait_for(condition: object, seconds: float = 60) -> None:
    """Waits until it holds: a machine may be slow, so two seconds are said and not measured."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_compiled_models_and_wrappers_are_the_model_inside(tmp_path: Path) -> None:
    code = """
import copy
if __name__ == "__main__":
    net = Net()
    compiled = torch.compile(net, backend="eager")
    for size in (2, 3):
        compiled(torch.zeros(size, 4))
    torch.nn.DataParallel(net)(torch.zeros(4, 4))
    copy.deepcopy(net)(torch.zeros(5, 4))
    net.compile(backend="eager")
    net(torch.zeros(6, 4))
"""
    done = ran(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = captured(tmp_path).seen
    assert (seen.entry.model, seen.n_calls) == ("app.Net", 5)
    assert [p.name for p in seen.recording.signature.parameters] == ["x", "scale"]


@pytest.mark.slow
def test_a_module_and_methods_by_name(tmp_path: Path) -> None:
    code = MAIN + "    net.other(torch.zeros(2, 4))\n    torch.nn.Sequential(net)(torch.zeros(8, 4))"
    done = ran(tmp_path, code, command=["-m", "app"], entries=("Net.other",))
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path) == {"Net": 3, "Net.other": 1, "Sequential": 1}


def test_a_named_class_is_recorded_inside_of_others(tmp_path: Path) -> None:
    code = MAIN + "    torch.nn.Sequential(net)(torch.zeros(8, 4))"
    assert ran(tmp_path, code, entries=("Net",)).returncode == 0
    assert counts(tmp_path) == {"Net": 4, "Sequential": 1}


@pytest.mark.slow
def test_the_caller_of_a_part_is_named(tmp_path: Path) -> None:
    code = "\nnet = Net()\nnet.other(torch.zeros(2, 4))"
    assert ran(tmp_path, code).returncode == 0
    (seen,) = captured(tmp_path).seen
    assert (seen.name, seen.callers, seen.places) == ("Linear", ("Net.other",), ("net.layer",))


def test_the_sitecustomize_of_the_user_runs_too(tmp_path: Path) -> None:
    import os

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__")
    code = MAIN + "    import builtins; print(builtins.mine, [p for p in sys.path if 'capture' in p])"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path / "own")
    try:
        from onlooker.capture.settings import Settings

        env = Settings(str(tmp_path / "seen")).environment(os.environ)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    from programs import NET

    (tmp_path / "app.py").write_text(NET + code)
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{tmp_path / 'own' / 'sitecustomize.py'} []\n", done.stderr
    assert counts(tmp_path) == {"Net": 3}


@pytest.mark.slow
def test_coverage_measures_a_program_that_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("coverage", reason="coverage is not installed")
    done = ran(tmp_path, MAIN, command=["-m", "coverage", "run", "app.py"])
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path) == {"Net": 3}
    told = subprocess.run(
        [sys.executable, "-m", "coverage", "report"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "app.py" in told.stdout


def test_very_many_different_calls_are_counted_together(tmp_path: Path) -> None:
    code = "\nnet = Net()\nfor size in range(1, 30):\n    net(torch.zeros(size, 4))\n    net(torch.zeros(1, 4))"
    assert ran(tmp_path, code, most_specs=10).returncode == 0
    (seen,) = captured(tmp_path).seen
    assert (seen.n_calls, seen.others, len(seen.recording.calls)) == (58, 19, 10)
    assert "19 calls after very many different ones" in seen.recording.missed[0]


def test_a_program_without_torch_pays_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    done = ran(tmp_path, "", command=["-c", "import sys; print(len([m for m in sys.modules if 'torch' in m]))"])
    assert done.stdout == "0\n"
    assert not (tmp_path / "seen").exists()


@pytest.mark.slow
def test_a_program_that_calls_modules_of_torchscript_runs_as_without_us(tmp_path: Path) -> None:
    """The class of such a module has no ``forward`` that can be read, and raises instead."""
    code = """
class Odd(torch.nn.Module):
    def __getattribute__(self, name):
        if name == "__class__":
            raise RuntimeError("this object does not show its class")
        return super().__getattribute__(name)
    def forward(self, x): return x + 1

class Empty(torch.nn.Module):
    pass

scripted = torch.jit.script(torch.nn.Linear(4, 4))
print(tuple(scripted(torch.ones(1, 4)).shape))
traced = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.ones(1, 4))
print(tuple(traced(torch.ones(2, 4)).shape))
print(tuple(torch.nn.Sequential(scripted, Net())(torch.ones(3, 4)).shape))
print(Odd()(torch.zeros(1)).item())
for module, wrong in ((Empty(), 1), (scripted, "text")):
    try:
        module(wrong)
    except Exception as error:
        print(type(error).__name__)
"""
    with_us = ran(tmp_path, code)
    without = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert (with_us.stdout, with_us.returncode) == (without.stdout, without.returncode)
    assert with_us.returncode == 0, with_us.stderr
    assert with_us.stdout.splitlines()[-2:] == ["NotImplementedError", "RuntimeError"]
