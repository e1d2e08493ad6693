"""The proxy does to requests what its rules say, seen from both ends: a fake broker and a raw client."""

from __future__ import annotations

import gc
import socket
import socketserver
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Self

import pytest

from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import Edge, HoldProxy, Outcome, ends_with
from tests.support.patience import PATIENCE_S

SHORT_S = 0.2


class FakeBroker(socketserver.ThreadingTCPServer):
    """Answers every request with its correlation id and "done"; remembers what it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.got: list[int] = []
        self.changed = threading.Condition()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), int(port)

    def take(self, correlation_id: int) -> None:
        with self.changed:
            self.got.append(correlation_id)
            self.changed.notify_all()

    def wait_got(self, correlation_ids: list[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.got == correlation_ids, PATIENCE_S), self.got


class _Answer(socketserver.BaseRequestHandler):
    server: FakeBroker

    def handle(self) -> None:
        while (payload := receive(self.request)) is not None:
            frame = Frame.parse(payload)
            self.server.take(frame.correlation_id)
            send(self.request, struct.pack(">i", frame.correlation_id) + b"done")


def send(connected: socket.socket, payload: bytes) -> None:
    connected.sendall(struct.pack(">i", len(payload)) + payload)


def receive(connected: socket.socket) -> bytes | None:
    """The next frame; None at the end of the stream or a reset. Raises TimeoutError."""
    try:
        length = _exactly(connected, 4)
        return _exactly(connected, struct.unpack(">i", length)[0]) if length else None
    except ConnectionError:
        return None


def _exactly(connected: socket.socket, count: int) -> bytes:
    """So many bytes, or none at the end of the stream."""
    got = b""
    while len(got) < count:
        more = connected.recv(count - len(got))
        if not more:
            return b""
        got += more
    return got


class Client:
    """A raw client with one connection."""

    def __init__(self, proxy: HoldProxy, client_id: str = "client") -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)
        self._id = client_id.encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def end(self, correlation_id: int, *, committed: bool = False) -> None:
        body = struct.pack(">h", 2) + b"id" + struct.pack(">qh?", 1, 0, committed)
        self._send(ApiKey.END_TXN, correlation_id, body)

    def heartbeat(self, correlation_id: int) -> None:
        self._send(ApiKey.HEARTBEAT, correlation_id, b"")

    def _send(self, api_key: ApiKey, correlation_id: int, body: bytes) -> None:
        head = struct.pack(">hhih", api_key, 1, correlation_id, len(self._id)) + self._id
        send(self._socket, head + body)

    def answer(self, timeout_s: float = PATIENCE_S) -> int | None:
        """The correlation id of the next answer; None if the connection was reset. Raises TimeoutError."""
        self._socket.settimeout(timeout_s)
        payload = receive(self._socket)
        if payload is None:
            return None
        assert payload[4:] == b"done"
        return int(struct.unpack_from(">i", payload)[0])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join(PATIENCE_S)


@pytest.fixture
def proxy(broker: FakeBroker) -> Iterator[HoldProxy]:
    with HoldProxy(0, broker.address) as running:
        yield running


def test_without_rules_everything_passes_and_is_logged(proxy: HoldProxy, broker: FakeBroker) -> None:
    with Client(proxy) as client:
        client.heartbeat(1)
        client.end(2)
        assert [client.answer(), client.answer()] == [1, 2]
    assert [(s.api_key, s.client_id, s.transactional_id, s.outcome) for s in proxy.frames] == [
        (ApiKey.HEARTBEAT, "client", None, Outcome.FORWARDED),
        (ApiKey.END_TXN, "client", "id", Outcome.FORWARDED),
    ]


def test_held_request_arrives_late_though_the_client_has_gone_and_sent_it_again(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    hold = proxy.hold(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        assert hold.wait_held(PATIENCE_S).correlation_id == 1
        with pytest.raises(TimeoutError):
            client.answer(SHORT_S)
    with Client(proxy) as again:
        again.end(2)
        assert again.answer() == 2
        with pytest.raises(TimeoutError):
            hold.wait_answer(SHORT_S)
        hold.release()
        assert hold.wait_answer(PATIENCE_S) == struct.pack(">i", 1) + b"done"
    assert broker.got == [2, 1]
    assert [seen.outcome for seen in proxy.requests(ApiKey.END_TXN)] == [Outcome.HELD, Outcome.FORWARDED]


def test_request_held_while_the_client_waits_is_answered_to_it(proxy: HoldProxy) -> None:
    hold = proxy.hold(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        hold.wait_held(PATIENCE_S)
        hold.release()
        assert client.answer() == 1


def test_requests_behind_a_held_one_wait_behind_it(proxy: HoldProxy, broker: FakeBroker) -> None:
    hold = proxy.hold(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        client.heartbeat(2)
        hold.wait_held(PATIENCE_S)
        time.sleep(SHORT_S)
        assert broker.got == []
        hold.release()
        assert [client.answer(), client.answer()] == [1, 2]


def test_hold_can_reset_the_client_at_once(proxy: HoldProxy, broker: FakeBroker) -> None:
    hold = proxy.hold(ApiKey.END_TXN, reset_client=True)
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() is None
    assert broker.got == []
    hold.release()
    hold.wait_answer(PATIENCE_S)
    assert broker.got == [1]


def test_several_holds_are_released_in_any_order(proxy: HoldProxy, broker: FakeBroker) -> None:
    holds = [proxy.hold(ApiKey.END_TXN, reset_client=True) for _ in range(2)]
    for number in (1, 2):
        with Client(proxy) as client:
            client.end(number)
            assert client.answer() is None
    for hold in reversed(holds):
        hold.release()
        hold.wait_answer(PATIENCE_S)
    assert broker.got == [2, 1]


def test_rule_takes_the_nth_request_that_matches(proxy: HoldProxy, broker: FakeBroker) -> None:
    hold = proxy.hold(ApiKey.END_TXN, nth=2, client_id="mine", where=ends_with(committed=True))
    with Client(proxy, "other") as other, Client(proxy, "mine") as mine:
        other.end(1, committed=True)
        assert other.answer() == 1
        for number, committed in ((2, True), (3, False)):
            mine.end(number, committed=committed)
            assert mine.answer() == number
        mine.end(4, committed=True)
        assert hold.wait_held(PATIENCE_S).correlation_id == 4


def test_nothing_to_hold_is_a_timeout(proxy: HoldProxy) -> None:
    with pytest.raises(TimeoutError, match="no request to hold came"):
        proxy.hold(ApiKey.END_TXN).wait_held(SHORT_S)


def test_duplicate_reaches_the_broker_twice_and_the_client_once(proxy: HoldProxy, broker: FakeBroker) -> None:
    proxy.duplicate(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() == 1
        client.heartbeat(2)
        assert client.answer() == 2
    assert broker.got == [1, 1, 2]


def test_copy_reaches_the_broker_when_it_is_released_and_the_client_knows_nothing(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    copy = proxy.copy(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() == 1
        client.end(2)
        assert client.answer() == 2
        copy.wait_held(PATIENCE_S)
        copy.release()
        assert struct.unpack_from(">i", copy.wait_answer(PATIENCE_S)) == (1,)
        client.end(3)
        assert client.answer() == 3
    assert broker.got == [1, 2, 1, 3]


def test_copy_with_a_reset_lets_the_client_know_that_it_has_to_send_again(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    copy = proxy.copy(ApiKey.END_TXN, reset_client=True)
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() is None
    with Client(proxy) as client:
        client.end(2)
        assert client.answer() == 2
    copy.release()
    copy.wait_answer(PATIENCE_S)
    assert broker.got == [1, 2, 1]


def test_stop_ends_copies_that_were_never_released(broker: FakeBroker) -> None:
    with HoldProxy(0, broker.address) as proxy, Client(proxy) as client:
        copy = proxy.copy(ApiKey.END_TXN)
        client.end(1)
        assert client.answer() == 1
        copy.wait_held(PATIENCE_S)
    assert broker.got == [1]


def test_refused_request_is_answered_and_never_reaches_the_broker(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    told: list[int] = []
    proxy.refuse(ApiKey.END_TXN, 51, then=lambda frame: told.append(frame.correlation_id))
    with Client(proxy) as client:
        client.end(1)
        assert struct.unpack(">iih", receive(client._socket) or b"") == (1, 0, 51)
        client.end(2)
        assert client.answer() == 2
    assert (told, broker.got) == ([1], [2])
    assert [seen.outcome for seen in proxy.frames] == [Outcome.REFUSED, Outcome.FORWARDED]


def test_dropped_reply_leaves_the_connection_open(proxy: HoldProxy, broker: FakeBroker) -> None:
    proxy.drop_reply(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        client.heartbeat(2)
        assert client.answer() == 2
    assert broker.got == [1, 2]


def test_swallowed_request_never_reaches_the_broker_and_its_client_waits(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    proxy.swallow(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        client.end(2)
        assert client.answer() == 2
    assert broker.got == [2]


def test_cut_before_keeps_the_request_from_the_broker(proxy: HoldProxy, broker: FakeBroker) -> None:
    called: list[int] = []
    proxy.cut(ApiKey.END_TXN, Edge.REQUEST, then=lambda frame: called.append(frame.correlation_id))
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() is None
    assert called == [1]
    with Client(proxy) as client:  # only the one
        client.end(2)
        assert client.answer() == 2
    assert broker.got == [2]


def test_cut_after_happens_when_the_broker_has_done_it(proxy: HoldProxy, broker: FakeBroker) -> None:
    known_then: list[list[int]] = []
    proxy.cut(ApiKey.END_TXN, Edge.REPLY, times=2, then=lambda _: known_then.append(list(broker.got)))
    for number in (1, 2):
        with Client(proxy) as client:
            client.end(number)
            assert client.answer() is None
    assert known_then == [[1], [1, 2]]


def test_request_of_a_client_that_leaves_at_once_still_takes_effect(
    proxy: HoldProxy, broker: FakeBroker
) -> None:
    with Client(proxy) as client:
        client.end(1)
    broker.wait_got([1])


def test_observers_see_both_edges(proxy: HoldProxy) -> None:
    seen: list[tuple[int, Edge]] = []
    proxy.on_frame(lambda frame, edge: seen.append((frame.correlation_id, edge)))
    with Client(proxy) as client:
        client.end(1)
        client.answer()
    assert seen == [(1, Edge.REQUEST), (1, Edge.REPLY)]


def test_cleared_rules_act_no_more(proxy: HoldProxy) -> None:
    proxy.cut(ApiKey.END_TXN, Edge.REQUEST)
    proxy.clear_rules()
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() == 1


def test_failing_hook_fails_the_stop_not_the_client(broker: FakeBroker) -> None:
    proxy = HoldProxy(0, broker.address)
    proxy.on_frame(lambda *_: 1 / 0)
    with Client(proxy) as client:
        client.end(1)
        assert client.answer() == 1
    with pytest.raises(ExceptionGroup, match="hooks of the proxy failed"):
        proxy.stop()


def test_broker_that_is_down_closes_the_client(proxy: HoldProxy, broker: FakeBroker) -> None:
    broker.server_close()
    with Client(proxy) as client:
        assert client.answer() is None


def test_stop_ends_connections_with_held_requests_and_frees_the_port(broker: FakeBroker) -> None:
    proxy = HoldProxy(0, broker.address)
    hold = proxy.hold(ApiKey.END_TXN)
    with Client(proxy) as client:
        client.end(1)
        hold.wait_held(PATIENCE_S)
        proxy.stop()
        assert client.answer() is None
    assert broker.got == []
    with HoldProxy(proxy.port, broker.address) as successor, Client(successor) as client:
        client.end(2)
        assert client.answer() == 2


def test_stop_ends_connections_that_are_accepted_at_that_very_moment(broker: FakeBroker) -> None:
    """One that is left to the garbage collector warns in whatever runs then."""
    gc.collect()  # of other tests
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(50):
            with HoldProxy(0, broker.address) as proxy:
                clients = [socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) for _ in range(5)]
            for client in clients:
                client.close()
        gc.collect()
    assert [str(one.message) for one in warned] == []


def test_taken_port_is_an_error(proxy: HoldProxy, broker: FakeBroker) -> None:
    with pytest.raises(OSError, match="in use"):
        HoldProxy(proxy.port, broker.address)
