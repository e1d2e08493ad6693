"""A10: the network is cut for seconds: clients from a coordinator or a leader, and a broker from the other two.

All of a cell runs in a network namespace of its own (``unshare -n``), whose loopback has the rules: the machine's own
network is not touched. Clients have a listener of their own, and each broker a group id of its own, by which its packets to
the other brokers are told from theirs. A cut counts if rules of it have dropped packets.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka.admin import AdminClient

from eos.base.deadline import Deadline
from eos.local import LocalKafka, launch
from eos.local.process import spawn
from eos.shards import OrdinalShard
from tests.proof.row import Cell, Outcome, Row
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, run_to_end, settings_for
from tests.support.observer import committed_offsets, lso
from tests.support.own_broker import own_broker
from tests.support.processes import Child

KINDS = ("transaction coordinator", "group coordinator", "leader of an output", "broker from brokers")
_REPOSITORY = Path(__file__).parents[2]
_BROKERS = 3
_GROUP_IDS = 41_000  # of the brokers, by their number; nobody else has them
_CLIENTS = "CLIENTS"
_RECORDS = 1_500  # of each cut
_WAIT_S = 180.0
_CELL_S = 1_800.0
_START_S = 300.0
_SHORTEST_S, _LONGEST_S = 5.0, 30.0
_FAULTS = 5


class Cuts:
    """The rules of this namespace.

    Args:
        kafka: three brokers, each with its own group id.
    """

    def __init__(self, kafka: LocalKafka) -> None:
        self._inner = {number: node.ports for number, node in kafka._started().nodes.items()}

    @contextmanager
    def clients_from(self, broker: int) -> Iterator[None]:
        """No packet between a client and a broker."""
        port = str(self._inner[broker].others[_CLIENTS])
        with self._dropping([["-p", "tcp", "--dport", port], ["-p", "tcp", "--sport", port]]):
            yield

    @contextmanager
    def broker_from_brokers(self, broker: int) -> Iterator[None]:
        """No packet between a broker and the two others, of replication or of the quorum. Clients reach all of them."""
        rules = []
        for other in self._inner.keys() - {broker}:
            for sender, receiver in ((broker, other), (other, broker)):
                ports = f"{self._inner[receiver].client},{self._inner[receiver].controller}"
                owner = ["-m", "owner", "--gid-owner", str(_GROUP_IDS + sender)]
                rules.append([*owner, "-p", "tcp", "-m", "multiport", "--dports", ports])
        with self._dropping(rules):
            yield

    @property
    def dropped(self) -> int:
        """Packets, by the rules that are there."""
        listed = _iptables("-L", "OUTPUT", "-v", "-x", "-n").splitlines()[2:]
        return sum(int(line.split()[0]) for line in listed)

    @contextmanager
    def _dropping(self, rules: Sequence[Sequence[str]]) -> Iterator[None]:
        try:
            for rule in rules:
                _iptables("-A", "OUTPUT", *rule, "-j", "DROP")
            yield
        finally:
            _iptables("-F", "OUTPUT")


def _iptables(*arguments: str) -> str:
    return subprocess.run(
        ["iptables", "-w", *arguments], capture_output=True, text=True, timeout=30, check=True
    ).stdout


def _spawned(command: Sequence[str], *, directory: Path, **others: Any) -> Any:
    """A broker under a group id that says which one it is."""
    group = str(_GROUP_IDS + int(directory.name.rpartition("-")[2]))
    named = ["setpriv", "--regid", group, "--clear-groups", *command]
    return spawn(named, directory=directory, **others)


class _World:
    """Three brokers, a job of two workers, and what is asked of both."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        with patch.object(launch, "spawn", _spawned):
            self.kafka = own_broker(directory, _BROKERS, listeners={_CLIENTS: "PLAINTEXT"})
            stack.callback(self.kafka.stop)
            self.kafka.start(_START_S)
        self.bootstrap = self.kafka.bootstrap_servers
        self.clients = self.kafka.servers_at(_CLIENTS)
        self.job: FaultJob = fault_job(self.bootstrap, partitions=_BROKERS, rf=_BROKERS)
        self.cuts = Cuts(self.kafka)
        self.loaded = 0
        self.workers: list[Child] = []
        for ordinal in range(2):
            self.workers.append(
                stack.enter_context(
                    in_process(
                        self.job,
                        self.clients,
                        ownership__ordinal=ordinal,
                        transaction__commit_deadline_ms=15_000,
                    )
                )
            )

    def load(self) -> None:
        """More input, past the rules for clients."""
        self.job.load(self.bootstrap, _RECORDS, f"{self.loaded}-", partitions=range(_BROKERS))
        self.loaded += _RECORDS

    def committed(self) -> int:
        """Input records, by the group's offsets. No answer counts as none."""
        try:
            partitions = [(self.job.inputs[0], number) for number in range(_BROKERS)]
            found = committed_offsets(self.bootstrap, self.job.group, partitions, timeout_s=5)
        except Exception:  # noqa: BLE001 - asked again
            return 0
        return sum(offset or 0 for offset, _ in found.values())

    def meant(self, kind: str, dice: random.Random) -> int:
        """The broker of a kind."""
        shard = OrdinalShard(self.job.name, self.job.group, dice.randrange(2))
        match kind:
            case "transaction coordinator":
                return self._leader("__transaction_state", _spread(shard.transactional_id))
            case "group coordinator":
                return self._leader("__consumer_offsets", _spread(self.job.group))
            case "leader of an output":
                return self._leader(self.job.out, 0)
            case _:
                return dice.randint(1, _BROKERS)

    def _leader(self, topic: str, spread: int) -> int:
        partitions = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(
            timeout=20
        )
        found = partitions.topics[topic].partitions
        return int(found[spread % len(found)].leader)


