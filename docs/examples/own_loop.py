"""A consume-transform-produce loop of one's own: python docs/examples/own_loop.py HOST:PORT INPUT OUTPUT SECONDS."""

import sys
import time

from eos import (
    AbortableError,
    OrdinalShard,
    ReadCommittedConsumer,
    ReopenError,
    Settings,
    TransactionalProducer,
)

servers, source, sink, seconds = sys.argv[1:]
# "input.start" is for the first time: afterwards the committed offsets say where to go on.
settings = Settings.load(overrides={"kafka.bootstrap_servers": servers, "input.start": "earliest"})
shard = OrdinalShard("relay", f"relay-{source}", 0)  # the app, the group, and which of its instances this is
end = time.monotonic() + float(seconds)

with (
    TransactionalProducer(settings, shard) as producer,
    ReadCommittedConsumer(settings, [source], group=shard.group, ordinal=0, app=shard.app) as consumer,
):
    while time.monotonic() < end:
        batch = consumer.fetch(500, timeout_s=0.5)
        try:
            with consumer.transaction(producer, batch) as txn:
                for record in batch:
                    txn.produce(sink, record.value, key=record.key)
        except (AbortableError, ReopenError) as error:
            print(f"nothing of it is visible, and it is read again: {error}")
