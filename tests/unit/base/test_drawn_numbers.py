"""What eos draws by chance does not depend on `random.seed`, which a job or a test suite may call, and does not change its numbers."""

from __future__ import annotations

import random

from eos.base.deadline import Deadline
from eos.guards.start_policy import _pause_s
from eos.local.ports import free_port


def test_processes_that_are_seeded_alike_choose_other_ports() -> None:
    chosen = set()
    for _ in range(5):
        random.seed(1)
        chosen.add(free_port())
    assert len(chosen) > 1


def test_instances_that_are_seeded_alike_wait_for_different_times() -> None:
    """Else those that start at once go on fencing each other in turn."""
    pauses = set()
    for _ in range(5):
        random.seed(1)
        pauses.add(_pause_s(3, 1.0, Deadline(100.0)))
    assert len(pauses) == 5


def test_waiting_leaves_the_numbers_of_seeded_code_as_they_are() -> None:
    random.seed(1)
    first = random.random()
    random.seed(1)
    looks = iter([False, False, True])
    assert Deadline(5.0).wait_for(lambda: next(looks))
    assert random.random() == first
