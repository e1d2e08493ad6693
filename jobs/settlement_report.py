"""The settlement report: per merchant and day what was settled, what of it refunded, and why.

A wide transform: it aggregates over all input partitions and joins, so its output and all input offsets are
one transaction (``commit="batch"``). Each record reports on the range of input that one run has read, and its
key names that range: a reader adds the ranges up. The merchants' names come from a bounded snapshot of a topic
beside the input, which is no part of the offsets.

    eos spark run jobs.settlement_report:job -c conf/settlement_report.toml
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.spark.jobs import SparkJob, SparkRun
from eos.spark.submitted import main
from jobs.merchants import MERCHANTS
from jobs.refund_rules import SETTLED, InvalidSettlementError, decide, parse_settlement
from jobs.refunds import SETTLEMENTS

SETTLEMENT_REPORT = "settlement-report"

_FACTS = """
    ARRAY<STRUCT<
        merchant_id: STRING, currency: STRING, settlements: INT, settled_minor: BIGINT,
        reason: STRING, refunds: INT, refunded_minor: BIGINT>>
"""
_MERCHANT = "name STRING, country STRING"
_DAY_MS = 86_400_000
_OF_ONE_REPORT = ("merchant_id", "day")


class ReportSettings(BaseModel):
    """Settings of the report (table ``[job]``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    top_reasons: int = Field(default=3, ge=1, description="reasons of refunds that a report names")


def facts_of(value: bytes | None) -> list[dict[str, Any]]:
    """What a settlement adds to its merchant's report: a row of its own, and one per refund that it gets.

    Nothing for what is no settlement, or not settled.
    """
    try:
        settlement = parse_settlement(bytes(value) if value is not None else None)
    except InvalidSettlementError:
        return []
    if settlement.status != SETTLED:
        return []
    of = {"merchant_id": settlement.merchant_id, "currency": settlement.currency}
    nothing = {"settlements": 0, "settled_minor": 0, "reason": None, "refunds": 0, "refunded_minor": 0}
    rows = [{**of, **nothing, "settlements": 1, "settled_minor": settlement.amount_minor}]
    rows += (
        {**of, **nothing, "reason": one.reason, "refunds": 1, "refunded_minor": one.amount_minor}
        for one in decide(settlement).refunds
    )
    return rows


def settlement_report(run: SparkRun) -> Callable[[DataFrame], DataFrame]:
    """The transform of one run."""

    def transform(settlements: DataFrame) -> DataFrame:
        reports = _per_merchant_and_day(_facts(settlements), run.settings.top_reasons)
        reports = reports.join(_names(run.snapshot(MERCHANTS)), "merchant_id", "left")
        run_range = F.lit(run.plan.identity)
        report = F.struct(
            "merchant_id", "name", "country", "day", run_range.alias("range"), "totals", "top_reasons"
        )
        return reports.select(
            F.concat_ws("|", "merchant_id", "day", run_range).alias("key"),
            F.to_json(report).alias("value"),
        )

    return transform


def _facts(settlements: DataFrame) -> DataFrame:
    """The rows of `facts_of`. Their day is that of the record's timestamp, in UTC whatever the session's time zone."""
    # A function without type hints: Spark takes those for one of its vectorised kinds, and warns that they are none.
    facts = F.udf(lambda value: facts_of(value), _FACTS)  # noqa: PLW0108 - see above
    days = F.floor(F.unix_millis("timestamp") / _DAY_MS).cast("int")
    rows = settlements.select(
        F.date_from_unix_date(days).cast("string").alias("day"), F.explode(facts("value")).alias("fact")
    )
    return rows.select("day", "fact.*")


def _per_merchant_and_day(facts: DataFrame, top_reasons: int) -> DataFrame:
    """Totals by currency, and the reasons with the most refunds.

    Both from one pass: two aggregations that are joined would read and parse the input twice.
    """
    sums = facts.groupingSets(
        [[*_OF_ONE_REPORT, "currency"], [*_OF_ONE_REPORT, "reason"]], *_OF_ONE_REPORT, "currency", "reason"
    ).agg(
        F.grouping("currency").alias("is_of_reason"),
        F.sum("settlements").alias("settlements"),
        _minor(F.sum(_minor(F.col("settled_minor")))).alias("settled_minor"),
        F.sum("refunds").alias("refunds"),
        _minor(F.sum(_minor(F.col("refunded_minor")))).alias("refunded_minor"),
    )
    share = F.round(F.try_divide("refunded_minor", "settled_minor"), 4)
    total = F.struct(
        "currency", "settlements", "settled_minor", "refunds", "refunded_minor", share.alias("refunded_share")
    )
    # Ascending by the negative count, then by name: one order for equal counts too.
    reason = F.struct((-F.col("refunds")).alias("rank"), "reason", "refunds")
    is_of_reason = F.col("is_of_reason") == 1
    # Sorted: the order in which rows reach an aggregation differs from try to try.
    per_report = sums.groupBy(*_OF_ONE_REPORT).agg(
        F.sort_array(F.collect_list(F.when(~is_of_reason, total))).alias("totals"),
        F.sort_array(F.collect_list(F.when(is_of_reason & F.col("reason").isNotNull(), reason))).alias(
            "reasons"
        ),
    )
    top = F.transform(F.slice("reasons", 1, top_reasons), lambda one: F.struct(one.reason, one.refunds))
    return per_report.select(*_OF_ONE_REPORT, "totals", top.alias("top_reasons"))


def _names(snapshot: DataFrame) -> DataFrame:
    """The last record of each merchant; a key's records are all in one partition, so offsets order them."""
    merchant = F.from_json(F.col("value").cast("string"), _MERCHANT)
    return (
        snapshot.where("key IS NOT NULL")
        .groupBy(F.col("key").cast("string").alias("merchant_id"))
        .agg(F.max_by(merchant, "offset").alias("merchant"))
        .select("merchant_id", "merchant.name", "merchant.country")
    )


def _minor(amount: Column) -> Column:
    return amount.cast("decimal(38,0)")


job = SparkJob(
    name="settlement-report",
    inputs=[SETTLEMENTS],
    outputs=[SETTLEMENT_REPORT],
    snapshots=[MERCHANTS],
    transform_factory=settlement_report,
    settings=ReportSettings,
    commit="batch",
)

if __name__ == "__main__":
    main(job)
