"""Watches: each looks before every fetch, in its thread, so it must not wait long. It raises, or asks the member to join its group anew.

`stalls`: partitions whose fetches fail for ever. `unreached`: brokers that are waited for. `unowned`: partitions that no member has.
`input_topics`: topics that were deleted or created anew. `eos.faces.surroundings` lists them. Beside them `catch_up`: whether all input is
processed that there was when a run began.
"""
