"""The service of the guide "Serve a program", with the client that FastAPI has for tests: `make test-engines`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker

pytest.importorskip("fastapi")
pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "serving.md"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the service, whose program is beside it; and the model."""
    from fastapi.testclient import TestClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        Path(f"served_{name}.py").write_text(text)
    model, use = importlib.import_module("served_app").build()
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        use()
    observer.export(ranges={"sequence": (1, 64)}).save("program")
    yield TestClient(importlib.import_module("served_service").app), model
    for name in ("served_app", "served_service"):
        sys.modules.pop(name, None)


def test_a_call_outside_of_the_contract_is_refused_and_counted(service: Any) -> None:
    client, model = service

    def body(batch: int, length: int) -> dict[str, Any]:
        return {"x": torch.ones(batch, length, 4).tolist(), "mask": torch.ones(batch, length).tolist()}

    answer = client.post("/score", json=body(4, 9))
    assert answer.status_code == 200
    torch.testing.assert_close(torch.tensor(answer.json()), model(torch.ones(4, 9, 4), torch.ones(4, 9)))

    for length in (65, 300):
        answer = client.post("/score", json=body(1, length))
        detail = answer.json()["detail"]
        assert (answer.status_code, detail["slug"]) == (422, "call-refused")
        assert [reason[0] for reason in detail["reasons"]] == ["x.shape[1]"]
        assert f"the call has {length}" in detail["message"]
    ragged = client.post("/score", json={**body(1, 2), "x": [[1.0], [1.0, 2.0]]})
    text = client.post("/score", json={**body(1, 2), "x": "words"})
    absent = client.post("/score", json={"x": body(1, 2)["x"]})
    foreign = client.post("/score", json={**body(1, 2), "other": [1.0]})
    other_form = client.post("/score", json=[1])
    assert {one.status_code for one in (ragged, text, absent, foreign, other_form)} == {422}

    counts = client.get("/refused").json()
    assert counts["x.shape[1]"] == 2
    assert counts["no-tensor"] == 2
    assert sum(counts.values()) == 6, counts
    assert client.post("/score", json=body(1, 64)).status_code == 200
