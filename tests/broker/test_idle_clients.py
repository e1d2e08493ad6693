"""Clients that nobody uses are served: what librdkafka has to say does not wait, and grow, until the next call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eos.base.deadline import Deadline
from eos.core.transactional import TransactionalProducer
from eos.kafka.late_copies import ResendWatch
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.observer import read_committed
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """When a line of librdkafka's log has come, and which."""
    lines: list[tuple[float, str]] = []
    log = ResendWatch.log

    def hear(watch: ResendWatch, level: int, template: str, *args: object) -> None:
        lines.append((time.monotonic(), str(args[0])))
        log(watch, level, template, *args)

    monkeypatch.setattr(ResendWatch, "log", hear)
    return lines


def test_an_idle_producer_is_served_while_its_brokers_are_away(
    proxy: HoldProxy,
    topic: NewTopic,
    names: Callable[[str], str],
    bootstrap: str,
    heard: list[tuple[float, str]],
) -> None:
    """Its log lines take 36 MB an hour then, and the next call would serve all of them first."""
    out, app = topic("out"), names("app").replace(".", "-")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=app) as producer:
        with producer.transaction() as txn:
            txn.produce(out, "x")
        heard.clear()
        proxy.stop()
        assert Deadline(PATIENCE_S).wait_for(lambda: any(facility == "FAIL" for _, facility in heard))
    assert [record.value for record in read_committed(bootstrap, out)] == [b"x"]


def test_an_idle_producer_has_no_statistics(
    topic: NewTopic, names: Callable[[str], str], bootstrap: str
) -> None:
    """They were what grew fastest: a megabyte a minute with 200 partitions."""
    settings = settings_of(bootstrap)
    with TransactionalProducer(settings, app=names("app").replace(".", "-")) as producer:
        with producer.transaction() as txn:
            txn.produce(topic("out"), b"x")
        client = producer._producer._require_client()
        time.sleep(1.5)
        assert client._serving.acquire(timeout=PATIENCE_S)
        try:
            time.sleep(2.5)
            assert client._producer.poll(0) <= 20
        finally:
            client._serving.release()
