"""A process is stopped, another one takes its shard over and commits twice, then the first one wakes up.

The zombie must get FencedError at its next use, nothing of it may be visible, the offsets must stay where
the new owner left them, and the new owner must go on committing: also if the zombie believes itself
suspect, in which case it would reopen its producer, and an init cannot be conditional.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eos import EosError, OutputBatch, Partition
from eos.core.pipeline import Pipeline, Work
from eos.errors import UnprovenFenceError
from eos.events import InputTaken
from eos.offsets import OffsetVector
from tests.support.observer import assert_copied, committed_offsets, produce_plain, unique
from tests.support.patience import PATIENCE_S
from tests.support.processes import running
from tests.support.sessions import commit, fill, producer_of, session_for
from tests.support.settings import owning, settings_of, shard_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

STEP = 10  # input records per transaction, as `fill` takes them
MODES = ["partition", "group"]
SHORT_MS = 6_000  # of a transaction that is to expire

OWNER = """
import sys
from tests.faults.test_zombies_paused import be_an_owner
be_an_owner(*sys.argv[1:])
"""


def session_of(
    bootstrap: str,
    mode: str,
    group: str,
    source: str,
    timeout_ms: int = 60_000,
    session_ms: int = 60_000,  # which no pause outlasts
) -> Pipeline:
    settings = settings_of(
        bootstrap,
        input__start="earliest",
        transaction__timeout_ms=timeout_ms,
        ownership__session_timeout_ms=session_ms,
        **owning(mode, source),
    )
    return session_for(settings, shard_of(mode, "paused", group, source), [source])


def be_an_owner(
    bootstrap: str,
    mode: str,
    group: str,
    source: str,
    out: str,
    where: str,
    timeout_ms: str,
    go_on: str,
    session_ms: str = "60000",
) -> None:
    """Commit once, stop ``where`` it is told, and go on when the file ``go_on`` is there."""
    session = session_of(bootstrap, mode, group, source, int(timeout_ms), int(session_ms))
    session.open()
    fill(session, out)
    commit(session)
    if where == "inside a transaction":
        fill(session, out)
    else:
        producer_of(session.owner)._suspect("a test")
    print("ready", flush=True)  # noqa: T201 - what the test waits for
    deadline = time.monotonic() + PATIENCE_S
    while not Path(go_on).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(3):
        try:
            if not session.owner.committer.filling:
                # Without a fetch, which would show the member of a group that it is fenced.
                begins, ends = (OffsetVector({Partition(source, 0): n * STEP}) for n in (1, 2))
                taken = InputTaken("of the zombie", 1, begins, ends)
                session._work = [Work([OutputBatch(out, [b"of the zombie"])], 1, 0, taken, None)]
                session.produce()
            commit(session)
            print("committed", flush=True)  # noqa: T201
        except EosError as error:
            print(type(error).__name__, flush=True)  # noqa: T201
            try:
                session.owner.recover(error)
                print("recovered", flush=True)  # noqa: T201
            except EosError as final:
                print("ended by", type(final).__name__, flush=True)  # noqa: T201
    session.close()


@pytest.mark.parametrize("where", ["inside a transaction", "suspect between transactions"])
@pytest.mark.parametrize("mode", MODES)
def test_zombie_that_wakes_up_is_fenced_and_the_new_owner_goes_on(
    bootstrap: str, topic: NewTopic, tmp_path: Path, mode: str, where: str
) -> None:
    source, out, group = topic("in"), topic("out"), unique("paused")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(5 * STEP)])
    go_on = tmp_path / "go-on"
    with running(OWNER, bootstrap, mode, group, source, out, where, "60000", str(go_on)) as zombie:
        zombie.wait_line("ready", PATIENCE_S)
        zombie.pause()
        with session_of(bootstrap, mode, group, source) as owner:
            for _ in range(2):
                fill(owner, out)
                commit(owner)
            assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 3 * STEP
            zombie.resume()
            go_on.touch()
            zombie.wait_line("ended by FencedError", PATIENCE_S)
            assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 3 * STEP
            for _ in range(2):  # an owner that had been fenced would fail here
                fill(owner, out)
                commit(owner)
            assert zombie.wait(PATIENCE_S) == 0
    said = zombie.lines[zombie.lines.index("ready") + 1 :]
    first = "UnprovenFenceError" if where == "inside a transaction" else "FencedError"
    assert said == [first, *["ended by FencedError", "FencedError"] * 2, "ended by FencedError"]
    assert_copied(bootstrap, group, source, out, 5 * STEP)


@pytest.mark.parametrize("mode", ["partition", pytest.param("group", marks=pytest.mark.slow)])
def test_zombie_whose_transaction_also_expired_is_fenced_by_the_comparison(
    bootstrap: str, topic: NewTopic, tmp_path: Path, mode: str
) -> None:
    """Past transaction.timeout.ms the code of a fence proves nothing, so the zombie reopens, once, and compares."""
    source, out, group = topic("in"), topic("out"), unique("paused")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(4 * STEP)])
    go_on = tmp_path / "go-on"
    with running(
        OWNER, bootstrap, mode, group, source, out, "inside a transaction", str(SHORT_MS), str(go_on)
    ) as zombie:
        zombie.wait_line("ready", PATIENCE_S)
        zombie.pause()
        stopped_at = time.monotonic()
        with session_of(bootstrap, mode, group, source) as owner:
            for _ in range(2):
                fill(owner, out)
                commit(owner)
            time.sleep(max(0.0, stopped_at + SHORT_MS / 1_000 - time.monotonic()))
            zombie.resume()
            go_on.touch()
            assert zombie.wait(PATIENCE_S) == 0
            fill(owner, out)
            commit(owner)
    said = zombie.lines[zombie.lines.index("ready") + 1 :]
    assert said[:2] == ["TransactionExpiredError", "ended by FencedError"]
    assert "committed" not in said
    assert_copied(bootstrap, group, source, out, 4 * STEP)


def test_zombie_that_wakes_up_before_the_new_owner_has_committed_does_not_end_it(
    bootstrap: str, topic: NewTopic, tmp_path: Path
) -> None:
    """No commit shows the zombie its successor, so it opens the shard anew; but the group has given its name to another."""
    source, out, group = topic("in"), topic("out"), unique("paused")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(4 * STEP)])
    go_on = tmp_path / "go-on"
    with running(
        OWNER, bootstrap, "group", group, source, out, "inside a transaction", "60000", str(go_on)
    ) as zombie:
        zombie.wait_line("ready", PATIENCE_S)
        zombie.pause()
        with session_of(bootstrap, "group", group, source) as owner:
            fill(owner, out)
            zombie.resume()
            go_on.touch()
            zombie.wait_line("recovered", PATIENCE_S)
            with pytest.raises(UnprovenFenceError) as fence:
                commit(owner)
            owner.owner.recover(fence.value)
            for _ in range(3):
                fill(owner, out)
                commit(owner)
            assert zombie.wait(PATIENCE_S) == 0
    said = zombie.lines[zombie.lines.index("ready") + 1 :]
    assert said[:2] == ["UnprovenFenceError", "recovered"]
    assert "committed" not in said
    assert_copied(bootstrap, group, source, out, 4 * STEP)
