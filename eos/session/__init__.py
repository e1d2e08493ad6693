"""The owner of a shard: a consumer, a start policy, and the session that joins them with a producer."""
