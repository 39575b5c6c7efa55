"""Sizes of calls as metrics, read by the exporter in memory of OpenTelemetry's own SDK: `make test-engines`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "capture"))
from programs import NET

pytest.importorskip("opentelemetry.sdk.metrics")

#: a service that sets up OpenTelemetry after its model is called for the first time, and prints what it exports
SERVICE = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

model = Net()
model(torch.ones(2, 4), scale=77)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
for size in (2, 3, 3, 40, 3):
    model(torch.full((size, 4), 1234.5), scale=99)
time.sleep(4)
print(reader.get_metrics_data().to_json())
"""


def points(told: dict[str, Any], name: str) -> dict[str, Any]:
    """The data points of a metric, by the axis."""
    found = [
        metric
        for resource in told["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
        if metric["name"] == name
    ]
    return {point["attributes"].get("axis", ""): point for metric in found for point in metric["data"]["data_points"]}


def test_sizes_of_a_watched_program_are_histograms_without_values(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(NET + SERVICE)
    words = [sys.executable, "-m", "onlooker", "run", "--metrics", "--out", "seen", "app.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    sizes, (calls,) = points(told, "onlooker.size"), points(told, "onlooker.calls").values()
    assert set(sizes) == {"x.shape[0]", "x.shape[1]"}, "an int is a value"
    assert all(point["attributes"]["entry"] == "Net" for point in (*sizes.values(), calls))
    point = sizes["x.shape[0]"]
    assert point["count"] == calls["value"] >= 5
    assert (point["min"], point["max"]) == (2, 40)
    by_bound = dict(zip([*point["explicit_bounds"], None], point["bucket_counts"], strict=True))
    assert (by_bound[4.0], by_bound[64.0]) == (3, 1), "3, 3, 3 and 40"
    assert "1234" not in done.stdout
    assert "99" not in json.dumps([point["attributes"] for point in sizes.values()])
    assert list((tmp_path / "seen").glob("*.jsonl"))
