"""Quix Streams with its exactly-once guarantee; nothing set but the transaction's length.

Runs in an environment of its own, which has Quix Streams and not eos.
"""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from quixstreams import Application  # type: ignore[import-not-found]  # not in the project's environment

from bench.contender import Arguments, Meter

CALL_TIMEOUT_SECONDS = 30.0


def copy() -> None:
    """Run as a contender: copy the input's present records, and print the report."""
    meter = Meter()
    arguments = Arguments.from_command_line()
    application = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=arguments.transaction_ms / 1000,
        auto_create_topics=False,
        use_changelog_topics=False,
        loglevel="WARNING",
    )
    plain = {"key_serializer": "bytes", "value_serializer": "bytes"}
    source = application.topic(arguments.input, key_deserializer="bytes", value_deserializer="bytes")
    frame = application.dataframe(source)
    frame.apply(lambda value: value).to_topic(application.topic(arguments.output, **plain))
    application.run(count=_records_in(arguments), collect=False)
    meter.report(commits=0, commit_seconds=None)  # it does not say; the log does


def _records_in(arguments: Arguments) -> int:
    """The input's offsets begin at 0 and have no gaps."""
    consumer = Consumer({"bootstrap.servers": arguments.bootstrap, "group.id": f"{arguments.group}-ends"})
    partitions = (
        consumer.list_topics(arguments.input, CALL_TIMEOUT_SECONDS).topics[arguments.input].partitions
    )
    ends = [
        consumer.get_watermark_offsets(TopicPartition(arguments.input, n), CALL_TIMEOUT_SECONDS)[1]
        for n in partitions
    ]
    consumer.close()
    return sum(ends)


if __name__ == "__main__":
    copy()
