"""librdkafka's own mock cluster, driven through ctypes over the library that confluent_kafka's wheel bundles.

Clients connect to ``bootstrap_servers`` as to any cluster. Errors, delays and coordinator moves are
injected at the broker's side, so what is tested is the real client's reaction. The mock has no
transaction coordinator worth the name: it shows how errors are classified, not what Kafka does
(rdkafka_mock.h; it speaks EndTxn up to v1).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Self

from eos.testing.proxy.frames import ApiKey

_RD_KAFKA_PRODUCER = 0
_CONF_OK = 0
_ALL_BROKERS = -1
_LIBRARY_SUFFIXES = {".so", ".dylib", ".dll"}

# function: (result, arguments). rd_kafka_resp_err_t is a C enum, so an int.
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_err2name": (c_char_p, [c_int]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_clear_request_errors": (None, [c_void_p, c_int16]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
    # Variadic: the pairs of (error, delay) follow the four arguments that are named here.
    "rd_kafka_mock_broker_push_request_error_rtts": (c_int, [c_void_p, c_int32, c_int16, c_size_t]),
    "rd_kafka_mock_broker_error_stack_cnt": (c_int, [c_void_p, c_int32, c_int16, POINTER(c_size_t)]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_coordinator_set": (c_int, [c_void_p, c_char_p, c_char_p, c_int32]),
    "rd_kafka_mock_partition_set_leader": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    "rd_kafka_mock_set_apiversion": (c_int, [c_void_p, c_int16, c_int16, c_int16]),
    "rd_kafka_mock_start_request_tracking": (None, [c_void_p]),
    "rd_kafka_mock_clear_requests": (None, [c_void_p]),
    "rd_kafka_mock_get_requests": (POINTER(c_void_p), [c_void_p, POINTER(c_size_t)]),
    "rd_kafka_mock_request_id": (c_int32, [c_void_p]),
    "rd_kafka_mock_request_api_key": (c_int16, [c_void_p]),
    "rd_kafka_mock_request_timestamp": (c_int64, [c_void_p]),
    "rd_kafka_mock_request_destroy_array": (None, [POINTER(c_void_p), c_size_t]),
}


class MockError(Exception):
    """The mock cluster refused a call; the message has librdkafka's name of the reason."""


class MockRequest(NamedTuple):
    """One request that a mock broker got. ``at_us``: microseconds of librdkafka's clock."""

    api_key: int
    broker_id: int
    at_us: int


