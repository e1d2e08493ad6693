"""The refunds processor as a streaming query: the transform of the loop, written by the exactly-once sink.

Where the query stands is in its checkpoint; what is written of a batch is in a ledger in Kafka, so a batch that
Spark runs again after a crash is finished and not repeated. The records of a merchant keep the order of their input
partition.

    spark-submit … jobs/refunds_stream.py --checkpoint /data/refunds-stream --start earliest
"""

from __future__ import annotations

from eos.spark.stream_job import StreamJob, main
from eos.spark.transform import records_transform
from jobs import refunds

job = StreamJob(
    name="refunds-stream",
    inputs=refunds.job.inputs,
    outputs=sorted(refunds.job.written_topics),
    transform_factory=lambda settings: records_transform(refunds.job, settings),
    settings=refunds.RefundSettings,
)

if __name__ == "__main__":
    main(job)
