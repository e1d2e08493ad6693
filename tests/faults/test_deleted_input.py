"""Input is deleted before it was processed: nothing is skipped in silence, and the error says how much is gone and what to do."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos import OffsetGapError
from tests.support.jobs_for_faults import fault_job, run_to_end, settings_for
from tests.support.observer import committed_offsets, load, read_committed
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

OWNED: dict[str, dict[str, object]] = {
    "group": {"ownership__mode": "group"},
    "partition": {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
}


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_deleted_input_stops_the_job_which_names_the_first_offset_left_and_how_many_are_gone(
    bootstrap: str, mode: str
) -> None:
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    settings = settings_for(bootstrap, **OWNED[mode])
    load(bootstrap, source, 10, "a", partitions=[1])
    run_to_end(job, settings)
    job.check(bootstrap)
    load(bootstrap, source, 10, "b", partitions=[1])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_records([TopicPartition(source, 1, 15)]).values():
        done.result(PATIENCE_S)

    with pytest.raises(OffsetGapError) as caught:
        run_to_end(job, settings)
    said = str(caught.value)
    assert (
        f"{source}[1]: the group goes on at offset 10, and the first that is left is 15: up to 5 records are gone"
        in said
    )
    assert f"eos offsets set MODULE:NAME --only {source}:1 --to earliest" in said
    assert f"{source}[0]" not in said
    assert committed_offsets(bootstrap, job.group, [(source, 1)])[source, 1][0] == 10
    assert len(read_committed(bootstrap, job.out)) == 10

    if (
        mode == "partition"
    ):  # a group's static member is there for a session timeout, until which Kafka refuses the fix
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(source, 1, 15)], asynchronous=False)
        consumer.close()
        run_to_end(job, settings_for(bootstrap, ownership__adopt_offsets=True, **OWNED[mode]))
        assert committed_offsets(bootstrap, job.group, [(source, 1)])[source, 1][0] == 20
        values = sorted(one.value or b"" for one in read_committed(bootstrap, job.out))
        assert values == [b"out a%d" % n for n in range(10)] + [b"out b%d" % n for n in range(5, 10)]