def _spread(name: str) -> int:
    """Java's String.hashCode, made positive as Kafka does: which partition of its log a coordinator keeps a name in."""
    value = 0
    for letter in name:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def inside(seed: int, faults: int, directory: Path) -> Outcome:
    """The cell, in its namespace."""
    dice = random.Random(seed)
    happened, recoveries, notes, against = 0, [], [], []
    with ExitStack() as stack:
        world = _World(stack, directory)
        for worker in world.workers:
            worker.wait_line("SessionOpened", _WAIT_S)
        world.load()
        for number in range(faults):
            kind = KINDS[(seed + number) % len(KINDS)]
            broker, seconds = world.meant(kind, dice), dice.uniform(_SHORTEST_S, _LONGEST_S)
            cut = (
                world.cuts.broker_from_brokers(broker)
                if kind == KINDS[-1]
                else world.cuts.clients_from(broker)
            )
            loading = threading.Thread(target=world.load)
            with cut:
                loading.start()
                time.sleep(seconds)
                dropped = world.cuts.dropped
            healed = time.monotonic()
            loading.join(_WAIT_S)
            if not Deadline(_WAIT_S).wait_for(lambda: world.committed() >= world.loaded):
                against.append(
                    f"{world.committed()} of {world.loaded} records after {kind} {broker} was cut off"
                )
                break
            happened += dropped > 0
            recoveries.append(time.monotonic() - healed)
            notes.append(f"{kind} {broker}: {seconds:.0f} s, {dropped} packets")
        for worker in world.workers:
            if not worker.alive:
                against.append(f"a worker has ended: {worker.lines[-1]}")
            worker.terminate()
            worker.wait(_WAIT_S)
        run_to_end(world.job, settings_for(world.clients, ownership__ordinal=0), timeout_s=_WAIT_S)
        try:
            processed = world.job.check(world.bootstrap, timeout_s=_WAIT_S).processed
        except (AssertionError, TimeoutError) as error:
            processed = world.committed()
            against.append(str(error))
        if processed != sum(lso(world.bootstrap, world.job.inputs[0]).values()):
            against.append(f"{processed} records were processed")
    return Outcome(
        faults=happened, records=processed, anomalies=against, recoveries_s=recoveries, note="; ".join(notes)
    )


def why_not() -> str:
    """What this machine lacks; "" if nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("unshare", "ip", "iptables", "setpriv") if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)}"
    tried = f"ip link set lo up && iptables -A OUTPUT -m owner --gid-owner {_GROUP_IDS} -j DROP"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", tried], capture_output=True, text=True, timeout=30, check=False
    )
    return f"no rules in a namespace: {done.stderr.strip()}" if done.returncode else ""


def _run(seed: int, faults: int, directory: Path) -> Outcome:
    if reason := why_not():
        return Outcome(faults=0, records=0, skipped=True, note=reason)
    command = [sys.executable, "-m", "tests.proof.cut_off", str(seed), str(faults), str(directory)]
    log = directory / "cell.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command],
            cwd=_REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            process.wait(_CELL_S)
        finally:
            process.terminate()
            process.wait()
    found = directory / "outcome.json"
    if not found.exists():
        raise RuntimeError(
            f"the cell ended with {process.returncode}: {log.read_text(errors='replace')[-1500:]}"
        )
    return Outcome(**json.loads(found.read_text()))


def _cells() -> Iterator[Cell]:
    for seed in range(8):
        yield Cell(
            name=f"{_FAULTS} cuts of {_SHORTEST_S:.0f} to {_LONGEST_S:.0f} s, seed {seed}",
            run=partial(_run, seed, _FAULTS),
            minutes=3.5,
        )


A10 = Row(
    id="A10",
    title="the network is cut between clients and a coordinator, and between brokers",
    goal=40,
    counts="cuts",
    cells=_cells,
)

if __name__ == "__main__":
    given_directory = Path(sys.argv[3])
    made = inside(int(sys.argv[1]), int(sys.argv[2]), given_directory / "kafka")
    (given_directory / "outcome.json").write_text(json.dumps(asdict(made)))
