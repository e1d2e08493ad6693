"""Guards: each refuses what an owner must not take over, by raising.

Two also commit: `start_policy` a group's first offsets, `adoption` again those that another program has committed.

`enter` is called before an owner joins its group: `owners` (other members, another app, another mode of ownership), then the
`start_policy` of a group without offsets. `takeover`, `expired`, `truncated` and `seen` are asked whenever it takes partitions over.
`eos.faces.surroundings` lists them.
"""
