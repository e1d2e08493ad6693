"""The connection of an admin client: its life, the wait for its answers, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.base.threads import beside, made_beside
from eos.errors import ConfigError, EosError, RetriableError
from eos.home import holds_client, keep_for_ever
from eos.kafka.access import Access
from eos.kafka.classify import classify_consumer, refused_connection, refused_options
from eos.kafka.config import QUICKLY
from eos.kafka.idle import IDLE_CLIENTS

T = TypeVar("T")

# Seconds that a future may take beyond its request's own timeout, which it then reports itself.
_GRACE_S = 1.0
# The last is the answer to what another thread had asked a client that was replaced meanwhile.
_NO_ANSWER = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._DESTROY,
}
# Seconds that a new client has to connect, before it is replaced as well.
_PATIENCE_S = 2.0
# Seconds that a question waits for a first connection, to whichever broker is asked for it: its own may be another one.
_CONNECT_S = 0.5
_MAX_EVENTS = 100  # that may wait until an answer is missing
# The clients of dropped admins, until the next one is made. Python's collector may run in the thread in which librdkafka hands
# over answers, and a client that is destroyed in its own one ends the process (rd_kafka_destroy_app asserts; 3 of 3 with 2.16).
# Nor in a thread that asks: its destructor waits for librdkafka's threads, one of which may look up a name for half a minute; and
# in the main thread it looks at signals, and leaves what a handler raises to the next call, as a SystemError. Each is the only
# entry of a list, which is emptied in the thread that closes it, whoever else still has the list.
_dropped: deque[list[AdminClient]] = deque()


def _keep_dropped() -> None:
    for client in (client for dropped in _dropped for client in dropped):
        keep_for_ever(client)


os.register_at_fork(after_in_child=_keep_dropped)
_OTHER_LEADER = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,  # no leader at the moment it asked for the topic
        KafkaError._UNKNOWN_PARTITION,  # added since it asked for the topic
    }
)


class AdminConnection:
    """One admin client of librdkafka.

    Args:
        config: librdkafka's options.

    Attributes:
        client: asks the next question.
        last_about: by group, the last question that this client was asked about it. A client that was replaced may never answer.

    Raises:
        ConfigError: librdkafka refuses an option.
    """

    last_about: dict[str, Future[Any]]

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._event: KafkaError | None = None
        self._refused: ConfigError | None = None
        self._access = Access(config)
        self._events: deque[KafkaError] = deque(maxlen=_MAX_EVENTS)
        # What goes wrong is raised; the lines that librdkafka would write beside it add nothing. No method of this object as a
        # callback: the two would keep each other, and only the collector would free them.
        self._options: dict[str, Any] = {"log_level": 0, **QUICKLY, **config, "error_cb": self._events.append}
        self._replacing = threading.Lock()
        self.client = self._new_client()
        holds_client(self, "client")
        IDLE_CLIENTS.add(self)

    def serve_idle(self) -> None:
        """Serve what went wrong while nothing was asked: its callback is C's, so that any thread may."""
        self.client.poll(0)

    def _new_client(self) -> AdminClient:
        _close_dropped()
        self._patience = Deadline(_PATIENCE_S)
        self._is_connected = False
        self.last_about = {}
        try:
            return made_beside(lambda: AdminClient(self._options))
        except KafkaException as error:
            raise refused_options("client", error) from error

    def _replace(self) -> None:
        """Another client asks the next question.

        One that was told metadata without any broker (one broker says so while it is fenced, after a pause of 9 s) forgets all
        of them and asks none again (librdkafka issue 5301; tests/broker/test_answers_that_lack.py). Another goes on asking a
        broker that does not answer, because it took it for the controller.
        """
        with self._replacing:
            if self._patience.passed:
                client = self._new_client()
                replaced, self.client = [self.client], client
                _dropped.append(replaced)
                _close_dropped()

    def __del__(self) -> None:
        if "client" in self.__dict__:
            _dropped.append([self.__dict__.pop("client")])

    def connect(self, topics: Iterable[str]) -> None:
        """Give a new client half a second to connect, before a question that would find no connection and wait longer.

        A question about topics' leaders is one: it is asked again every second (librdkafka issue 2869). Of 100 clients that were
        asked for offsets at once, 6 to 25 answered after 1 to 3 s, and all in 20 ms behind this (measured with 2.16).

        Nothing is raised: what is wrong is the answer to the question, too. These topics are asked about, and not the cluster:
        where a broker names no broker, librdkafka ends the process by an assertion at the latter (tests/canaries).
        """
        if not self._is_connected:
            with contextlib.suppress(KafkaException):
                asked = self.client.describe_topics(
                    TopicCollection(sorted(topics)), request_timeout=_CONNECT_S
                )
                answered, _ = wait(asked.values(), _CONNECT_S)
                self._is_connected = any(future.exception() is None for future in answered)

    def answers(
        self,
        futures: Mapping[T, Future[Any]],
        timeout_s: float,
        *,
        absent: Iterable[int],
        topic: Callable[[T], str] = lambda _: "",
    ) -> dict[T, Any]:
        """Per key its answer, or None where the error is one of ``absent``. ``topic`` (of a key) is for an error's text."""
        deadline = Deadline(timeout_s + _GRACE_S)
        found: dict[T, Any] = {}
        for key, future in futures.items():
            with self.classified(topic(key)):
                try:
                    found[key] = future.result(deadline.left_s)
                except KafkaException as error:
                    self._renew_leaders(topic(key), error)
                    if error.args[0].code() not in absent:
                        raise
                    found[key] = None
                except (
                    RuntimeError
                ) as error:  # the client's, for an answer that leaves out what was asked for
                    raise RetriableError(f"{Call.METADATA}: {error}") from error
        self._is_connected = self._is_connected or bool(found)
        self.answered()
        return found

    def learn(self, topic: str, error: BaseException) -> None:
        """What to do about the error of an answer that nobody waits for: the next question is to have one."""
        if isinstance(error, KafkaException) and error.args[0].code() in _NO_ANSWER:
            self._explained(error.args[0])
        self._renew_leaders(topic, error)

    def _renew_leaders(self, topic: str, error: BaseException) -> None:
        """So that the next question goes to the leader of now, with its epoch.

        librdkafka keeps what it knows of a leader that refuses a question for offsets, and asks for ever with the old epoch
        (measured with 2.16, tests/faults/test_broker_outage.py), or not at all (tests/broker/test_answers_that_lack.py).
        Asking about the topic renews it.
        """
        if topic and isinstance(error, KafkaException) and (code := error.args[0].code()) in _OTHER_LEADER:
            if code == KafkaError._NOENT:  # a client that was told of no broker says so for ever
                self._replace()
            with contextlib.suppress(KafkaException):
                self.client.describe_topics(TopicCollection([topic]), request_timeout=_GRACE_S)

    def answered(self) -> None:
        """What was refused before is not any more."""
        self._event = self._refused = None
        self._access.answered()

    @contextlib.contextmanager
    def classified(self, topic: str = "", group: str = "") -> Iterator[None]:
        """Raise librdkafka's errors, and that no answer came, as those of eos. What was asked about is for the text.

        Raises:
            RetriableError: no answer in time.
            ConfigError: access was refused.
        """
        try:
            yield
        except KafkaException as error:
            topics = [topic] if topic else []
            explained = self._explained(error.args[0])
            raise self._access.named(explained, Call.METADATA, topics=topics, group=group) from error
        except TimeoutError as error:
            raise self._explained(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from error

    def _explained(self, error: KafkaError) -> EosError:
        if error.code() not in _NO_ANSWER:
            return classify_consumer(Call.METADATA, error)
        self.client.poll(0)  # serves error_cb, which an admin client's own calls do not
        while self._events:
            self._on_error(self._events.popleft())
        if refused := self._access.awaited_token() or self._refused:
            return refused
        self._replace()
        event = self._event or error
        return RetriableError(f"{Call.METADATA}: {error.name()}: {event.str()}", code=error.name())

    def _on_error(self, error: KafkaError) -> None:
        # That all brokers are down comes after the reason.
        if self._event is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._event = error
        self._refused = self._refused or refused_connection(Call.METADATA, error)


def _close_dropped() -> None:
    if _dropped:
        beside(_empty_dropped, name="eos-admin-close")


def _empty_dropped() -> None:
    with contextlib.suppress(IndexError):  # another thread was quicker
        while _dropped:
            _dropped.popleft().clear()
