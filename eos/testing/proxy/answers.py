"""Answers that no broker has given: a refusal of a request, and an error in the place of what a broker has answered.

Read and written by kafka-python, which knows the layouts of every version: clients in Java speak newer ones than librdkafka does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from eos.ops.check.kafka_python import kafka_messages
from eos.testing.proxy.api import ApiKey

_HEADER = 4  # bytes: the correlation id
_NONE = -1  # an offset, a time, a producer
_OF_PARTS = (
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.FETCH,
    ApiKey.OFFSET_FETCH,
)
_OF_THE_WHOLE = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.HEARTBEAT,
)
_REFUSED = {*_OF_PARTS, *_OF_THE_WHOLE} - {ApiKey.FETCH, ApiKey.OFFSET_FETCH, ApiKey.HEARTBEAT}


class Request(Protocol):
    """What an answer belongs to."""

    @property
    def api_key(self) -> int: ...
    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def body_at(self) -> int: ...
    @property
    def flexible(self) -> bool: ...


def error_in(request: Request, answer: bytes) -> int:
    """The error code of a whole answer: to InitProducerId, AddOffsetsToTxn, EndTxn or Heartbeat.

    Raises:
        ValueError: the answer to such a request has none.
    """
    return int(read(request, answer, *_OF_THE_WHOLE).error_code)


def with_error(request: Request, answer: bytes, error: int) -> bytes:
    """The broker's answer, as if each part of it had failed with this error.

    Known: Produce, Fetch, OffsetFetch (version 8 or newer), Heartbeat, and the requests of transactions.

    Raises:
        ValueError: it is an answer to another request.
    """
    edited = read(request, answer, *_OF_PARTS, *_OF_THE_WHOLE)
    _fail(request, edited, error)
    return written(request, edited)


def with_fetch_error(request: Request, answer: bytes, partition: int | None, error: int) -> bytes:
    """The broker's answer to a Fetch, with an error in place of the records of one partition, in every topic. None: of all."""
    edited = read(request, answer, ApiKey.FETCH)
    _fail_fetch(edited, partition, error)
    return written(request, edited)


def refusal(request: Request, error: int) -> bytes:
    """The answer of a broker that has done nothing of this request of a transaction.

    Raises:
        ValueError: it is another request.
    """
    made = _refused(request)
    _fail(request, made, error)
    return written(request, made)


def _refused(request: Request) -> Any:
    """An answer with every part of the request in it."""
    if request.api_key not in _REFUSED:
        msg = f"a refusal of api key {request.api_key} is not known here"
        raise ValueError(msg)
    _, made_by = kafka_messages()[request.api_key]
    answers = partial(made_by, version=request.api_version)
    if request.api_key == ApiKey.INIT_PRODUCER_ID:
        return answers(throttle_time_ms=0, producer_id=_NONE, producer_epoch=_NONE)
    if request.api_key in _OF_THE_WHOLE:
        return answers(throttle_time_ms=0)
    of_request = asked(request)
    match request.api_key:
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            topic = made_by.AddPartitionsToTxnTopicResult
            one = topic.AddPartitionsToTxnPartitionResult
            topics = [
                topic(
                    name=of.name,
                    results_by_partition=[one(partition_index=number) for number in of.partitions],
                )
                for of in of_request.v3_and_below_topics
            ]
            return answers(throttle_time_ms=0, results_by_topic_v3_and_below=topics)
        case ApiKey.TXN_OFFSET_COMMIT:
            topic = made_by.TxnOffsetCommitResponseTopic
            one = topic.TxnOffsetCommitResponsePartition
            topics = [
                topic(
                    name=of.name,
                    partitions=[one(partition_index=each.partition_index) for each in of.partitions],
                )
                for of in of_request.topics
            ]
            return answers(throttle_time_ms=0, topics=topics)
        case _:
            topic = made_by.TopicProduceResponse
            one = topic.PartitionProduceResponse
            topics = [
                topic(
                    name=of.name,
                    topic_id=of.topic_id,
                    partition_responses=[one(index=each.index) for each in of.partition_data],
                )
                for of in of_request.topic_data
            ]
            return answers(throttle_time_ms=0, responses=topics)


def _fail(request: Request, answer: Any, error: int) -> None:
    """Put the error where an answer has one for each part."""
    match request.api_key:
        case ApiKey.PRODUCE:
            for one in each(answer.responses, "partition_responses"):
                one.error_code, one.base_offset = error, _NONE
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            for one in each(answer.results_by_topic_v3_and_below, "results_by_partition"):
                one.partition_error_code = error
        case ApiKey.TXN_OFFSET_COMMIT:
            for one in each(answer.topics, "partitions"):
                one.error_code = error
        case ApiKey.FETCH:
            _fail_fetch(answer, None, error)
        case ApiKey.OFFSET_FETCH:
            for one in answer.groups:
                one.error_code = error
        case _:
            answer.error_code = error


def _fail_fetch(answer: Any, partition: int | None, error: int) -> None:
    for one in each(answer.responses, "partitions"):
        if partition in (None, one.partition_index):
            one.error_code = error
            one.high_watermark = one.last_stable_offset = one.log_start_offset = _NONE


def each(outer: Iterable[Any], parts: str) -> Iterator[Any]:
    """The parts of all of them."""
    for one in outer:
        yield from getattr(one, parts)


def asked(request: Request) -> Any:
    """What is asked, as kafka-python reads it.

    Raises:
        ValueError: it is a request that is not known here.
    """
    body = request.payload[request.body_at :]
    return _messages(request)[0].decode(body, version=request.api_version)


def read(request: Request, answer: bytes, *known: ApiKey) -> Any:
    """The broker's answer, as kafka-python reads it.

    Raises:
        ValueError: it is no answer to one of these requests.
    """
    if request.api_key not in known:
        raise _unknown(request)
    body = answer[_HEADER + request.flexible :]  # brokers tag nothing in the header of an answer
    return _messages(request)[1].decode(body, version=request.api_version)


def written(request: Request, answer: Any) -> bytes:
    """An answer for the client."""
    header = struct.pack(">i", request.correlation_id) + b"\0" * request.flexible
    return header + bytes(answer.encode())


def _messages(request: Request) -> tuple[Any, Any]:
    if request.api_key not in kafka_messages():
        raise _unknown(request)
    return kafka_messages()[request.api_key]


def _unknown(request: Request) -> ValueError:
    return ValueError(f"api key {request.api_key} is not known here")
