"""kafka-python, for what librdkafka cannot ask: imported late and kept quiet, with the settings in its words."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

from eos.errors import ConfigError
from eos.kafka.config import client_config
from eos.kafka.tokens import MECHANISM, Tokens, librdkafka_alone
from eos.settings import Settings

_MECHANISMS = frozenset({MECHANISM, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


def kafka_python() -> tuple[Any, Any]:
    """kafka-python's errors and admin client: imported when needed, since that takes a while."""
    with warnings.catch_warnings():
        # Of importlib.resources, which it uses the old way.
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import admin, errors
    # At its debug level it writes its configuration, password included; and its errors are raised anyway.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    return errors, admin


@cache
def kafka_messages() -> Mapping[int, tuple[Any, Any]]:
    """The classes of requests and of their answers, by api key: those that a test looks into."""
    kafka_python()  # which keeps what it warns of to itself
    from kafka.protocol import consumer, metadata
    from kafka.protocol.producer import produce, transaction

    known = (
        (produce.ProduceRequest, produce.ProduceResponse),
        (transaction.InitProducerIdRequest, transaction.InitProducerIdResponse),
        (transaction.AddPartitionsToTxnRequest, transaction.AddPartitionsToTxnResponse),
        (transaction.AddOffsetsToTxnRequest, transaction.AddOffsetsToTxnResponse),
        (transaction.EndTxnRequest, transaction.EndTxnResponse),
        (transaction.TxnOffsetCommitRequest, transaction.TxnOffsetCommitResponse),
        (consumer.FetchRequest, consumer.FetchResponse),
        (consumer.OffsetFetchRequest, consumer.OffsetFetchResponse),
        (consumer.HeartbeatRequest, consumer.HeartbeatResponse),
        (consumer.ListOffsetsRequest, consumer.ListOffsetsResponse),
        (metadata.MetadataRequest, metadata.MetadataResponse),
    )
    return {answer.API_KEY: (asked, answer) for asked, answer in known}


def client_options(settings: Settings) -> dict[str, Any]:
    """The settings in kafka-python's words. Holds secrets.

    Raises:
        ConfigError: no brokers are named, or it is a login that librdkafka alone can carry out.
    """
    theirs = client_config(settings)
    mechanism = theirs.get("sasl.mechanism")
    if mechanism not in {None, *_MECHANISMS}:
        raise _refused(f"kafka.sasl_mechanism = {mechanism}")
    tokens = None
    if mechanism == MECHANISM:
        if way := librdkafka_alone(theirs):
            raise _refused(way)
        kafka_python()
        from kafka.net.sasl.oauth import AbstractTokenProvider

        AbstractTokenProvider.register(Tokens)
        tokens = Tokens(theirs)
    options = {
        "bootstrap_servers": [server.strip() for server in theirs["bootstrap.servers"].split(",")],
        "client_id": theirs.get("client.id"),
        "security_protocol": theirs["security.protocol"],
        "sasl_mechanism": mechanism,
        "sasl_plain_username": theirs.get("sasl.username"),
        "sasl_plain_password": theirs.get("sasl.password"),
        "sasl_oauth_token_provider": tokens,
        "ssl_cafile": theirs.get("ssl.ca.location"),
        "ssl_certfile": theirs.get("ssl.certificate.location"),
        "ssl_keyfile": theirs.get("ssl.key.location"),
        "ssl_password": theirs.get("ssl.key.password"),
        "ssl_check_hostname": theirs.get("ssl.endpoint.identification.algorithm", "https") != "none",
    }
    return {name: value for name, value in options.items() if value is not None}


def _refused(setting: str) -> ConfigError:
    return ConfigError(
        f"{setting}: a login that librdkafka alone can carry out, and librdkafka cannot ask coordinators for transactions. So "
        "these commands do not work: eos transactions list, explain, end and abort; eos offsets set and copy; eos skip. (The "
        "others do without, and say less.) Fix: another login for these commands, if the brokers have a listener for it: "
        f"{', '.join(sorted(_MECHANISMS))} ({MECHANISM} with client credentials), or a certificate. If not, in their place alone: "
        "Kafka's kafka-transactions.sh list, describe and abort; for end, start the job again; for offsets and skip, stop the job, "
        "and kafka-consumer-groups.sh --reset-offsets"
    )
