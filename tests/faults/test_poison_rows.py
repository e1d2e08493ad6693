"""A transform that is wrong for every record is stopped before it has drained the input, however often its process is started again."""

from __future__ import annotations

import pytest

from eos.errors import TransformError
from eos.exits import ExitCode
from tests.faults.test_deadly_records import OWNERSHIPS, QUICKLY, WAIT_S, attempts, letters
from tests.support.jobs_for_faults import fault_job, in_process, run_to_end, settings_for
from tests.support.observer import PlainRecord, produce_plain
from tests.support.process_ends import MARK

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_transform_that_raises_for_every_record_is_stopped_at_every_start_by_one_limit(
    bootstrap: str, ownership: str
) -> None:
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 20, "poison", partitions=[0])
    settings = settings_for(
        bootstrap,
        poison__policy="dead-letter",
        poison__max_in_a_row=3,
        transaction__max_records=1,
        **OWNERSHIPS[ownership],
    )
    for _ in range(3):
        with pytest.raises(TransformError, match="max_in_a_row = 3"):
            run_to_end(job, settings)
        assert len(letters(bootstrap, job)) == 3
    higher = settings_for(bootstrap, poison__policy="dead-letter", **OWNERSHIPS[ownership])
    run_to_end(job, higher)
    assert job.check(bootstrap).processed == 20
    assert len(letters(bootstrap, job)) == 20


def test_record_that_is_processed_ends_the_row_also_for_the_next_owner(bootstrap: str) -> None:
    """One of another partition does, too: what is stored for the first one is taken back."""
    job = fault_job(bootstrap)
    settings = settings_for(
        bootstrap, poison__policy="dead-letter", poison__max_in_a_row=3, transaction__max_records=1
    )
    for partition, prefix in [(0, "poison"), (1, "good"), (0, "poison"), (1, "good"), (0, "poison")]:
        job.load(bootstrap, 3, prefix, partitions=[partition])
        run_to_end(job, settings)
    assert len(letters(bootstrap, job)) == 9
    assert job.check(bootstrap).processed == 15


def test_transform_that_ends_its_process_at_every_record_ends_the_job_and_not_the_input(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(MARK + b"SIGKILL", partition=0)] * 6)
    for restarts in (True, False):  # the second start knows it without another death
        with in_process(
            job,
            bootstrap,
            kind="workers",
            until_caught_up=True,
            poison__max_deaths=1,
            poison__max_died_in_a_row=2,
            **QUICKLY,
        ) as child:
            assert child.wait(WAIT_S) == ExitCode.POISON, child.lines[-20:]
            said = "\n".join(child.lines)
        assert f"{job.inputs[0]}[0] offset 2: 1 processes in a row died" in said
        assert "poison.max_died_in_a_row = 2" in said
        assert ("Restarted(" in said) is restarts
        assert len(letters(bootstrap, job)) == 2
    assert attempts(bootstrap, job) == [3]
