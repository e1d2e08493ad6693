"""Guards: each refuses what an owner must not take over, by raising. They change nothing, but for a group's first offsets (`start_policy`).

`enter` is asked before an owner joins its group: `owners` (other members, another app, another mode of ownership), then the
`start_policy` of a group without offsets. `takeover`, `expired` and `truncated` are asked whenever it takes partitions over.
`eos.faces.surroundings` lists them.
"""
