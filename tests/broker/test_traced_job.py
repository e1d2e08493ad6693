"""The documented job with OpenTelemetry, on a real broker: its spans, its figures, and an output that is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import observer
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    produce_plain,
    read_committed,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

_REPOSITORY = Path(__file__).parents[2]
_JOB = "docs.examples.traced_job:job"
_RECORDS = 40
_WRITER = "00-0af7651916cd43dd8448eb211c80319c-{:016x}-01"


def eos(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eos.cli", *arguments],
        cwd=_REPOSITORY,
        env=os.environ | {"EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def printed(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that the console exporters have printed, one after another."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        found, end = decoder.raw_decode(text, at)
        yield found
        at = text.find("{", end)


def test_job_of_the_documentation_traces_its_transactions_and_stays_exact(bootstrap: str) -> None:
    create_topics(bootstrap, {"shipments": 2, "shipment-labels": 2})
    records = [
        PlainRecord(
            b"v%d" % n,
            b"k%d" % n,
            headers=(("traceparent", _WRITER.format(n + 1).encode()), ("a", b"b")),
        )
        for n in range(_RECORDS)
    ]
    produce_plain(bootstrap, "shipments", records)

    ended = eos(bootstrap, "run", _JOB, "--start", "earliest", "--until-caught-up")

    assert ended.returncode == 0, ended.stderr
    objects = list(printed(ended.stdout))
    spans = [one for one in objects if "span_id" in str(one.get("context"))]
    attributes = [span["attributes"] for span in spans]
    assert {span["name"] for span in spans} == {"process shipments"}
    assert {span["kind"] for span in spans} == {"SpanKind.CONSUMER"}
    assert {of["eos.outcome"] for of in attributes} == {"committed"}
    assert {of["eos.transactional_id"] for of in attributes} == {"shipment-labels.shipment-labels.i.0"}
    assert sum(of["messaging.batch.message_count"] for of in attributes) == _RECORDS
    assert sum(of["eos.records_out"] for of in attributes) == _RECORDS
    assert {link["context"]["span_id"] for span in spans for link in span["links"]} == {
        f"0x{n + 1:016x}" for n in range(_RECORDS)
    }

    figures = {
        metric["name"]: metric["data"]["data_points"]
        for one in objects
        for of_resource in one.get("resource_metrics", ())
        for scope in of_resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    assert [point["value"] for point in figures["eos_records_in"]] == [_RECORDS]
    assert [point["attributes"]["worker"] for point in figures["eos_records_in"]] == ["0"]
    assert [point["count"] for point in figures["eos_commit_seconds"]] >= [len(spans)]

    # Exact from outside: every record once, its headers as they came, and the offsets at the end of the input.
    found = read_committed(bootstrap, "shipment-labels")
    assert sorted((r.value, tuple(r.headers)) for r in found) == sorted(
        (r.value, tuple(r.headers)) for r in records
    )
    stands = committed_offsets(bootstrap, "shipment-labels", [("shipments", 0), ("shipments", 1)])
    ends = observer.watermarks(bootstrap, "shipments")
    assert {number: stands["shipments", number][0] for number in ends} == {
        number: end for number, (_, end) in ends.items()
    }
    verified = eos(bootstrap, "verify", _JOB)
    assert verified.returncode == 0, verified.stdout + verified.stderr
