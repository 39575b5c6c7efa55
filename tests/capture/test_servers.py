"""Servers under load, coverage beside, and models that are spread over processes: nobody edits the program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import captured, counts, environment, ran

#: an application of ASGI; /stop ends the process without a word
SERVER = """
import os, torch

class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze(-1)

model = Scorer()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    if scope["path"] == "/stop":
        os._exit(0)
    with torch.no_grad():
        score = model(torch.ones(int(scope["path"][1:]), 4))
    body = str(tuple(score.shape)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
"""


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "os._exit"])
@pytest.mark.one_in(3)
def test_a_server_under_load_has_every_request_however_it_ends(end: str, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    (tmp_path / "server.py").write_text(SERVER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path / "seen"))
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while True:
            try:
                get(f"{url}/1")
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        sizes = [1 + number % 7 for number in range(60)]
        with ThreadPoolExecutor(8) as pool:
            answers = [*pool.map(lambda size: get(f"{url}/{size}"), sizes)]
        assert answers == [f"({size},)" for size in sizes]
        while counts(tmp_path).get("Scorer", 0) < 61:  # written while it runs, by the process itself
            assert time.monotonic() < deadline
            time.sleep(0.2)
        if end == "os._exit":
            with pytest.raises(OSError):
                get(f"{url}/stop")
        else:
            process.send_signal(getattr(signal, end))
        code = process.wait(timeout=60)
    finally:
        process.kill()
    assert code in {"SIGTERM": (0, -signal.SIGTERM), "SIGKILL": (-signal.SIGKILL,), "os._exit": (0,)}[end]
    (seen,) = [one for one in captured(tmp_path).seen if one.name == "Scorer"]
    assert (seen.n_calls, seen.missed) == (61, ())
    by_size = {call.inputs.leaves[0].shape[0]: call.count for call in seen.recording.calls}
    assert by_size == {size: sizes.count(size) + (size == 1) for size in range(1, 8)}


SHARDED = """
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, kind, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net = Net()
    if kind == "FullyShardedDataParallel":
        from torch.distributed.fsdp import FullyShardedDataParallel
        net = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    for size in (2, 3, 3):
        net(torch.zeros(size, 4))
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], sys.argv[2]), 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fully_shard", pytest.param("FullyShardedDataParallel", marks=pytest.mark.slow)])
def test_a_sharded_model_is_the_model_inside_in_every_rank(kind: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = ran(tmp_path, SHARDED, kind, str(port))
    assert done.returncode == 0, done.stderr
    (seen,) = captured(tmp_path).seen
    assert (seen.name, seen.entry.model, seen.n_calls) == ("Net", "app.Net", 6)
    assert sorted(process.rank for process, _ in seen.parts) == [0, 1]
    assert {call.inputs.leaves[0].shape: call.count for call in seen.recording.calls} == {(2, 4): 2, (3, 4): 4}
