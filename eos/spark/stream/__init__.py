"""A stream: each batch of a streaming query, once.

`sink` is what foreachBatch calls, `query` starts a query with it. `division` divides a batch's rows into shards, and `micro_batch`
writes them. Its commit record is an entry of the commit log, which messages, errors and group names call the ledger: `log_entry` is what
an entry says, `log_rules` decide which shards are written, `commit_log` keeps it in Kafka, for the driver by `log_driver`. `marks` are the input offsets beside it,
`plans` what the checkpoint says of each batch's input, `begun` a note in the checkpoint.
"""
