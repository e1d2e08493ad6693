"""Plugin of pytest for `.ci/gate.py`: what came of each test, as JSON, and where the time went; and which tests to run apart.

A failure says whether a second try may forgive it. It may not where the guarantee itself was seen broken from outside, nor
where the test's process crashed: either can be true of one run in a thousand, and passes when it is run again.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eos.testing import GuaranteeViolated

_MODELS = "tests/model/"  # their assertions are the guarantee's rules
# What a statement names whose assertion looks at the topics, at committed offsets, or at a judgement of them.
_LOOKS_FROM_OUTSIDE = re.compile(
    r"\b(read_committed|committed_offsets|written|check|expect)\(|\.visible\b|\bexactly_once\b|\.differs\b"
)
Failure = dict[str, str | float | bool]
_APART = pytest.StashKey[list[str]]()
_FAILURE = "failure"  # the user property by which a worker of xdist tells the controller


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write what came of each test to this file, as JSON")
    parser.addoption("--apart", action="store_true", help="leave out tests marked `timing`, and tell which")


def pytest_configure(config: pytest.Config) -> None:
    where = config.getoption("--outcomes")
    if where and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(where)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each process, behind what -k and -m leave out.

    The order of the modules is always the same, and mixes their folders: tests of one wait, those of another compute, and side
    by side they take less time.
    """
    items.sort(key=lambda item: zlib.crc32(item.nodeid.partition("::")[0].encode()))
    apart = (
        [item for item in items if item.get_closest_marker("timing")] if config.getoption("--apart") else []
    )
    config.stash[_APART] = sorted(without_group(item.nodeid) for item in apart)
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item not in apart]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["apart"] = session.config.stash.get(_APART, [])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the process that ran the test: here the exception itself is at hand."""
    report = yield
    if report.failed:
        line = str(report.longrepr)
        if call.excinfo is not None:
            line = call.excinfo.exconly(tryshort=True)
        told = {
            "line": (line.splitlines() or [""])[0],
            "load": os.getloadavg()[0],
            "violation": call.excinfo is not None and is_violation(item.nodeid, call.excinfo),
        }
        report.user_properties.append((_FAILURE, told))
    return report


def is_violation(nodeid: str, excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether the failure says that the guarantee does not hold, rather than that something took too long."""
    if any(isinstance(one, GuaranteeViolated) for one in _chain(excinfo.value)):
        return True
    if not isinstance(excinfo.value, AssertionError):
        return False
    statement = str(excinfo.traceback[-1].statement)
    return nodeid.startswith(_MODELS) or _LOOKS_FROM_OUTSIDE.search(statement) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and the members of groups."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def without_group(nodeid: str) -> str:
    """xdist appends a test's group to its id (``…::test@group``), by which pytest finds no test."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def _crash(report: pytest.TestReport | pytest.CollectReport) -> Failure:
    """Of a report that no running test has made: its process is gone, or its file could not be imported."""
    return {"line": str(report.longrepr).strip().splitlines()[-1], "load": os.getloadavg()[0], "crash": True}


class Outcomes:
    """Listens in the process that prints, which hears of every test.

    Args:
        where: the file that is written at the end.
    """

    def __init__(self, where: Path) -> None:
        self._where = where
        self._began = time.monotonic()
        self._passed = set[str]()
        self._skipped = set[str]()
        self._apart: list[str] = []
        self._failures = dict[str, Failure]()
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One of a test's phases is over: set-up, call or teardown."""
        name = without_group(report.nodeid)
        group = report.nodeid[len(name) + 1 :]
        for row in ("/".join(name.split("::")[0].split("/")[:2]), f"group {group}" if group else ""):
            self._seconds[row] += report.duration
        if report.failed:
            told = dict(report.user_properties).get(_FAILURE)
            self._failed(name, cast("Failure", told) if told else _crash(report))
        elif report.skipped:
            self._skipped.add(name)
        elif report.when == "call":
            self._passed.add(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed(report.nodeid, _crash(report))

    def _failed(self, name: str, told: Failure) -> None:
        if name not in self._failures or told.get("violation"):  # of several phases of one test
            self._failures[name] = told

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Of xdist: a worker has ended. All of them have collected the same."""
        self._apart = getattr(node, "workeroutput", {}).get("apart", self._apart)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told = {
            "apart": session.config.stash.get(_APART, self._apart),
            "passed": sorted(self._passed - self._failures.keys()),
            "skipped": sorted(self._skipped - self._failures.keys()),
            "failures": self._failures,
            "seconds": time.monotonic() - self._began,
        }
        self._where.write_text(json.dumps(told))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds of the test processes")
        for row, seconds in sorted(self._seconds.items(), key=lambda one: -one[1]):
            if row and seconds >= 1:
                terminalreporter.write_line(f"{seconds:8.0f}  {row}")
