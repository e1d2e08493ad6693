"""The guarantee: from a fetch to the commit of its output together with its input offsets.

Read in this order: `owner` holds the rest and decides what an error or a rebalance means. `ledger` is all that is known of each owned
partition's offsets. `committer` has the transactions, on one way from begin to commit. `pipeline` fills them for the built-in loop.

- Input: `consumer` (positions are never reset silently), `assignment` (rebalance callbacks, takeovers), `fetched` (a batch with its
  offsets), `membership` (a place in the group, after a fence too), `own_shard`, `surroundings` (guards and watches, as types).
- Where it goes: `destination` (Kafka or a database, as types).
- Output: `producer` (open, suspect, reopen, close), `own_offsets` (what it commits, and has committed), `transaction` (one atomic unit as a state machine), `block` (what a user gets of
  it), `transactional` (output without input), `topics_used` (topics stay the same inside a transaction), `fence`.
- Errors: `tries` (how often, and how long), `comparison` (shows another owner, and the outcome of an unanswered commit), `forgotten`
  (offsets that a coordinator has lost), `uninterrupted`, `overtime` (code of the caller that takes too long), `poison_row`.
"""
