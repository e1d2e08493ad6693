"""What was made in one process belongs to it: a fork has the clients of its parent, and none of librdkafka's threads."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import weakref
from typing import ClassVar

from eos.errors import UsageError

_log = logging.getLogger(__name__)


class Home:
    """The process that an object was made in. ``Home.here`` is that of the running one, and another one in a fork of it.

    A call of a client waits for ever in a fork, and to destroy one does; records that it takes are never sent.
    """

    here: ClassVar[Home]
    pid: int


def refuse_elsewhere(home: Home, call: str) -> None:
    """Refuse a call in a fork of an object's home, which leaves the fork as it is. Compares references: cheap enough for each record.

    Raises:
        UsageError: this process is a fork of the one that the object was made in.
    """
    if home is not Home.here:
        raise UsageError(
            f"{call}: it was made in process {home.pid}, and this one ({os.getpid()}) is a fork of it: a Kafka client does "
            "not survive fork(). Fix: make it in the process that uses it (a Pool's initializer, say), or use "
            "multiprocessing's 'spawn'"
        )


def end_elsewhere(home: Home) -> None:
    """End this process, if it is a fork of an object's home that comes back to eos from code of a job.

    An exception would end in the destruction of a client. A child that never comes back to eos (one of multiprocessing, one
    that ends by os._exit) meets nothing of this.
    """
    if home is Home.here:
        return
    _log.error(
        "this process was forked inside a job and came back to eos: it ends here. The job goes on in its parent, %d. "
        "Fix: end a forked child with os._exit(), or use subprocess, or multiprocessing's 'spawn'",
        home.pid,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


# Each that holds a client, and the name of the attribute.
_holders: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def holds_client(holder: object, attribute: str) -> None:
    """The client that is this attribute of an object is never destroyed in a fork, whatever lets go of it there.

    librdkafka would wait for threads that the fork does not have, or end the process by an assertion. A name that is bound anew in
    the fork is enough for that, at the next garbage collection.
    """
    _holders[holder] = attribute


def keep_for_ever(client: object) -> None:
    """Take a reference that nothing gives back, not even the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def _begin() -> None:
    Home.here = Home()
    Home.here.pid = os.getpid()
    for holder, attribute in list(_holders.items()):
        if (client := vars(holder).get(attribute)) is not None:
            keep_for_ever(client)


_begin()
os.register_at_fork(after_in_child=_begin)
