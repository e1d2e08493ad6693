"""A verification ends at its deadline, and at Ctrl-C, in each of its stages: SQLite answers neither by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from eos.base.deadline import Deadline
from eos.errors import UnavailableError
from eos.ops.verifier import tables
from eos.ops.verifier import watch as watch_module
from eos.ops.verifier.comparison import Comparison
from eos.ops.verifier.report import Compared
from eos.ops.verifier.watch import Watch
from eos.records import InputRecord, OutputRecord
from tests.support.patience import PATIENCE_S

ENDLESS = "WITH RECURSIVE one(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM one) SELECT count(*) FROM one"


def compare() -> Compared:
    with Comparison({"out": 1}) as comparison:
        for offset in range(3):
            comparison.expect(InputRecord("in", 0, offset, None, b"v"), [OutputRecord("out", b"v")])
        comparison.found(InputRecord("out", 0, 0, None, b"v"))
        return comparison.result()


def endless_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MISSING", f"CREATE TABLE never AS {ENDLESS};")


def endless_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COUNTS", {next(iter(tables.COUNTS)): ENDLESS})


def endless_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TORN", ENDLESS)


def endless_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is made where some outputs of a topic set their timestamp and others do not."""
    monkeypatch.setattr("eos.ops.verifier.identities.Identities.seal", lambda _: True)
    monkeypatch.setattr(tables, "INDEX", f"CREATE TABLE never AS {ENDLESS}")


stages = pytest.mark.parametrize("endless", [endless_index, endless_script, endless_count, endless_examples])


@stages
def test_deadline_holds_in_a_statement_of_the_database(
    monkeypatch: pytest.MonkeyPatch, endless: Callable[[pytest.MonkeyPatch], None]
) -> None:
    endless(monkeypatch)
    shown: list[str] = []
    watch = Watch(0.5, lambda stage, _done, _total: shown.append(stage))
    watch.at("compare", 0, 1)
    monkeypatch.setattr(watch_module, "_AGAIN_S", 3600)  # the first try ends it
    with pytest.raises(UnavailableError, match=r"deadline of 0.5 s: compare, 0 of 1"):
        watch.keep(compare)
    assert len(shown) > 1, "a sign of life"


@stages
def test_interrupt_ends_a_statement_of_the_database(
    monkeypatch: pytest.MonkeyPatch, endless: Callable[[pytest.MonkeyPatch], None]
) -> None:
    endless(monkeypatch)

    def interrupted() -> Compared:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return compare()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Watch(60, lambda *_: None).keep(interrupted)
    assert time.monotonic() - began < 30, "it was ended by its deadline"


def test_what_returns_in_time_leaves_no_handler_and_no_thread_behind() -> None:
    before = signal.getsignal(signal.SIGURG)
    assert Watch(60, lambda *_: None).keep(compare).outputs
    assert signal.getsignal(signal.SIGURG) is before
    assert Deadline(PATIENCE_S).wait_for(
        lambda: all(one.name != "eos-watch" for one in threading.enumerate())
    )


IN_A_THREAD = """
import sys, threading, time
from eos.errors import UnavailableError
from eos.ops.verifier.watch import Watch

def verified(seconds, work):
    try:
        Watch(seconds, lambda *_: None).keep(work)
        ended.append("done")
    except UnavailableError:
        ended.append("late")

def endless():
    while True:
        time.sleep(0.01)

ended = []
for seconds, work in ((60, int), (0.1, endless)):
    thread = threading.Thread(target=verified, args=(seconds, work))
    thread.start()
    thread.join()
seen = []
sys.setprofile(lambda frame, event, _: seen.append(event))
verified(60, int)
sys.setprofile(None)
print(*ended, len(seen) > 0)
"""


def test_verification_in_a_thread_leaves_the_interpreter_as_it_was() -> None:
    """CPython 3.11 made of the next call under a profiler, a debugger or coverage an endless loop."""
    told = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert told.stdout.split() == ["done", "late", "done", "True"]


def test_exception_that_comes_as_the_work_returns_is_not_left_to_the_caller() -> None:
    """In a thread, where it is raised at some later line."""
    ended: list[str] = []

    def verify() -> None:
        try:
            Watch(0.0, lambda *_: None).keep(lambda: time.sleep(1.5))
            ended.append("done")
        except UnavailableError:
            ended.append("late")
        for _ in range(1_000):
            time.sleep(0.0001)
        ended.append("went on")

    threads = [threading.Thread(target=verify) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ended) == 2 * len(threads)
    assert ended.count("went on") == len(threads)
