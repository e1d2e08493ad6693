"""ApiVersions: which requests the brokers understand, as librdkafka has asked each of them when it connected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(r"ApiKey (?P<request>\w+) \(\d+\) Versions \d+\.\.(?P<newest>\d+)$")


class ApiVersions:
    """Given to a client as its ``logger``: it has no call for what it knows, and logs it (``options`` let it do so).

    A client of another make needs a tenth of a second to load and a connection of its own for the same answer.
    """

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}  # by request; of several brokers the oldest counts

    @property
    def options(self) -> Mapping[str, Any]:
        """For the client's configuration."""
        return {"debug": "feature", "logger": self}

    def log(self, level: int, template: str, *args: object) -> None:  # noqa: ARG002 - a logger's interface
        """One line of librdkafka; args are (facility, client name, text)."""
        if args and (match := _LINE.search(str(args[-1]))):
            request, newest = match["request"], int(match["newest"])
            self.newest[request] = min(newest, self.newest.get(request, newest))
