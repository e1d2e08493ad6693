"""The search for a record that ends the process of its owner: `search` (what an owner does for it), `suspects` (its rules), `alone`.

When a record may have ended the process, `alone` lets one owner of the process work while the others wait: a crash then points at
that owner's record.
"""
