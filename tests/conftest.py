"""Rules for the whole suite: on CI nothing is skipped that CI can run."""

import os
from collections.abc import Generator
from typing import Any

import pytest

HARDWARE = "needs hardware: "
"""A skip reason starts with this where no machine without that hardware can run the test."""


FIRST_LAB = ("test_preflight.py", "test_preflight_pairs.py", "test_probe_bandwidth.py", "test_probe_commands.py")
"""About half of the lab's time, by file: the rest runs in a second process, with machines of its own."""


@pytest.hookimpl(wrapper=True)  # so that it comes before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the lab's tests in two processes, each of which boots its machines once and runs one test at a time."""
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.xdist_group("lab-1" if item.path.name in FIRST_LAB else "lab-2"))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if HARDWARE not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped on CI, where it has to run: {reason}"
    return report
