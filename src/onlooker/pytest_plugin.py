"""The plugin that pytest finds where onlooker is installed: a fixture that judges exports, and a
line for each of them at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .foreign.report import ExportReport

__all__ = ["export_holds", "pytest_terminal_summary"]

#: the name of the properties of a test that say what was judged; they reach a file of JUnit, too
_JUDGED = "onlooker export"


@pytest.fixture
def export_holds(record_property: Callable[[str, object], None]) -> Callable[..., ExportReport]:
    """:func:`onlooker.testing.assert_export_holds`, whose verdicts stand at the end of the run.

    ::

        def test_export(export_holds):
            calls = [{"x": torch.randn(3, 4)}, {"x": torch.randn(5, 6)}]
            export_holds(model, "model.onnx", calls)
    """
    from .testing import report_of  # torch is imported by the tests that use it alone

    def judge(model: Any, exported: Any, calls: Any, **options: Any) -> ExportReport:
        __tracebackhide__ = True
        report = report_of(model, exported, calls, **options)
        record_property(_JUDGED, f"{report.kind} of {report.model}: {report.verdict}")
        if not report.holds:
            pytest.fail(f"the export does not do what the model does\n{report}", pytrace=False)
        return report

    return judge


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes a line for each export that was judged."""
    lines = list(_lines(terminalreporter))
    if lines:
        terminalreporter.section("exports judged by onlooker")
        for line in lines:
            terminalreporter.write_line(line)


def _lines(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    """``node: what was judged, and the verdict``; a process of pytest-xdist sends it, too."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                for name, text in report.user_properties:
                    if name == _JUDGED:
                        yield f"{report.nodeid}: {text}"
