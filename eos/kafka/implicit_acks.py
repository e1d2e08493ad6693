"""ImplicitAcks: whether librdkafka has taken records as delivered that no broker has said to have written.

It may send a batch while an earlier one of the same partition is unanswered. Where the earlier one is refused (by a leader that
does not lead yet, or not any more) and the later one is written, librdkafka concludes that the earlier one was written, too: it
reports its records as delivered, and never sends them again. That would be right if an answer was lost, for a broker takes no
batch behind a gap in the sequence numbers. But from a producer that has not written to that partition before it takes any
number: the records of the refused batch are lost, without an error. (librdkafka 2.16, rd_kafka_dr_implicit_ack;
confluent-kafka-go issue 921; tests/canaries. Met with 500 partitions that had just been created, in 2 of about 160 runs. It sends no
later batch while five records or more of a partition are unanswered, so four records at a time, or fewer, can be lost.)

One request at a time would prevent it, and make each transaction wait for a round trip per partition. So the line that
``debug=eos`` makes librdkafka log is looked for between the flush and the commit. It comes before the records count as done.
"""

from __future__ import annotations

IMPLICIT_ACK = "IMPLICITACK"  # the lines' facility


class ImplicitAcks:
    """What librdkafka's log lines say about it; those of ``debug=eos`` are needed.

    Attributes:
        first: librdkafka's words about the first such records since :meth:`forget`; "" if there were none.
    """

    def __init__(self) -> None:
        self.first = ""

    def forget(self) -> None:
        """Begin anew: what was seen belonged to an earlier transaction."""
        self.first = ""

    def log(self, text: str) -> None:
        """One line of this facility."""
        self.first = self.first or text
