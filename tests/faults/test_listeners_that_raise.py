"""A listener raises an error of eos when it hears of a commit: that of a producer of its own, say."""

from __future__ import annotations

import pytest

from eos import AbortableError, EosError, FencedError, ReopenError, RetriableError, run
from eos.events import (
    Event,
    ListenerError,
    PartitionsAssigned,
    RecordDeadLettered,
    Sampled,
    SessionOpened,
    ShardsOwned,
    TransactionCommitted,
)
from tests.support.jobs_for_faults import Running, fault_job, run_to_end, settings_for

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
@pytest.mark.parametrize("kind", [AbortableError, RetriableError, ReopenError])
def test_error_of_a_listener_is_not_taken_for_that_of_the_commit(
    bootstrap: str, kind: type[EosError], own_loop: bool
) -> None:
    """The input was rewound behind a commit that had happened: every record was written twice."""
    job = fault_job(bootstrap, partitions=1, own_loop=own_loop)
    job.load(bootstrap, 50, "v", [0])
    raised: list[Event] = []

    def once(event: Event) -> None:
        if isinstance(event, TransactionCommitted) and not raised:
            raised.append(event)
            raise kind("the listener's own")

    running = Running(job.job(), settings_for(bootstrap), until_caught_up=True, drive=job.drive)
    running.also(once)
    with pytest.raises(ListenerError, match="the listener's own"):
        running.wait()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 50


@pytest.mark.parametrize(
    "heard", [Sampled, RecordDeadLettered, ShardsOwned, SessionOpened, PartitionsAssigned]
)
def test_error_of_a_listener_is_never_taken_for_the_jobs_own(bootstrap: str, heard: type[Event]) -> None:
    """A FencedError of a producer that the listener has would end the job with 3."""
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 20, "v", [0])
    job.load(bootstrap, 1, "poison", [0])

    def raising(event: Event) -> None:
        if isinstance(event, heard):
            raise FencedError("the listener's own")

    settings = settings_for(bootstrap, poison__policy="dead-letter")
    with pytest.raises(ListenerError, match="the listener's own"):
        run(job.job(), settings, until_caught_up=True, listener=raising)
