"""A listener raises an error of eos when it hears of a commit: that of a producer of its own, say."""

from __future__ import annotations

import pytest

from eos import AbortableError, EosError, ReopenError, RetriableError
from eos.events import Event, ListenerError, TransactionCommitted
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
        running.wait(30)
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 50
