: "${BOOTSTRAP:?host:port of a broker}"
: "${ADMIN:?properties file of an administrator: how kafka-acls.sh logs in}"
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Write --operation Describe --transactional-id refunds.refunds. --resource-pattern-type prefixed
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Read --operation Describe --topic settlements
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Write --operation Describe --topic refund-audit
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Write --operation Describe --topic refunds-emitted
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Write --operation Describe --topic settlements.dlq
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" --add --allow-principal User:refunds --operation Read --operation Describe --group refunds
