"""The only room that commits: a producer, its transactions, and the comparison with what it last committed."""
