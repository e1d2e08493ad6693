"""The door to confluent-kafka: thin clients whose errors are classified; nothing else imports that package. No policy.

`producer`, `consumer` and `admin` are the clients; `classify` says what an error means to its holder. `config` turns settings into
librdkafka's options, and `fixed` has those that the guarantee depends on. `late_copies` and `implicit_acks` read from librdkafka's log
what it does not tell: requests that it has sent twice, and records that it took for delivered.
"""
