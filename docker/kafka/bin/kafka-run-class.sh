#!/usr/bin/env bash
# Run a class of Kafka: kafka-run-class.sh CLASS [ARGUMENT …]. The process becomes java's, so signals reach it.
#
# KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS, KAFKA_LOG4J_OPTS, KAFKA_JMX_OPTS and KAFKA_OPTS go to java as they are.
set -euo pipefail

home=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
if [ $# = 0 ]; then
  echo "Usage: ${0##*/} CLASS [ARGUMENT ...]" >&2
  exit 1
fi
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
log_config=/opt/kafka/config/tools-log4j2.yaml
[ -r "$log_config" ] || log_config=/etc/kafka/docker/tools-log4j2.yaml

# Options are words, so these expansions are left to be split.
# shellcheck disable=SC2086
exec "$java" \
  ${KAFKA_HEAP_OPTS:--Xmx256m} \
  ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1} \
  ${KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=$log_config} \
  ${KAFKA_JMX_OPTS:-} \
  ${KAFKA_OPTS:-} \
  -cp "${CLASSPATH:+$CLASSPATH:}$home/libs/*" \
  "$@"
