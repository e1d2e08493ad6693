#!/usr/bin/env bash
# Start a broker, a controller or both: kafka-server-start.sh FILE.properties [--override NAME=VALUE …]
set -euo pipefail

if [ $# = 0 ]; then
  echo "Usage: ${0##*/} FILE.properties [--override NAME=VALUE ...]" >&2
  exit 1
fi
log_config=$(dirname "$1")/log4j2.yaml
[ -r "$log_config" ] || log_config=/etc/kafka/docker/log4j2.yaml
export KAFKA_HEAP_OPTS=${KAFKA_HEAP_OPTS:--Xmx1g}
# A broker without memory must end, so that it is restarted, and not live on half dead.
export KAFKA_JVM_PERFORMANCE_OPTS=${KAFKA_JVM_PERFORMANCE_OPTS:--server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 \
-XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent -XX:+ExitOnOutOfMemoryError \
-Djava.awt.headless=true}
export KAFKA_LOG4J_OPTS=${KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=$log_config}
exec "$(dirname "$0")/kafka-run-class.sh" kafka.Kafka "$@"
