"""Fleet: the job's processes under test, as an operator would start them, and started again when they ended."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from eos.base.deadline import Deadline
from eos.prove.instance import Instance, Worker
from eos.prove.runtime import EOS_RUN, Runtime

DIRECTORY = "PROVE_DIRECTORY"  # the variable by which the job's processes know that they are tried, and where
_POLL_S = 0.05


class Fleet:
    """Every instance of the job.

    Args:
        command: of one instance.
        directory: where the logs go.
        environment: variables of every instance, beside EOS_ORDINAL and the one of `DIRECTORY`; None: it does not inherit that
            one.
        runtime: how the job is run.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str | None] | None = None,
        *,
        runtime: Runtime = EOS_RUN,
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = {**(environment or {}), DIRECTORY: str(directory)}
        self.runtime = runtime
        self.instances: list[Instance] = []
        self.ends = Counter[int]()  # exit codes of instances that were started again
        self._leaving: list[Instance] = []
        self.ended_for_good: list[str] = []  # instances that no restart helps, in words

    def start(self, ordinal: int) -> Instance:
        """Start one more instance. One of that ordinal may have been there before: its log goes on."""
        others = sum(1 for one in (*self.instances, *self._leaving) if one.ordinal == ordinal)
        name = f"instance-{ordinal}.{others}.log" if others else f"instance-{ordinal}.log"
        instance = self.runtime.instance(self._command, ordinal, self._directory / name, self._environment)
        self.instances.append(instance)
        return instance

    def keep_up(self) -> None:
        """Start again what has ended and would be started again; any other end is for good."""
        for instance in list(self.instances):
            code = instance.code
            if code is None:
                continue
            if instance.goes_on_after(code) and instance.start_again():
                self.ends[code] += instance.code is None
            else:
                self.instances.remove(instance)
                self.ended_for_good.append(
                    f"instance {instance.ordinal} ended with exit code {code} (its log: {instance.log})"
                )

    def wait(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait for something, or only wait; what ends meanwhile is started again."""
        deadline = Deadline(seconds)
        while not (holds := condition()) and not deadline.passed:
            self.keep_up()
            time.sleep(min(_POLL_S, deadline.left_s))
        return holds

    def leave(self, instance: Instance) -> None:
        """It is not started again from now on; its processes run until they end, or `forget`."""
        if instance in self.instances:
            self.instances.remove(instance)
        if instance not in self._leaving:
            self._leaving.append(instance)

    def forget(self, instance: Instance) -> None:
        """It has left; what is left of it is killed. Its log stays."""
        self.leave(instance)
        instance.kill()
        self._leaving.remove(instance)

    def workers(self) -> list[Worker]:
        """Each worker that runs, or stands still, by ordinal; not those of instances that leave."""
        found = [worker for one in self.instances for worker in one.workers]
        return sorted(found, key=lambda worker: worker.ordinal)

    def chosen(self, share: float) -> Worker | None:
        """A worker by chance, ``share`` being from 0 to 1."""
        return self.runtime.instance.chosen(self.workers(), share)

    def behind(self, port: int) -> tuple[Instance, Worker] | None:
        """Whose connection comes from this port; none of an instance that leaves."""
        for instance in list(self.instances):
            if (worker := instance.behind(port)) is not None:
                return instance, worker
        return None

    def end(self, grace_s: float) -> list[int]:
        """Ask all to end in order, and wait; what does not is killed. Returns the exit codes."""
        for one in self.instances:
            one.ask_to_end()
        deadline = Deadline(grace_s)
        codes = []
        for one in self.instances:
            code = one.wait(deadline.left_s)
            if code is None:
                one.kill()
                code = -int(signal.SIGKILL)
            codes.append(code)
        self.kill()
        return codes

    def kill(self) -> None:
        """SIGKILL to all, also to what an ended instance has left behind."""
        for one in (*self.instances, *self._leaving):
            one.kill()
        self.instances.clear()
        self._leaving.clear()
