"""The image's health check: asks /healthz, without curl. Exits 0 if every worker's loop turns, else 1 and why."""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import http.client
import os
import sys

_TIMEOUT_S = 4.0  # below the HEALTHCHECK's own
_ANY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to


def main() -> None:
    """Ask once."""
    host = os.environ.get("EOS_OBSERVE__HTTP_HOST", "")
    port = int(os.environ["EOS_OBSERVE__HTTP_PORT"])
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in _ANY_ADDRESS else host, port, timeout=_TIMEOUT_S
    )
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read().decode().strip()
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer on port {port}: {error}")
    print(said)
    sys.exit(answer.status != http.HTTPStatus.OK)


if __name__ == "__main__":
    main()
