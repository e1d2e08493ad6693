"""What users hold of an owner: `session`, where a block fills a transaction of Kafka (`blocks` is what every session does), and `reader`, which commits nothing.

`surroundings` lists the guards and watches that every owner gets.
"""
