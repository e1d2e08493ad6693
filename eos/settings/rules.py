"""Rules between settings: combinations that could lose, repeat or block records are refused at the start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from eos.settings.ordinal import FIX, looks_random
from eos.settings.problems import Problem
from eos.settings.tables import KafkaSettings, OwnershipSettings, TransactionSettings, parse_partition

# A transaction also flushes, sends its offsets and commits before its timeout: half of it is left for that.
_INTERVALS_PER_TIMEOUT = 2
_PEM = b"-----BEGIN "


def contradictions(
    kafka: KafkaSettings, transaction: TransactionSettings, ownership: OwnershipSettings, workers: int
) -> Iterator[Problem]:
    """Every rule that these settings break."""
    yield from _transaction(transaction)
    yield from _ownership(ownership, workers)
    if ownership.mode == "group":
        yield from _group_times(ownership, transaction)
    yield from _security(kafka)


def _transaction(transaction: TransactionSettings) -> Iterator[Problem]:
    longest = transaction.timeout_ms // _INTERVALS_PER_TIMEOUT
    if transaction.interval_ms > longest:
        yield Problem(
            "transaction.interval_ms",
            f"{transaction.interval_ms} leaves too little of transaction.timeout_ms = {transaction.timeout_ms} "
            "to flush and commit, so transactions would expire",
            f"at most {longest}, or transaction.timeout_ms of at least "
            f"{transaction.interval_ms * _INTERVALS_PER_TIMEOUT}",
        )


def _ownership(ownership: OwnershipSettings, workers: int) -> Iterator[Problem]:
    ordinal, instances = ownership.ordinal, ownership.instances
    if ordinal is not None and (why := looks_random(ordinal, instances)):
        yield Problem("ownership.ordinal", why, f"{FIX}; if there are that many, set ownership.instances")
    if ordinal is not None and instances is not None and ordinal >= instances:
        yield Problem(
            "ownership.ordinal",
            f"{ordinal} is not below ownership.instances = {instances}",
            f"0 to {instances - 1}, one per instance",
        )
    if ownership.mode == "partition":
        yield from _partition_mode(ownership, workers)
    elif ownership.partitions:
        yield Problem(
            "ownership.partitions",
            "with ownership.mode = 'group' Kafka assigns the partitions",
            "leave it out, or ownership.mode = 'partition'",
        )


def _partition_mode(ownership: OwnershipSettings, workers: int) -> Iterator[Problem]:
    given = ownership.partitions
    if not given and (ownership.ordinal is None or ownership.instances is None):
        yield Problem(
            "ownership.mode",
            "'partition' does not say which partitions are this instance's",
            "ownership.partitions = ['topic:0', …], or both ownership.ordinal and ownership.instances",
        )
    if given and ownership.instances is not None:
        yield Problem(
            "ownership.instances",
            "ownership.partitions is given too, and the two may name different partitions",
            "keep one of them",
        )
    for text in given:
        try:
            parse_partition(text)
        except ValueError as error:
            yield Problem(
                "ownership.partitions", str(error), "for example ['settlements:0', 'settlements:3']"
            )
    if len(set(given)) != len(given):
        yield Problem("ownership.partitions", "a partition is named twice", "name each once")
    if given and workers > len(given):
        yield Problem(
            "workers.count",
            f"{workers} processes share {len(given)} partitions, so some would have nothing to do",
            f"at most {len(given)}",
        )


def _group_times(ownership: OwnershipSettings, transaction: TransactionSettings) -> Iterator[Problem]:
    longest = ownership.max_poll_interval_ms
    if ownership.protocol == "cooperative" and ownership.session_timeout_ms > longest:
        yield Problem(
            "ownership.session_timeout_ms",
            f"{ownership.session_timeout_ms} is above ownership.max_poll_interval_ms = {longest}",
            f"at most {longest}",
        )
    if ownership.protocol == "consumer" and "session_timeout_ms" in ownership.model_fields_set:
        yield Problem(
            "ownership.session_timeout_ms",
            "protocol 'consumer' (KIP-848) takes the session.timeout.ms from the broker",
            "leave it out and set the group's consumer.session.timeout.ms on the broker",
        )
    if transaction.timeout_ms > longest:
        # While another owner's transaction is open, its offsets cannot be read, and nothing is polled.
        yield Problem(
            "ownership.max_poll_interval_ms",
            f"{longest} is below transaction.timeout_ms = {transaction.timeout_ms}: a member that waits for its "
            "predecessor's transaction to end would be dropped before it ends",
            f"at least {transaction.timeout_ms}",
        )


def _security(kafka: KafkaSettings) -> Iterator[Problem]:
    protocol = kafka.security_protocol
    files = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")
    if not protocol.startswith("SASL"):
        yield from _ignored(kafka, ("sasl_mechanism", "sasl_username", "sasl_password"), "SASL_SSL")
    elif kafka.sasl_mechanism is None:
        yield Problem(
            "kafka.sasl_mechanism", f"is missing, and {protocol} needs it", "for example SCRAM-SHA-512"
        )
    elif kafka.sasl_mechanism.startswith(("PLAIN", "SCRAM")):
        for name in ("sasl_username", "sasl_password"):
            if not getattr(kafka, name):
                also = " or kafka.sasl_password_file" if name == "sasl_password" else ""
                what = f"is missing, and {kafka.sasl_mechanism} needs it"
                yield Problem(f"kafka.{name}", what, f"set kafka.{name}{also}")
    if not protocol.endswith("SSL"):
        yield from _ignored(kafka, (*files, "ssl_key_password"), "SSL or SASL_SSL")
    for name in files:
        yield from _pem(f"kafka.{name}", getattr(kafka, name))
    if (kafka.ssl_certificate_file is None) != (kafka.ssl_key_file is None):
        yield Problem(
            "kafka.ssl_certificate_file",
            "a client's certificate and its key go together, and one is missing",
            "set both kafka.ssl_certificate_file and kafka.ssl_key_file",
        )


def _pem(name: str, path: Path | None) -> Iterator[Problem]:
    if path is None:
        return
    if not os.access(path, os.R_OK) or path.is_dir():
        yield Problem(name, f"{path} is not a readable file", "name the mounted PEM file")
    elif _PEM not in path.read_bytes():
        yield Problem(name, f"{path} holds no PEM (-----BEGIN …)", "name the mounted PEM file")


def _ignored(kafka: KafkaSettings, names: Iterable[str], needed: str) -> Iterator[Problem]:
    for name in names:
        if getattr(kafka, name):
            what = (
                f"has no effect with kafka.security_protocol = {kafka.security_protocol}: the connection would be less safe "
                "than it looks"
            )
            yield Problem(f"kafka.{name}", what, f"kafka.security_protocol = {needed}, or leave it out")
