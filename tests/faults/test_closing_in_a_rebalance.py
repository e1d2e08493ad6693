"""A consumer is closed while a rebalance callback waits in its queue: every close comes to an end.

It hung in 2 of 3 runs of this test. librdkafka's thread purged the call that the callback made, and the caller waited for ever, with Python's lock held: no deadline
in Python could end that, so the closes are made in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.observer import create_topics, unique

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CLOSES = 60
ONE_CLOSE_S = 12.0  # less than the deadline of close(), which leaves a client behind

CHILD = """
import faulthandler, random, sys, time
from eos.kafka.config import consumer_config
from eos.kafka.consumer import ConsumerClient
from eos.offsets import Partition
from tests.support.jobs_for_faults import settings_for

bootstrap, topic, group, closes, one_close_s = sys.argv[1:]
member = consumer_config(settings_for(bootstrap), group, 0, [Partition(topic, n) for n in range(6)])

class OfAClosedOwner:
    def assigned(self, partitions): raise RuntimeError
    def revoked(self, partitions): pass
    lost = revoked

for _ in range(int(closes)):
    faulthandler.dump_traceback_later(float(one_close_s), exit=True)
    client = ConsumerClient(member)
    client.subscribe([topic], OfAClosedOwner())
    time.sleep(random.choice([0.02, 0.05, 0.1, 0.15, 0.25, 0.4]))
    client.close()
"""


def test_every_close_of_a_static_member_with_a_queued_rebalance_comes_to_an_end(bootstrap: str) -> None:
    topic = unique("closing")
    create_topics(bootstrap, {topic: 6})
    arguments = [bootstrap, topic, unique("group"), str(CLOSES), str(ONE_CLOSE_S)]
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=CLOSES * ONE_CLOSE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
