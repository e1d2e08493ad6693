"""The process of a sole broker's container: as ``eos.local.former``, fence what the killed broker has left registered."""

from __future__ import annotations

_RUN = "/etc/kafka/docker/run"  # in either image: configures Kafka from the environment, and becomes it
_OUTPUT = "/tmp/former.log"  # noqa: S108 - in the container


def command(logs: str, controller_port: int) -> list[str]:
    """What the container of a broker that is the only one runs instead of the image's own command.

    Args:
        logs: the broker's directory of logs, in the container.
        controller_port: where its controller listens.
    """
    listener = f"CONTROLLER://localhost:{controller_port}"
    script = f"""
trap 'exit 143' TERM
if [ -d {logs}/__cluster_metadata-0 ] && [ ! -e {logs}/.kafka_cleanshutdown ]; then
  (
    export KAFKA_PROCESS_ROLES=controller KAFKA_LISTENERS={listener} KAFKA_ADVERTISED_LISTENERS={listener}
    export KAFKA_BROKER_SESSION_TIMEOUT_MS=200 KAFKA_BROKER_HEARTBEAT_INTERVAL_MS=50
    exec {_RUN}
  ) >{_OUTPUT} 2>&1 &
  controller=$!
  active=0
  for _ in $(seq 600); do
    kill -0 "$controller" 2>/dev/null && ! grep -q 'Fencing broker' {_OUTPUT} || break
    ! grep -q 'Activated periodic tasks' {_OUTPUT} || active=$((active + 1))
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
