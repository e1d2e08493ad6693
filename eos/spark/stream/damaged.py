"""Damaged: which file of a query's checkpoint is not whole, and whether it can be removed."""

from __future__ import annotations

from collections.abc import Collection

from eos.base.listing import listed
from eos.errors import EosError, UnclassifiedError
from eos.spark.session.checkpoint import Checkpoint, UnreadableError
from eos.spark.stream.log_rules import LedgerError
from eos.spark.write.failures import CheckpointError, checkpoint_unreadable

_MAX_LISTED = 5


def named(error: EosError, checkpoint: Checkpoint | None) -> EosError:
    """What a query failed of; or the files of its checkpoint that are not whole, and the way out, where that may be why.

    Spark says which one only for some; of others it throws whatever its reader of JSON does.
    """
    may_be_why = isinstance(error, CheckpointError | UnclassifiedError | UnreadableError | LedgerError)
    if not may_be_why or checkpoint is None:
        return error
    try:
        found = dict(checkpoint.damaged())
        ways = [_way_out(name, found, checkpoint) for name in found]
    except EosError:
        return error
    if not found:
        return error
    files = listed((f"{checkpoint}/{name} {wrong}" for name, wrong in found.items()), _MAX_LISTED)
    # Removing one file does not help where another one is damaged that has to be kept.
    return checkpoint_unreadable(files, "; ".join(ways) if all(ways) else "")


def _way_out(name: str, damaged: Collection[str], checkpoint: Checkpoint) -> str:
    """What removing a file does; "" if it must be kept."""
    folder, _, number = name.rpartition("/")
    if folder not in ("offsets", "commits") or int(number) != checkpoint.batches(folder)[-1]:
        return ""
    removed = f"remove {name}, and {folder}/.{number}.crc"
    if folder == "commits":
        return f"{removed}: Spark runs batch {number} again, and what is written of it is not written again"
    if int(number) in checkpoint.batches("commits") and f"commits/{number}" not in damaged:
        return ""
    return f"{removed}: Spark plans batch {number} again"
