"""PgBouncer in transaction mode before a PostgreSQL: each transaction of a client may have another connection of the server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from eos.base.deadline import Deadline
from eos.local.ports import free_port
from tests.support.patience import PATIENCE_S

_SERVERS = 4  # connections to the server that take turns, from the first transaction on


@contextmanager
def pgbouncer(url: str, directory: Path) -> Iterator[str]:
    """Start one for that database; the URL that leads through it. Skips the test where it is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    behind, port = make_url(url), free_port()
    config = directory / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{behind.database} = host={behind.host} port={behind.port} user={behind.username} password={behind.password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
        f"default_pool_size = {_SERVERS}\nmin_pool_size = {_SERVERS}\nserver_round_robin = 1\nlogfile = {directory}/pgbouncer.log\n"
        "server_reset_query_always = 0\n"
    )
    (directory / "pgbouncer.log").touch()
    (directory / "pgbouncer.log").chmod(0o666)
    as_other = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *as_other, str(config)], stderr=subprocess.DEVNULL)
    through = behind.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    try:
        assert _several(through), (directory / "pgbouncer.log").read_text()
        yield through
    finally:
        process.kill()
        process.wait()


def _several(url: str) -> bool:
    """Whether its transactions go over several connections of the server.

    PgBouncer opens those of ``min_pool_size`` one by one, and only while a client is connected: one stays for all the questions.
    """
    deadline = Deadline(PATIENCE_S)
    answers: list[psycopg.Connection[Any]] = []
    if not deadline.wait_for(lambda: _connected(url, answers)):
        return False
    with answers[0] as connection:
        return deadline.wait_for(
            lambda: (
                len({connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(2 * _SERVERS)})
                == _SERVERS
            )
        )


def _connected(url: str, answers: list[psycopg.Connection[Any]]) -> bool:
    try:
        answers.append(psycopg.connect(url, autocommit=True, prepare_threshold=None))
    except psycopg.OperationalError:
        return False
    return True
