"""A topic that `eos skip` writes to is created anew inside its transaction: nothing is committed, and the topic is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.errors import TransformError
from eos.exits import ExitCode
from eos.testing.proxy import ApiKey, Frame, HoldProxy
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import fault_job
from tests.support.observer import PlainRecord, produce_plain, read_committed, recreate_topic
from tests.support.operated import MODES, Operated

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("which", ["dead", "audit"])
def test_skip_commits_nothing_where_a_topic_that_it_wrote_to_is_created_anew(
    bootstrap: str, proxy: HoldProxy, eos: Eos, tmp_path: Path, which: str
) -> None:
    job = fault_job(bootstrap, partitions=1)
    values = [b"v0", b"v1", b"poison", b"w0"]
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(value, key=b"k", partition=0) for value in values])
    one = Operated(eos, tmp_path, bootstrap, job, MODES["group"])
    with pytest.raises(TransformError):
        one.run()
    stood = one.offsets()
    gone = getattr(job, which)

    def recreate(_: Frame, answer: bytes) -> bytes:
        recreate_topic(bootstrap, gone)
        return answer

    # The last look at the ids follows this answer.
    proxy.edit_reply(ApiKey.PRODUCE, recreate, where=lambda frame: gone.encode() in frame.payload)
    words = ("skip", "JOB", f"{job.inputs[0]}:0@2", "--reason", "no", "--yes")
    refused = one.behind(proxy.bootstrap_servers)(*words)
    assert refused.code == ExitCode.UNAVAILABLE, refused
    said = f"nothing was committed in {job.group!r}: {gone}: the output topic was deleted and created anew"
    assert said in refused.err
    assert one.offsets() == stood
    assert read_committed(bootstrap, job.out, job.audit, job.dead) == []

    assert one(*words).code == ExitCode.DONE
    assert [record.value for record in read_committed(bootstrap, job.dead)] == [b"poison"]
    one.run()
    assert one("verify", "JOB", "--complete").code == ExitCode.DONE
