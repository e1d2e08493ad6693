"""From a worker's events to the parent's page: through a pipe, over restarts, and by HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from eos.base.deadline import Deadline
from eos.errors import ConfigError
from eos.events import (
    CallRetried,
    Event,
    Lag,
    Sampled,
    SessionClosed,
    SessionOpened,
    ShardsOwned,
    TransactionCommitted,
)
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import Aggregator, Reporter, Server, serve
from eos.ops.observe.server import CLIENT_THREAD
from eos.ops.observe.worker_report import packed
from eos.settings.tables import ObserveSettings
from tests.support.patience import PATIENCE_S

SHARD = "refunds.refunds.i.0"
COMMITTED = TransactionCommitted(SHARD, 10, 12, OffsetVector(), 0.1, 0.02)
NEVER_S = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reporter_that_sends_nothing(ordinal: int = 0, **options: Any) -> Reporter:
    _, sender = multiprocessing.Pipe(duplex=False)
    return Reporter(sender, ordinal, interval_s=NEVER_S, **options)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(clock: Clock) -> Iterator[Callable[..., Reporter]]:
    """A maker of reporters whose reports the test takes itself."""
    made: list[Reporter] = []

    def make(**options: Any) -> Reporter:
        made.append(reporter_that_sends_nothing(clock=clock, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def reported(reporter: Reporter, *events: Event) -> bytes:
    for event in events:
        reporter(event)
    return packed(reporter.report())


def shown(aggregator: Aggregator, name: str) -> dict[str, float]:
    """The series of one name, by worker."""
    families = text_string_to_metric_families(generate_latest(aggregator.registry).decode())
    return {s.labels["worker"]: s.value for f in families for s in f.samples if s.name == name}


# --- the aggregator ---------------------------------------------------------------------------------------


def test_workers_stand_side_by_side(reporter: Callable[..., Reporter]) -> None:
    aggregator = Aggregator([4, 5])
    aggregator.take(4, reported(reporter(), COMMITTED, COMMITTED))
    aggregator.take(5, reported(reporter(), COMMITTED))
    assert shown(aggregator, "eos_records_in_total") == {"4": 20, "5": 10}
    assert shown(aggregator, "eos_worker_restarts_total") == {"4": 0, "5": 0}
    assert shown(aggregator, "eos_transaction_seconds_count") == {"4": 2, "5": 1}


def test_counters_go_on_rising_when_a_worker_is_restarted_and_its_gauges_go(
    reporter: Callable[..., Reporter],
) -> None:
    aggregator = Aggregator([0])
    lag = Sampled(SHARD, lag=Lag({Partition("in", 0): 5}, {}))
    last = reported(reporter(), SessionOpened(SHARD, 0.1), COMMITTED, COMMITTED, lag)
    aggregator.take(0, last)
    aggregator.restarted(0)
    assert shown(aggregator, "eos_records_in_total") == {"0": 20}
    assert shown(aggregator, "eos_transaction_seconds_sum") == {"0": pytest.approx(0.2)}
    assert shown(aggregator, "eos_lag_records") == {}
    assert shown(aggregator, "eos_sessions_open") == {}
    second = reporter()
    aggregator.take(0, reported(second, COMMITTED))
    aggregator.take(0, reported(second, COMMITTED))
    assert shown(aggregator, "eos_records_in_total") == {"0": 40}
    aggregator.restarted(0)
    aggregator.take(0, reported(reporter()))
    assert shown(aggregator, "eos_records_in_total") == {"0": 40}
    assert shown(aggregator, "eos_worker_restarts_total") == {"0": 2}


def test_a_report_of_the_former_process_is_not_counted_twice(reporter: Callable[..., Reporter]) -> None:
    aggregator = Aggregator([0])
    last = reported(reporter(), COMMITTED)
    aggregator.take(0, last)
    aggregator.restarted(0)
    aggregator.take(0, last)
    assert shown(aggregator, "eos_records_in_total") == {"0": 10}


def test_a_new_process_that_was_not_announced_is_noticed(reporter: Callable[..., Reporter]) -> None:
    aggregator = Aggregator([0])
    aggregator.take(0, reported(reporter(), COMMITTED))
    aggregator.take(0, reported(reporter(), COMMITTED))
    assert shown(aggregator, "eos_records_in_total") == {"0": 20}


def test_health_and_readiness_of_workers(reporter: Callable[..., Reporter], clock: Clock) -> None:
    aggregator = Aggregator([0, 1], max_silence_s=60, clock=clock)
    first, second = reporter(), reporter()
    aggregator.take(0, reported(first, SessionOpened("a", 0.1)))
    aggregator.take(1, reported(second))
    assert aggregator.healthy().ok
    assert aggregator.ready().missing == ("worker 1: 0 of 1 sessions open",)
    aggregator.take(1, reported(second, SessionOpened("b", 0.1)))
    assert aggregator.ready().ok
    clock.now += 50
    aggregator.take(1, reported(second, Sampled("b")))
    clock.now += 20
    aggregator.take(0, reported(first))  # the process reports, but its loop does not turn
    assert aggregator.healthy().missing == ("worker 0: no turn of its loop for 70 s (limit 60 s)",)
    assert aggregator.ready().missing == ("worker 1: it has not reported for 20 s",)
    aggregator.take(1, reported(second))
    assert aggregator.ready().ok
    aggregator.take(0, reported(first, Sampled("a")))
    assert aggregator.healthy().ok


def test_one_stuck_shard_among_turning_ones_is_unhealthy(
    reporter: Callable[..., Reporter], clock: Clock
) -> None:
    aggregator = Aggregator([0], max_silence_s=60, clock=clock)
    worker = reporter()
    worker(Sampled("a"))
    for _ in range(8):
        clock.now += 10
        aggregator.take(0, reported(worker, Sampled("b")))
    assert not aggregator.healthy().ok
    aggregator.take(0, reported(worker, SessionClosed("a")))
    assert aggregator.healthy().ok


def test_a_shard_that_is_still_opening_is_not_ready_yet(reporter: Callable[..., Reporter]) -> None:
    aggregator = Aggregator([0])
    worker = reporter()
    aggregator.take(0, reported(worker, SessionOpened("a", 0.1), CallRetried("b", "init", 1, "loading")))
    assert aggregator.ready().missing == ("worker 0: 1 of 2 sessions open",)
    aggregator.take(0, reported(worker, SessionOpened("b", 0.1)))
    assert aggregator.ready().ok
    aggregator.take(0, reported(reporter(expected_sessions=4), SessionOpened("a", 0.1)))
    assert aggregator.ready().missing == ("worker 0: 1 of 4 sessions open",)


def test_ready_and_healthy_by_the_shards_that_the_worker_owns(
    reporter: Callable[..., Reporter], clock: Clock
) -> None:
    """A session that was closed while its shard is still owned, or that never opened, is missed; a loop that is done is not."""
    aggregator = Aggregator([0], max_silence_s=60, clock=clock)
    worker = reporter(expected_sessions=4)
    aggregator.take(0, reported(worker, ShardsOwned("j.g.", ("a", "b"))))
    assert aggregator.ready().missing == ("worker 0: 0 of 2 sessions open",)
    aggregator.take(0, reported(worker, SessionOpened("a", 0.1), SessionOpened("b", 0.1)))
    assert aggregator.ready().ok
    clock.now += 50
    aggregator.take(0, reported(worker, SessionClosed("b"), Sampled("a")))
    assert aggregator.ready().missing == ("worker 0: 1 of 2 sessions open",)
    clock.now += 61
    aggregator.take(0, reported(worker, Sampled("a")))
    assert aggregator.healthy().missing == ("worker 0: no turn of its loop for 61 s (limit 60 s)",)
    aggregator.take(0, reported(worker, ShardsOwned("j.g.", ("a",))))
    assert aggregator.healthy().ok
    assert aggregator.ready().ok


def test_worker_that_owns_no_shard_is_ready_and_healthy_while_it_says_so(
    reporter: Callable[..., Reporter], clock: Clock
) -> None:
    aggregator = Aggregator([0], max_silence_s=60, clock=clock)
    worker = reporter()
    aggregator.take(0, reported(worker, ShardsOwned("j.g.", ())))
    assert aggregator.ready().ok
    assert aggregator.healthy().ok
    clock.now += 50
    reported(worker, ShardsOwned("j.g.", ()))
    clock.now += 50
    aggregator.take(0, reported(worker))
    assert aggregator.healthy().ok
    clock.now += 11
    aggregator.take(0, reported(worker))
    assert not aggregator.healthy().ok


def test_a_worker_that_has_done_its_work_keeps_its_counts_and_is_not_missed(
    reporter: Callable[..., Reporter], clock: Clock
) -> None:
    aggregator = Aggregator([0], max_silence_s=60, clock=clock)
    worker = reporter()
    reported(worker, SessionOpened(SHARD, 0.1), COMMITTED, SessionClosed(SHARD))
    aggregator.take(0, packed(worker.report(ended=True)))
    aggregator.done(0)
    clock.now += 1000
    assert aggregator.healthy().ok
    assert aggregator.ready().ok
    assert shown(aggregator, "eos_records_in_total") == {"0": 10}
    assert shown(aggregator, "eos_sessions_open") == {}


def test_a_worker_that_ended_in_order_before_its_work_was_done_is_missed(
    reporter: Callable[..., Reporter], clock: Clock
) -> None:
    """Its own last report does not say that nothing is expected of its ordinal any more; the parent does."""
    aggregator = Aggregator([0], max_silence_s=60, clock=clock)
    worker = reporter()
    reported(worker, SessionOpened(SHARD, 0.1), SessionClosed(SHARD))
    aggregator.take(0, packed(worker.report(ended=True)))
    clock.now += 61
    assert not aggregator.healthy().ok
    aggregator.restarted(0)
    assert aggregator.healthy().ok
    assert aggregator.ready().missing == ("worker 0: 0 of 1 sessions open",)
    clock.now += 61
    assert not aggregator.healthy().ok


def test_a_report_that_is_none_is_refused() -> None:
    import pickle
    import zlib

    with pytest.raises(TypeError, match="not a worker"):
        Aggregator([0]).take(0, zlib.compress(pickle.dumps("hello")))


def test_a_report_of_many_shards_fits_into_a_pipe(reporter: Callable[..., Reporter]) -> None:
    """Written whole, so that a worker stopped by SIGSTOP cannot hold up the parent in the middle of one."""
    worker = reporter()
    for number in range(500):
        shard = f"refunds.refunds.p.settlements.{number}"
        worker(SessionOpened(shard, 0.1))
        offsets = OffsetVector({Partition("settlements", number): 977 * number})
        worker(TransactionCommitted(shard, number, 7 * number, offsets, 0.001 * number, 0.02))
        worker(Sampled(shard))
        worker(Sampled(shard, lag=Lag({Partition("settlements", number): 31 * number}, {})))
    assert len(packed(worker.report())) < 64 * 1024


# --- the pipe ----------------------------------------------------------------------------------------


def test_a_parent_that_does_not_read_never_blocks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eos.ops.observe.reporter._CLOSE_WAIT_S", 0.1)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with receiver:
        reporter = Reporter(sender, 0, interval_s=0.0001)
        deadline = time.monotonic() + 0.5
        slowest = 0.0
        while time.monotonic() < deadline:
            began = time.monotonic()
            reporter(COMMITTED)
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.001)
        assert slowest < 0.25
        began = time.monotonic()
        reporter.close()
        assert time.monotonic() - began < 5
    reporter._thread.join(5)  # the pipe is gone now, and the thread with it
    assert not reporter._thread.is_alive()


def test_the_last_report_says_all_and_that_it_is_the_last() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    aggregator = Aggregator([0])
    reporter = Reporter(sender, 0, interval_s=NEVER_S)
    reporter(COMMITTED)
    reporter.close()
    reporter.close()
    aggregator.take(0, receiver.recv())
    assert shown(aggregator, "eos_records_in_total") == {"0": 10}
    with pytest.raises(EOFError):
        receiver.recv()


def _worker(sender: Connection, commits: int, *, stay: bool) -> None:
    reporter = Reporter(sender, 0, interval_s=0.05)
    reporter(SessionOpened(SHARD, 0.1))
    for _ in range(commits):
        reporter(COMMITTED)
    if stay:
        time.sleep(60)
    # The exit closes the reporter.


def test_a_killed_process_and_its_replacement_are_one_rising_count() -> None:
    context = multiprocessing.get_context("spawn")
    aggregator = Aggregator([0])

    def start(commits: int, *, stay: bool) -> tuple[Any, Connection]:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(sender, commits), kwargs={"stay": stay})
        process.start()
        sender.close()
        return process, receiver

    def read_until(receiver: Connection, count: float) -> None:
        deadline = Deadline(30)
        while shown(aggregator, "eos_records_in_total").get("0") != count:
            assert receiver.poll(deadline.left_s)
            aggregator.take(0, receiver.recv())

    process, receiver = start(3, stay=True)
    with receiver:
        read_until(receiver, 30)
        assert aggregator.ready().ok
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
    aggregator.restarted(0)
    assert not aggregator.ready().ok
    process, receiver = start(2, stay=False)
    with receiver:
        read_until(receiver, 50)
        process.join(10)
    assert process.exitcode == 0
    assert shown(aggregator, "eos_worker_restarts_total") == {"0": 1}


# --- HTTP --------------------------------------------------------------------------------------------


@pytest.fixture
def aggregator(clock: Clock) -> Aggregator:
    return Aggregator([0], max_silence_s=60, clock=clock)


@pytest.fixture
def server(aggregator: Aggregator, request: pytest.FixtureRequest) -> Iterator[Server]:
    """With the parameter as the deadline of a request, where there is one."""
    running = serve(
        aggregator, ObserveSettings(http_port=0), request_timeout_s=getattr(request, "param", 10.0)
    )
    assert running is not None
    with running:
        yield running


impatient = pytest.mark.parametrize("server", [0.3], indirect=True)


def get(url: str, method: str = "GET", accept: str = "") -> tuple[int, str, str]:
    request = urllib.request.Request(url, method=method, headers={"Accept": accept})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_are_served_in_both_text_formats(
    server: Server, aggregator: Aggregator, reporter: Callable[..., Reporter]
) -> None:
    aggregator.take(
        0, reported(reporter(), SessionOpened(SHARD, 0.1), COMMITTED, CallRetried(SHARD, "init", 1, "x"))
    )
    status, content_type, body = get(f"{server.url}/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    plain = {f.name: f for f in text_string_to_metric_families(body)}
    assert plain["eos_transactions"].samples[0].labels.keys() == {"worker", "shard", "outcome"}
    assert plain["eos_transaction_seconds"].type == "histogram"
    status, content_type, body = get(f"{server.url}/metrics", accept="application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    families = openmetrics_families(body)  # type: ignore[no-untyped-call]  # the package left it out there
    assert {f.name for f in families} == set(plain)


def test_healthz_and_readyz_say_what_is_missing(
    server: Server, aggregator: Aggregator, reporter: Callable[..., Reporter], clock: Clock
) -> None:
    worker = reporter()
    assert get(f"{server.url}/healthz") == (200, "application/json", '{"ok": true}\n')
    status, _, body = get(f"{server.url}/readyz")
    assert (status, json.loads(body)["missing"]) == (503, ["worker 0: 0 of 1 sessions open"])
    aggregator.take(0, reported(worker, SessionOpened(SHARD, 0.1)))
    assert get(f"{server.url}/readyz?verbose=1")[0] == 200
    clock.now += 61
    status, _, body = get(f"{server.url}/healthz")
    assert (status, body.count("\n")) == (503, 1)
    assert json.loads(body) == {
        "ok": False,
        "missing": ["worker 0: no turn of its loop for 61 s (limit 60 s)"],
    }
    aggregator.take(0, reported(worker, CallRetried(SHARD, "consume", 1, "all brokers down")))
    assert get(f"{server.url}/healthz")[0] == 200


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in(server: Server) -> None:
    with urllib.request.urlopen(server.url, timeout=10) as answer:  # noqa: S310 - loopback
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.read().startswith(b"<!doctype html>")


def test_the_status_is_json_with_what_the_workers_reported(
    server: Server, aggregator: Aggregator, reporter: Callable[..., Reporter]
) -> None:
    aggregator.take(
        0, reported(reporter(), SessionOpened(SHARD, 0.1), COMMITTED, CallRetried(SHARD, "init", 1, "x"))
    )
    status, content_type, body = get(f"{server.url}/status.json")
    assert (status, content_type) == (200, "application/json")
    shown = json.loads(body)
    assert shown["version"] == 1
    assert shown["healthy"] == {"ok": True, "missing": []}
    assert [(one["state"], one["pid"]) for one in shown["workers"]] == [("running", os.getpid())]
    assert [one["kind"] for one in shown["events"]] == ["init retried", "session opened"]


def test_other_paths_and_methods(server: Server) -> None:
    status, _, body = get(f"{server.url}/nothing")
    assert (status, json.loads(body)["paths"][:2]) == (404, ["/", "/status.json"])
    assert get(f"{server.url}/metricsx")[0] == 404
    assert get(f"{server.url}/healthz", method="POST")[0] == 501
    assert get(f"{server.url}/healthz", method="HEAD") == (200, "application/json", "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "[", ""]
)
def test_a_page_elsewhere_that_names_this_address_as_its_own_is_not_answered(
    server: Server, host: str
) -> None:
    for path in ("/", "/status.json", "/metrics"):
        assert _answered(server, path, host) == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9464", "127.0.0.1:1", "[::1]:9464", "job.localhost", "localhost."]
)
def test_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert _answered(server, "/status.json", host) == 200


def test_where_others_can_connect_any_name_is_answered(aggregator: Aggregator) -> None:
    running = serve(aggregator, ObserveSettings(http_host="0.0.0.0", http_port=0))  # noqa: S104 - the case
    assert running is not None
    with running:
        assert _answered(running, "/healthz", "refunds-0.refunds.svc:9464") == 200


def _answered(server: Server, path: str, host: str) -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    with closing(connection):
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status


def _of_clients() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == CLIENT_THREAD]


def test_hundreds_of_clients_that_do_not_go_on_hold_up_no_probe_and_have_a_bounded_number_of_threads(
    server: Server,
) -> None:
    """Each had a thread and a timer, which ended some time after it was hung up on: 317 of 300 clients."""
    before = set(threading.enumerate())
    most = 0
    with ExitStack() as clients:
        for _ in range(300):
            client = clients.enter_context(
                socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
            )
            client.sendall(b"GET / HT")
            most = max(most, len(_of_clients()))
        assert get(f"{server.url}/healthz")[0] == 200
        timers = [
            one for one in threading.enumerate() if isinstance(one, threading.Timer) and one not in before
        ]
    assert 0 < most <= 64
    assert not timers


@impatient
@pytest.mark.parametrize("beginning", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nX: "])
def test_a_client_that_hangs_is_ended(server: Server, beginning: bytes) -> None:
    with socket.create_connection((server.host, server.port), timeout=10) as client:
        client.sendall(beginning)
        began = time.monotonic()
        assert get(f"{server.url}/healthz")[0] == 200  # others are served meanwhile
        while client.recv(1000):
            pass
        assert time.monotonic() - began < 5


@impatient
def test_a_client_that_drips_is_ended(server: Server) -> None:
    """Each byte would start a timeout of a single read anew."""

    def drip() -> None:
        while time.monotonic() - began < 10:
            client.sendall(b"x")
            time.sleep(0.05)

    with socket.create_connection((server.host, server.port), timeout=10) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            drip()
        assert time.monotonic() - began < 5


def test_stopping_frees_the_port_and_ends_the_threads(aggregator: Aggregator) -> None:
    first = serve(aggregator, ObserveSettings(http_port=0))
    assert first is not None
    assert get(f"{first.url}/healthz")[0] == 200
    with socket.create_connection((first.host, first.port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HT")
        assert Deadline(PATIENCE_S).wait_for(lambda: bool(_of_clients()))
        first.stop()
        first.stop()
        with contextlib.suppress(ConnectionResetError):  # what it had not read yet is thrown away
            assert client.recv(1) == b"", "hung up"
    assert Deadline(PATIENCE_S).wait_for(lambda: not _of_clients())
    second = serve(aggregator, ObserveSettings(http_port=first.port))
    assert second is not None
    second.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "eos-http"]


def test_no_port_is_no_server(aggregator: Aggregator) -> None:
    assert serve(aggregator, ObserveSettings()) is None


def test_an_occupied_port_is_a_configuration_error(server: Server, aggregator: Aggregator) -> None:
    with pytest.raises(ConfigError, match=rf"observe\.http_port: port {server.port} on .* is in use\. Fix: "):
        serve(aggregator, ObserveSettings(http_port=server.port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_a_configuration_error(aggregator: Aggregator, host: str) -> None:
    with pytest.raises(ConfigError, match=r"observe\.http_host: cannot listen"):
        serve(aggregator, ObserveSettings(http_host=host, http_port=0))


def test_a_server_on_ipv6(aggregator: Aggregator) -> None:
    try:
        server = serve(aggregator, ObserveSettings(http_host="::1", http_port=0))
    except ConfigError:
        pytest.skip("no IPv6 here")
    assert server is not None
    with server:
        assert get(f"{server.url}/healthz")[0] == 200


def test_a_failure_inside_an_answer_is_logged_and_the_next_one_is_served(
    server: Server,
    aggregator: Aggregator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(aggregator, "collect", lambda: 1 / 0)
        with pytest.raises(OSError, match=r"closed|reset"):
            get(f"{server.url}/metrics")
    assert get(f"{server.url}/metrics")[0] == 200
    assert "ZeroDivisionError" in "".join(capsys.readouterr())


def test_the_page_leaves_creation_times_out(reporter: Callable[..., Reporter]) -> None:
    """When a series was created says nothing once workers are restarted and added up."""
    aggregator = Aggregator([0])
    aggregator.take(0, reported(reporter(), COMMITTED))
    page = generate_latest(aggregator.registry).decode()
    assert "eos_records_in_total" in page
    assert "_created" not in page
