"""The refunds processor as a streaming query: the transform of the loop, written by the exactly-once sink.

Where the query stands is in its checkpoint; what is written of a batch is in a ledger in Kafka, so a batch that
Spark runs again after a crash is finished and not repeated. The records of a merchant keep the order of their input
partition.

    spark-submit … jobs/refunds_stream.py --checkpoint /data/refunds-stream --start earliest
"""

from __future__ import annotations

from eos.spark.jobs import StreamJob
from eos.spark.submitted import main
from jobs import refunds

job = StreamJob.applying(refunds.job, name="refunds-stream")
sample_input = refunds.sample_input

if __name__ == "__main__":
    main(job)