class MockCluster:
    """A cluster of ``brokers`` mock brokers with ids from 1 on; a context manager, running at once.

    Topics that nobody created appear when a client asks for them, with 4 partitions. Requests are tracked.
    """

    def __init__(self, brokers: int = 3) -> None:
        self._lib = _library()
        self._handle = _new_handle(self._lib)
        self._cluster: int | None = self._lib.rd_kafka_mock_cluster_new(self._handle, brokers)
        if not self._cluster:
            self._lib.rd_kafka_destroy(self._handle)
            msg = f"no mock cluster of {brokers} brokers"
            raise MockError(msg)
        self.bootstrap_servers = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._lib.rd_kafka_mock_start_request_tracking(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the brokers. Close the clients first, else they log that all brokers are down."""
        if self._cluster:
            self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
            self._lib.rd_kafka_destroy(self._handle)
            self._cluster = None

    def push_errors(self, api_key: ApiKey, *codes: int) -> None:
        """Answer the next requests of this kind with these error codes; -195 (_TRANSPORT) disconnects."""
        errors = (c_int * len(codes))(*codes)
        self._lib.rd_kafka_mock_push_request_errors_array(self._cluster, api_key, len(codes), errors)

    def clear_errors(self, api_key: ApiKey) -> None:
        """Forget the errors pushed for this kind of request and not used yet (not those of one broker)."""
        self._lib.rd_kafka_mock_clear_request_errors(self._cluster, api_key)

    def push_error_rtts(self, broker_id: int, api_key: ApiKey, *error_rtts: tuple[int, int]) -> None:
        """As ``push_errors`` at one broker, with pairs (error code or 0, delay of the answer in ms)."""
        numbers = [c_int(number) for pair in error_rtts for number in pair]
        self._do("broker_push_request_error_rtts", broker_id, api_key, len(error_rtts), *numbers)

    def errors_left(self, broker_id: int, api_key: ApiKey) -> int:
        """How many entries of ``push_error_rtts`` have not been used yet."""
        count = c_size_t()
        self._do("broker_error_stack_cnt", broker_id, api_key, ctypes.byref(count))
        return count.value

    def broker_down(self, broker_id: int = _ALL_BROKERS) -> None:
        """Disconnect the clients of the broker (of all, without an id) and refuse new connections."""
        self._do("broker_set_down", broker_id)

    def broker_up(self, broker_id: int = _ALL_BROKERS) -> None:
        """Accept connections again."""
        self._do("broker_set_up", broker_id)

    def set_rtt(self, broker_id: int, rtt_ms: int) -> None:
        """Delay every answer of the broker (-1 = of all) by so many milliseconds."""
        self._do("broker_set_rtt", broker_id, rtt_ms)

    def coordinator_set(self, key_type: str, key: str, broker_id: int) -> None:
        """Make the broker the coordinator; ``key_type`` is "transaction" or "group"."""
        self._do("coordinator_set", key_type.encode(), key.encode(), broker_id)

    def partition_set_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Move the partition's leader; -1 leaves it without one."""
        self._do("partition_set_leader", topic.encode(), partition, broker_id)

    def topic_create(self, name: str, partitions: int = 1, rf: int = 1) -> None:
        """Create a topic with ``rf`` replicas."""
        self._do("topic_create", name.encode(), partitions, rf)

    def topic_set_error(self, name: str, code: int) -> None:
        """Answer Metadata and AddPartitionsToTxn for this topic with the error code; 0 ends it."""
        self._lib.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), code)

    def set_api_versions(self, api_key: ApiKey, lowest: int, highest: int) -> None:
        """Offer these versions of an API only; -1, -1 takes it away."""
        self._do("set_apiversion", api_key, lowest, highest)

    def requests(self, api_key: ApiKey | None = None) -> list[MockRequest]:
        """The requests so far, of one kind if named, in the order in which they came."""
        count = c_size_t()
        array = self._lib.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        if not array:
            return []
        try:
            seen = [
                MockRequest(
                    api_key=self._lib.rd_kafka_mock_request_api_key(request),
                    broker_id=self._lib.rd_kafka_mock_request_id(request),
                    at_us=self._lib.rd_kafka_mock_request_timestamp(request),
                )
                for request in array[: count.value]
            ]
        finally:
            self._lib.rd_kafka_mock_request_destroy_array(array, count)
        return [request for request in seen if api_key in (None, request.api_key)]

    def clear_requests(self) -> None:
        """Forget the requests so far."""
        self._lib.rd_kafka_mock_clear_requests(self._cluster)

    def _do(self, function: str, *arguments: object) -> None:
        code = getattr(self._lib, f"rd_kafka_mock_{function}")(self._cluster, *arguments)
        if code:
            name = self._lib.rd_kafka_err2name(code).decode()
            msg = f"{function}: {name}"
            raise MockError(msg)


def library_path() -> Path:
    """The librdkafka that the installed confluent_kafka runs on. Raises MockError if it is not bundled."""
    for file in metadata.files("confluent-kafka") or ():
        if file.name.startswith("librdkafka") and _LIBRARY_SUFFIXES.intersection(file.suffixes):
            return Path(str(file.locate()))
    msg = "confluent_kafka is not installed from a wheel that bundles librdkafka"
    raise MockError(msg)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _new_handle(lib: ctypes.CDLL) -> int:
    """The client instance that the mock cluster is booked under; it never connects."""
    reason = ctypes.create_string_buffer(512)
    conf = lib.rd_kafka_conf_new()
    if lib.rd_kafka_conf_set(conf, b"log_level", b"0", reason, len(reason)) != _CONF_OK:
        lib.rd_kafka_conf_destroy(conf)
        raise MockError(reason.value.decode())
    handle = lib.rd_kafka_new(_RD_KAFKA_PRODUCER, conf, reason, len(reason))
    if not handle:
        lib.rd_kafka_conf_destroy(conf)
        raise MockError(reason.value.decode())
    return int(handle)
