"""The refunds processor as a batch: the transform of the loop, applied by Spark to what is new in the input.

Each input partition is one task and one transaction, with that partition's offset in it (``commit="partition"``).
The records are those that ``eos run jobs.refunds:job`` writes for the same input, and the verification proves it.

    eos spark run jobs.refunds_batch:job -c conf/refunds_batch.toml --start earliest
    eos verify jobs.refunds:job -c conf/refunds.toml --set group=refunds-batch
"""

from __future__ import annotations

from eos.spark.jobs import SparkJob
from eos.spark.submitted import main
from jobs import refunds

job = SparkJob.applying(refunds.job, name="refunds-batch")
sample_input = refunds.sample_input

if __name__ == "__main__":
    main(job)
