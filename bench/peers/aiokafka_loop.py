"""The raw loop with aiokafka: getmany, send per record, commit when the interval has passed, and no error handling.

Runs in an environment of its own, which has aiokafka and not eos. aiokafka sends the plain group id with the offsets, no
member and no generation: a member that was dropped from its group is not fenced by it.
"""

from __future__ import annotations

import asyncio
import time

from aiokafka import (  # type: ignore[import-not-found]  # not in the project's environment
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)

from bench.contender import Arguments, Meter

FETCHED_AT_ONCE = 1000  # as the raw loops of confluent-kafka


async def copy(arguments: Arguments, meter: Meter) -> None:
    """Copy the input's present records, and print the report."""
    consumer = AIOKafkaConsumer(
        arguments.input,
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=arguments.bootstrap, transactional_id=arguments.group, enable_idempotence=True
    )
    commits, commit_seconds = 0, 0.0
    interval = arguments.transaction_ms / 1000
    async with consumer, producer:
        partitions = [
            TopicPartition(arguments.input, n) for n in consumer.partitions_for_topic(arguments.input)
        ]
        remaining = sum((await consumer.end_offsets(partitions)).values())  # they begin at 0 and have no gaps
        next_offsets: dict[TopicPartition, int] = {}
        began = time.monotonic()
        while remaining > 0:
            batches = await consumer.getmany(timeout_ms=arguments.transaction_ms, max_records=FETCHED_AT_ONCE)
            if batches and not next_offsets:
                await producer.begin_transaction()
            for partition, records in batches.items():
                for record in records:
                    await producer.send(arguments.output, record.value, record.key)
                next_offsets[partition] = records[-1].offset + 1
                remaining -= len(records)
            if next_offsets and (time.monotonic() - began >= interval or remaining <= 0):
                committing = time.monotonic()
                await producer.send_offsets_to_transaction(next_offsets, arguments.group)
                await producer.commit_transaction()
                commit_seconds += time.monotonic() - committing
                commits += 1
                next_offsets = {}
                began = time.monotonic()
    meter.report(commits=commits, commit_seconds=commit_seconds)


if __name__ == "__main__":
    _METER = Meter()
    asyncio.run(copy(Arguments.from_command_line(), _METER))
