"""A transform of one's own, exactly once: cells to run one after another, in a notebook or as a script.

Needs a Kafka with a topic ``payments`` (JSON: merchant, amount_minor) and one ``payment-fees``:

    eos local start && eos local topics docs.examples.own_transform:job
    EOS_KAFKA__BOOTSTRAP_SERVERS=… python docs/examples/own_transform.py
"""

# %% A session with Spark's Kafka connector. In a cluster's notebook there is one already: use that.
import subprocess
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from eos import Settings
from eos.spark import ExactlyOnceBatch, SparkJob, build_session


# %% The transform: from Spark's Kafka columns to output columns. It carries `shard` through, which says whose
# transaction a row belongs to; and it is deterministic, because what is tried again must come out the same.
def fees(payments: DataFrame) -> DataFrame:
    """One record per payment: its fee, 1.5 % of the amount."""
    payment = F.from_json(F.col("value").cast("string"), "merchant STRING, amount_minor BIGINT")
    fee = F.round(F.expr("payment.amount_minor * 15 / 1000")).cast("bigint")
    return (
        payments.select("shard", "key", payment.alias("payment"))
        .where("payment.amount_minor IS NOT NULL")
        .select(
            "shard", "key", F.to_json(F.struct("payment.merchant", fee.alias("fee_minor"))).alias("value")
        )
    )


# %% The same as a job, for `eos spark run docs.examples.own_transform:job`.
job = SparkJob(name="payment-fees", inputs=["payments"], outputs=["payment-fees"], transform=fees)


# %% Run it: everything new since the last run, each input partition's output and offset in one transaction.
def main() -> None:
    """What the cells of a notebook would do."""
    jars = subprocess.run(
        [sys.executable, "-m", "eos.cli", "spark", "jars"], check=True, capture_output=True, text=True
    ).stdout.strip()
    spark = build_session("payment-fees", "local[2,4]", [Path(jar) for jar in jars.split(",")])
    settings = Settings.load(overrides={"input.start": "earliest"})
    batch = ExactlyOnceBatch(spark, settings, name=job.name, inputs=job.inputs, outputs=job.outputs)
    print("\n".join("  ".join(row) for row in batch.plan().table()))
    result = batch.run(fees)
    print(f"{len(result.shards)} transactions, {result.records_out} records, {result.seconds:.1f} s")
    again = batch.run(fees)
    print(f"and again: {len(again.shards)} transactions, for nothing is new")
    spark.stop()


if __name__ == "__main__":
    main()
