"""The process of a sole broker's container: as ``eos.local.former``, fence what the killed broker has left registered."""

from __future__ import annotations

from collections.abc import Mapping

from eos.local.former import ACTIVE, CLEAN_SHUTDOWN, FENCED
from eos.local.storage import METADATA_LOG

_RUN = "/etc/kafka/docker/run"  # in either image: configures Kafka from the environment, and becomes it
_OUTPUT = "/tmp/former.log"  # noqa: S108 - in the container


def command(logs: str, controller_only: Mapping[str, str]) -> list[str]:
    """What the container of a broker that is the only one runs instead of the image's own command.

    Args:
        logs: the broker's directory of logs, in the container.
        controller_only: the variables that make it a controller alone, by ``eos.local.former``.
    """
    variables = " ".join(f"{name}={value}" for name, value in controller_only.items())
    script = f"""
trap 'exit 143' TERM
if [ -d {logs}/{METADATA_LOG} ] && [ ! -e {logs}/{CLEAN_SHUTDOWN} ]; then
  (
    export {variables}
    exec {_RUN}
  ) >{_OUTPUT} 2>&1 &
  controller=$!
  active=0
  for _ in $(seq 600); do
    kill -0 "$controller" 2>/dev/null && ! grep -q '{FENCED}' {_OUTPUT} || break
    ! grep -q '{ACTIVE}' {_OUTPUT} || active=$((active + 1))
    [ "$active" -lt 20 ] || break # who was fenced before is not fenced again
    sleep 0.1
  done
  sleep 0.6 # the record is written after it is spoken of: twice a second a no-op record follows
  kill -TERM "$controller" 2>/dev/null
  wait "$controller"
fi
exec {_RUN}
"""
    return ["bash", "-c", script]
