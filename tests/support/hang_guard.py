"""The last resort for a test that does not end: every thread's stack on stderr, and the end of the process.

pytest-timeout raises an exception in the main thread, by a signal. A call into C that never returns does not see it, and
a run of hours would end without a word about the test. faulthandler's own thread sees to that: xdist names the test
whose worker is gone, and goes on with another worker.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Generator

import pytest

_LATER_S = 60.0  # than pytest-timeout: what can be ended tidily has been by then
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Here stderr is what it was at the start: pytest captures it while tests run."""
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_stderr])
    del config.stash[_stderr]


def limit_s(item: pytest.Item) -> float:
    """The test's limit for pytest-timeout, in seconds; 0 if it has none."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return float(item.config.getini("timeout") or 0)
    return float(marker.args[0] if marker.args else marker.kwargs["timeout"])


def _watched(item: pytest.Item) -> Generator[None, object, object]:
    limit = limit_s(item)
    if limit:
        faulthandler.dump_traceback_later(limit + _LATER_S, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Again: pytest calls the dump off when a test has failed, and the fixtures of that test may not end either."""
    return (yield from _watched(item))
