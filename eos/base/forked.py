"""A process that was forked inside a job, and comes back to eos with the clients of its parent."""

from __future__ import annotations

import logging
import os
import sys

_log = logging.getLogger(__name__)


def end_if_forked(pid: int) -> None:
    """End this process, if it is a fork of the one with this id, whose clients it holds.

    It has none of librdkafka's threads, so a call may wait for ever, and to destroy a client does: an exception would end in
    that. A child that never comes back to eos (one of multiprocessing, one that ends by os._exit) meets nothing of this.
    """
    if os.getpid() == pid:
        return
    _log.error(
        "this process was forked inside a job and came back to eos: it ends here. The job goes on in its parent, %d. "
        "Fix: end a forked child with os._exit(), or use subprocess, or multiprocessing's 'spawn'",
        pid,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
