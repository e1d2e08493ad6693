"""The peers: what each one is called, and how it is made ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.contenders import Contender
from bench.peers.environments import java_program, python_module, reason
from eos.errors import EosError
from eos.local.versions import KAFKA_VERSION

AIOKAFKA = "aiokafka==0.14.0"
QUIX = "quixstreams==3.28.1"


@dataclass(frozen=True)
class Peer:
    """Attributes: ``ready``, which installs and compiles what is needed and returns the command to start it."""

    name: str
    what: str
    ready: Callable[[], tuple[str, ...]]


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "java",
            f"transactional loop of the Java client {KAFKA_VERSION}, its defaults",
            lambda: java_program("TransactionLoop"),
        ),
        Peer(
            "java-tuned",
            "the same with batch.size of 1 MB and max.poll.records of 10,000",
            lambda: java_program("TransactionLoop", "-Dtuned=true"),
        ),
        Peer(
            "streams",
            f"Kafka Streams {KAFKA_VERSION}, exactly_once_v2, one thread",
            lambda: java_program("Streams"),
        ),
        Peer(
            "aiokafka",
            f"{AIOKAFKA}: transactional loop; the offsets are sent without the group's generation",
            lambda: python_module(AIOKAFKA, "aiokafka_loop"),
        ),
        Peer(
            "quix",
            f"{QUIX}: Application(processing_guarantee='exactly-once')",
            lambda: python_module(QUIX, "quix_app"),
        ),
    )
}


def make_ready(names: Sequence[str]) -> tuple[list[Contender], dict[str, str]]:
    """The peers that can be run here, and why the others cannot, by name."""
    ready, left_out = [], {}
    for name in names:
        peer = PEERS[name]
        try:
            ready.append(Contender(peer.name, "", peer.what, launch=peer.ready()))
        except EosError as error:
            left_out[name] = reason(error)
    return ready, left_out
