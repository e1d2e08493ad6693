"""LocalPostgres: a PostgreSQL server on this machine, on loopback, from the programs that pip has installed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from eos.base.deadline import Deadline
from eos.errors import ConfigError, RetriableError
from eos.local import state as state_file
from eos.local.launch import PortTakenError, ended, last_lines
from eos.local.layout import PostgresLayout
from eos.local.local_cluster import START_TIMEOUT_S, LocalCluster, ignore
from eos.local.ports import HOST, free_port, is_free
from eos.local.postgres_home import require_postgres
from eos.local.process import Guard, Identity, children, live_pid, pause, send, spawn, works_in
from eos.local.state import PostgresState

USER = "eos"
DATABASE = "postgres"
_STOP_GRACE_S = 10.0  # it rolls open transactions back and writes a checkpoint: a second
_PORT_ATTEMPTS = 3
_INITDB_TIMEOUT_S = 60.0  # 3 s on idle cores
_ASK_TIMEOUT_S = 10.0
_READY = "ready"  # line 8 of postmaster.pid, once it takes connections
_NOBODY = "nobody"


class LocalPostgres(LocalCluster[PostgresState, PostgresLayout]):
    """One server. Its data, log and state file are in ``directory/postgres``; data of earlier runs is there again.

    A password is drawn at the first start: everyone on this machine can reach loopback, and whoever is a superuser of the
    database can run programs as its owner.

    Args:
        directory: where it keeps its files.
        settings: of PostgreSQL, for this start (``{"fsync": "off"}``).
        owned: whether it is killed when this process ends, however it ends, or drops this object without stop(). If not, it
            stays.
        progress: called with one line before each long step.
    """

    title, _part = "PostgreSQL", "server"
    start_command, _stop_command = "eos local postgres start", "eos local postgres stop"

    def __init__(
        self,
        directory: Path | str,
        *,
        settings: Mapping[str, str] | None = None,
        owned: bool = True,
        progress: Callable[[str], None] = ignore,
    ) -> None:
        layout = PostgresLayout(Path(directory).absolute())
        super().__init__(layout, PostgresState, 1, owned=owned, progress=progress)
        self._settings = dict(settings or {})
        self._guard: Guard | None = None

    @classmethod
    def attach(cls, directory: Path | str, *, progress: Callable[[str], None] = ignore) -> Self | None:
        """The server that runs in that directory, of this process or another; None if none does.

        Raises:
            ConfigError: the state file is not one of ours.
        """
        state = state_file.load(PostgresLayout(Path(directory).absolute()).state, PostgresState)
        if state is None or not state.running:
            return None
        return cls(directory, owned=False, progress=progress)

    # -- its life

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start it, and wait until it takes connections. One that runs is left as it is.

        Raises:
            ConfigError: no PostgreSQL is installed, or the machine or the directory does not allow it.
            RetriableError: it was not ready in time.
        """
        programs = require_postgres()
        with self._locked("starting"):
            state = self._state()
            if state is None or not state.running or not self._check_ours(state, f"port {state.port}"):
                self._start_new(programs, state, Deadline(timeout_s))
        return self

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """End it, also one that another process has started: connections are cut, and what is committed stays.

        Raises:
            RetriableError: it survived even SIGKILL, or another process is starting it.
        """
        with self._mutex:
            if self._state() is None:
                return
            with self._locked("stopping"):
                state = self._state()
                if state is not None and state.process is not None:
                    self._end(state.process, grace_s)

    def kill(self) -> None:
        """SIGKILL to its first process, as an accident: the others end by themselves. `start` recovers the data."""
        with self._mutex:
            if (process := self._started().process) is not None:
                self._end(process, 0)

    def pause(self) -> bool:
        """SIGSTOP to all of its processes, and wait until they stand still; False if it is down. `resume` lets them go on."""
        process = self._started().process
        if process is None or not pause(process):
            return False
        # It has started all others: there are no new ones while it stands still.
        return sum(map(pause, children(process))) > 0

    def resume(self) -> None:
        """Let processes that stand still go on."""
        if (process := self._started().process) is not None:
            for one in (*children(process), process):
                send(one, signal.SIGCONT)

    # -- what it is

    @property
    def port(self) -> int:
        return self._started().port

    @property
    def pid(self) -> int | None:
        """The id of its first process; None if it is down."""
        return live_pid(self._started().process)

    @property
    def url_file(self) -> Path:
        """What ``sql.url_file`` takes: a file that only its owner can read, with the URL and its password."""
        return self._layout.url

    @property
    def url(self) -> str:
        """The URL, password included."""
        return self._layout.url.read_text().strip()

    @property
    def data(self) -> Path:
        return self._layout.data

    @property
    def log_path(self) -> Path:
        return self._layout.log

    # -- inside

    def _start_new(self, programs: Path, last: PostgresState | None, deadline: Deadline) -> None:
        is_new = not self._layout.data.exists()
        if is_new:
            self._write_secret(self._layout.password, secrets.token_urlsafe(24))
        unprivileged = self._unprivileged(programs)
        if is_new:
            self._progress("Making a PostgreSQL cluster")
            self._initialise(programs, unprivileged)
        self._clear_lock(deadline)
        port = last.port if last is not None and is_free(last.port) else free_port()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._bring_up([*unprivileged, str(programs / "postgres")], port, deadline)
            except PortTakenError:
                if attempt == _PORT_ATTEMPTS:
                    raise
                port = free_port()
            else:
                return

    def _clear_lock(self, deadline: Deadline) -> None:
        """Take away the lock file of a server that was killed.

        PostgreSQL refuses to start while that names a process, also one that init has not yet reaped, or another one that got
        its id. Ours is known to be dead by more than its id; its children may need a moment to notice.
        """
        data = str(self._layout.data)
        if not deadline.wait_for(lambda: not works_in(data)):
            raise RetriableError(f"processes {works_in(data)} of an earlier PostgreSQL still work in {data}")
        (self._layout.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialise(self, programs: Path, unprivileged: Sequence[str]) -> None:
        partial = self._layout.root / "data.partial"  # one that was cut off is not taken for a whole one
        shutil.rmtree(partial, ignore_errors=True)
        command = [
            *unprivileged,
            str(programs / "initdb"),
            "-D",
            str(partial),
            "-U",
            USER,
            "--auth=scram-sha-256",
        ]
        command += [f"--pwfile={self._layout.password}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        try:
            done = subprocess.run(
                command,
                cwd=self._layout.root,
                capture_output=True,
                check=False,
                text=True,
                timeout=_INITDB_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise RetriableError(f"initdb was not done in {_INITDB_TIMEOUT_S:.0f} s") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise ConfigError(f"initdb made no PostgreSQL cluster in {self._layout.root}. It says:\n{said}")
        partial.rename(self._layout.data)

    def _bring_up(self, server: Sequence[str], port: int, deadline: Deadline) -> None:
        self._progress("Starting PostgreSQL")
        log = self._layout.log
        since = {log: log.stat().st_size if log.exists() else 0}
        fixed = {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}
        options = [f"--{name}={value}" for name, value in (self._settings | fixed).items()]
        process, self._guard = spawn(
            [*server, "-D", str(self._layout.data), *options],
            directory=self._layout.root,
            output=log,
            owned=self._owned,
        )
        state = PostgresState(port, process, self._owner)
        try:
            state_file.save(self._layout.state, state)
            self._wait_until_ready(process, since, deadline)
            password = self._layout.password.read_text().strip()
            self._write_secret(self._layout.url, f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}\n")
        except BaseException:  # Ctrl-C too: nothing half-started stays
            self._end(process, 0)
            state_file.save(self._layout.state, replace(state, process=None))
            raise

    def _wait_until_ready(self, process: Identity, since: Mapping[Path, int], deadline: Deadline) -> None:
        log = self._layout.log

        def ready() -> bool:
            if not process.alive:
                raise ended("PostgreSQL", last_lines(log, since))
            return self._takes_connections(process)

        if not deadline.wait_for(ready):
            raise RetriableError(f"PostgreSQL was not ready in time. {last_lines(log, since)}")

    def _takes_connections(self, process: Identity) -> bool:
        try:
            lines = (self._layout.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == _READY  # noqa: PLR2004 - see _READY

    def _end(self, process: Identity, grace_s: float) -> None:
        # SIGTERM would wait until every client has gone.
        if grace_s and send(process, signal.SIGINT):
            send(process, signal.SIGCONT)
            Deadline(grace_s).wait_for(lambda: not process.alive)
        self._end_processes([process], grace_s=0)
        if self._guard is not None:
            self._guard.join()
            self._guard = None

    def _write_secret(self, path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - by its mode
            file.write(text)

    def _unprivileged(self, programs: Path) -> list[str]:
        """What stands before these programs: they refuse to run as root.

        Raises:
            ConfigError: root cannot run a program as another user here.
        """
        if os.geteuid() != 0:
            return []
        nobody = pwd.getpwnam(_NOBODY)
        # A namespace in which root has another name: files stay root's, and no other user needs a way to them.
        renamed = ["unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}", "--"]
        if _runs([*renamed, "true"]):
            return renamed
        other = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]
        for path in (self._layout.root, self._layout.password, self._layout.data, self._layout.log):
            if path.exists():
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        unfit = f"PostgreSQL does not run as root, and the user {_NOBODY} cannot"
        if not _runs([*other, "test", "-w", str(self._layout.root)]):
            raise ConfigError(
                f"{unfit} write to {self._layout.root}. Fix: run it as a user of yours, or with a --directory that all users "
                "can enter"
            )
        if not _runs([*other, "test", "-x", str(programs / "postgres")]):
            raise ConfigError(
                f"{unfit} run {programs / 'postgres'}. Fix: run it as a user of yours, or install eos where all users can enter"
            )
        return other


def _runs(command: Sequence[str]) -> bool:
    try:
        return (
            subprocess.run(command, capture_output=True, check=False, timeout=_ASK_TIMEOUT_S).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
