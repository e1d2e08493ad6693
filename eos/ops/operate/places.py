"""Places: what ``--to`` says, and which offsets that is in the logs of now."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eos import retry
from eos.errors import ConfigError
from eos.group.committed import offsets_at
from eos.kafka.admin import Admin, Mark
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_COORDINATES = re.compile(r"([^@,\s]+):(\d{1,10})@(\d{1,18})", re.ASCII)
_FORMS = (
    "earliest, latest, a time with its zone (2026-11-22T10:00:00Z), offsets (orders:2@4711,orders:3@17), or a file that "
    "eos offsets show --json has written"
)
_MARKS: Mapping[str, Mark] = {"earliest": Mark.START, "latest": Mark.LAST_STABLE}

Place = Mark | datetime | OffsetVector


def place_of(text: str) -> Place:
    """What ``--to`` says.

    Raises:
        ConfigError: it is of no known form.
    """
    if text in _MARKS:
        return _MARKS[text]
    if "@" in text and not Path(text).exists():
        named = [coordinates(one.strip()) for one in text.split(",")]
        offsets = dict(named)
        if len(offsets) < len(named):
            raise ConfigError(f"--to {text!r}: a partition is named twice. Fix: one offset for each")
        return OffsetVector(offsets)
    if Path(text).is_file():
        return saved_offsets(Path(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--to {text!r}: give {_FORMS}; there is no such file") from None
    if time.tzinfo is None:
        raise ConfigError(f"--to {text!r}: whose time? Fix: say its zone, {text}Z for UTC, or {text}+01:00")
    if (ahead_s := (time - (now := datetime.now(UTC))).total_seconds()) > 0:
        raise ConfigError(
            f"--to {text!r} is {ahead_s:,.0f} s in the future (it is {now:%Y-%m-%dT%H:%M:%SZ}). Fix: a time that has passed, or "
            "--to latest for the end of the log"
        )
    return time


def coordinates(text: str) -> tuple[Partition, int]:
    """``topic:number@offset``.

    Raises:
        ConfigError: it is not of that form.
    """
    found = _COORDINATES.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r}: give TOPIC:PARTITION@OFFSET, for example orders:2@4711")
    return Partition(found[1], int(found[2])), int(found[3])


def saved_offsets(path: Path) -> OffsetVector:
    """The offsets that `eos offsets show --json` has written, with the epochs and topic ids that name their logs.

    Raises:
        ConfigError: it has written something else.
    """
    offsets: dict[Partition, int] = {}
    epochs: dict[Partition, int] = {}
    topic_ids: dict[str, str] = {}
    try:
        listed: list[dict[str, Any]] = json.loads(path.read_text())["partitions"]
        for one in listed:
            partition = Partition(str(one["topic"]), int(one["partition"]))
            if one["committed"] is None:
                continue
            offsets[partition] = int(one["committed"])
            if one["leader_epoch"] is not None:
                epochs[partition] = int(one["leader_epoch"])
            if one["topic_id"]:
                topic_ids[partition.topic] = str(one["topic_id"])
        return OffsetVector(offsets, epochs, topic_ids)
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not what eos offsets show --json writes: {type(error).__name__}: {error}"
        ) from error


def offsets_of(settings: Settings, place: Place, partitions: Collection[Partition]) -> OffsetVector:
    """The offsets that a place is in these partitions; those that it does not name are left out.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """
    if isinstance(place, OffsetVector):
        return place.only(partitions)
    if isinstance(place, Mark):
        return OffsetVector(
            dict(offsets_at(settings, place, partitions))
        )  # the epochs are the leaders' of now
    admin, time_ms = Admin.of(settings), int(place.timestamp() * 1000)
    found = retry.ask(
        lambda slice_s: admin.offsets_at_time(time_ms, partitions, slice_s), timeout_s=settings.open_timeout_s
    )
    later = [p for p in partitions if p not in found]  # without a record of that time or later
    return OffsetVector(found | dict(offsets_at(settings, Mark.LAST_STABLE, later)))


def narrowed(partitions: Collection[Partition], only: Collection[str]) -> list[Partition]:
    """Those of the partitions that ``--only`` names, by topic or as ``topic:number``; all if it names none.

    Raises:
        ConfigError: it names one that is not there.
    """
    if not only:
        return sorted(partitions)
    kept: set[Partition] = set()
    for text in only:
        fits = {p for p in partitions if text in (p.topic, f"{p.topic}:{p.number}")}
        if not fits:
            raise ConfigError(
                f"--only {text!r}: no input partition of the job is called so. Fix: TOPIC, or TOPIC:NUMBER"
            )
        kept |= fits
    return sorted(kept)
