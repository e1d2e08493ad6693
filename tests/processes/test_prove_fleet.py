"""An instance of a trial is known by what it wrote itself."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from eos.base.deadline import Deadline
from eos.local.tagged import tagged
from eos.prove.fleet import DIRECTORY, Fleet
from eos.prove.runtime import PROGRAM
from tests.support.patience import PATIENCE_S


def test_what_an_earlier_instance_of_the_ordinal_wrote_is_not_read_as_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "instance-1.log").write_text(
        json.dumps({"event": "partitions assigned", "positions": "in[0] at 0"}) + "\n"
    )
    says = "import json; print(json.dumps({'event': 'started'}), flush=True)"
    fleet = Fleet([sys.executable, "-c", says], tmp_path)
    instance = fleet.start(1)
    assert instance.wait(PATIENCE_S) == 0
    assert [entry["event"] for entry in instance.read()] == ["started"]
    fleet.forget(instance)


def test_who_is_behind_a_connection_is_found_by_its_port_also_below_a_shell(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as accepted:
        server.settimeout(PATIENCE_S)
        port = server.getsockname()[1]
        connects = f"import socket; one = socket.create_connection(('127.0.0.1', {port})); one.recv(1)"
        fleet = Fleet(["sh", "-c", f'{sys.executable} -c "{connects}"; true'], tmp_path, runtime=PROGRAM)
        fleet.start(0)
        instance = fleet.start(1)
        try:
            connections = [server.accept() for _ in range(2)]
            ports = [address[1] for _, address in connections]
            for connection, _ in connections:
                accepted.enter_context(connection)
            found = {fleet.behind(one) for one in ports}
            assert {one[0].ordinal for one in found if one} == {0, 1}
            fleet.leave(instance)
            assert {one[0].ordinal for one in map(fleet.behind, ports) if one} == {0}
            assert fleet.behind(port) is None
        finally:
            fleet.kill()


def test_who_is_behind_a_connection_by_a_socket_of_ipv6_is_found_too(tmp_path: Path) -> None:
    """As Java has them, which connects to 127.0.0.1 by its address in IPv6."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        there = f"('::ffff:127.0.0.1', {server.getsockname()[1]})"
        connects = f"import socket; one = socket.socket(socket.AF_INET6); one.connect({there}); one.recv(1)"
        fleet = Fleet([sys.executable, "-c", connects], tmp_path, runtime=PROGRAM)
        instance = fleet.start(0)
        try:
            connection, (_, port) = server.accept()
            with connection:
                assert (found := fleet.behind(port)) is not None
                assert found[0] is instance
        finally:
            fleet.kill()


def test_any_other_program_is_started_again_however_it_ended_but_with_0(tmp_path: Path) -> None:
    """A third start ends with 0, which is for good."""
    command = 'echo >> starts; [ "$(wc -l < starts)" -lt 3 ] && kill -9 $$; echo "$EOS_ORDINAL" > ended'
    fleet = Fleet(["sh", "-c", f"cd {tmp_path}; {command}"], tmp_path, runtime=PROGRAM)
    fleet.start(4)
    deadline = time.monotonic() + PATIENCE_S
    while fleet.instances and time.monotonic() < deadline:
        fleet.keep_up()
        time.sleep(0.05)
    assert (tmp_path / "starts").read_text().count("\n") == 3
    assert (tmp_path / "ended").read_text() == "4\n"
    assert "instance 4 ended with exit code 0" in fleet.ended_for_good[0]


def test_a_program_that_leaves_while_it_stands_still_is_gone_in_the_end(tmp_path: Path) -> None:
    fleet = Fleet(["sleep", "600"], tmp_path, runtime=PROGRAM)
    zombie = fleet.start(0)
    assert zombie.whole.pause()
    fleet.leave(zombie)
    successor = fleet.start(0)
    assert zombie.log != successor.log, "each is read for itself"
    fleet.end(PATIENCE_S)
    assert (zombie.code, successor.code) == (-signal.SIGKILL, -signal.SIGTERM)


def test_what_a_killed_proof_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also a process that stands still, and one below a shell."""
    program = (
        "import time; from pathlib import Path; from eos.base.deadline import Deadline; from eos.prove.fleet import DIRECTORY, Fleet\n"
        "from eos.prove.runtime import PROGRAM; from eos.local.tagged import tagged\n"
        f"fleet = Fleet(['sh', '-c', 'sleep 600; true'], Path({str(tmp_path)!r}), runtime=PROGRAM)\n"
        "fleet.start(0); one = fleet.start(1)\n"
        # Their shells have begun what stands below them.
        f"Deadline({PATIENCE_S}).wait_for(lambda: len(tagged(DIRECTORY, {str(tmp_path)!r})) >= 4)\n"
        "one.whole.pause(); print('started', flush=True); time.sleep(600)"
    )
    proof = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert proof.stdout is not None
        assert proof.stdout.readline() == "started\n"
        assert len(tagged(DIRECTORY, str(tmp_path))) >= 4
    finally:
        proof.kill()
        proof.communicate()
    assert Deadline(PATIENCE_S).wait_for(lambda: not tagged(DIRECTORY, str(tmp_path)))
