"""The dashboard and the alerts of docker/cluster, on what a running job really shows to a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eos.ops.observe import Aggregator, WorkerState
from tests.support import jobs_for_tests, observer
from tests.support.patience import PATIENCE_S
from tests.support.processes import running_module
from tests.support.prometheus import Prometheus, find, prometheus

_FILES = Path(__file__).parents[2] / "docker" / "cluster"
_RULES = _FILES / "prometheus" / "alerts.yml"
_JOB = "tests.support.jobs_for_tests:copying"
# What Grafana puts in for these; the test's Prometheus asks every second.
_FILLED_IN = {"$__rate_interval": "5s", "$__range": "60s", "$instance": ".*"}
# Nothing is asked again while the brokers answer.
_MAY_BE_EMPTY = {"Calls made again"}
_NO_PROMTOOL = pytest.mark.skipif(
    find("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)
_NO_PROMETHEUS = pytest.mark.skipif(
    find("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"
)


class Query(NamedTuple):
    """An expression of the dashboard."""

    panel: str
    expression: str


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((_FILES / "grafana/dashboards/eos.json").read_text())
    return loaded


def queries() -> list[Query]:
    return [
        Query(panel["title"], target["expr"])
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]


# --- without a server -------------------------------------------------------------------------------------


def test_every_metric_that_is_asked_for_is_one_that_eos_has() -> None:
    names = set()
    for registry in (WorkerState().registry, Aggregator([0]).registry):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    asked = re.findall(r"\beos_\w+", _RULES.read_text() + " ".join(query.expression for query in queries()))
    assert asked
    assert set(asked) <= names


def test_the_dashboard_asks_the_source_that_is_provisioned() -> None:
    (uid,) = re.findall(
        r"^ +uid: (\S+)",
        (_FILES / "grafana/provisioning/datasources/prometheus.yaml").read_text(),
        re.MULTILINE,
    )
    used = re.findall(r'"type": "prometheus",\s+"uid": "([^"]+)"', json.dumps(dashboard(), indent=1))
    assert set(used) == {uid}


@_NO_PROMTOOL
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_configuration_and_each_alert_fires_on_its_accident_only(
    arguments: tuple[str, ...],
) -> None:
    done = subprocess.run(
        [str(find("promtool")), *arguments],
        capture_output=True,
        check=False,
        cwd=_FILES / "prometheus",
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- a real scrape ----------------------------------------------------------------------------------------


class Scraped(NamedTuple):
    """A job at work, and a Prometheus that asks it."""

    server: Prometheus
    feed: Callable[[], None]


def configuration(target: str, directory: Path) -> Path:
    """The shipped configuration with another target, and in a hurry."""
    text = (_FILES / "prometheus/prometheus.yml").read_text()
    for pattern, replacement in (
        (r"targets: \[.*\]", f'targets: ["{target}"]'),
        (r"scrape_interval: \S+", "scrape_interval: 1s"),
        (r"evaluation_interval: \S+", "evaluation_interval: 1s"),
    ):
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    shutil.copy(_RULES, directory)
    path = directory / "prometheus.yml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def scraped(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    topic = observer.unique("monitored")
    outputs = [f"{topic}.{kind}" for kind in ("copies", "audit", "dlq")]
    observer.create_topics(bootstrap, dict.fromkeys([topic, *outputs], 1))

    def feed() -> None:
        observer.produce_plain(bootstrap, topic, [*[b"v"] * 50, jobs_for_tests.POISON])

    feed()
    environment = {
        "TEST_INPUT": topic,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "EOS_GROUP": topic,
        "EOS_POISON__POLICY": "dead-letter",
        "EOS_OBSERVE__HTTP_PORT": "0",
    }
    directory = tmp_path_factory.mktemp("prometheus")
    with running_module("eos.cli", "run", _JOB, "--start", "earliest", env=environment) as child:
        served = re.search(r"http://([\d.:]+)", child.wait_line("metrics and health", PATIENCE_S))
        assert served is not None
        child.wait_line("session opened", PATIENCE_S)
        with prometheus(configuration(served[1], directory), directory / "data") as server:
            yield Scraped(server, feed)
        child.terminate()
        assert child.wait(PATIENCE_S) == 0


def filled_in(expression: str) -> str:
    for variable, value in _FILLED_IN.items():
        expression = expression.replace(variable, value)
    return expression


@_NO_PROMETHEUS
@pytest.mark.broker
def test_every_query_of_the_dashboard_is_answered_with_figures_of_the_running_job(scraped: Scraped) -> None:
    asked = queries()
    missing = {query for query in asked if query.panel not in _MAY_BE_EMPTY}
    deadline = time.monotonic() + PATIENCE_S
    while missing:
        assert time.monotonic() < deadline, f"no figure: {sorted(missing)}"
        scraped.feed()
        for query in asked:  # the others must be answered too, if with nothing
            figures = scraped.server.query(filled_in(query.expression))
            if figures and not any(map(math.isnan, figures)):
                missing.discard(query)
    assert {query.panel for query in asked} > _MAY_BE_EMPTY


@_NO_PROMETHEUS
@pytest.mark.broker
def test_the_figures_are_those_of_the_job(scraped: Scraped) -> None:
    """Of 51 records one is poison; every query of a rate would be answered by zeros as well."""
    scraped.feed()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        committed = sum(scraped.server.query('eos_transactions_total{outcome="committed"}'))
        letters = sum(scraped.server.query("eos_dead_letters_total"))
        records = sum(scraped.server.query("eos_records_in_total"))
        if committed and letters and records == 51 * letters:
            break
        assert time.monotonic() < deadline, (committed, letters, records)
        time.sleep(0.5)
    assert scraped.server.query('up{job="eos"}') == [1.0]


@_NO_PROMETHEUS
@pytest.mark.broker
def test_every_alert_is_evaluated_and_only_the_dead_letters_fire(scraped: Scraped) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (group,) = scraped.server.ask("rules")["groups"]
        health = {rule["name"]: rule["health"] for rule in group["rules"]}
        firing = {rule["name"] for rule in group["rules"] if rule["state"] == "firing"}
        if set(health.values()) == {"ok"} and firing == {"EosDeadLetters"}:
            return
        assert time.monotonic() < deadline, (health, firing)
        time.sleep(0.5)
